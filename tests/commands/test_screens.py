"""What commands show on terminals of 80 and 100 columns, with colours and without, as text in ``screens/``.

After a meant change: ``WRITE_SCREENS=1 python -m pytest tests/test_screens.py``, and look at the
difference.
"""

import json
import os
import re
from importlib.metadata import version
from pathlib import Path

import pytest

from helpers import write_sts_folder
from simcse_cli.commands.app import build
from simcse_cli.settings.choices import STS_TASKS

pytestmark = pytest.mark.skipif(
    int(version("rich").partition(".")[0]) < 15,
    reason="older versions of Rich divide the width otherwise",
)
SCREENS = Path(__file__).parent / "screens"
SENTENCES = (
    "A man is playing a guitar on the roof.\nThe cat sleeps.\nRain is expected in the north of "
    "the country.\n"
)
COMMANDS = {
    "help": ("--help",),
    "help-eval": ("eval", "--help"),
    "prepare-lint": ("prepare", "lint", "pairs.csv"),
    "augment-preview": (
        "augment",
        "wiki.txt",
        "--method",
        "delete",
        "--rate",
        "0.3",
        "--preview",
        "3",
    ),
    "analyze-overlap": ("analyze", "overlap", "pairs.csv", "--no-terminal-plot"),
    "analyze-trace": ("analyze", "trace", "runs/a-run-with-a-long-name", "runs/b"),
    "compare-results": ("compare", "a-result-with-a-long-name.json", "b.json"),
    "compare-show": ("compare", "--show", "simcse.5"),
}


