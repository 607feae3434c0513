"""Find what judges the pairs of a table: labels that say which are positives, scores, classes."""

import shlex
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from simcse_cli.data import names, show
from simcse_cli.data.facts import Facts
from simcse_cli.data.kinds import Kind, is_missing, to_number
from simcse_cli.data.question import MOST_CHOICES, Choice, UndecidedError

Places = Mapping[str, tuple[int, ...]]

# Whether a label marks a pair: in any table, and in those with one of these columns of positives,
# which are NLI corpora (as on the Hub and in ANLI) and WikiAuto.
_PAIRS = ("1", "1.0", "true", "entailment")
_NO_PAIRS = ("0", "0.0", "false", "neutral", "contradiction", "not_entailment", "-", "")
_IS_PAIR = dict.fromkeys(_PAIRS, True) | dict.fromkeys(_NO_PAIRS, False)
_IS_PAIR_OF = {
    "hypothesis": {
        "0": True,
        "1": False,
        "2": False,
        "-1": False,
        "e": True,
        "n": False,
        "c": False,
    },
    "simple_sentence": {"aligned": True, "partialaligned": True, "2": True, "notaligned": False},
}
_NO_LABELS = dict.fromkeys(("nan", "none", "null", "na"), False)
_NLI_WORDS = frozenset(
    ["entailment", "neutral", "contradiction", "entails", "contradicts", "e", "n", "c"]
)
_NLI_LABELS = _NLI_WORDS | {"0", "1", "2", "-", "-1", "hidden", ""}
_MOST_VALUES = 5


@dataclass(frozen=True)
class Roles:
    """The columns of each role, and which labels of the column ``label`` mark a pair.

    Attributes:
        labels: None where every row is one.
        keeps: the labels that the user keeps, and no others.
    """

    columns: Places
    labels: Mapping[str, bool] | None = None
    keeps: frozenset[str] = field(default_factory=frozenset)

    def is_pair(self, label: str) -> bool | None:
        """Tell whether a label marks a pair; None for a label of unknown meaning."""
        text = label.strip().lower()
        if not self.keeps:
            return (self.labels or {}).get(text)
        number = to_number(text)
        return text in self.keeps or (number is not None and f"{number:g}" in self.keeps)


# ------------------------------------------------------------------ which rows are pairs
def filter_pairs(facts: Facts, found: Places, named: Mapping[str, int]) -> Roles:
    """Return the roles with the label that tells which rows are pairs.

    An UndecidedError asks where something in the table may tell it.
    """
    keeps = frozenset(value.strip().lower() for value in facts.given.keep_labels)
    judges = [at for at in _free(facts, found) if facts.is_judge(at)]
    is_strong_triplet = any(at in facts.hard_negatives() for at in found.get("hard_negative", ()))
    label = named.get("label")
    if label is None:
        if _names_both_sides(named) and not keeps:
            return Roles(found)  # whoever names both sides takes every row
        label = _usual_label(facts, found)
        if label is None and keeps:
            label = _label_to_keep(facts, judges, found)
        if label is None or (is_strong_triplet and not keeps):
            are_all_pairs = is_strong_triplet or {"anchor", "positive"} <= set(facts.names)
            if judges and not are_all_pairs:
                raise _which_are_pairs(facts, judges[0], found)
            return Roles(found)

    roles = {**found, "label": (label,)}
    if keeps:
        return Roles(roles, keeps=keeps)
    (positive,) = found["positive"]
    meanings = _IS_PAIR | _IS_PAIR_OF.get(facts.names[positive], {})
    for text in facts.values(label):
        if text.lower() not in meanings:
            raise _which_are_pairs(facts, label, found)
    return Roles(roles, labels=meanings | _NO_LABELS)


def _names_both_sides(named: Mapping[str, int]) -> bool:
    return {"anchor", "positive"} <= named.keys() or "text" in named


def _usual_label(facts: Facts, found: Places) -> int | None:
    """Return the column with the name of a label that says which rows are pairs."""
    for name in names.LABELS:
        if name in names.TOPICS:
            continue
        for at in _free(facts, found):
            if facts.names[at] == name and facts.is_varied(at):
                return at
    return None


def _label_to_keep(facts: Facts, judges: Sequence[int], found: Places) -> int:
    labels = [at for at in judges if facts.kinds[at] is Kind.LABEL] or list(judges)
    if len(labels) == 1:
        return labels[0]
    if not labels:
        raise UndecidedError("--keep-label: no column holds labels")
    choices = [Choice({**_pair(found), "label": at}) for at in labels]
    raise UndecidedError(f"--keep-label: {len(labels)} columns may hold the labels", choices)


