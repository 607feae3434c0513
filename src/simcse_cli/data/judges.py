"""Find what judges the pairs of a table: labels that say which are positives, scores, classes."""

import shlex
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path

from simcse_cli.data import names, show
from simcse_cli.data.facts import MOST_VALUES, NLI_NUMBERS, ColumnFacts, Facts, by_name
from simcse_cli.data.given import Given
from simcse_cli.data.grid import SAMPLE_ROWS, Grid
from simcse_cli.data.kinds import MISSING, Kind, is_missing, to_number
from simcse_cli.data.question import MOST_CHOICES, Choice, UndecidedError, question
from simcse_cli.data.sides import Found
from simcse_cli.errors import DataError

# Whether a label marks a pair: `_IS_PAIR` is for all tables. `_IS_PAIR_OF` changes or adds labels
# for tables whose column of positives has a certain name: NLI corpora (numbers of the Hub, letters
# of ANLI) and WikiAuto.
_PAIRS = ("1", "1.0", "true", "entailment")
_NO_PAIRS = (
    "0",
    "0.0",
    "false",
    "neutral",
    "contradiction",
    "contradictory",
    "not_entailment",
    "-",
    "",
)
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
_NO_LABELS = dict.fromkeys(map(str.lower, MISSING), False)
_ENTAILMENTS = frozenset(("entailment", "entails", "e"))
_CONTRADICTIONS = frozenset(("contradiction", "contradicts", "contradictory", "c"))
_NLI_WORDS = _ENTAILMENTS | _CONTRADICTIONS | {"neutral", "n"}
_NLI_LABELS = _NLI_WORDS | {"0", "1", "2", "-", "-1", "hidden", ""}
_HOW_TO_ADD = {
    "label": "add a column named label; texts without labels: simcse analyze groups",
    "score": "add a column of numbers named score",
}


@dataclass(frozen=True)
class Roles:
    """The columns of each role, and which labels of the column ``label`` mark a pair.

    Attributes:
        columns: the places in the table, from 0, of the columns of each role.
        labels: whether each label marks a pair; empty if every row is a pair or ``keeps`` decides.
        keeps: the only labels whose rows the user keeps; empty if the user named none.
        watched: the places of columns with one value in all of the first rows. With other values
            in later rows, such a column may tell which rows are pairs.
    """

    columns: Mapping[str, tuple[int, ...]]
    labels: Mapping[str, bool] = field(default_factory=dict)
    keeps: frozenset[str] = frozenset()
    watched: tuple[int, ...] = ()

    @classmethod
    def of(cls, found: Found) -> "Roles":
        places = {}
        for role, columns in found.items():
            places[role] = tuple(column.at for column in columns)
        return cls(places)

    def found(self, facts: Facts) -> Found:
        """Return the columns of each role, with what is known of them."""
        columns: Found = {}
        for role, places in self.columns.items():
            columns[role] = [facts.columns[at] for at in places]
        return columns

    def is_pair(self, label: str) -> bool | None:
        """Tell whether a label marks a pair; None for a label of unknown meaning."""
        text = label.strip().lower()
        if not self.keeps:
            return self.labels.get(text)
        number = to_number(text)  # 1.0 is the same label as 1
        return text in self.keeps or (number is not None and f"{number:g}" in self.keeps)


# ------------------------------------------------------------------ which rows are pairs
def filter_pairs(facts: Facts, found: Found) -> Roles:
    """Return the roles of both sides, and of the labels if a column tells which rows are pairs.

    ``found`` holds the columns of both sides. Raise UndecidedError if a column seems to tell which
    rows are pairs, but has values of unknown meaning.
    """
    keeps = frozenset(value.strip().lower() for value in facts.given.keep_labels)
    label = facts.named.get("label")
    if label is None:
        names_sides = {"anchor", "positive"} <= facts.named.keys() or "text" in facts.named
        if names_sides and not keeps:
            return Roles.of(found)  # whoever names both sides, or a text, takes every row
        label = _label_of_pairs(facts, found, keeps_labels=bool(keeps))
    if label is None:
        return replace(Roles.of(found), watched=_watched(facts, found))

    # The user says which labels mark pairs, or all labels must have a known meaning.
    roles = Roles.of({**found, "label": [label]})
    if keeps:
        return replace(roles, keeps=keeps)
    (positive,) = found["positive"]
    labels = _IS_PAIR | _IS_PAIR_OF.get(positive.name, {})
    are_known = labels.keys() >= set(map(str.lower, label.values))
    # Beside a hypothesis, the label 0 of two classes means entailment in some sets, but not in all.
    if not are_known or (positive.name == "hypothesis" and label.are_two_classes):
        raise _which_are_pairs(facts, label, found)
    # ``label.values`` leaves out missing labels, which mark no pairs.
    return replace(roles, labels=labels | _NO_LABELS)


