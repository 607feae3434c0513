"""Show texts cut short, and the first rows of a table within a few hundred bytes."""

import shlex
from collections.abc import Sequence
from pathlib import Path

from simcse_cli.data.text import one_line

SHOWN_LENGTH = 120  # characters of a text of the user in a table of results
_ROWS_SHOWN = 3
_COLUMNS_SHOWN = 9
_ROW_LENGTH = 240  # characters
_LONGEST_CELL = 40


def shorten(text: str, length: int) -> str:
    text = one_line(text)
    return text if len(text) <= length else f"{text[: length - 1]}…"


def show_rows(rows: Sequence[Sequence[str]], names: Sequence[str] = ()) -> str:
    """Return rows as lines of numbered cells, below the names of the columns, if any."""
    n_columns = max(map(len, rows), default=0)
    n_shown = min(n_columns, _COLUMNS_SHOWN)
    # The cells of a row share its length; each gets 12 to 40 characters.
    length = max(12, min(_LONGEST_CELL, _ROW_LENGTH // max(1, n_shown)))

    def numbered(cells: Sequence[str], sign: str) -> str:
        shown = []
        for number, cell in enumerate(cells[:n_shown], start=1):
            shown.append(f"{number}{sign} {shorten(cell, length)}")
        if n_columns > n_shown:
            shown.append(f"and {n_columns - n_shown} more")
        return " | ".join(shown)

    # Without names there is room for another row.
    lines = [f"   columns: {numbered(names, '')}"] if names else []
    n_rows = _ROWS_SHOWN if names else _ROWS_SHOWN + 1
    for row in rows[:n_rows]:
        lines.append(f"   {numbered(row, ':')}")
    return "\n".join(lines)


def take_out_hint(source: str, option: str, column: str) -> str:
    """Return a hint to write a column of a table to a file, for an option that takes only texts."""
    output = shlex.quote(f"{Path(source).stem}.txt")
    table = shlex.quote(source)
    command = f"simcse prepare sentences {table} --column {shlex.quote(column)} -o {output}"
    return f"take one out with `{command}`, then {option} {output}"
