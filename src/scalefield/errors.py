"""The one error a user meets: a sentence that says what was found and what was wanted."""


class InputError(ValueError):
    """Bad input. The command line prints its message and exits with code 2."""


def brief(error: object, most: int = 200) -> str:
    """What an error or a text says, in one line that fits into a sentence."""
    said = " ".join("".join(c if c.isprintable() else " " for c in str(error)).split())
    return said if len(said) <= most else f"{said[:most]}…"


class Notice(UserWarning):
    """What a user should hear although all goes well; the command line prints no other warning."""


def require_package(package: str, extra: str, purpose: str) -> None:
    """Report an optional package that is not installed, before long work starts."""
    from importlib.util import find_spec

    if find_spec(package) is None:
        raise MissingExtra(package, extra, purpose)


class MissingExtra(ImportError):
    """An optional dependency is absent. The message is the command that installs it."""

    def __init__(self, package: str, extra: str, purpose: str) -> None:
        self._given = (package, extra, purpose)
        super().__init__(
            f"{purpose} needs the package {package!r}, which is not installed: "
            f"pip install 'scalefield[{extra}]'"
        )

    def __reduce__(self) -> tuple:
        """So that it can leave a worker process, where Python would call it with the message."""
        return type(self), self._given