def _label_of_pairs(facts: Facts, found: Found, *, keeps_labels: bool) -> ColumnFacts | None:
    """Return the column whose labels tell which rows are pairs, or None if all rows are pairs.

    ``keeps_labels`` says that the user named the labels whose rows are kept. If there may be such a
    column, but that is not certain, UndecidedError is raised.
    """
    judges = [column for column in _free(facts, found) if column.is_judge]
    label = _usual_label(facts, found)
    if keeps_labels:
        if label is None:
            label = _label_to_keep(judges or _later_judges(facts, found), found)
        return label
    # If a column is named as hard negatives, every row is a triplet, so none is left out.
    if _has_named_negatives(facts, found):
        return None
    # Without a usual label, ask, unless the names anchor and positive say that all rows are pairs.
    if label is None and judges and not _are_named_pairs(facts):
        # Ask about the first usual name of a score, otherwise about the first column.
        judge = (by_name(judges, *names.SCORES) or judges)[0]
        raise _which_are_pairs(facts, judge, found)
    return label


def _has_named_negatives(facts: Facts, found: Found) -> bool:
    return not set(facts.hard_negatives()).isdisjoint(found.get("hard_negative", ()))


def _are_named_pairs(facts: Facts) -> bool:
    return {"anchor", "positive"} <= {column.name for column in facts.columns}


def _watched(facts: Facts, found: Found) -> tuple[int, ...]:
    """Return the places of the columns whose later values may tell which rows are pairs."""
    is_whole = len(facts.grid.sample) < SAMPLE_ROWS
    if is_whole or _has_named_negatives(facts, found) or _are_named_pairs(facts):
        return ()
    return tuple(column.at for column in _later_judges(facts, found))


def _later_judges(facts: Facts, found: Found) -> list[ColumnFacts]:
    return [column for column in _free(facts, found) if column.may_judge_later]


def judges_later(
    grid: Grid, given: Given, roles: Roles, at: int, values: Sequence[str]
) -> DataError:
    """Return the error for a watched column that seems to tell which rows are pairs.

    ``values`` holds the distinct values of the column; the first rows have only the first of them.
    """
    facts = Facts(grid, given)
    what = f"{facts.columns[at]} judges the pairs (first {values[0]}, later {values[1]})"
    choices = _choices_of_pairs(facts.columns[at], roles.found(facts), values)
    return question(facts, UndecidedError(f"{what}; which rows are positives?", choices))


def ask_with_labels(facts: Facts, case: UndecidedError) -> UndecidedError:
    """Return ``case``, a question about the sides of a pair, or one about the labels of the pairs.

    Whoever names both sides takes every row. So if only one pair of columns is possible, and
    another column judges it, the question also offers to keep only the rows with one label.
    """
    if len(case.choices) != 1:
        return case
    found: Found = {role: [column] for role, column in case.choices[0].columns.items()}
    judges = [column for column in _free(facts, found) if column.is_judge]
    judge = _usual_label(facts, found) or next(iter(judges), None)
    return case if judge is None else _which_are_pairs(facts, judge, found)


def _usual_label(facts: Facts, found: Found) -> ColumnFacts | None:
    """Return the free column with a usual name of labels that say which rows are pairs, if any."""
    for column in by_name(_free(facts, found), *names.LABELS):
        if not column.is_topic and column.kind not in (Kind.EMPTY, Kind.TEXT, Kind.LIST):
            return column
    return None


