"""docs/architecture.md agrees with the code: its diagram with the imports, its walks with the functions."""

import ast
import importlib
import re
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parent.parent
SOURCE = REPOSITORY / "src" / "simcse_cli"
PAGE = (REPOSITORY / "docs" / "architecture.md").read_text(encoding="utf-8")
DIAGRAM = re.search(r"```mermaid\n(.*?)```", PAGE, re.DOTALL)[1]
FLOOR = set(re.search(r"floor\[(.*?)\]", DIAGRAM)[1].split())


def room(relative):
    """Return the folder below the package, or the module's own name in the root."""
    return relative.parts[0] if len(relative.parts) > 1 else relative.stem


def imported_rooms(path):
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("simcse_cli."):
            yield node.module.split(".")[1]


def test_diagram_shows_the_imports():
    drawn = {
        (source, target)
        for source, targets in re.findall(r"^\s*(\w+) --> ([\w &]+)$", DIAGRAM, re.MULTILINE)
        for target in targets.replace("&", " ").split()
    }
    files = [
        path.relative_to(SOURCE)
        for path in SOURCE.rglob("*.py")
        if path.stem not in ("__init__", "__main__")
    ]
    real = {(room(file), target) for file in files for target in imported_rooms(SOURCE / file)}
    assert drawn == {(a, b) for a, b in real if a != b and a not in FLOOR and b not in FLOOR}
    rooms = {name for edge in drawn for name in edge} | FLOOR
    assert rooms == {room(file) for file in files}


def named_functions():
    walks = PAGE[PAGE.index("## The life of a sentence") : PAGE.index("## Where do I put")]
    return sorted(set(re.findall(r"`((?:\w+\.)+\w+)`", walks)))


@pytest.mark.parametrize("name", named_functions())
def test_walks_name_functions_that_exist(name):
    parts = name.split(".")
    for n in range(len(parts), 0, -1):
        try:
            found = importlib.import_module(".".join(["simcse_cli", *parts[:n]]))
        except ModuleNotFoundError:
            continue
        for part in parts[n:]:
            found = getattr(found, part)
        return
    pytest.fail(f"no module of {name}")
