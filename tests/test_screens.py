"""What commands show on terminals of 80 and 100 columns, with colours and without, as text in ``screens/``.

After a meant change: ``WRITE_SCREENS=1 python -m pytest tests/test_screens.py``, and look at the difference.
"""

import json
import os
from pathlib import Path

import pytest

from simcse_cli.choices import STS_TASKS

SCREENS = Path(__file__).parent / "screens"
SENTENCES = (
    "A man is playing a guitar on the roof.\nThe cat sleeps.\nRain is expected in the north of the country.\n"
)
COMMANDS = {
    "help": ("--help",),
    "help-eval": ("eval", "--help"),
    "prepare-lint": ("prepare", "lint", "pairs.csv"),
    "augment-preview": ("augment", "wiki.txt", "--method", "delete", "--rate", "0.3", "--preview", "3"),
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
        (Path("runs") / name / "metrics.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    for name, base in (("a-result-with-a-long-name", 0.70), ("b", 0.75)):
        tasks = {
            task: {"n_pairs": 10, "score": base + i / 100, "spearman": {"all": base + i / 100}, "pearson": {}}
            for i, task in enumerate(STS_TASKS)
        }
        asked = {"suite": "sts", "metric": "spearman", "aggregation": "all", "split": "test", "pooler": "avg"}
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
    text = shown.stdout.replace("\x1b[", "␛")
    if width == 80:
        monkeypatch.delenv("NO_COLOR")
        text += f"\n---- with colours\n{invoke(*COMMANDS[name]).stdout}".replace("\x1b[", "␛")
    file = SCREENS / f"{name}-{width}.txt"
    if os.environ.get("WRITE_SCREENS"):
        file.parent.mkdir(exist_ok=True)
        file.write_text(text, encoding="utf-8")
    assert text == file.read_text(encoding="utf-8"), f"if meant, write {file.name} again (see above)"
