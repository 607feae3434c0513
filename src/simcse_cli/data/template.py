"""Texts made of several columns of a table, as in ``{subject} {body}``."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from simcse_cli.errors import UsageError

_COLUMN = re.compile(r"\{([^{}]+)\}")
_SEPARATOR = re.compile(r"^\W+")


@dataclass(frozen=True)
class Template:
    """The columns of a text in order, the words before each of them, and the words at the end.

    Example:
        >>> mail = Template.parse("{subject}: {body}")
        >>> mail.fill(["Refund", "Where is it?"])
        'Refund: Where is it?'
        >>> mail.fill(["", "Where is it?"]), mail.fill(["", ""])
        ('Where is it?', '')
    """

    columns: tuple[str, ...]
    before: tuple[str, ...]
    end: str

    @classmethod
    def parse(cls, text: str) -> "Template":
        # The pieces are words and names of columns in turn.
        *pieces, end = _COLUMN.split(text)
        if not pieces:
            need = "need names of columns in braces, as in '{subject} {body}'"
            raise UsageError(f"{text!r}; {need}", option="--text")
        return cls(columns=tuple(pieces[1::2]), before=tuple(pieces[::2]), end=end)

    def fill(self, cells: Sequence[str]) -> str:
        """Return the text of a row; an empty cell is left out with the words before it.

        If the last cell is empty, the words at the end are left out, too. If the first cells are
        empty, the text does not begin with a separator. If all cells are empty, so is the text.
        """
        text = ""
        for number, (before, cell) in enumerate(zip(self.before, cells, strict=True)):
            if not cell.strip():
                continue
            if number and not text:
                before = _SEPARATOR.sub("", before)
            text += before + cell
        if cells[-1].strip():
            text += self.end
        return text.strip()
