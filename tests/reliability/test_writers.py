"""The package writes files with `io.write_atomic` and `io.write_folder` only."""

import ast
import re
from pathlib import Path

import pytest

import scalefield

PACKAGE = Path(scalefield.__file__).parent
WRITERS = {
    "write_text", "write_bytes", "save", "savez", "savez_compressed", "savefig", "savetxt",
    "tofile", "dump", "save_file", "fdopen", "mkstemp", "replace", "rename", "symlink_to",
    "hardlink_to", "touch", "copy", "copy2", "copyfile", "copytree", "move", "open", "write",
}  # fmt: skip
ALLOWED = {
    "io.disk.write_atomic": "writes files",
    "io.disk.write_folder": "writes folders",
    "export.view.write_recording": "rerun writes to names only; into a temporary folder",
    "geometry.colmap.undistort": "COLMAP writes folders; they are moved when they are whole",
    "web.uploads.read_depth": "an upload on its way to a reader, in a temporary folder",
    "labelling.samples.as_file": "a tar's member on its way to a reader, in a temporary folder",
    "labelling.labeller.write_shard": "into the folder that write_folder gives",
    "training.basis.write_model": "Generator.save, which uses write_atomic",
    "training.field.train_field": "FieldModel.save, which uses write_atomic",
    "basis.pretrained.upload": "a model's save, into a temporary folder",
    "commands.explain.run": "Explanation.save, which uses write_folder",
    "io.exr.quiet_openexr": "os.devnull, in the place of stderr",
    "cli._keep_streams": "os.devnull, in the place of a closed stream",
    "cli._mute": "os.devnull, in the place of a closed pipe",
}
"""Functions that write by other means, and why that is no danger."""
BUFFERS = {"buffer", "exact", "picture", "BytesIO()"}
"""Names of io.BytesIO in this package, which are memory."""


def writes(call: ast.Call) -> bool:
    """Whether the text of a call shows that it may change the disk."""
    function = call.func
    name = function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
    if name not in WRITERS:
        return False
    words = [ast.unparse(a) for a in [*call.args, *(k.value for k in call.keywords)]]
    if any(word.removeprefix("io.") in BUFFERS for word in words):
        return False
    if name == "save" and isinstance(function, ast.Name):  # safetensors', which returns bytes
        return False
    if name in ("open", "fdopen"):
        return any(re.fullmatch(r"'[rbt]*[wax+][rbt+]*'|.*O_(WRONLY|RDWR).*", w) for w in words)
    if name in ("replace", "copy", "move", "write", "dump"):  # text, dataclasses and buffers too
        return isinstance(function, ast.Attribute) and ast.unparse(function.value) in (
            "os", "shutil", "json", "Path", "path", "target", "temporary",
        )  # fmt: skip
    return True


def functions(path: Path):
    """Every function of a file by its dotted name, with what is in it."""
    module = path.relative_to(PACKAGE).with_suffix("").as_posix().replace("/", ".")
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            yield f"{module}.{node.name}", node


def offenders(path: Path) -> dict[str, str]:
    found = {}
    for name, node in functions(path):
        calls = [n for n in ast.walk(node) if isinstance(n, ast.Call) and writes(n)]
        if calls:
            found[name] = ast.unparse(calls[0])
    return found


def test_writers_of_the_package_are_those_of_io():
    found: dict[str, str] = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        found |= offenders(path)
    assert {name: call for name, call in found.items() if name not in ALLOWED} == {}
    assert set(ALLOWED) <= set(found), "an exception that is none any more"


@pytest.mark.parametrize(
    "line",
    [
        "open(path, 'w').write(x)",
        "path.open('ab')",
        "path.write_text(x)",
        "np.save(path, x)",
        "np.savez(folder / 'a.npz', x=x)",
        "image.save(path)",
        "torch.save(x, path)",
        "json.dump(x, file)",
        "shutil.copy(a, b)",
        "os.replace(a, b)",
    ],
)
def test_writers_search_detects_every_way_of_writing(line, tmp_path, monkeypatch):
    monkeypatch.setattr(f"{__name__}.PACKAGE", tmp_path)
    (tmp_path / "bad.py").write_text(f"def f(path, x):\n    {line}\n")
    assert offenders(tmp_path / "bad.py")


@pytest.mark.parametrize(
    "line", ["open(path, 'rb')", "np.save(buffer, x)", "text.replace('a', 'b')", "path.open()"]
)
def test_writers_search_accepts_harmless_lines(line, tmp_path, monkeypatch):
    monkeypatch.setattr(f"{__name__}.PACKAGE", tmp_path)
    (tmp_path / "good.py").write_text(f"def f(path, x):\n    {line}\n")
    assert not offenders(tmp_path / "good.py")
