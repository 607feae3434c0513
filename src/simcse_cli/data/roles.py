"""Decide what the columns of a table are for a job: by what the user named, by names, by content, or ask."""

import shlex
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import combinations

from simcse_cli.data import names, show
from simcse_cli.data.given import Given
from simcse_cli.data.grid import Grid
from simcse_cli.data.kinds import Kind, is_judgement, is_missing, to_number
from simcse_cli.data.names import POSITIONAL, fold
from simcse_cli.errors import DataError

SET = "set"
"""The role of a list of texts that all mean the same."""


class Job(StrEnum):
    """What a command reads from a table."""

    TEXTS = "texts"
    VIEWS = "views"  # single texts, or pairs under the names anchor and positive
    ROWS = "rows"  # pairs that are all positives, perhaps with hard negatives
    COSINES = "cosines"  # pairs that nobody judges
    SCORED = "scored"
    LABELLED = "labelled"
    NLI = "nli"
    LINT = "lint"  # rows, else single texts, else everything; never asks


Places = Mapping[str, tuple[int, ...]]
Found = dict[str, tuple[int, ...]]
"""The columns of each role; a role of hard negatives may have several."""

COLUMN_OPTIONS = ("--column", "--columns")
_SINGLE = (Job.TEXTS, Job.VIEWS)
_SIDES = {
    Job.COSINES: ("left", "right"),
    Job.SCORED: ("left", "right"),
    Job.LABELLED: ("left", "right"),
}
_TEXT_KINDS = (Kind.TEXT, Kind.LIST)
_MOST_VALUES = 5  # different words of a column that may judge pairs
_MOST_CHOICES = 8
_MOST_NAMED = 6

# Whether a label marks a pair: in any table, and in those with one of these columns of positives, which are NLI corpora
# (as on the Hub and in ANLI) and WikiAuto.
IS_PAIR = dict.fromkeys(("1", "1.0", "true", "entailment"), True) | dict.fromkeys(
    ("0", "0.0", "false", "neutral", "contradiction", "not_entailment", "-", ""), False
)
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
_NLI_WORDS = frozenset(
    ["entailment", "neutral", "contradiction", "entails", "contradicts", "e", "n", "c"]
)
_NLI_LABELS = _NLI_WORDS | {"0", "1", "2", "-", "-1", "hidden", ""}


@dataclass(frozen=True)
class Roles:
    """The columns of each role, and which labels of the column ``label`` mark a pair (None: no filter)."""

    columns: Places
    labels: Mapping[str, bool] | None = None
    keeps: frozenset[str] = field(default_factory=frozenset)

    def is_pair(self, label: str) -> bool | None:
        """Tell whether a label marks a pair; None for a label of unknown meaning."""
        text = label.strip().lower()
        if self.keeps:
            return text in self.keeps or (
                to_number(text) is not None and f"{to_number(text):g}" in self.keeps
            )
        return (self.labels or {}).get(text)


def decide(grid: Grid, job: Job, given: Given) -> Roles:
    """Return the columns of a table for a job; raise DataError with the choices where they are not certain."""
    return _Decision(grid, job, given).roles()


class _UndecidedError(Exception):
    """Columns are not certain: ``what`` is the case, ``choices`` are roles by what they mean."""

    def __init__(
        self, what: str, choices: Sequence[tuple[str, dict[str, int]]] = (), need: str = ""
    ) -> None:
        super().__init__(what)
        self.what, self.choices, self.need = what, choices, need


