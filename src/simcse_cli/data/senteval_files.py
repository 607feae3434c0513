"""The files of the published SentEval folder, with their sizes and digests."""

import csv
from dataclasses import dataclass
from functools import cache
from importlib.resources import files


@dataclass(frozen=True)
class ExpectedFile:
    """One file of the published folder.

    ``task`` is ``-`` if no evaluation reads the file; ``columns`` is the smallest number of tab-separated columns
    in a line; ``sha256`` is the digest of the lines, each stripped of trailing white space and ended by a line feed.
    """

    path: str
    task: str
    lines: int
    columns: int
    sha256: str


@cache
def expected_files() -> tuple[ExpectedFile, ...]:
    table = (files("simcse_cli") / "resources" / "senteval_files.tsv").read_text(encoding="utf-8")
    return tuple(
        ExpectedFile(row["path"], row["task"], int(row["lines"]), int(row["columns"]), row["sha256"])
        for row in csv.DictReader(table.splitlines(), delimiter="\t")
    )
