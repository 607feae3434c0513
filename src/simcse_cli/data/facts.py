"""What is known of the columns of a table: their names, their kinds, and what each can hold."""

from collections.abc import Collection, Iterable
from functools import cached_property

from simcse_cli.data import names
from simcse_cli.data.given import Given
from simcse_cli.data.grid import Grid
from simcse_cli.data.kinds import Kind, cell_text, is_judgement, is_missing, to_number
from simcse_cli.data.names import fold

MOST_VALUES = 5  # different words of a column that may judge pairs
NLI_NUMBERS = frozenset((-1, 0, 1, 2))
"""The numbers of the classes of NLI corpora, and -1 for no label."""
_MOST_CLASSES = 20
_LONGEST_TYPED = 40
_LEAST_REPEATING = 10  # texts needed to tell that they repeat each other
_OPENING_WORDS = 4  # at the beginning of texts; all texts of a licence share them


class ColumnFacts:
    """A column, and what its name and the first rows tell of it.

    Attributes:
        at: its place in the table, from 0.
        title: its name as in the file, or its number from 1.
        name: its title as ``fold`` spells it, for comparison; "" in a table without names.
    """

    def __init__(self, grid: Grid, at: int) -> None:
        self.at = at
        self.title = grid.names[at]
        self.is_named = grid.is_named
        self.name = fold(self.title) if grid.is_named else ""
        self.kind = grid.kinds[at]
        self._grid = grid

    def __str__(self) -> str:
        return f"column {self.title if self.is_named else self.at + 1}"

    @property
    def typed(self) -> str:
        """What to type for the column: its name, or its number if the name is hard to type."""
        title = self.title
        is_short = 0 < len(title) <= _LONGEST_TYPED
        is_plain = title == title.strip() and set(title).isdisjoint(",=\"'\\\n")
        return title if self.is_named and is_short and is_plain else str(self.at + 1)

    # -------------------------------------------------------------- by name
    @property
    def describes(self) -> bool:
        return self.name in names.DESCRIBING

    @property
    def is_topic(self) -> bool:
        """Tell whether the name is that of a topic or description, so the column judges no pair."""
        return self.describes or self.name in names.TOPICS

    @property
    def name_allows_texts(self) -> bool:
        """Tell whether the name is not that of a description, of scores or of labels."""
        return not self.describes and self.name not in (*names.SCORES, *names.LABELS)

    # -------------------------------------------------------------- by content
    @cached_property
    def texts(self) -> list[str]:
        """The first cells of the column, as texts."""
        return list(map(cell_text, self._grid.columns[self.at]))

    @cached_property
    def values(self) -> set[str]:
        """The distinct values of the first cells, without missing ones."""
        return {text.strip() for text in self.texts if not is_missing(text)}

    @property
    def can_hold_texts(self) -> bool:
        return self.kind in (Kind.TEXT, Kind.LIST, Kind.WORD)

    @property
    def can_hold_texts_if_named(self) -> bool:
        """Tell whether the column can hold texts if its name is that of a column of texts.

        With such a name, a few words that recur are enough.
        """
        return self.can_hold_texts or (self.repeats_words and len(self.values) > 1)

    @property
    def repeats_words(self) -> bool:
        """Tell whether the column holds labels, and one of them is a word other than yes and no."""
        return self.kind is Kind.LABEL and not is_judgement(self.texts)

    @property
    def repeats_itself(self) -> bool:
        """Tell whether ten texts or more all begin alike, or recur often, as licences do."""
        texts = [text for text in self.texts if not is_missing(text)]
        if len(texts) < _LEAST_REPEATING:
            return False
        openings = {tuple(text.split()[:_OPENING_WORDS]) for text in texts}
        return len(openings) == 1 or 4 * len(self.values) <= len(texts)

    @property
    def is_judge(self) -> bool:
        """Tell whether the column may say which rows are pairs: scores, 0 and 1, or a few words."""
        if self.is_topic:
            return False
        if self.kind is not Kind.LABEL:
            return self.kind is Kind.SCORE
        # Labels need two values, unless there is only one row.
        is_single_row = len(self.texts) == 1
        return len(self.values) <= MOST_VALUES and (len(self.values) > 1 or is_single_row)

    @property
    def may_judge_later(self) -> bool:
        """Tell whether the column has one value in the first rows, and may judge later ones."""
        return self.kind is Kind.LABEL and len(self.values) == 1 and not self.is_topic

    @property
    def are_numbers(self) -> bool:
        return bool(self.values) and None not in map(to_number, self.values)

    @property
    def are_nli_numbers(self) -> bool:
        """Tell whether all values are 0, 1 or 2, or -1 for no label, as in NLI corpora."""
        return self.are_numbers and set(map(to_number, self.values)) <= NLI_NUMBERS

    @property
    def are_two_classes(self) -> bool:
        """Tell whether all values are 0 or 1, or -1 for no label."""
        return self.are_nli_numbers and 2 not in map(to_number, self.values)

    @property
    def can_hold_scores(self) -> bool:
        """Tell whether the column may hold scores; labels in words, ids and indexes do not."""
        if self.kind is Kind.ID or names.is_row_id(self.name):
            return False
        return self.are_numbers or self.kind is not Kind.LABEL

    @property
    def are_few_whole_numbers(self) -> bool:
        """Tell whether a column of scores has at most 20 distinct values, all of them whole."""
        if len(self.values) > _MOST_CLASSES:
            return False
        # All values of such a column are numbers, so ``None`` only matters to the type checker.
        numbers = map(to_number, self.values)
        return all(number is None or number % 1 == 0 for number in numbers)


