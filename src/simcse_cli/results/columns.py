"""Names of numbers in runs, result files and published tables, and the columns of tables.

A measure is one of these names:

- a task name of ``settings.choices``, for the test split; for another split, with ``-dev``,
  ``-train`` or ``-all`` at its end
- an average: ``average`` or ``transfer-average``
- ``mteb-`` and the name of an MTEB dataset or category
- one of ``PLAIN_NUMBERS``

Scores are fractions; a plain number has a unit, such as seconds.
"""

from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from itertools import product
from typing import cast

from simcse_cli.errors import ConfigError, UsageError
from simcse_cli.files.resources import resource_rows
from simcse_cli.results.report import Column, ColumnKind
from simcse_cli.settings.choices import STS_TASKS, TRANSFER_TASKS

AVERAGE = "average"
TRANSFER_AVERAGE = "transfer-average"
DEV_SUFFIX = "-dev"
RETRIEVAL_MEASURES = ("nDCG@10", "MRR@10", "recall@1", "recall@10", "recall@100")
"""What ``--dev-suite retrieval`` measures; the first of these measures chooses the model."""
MLM_MEASURE = "inverse perplexity"
"""What ``--dev-split`` measures for ``--objective mlm``."""
SPLIT_SUFFIXES = (DEV_SUFFIX, "-train", "-all")
MTEB_PREFIX = "mteb-"
STSB_DEV = "STSBenchmark" + DEV_SUFFIX
STSB_DEV_DATA = "STS-B dev"

AVERAGES = {
    average + suffix: tuple(task + suffix for task in tasks)
    for average, tasks in ((AVERAGE, STS_TASKS), (TRANSFER_AVERAGE, TRANSFER_TASKS))
    for suffix in ("", *SPLIT_SUFFIXES)
}
"""The tasks of each average; every split has averages of its own."""

TIMES = ("seconds", "sentences_per_second")
PLAIN_NUMBERS = ("alignment", "uniformity", *TIMES)

_LABELS = {
    "STSBenchmark": "STS-B",
    "SICKRelatedness": "SICK-R",
    "SST2": "SST-2",
    AVERAGE: "Avg.",
    "average_dev": "Avg. dev",
    "dev-dev": "dev set",  # dev.csv as a dev file; as a pair file, its column is "dev"
    TRANSFER_AVERAGE: "Avg. transfer",
    "sentences_per_second": "sentences/s",
}
_COLUMNS: dict[str, tuple[ColumnKind, str]] = {
    row["key"]: (cast(ColumnKind, row["kind"]), row["heading"])
    for row in resource_rows("columns.tsv")
}
"""The kind and the heading of known keys."""
_TASKS = (*STS_TASKS, AVERAGE, *TRANSFER_TASKS, TRANSFER_AVERAGE)
_ORDER = [task + suffix for task, suffix in product(_TASKS, ("", *SPLIT_SUFFIXES))]


def is_score(measure: str) -> bool:
    return measure not in PLAIN_NUMBERS


def is_average(measure: str) -> bool:
    """Whether a measure is the average of a suite, of any split."""
    name = measure.removeprefix(MTEB_PREFIX)
    for suffix in SPLIT_SUFFIXES:
        name = name.removesuffix(suffix)
    return name in (AVERAGE, TRANSFER_AVERAGE)


def lower_is_better(measure: str) -> bool:
    return measure in ("alignment", "uniformity", "seconds")


def label(measure: str) -> str:
    """Return the column heading of a measure: ``STS-B dev`` for ``STSBenchmark-dev``."""
    if measure in _LABELS:
        return _LABELS[measure]
    for suffix in SPLIT_SUFFIXES:
        if measure.endswith(suffix):
            return f"{label(measure.removesuffix(suffix))} {suffix[1:]}"
    return measure.removeprefix(MTEB_PREFIX)


def columns(*keys: str, kind: ColumnKind | None = None, **headings: str) -> list[Column]:
    """Return a column for each key.

    Without ``kind``, the column has the kind and heading of the key in ``columns.tsv``; an unknown
    key gives a column of text, headed by the key. With ``kind``, the keys are measures: all columns
    have this kind, and ``label`` gives their headings. ``headings`` replace the headings of single
    keys: ``columns("task", "score", score="MRR")``.
    """
    table_columns = []
    for key in keys:
        known_kind, known_heading = _COLUMNS.get(key, ("text", key))
        heading = label(key) if kind else known_heading
        table_columns.append(Column(key, headings.get(key, heading), kind or known_kind))
    return table_columns


def in_order(measures: set[str]) -> list[str]:
    """Sort measures for a table.

    STS and transfer tasks with their averages come first, in their usual order; other measures
    follow by name, and plain numbers come last.
    """
    known = [name for name in _ORDER if name in measures]
    others = sorted(measures.difference(known, PLAIN_NUMBERS))
    return known + others + [name for name in PLAIN_NUMBERS if name in measures]


def listed(text: str | None) -> list[str]:
    """Return the parts of a comma-separated list, without empty ones; none for None."""
    return [part.strip() for part in (text or "").split(",") if part.strip()]


def find_measure(name: str, available: Iterable[str]) -> str:
    """Return the available measure with this name or heading; case and punctuation do not matter.

    Raise ConfigError if there is none.
    """
    by_name = _by_name(available)
    measure = by_name.get(_squeeze(name))
    if measure is None:
        hint = _nearest(name, by_name) or f"there are {', '.join(dict.fromkeys(by_name.values()))}"
        raise ConfigError(f"no measure {name!r} in this comparison", hint=hint)
    return measure


def find_tasks(text: str, known: Sequence[str]) -> tuple[str, ...]:
    """Return the known tasks that a comma-separated list names, each once; ValueError for others.

    A task may be named by its heading; case and punctuation do not matter.
    """
    by_name = _by_name(known)
    tasks = []
    for name in listed(text):
        key = _squeeze(name)
        if key not in by_name:
            hint = _nearest(name, by_name) or f"known: {', '.join(known)}"
            raise ValueError(f"unknown task {name!r}; {hint}")
        tasks.append(by_name[key])
    if not tasks:
        raise ValueError(f"no task in {text!r}; known: {', '.join(known)}")
    return tuple(dict.fromkeys(tasks))  # each task once, in the order of the list


def parse_tasks(text: str | None, known: tuple[str, ...]) -> tuple[str, ...]:
    if text is None:
        return known
    try:
        return find_tasks(text, known)
    except ValueError as error:
        raise UsageError(str(error), option="--tasks") from None


def _by_name(measures: Iterable[str]) -> dict[str, str]:
    """Return each measure by the names that a user may type, squeezed: ``sst`` gives ``SST2``."""
    by_name = {}
    for measure in measures:
        for name in (measure.replace("SST2", "SST"), label(measure), measure):
            by_name[_squeeze(name)] = measure
    return by_name


def _nearest(name: str, by_name: dict[str, str]) -> str | None:
    """Return a hint with the measure that is spelled most like the name, if any is near."""
    near = get_close_matches(_squeeze(name), by_name, n=1, cutoff=0.4)
    if not near:
        return None
    return f"did you mean {by_name[near[0]]}?"


def _squeeze(text: str) -> str:
    """Return the letters and digits of a text in lower case."""
    return "".join(filter(str.isalnum, text.lower()))
