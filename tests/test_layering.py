"""The one-way rule of the layers, who may use which package, and that help costs nothing."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

SOURCE = Path(__file__).resolve().parent.parent / "src" / "simcse_cli"
LAYERS = (
    {"choices", "errors", "progress"},
    {"files", "metrics", "recipes", "report", "settings"},
    {"config", "data", "losses", "postprocess", "runs", "pair_scores", "predictions"},
    {"kernels"},
    {"augment", "models", "prepare"},
    {"objectives", "evaluation"},
    {"encoding"},
    {"analysis", "comparison"},
    {"console", "training"},
    {"commands"},
    {"cli"},
    {"__main__"},
)
LEVEL = {name: level for level, names in enumerate(LAYERS) for name in names}
# Package -> where it may be imported.
THIRD_PARTY = {
    "typer": {"cli", "commands"},
    "rich": {"console", "commands"},
    "accelerate": {"training"},
    "datasets": {"data"},
    "transformers": {"models", "augment", "training"},
    "yaml": {"config", "recipes", "comparison", "commands", "training"},
    "mteb": {"evaluation"},
    "matplotlib": {"analysis", "commands", "training"},
}


def modules():
    return sorted(path for path in SOURCE.rglob("*.py") if path.name != "__init__.py")


def unit(path):
    """Return the folder below the package, or the module's own name in the root."""
    relative = path.relative_to(SOURCE)
    return relative.parts[0] if len(relative.parts) > 1 else relative.stem


def imports(path):
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module


@pytest.mark.parametrize("path", modules(), ids=lambda p: str(p.relative_to(SOURCE)))
def test_imports_go_down_only(path):
    own = unit(path)
    assert own in LEVEL, f"{own} stands in no layer"
    for name in imports(path):
        if not name.startswith("simcse_cli."):
            continue
        other = name.split(".")[1]
        assert other == own or LEVEL[other] < LEVEL[own], f"{path.name} ({own}) imports {name}"


@pytest.mark.parametrize("path", modules(), ids=lambda p: str(p.relative_to(SOURCE)))
def test_packages_stay_in_their_place(path):
    own = unit(path)
    for name in imports(path):
        package = name.split(".")[0]
        assert own in THIRD_PARTY.get(package, {own}), f"{own} imports {package}"


def test_no_module_prints_but_the_console():
    for path in modules():
        calls = [n for n in ast.walk(ast.parse(path.read_text())) if isinstance(n, ast.Call)]
        printing = [c for c in calls if isinstance(c.func, ast.Name) and c.func.id == "print"]
        assert not printing, path


@pytest.mark.parametrize(
    "arguments",
    [["--help"], ["--version"], ["train", "--help"], ["eval", "sts", "--help"], ["analyze", "--help"]],
)
def test_help_imports_no_heavy_package(arguments):
    code = (
        "import sys\nfrom simcse_cli.cli import main\n"
        f"try:\n    main({arguments!r})\nexcept SystemExit as stop:\n    assert not stop.code\n"
        "heavy = {'torch', 'transformers', 'numpy', 'scipy', 'datasets', 'pyarrow', 'matplotlib'} & set(sys.modules)\n"
        "assert not heavy, heavy"
    )
    subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.DEVNULL)
