"""`recipes/every-week.sh` as its page says: three weeks of a small table, and a week that fails."""

import csv
import json
import os
import subprocess
from pathlib import Path

import pytest
from pyarrow import parquet

from helpers import SENTENCES
from processes import command_on_path

pytestmark = pytest.mark.upkeep

RECIPE = Path(__file__).resolve().parent.parent / "recipes" / "every-week.sh"
FIRST = [(f"T-{number}", "", text) for number, text in enumerate(SENTENCES[:12])]
SECOND = [
    *FIRST[1:],  # T-0 is gone
    ("T-20", "Cat", "The cat sleeps at noon."),
    ("T-21", "", SENTENCES[3].upper()),
]


@pytest.fixture
def week(tiny_model_dir, tmp_path):
    """Return a function that runs the recipe on rows, and gives what it ended with."""
    pytest.importorskip("sklearn")

    def run(rows, **settings):
        table = tmp_path / "tickets.csv"
        with table.open("w", newline="") as stream:
            csv.writer(stream).writerows([("id", "subject", "body"), *rows])
        more = {"MODEL": str(tiny_model_dir), "K": "2", "THRESHOLD": "1", "COLUMNS": "200"}
        return subprocess.run(
            ["bash", RECIPE, table, tmp_path / "known"],
            env={**os.environ, "PATH": path, **more, **settings},
            capture_output=True,
            text=True,
            check=False,
        )

    with command_on_path() as path:
        yield run


def rows_of(path):
    with path.open(newline="") as stream:
        return list(csv.DictReader(stream))


def test_three_weeks(week, tmp_path):
    known = tmp_path / "known"
    done = week(FIRST)
    assert done.returncode == 0, done.stderr
    (known / "questions.txt").write_text("A cat\nMoney and oil\n")
    before = parquet.read_table(known / "tickets.parquet").to_pylist()

    done = week(SECOND)
    assert done.returncode == 0, done.stderr
    assert "2 new, 0 changed, 1 gone (kept), 11 as before" in done.stderr
    (found,) = rows_of(known / "duplicates.csv")
    assert (found["id"], found["of_id"], found["kind"]) == ("T-21", "T-3", "exact")
    after = {row["id"]: row for row in parquet.read_table(known / "tickets.parquet").to_pylist()}
    assert list(after) == [row[0] for row in SECOND] + ["T-0"]
    for row in before:
        assert after[row["id"]] == row
    assert after["T-20"]["text"] == "Cat The cat sleeps at noon."
    answers = rows_of(known / "answers.csv")
    assert [row["query"] for row in answers[::5]] == ["A cat", "Money and oil"]
    assert {row["id"] for row in answers} <= after.keys()
    groups = rows_of(known / "groups.csv")
    assert [row["id"] for row in groups] == [row[0] for row in SECOND]
    assert (known / "groups.html").read_text().startswith("<!")

    done = week(SECOND, GONE="drop")
    assert "0 new, 0 changed, 1 gone (dropped), 13 as before" in done.stderr
    assert rows_of(known / "duplicates.csv") == []


def test_a_week_that_fails_says_where_and_can_be_repeated(week, tmp_path):
    known = tmp_path / "known"
    done = week([*SECOND, ("T-20", "Twice", "The same id again.")])
    assert done.returncode == 1
    assert "rows 12 and 14 have the id 'T-20' in column id" in done.stderr
    assert done.stderr.rstrip().endswith("every-week.sh: stopped at: duplicates")
    done = week(SECOND, K="1000")
    assert done.returncode == 2
    assert done.stderr.rstrip().endswith("every-week.sh: stopped at: groups")
    assert not (known / "last.csv").exists()
    done = week(SECOND)
    assert done.returncode == 0, done.stderr
    assert "0 new, 0 changed, 0 gone, 13 as before" in done.stderr
    side = json.loads((known / "tickets.parquet.json").read_text())
    assert (side["n_rows"], side["index"]) == (13, "tickets.index")
