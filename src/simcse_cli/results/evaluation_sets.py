"""Recognise the data of a score: the published set of a task, the generated demo corpus, or other data."""

import csv
from functools import cache
from importlib.resources import files

PUBLISHED, DEMO = "the published set", "the generated demo corpus"


@cache
def known_sets() -> dict[tuple[str, str], dict[str, tuple[int, str]]]:
    """Return the size and SHA-256 of each known set, by task and split, then by kind.

    Sizes are scored pairs for STS and test examples for transfer tasks; digests are ``StsTask.digest`` and
    ``TransferTask.digest``.
    """
    table = (files("simcse_cli") / "resources" / "evaluation_sets.tsv").read_text(encoding="utf-8")
    found: dict[tuple[str, str], dict[str, tuple[int, str]]] = {}
    for row in csv.DictReader(table.splitlines(), delimiter="\t"):
        what = DEMO if row["set"] == "demo" else PUBLISHED
        found.setdefault((row["task"], row["split"]), {})[what] = int(row["n"]), row["sha256"]
    return found


def describe_set(task: str, split: str, n_examples: int, sha256: str | None) -> str | None:
    """Describe the data of a score; None if nothing is published for the task and split.

    Without a digest, as in results of earlier versions, the number of examples decides.
    """
    sets = known_sets().get((task, split))
    if sets is None:
        return None
    for what, (n, digest) in sets.items():
        if sha256 == digest or (not sha256 and n_examples == n):
            return what
    n_published = sets[PUBLISHED][0]
    if n_examples == n_published:
        return f"{n_examples:,} examples that are not those published"
    return f"{n_examples:,} examples instead of the published {n_published:,}"
