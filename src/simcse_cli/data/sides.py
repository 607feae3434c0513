"""Find the texts of a table: the only column of single texts, or the two sides of a pair."""

from collections.abc import Mapping, Sequence
from itertools import combinations, product

from simcse_cli.data import names
from simcse_cli.data.facts import TEXT_KINDS, Facts
from simcse_cli.data.jobs import Job
from simcse_cli.data.kinds import Kind
from simcse_cli.data.question import MOST_CHOICES, Choice, UndecidedError

SET = "set"
"""The role of a list of texts that all mean the same."""

Found = dict[str, tuple[int, ...]]
"""The columns of each role; a role of hard negatives may have several."""

_Triplet = tuple[int, int, tuple[int, ...]]


# ------------------------------------------------------------------ single texts
def find_text(facts: Facts, among: Sequence[int]) -> int:
    """Return the column that can hold the texts: by a strong name, a weak name, or its content."""
    strong = [at for at in facts.strong("anchor") if at in among]
    if len(strong) == 1:
        return strong[0]
    if strong:
        listed = ", ".join(facts.grid.names[at] for at in strong)
        raise UndecidedError(f"{listed}: which one holds the texts?", _each_as_text(strong))
    for name in names.WEAK_TEXTS:
        for at in among:
            if facts.names[at] == name and facts.fits(at):
                return at
    for kinds in (TEXT_KINDS, (Kind.WORD,)):
        texts = facts.left_over(kinds, among)
        if len(texts) == 1:
            return texts[0]
        if texts:
            what = f"{len(texts)} columns hold texts, one is needed"
            raise UndecidedError(what, _each_as_text(texts))
    return _text_of_last_resort(facts, among)


def _text_of_last_resort(facts: Facts, among: Sequence[int]) -> int:
    """Return a column with a usual name that is empty or repeats a few words, or the only one."""
    usual = (*names.WEAK_TEXTS, *names.STRONG["anchor"])
    for at in among:
        repeats = facts.kinds[at] is Kind.LABEL and not facts.is_judging(at)
        if facts.names[at] in usual and (repeats or facts.kinds[at] is Kind.EMPTY):
            return at
    if len(facts.names) == 1:
        return 0
    raise UndecidedError("no column looks like texts", _each_as_text(among))


def _each_as_text(columns: Sequence[int]) -> list[Choice]:
    return [Choice({"text": at}) for at in columns]


# ------------------------------------------------------------------ the two sides of a pair
def find_sides(facts: Facts, job: Job, named: Mapping[str, int]) -> Found:
    """Return the columns of both sides, and of hard negatives where they are known.

    ``named`` are the columns that the user gave, by role.
    """
    return _Sides(facts, job).find(named)