class _Decision:
    def __init__(self, grid: Grid, job: Job, given: Given) -> None:
        self.grid, self.job, self.given = grid, job, given
        self.names = [fold(name) if grid.is_named else "" for name in grid.names]
        self.kinds = grid.kinds
        self.sides = _SIDES.get(job, POSITIONAL[:2])

    def roles(self) -> Roles:
        try:
            return self._decide()
        except _UndecidedError as case:
            raise self._question(case) from None

    def _decide(self) -> Roles:
        named = self._named()
        if self.job is Job.LINT:
            return self._of_lint(named)
        if self.job in _SINGLE:
            return self._of_texts(named)
        if self.job is Job.LABELLED:
            return self._of_labelled(named)
        found = self._sides(named)
        if self.job is Job.SCORED:
            found |= {"score": (self._score(found, named),)}
        elif self.job is Job.NLI:
            found |= {"label": (self._label(found, named, _is_nli),)}
        elif self.job is Job.ROWS and SET not in found:
            return self._judged(found, named)
        return Roles(found)

    # -------------------------------------------------------------- what the user named
    def _named(self) -> dict[str, int]:
        """Return the columns that the user gave by name or number."""
        found: dict[str, int] = {}
        for role, name in self.given.columns.items():
            at = self._find(name)
            if at is None and name == role != "text" and self.grid.is_named:
                continue  # `anchor=anchor` asks for the usual names
            if at is None:
                raise self._no_column(name)
            found[role] = at
        return found

    def _find(self, name: str) -> int | None:
        folded = fold(name)
        for at, own in enumerate(self.grid.names):
            if self.grid.is_named and own == name:
                return at
        if folded in self.names:
            return self.names.index(folded)
        if name.isdigit() and 1 <= int(name) <= len(self.grid.names):
            return int(name) - 1
        return None

    def _no_column(self, name: str) -> _UndecidedError:
        every = range(len(self.grid.names))
        shown = ", ".join(show.shorten(each, 40) for each in self.grid.names[:20])
        what = (
            f"no column {name}; there are {shown}"
            if self.grid.is_named
            else f"no column {name}; row 1 is no header"
        )
        role = next((role for role, own in self.given.columns.items() if own == name), "text")
        others = {own: self._find(text) for own, text in self.given.columns.items() if own != role}
        rest = {own: at for own, at in others.items() if at is not None}
        choices = [("", {**rest, role: at}) for at in every if at not in rest.values()]
        return _UndecidedError(what, choices[:_MOST_CHOICES])

    # -------------------------------------------------------------- single texts
    def _of_texts(self, named: dict[str, int]) -> Roles:
        if (at := named.get("text", named.get("anchor"))) is not None and "positive" not in named:
            return Roles({"text": (at,)})
        if self.job is Job.VIEWS:
            pair = [self._find(role) for role in POSITIONAL[:2]] if self.grid.is_named else [None]
            if "positive" in named or None not in pair:
                return Roles(self._sides(named))
        return Roles({"text": (self._text(),)})

    def _text(self, *, among: Sequence[int] | None = None) -> int:
        """Return the only column that can hold the texts: by a strong name, a weak name, or its content."""
        every = range(len(self.names)) if among is None else among
        if strong := [at for at in self._strong("anchor") if at in every]:
            return self._only(strong, "anchor")
        for name in names.WEAK_TEXTS:
            for at in every:
                if self.names[at] == name and self._fits(at):
                    return at
        for kinds in (_TEXT_KINDS, (Kind.WORD,)):
            texts = [at for at in every if self.kinds[at] in kinds and self._is_left_over(at)]
            if len(texts) == 1:
                return texts[0]
            if texts:
                raise _UndecidedError(
                    f"{len(texts)} columns hold texts, one is needed",
                    [("", {"text": at}) for at in texts],
                )
        return self._text_of_last_resort(every)

    def _text_of_last_resort(self, every: Sequence[int]) -> int:
        usual = (*names.WEAK_TEXTS, *names.STRONG["anchor"])
        repeated = [at for at in every if self.kinds[at] is Kind.LABEL and not self._is_judging(at)]
        for at in every:
            if self.names[at] in usual and (at in repeated or self.kinds[at] is Kind.EMPTY):
                return at
        if len(self.names) == 1:
            return 0
        raise _UndecidedError("no column looks like texts", [("", {"text": at}) for at in every])

    # -------------------------------------------------------------- the two sides of a pair
    def _sides(self, named: dict[str, int]) -> Found:
        """Return the columns of both sides, and of hard negatives where they are known."""
        left, right = self.sides
        aliases = {"anchor": left, "positive": right, "left": left, "right": right, "text": left}
        given = {aliases[role]: at for role, at in named.items() if role in aliases}
        negatives: tuple[int, ...] = ()
        if "hard_negative" in named:
            negatives = (named["hard_negative"],)
        found: Found
        if len(given) == 2:
            found = {left: (given[left],), right: (given[right],)}
            return found | ({"hard_negative": negatives} if negatives else {})
        is_set = list(self.grid.names) in ([SET], ["texts"]) and self.kinds == (Kind.LIST,)
        if is_set and self.job in (Job.ROWS, Job.LINT):
            return {SET: (0,)}
        anchor, positive, found_negatives = self._pair(given.get(left), given.get(right))
        found = {left: (anchor,), right: (positive,)}
        negatives = negatives or found_negatives
        return found | ({"hard_negative": negatives} if negatives else {})

    def _pair(self, anchor: int | None, positive: int | None) -> tuple[int, int, tuple[int, ...]]:
        negatives = tuple(self._hard_negatives())
        anchors = [anchor] if anchor is not None else self._strong("anchor")
        positives = [positive] if positive is not None else self._strong("positive")
        anchors = [at for at in anchors if at not in (*negatives, positive)]
        positives = [at for at in positives if at not in (*negatives, anchor)]
        if anchors and positives:
            couples = [pair for pair in _products(anchors, positives) if self._are_couple(*pair)]
            if len(anchors) * len(positives) > 1 and len(couples) == 1:
                return (*couples[0], negatives)
            return self._only(anchors, "anchor"), self._only(positives, "positive"), negatives
        taken = {*anchors, *positives, *negatives}
        if anchors:
            if len(anchors) == 2 and anchor is None and self._are_couple(*anchors):
                return anchors[0], anchors[1], negatives
            return anchors[0], self._other("positive", taken, anchors), negatives
        if positives:
            return self._other("anchor", taken, positives), positives[0], negatives
        return self._unnamed_pair(negatives)

    def _other(self, side: str, taken: set[int], known: Sequence[int]) -> int:
        """Return the side of a pair whose other side has a strong name: by a weak name, or what is left over."""
        if len(known) == 1:
            free = [at for at in range(len(self.names)) if at not in taken and self._fits(at)]
            for name in names.WEAK_SIDES[side]:
                weak = [at for at in free if self.names[at] == name]
                if weak and not (name == "source" and len(free) > len(weak)):
                    return weak[0]
            for kinds in (_TEXT_KINDS, (Kind.WORD,)):
                left_over = [
                    at for at in free if self.kinds[at] in kinds and self._is_left_over(at)
                ]
                if len(left_over) == 1:
                    return left_over[0]
                if left_over:
                    raise self._which_pair([*known, *left_over])
            same = [
                at
                for at in range(len(self.names))
                if at not in taken and self.kinds[at] is Kind.LABEL
            ]
            for at in same:  # one text in all of the first rows, such as a premise
                if self.names[at] in names.WEAK_SIDES[side] and not self._has_values(at):
                    return at
        raise self._which_pair(sorted(taken))

    def _unnamed_pair(self, negatives: tuple[int, ...]) -> tuple[int, int, tuple[int, ...]]:
        free = [at for at in range(len(self.names)) if at not in negatives]
        fitting = [at for at in free if self._fits(at)]
        couples = [pair for pair in combinations(fitting, 2) if self._are_couple(*pair)]
        if not couples:
            for left, right in names.WEAK_COUPLES:
                pair = [at for name in (left, right) for at in fitting if self.names[at] == name]
                if len(pair) == 2:
                    couples.append((pair[0], pair[1]))
        if len(couples) == 1:
            return (*couples[0], negatives)
        texts = [at for at in free if self.kinds[at] in _TEXT_KINDS and self._is_left_over(at)]
        if len(texts) < 2:
            words = [at for at in free if self.kinds[at] is Kind.WORD and self._is_left_over(at)]
            texts = sorted([*texts, *words])
        if len(texts) == 2:
            return texts[0], texts[1], negatives
        if len(texts) == 3 and not negatives and not self.grid.is_named:
            return texts[0], texts[1], (texts[2],)
        raise self._which_pair(texts)

    def _which_pair(self, texts: Sequence[int]) -> _UndecidedError:
        left, right = self.sides
        if len(texts) < 2:
            every = [at for at in range(len(self.names)) if self.kinds[at] is not Kind.EMPTY]
            what = (
                "no two columns look like texts"
                if len(every) > 1
                else "a single column, two texts are needed"
            )
            return _UndecidedError(
                what, self._choices_of_pairs(every[:3]), need="two columns of texts"
            )
        choices: list[tuple[str, dict[str, int]]] = []
        if len(texts) == 3 and "hard_negative" in self.given.roles:
            triplet = dict(zip((left, right, "hard_negative"), texts, strict=True))
            choices.append(("a triplet", triplet))
        choices += self._choices_of_pairs(texts)
        wanted = (
            "two are needed" if self.job is not Job.ROWS else "a pair has two and a triplet three"
        )
        return _UndecidedError(f"{len(texts)} columns hold texts, {wanted}", choices)

    def _choices_of_pairs(self, texts: Sequence[int]) -> list[tuple[str, dict[str, int]]]:
        left, right = self.sides
        pairs = list(combinations(texts, 2))[: _MOST_CHOICES - 2]
        return [("a pair", {left: first, right: second}) for first, second in pairs]

    # -------------------------------------------------------------- labels and scores
    def _judged(self, found: Found, named: dict[str, int]) -> Roles:
        """Return the roles with the label that tells which rows are pairs; ask if something else may tell it."""
        given_pair = {"anchor", "positive"} <= named.keys() or "text" in named
        keeps = frozenset(value.strip().lower() for value in self.given.keep_labels)
        label = named.get("label")
        if label is None and given_pair and not keeps:
            return Roles(found)  # whoever names both sides takes every row
        is_told = {"anchor", "positive"} <= set(self.names)  # names that call every row a pair
        used = {at for places in found.values() for at in places}
        is_strong_triplet = any(
            self.grid.is_named and names.is_hard_negative(self.grid.names[at])
            for at in found.get("hard_negative", ())
        )
        judges = [at for at in range(len(self.names)) if at not in used and self._is_judge(at)]
        if label is None:
            label = self._usual_label(used)
            if label is None and keeps:
                label = self._judge_to_keep(judges, found)
            if label is None or (is_strong_triplet and not keeps):
                if judges and not is_strong_triplet and not is_told:
                    raise self._which_are_pairs(judges[0], found)
                return Roles(found)
        roles = found | {"label": (label,)}
        if keeps:
            return Roles(roles, keeps=keeps)
        labels = {**IS_PAIR, **self._labels_of(found)}
        if all(
            text.strip().lower() in labels or is_missing(text) for text in self.grid.texts(label)
        ):
            return Roles(
                roles,
                labels=labels | {text.lower(): False for text in ("nan", "none", "null", "na")},
            )
        raise self._which_are_pairs(label, found)

    def _labels_of(self, found: Places) -> Mapping[str, bool]:
        (positive,) = found["positive"]
        return _IS_PAIR_OF.get(self.names[positive], {})

    def _judge_to_keep(self, judges: Sequence[int], found: Places) -> int:
        labels = [at for at in judges if self.kinds[at] is Kind.LABEL] or list(judges)
        if len(labels) == 1:
            return labels[0]
        if not labels:
            raise _UndecidedError("--keep-label: no column holds labels")
        pair = {role: places[0] for role, places in found.items() if role != "hard_negative"}
        raise _UndecidedError(
            f"--keep-label: {len(labels)} columns may hold the labels",
            [("", {**pair, "label": at}) for at in labels],
        )

    def _usual_label(self, used: Iterable[int]) -> int | None:
        """Return the column with the name of a label that says which rows are pairs."""
        for name in names.LABELS:
            for at, own in enumerate(self.names):
                if (
                    own == name
                    and at not in used
                    and name not in names.TOPICS
                    and self._is_varied(at)
                ):
                    return at
        return None

    def _is_varied(self, at: int) -> bool:
        return self.kinds[at] not in (Kind.EMPTY, Kind.TEXT, Kind.LIST)

    def _is_judge(self, at: int) -> bool:
        """Tell whether a column may say which rows are pairs: scores, 0 and 1, or a few words."""
        if self._describes(at) or self.names[at] in names.TOPICS:
            return False
        values = {text.strip() for text in self.grid.texts(at) if not is_missing(text)}
        if self.kinds[at] is Kind.SCORE:
            return True
        n_rows = len(self.grid.columns[at])
        return (
            self.kinds[at] is Kind.LABEL
            and len(values) <= _MOST_VALUES
            and (len(values) > 1 or n_rows == 1)
        )

    def _which_are_pairs(self, judge: int, found: Places) -> _UndecidedError:
        counts = Counter(text.strip() for text in self.grid.texts(judge))
        values = [value for value, _ in counts.most_common() if not is_missing(value)]
        told = ", ".join(
            f"{n:,} rows {show.shorten(value, 20) or 'empty'}"
            for value, n in counts.most_common(_MOST_VALUES)
        )
        pair = {role: places[0] for role, places in found.items() if role != "hard_negative"}
        choices: list[tuple[str, dict[str, int]]] = []
        self._kept: dict[int, str] = {}
        is_label = self.kinds[judge] is Kind.LABEL or len(values) <= 2
        if is_label or not all(to_number(value) is not None for value in values):
            for value in values[:_MOST_VALUES]:
                self._kept[len(choices)] = value
                choices.append((f"keep label {show.shorten(value, 20)}", {**pair, "label": judge}))
        choices.append(("take every row", pair))
        need = ""
        if all(to_number(value) is not None for value in values):
            need = "cosent"
        elif {value.lower() for value in values} <= _NLI_WORDS:
            need = "nli"
        return _UndecidedError(
            f"{self._label_of(judge)} judges the pairs ({told}); which rows are positives?",
            choices,
            need,
        )

    def _score(self, found: Places, named: dict[str, int]) -> int:
        for role in ("score", "label"):
            if role in named:
                return named[role]
        used = {at for places in found.values() for at in places}
        free = [at for at in range(len(self.names)) if at not in used]
        for name in (*names.SCORES, *names.LABELS):
            for at in free:
                if self.names[at] == name and (name in names.SCORES or self._are_numbers(at)):
                    return at
        numbers = [
            at
            for at in free
            if self._are_numbers(at) and self._is_varied(at) and not self._describes(at)
        ]
        for kinds in ((Kind.SCORE,), (Kind.LABEL,)):
            fitting = [at for at in numbers if self.kinds[at] in kinds]
            if len(fitting) == 1:
                return fitting[0]
            if fitting:
                raise self._which_column("score", found, fitting)
        raise self._which_column("score", found, free)

    def _label(self, found: Places, named: dict[str, int], is_fitting: object = None) -> int:
        if "label" in named:
            return named["label"]
        used = {at for places in found.values() for at in places}
        free = [at for at in range(len(self.names)) if at not in used and self.names[at] != "split"]
        usual = [at for name in names.LABELS for at in free if self.names[at] == name]
        filled = [at for at in usual if self.kinds[at] is not Kind.EMPTY]
        if usual:
            return (filled or usual)[0]
        labels = [at for at in free if self.kinds[at] is Kind.LABEL and self._has_values(at)]
        if is_fitting is not None:
            labels = [at for at in free if _is_nli(self.grid.texts(at))]
        if len(labels) == 1:
            return labels[0]
        if not labels and is_fitting is None:
            labels = [at for at in free if self.kinds[at] is Kind.SCORE and self._is_few(at)]
            if len(labels) == 1:
                return labels[0]
        raise self._which_column("label", found, labels or free)

    def _has_values(self, at: int) -> bool:
        return len({text.strip() for text in self.grid.texts(at) if not is_missing(text)}) > 1

    def _is_few(self, at: int) -> bool:
        values = {text for text in self.grid.texts(at) if not is_missing(text)}
        return (
            all((to_number(text) or 0) == int(to_number(text) or 0) for text in values)
            and len(values) <= 20
        )

    def _which_column(self, role: str, found: Places, among: Sequence[int]) -> _UndecidedError:
        pair = {own: places[0] for own, places in found.items() if own != "hard_negative"}
        n_columns = len(among)
        what = (
            f"{n_columns} columns may hold the {role}"
            if n_columns > 1
            else f"no column looks like the {role}"
        )
        used = set(pair.values())
        return _UndecidedError(
            what, [("", {**pair, role: at}) for at in among if at not in used][:_MOST_CHOICES]
        )

    # -------------------------------------------------------------- labelled texts, lint
    def _of_labelled(self, named: dict[str, int]) -> Roles:
        found: Found
        if "text" in named:
            found = {"text": (named["text"],)}
            return Roles(found | {"label": (self._label(found, named),)})
        if {"left", "right"} <= named.keys():
            found = self._sides(named)
            return Roles(found | {"label": (self._label(found, named),)})
        anchors, positives = self._strong("anchor"), self._strong("positive")
        every = [at for at in range(len(self.names)) if at not in named.values()]
        texts = [at for at in every if self.kinds[at] in _TEXT_KINDS and self._is_left_over(at)]
        has_couple = any(
            self._are_couple(*pair)
            for pair in combinations([at for at in every if self._fits(at)], 2)
        )
        if not (anchors and positives) and not has_couple and len(texts) != 2:
            among = [at for at in every if at != self._label_if_known(named)]
            found = {"text": (self._text(among=among),)}
            return Roles(found | {"label": (self._label(found, named),)})
        found = self._sides(named)
        found = {side: found[side] for side in self.sides}
        label = self._label(found, named)
        if anchors and positives and self.names[label] in (*names.TOPICS, *names.DESCRIBING):
            left, right = (found[side][0] for side in self.sides)
            raise _UndecidedError(
                f"{self._label_of(label)} may be of {self._label_of(left)} or of the pair",
                [
                    ("texts", {"text": left, "label": label}),
                    ("pairs", {"left": left, "right": right, "label": label}),
                ],
            )
        return Roles(found | {"label": (label,)})

    def _label_if_known(self, named: dict[str, int]) -> int | None:
        if "label" in named:
            return named["label"]
        for name in names.LABELS:
            if name in self.names:
                return self.names.index(name)
        return None

    def _of_lint(self, named: dict[str, int]) -> Roles:
        if named:
            wanted = {role: (at,) for role, at in named.items() if role in POSITIONAL}
            return Roles(wanted or {"text": (next(iter(named.values())),)})
        for attempt in (self._sides, lambda _: {"text": (self._text(),)}):
            try:
                return Roles(attempt({}))
            except _UndecidedError:
                continue
        texts = [at for at, kind in enumerate(self.kinds) if kind in (*_TEXT_KINDS, Kind.WORD)]
        every = texts or list(range(len(self.names)))
        return Roles({f"column {at + 1}": (at,) for at in every})

    # -------------------------------------------------------------- facts about columns
    def _strong(self, role: str) -> list[int]:
        wanted = names.STRONG[role]
        found = [
            at
            for at, name in enumerate(self.names)
            if name in wanted and self._fits(at, is_strong=True)
        ]
        exact = [at for at in found if self.names[at] == role]
        if len(found) > 1 and not exact:  # an instruction beside the text it is about
            found = [at for at in found if self.names[at] != "prompt"]
        if found or role == "hard_negative":
            return exact or found
        same = (Kind.EMPTY, Kind.LABEL)  # one text in all of the first rows, or none
        named = [
            at for at, name in enumerate(self.names) if name in wanted and self.kinds[at] in same
        ]
        return [at for at in named if self.kinds[at] is Kind.EMPTY or not self._is_judging(at)]

    def _hard_negatives(self) -> list[int]:
        found = []
        for at, name in enumerate(self.grid.names):
            if (
                self.grid.is_named
                and names.is_hard_negative(name)
                and self._fits(at, is_strong=True)
            ):
                found.append(at)
        return found

    def _fits(self, at: int, *, is_strong: bool = False) -> bool:
        """Tell whether a column can hold texts under its name."""
        kind = self.kinds[at]
        if kind in (Kind.TEXT, Kind.WORD, Kind.LIST):
            return True
        return (
            is_strong and kind is Kind.LABEL and not self._is_judging(at) and self._has_values(at)
        )

    def _is_judging(self, at: int) -> bool:
        return is_judgement(self.grid.texts(at))

    def _are_numbers(self, at: int) -> bool:
        cells = [text for text in self.grid.texts(at) if not is_missing(text)]
        return bool(cells) and all(to_number(text) is not None for text in cells)

    def _are_couple(self, first: int, second: int) -> bool:
        return self.grid.is_named and names.are_couple(
            self.grid.names[first], self.grid.names[second]
        )

    def _describes(self, at: int) -> bool:
        return self.names[at] in names.DESCRIBING

    def _is_left_over(self, at: int) -> bool:
        """Tell whether a column may be a text that no name tells of."""
        return not self._describes(at) and self.names[at] not in (*names.SCORES, *names.LABELS)

    def _only(self, columns: Sequence[int], role: str) -> int:
        if len(columns) == 1:
            return columns[0]
        role = (
            {"anchor": self.sides[0], "positive": self.sides[1]}[role]
            if self.job not in _SINGLE
            else "text"
        )
        listed = ", ".join(self.grid.names[at] for at in columns)
        if role == "text":
            raise _UndecidedError(
                f"{listed}: which one holds the texts?", [("", {"text": at}) for at in columns]
            )
        texts = sorted({*self._strong("anchor"), *self._strong("positive")})
        raise _UndecidedError(f"{listed}: which one is the {role}?", self._choices_of_pairs(texts))

    def _label_of(self, at: int) -> str:
        return f"column {self.grid.names[at]}" if self.grid.is_named else f"column {at + 1}"

    # -------------------------------------------------------------- the question
    def _question(self, case: _UndecidedError) -> DataError:
        """Return the error that shows the first rows and a command for each choice."""
        grid, option = self.grid, self.given.option
        rows = show.show_rows(grid.first_rows(), grid.names if grid.is_named else ())
        message = f"{grid.source}: {case.what}\n{rows}"
        if case.choices and option not in COLUMN_OPTIONS:
            at = case.choices[0][1]["text"]
            column = show.column_name(grid.names, at, is_named=grid.is_named)
            return DataError(message, hint=show.take_out_hint(grid.source, option, column))
        kept = getattr(self, "_kept", {})
        hints = []
        width = max((len(meaning) for meaning, _ in case.choices), default=0)
        for number, (meaning, chosen) in enumerate(case.choices):
            roles = {
                role: show.column_name(grid.names, at, is_named=grid.is_named)
                for role, at in chosen.items()
            }
            text = show.columns_option(option, roles)
            if number in kept:
                text += f" --keep-label {shlex.quote(kept[number])}"
            hints.append(f"{meaning:<{width}}   {text}" if width else text)
        source = shlex.quote(grid.source)
        if case.need == "cosent":
            hints.append(f"use the scores: simcse train --objective cosent --train-file {source}")
        elif case.need == "nli":
            hints.append(f"make triplets: simcse prepare nli {source} -o nli.csv")
        elif case.need and not hints:
            hints.append(f"give a table with {case.need}")
        return DataError(message, hint="\n        ".join(hints) or None)


def _products(lefts: Sequence[int], rights: Sequence[int]) -> list[tuple[int, int]]:
    return [(left, right) for left in lefts for right in rights]


def _is_nli(texts: Iterable[str]) -> bool:
    values = {text.strip().lower() for text in texts}
    return len(values) > 1 and values <= _NLI_LABELS


def told_line(grid: Grid, roles: Roles) -> tuple[str, bool]:
    """Return what was read from a table in a line, and whether there are columns that were not."""
    used = {at for places in roles.columns.values() for at in places}
    unused = []
    for at, name in enumerate(grid.names):
        is_blank = grid.kinds[at] is Kind.EMPTY and name.startswith("column")
        if at not in used and not is_blank:
            unused.append(name)
    read = []
    for role, places in roles.columns.items():
        shown = ", ".join(grid.names[at] for at in places)
        read.append(f"{role} = {shown}" if grid.is_named else f"{role} = column {shown}")
    line = f"{grid.source}: {', '.join(read)}"
    if unused:
        shown = ", ".join(unused[:_MOST_NAMED])
        more = len(unused) - _MOST_NAMED
        line += f"; not used: {shown}" + (f" and {more} more" if more > 0 else "")
    return line, bool(unused)
