"""Names of the numbers that runs, result files and published tables share, so that they can be joined.

A measure is a task name of ``names`` (test split), the same with ``-dev`` for the dev split, an average
(``average``, ``transfer-average``), an MTEB data set or category behind ``mteb-``, or one of the plain
numbers below. Scores are fractions; plain numbers are in their own unit.
"""

from simcse_cli.names import STS_TASKS, TRANSFER_TASKS

AVERAGE = "average"
TRANSFER_AVERAGE = "transfer-average"
DEV_SUFFIX = "-dev"
MTEB_PREFIX = "mteb-"

PLAIN_NUMBERS = ("alignment", "uniformity", "seconds", "sentences_per_second")
LOWER_IS_BETTER = ("alignment", "uniformity", "seconds")

_LABELS = {
    "STSBenchmark": "STS-B",
    "SICKRelatedness": "SICK-R",
    "SST2": "SST",
    AVERAGE: "Avg.",
    TRANSFER_AVERAGE: "Avg. transfer",
    "sentences_per_second": "sentences/s",
}
_ORDER = (*STS_TASKS, AVERAGE, *TRANSFER_TASKS, TRANSFER_AVERAGE)


def is_score(measure: str) -> bool:
    """Say whether the measure is a fraction that tables show x100."""
    return measure not in PLAIN_NUMBERS


def lower_is_better(measure: str) -> bool:
    """Say which end is good: alignment, uniformity and times want to be low."""
    return measure in LOWER_IS_BETTER


def label(measure: str) -> str:
    """Return the column heading: ``STSBenchmark-dev`` is ``STS-B dev``."""
    if measure.endswith(DEV_SUFFIX):
        return f"{label(measure.removesuffix(DEV_SUFFIX))} dev"
    return _LABELS.get(measure, measure.removeprefix(MTEB_PREFIX))


def in_order(measures: set[str]) -> list[str]:
    """Return the measures as tables print them: STS and transfer tasks with their averages, then the rest."""
    known = [name for base in _ORDER for name in (base, base + DEV_SUFFIX) if name in measures]
    others = sorted(measures.difference(known, PLAIN_NUMBERS))
    return known + others + [name for name in PLAIN_NUMBERS if name in measures]
