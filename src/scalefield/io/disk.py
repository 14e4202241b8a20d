"""Reading and writing bytes, text and JSON, and configurations of folders; writes are atomic."""

from __future__ import annotations

import json
import os
import secrets
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from scalefield.errors import FileError, InputError, one_line
from scalefield.runtime.signals import defer_signals, on_worker_exit

_BINARY = getattr(os, "O_BINARY", 0)  # Windows would change line ends

MEMORY_ALWAYS = 2**29
"""Bytes of memory that reading a file may take, however small it is."""
MEMORY_TIMES = 16
"""A larger file may take this multiple of its own size."""


def check_memory(content: str, needed: int, file_bytes: int) -> None:
    """Raise ValueError if the declared content of a file needs more memory than the file may take.

    `needed` counts everything that is in memory at once, such as the decoder's own buffers.
    """
    allowed = max(MEMORY_ALWAYS, MEMORY_TIMES * file_bytes)
    if needed > allowed:
        raise ValueError(
            f"{content} in {file_bytes} bytes need {needed / 1e6:.0f} MB of memory, and a file of "
            f"this size may take {allowed / 1e6:.0f}"
        )


def read_bytes(path: Path) -> bytes:
    """The content of a file; InputError if it cannot be read."""
    try:
        # Also pipes and sockets, which may never end.
        special = path.exists() and not (path.is_file() or path.is_dir())
        content = b"" if special else path.read_bytes()
    except FileNotFoundError:
        refuse_address(path)
        raise FileError(path, "no such file") from None
    except OSError as e:
        raise FileError(path, f"cannot be read ({e.strerror})") from None
    except ValueError as e:  # no system has such a name
        raise InputError(
            f"{one_line(path)!r} cannot be the name of a file ({one_line(e)})"
        ) from None
    if special:
        raise FileError(path, "is a device or a pipe; give a file")
    return content


def refuse_address(path: Path) -> None:
    """Refuse a path that is a web address, which `Path` has left with one slash only."""
    scheme, _, rest = str(path).partition(":/")
    if scheme.lower() in ("http", "https"):
        address = f"{scheme}://{rest.lstrip('/')}"
        raise InputError(f"{address} is a web address; download it and give the file")


def read_text(path: Path) -> str:
    """The content of a UTF-8 file, with or without a byte order mark."""
    try:
        return read_bytes(path).decode("utf-8-sig")
    except UnicodeDecodeError:
        raise FileError(path, "not a UTF-8 text file") from None


def read_json(path: Path) -> Any:
    """The values of a JSON file."""
    try:
        return json.loads(read_text(path))
    except (json.JSONDecodeError, RecursionError) as e:
        raise FileError(path, f"not a JSON file ({one_line(e)})") from None
    except ValueError as e:  # a whole number of thousands of digits
        raise e if isinstance(e, InputError) else FileError(path, one_line(e)) from None


def files_below(folder: Path) -> list[Path]:
    """Every file below a folder, sorted; InputError if a folder cannot be read."""

    def refuse(error: OSError) -> None:
        raise InputError(f"{error.filename}: cannot be read ({error.strerror})")

    return sorted(
        Path(parent, name) for parent, _, names in os.walk(folder, onerror=refuse) for name in names
    )


@defer_signals()
def write_atomic(path: str | Path, data: bytes) -> None:
    """Write `data` to `path` atomically: on failure, an existing file stays as it was."""
    path = Path(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.parent / f"{_hidden(path)}{secrets.token_hex(4)}"
        handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _BINARY, 0o666)
    except OSError as e:
        raise _unwritable(path, e) from None
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
        _sync_names(path.parent)
    except OSError as e:
        raise _unwritable(path, e) from None
    finally:
        temporary.unlink(missing_ok=True)


@contextmanager
def write_folder(path: str | Path) -> Iterator[Path]:
    """A temporary folder whose files move to `path` when the block ends without an error."""
    path = Path(path)
    with defer_signals():  # but for the caller's block
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            staging = tempfile.TemporaryDirectory(dir=path.parent, prefix=_hidden(path))
        except OSError as e:
            raise _unwritable(path, e) from None
        try:
            with staging as folder:
                with on_worker_exit(staging.cleanup), defer_signals(deferred=False):
                    yield Path(folder)
                path.mkdir(exist_ok=True)
                files = sorted(Path(folder).iterdir())
                for file in files:
                    if (path / file.name).is_dir():
                        raise InputError(f"{path / file.name}: cannot be written (it is a folder)")
                for file in files:
                    os.replace(file, path / file.name)
                _sync_names(path)
                _sync_names(path.parent)
        except OSError as e:
            raise _unwritable(path, e) from None


def _sync_names(folder: Path) -> None:
    """Flush the names in a folder to the disk; systems that cannot do so are left alone."""
    with suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def _hidden(path: Path) -> str:
    """Prefix of a temporary name, short enough for the system's limit on names."""
    return f".{path.name[:40]}."


def remove_temporary(folder: Path) -> None:
    """Remove what writers that were killed have left below a folder."""
    random_end = "[a-z0-9_]" * 8  # as tempfile names folders
    for path in sorted(folder.rglob(f".*.{random_end}")):
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)


def _unwritable(path: Path, error: OSError) -> InputError:
    in_the_way = isinstance(error, FileExistsError | NotADirectoryError)
    why = "a file is in the place of a folder" if in_the_way else error.strerror
    return FileError(path, f"cannot be written ({why})")


def write_json(path: str | Path, value: Any) -> None:
    """Write `value` as indented JSON in the order of its keys; NaN and infinities are refused."""
    write_atomic(path, (json.dumps(value, indent=1, allow_nan=False) + "\n").encode())


def as_json(config: Mapping[str, Any]) -> dict[str, Any]:
    """A configuration as it is read back from JSON: tuples are lists, keys are strings."""
    return json.loads(json.dumps(config, default=str))


def config_differences(
    path: Path, config: Mapping[str, Any], *, key: str | None = None
) -> list[str] | None:
    """Names of the values in which a recorded configuration differs from `config`, sorted.

    None if the file does not exist. With `key`, the configuration is that entry of the file.
    """
    if not path.exists():
        return None
    recorded = read_json(path)
    if key is not None and isinstance(recorded, dict):
        recorded = recorded.get(key)
    if not isinstance(recorded, dict):
        raise InputError(f"{path}: not the record of a configuration")
    return sorted(name for name, value in as_json(config).items() if recorded.get(name) != value)


def continues(path: Path, config: Mapping[str, Any], results: str) -> bool:
    """Whether the folder of `path` has results of this configuration, which `path` records under
    "config"; those of another configuration are refused."""
    differing = config_differences(path, config, key="config")
    if differing:
        raise InputError(
            f"{path.parent} has {results} of another configuration ({', '.join(differing)} "
            "differ); give another folder"
        )
    return differing is not None


def spare_inputs(outputs: Iterable[Path], inputs: Iterable[Path | None]) -> None:
    """Refuse outputs that would overwrite an input."""
    read = [path for path in inputs if path is not None and os.path.exists(path)]
    for output in outputs:
        if os.path.exists(output) and any(os.path.samefile(output, path) for path in read):
            raise InputError(f"{output} is an input and would be overwritten; give another --out")