def _label_to_keep(judges: Sequence[ColumnFacts], found: Found) -> ColumnFacts:
    """Return the only column that ``--keep-label`` can mean, or raise UndecidedError."""
    labels = [column for column in judges if column.kind is Kind.LABEL] or judges
    if len(labels) == 1:
        return labels[0]
    if not labels:
        raise UndecidedError("--keep-label: no column holds labels")
    what = f"--keep-label: {len(labels)} columns may hold the labels"
    raise UndecidedError(what, _choices("label", found, labels))


def _which_are_pairs(facts: Facts, judge: ColumnFacts, found: Found) -> UndecidedError:
    """Return an error that asks which values in the column ``judge`` mark pairs."""
    counts = Counter(map(str.strip, judge.texts))
    values = [value for value, _ in counts.most_common() if not is_missing(value)]
    are_numbers = None not in map(to_number, values)
    row_counts = []
    for value, n_rows in counts.most_common(MOST_VALUES):
        row_counts.append(f"{n_rows:,} rows {show.shorten(value, 20) or 'empty'}")
    seen = f"; first {SAMPLE_ROWS} rows" if len(judge.texts) == SAMPLE_ROWS else ""
    what = f"{judge} judges the pairs ({', '.join(row_counts)}{seen})"

    # Offer to keep the rows of one value, unless the values are more than two scores. The numbers
    # 0, 1 and -1 are no scores: -1 means no label.
    kept = values[:MOST_VALUES]
    are_scores = are_numbers and judge.kind is not Kind.LABEL and not judge.are_two_classes
    if are_scores and len(values) > 2:
        kept = []
    choices = _choices_of_pairs(judge, found, kept)

    source = shlex.quote(facts.grid.source)
    others = []
    (positive,) = found["positive"]
    if are_numbers and not (positive.name == "hypothesis" and judge.are_nli_numbers):
        others.append(f"use the scores: simcse train --objective cosent --train-file {source}")
    elif _can_make_triplets(values):
        name = shlex.quote(f"{Path(facts.grid.source).stem}-triplets.csv")
        others.append(f"make triplets: simcse prepare nli {source} -o {name}")
    return UndecidedError(f"{what}; which rows are positives?", choices, others)


def _can_make_triplets(labels: Sequence[str]) -> bool:
    """Tell whether labels are words of an NLI corpus that has positives and hard negatives."""
    words = set(map(str.lower, labels))
    return words <= _NLI_WORDS and bool(words & _ENTAILMENTS and words & _CONTRADICTIONS)


def _choices_of_pairs(judge: ColumnFacts, found: Found, values: Sequence[str]) -> list[Choice]:
    """Return a choice for each value, to keep only its rows, and a choice to take every row."""
    sides = _side_columns(found)
    choices = []
    for value in values:
        meaning = f"keep label {show.shorten(value, 20)}"
        choices.append(Choice({**sides, "label": judge}, meaning, keeps=value))
    return [*choices, Choice(sides, "take every row")]


# ------------------------------------------------------------------ scores and classes
def find_score(facts: Facts, found: Found) -> ColumnFacts:
    """Return the column of scores.

    It is the first of these that there is:

    - the column that the user named as score or label;
    - a column of numbers with a usual name of scores or of labels. With a name of scores, a column
      counts even if it has faulty cells, which are reported later, but not if it has labels only;
    - the only column of numbers that look like scores, or else like labels. Columns with names of
      descriptions, such as ``length``, are left out; several columns are an error.

    Once all rows are read, ``require_scores`` looks at the numbers.
    """
    for role in ("score", "label"):
        if role in facts.named:
            return facts.named[role]
    free = _free(facts, found)
    for column in by_name(free, *names.SCORES, *names.LABELS):
        has_name_of_scores = column.name in names.SCORES and column.kind is not Kind.LABEL
        if has_name_of_scores or column.are_numbers:
            return column
    possible = [column for column in free if column.can_hold_scores]
    numbers = [column for column in possible if column.are_numbers and not column.describes]
    for kind in (Kind.SCORE, Kind.LABEL):
        fitting = [column for column in numbers if column.kind is kind]
        if len(fitting) == 1:
            return fitting[0]
        if fitting:
            raise _which_column("score", found, fitting)
    raise _which_column("score", found, possible)


