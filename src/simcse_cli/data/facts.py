"""What is known of the columns of a table: their names, their kinds, and what each can hold."""

from collections.abc import Sequence

from simcse_cli.data import names
from simcse_cli.data.given import Given
from simcse_cli.data.grid import Grid
from simcse_cli.data.kinds import Kind, is_judgement, is_missing, to_number
from simcse_cli.data.names import fold

TEXT_KINDS = (Kind.TEXT, Kind.LIST)
_MOST_VALUES = 5  # different words of a column that may judge pairs
_MOST_CLASSES = 20


class Facts:
    """Facts about columns, which are given by their places from 0."""

    def __init__(self, grid: Grid, given: Given) -> None:
        self.grid, self.given = grid, given
        self.names = [fold(name) if grid.is_named else "" for name in grid.names]
        self.kinds = grid.kinds
        self.every = range(len(self.names))

    def find(self, name: str) -> int | None:
        """Return the column that a user means by a name or a number."""
        for at, own in enumerate(self.grid.names):
            if self.grid.is_named and own == name:
                return at
        folded = fold(name)
        if folded in self.names:
            return self.names.index(folded)
        if name.isdigit() and 1 <= int(name) <= len(self.names):
            return int(name) - 1
        return None

    def describe(self, at: int) -> str:
        return f"column {self.grid.names[at]}" if self.grid.is_named else f"column {at + 1}"

    # -------------------------------------------------------------- by name
    def strong(self, role: str) -> list[int]:
        """Return the columns whose names alone say that they hold the texts of a role."""
        wanted = names.STRONG[role]
        named = [at for at in self.every if self.names[at] in wanted]
        found = [at for at in named if self.fits_strongly(at)]
        exact = [at for at in found if self.names[at] == role]
        if len(found) > 1 and not exact:  # an instruction beside the text it is about
            found = [at for at in found if self.names[at] != "prompt"]
        if found or role == "hard_negative":
            return exact or found
        # One text in all of the first rows, or none.
        found = [at for at in named if self.kinds[at] is Kind.EMPTY]
        found += [at for at in named if self.kinds[at] is Kind.LABEL and not self.is_judging(at)]
        return sorted(found)

    def hard_negatives(self) -> tuple[int, ...]:
        if not self.grid.is_named:
            return ()
        named = [at for at in self.every if names.is_hard_negative(self.grid.names[at])]
        return tuple(at for at in named if self.fits_strongly(at))

    def are_couple(self, first: int, second: int) -> bool:
        own = self.grid.names
        return self.grid.is_named and names.are_couple(own[first], own[second])

    def describes(self, at: int) -> bool:
        return self.names[at] in names.DESCRIBING

    def is_left_over(self, at: int) -> bool:
        """Tell whether a column may be a text that no name tells of."""
        return not self.describes(at) and self.names[at] not in (*names.SCORES, *names.LABELS)

    # -------------------------------------------------------------- by content
    def fits(self, at: int) -> bool:
        """Tell whether a column can hold texts."""
        return self.kinds[at] in (*TEXT_KINDS, Kind.WORD)

    def fits_strongly(self, at: int) -> bool:
        """Tell whether a column can hold texts under a strong name: a few texts again and again."""
        if self.kinds[at] is Kind.LABEL:
            return not self.is_judging(at) and len(self.values(at)) > 1
        return self.fits(at)

    def left_over(self, kinds: Sequence[Kind], among: Sequence[int]) -> list[int]:
        return [at for at in among if self.kinds[at] in kinds and self.is_left_over(at)]

    def values(self, at: int) -> set[str]:
        """Return the different cells of the first rows; missing cells are none."""
        return {text.strip() for text in self.grid.texts(at) if not is_missing(text)}

    def is_judging(self, at: int) -> bool:
        return is_judgement(self.grid.texts(at))

    def is_judge(self, at: int) -> bool:
        """Tell whether a column may say which rows are pairs: scores, 0 and 1, or a few words."""
        if self.describes(at) or self.names[at] in names.TOPICS:
            return False
        if self.kinds[at] is not Kind.LABEL:
            return self.kinds[at] is Kind.SCORE
        n_values = len(self.values(at))
        is_single_row = len(self.grid.columns[at]) == 1
        return n_values <= _MOST_VALUES and (n_values > 1 or is_single_row)

    def are_numbers(self, at: int) -> bool:
        values = self.values(at)
        return bool(values) and all(to_number(text) is not None for text in values)

    def are_few_whole_numbers(self, at: int) -> bool:
        values = self.values(at)
        if len(values) > _MOST_CLASSES:
            return False
        return all((to_number(text) or 0) % 1 == 0 for text in values)

    def is_varied(self, at: int) -> bool:
        return self.kinds[at] not in (Kind.EMPTY, Kind.TEXT, Kind.LIST)
