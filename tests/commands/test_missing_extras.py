"""What each command says without the packages of an extra, and what works all the same."""

import json
import re
import shlex
import sys
from types import SimpleNamespace

import pytest

from helpers import SENTENCES, write_sts_folder
from simcse_cli import errors
from simcse_cli.errors import how_to_install

DRAWING = (
    "geometry -m no",
    "spectrum -m no",
    "density -m no",
    "retrieval no.txt query",
    "overlap no.csv",
    "trace no",
)
# Command, what it asks for, the missing module, its package and the extra. The models and files do
# not exist: the package is missed before anything is read.
MISSING = [
    *(
        (f"analyze {command} {flag} out", flag, "matplotlib", "matplotlib", "plot")
        for command in DRAWING
        for flag in ("--html", "--plot")
    ),
    ("analyze report no -o out", "`simcse analyze report`", "matplotlib", "matplotlib", "plot"),
    (
        "analyze search no.txt query --backend faiss",
        "--backend faiss",
        "faiss",
        "faiss-cpu",
        "faiss",
    ),
    ("encode no.txt -o out.npy --engine ray", "--engine ray", "ray", "ray", "ray"),
    ("eval mteb -m no", "`simcse eval mteb`", "mteb", "mteb", "mteb"),
    (
        "eval transfer -m no --probe sklearn",
        *("--probe sklearn", "sklearn", "scikit-learn", "probe"),
    ),
    (
        "train --mode unsup -m bert --train-file text.txt --dev-file dev.csv --sweep "
        "search.yaml -o out",
        *("a sweep with `search`", "optuna", "optuna", "search"),
    ),
]


@pytest.fixture
def hide(monkeypatch):
    """Return a function that makes a package look as if it were not installed."""

    def hide(package):
        for name in [name for name in sys.modules if name.split(".")[0] == package]:
            monkeypatch.delitem(sys.modules, name)
        monkeypatch.setitem(sys.modules, package, None)

    return hide


@pytest.fixture
def place(tiny_model_dir, tmp_path, monkeypatch):
    """Make the few files that some commands read before they know what they need."""
    tiny_model_dir.rename(tmp_path / "bert")
    (tmp_path / "text.txt").write_text("\n".join(SENTENCES) + "\n")
    for name in ("no.txt", "no.csv"):  # empty: whoever read them would say so
        (tmp_path / name).touch()
    (tmp_path / "search.yaml").write_text(
        "search: {lr: {low: 1.0e-5, high: 1.0e-3}}\nn_trials: 2\n"
    )
    (tmp_path / "grid.yaml").write_text(
        "settings: {objective: simcse-unsup}\ngrid: {lr: [1.0e-4, 1.0e-3]}\n"
    )
    stsb = write_sts_folder(tmp_path / "senteval") / "downstream" / "STS" / "STSBenchmark"
    (tmp_path / "dev.csv").write_bytes((stsb / "sts-dev.csv").read_bytes())
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("command", "purpose", "module", "package", "extra"), MISSING, ids=[row[0] for row in MISSING]
)
def test_command_that_misses_an_extra_says_in_one_line_how_to_install_it(
    invoke, hide, place, command, purpose, module, package, extra
):
    hide(module)
    out = invoke(*shlex.split(re.sub(r"(?<=--plot )out", "out.png", command)))
    assert out.exit_code == 1
    assert out.stderr == f"error: {purpose} needs the package {package}: {how_to_install(extra)}\n"
    assert not list(place.glob("out*"))


def test_an_extra_is_added_by_what_installed_this_copy(tmp_path, monkeypatch):
    python = tmp_path / "bin" / "python"
    monkeypatch.setattr(sys, "executable", str(python))
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    monkeypatch.setattr(errors, "which", lambda _: str(python.with_name("pip")))
    assert how_to_install("peft") == "pip install 'simcse-cli[peft]'"
    monkeypatch.setattr(errors, "which", lambda _: "/usr/bin/pip")  # the pip of another Python
    assert how_to_install("peft") == f"{python} -m pip install 'simcse-cli[peft]'"
    monkeypatch.setattr(
        errors, "PathFinder", SimpleNamespace(find_spec=lambda _: None)
    )  # `uv tool install`, `uv venv`
    assert how_to_install("peft") == f"uv pip install --python {python} 'simcse-cli[peft]'"
    (tmp_path / "pipx_metadata.json").touch()
    assert how_to_install("peft") == "pipx runpip simcse-cli install 'simcse-cli[peft]'"


def test_the_binary_says_that_it_has_no_such_extra(invoke, hide, place, monkeypatch):
    hide("ray")
    monkeypatch.setattr(sys, "prefix", str(place))
    (place / "unpack.py").touch()  # what the binary unpacks has it there
    out = invoke("encode", "no.txt", "-o", "out.npy", "--engine", "ray")
    assert out.exit_code == 1
    assert out.stderr == (
        "error: --engine ray needs the package ray: the binary has no such extra; "
        "install from a checkout instead: pip install '.[ray]'\n"
    )


def test_numbers_need_no_matplotlib(invoke, hide, place):
    hide("matplotlib")
    out = invoke(
        *shlex.split("analyze spectrum -m bert --pooler avg --data-dir senteval --terminal-plot")
    )
    assert out.exit_code == 0, out.stderr
    assert "▁" in out.stdout


def test_sweep_without_matplotlib_lacks_its_plot_and_nothing_else(invoke, hide, place):
    hide("matplotlib")
    command = (
        "train -m bert --train-file text.txt --dev-file dev.csv --batch-size 4 --max-steps 1 "
        "--device cpu"
    )
    out = invoke(*shlex.split(f"{command} --sweep grid.yaml -o runs --format json"))
    assert out.exit_code == 0, out.stderr
    assert len(json.loads(out.stdout)["trials"]) == 2
    why = f"no runs/sweep.png: a figure needs the package matplotlib: {how_to_install('plot')}"
    assert why in out.stderr
    assert not (place / "runs" / "sweep.png").exists()
    assert (place / "runs" / "sweep.json").exists()