class Facts:
    """The columns of a table, and what the user said about it."""

    def __init__(self, grid: Grid, given: Given) -> None:
        self.grid = grid
        self.given = given
        self.columns = [ColumnFacts(grid, at) for at in range(len(grid.names))]

    @cached_property
    def named(self) -> dict[str, ColumnFacts]:
        """The columns that the user named or numbered, by role; missing ones are left out."""
        columns = {}
        for role, name in self.given.columns.items():
            column = self.find(name)
            if column is not None:
                columns[role] = column
        return columns

    def find(self, name: str) -> ColumnFacts | None:
        """Return the column that a user means by a name or a number; None if there is none."""
        for column in self.columns:
            if column.is_named and column.title == name:
                return column
        # Otherwise a name that differs only in case, spaces or hyphens.
        folded = fold(name)
        if folded and (same := by_name(self.columns, folded)):
            return same[0]
        if name.isdecimal() and 1 <= int(name) <= len(self.columns):
            return self.columns[int(name) - 1]
        return None

    def all_but(self, taken: Collection[ColumnFacts | None]) -> list[ColumnFacts]:
        return [column for column in self.columns if column not in taken]

    def fitting(self, taken: Collection[ColumnFacts] = ()) -> list[ColumnFacts]:
        """Return the columns that can hold texts and are not taken."""
        return [column for column in self.all_but(taken) if column.can_hold_texts]

    def strong(self, role: str) -> list[ColumnFacts]:
        """Return the columns whose name alone makes them ``role``, the anchor or the positive."""
        named = [column for column in self.columns if column.name in names.STRONG[role]]
        fitting = [column for column in named if column.can_hold_texts_if_named]
        # The name of the role itself counts more than other names.
        if exact := by_name(fitting, role):
            return exact
        if len(fitting) > 1:  # a prompt is then an instruction beside the text
            fitting = [column for column in fitting if column.name != "prompt"]
        if fitting:
            return fitting
        # Otherwise, take columns that did not fit because they are empty or repeat one text.
        return [column for column in named if column.repeats_words or column.kind is Kind.EMPTY]

    def hard_negatives(self) -> list[ColumnFacts]:
        negatives = []
        for column in self.columns:
            if names.is_hard_negative(column.name) and column.can_hold_texts_if_named:
                negatives.append(column)
        return negatives


def by_name(columns: Collection[ColumnFacts], *wanted: str) -> list[ColumnFacts]:
    """Return the columns with one of some names, which must be as ``fold`` returns them.

    The columns come in the order of the names.
    """
    return [column for name in wanted for column in columns if column.name == name]


def texts_or_words(columns: Iterable[ColumnFacts]) -> list[ColumnFacts]:
    """Return the columns of texts or, if there are none, the columns of words.

    Columns with usual names of scores, labels or descriptions are left out.
    """
    fitting = [column for column in columns if column.can_hold_texts and column.name_allows_texts]
    texts = [column for column in fitting if column.kind is not Kind.WORD]
    return texts or fitting
