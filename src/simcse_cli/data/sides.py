"""Find the texts of a table: the only column of single texts, or the two sides of a pair."""

from collections.abc import Iterable, Sequence
from itertools import combinations, product

from simcse_cli.data import names
from simcse_cli.data.facts import ColumnFacts, Facts, by_name, texts_or_words
from simcse_cli.data.jobs import Job
from simcse_cli.data.kinds import Kind
from simcse_cli.data.question import MOST_CHOICES, Choice, UndecidedError

SET = "set"
"""The role of a list of texts that all mean the same."""

Found = dict[str, Sequence[ColumnFacts]]
"""The columns of each role; a role of hard negatives may have several."""

_Pair = tuple[ColumnFacts, ColumnFacts]
_Triplet = tuple[ColumnFacts, ColumnFacts, Sequence[ColumnFacts]]


# ------------------------------------------------------------------ single texts
def find_text(facts: Facts, among: Sequence[ColumnFacts]) -> ColumnFacts:
    """Choose the column of texts from some columns: by a strong or a weak name, or by content.

    Raise UndecidedError if the column is not certain.
    """
    strong = [column for column in facts.strong("anchor") if column in among]
    if len(strong) == 1:
        return strong[0]
    if strong:
        what = f"{_listed(strong)}: which one holds the texts?"
        raise UndecidedError(what, _each_as_text(strong))
    for column in by_name(among, *names.WEAK_TEXTS):
        if column.can_hold_texts:
            return column
    texts = texts_or_words(among)
    if len(texts) == 1:
        return texts[0]
    if texts:
        what = f"{len(texts)} columns hold texts, one is needed"
        raise UndecidedError(what, _each_as_text(texts))
    return _text_of_last_resort(facts, among)


def _text_of_last_resort(facts: Facts, among: Sequence[ColumnFacts]) -> ColumnFacts:
    """Return the column to read when no column looks like texts.

    It is a column that has a usual name, although its cells are empty or repeat a few words. If
    there is none, it is the only column of the table; UndecidedError is raised if there are more.
    """
    usual = (*names.WEAK_TEXTS, *names.STRONG["anchor"])
    for column in among:
        if column.name in usual and (column.repeats_words or column.kind is Kind.EMPTY):
            return column
    if len(facts.columns) == 1:
        return facts.columns[0]
    raise UndecidedError("no column looks like texts", _each_as_text(among))


def _listed(columns: Iterable[ColumnFacts]) -> str:
    return ", ".join(column.title for column in columns)


def _each_as_text(columns: Iterable[ColumnFacts]) -> list[Choice]:
    return [Choice({"text": column}) for column in columns]


# ------------------------------------------------------------------ the two sides of a pair
def couples(pairs: Iterable[_Pair]) -> list[_Pair]:
    """Keep the pairs of columns whose names differ only in 1/2, a/b or the like."""
    return [pair for pair in pairs if names.are_couple(pair[0].name, pair[1].name)]


def find_sides(facts: Facts, job: Job) -> Found:
    """Return the columns of both sides, and of hard negatives if there are any."""
    return _Sides(facts, job).find()


