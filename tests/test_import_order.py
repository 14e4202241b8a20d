"""The import order of the packages, as CONTRIBUTING.md states it, enforced over the source."""

import ast
from collections.abc import Iterator
from pathlib import Path

import scalefield

PACKAGE = Path(scalefield.__file__).parent

ORDER = [
    ["errors", "defaults", "report", "seeding", "validation"],
    ["runtime"],
    ["io"],
    ["anchors", "mde.output", "measurements", "recovery", "anchor_sampling"],
    ["geometry", "mde", "alignment"],
    ["basis", "datasets"],
    ["field"],
    ["explanation"],
    ["methods"],
    ["inputs", "checks", "api", "huggingface"],
    ["scene"],
    ["samples"],
    ["export"],
    ["benchmark", "labelling", "training", "web"],
    ["reproduction"],
    ["commands"],
    ["cli"],
]
"""A module may import its own package and the packages of earlier rows, and no others."""

SAME_ROW = {("inputs", "api"), ("anchors", "anchor_sampling"), ("anchors", "recovery")} | {
    ("checks", "api"), ("api", "huggingface"), ("mde.output", "recovery"), ("errors", "validation"),
    ("measurements", "recovery"),
}  # fmt: skip
"""Imports within a row, from the second to the first."""

CONVENIENCES = {
    ("recovery", "export"), ("recovery", "geometry"), ("recovery", "explanation"),
    ("explanation", "export"),
}  # fmt: skip
"""Imports against the order: types, and methods that call `export` when they are called."""

RANK = {name: rank for rank, row in enumerate(ORDER) for name in row}


def unit(module: str) -> str:
    """The package, or single module, that a module counts as."""
    if module in RANK:
        return module
    return module.partition(".")[0]


def modules() -> dict[str, Path]:
    """All modules of the package by dotted name, without the package's own."""
    found = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(PACKAGE).with_suffix("").parts
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        if name:
            found[name] = path
    return found


def imports(name: str, path: Path, known: dict[str, Path]) -> Iterator[str]:
    """Modules of the package that a file imports, at the top or inside functions."""
    assert not name.startswith("scalefield")
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            targets = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{name}: relative import"
            members = [f"{node.module}.{alias.name}" for alias in node.names]
            targets = [m if m.removeprefix("scalefield.") in known else node.module or ""
                       for m in members]  # fmt: skip
        else:
            continue
        for target in targets:
            if target.startswith("scalefield."):
                yield target.removeprefix("scalefield.")


def upward(name: str, target: str) -> bool:
    """Whether an import of `target` by the module `name` goes against the order."""
    here, there = unit(name), unit(target)
    if here == there or (here, there) in CONVENIENCES:
        return False
    if RANK[here] == RANK[there]:
        return (there, here) not in SAME_ROW
    return RANK[here] < RANK[there]


def test_import_order_holds_for_every_module() -> None:
    known = modules()
    found = {
        (name, target)
        for name, path in known.items()
        for target in imports(name, path, known)
        if upward(name, target)
    }
    wrong = sorted(f"{name} imports {target}" for name, target in found)
    assert not wrong, f"{len(wrong)} imports against the order: " + "; ".join(wrong)


def test_import_order_names_every_package() -> None:
    units = {unit(name) for name in modules()}
    assert units - set(RANK) == set()
    assert set(RANK) - units == set()


def test_upward_detects_a_wrong_import(tmp_path) -> None:
    known = modules()
    path = tmp_path / "ridge.py"
    path.write_text("def f():\n    from scalefield.methods import METHODS\n")
    assert list(imports("basis.ridge", path, known)) == ["methods"]
    assert upward("basis.ridge", "methods")
    assert upward("benchmark.run", "web.app")
    assert not upward("methods.basis", "basis.ridge")
    assert not upward("web.exports", "export.cloud")


def test_contributing_states_the_import_order() -> None:
    text = (Path(__file__).parents[1] / "CONTRIBUTING.md").read_text()
    line = " < ".join(", ".join(row) for row in ORDER)
    assert line in " ".join(text.split())
    modules_of_root = [name for row in ORDER for name in row if (PACKAGE / f"{name}.py").exists()]
    assert [name for name in modules_of_root if f"`{name}`" not in text] == []
