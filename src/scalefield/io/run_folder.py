"""Output folders that hold the results of one configuration and may be continued by a later run."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from scalefield.errors import InputError
from scalefield.io.disk import read_json


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