class _Sides:
    """Finds the two texts of a pair; ``left`` and ``right`` are their roles in the job."""

    def __init__(self, facts: Facts, job: Job) -> None:
        self.facts = facts
        self.job = job
        self.left, self.right = job.sides

    def find(self) -> Found:
        named = self.facts.named
        anchor = positive = None
        for role, column in named.items():
            if role in ("anchor", "left", "text"):
                anchor = column
            elif role in ("positive", "right"):
                positive = column

        # Find what the user did not name; one column of lists is a set of texts, not a pair.
        negatives: Sequence[ColumnFacts] = ()
        if anchor is None or positive is None:
            if self._is_set():
                return {SET: self.facts.columns}
            anchor, positive, negatives = self._complete(anchor, positive)
        # A column of hard negatives that the user named replaces those found.
        if "hard_negative" in named:
            negatives = (named["hard_negative"],)
        found: Found = {self.left: (anchor,), self.right: (positive,)}
        if negatives:
            found["hard_negative"] = negatives
        return found

    def _is_set(self) -> bool:
        """Tell whether the only column of the table holds sets of texts of one meaning."""
        grid = self.facts.grid
        is_list = grid.names in ((SET,), ("texts",)) and grid.kinds == (Kind.LIST,)
        return is_list and self.job in (Job.ROWS, Job.LINT)

    def _complete(self, anchor: ColumnFacts | None, positive: ColumnFacts | None) -> _Triplet:
        """Return anchor, positive and hard negatives; find each side that is None."""
        negatives = self.facts.hard_negatives()
        anchors = self._candidates("anchor", anchor, (*negatives, positive))
        positives = self._candidates("positive", positive, (*negatives, anchor))
        if negatives and not positives:  # beside ``neg``, ``pos`` is no part of speech
            for column in by_name(self.facts.all_but([anchor]), "pos"):
                if column.can_hold_texts_if_named:
                    positives.append(column)

        # There are candidates for both sides. Of several, take the two that go together.
        if anchors and positives:
            pairs = couples(product(anchors, positives))
            if len(pairs) == 1:
                return (*pairs[0], negatives)
            return (
                self._require_one(anchors, self.left),
                self._require_one(positives, self.right),
                negatives,
            )

        # There are candidates for one side at most: two that go together are a pair.
        candidates = [*anchors, *positives]
        if not candidates:
            return self._unnamed_pair(negatives)
        if len(anchors) == 2 and couples(combinations(anchors, 2)):
            return anchors[0], anchors[1], negatives
        if len(candidates) > 1:
            raise self._which_pair(self._in_order([*candidates, *negatives]))
        if anchors:
            return anchors[0], self._other_side("positive", anchors[0], negatives), negatives
        return self._other_side("anchor", positives[0], negatives), positives[0], negatives

    def _candidates(
        self, role: str, named: ColumnFacts | None, taken: Sequence[ColumnFacts | None]
    ) -> list[ColumnFacts]:
        """Return the column ``named`` by the user, or else the columns with a strong name.

        Columns in ``taken`` have another role, and are left out.
        """
        candidates = self.facts.strong(role) if named is None else [named]
        return [column for column in candidates if column not in taken]

    def _other_side(
        self, side: str, known: ColumnFacts, negatives: Sequence[ColumnFacts]
    ) -> ColumnFacts:
        """Return the column of a side; ``known`` is the column of the other side.

        The column has a weak name for this side, or is the only column of texts that is left.
        """
        taken = [known, *negatives]
        free = self.facts.fitting(taken)
        # A column ``source`` often tells where a pair comes from, so it is taken for this side only
        # if no other column is left.
        for name in names.WEAK_SIDES[side]:
            weak = by_name(free, name)
            if weak and not (name == "source" and len(free) > len(weak)):
                return weak[0]
        texts = texts_or_words(free)
        if len(texts) == 1:
            return texts[0]
        if texts:
            raise self._which_pair([known, *texts])
        # At last, a column with the same text in all of the first rows, such as a premise.
        for column in self.facts.all_but(taken):
            is_constant = column.kind is Kind.LABEL and len(column.values) < 2
            if is_constant and column.name in names.WEAK_SIDES[side]:
                return column
        raise self._which_pair(self._in_order(taken))

    def _unnamed_pair(self, negatives: Sequence[ColumnFacts]) -> _Triplet:
        """Return both sides by names that go together, or as the only two columns of texts."""
        fitting = self.facts.fitting(negatives)
        pairs = couples(combinations(fitting, 2))
        if not pairs:
            pairs = self._weak_couples(fitting)
        if len(pairs) == 1:
            return (*pairs[0], negatives)

        # Words count only where there are not enough texts.
        texts = texts_or_words(fitting)
        if len(texts) < 2:
            texts = [column for column in fitting if column.name_allows_texts]
        if len(texts) == 2:
            return texts[0], texts[1], negatives
        # Without names, three columns of texts are a triplet.
        if len(texts) == 3 and not negatives and not self.facts.grid.is_named:
            if texts[2].repeats_itself and not any(text.repeats_itself for text in texts[:2]):
                what = f"the texts of {texts[2]} repeat each other; are they hard negatives?"
                raise self._which_pair(texts, what)
            return texts[0], texts[1], texts[2:]
        raise self._which_pair(texts)

    def _weak_couples(self, fitting: Sequence[ColumnFacts]) -> list[_Pair]:
        """Return the pairs of columns with names such as title and body, if each occurs once."""
        weak_pairs = []
        for left, right in names.WEAK_COUPLES:
            lefts = by_name(fitting, left)
            rights = by_name(fitting, right)
            if len(lefts) == len(rights) == 1:
                weak_pairs.append((lefts[0], rights[0]))
        return weak_pairs

    def _in_order(self, columns: Sequence[ColumnFacts]) -> list[ColumnFacts]:
        return [column for column in self.facts.columns if column in columns]

    def _require_one(self, columns: Sequence[ColumnFacts], role: str) -> ColumnFacts:
        """Return the only one of the columns; raise UndecidedError if several may have the role."""
        if len(columns) == 1:
            return columns[0]
        texts = self._in_order([*self.facts.strong("anchor"), *self.facts.strong("positive")])
        what = f"{_listed(columns)}: which one is the {role}?"
        raise UndecidedError(what, self._choices(texts))

    def _which_pair(self, texts: Sequence[ColumnFacts], what: str = "") -> UndecidedError:
        """Return the error that asks which two columns of texts are the pair.

        Its message begins with ``what``; by default it tells how many columns there are. Columns of
        ids are never offered. For a pair, columns of negatives are offered only if fewer than two
        others are left.
        """
        texts = [column for column in texts if not names.is_row_id(column.name)]
        if len(texts) < 2:
            return self._too_few_texts()
        sides = [column for column in texts if not names.is_negative(column.name)]
        offered = texts
        if len(sides) > 1:
            offered = sides
            texts = [*sides, *(column for column in texts if column not in sides)]
        choices = self._choices(offered)
        if len(texts) == 3 and "hard_negative" in self.facts.given.roles:
            roles = (self.left, self.right, "hard_negative")
            choices.insert(0, Choice(dict(zip(roles, texts, strict=True)), "a triplet"))
        if what:
            return UndecidedError(what, choices)
        # Two columns are the pair, but their order is not certain.
        if len(texts) == 2 and set(texts).isdisjoint(self.facts.hard_negatives()):
            return UndecidedError(f"{_listed(texts)}: which one is the {self.left}?", choices)
        wanted = "a pair has two and a triplet three" if self.job is Job.ROWS else "two are needed"
        return UndecidedError(f"{len(texts)} columns hold texts, {wanted}", choices)

    def _too_few_texts(self) -> UndecidedError:
        """Return the error for a table with fewer than two columns that look like texts."""
        filled = [column for column in self.facts.columns if column.kind is not Kind.EMPTY]
        what = "a single column, two texts are needed"
        if len(filled) > 1:
            what = "no two columns look like texts"
        # Offer columns of texts, or of a few words that recur. If there are not two, offer columns
        # with names of texts, whatever they hold, such as ids.
        likely = [
            column
            for column in filled
            if (column.can_hold_texts or column.repeats_words) and not names.is_row_id(column.name)
        ]
        if len(likely) < 2:
            side_names = (*names.STRONG["anchor"], *names.STRONG["positive"])
            likely = [column for column in filled if column.name in side_names]
        choices = self._choices(likely[:3])
        others = () if choices else ("give a table with two columns of texts",)
        return UndecidedError(what, choices, others)

    def _choices(self, texts: Sequence[ColumnFacts]) -> list[Choice]:
        pairs = list(combinations(texts, 2))[: MOST_CHOICES - 2]
        return [Choice({self.left: first, self.right: second}, "a pair") for first, second in pairs]