def require_scores(grid: Grid, given: Given, roles: Roles, values: Collection[str]) -> None:
    """Raise DataError if ``values``, the scores of all rows, may be the classes of NLI.

    A column that the user named, or that has a usual name of scores, always holds scores. Any other
    column may hold classes if its values are 0, 1 or 2, or -1 for no label, and

    - the right column is named hypothesis,
    - or the column itself has a usual name of labels, and other values than 0 and 1.
    """
    facts = Facts(grid, given)
    found = roles.found(facts)
    (right,) = found["right"]
    (column,) = found["score"]
    if given.columns.keys() & {"score", "label"} or column.name in names.SCORES:
        return
    numbers = set(map(to_number, values))
    are_named_labels = column.name in names.LABELS and not numbers <= {0, 1}
    if numbers <= NLI_NUMBERS and (are_named_labels or right.name == "hypothesis"):
        shown = ", ".join(sorted(values))
        what = (
            f"{column} holds {shown}, which may be classes, need scores that rise with similarity"
        )
        choices = [Choice(_side_columns(found), "take them as scores")]
        raise question(facts, UndecidedError(what, choices))


def find_label(facts: Facts, found: Found) -> ColumnFacts:
    """Return the column of the classes of texts or pairs: labels, or else a few whole numbers."""

    def holds_labels(column: ColumnFacts) -> bool:
        return column.kind is Kind.LABEL and len(column.values) > 1

    def holds_numbered_classes(column: ColumnFacts) -> bool:
        return column.kind is Kind.SCORE and column.are_few_whole_numbers

    return _find_label(facts, found, holds_labels, holds_numbered_classes)


def find_nli_label(facts: Facts, found: Found) -> ColumnFacts:
    """Return the column of entailment, neutral and contradiction, in words or numbers."""

    def is_nli(column: ColumnFacts) -> bool:
        values = {text.strip().lower() for text in column.texts}
        return len(values) > 1 and values <= _NLI_LABELS

    return _find_label(facts, found, is_nli)


def _find_label(facts: Facts, found: Found, *tests: Callable[[ColumnFacts], bool]) -> ColumnFacts:
    """Return the column of labels: one the user named, one with a usual name, or one by a test.

    The tests are tried in order, until some column passes one. If several columns pass this test,
    UndecidedError is raised.
    """
    if "label" in facts.named:
        return facts.named["label"]
    # A column of train, dev and test would pass for labels.
    free = [column for column in _free(facts, found) if column.name != "split"]
    # An empty column with a usual name is taken only if no filled column has such a name.
    usual = by_name(free, *names.LABELS)
    for column in usual:
        if column.kind is not Kind.EMPTY:
            return column
    if usual:
        return usual[0]
    for test in tests:
        labels = list(filter(test, free))
        if len(labels) == 1:
            return labels[0]
        if labels:
            raise _which_column("label", found, labels)
    # Ids and dates name a row; whoever means them as labels can say so.
    may_be_labels = [column for column in free if column.kind not in (Kind.ID, Kind.DATE)]
    raise _which_column("label", found, may_be_labels)


def _which_column(role: str, found: Found, among: Sequence[ColumnFacts]) -> UndecidedError:
    """Return an error that asks which of some columns has a role."""
    what = f"no column looks like the {role}"
    if len(among) > 1:
        what = f"{len(among)} columns may hold the {role}"
    choices = _choices(role, found, among)
    others = () if choices else (_HOW_TO_ADD[role],)
    return UndecidedError(what, choices[:MOST_CHOICES], others)


def _choices(role: str, found: Found, among: Sequence[ColumnFacts]) -> list[Choice]:
    return [Choice({**_side_columns(found), role: column}) for column in among]


def _free(facts: Facts, found: Found) -> list[ColumnFacts]:
    """Return the columns that have no role yet."""
    return facts.all_but(list(chain.from_iterable(found.values())))


def _side_columns(found: Found) -> dict[str, ColumnFacts]:
    """Return the column of each side by its role, without hard negatives."""
    return {role: columns[0] for role, columns in found.items() if role != "hard_negative"}