@pytest.fixture
def _files(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("wiki.txt").write_text(SENTENCES)
    pairs = [
        ("A man plays.", "A man plays music."),
        ("The cat sleeps.", "The cat sleeps."),
        ("It rains.", "Dogs run."),
    ]
    Path("pairs.csv").write_text("anchor,positive\n" + "".join(f"{a},{b}\n" for a, b in pairs))
    for name, start in (("a-run-with-a-long-name", 0.7), ("b", 0.65)):
        (Path("runs") / name).mkdir(parents=True)
        lines = [
            {
                "step": 25 * i,
                "dev_score": start + i / 100,
                "alignment": 0.2 - i / 100,
                "uniformity": -2 - i / 10,
            }
            for i in range(8)
        ]
        (Path("runs") / name / "metrics.jsonl").write_text(
            "".join(f"{json.dumps(line)}\n" for line in lines)
        )
    for name, base in (("a-result-with-a-long-name", 0.70), ("b", 0.75)):
        tasks = {
            task: {
                "n_pairs": 10,
                "score": base + i / 100,
                "spearman": {"all": base + i / 100},
                "pearson": {},
            }
            for i, task in enumerate(STS_TASKS)
        }
        asked = {
            "suite": "sts",
            "metric": "spearman",
            "aggregation": "all",
            "split": "test",
            "pooler": "avg",
        }
        Path(f"{name}.json").write_text(json.dumps(asked | {"model": name, "tasks": tasks}))


@pytest.mark.usefixtures("_files")
@pytest.mark.parametrize("width", [80, 100])
@pytest.mark.parametrize("name", COMMANDS)
def test_screen_is_the_one_that_was_looked_at(invoke, monkeypatch, name, width):
    monkeypatch.setenv("COLUMNS", str(width))
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TTY_INTERACTIVE", "0")
    shown = invoke(*COMMANDS[name])
    assert shown.exit_code == 0, shown.stderr
    text = shown.stdout
    if width == 80:
        monkeypatch.delenv("NO_COLOR")
        text += f"\n---- with colours\n{invoke(*COMMANDS[name]).stdout}"
    compare_with_kept(text, f"{name}-{width}.txt")


def compare_with_kept(text, name):
    text, file = text.replace("\x1b[", "␛"), SCREENS / name
    if os.environ.get("WRITE_SCREENS"):
        file.parent.mkdir(exist_ok=True)
        file.write_text(text, encoding="utf-8")
    assert text == file.read_text(encoding="utf-8"), (
        f"if meant, write {file.name} again (see above)"
    )


def command_paths(command, path=()):
    """Yield the words of every command and group, in the order of the help."""
    yield path
    for name, child in getattr(command, "commands", {}).items():
        if not child.hidden:
            yield from command_paths(child, (*path, name))


@pytest.mark.parametrize("width", [80, 100])
@pytest.mark.parametrize(
    "path", [*command_paths(build())], ids=lambda path: " ".join(path) or "simcse"
)
def test_help_has_its_sections_and_fits_the_terminal(invoke, monkeypatch, path, width):
    """The words are kept once, in docs/cli.md and surface.txt."""
    monkeypatch.setenv("COLUMNS", str(width))
    shown = invoke(*path, "--help")
    assert (shown.exit_code, shown.stderr) == (0, "")
    first, *lines = shown.stdout.splitlines()
    assert first.startswith(" ".join(("Usage: simcse", *path)))
    assert max(map(len, lines)) <= width
    headings = [line for line in lines if line and not line.startswith(" ")]
    assert headings[-1] in ("Everywhere", "Commands"), headings


def masked(text):
    """Return a screen without what varies: digits of scores, times and rates."""
    text = re.sub(r"\d+(\.\d+)? (s|min|MiB|sentences/s)\b|\d[\d,.]*/s\b", "# \\2", text)
    text = text.replace("(# s each)", "(# )")  # a rate below one a second
    text = re.sub(r"(?<![\w.])-?\d*\.\d+(e-\d+)?", lambda found: re.sub(r"\d", "#", found[0]), text)
    text = re.sub(r"(?s)gain: \S+ .*? interval.*?model\n", "gain: # ... the model\n", text)
    text = re.sub(r"(?m)^(runs/new +cosent +2) .*", r"\1 ...", text)
    text = re.sub(r"─+", "─", text)
    return re.sub(r"(?m)^run  +.*", lambda found: re.sub(" +", " ", found[0]), text)


@pytest.mark.usefixtures("_files")
@pytest.mark.parametrize("width", [80, 100])
def test_screens_of_work_are_those_that_were_looked_at(
    invoke, monkeypatch, tiny_model_dir, tmp_path, width
):
    """Train, evaluate, encode: results as on a terminal, progress and remarks as off one."""
    monkeypatch.setenv("COLUMNS", str(width))
    senteval, model = write_sts_folder(tmp_path / "senteval"), tiny_model_dir.rename("bert").name
    dev = "senteval/downstream/STS/STSBenchmark/sts-dev.csv"
    trained = ("--objective", "cosent", "--train-file", dev, "--dev-file", dev, "-m", model)
    # Pairs that are trained on and scored: the score rises, whatever the processor.
    steps = ("--batch-size", "8", "--epochs", "2", "--lr", "1e-3", "--dropout", "0")
    calls = [
        ("train", *trained, "--pooler", "avg", *steps, "--eval-every", "1", "-o", "runs/new"),
        ("eval", "sts", "-m", "runs/new", "--data-dir", senteval.name),
        ("encode", "wiki.txt", "-m", "runs/new", "-o", "wiki.npy"),
    ]
    screens = []
    for words in calls:
        with monkeypatch.context() as patch:
            patch.setenv("FORCE_COLOR", "1")
            patch.setenv("TTY_INTERACTIVE", "0")
            on_terminal = invoke(*words)
        again = () if words[:2] == ("eval", "sts") else ("--force",)
        off = invoke(*words, *again)
        assert (on_terminal.exit_code, off.exit_code) == (0, 0), on_terminal.stderr + off.stderr
        screens.append(f"$ simcse {' '.join(words)}\n{off.stderr}\n{on_terminal.stdout}")
    compare_with_kept(masked("\n".join(screens)), f"work-{width}.txt")
