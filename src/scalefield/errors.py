"""The exceptions and warnings that users meet."""


class InputError(ValueError):
    """Bad input. The command line prints its message and exits with code 2."""


def one_line(error: object, most: int = 200) -> str:
    """The text of an error, or any text, as one line of at most `most` characters."""
    text = " ".join("".join(c if c.isprintable() else " " for c in str(error)).split())
    return text if len(text) <= most else f"{text[:most]}…"


class Notice(UserWarning):
    """Information for the user; the command line prints it and no warning of other libraries."""


def require_package(package: str, extra: str, purpose: str) -> None:
    """Report an optional package that is not installed, before long work starts."""
    from importlib.util import find_spec

    if find_spec(package) is None:
        raise MissingExtra(package, extra, purpose)


class MissingExtra(ImportError):
    """An optional dependency is not installed. The message contains the command that installs
    it."""

    def __init__(self, package: str, extra: str, purpose: str) -> None:
        self._given = (package, extra, purpose)
        super().__init__(
            f"{purpose} needs the package {package!r}, which is not installed: "
            f"pip install 'scalefield[{extra}]'"
        )

    def __reduce__(self) -> tuple:
        """Pickling support: by default Python would rebuild the error from its message."""
        return type(self), self._given