def _which_are_pairs(facts: Facts, judge: int, found: Places) -> UndecidedError:
    counts = Counter(text.strip() for text in facts.grid.texts(judge))
    values = [value for value, _ in counts.most_common() if not is_missing(value)]
    are_numbers = all(to_number(value) is not None for value in values)
    told = []
    for value, n_rows in counts.most_common(_MOST_VALUES):
        told.append(f"{n_rows:,} rows {show.shorten(value, 20) or 'empty'}")
    what = f"{facts.describe(judge)} judges the pairs ({', '.join(told)})"

    # A label can be kept, but a score only where it has two values.
    choices = []
    if facts.kinds[judge] is Kind.LABEL or len(values) <= 2 or not are_numbers:
        for value in values[:_MOST_VALUES]:
            meaning = f"keep label {show.shorten(value, 20)}"
            choices.append(Choice({**_pair(found), "label": judge}, meaning, keeps=value))
    choices.append(Choice(_pair(found), "take every row"))

    source = shlex.quote(facts.grid.source)
    others = []
    if are_numbers:
        others.append(f"use the scores: simcse train --objective cosent --train-file {source}")
    elif {value.lower() for value in values} <= _NLI_WORDS:
        others.append(f"make triplets: simcse prepare nli {source} -o nli.csv")
    return UndecidedError(f"{what}; which rows are positives?", choices, others)


# ------------------------------------------------------------------ scores and classes
def find_score(facts: Facts, found: Places, named: Mapping[str, int]) -> int:
    """Return the column of the scores of pairs, by its name or as the only one of numbers."""
    for role in ("score", "label"):
        if role in named:
            return named[role]
    free = _free(facts, found)
    for name in (*names.SCORES, *names.LABELS):
        for at in free:
            is_score = name in names.SCORES or facts.are_numbers(at)
            if facts.names[at] == name and is_score:
                return at
    for kind in (Kind.SCORE, Kind.LABEL):
        fitting = []
        for at in free:
            if facts.kinds[at] is kind and facts.are_numbers(at) and not facts.describes(at):
                fitting.append(at)
        if len(fitting) == 1:
            return fitting[0]
        if fitting:
            raise _which_column("score", found, fitting)
    raise _which_column("score", found, free)


def find_label(facts: Facts, found: Places, named: Mapping[str, int]) -> int:
    """Return the column of the classes of texts or pairs."""

    def may_be(at: int) -> bool:
        return facts.kinds[at] is Kind.LABEL and len(facts.values(at)) > 1

    def are_classes(at: int) -> bool:
        return facts.kinds[at] is Kind.SCORE and facts.are_few_whole_numbers(at)

    return _find_label(facts, found, named, (may_be, are_classes))


def find_nli_label(facts: Facts, found: Places, named: Mapping[str, int]) -> int:
    """Return the column of entailment, neutral and contradiction, in words or numbers."""

    def is_nli(at: int) -> bool:
        values = {text.strip().lower() for text in facts.grid.texts(at)}
        return len(values) > 1 and values <= _NLI_LABELS

    return _find_label(facts, found, named, (is_nli,))


def _find_label(
    facts: Facts,
    found: Places,
    named: Mapping[str, int],
    tests: Iterable[Callable[[int], bool]],
) -> int:
    """Return the column that is named, has a usual name, or is the only one to pass a test."""
    if "label" in named:
        return named["label"]
    free = [at for at in _free(facts, found) if facts.names[at] != "split"]
    usual = [at for name in names.LABELS for at in free if facts.names[at] == name]
    filled = [at for at in usual if facts.kinds[at] is not Kind.EMPTY]
    if usual:
        return (filled or usual)[0]
    for test in tests:
        labels = [at for at in free if test(at)]
        if len(labels) == 1:
            return labels[0]
        if labels:
            raise _which_column("label", found, labels)
    raise _which_column("label", found, free)


def _which_column(role: str, found: Places, among: Sequence[int]) -> UndecidedError:
    what = f"no column looks like the {role}"
    if len(among) > 1:
        what = f"{len(among)} columns may hold the {role}"
    pair = _pair(found)
    choices = [Choice({**pair, role: at}) for at in among if at not in pair.values()]
    others = []
    if role == "label" and not choices:
        others.append("add a column named label; texts without labels: simcse analyze groups")
    return UndecidedError(what, choices[:MOST_CHOICES], others)


def _free(facts: Facts, found: Places) -> list[int]:
    """Return the columns that have no role yet."""
    used = {at for places in found.values() for at in places}
    return [at for at in facts.every if at not in used]


def _pair(found: Places) -> dict[str, int]:
    return {role: places[0] for role, places in found.items() if role != "hard_negative"}
