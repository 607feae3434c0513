"""Names of the numbers that runs, result files and published tables share, so that they can be joined.

A measure is a task name of ``choices`` (test split), the same with ``-dev`` for another split, an average
(``average``, ``transfer-average``), an MTEB data set or category behind ``mteb-``, or one of the plain
numbers below. Scores are fractions; plain numbers are in their own unit.
"""

from collections.abc import Iterable, Sequence
from difflib import get_close_matches

from simcse_cli.errors import ConfigError
from simcse_cli.settings.choices import STS_TASKS, TRANSFER_TASKS

AVERAGE = "average"
TRANSFER_AVERAGE = "transfer-average"
DEV_SUFFIX = "-dev"
SPLIT_SUFFIXES = (DEV_SUFFIX, "-train", "-all")
MTEB_PREFIX = "mteb-"
STSB_DEV = "STSBenchmark" + DEV_SUFFIX
STSB_DEV_DATA = "STS-B dev"

TIMES = ("seconds", "sentences_per_second")
PLAIN_NUMBERS = ("alignment", "uniformity", *TIMES)

_LABELS = {
    "STSBenchmark": "STS-B",
    "SICKRelatedness": "SICK-R",
    "SST2": "SST-2",
    AVERAGE: "Avg.",
    TRANSFER_AVERAGE: "Avg. transfer",
    "sentences_per_second": "sentences/s",
}
_ORDER = (*STS_TASKS, AVERAGE, *TRANSFER_TASKS, TRANSFER_AVERAGE)


def is_score(measure: str) -> bool:
    """Say whether the measure is a fraction that tables show x100."""
    return measure not in PLAIN_NUMBERS


def lower_is_better(measure: str) -> bool:
    return measure in ("alignment", "uniformity", "seconds")


def label(measure: str) -> str:
    """Return the column heading: ``STSBenchmark-dev`` is ``STS-B dev``."""
    for suffix in SPLIT_SUFFIXES:
        if measure.endswith(suffix):
            return f"{label(measure.removesuffix(suffix))} {suffix[1:]}"
    return _LABELS.get(measure, measure.removeprefix(MTEB_PREFIX))


def in_order(measures: set[str]) -> list[str]:
    """Return the measures as tables print them: STS and transfer tasks with their averages, then the rest."""
    known = [
        name for base in _ORDER for name in (base, *(base + s for s in SPLIT_SUFFIXES)) if name in measures
    ]
    others = sorted(measures.difference(known, PLAIN_NUMBERS))
    return known + others + [name for name in PLAIN_NUMBERS if name in measures]


def listed(text: str | None) -> list[str]:
    """Return the names of a comma-separated list."""
    return [part.strip() for part in (text or "").split(",") if part.strip()]


def find_measure(name: str, available: Iterable[str]) -> str:
    """Return the measure of this name or heading; case and punctuation do not matter."""
    by_name = _by_name(available)
    if _squeeze(name) not in by_name:
        raise ConfigError(
            f"no measure {name!r} in this comparison",
            hint=_nearest(name, by_name) or f"there are {', '.join(by_name.values())}",
        )
    return by_name[_squeeze(name)]


def find_tasks(text: str, known: Sequence[str]) -> tuple[str, ...]:
    """Return the tasks of a comma-separated list, each once; case, punctuation and headings do not matter.

    Raises:
        ValueError: a name is unknown (the nearest one is suggested), or there is none.
    """
    by_name = _by_name(known)
    chosen = []
    for name in listed(text):
        if _squeeze(name) not in by_name:
            hint = _nearest(name, by_name) or f"known: {', '.join(known)}"
            raise ValueError(f"unknown task {name!r}; {hint}")
        chosen.append(by_name[_squeeze(name)])
    if not chosen:
        raise ValueError(f"no task in {text!r}; known: {', '.join(known)}")
    return tuple(dict.fromkeys(chosen))


def _by_name(measures: Iterable[str]) -> dict[str, str]:
    """Return the measures by the names they go by; papers print SST-2 as SST."""
    return {
        _squeeze(text): measure
        for measure in measures
        for text in (measure.replace("SST2", "SST"), label(measure), measure)
    }


def _nearest(name: str, by_name: dict[str, str]) -> str | None:
    near = get_close_matches(_squeeze(name), by_name, n=1, cutoff=0.4)
    return f"did you mean {by_name[near[0]]}?" if near else None


def _squeeze(text: str) -> str:
    return "".join(letter for letter in text.lower() if letter.isalnum())
