"""Names of the numbers that runs, result files and published tables share, and the columns that show them.

A measure is a task name of ``choices`` (test split), the same with ``-dev`` for another split, an average
(``average``, ``transfer-average``), an MTEB data set or category behind ``mteb-``, or one of the plain
numbers below. Scores are fractions; plain numbers are in their own unit.
"""

from collections.abc import Iterable, Sequence
from difflib import get_close_matches

from simcse_cli.errors import ConfigError, UsageError
from simcse_cli.results.report import Column, ColumnKind
from simcse_cli.settings.choices import STS_TASKS, TRANSFER_TASKS

AVERAGE = "average"
TRANSFER_AVERAGE = "transfer-average"
DEV_SUFFIX = "-dev"
RETRIEVAL_MEASURES = ("nDCG@10", "MRR@10", "recall@1", "recall@10", "recall@100")
"""What ``--dev-suite retrieval`` measures; the first one chooses the model."""
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
    "average_dev": "Avg. dev",
    TRANSFER_AVERAGE: "Avg. transfer",
    "sentences_per_second": "sentences/s",
}
_COLUMNS: dict[ColumnKind, dict[str, str]] = {
    "text": {"front": "Pareto", "left": "sentence 1", "mark": "", "right": "sentence 2"},
    "score": {
        "best": "dev best",
        "best_dev_score": "best dev",
        "deviation": "deviation",
        "error_after": "after",
        "error_before": "rank error before",
        "pearson": "pearson",
        "score": "score",
        "spearman": "spearman",
        "start": "dev before",
        "sts_average": "Avg. STS",
    },
    "difference": {"difference": "difference", "high": "95% high", "low": "95% low"},
    "number": {
        "alignment": "alignment",
        "bound": "its bound",
        "cosine_after": "after",
        "cosine_before": "cosine before",
        "dev_score": "dev_score",
        "effective_rank": "eff. rank",
        "first_alignment": "alignment: first",
        "first_uniformity": "uniformity: first",
        "gold": "gold",
        "gram_sum": "sum of W W^T",
        "hours": "hours",
        "isotropy": "isotropy",
        "largest_eigenvalue": "largest eigenvalue",
        "last_alignment": "last",
        "last_uniformity": "last",
        "mean": "mean",
        "mean_cosine": "mean cosine",
        "median": "median",
        "memory_gib": "peak GiB",
        "negatives_term": "negatives' term",
        "p_corrected": "p corrected",
        "p_mcnemar": "McNemar p",
        "p_mcnemar_corrected": "corrected",
        "p_value": "p",
        "q25": "q25",
        "q75": "q75",
        "rate": "sentences/s",
        "relative": "relative",
        "sentences_per_second": "sentences/s",
        "singular_value": "singular_value",
        "smallest_element": "smallest element",
        "std": "std",
        "uniformity": "uniformity",
    },
    "count": {
        "best_step": "at step",
        "dim": "dim",
        "index": "example",
        "last_step": "last step",
        "n_on_front": "on Pareto front",
        "n_only_baseline": "only baseline",
        "n_only_candidate": "only system right",
        "n_pairs": "pairs",
        "n_points": "points",
        "n_processes": "processes",
        "n_queries": "queries",
        "predicted_after": "after",
        "predicted_before": "class before",
        "rank": "rank",
        "rows": "rows",
        "step": "step",
        "steps": "steps",
        "systems": "comparable",
    },
    "seconds": {"train_s": "train s"},
}
"""The headings of known keys, by the kind of their column."""
_KINDS = {key: kind for kind, headings in _COLUMNS.items() for key in headings}
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


def columns(*keys: str, kind: ColumnKind | None = None, **headings: str) -> list[Column]:
    """Return a column for each key, with its known kind and heading; an unknown key is a text under its own name.

    ``kind`` is for all columns, and the keys are then measures with the headings of ``label``. ``headings`` override
    single ones: ``columns("task", "score", score="MRR")``.
    """
    found = []
    for key in keys:
        known = _KINDS.get(key, "text") if kind is None else kind
        heading = label(key) if kind else _COLUMNS[known].get(key, key)
        found.append(Column(key, headings.get(key, heading), known))
    return found


def in_order(measures: set[str]) -> list[str]:
    """Return the measures as tables print them: STS and transfer tasks with their averages, then the rest."""
    known = [
        name for base in _ORDER for name in (base, *(base + s for s in SPLIT_SUFFIXES)) if name in measures
    ]
    others = sorted(measures.difference(known, PLAIN_NUMBERS))
    return known + others + [name for name in PLAIN_NUMBERS if name in measures]


def listed(text: str | None) -> list[str]:
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


def parse_tasks(text: str | None, known: tuple[str, ...]) -> tuple[str, ...]:
    """Return the tasks of a comma-separated list, or all; UsageError names the nearest of an unknown one."""
    if text is None:
        return known
    try:
        return find_tasks(text, known)
    except ValueError as error:
        raise UsageError(str(error), option="--tasks") from None


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
