"""The picture of floors in docs/architecture.md is true: every import goes to the same floor or further down."""

import ast
import re
import tomllib
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PICTURE = ROOT / "docs" / "architecture.md"
FRONT = "urc"  # __init__.py, which gathers the public names


def module_name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module_name(path): path for path in sorted((ROOT / "urc").rglob("*.py"))}


def drawn_floors() -> dict[str, int]:
    """Module or package, without `urc.`, -> its floor: lines such as `│ 3  config  what it is │`."""
    floors = {}
    for line in PICTURE.read_text().splitlines():
        if found := re.fullmatch(r"│ +(\d+) +([\w, ]+?)  .*│", line):
            floors |= dict.fromkeys(found[2].split(", "), int(found[1]))
    return floors


FLOORS = drawn_floors()


def floor_of(module: str) -> int:
    return FLOORS[module.split(".")[1]]


def imports(path: Path) -> set[str]:
    """The modules of urc that a file imports when it runs, at its top or within a function."""
    found = set()

    def visit(node: ast.AST) -> None:
        if isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING"):
            return
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path.name}, line {node.lineno}: a relative import"
            names = {f"{node.module}.{alias.name}" for alias in node.names}
            found.update(name if name in MODULES else str(node.module) for name in names)
        for child in ast.iter_child_nodes(node):
            visit(child)

    visit(ast.parse(path.read_text()))
    return found & set(MODULES)


IMPORTS = {module: imports(path) for module, path in MODULES.items()}


def test_the_picture_shows_every_module():
    assert set(FLOORS) == {module.split(".")[1] for module in MODULES if module != FRONT}


@pytest.mark.parametrize("module", [module for module in MODULES if module != FRONT])
def test_imports_go_down(module):
    for imported in IMPORTS[module]:
        assert imported != FRONT, f"{module} imports the package's front: import the module that has the name"
        assert floor_of(imported) <= floor_of(module), f"{module} imports {imported}, which is on a higher floor"


def test_the_front_needs_no_command_line():
    """`import urc` loads neither the replay nor the command line, nor what those depend on."""
    seen, todo = set(), [FRONT]
    while todo:
        module = todo.pop()
        if module not in seen:
            seen.add(module)
            todo += IMPORTS[module]
    assert not {module for module in seen if module.startswith(("urc.replay", "urc.cli"))}


def test_there_are_no_cycles():
    """A package's own modules do not import the package."""
    TopologicalSorter(IMPORTS).prepare()


def test_files_are_short():
    """A file for an idea, of at most 400 lines."""
    long = {name: lines for name, path in MODULES.items() if (lines := len(path.read_text().splitlines())) > 400}
    assert not long


def test_the_oldest_versions_tested_are_the_lower_bounds():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    bounds = dict(dependency.split(">=") for dependency in project["dependencies"])
    lines = (ROOT / "tests" / "oldest.txt").read_text().splitlines()
    tested = dict(line.split("==") for line in lines if not line.startswith("#"))
    assert set(tested) == {"jax", "jaxlib", "flax", "chex", "numpy"}
    assert {name: bounds[name] for name in tested} == tested