class _Sides:
    def __init__(self, facts: Facts, job: Job) -> None:
        self.facts, self.job = facts, job
        self.left, self.right = job.sides

    def find(self, named: Mapping[str, int]) -> Found:
        anchor = positive = None
        for role, at in named.items():
            if role in ("anchor", "left", "text"):
                anchor = at
            elif role in ("positive", "right"):
                positive = at
        negatives: tuple[int, ...] = ()
        if "hard_negative" in named:
            negatives = (named["hard_negative"],)

        if anchor is None or positive is None:
            if self._is_set():
                return {SET: (0,)}
            anchor, positive, found_negatives = self._pair(anchor, positive)
            negatives = negatives or found_negatives
        found: Found = {self.left: (anchor,), self.right: (positive,)}
        if negatives:
            found["hard_negative"] = negatives
        return found

    def _is_set(self) -> bool:
        grid = self.facts.grid
        is_list = list(grid.names) in ([SET], ["texts"]) and grid.kinds == (Kind.LIST,)
        return is_list and self.job in (Job.ROWS, Job.LINT)

    def _pair(self, anchor: int | None, positive: int | None) -> _Triplet:
        facts = self.facts
        negatives = facts.hard_negatives()
        anchors = [anchor] if anchor is not None else facts.strong("anchor")
        positives = [positive] if positive is not None else facts.strong("positive")
        anchors = [at for at in anchors if at not in (*negatives, positive)]
        positives = [at for at in positives if at not in (*negatives, anchor)]

        # Strong names on both sides; of several, the two that go together.
        if anchors and positives:
            couples = [pair for pair in product(anchors, positives) if facts.are_couple(*pair)]
            if len(couples) == 1:
                return (*couples[0], negatives)
            return self._only(anchors, self.left), self._only(positives, self.right), negatives

        # A strong name on one side.
        taken = {*anchors, *positives, *negatives}
        if anchors:
            if len(anchors) == 2 and anchor is None and facts.are_couple(*anchors):
                return anchors[0], anchors[1], negatives
            return anchors[0], self._other("positive", taken, anchors), negatives
        if positives:
            return self._other("anchor", taken, positives), positives[0], negatives
        return self._unnamed_pair(negatives)

    def _other(self, side: str, taken: set[int], known: Sequence[int]) -> int:
        """Return the side of a pair whose other side is known: by a weak name, or what is left."""
        if len(known) != 1:
            raise self._which_pair(sorted(taken))
        facts = self.facts
        not_taken = [at for at in facts.every if at not in taken]
        free = [at for at in not_taken if facts.fits(at)]
        for name in names.WEAK_SIDES[side]:
            weak = [at for at in free if facts.names[at] == name]
            if weak and not (name == "source" and len(free) > len(weak)):
                return weak[0]
        for kinds in (TEXT_KINDS, (Kind.WORD,)):
            left_over = facts.left_over(kinds, free)
            if len(left_over) == 1:
                return left_over[0]
            if left_over:
                raise self._which_pair([*known, *left_over])
        for at in not_taken:  # one text in all of the first rows, such as a premise
            is_constant = facts.kinds[at] is Kind.LABEL and len(facts.values(at)) < 2
            if is_constant and facts.names[at] in names.WEAK_SIDES[side]:
                return at
        raise self._which_pair(sorted(taken))

    def _unnamed_pair(self, negatives: tuple[int, ...]) -> _Triplet:
        facts = self.facts
        free = [at for at in facts.every if at not in negatives]
        fitting = [at for at in free if facts.fits(at)]
        couples = [pair for pair in combinations(fitting, 2) if facts.are_couple(*pair)]
        couples = couples or self._weak_couples(fitting)
        if len(couples) == 1:
            return (*couples[0], negatives)

        texts = facts.left_over(TEXT_KINDS, free)
        if len(texts) < 2:
            texts = sorted([*texts, *facts.left_over((Kind.WORD,), free)])
        if len(texts) == 2:
            return texts[0], texts[1], negatives
        if len(texts) == 3 and not negatives and not facts.grid.is_named:
            return texts[0], texts[1], (texts[2],)
        raise self._which_pair(texts)

    def _weak_couples(self, fitting: Sequence[int]) -> list[tuple[int, int]]:
        couples = []
        for left, right in names.WEAK_COUPLES:
            lefts = [at for at in fitting if self.facts.names[at] == left]
            rights = [at for at in fitting if self.facts.names[at] == right]
            if len(lefts) == len(rights) == 1:
                couples.append((lefts[0], rights[0]))
        return couples

    def _only(self, columns: Sequence[int], role: str) -> int:
        if len(columns) == 1:
            return columns[0]
        listed = ", ".join(self.facts.grid.names[at] for at in columns)
        texts = sorted({*self.facts.strong("anchor"), *self.facts.strong("positive")})
        raise UndecidedError(f"{listed}: which one is the {role}?", self._choices(texts))

    def _which_pair(self, texts: Sequence[int]) -> UndecidedError:
        if len(texts) < 2:
            return self._too_few_texts()
        choices = []
        if len(texts) == 3 and "hard_negative" in self.facts.given.roles:
            roles = (self.left, self.right, "hard_negative")
            choices.append(Choice(dict(zip(roles, texts, strict=True)), "a triplet"))
        choices += self._choices(texts)
        wanted = "two are needed"
        if self.job is Job.ROWS:
            wanted = "a pair has two and a triplet three"
        return UndecidedError(f"{len(texts)} columns hold texts, {wanted}", choices)

    def _too_few_texts(self) -> UndecidedError:
        facts = self.facts
        filled = [at for at in facts.every if facts.kinds[at] is not Kind.EMPTY]
        what = "a single column, two texts are needed"
        if len(filled) > 1:
            what = "no two columns look like texts"
        # Numbers, ids and dates are no texts; a few words again and again may be.
        likely = [at for at in filled if facts.fits(at) or self._repeats_words(at)]
        choices = self._choices(likely[:3])
        others = () if choices else ("give a table with two columns of texts",)
        return UndecidedError(what, choices, others)

    def _repeats_words(self, at: int) -> bool:
        return self.facts.kinds[at] is Kind.LABEL and not self.facts.is_judging(at)

    def _choices(self, texts: Sequence[int]) -> list[Choice]:
        pairs = list(combinations(texts, 2))[: MOST_CHOICES - 2]
        return [Choice({self.left: first, self.right: second}, "a pair") for first, second in pairs]
