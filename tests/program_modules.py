"""Programs outside the package (examples/, scripts/, benchmarks/) as modules, for tests."""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).parents[1]
EXAMPLES = ROOT / "examples"


def load_module(path: Path) -> ModuleType:
    """The module of a Python file, under a name of its own in sys.modules."""
    spec = importlib.util.spec_from_file_location(f"loaded_{path.stem}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def load_example(name: str) -> ModuleType:
    """The module of a file below examples/, for example "ros2/conversions.py"."""
    return load_module(EXAMPLES / name)
