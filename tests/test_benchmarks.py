"""The benchmarks keep up with the program: each imports, and every name it takes from the package exists."""

import ast
from importlib import import_module
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).resolve().parent.parent / "benchmarks"
MODULES = sorted(BENCHMARKS.glob("*.py"))


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.stem)
def test_benchmark_imports_what_exists(path, monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import_module(path.stem)
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module.startswith("simcse_cli"):
            module = import_module(node.module)
            missing = [alias.name for alias in node.names if not hasattr(module, alias.name)]
            assert not missing, f"{path.name}, line {node.lineno}: {node.module} has no {missing}"
