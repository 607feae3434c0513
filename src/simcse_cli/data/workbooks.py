"""Read the sheets of workbooks: ``.xlsx``, ``.xlsm``, ``.xls`` and ``.ods``."""

import re
import zipfile
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from posixpath import join
from typing import IO, Any, BinaryIO
from xml.etree import ElementTree

from simcse_cli.errors import DataError, require_extra
from simcse_cli.files.inputs import open_input
from simcse_cli.files.schema import foreign_format

_Place = tuple[int, int]  # row and column of a cell, from 0

_MOST_CELLS = 1 << 27  # of a sheet, full or empty; they take 4 GiB
_BLOCK = 1 << 20
_LONGEST_TAG = 1000
# A cell with content; python-calamine passes over others, such as <c r="XFD1" s="4"/>.
_FAR_CELL = re.compile(rb'<c r="([A-Z]{2,3})\d+"[^>]*(?<!/)>')  # up to Z, none is too far
_LAST_CELL = re.compile(rb'.*<c r="[A-Z]+(\d+)"[^>]*(?<!/)>', re.DOTALL)


@dataclass(frozen=True)
class Sheet:
    """The cells of a sheet from A1 on, by row; an empty cell is an empty text.

    ``n_filled`` counts the merged cells that have got their value from a cell above.
    """

    rows: list[list[Any]]
    n_filled: int = 0


def read_sheets(source: Path | str) -> dict[str, Sheet]:
    """Return the visible sheets of a workbook that are not empty, by their names."""
    purpose = f"reading {source} (or save it as CSV UTF-8 in Excel, which needs no package)"
    require_extra("python_calamine", purpose)
    from python_calamine import CalamineWorkbook, SheetVisibleEnum  # only one format needs it

    sheets: dict[str, Sheet] = {}
    with open_input(source) as stream, foreign_format(source, "a workbook without a password"):
        book = CalamineWorkbook.from_filelike(stream)
        visible = []
        for entry in book.sheets_metadata:
            if entry.visible is SheetVisibleEnum.Visible:
                visible.append(entry.name)
        _refuse_far_cells(source, stream, visible)
        for name in visible:
            sheet = book.get_sheet_by_name(name)
            rows = sheet.to_python(skip_empty_area=False)
            if rows:
                sheets[name] = Sheet(rows, _fill_merged(rows, sheet.merged_cell_ranges or ()))
    return sheets


def _fill_merged(rows: list[list[Any]], ranges: Iterable[tuple[_Place, _Place]]) -> int:
    """Copy the value of merged cells from their first row to the others; return how many got it.

    Only the first column of merged cells is filled: a title across several columns is one cell.
    """
    n_filled = 0
    for (first, column), (last, _) in ranges:
        if first >= len(rows) or column >= len(rows[first]):
            continue  # nothing but empty cells
        for row in rows[first + 1 : last + 1]:
            row[column] = rows[first][column]
            n_filled += 1
    return n_filled


def sheet_rows(sheet: Sheet) -> Iterator[tuple[int, list[str]]]:
    """Yield the number and the cells of each row that is not empty."""
    for number, row in enumerate(sheet.rows, start=1):
        if any(cell != "" for cell in row):
            yield number, list(map(_cell_text, row))


def _cell_text(cell: Any) -> str:
    # Workbooks store whole numbers as floats, too; 1 must not become 1.0.
    if isinstance(cell, float) and cell.is_integer():
        return str(int(cell))
    return str(cell)


# ------------------------------------------------------------------ cells that are far apart
def _refuse_far_cells(source: Path | str, stream: BinaryIO, visible: Collection[str]) -> None:
    """Raise DataError if a cell of an ``.xlsx`` file is so far from A1 that memory would run out.

    python-calamine makes all cells up to the last one, and ends the process if they do not fit.
    """
    if not zipfile.is_zipfile(stream):
        return
    with zipfile.ZipFile(stream) as book:
        for name, part in _parts_of_sheets(book).items():
            if name not in visible:
                continue
            with book.open(part) as content:
                column, row = _last_place(content)
            # Letters are the digits of a number with the base 26, from 1 for A.
            n_columns = 0
            for letter in column:
                n_columns = 26 * n_columns + ord(letter) - ord("A") + 1
            if n_columns * row > _MOST_CELLS:
                raise DataError(
                    f"{source}, sheet {name}: the cells from A1 to {column}{row} are "
                    f"{n_columns * row:,}, need at most {_MOST_CELLS:,}",
                    hint="delete the cells far from the table, or save the table as CSV UTF-8",
                )


def _parts_of_sheets(book: zipfile.ZipFile) -> dict[str, str]:
    """Return, by the names of the sheets, their files in an ``.xlsx`` file; {} for any other."""
    parts = set(book.namelist())
    links_part = "xl/_rels/workbook.xml.rels"
    if not {"xl/workbook.xml", links_part} <= parts:
        return {}
    # A target is an absolute path or relative to ``xl``; names of parts have no slash in front.
    targets: dict[str | None, str] = {}
    for link in ElementTree.fromstring(book.read(links_part)):
        targets[link.get("Id")] = join("/xl", link.get("Target", ""))[1:]
    part_of_sheet: dict[str, str] = {}
    for sheet in ElementTree.fromstring(book.read("xl/workbook.xml")).iterfind(".//{*}sheet"):
        for key, value in sheet.items():
            # The key is ``r:id`` with the address of its namespace.
            if key.endswith("}id") and targets.get(value) in parts:
                part_of_sheet[sheet.get("name", "")] = targets[value]
    return part_of_sheet


def _last_place(content: IO[bytes]) -> tuple[str, int]:
    """Return the letters of the last column and the number of the last row that have content.

    The letters are "" if no column behind Z has content.
    """
    column = ""
    row = 0
    block = b""
    while more := content.read(_BLOCK):
        block = block[-_LONGEST_TAG:] + more  # a tag may begin in one block and end in the next
        for letters in set(_FAR_CELL.findall(block)):
            # AAA comes behind ZZ.
            column = max(column, letters.decode(), key=lambda name: (len(name), name))
        if last := _LAST_CELL.match(block):
            row = int(last[1])
    return column, row
