import zipfile

import pytest

from simcse_cli.data.given import Given, Told
from simcse_cli.data.jobs import Job
from simcse_cli.data.table import Table
from simcse_cli.errors import DataError, MissingExtraError
from simcse_cli.progress import SilentProgress

NS = "http://schemas.openxmlformats.org"
BOOK = f"""<workbook xmlns="{NS}/spreadsheetml/2006/main" xmlns:r="{NS}/officeDocument/2006/relationships"><sheets>
<sheet name="Notes" sheetId="1" state="hidden" r:id="rId1"/><sheet name="Empty" sheetId="2" r:id="rId2"/>
<sheet name="Tickets" sheetId="3" r:id="rId3"/></sheets></workbook>"""
RELATIONS = f'<Relationships xmlns="{NS}/package/2006/relationships">%s</Relationships>'
RELATION = f'<Relationship Id="%s" Type="{NS}/officeDocument/2006/relationships/%s" Target="%s"/>'


def sheet(rows, merged=()):
    """Return a sheet as Excel writes it: texts in place, numbers bare, merged cells by ranges."""
    cells = "".join(
        f'<row r="{n}">'
        + "".join(
            f'<c r="{chr(65 + i)}{n}" t="inlineStr"><is><t>{cell}</t></is></c>'
            if isinstance(cell, str)
            else f'<c r="{chr(65 + i)}{n}"><v>{cell}</v></c>'
            for i, cell in enumerate(row)
            if cell is not None
        )
        + "</row>"
        for n, row in enumerate(rows, start=1)
        if row
    )
    ranges = "".join(f'<mergeCell ref="{cells}"/>' for cells in merged)
    return (
        "<worksheet "
        f'xmlns="{NS}/spreadsheetml/2006/main"><sheetData>{cells}</sheetData>'
        f"<mergeCells>{ranges}</mergeCells></worksheet>"
    )


def write_workbook(path, *sheets, merged=()):
    with zipfile.ZipFile(path, "w") as book:
        book.writestr(
            "[Content_Types].xml", f'<Types xmlns="{NS}/package/2006/content-types"></Types>'
        )
        book.writestr(
            "_rels/.rels", RELATIONS % RELATION % ("rId1", "officeDocument", "xl/workbook.xml")
        )
        book.writestr("xl/workbook.xml", BOOK)
        links = [RELATION % (f"rId{n}", "worksheet", f"worksheets/sheet{n}.xml") for n in (1, 2, 3)]
        book.writestr("xl/_rels/workbook.xml.rels", RELATIONS % "".join(links))
        for n, rows in enumerate(sheets, start=1):
            book.writestr(f"xl/worksheets/sheet{n}.xml", sheet(rows, merged))


def test_a_workbook_gives_the_first_sheet_that_one_sees(tmp_path):
    pytest.importorskip("python_calamine")
    rows = [["Nr", "Betreff", "score"], [1, "Drucker: geht nicht", 0.5], [], [2, "Maus", None]]
    write_workbook(tmp_path / "a.xlsx", [["hidden", "sheet"]], [], rows)
    assert list(Table(tmp_path / "a.xlsx", Job.TEXTS).records()) == [
        (2, {"Nr": "1", "Betreff": "Drucker: geht nicht", "score": "0.5"}),
        (4, {"Nr": "2", "Betreff": "Maus", "score": ""}),
    ]
    given = Given().of_texts("betreff")
    assert list(Table(tmp_path / "a.xlsx", Job.TEXTS, given).texts()) == [
        "Drucker: geht nicht",
        "Maus",
    ]


def test_a_title_page_is_not_taken_for_the_table(tmp_path):
    pytest.importorskip("python_calamine")
    rows = [["Nr", "Betreff"], [1, "Drucker"], [2, "Maus"]]
    write_workbook(tmp_path / "a.xlsx", [], [["Export vom 27.11."]], rows)
    with pytest.raises(DataError, match="Empty has one column, the sheet Tickets has 2") as e:
        list(Table(tmp_path / "a.xlsx", Job.TEXTS).texts())
    assert e.value.hint == "--sheet Tickets, or --sheet Empty"
    given = Given(sheet="Tickets").of_texts("Betreff")
    assert list(Table(tmp_path / "a.xlsx", Job.TEXTS, given).texts()) == ["Drucker", "Maus"]
    given = Given(sheet="Empty").of_texts(None)
    assert list(Table(tmp_path / "a.xlsx", Job.TEXTS, given).texts()) == ["Export vom 27.11."]
    with pytest.raises(DataError, match="no sheet Ticket with cells") as e:
        list(Table(tmp_path / "a.xlsx", Job.TEXTS, Given(sheet="Ticket")).texts())
    assert e.value.hint == "did you mean Tickets?"


def test_the_sheet_with_the_named_column_is_asked_for(tmp_path):
    pytest.importorskip("python_calamine")
    rows = [["Nr", "Betreff"], [1, "Drucker"]]
    write_workbook(tmp_path / "a.xlsx", [], [["Nr", "Ort"], [1, "Ulm"]], rows)
    with pytest.raises(DataError, match="has no column Betreff, which the sheet Tickets has"):
        list(Table(tmp_path / "a.xlsx", Job.TEXTS, Given().of_texts("Betreff")).texts())
    assert list(Table(tmp_path / "a.xlsx", Job.TEXTS, Given().of_texts("Ort")).texts()) == ["Ulm"]


def test_merged_cells_have_their_value_in_each_row(tmp_path):
    pytest.importorskip("python_calamine")
    rows = [["text", "topic", None], ["One.", "a", 1], ["Two.", None, 2], ["Three.", "b", 3]]
    merged = ["B1:C1", "B2:B3", "A5:A6", "Z1:Z2"]  # the last two lie beyond the cells
    write_workbook(tmp_path / "a.xlsx", [], [], rows, merged=merged)
    progress = SilentProgress()
    lines = []
    progress.info = lines.append
    given = Given(told=Told(progress)).of_texts("text")
    table = Table(tmp_path / "a.xlsx", Job.TEXTS, given)
    assert [cells["topic"] for _, cells in table.records()] == ["a", "a", "b"]
    assert "1 merged cell has the value of the cell above" in lines[0]


def test_a_damaged_workbook_is_named(tmp_path):
    pytest.importorskip("python_calamine")
    (tmp_path / "a.xlsx").write_bytes(b"PK no workbook")
    with pytest.raises(DataError, match=r"a\.xlsx"):
        list(Table(tmp_path / "a.xlsx", Job.TEXTS).records())


def test_without_its_package_a_workbook_can_be_saved_as_csv(tmp_path, monkeypatch):
    monkeypatch.setattr("simcse_cli.errors.find_spec", lambda name: None)
    with pytest.raises(
        MissingExtraError, match=r"save it as CSV UTF-8.*python-calamine.*simcse-cli\[excel\]"
    ):
        list(Table(tmp_path / "a.xlsx", Job.TEXTS).records())


def test_cells_that_are_too_far_apart_are_refused_before_memory_runs_out(tmp_path):
    pytest.importorskip("python_calamine")
    write_workbook(tmp_path / "a.xlsx", [["text"]], [], [["text"], ["One."]])

    def texts_with(cell):
        """Return the texts of the workbook with one more row, that of a cell."""
        rows = sheet([["text"], ["One."]])
        more = rows.replace("</sheetData>", f'<row r="1048576">{cell}</row></sheetData>')
        with (
            zipfile.ZipFile(tmp_path / "a.xlsx") as book,
            zipfile.ZipFile(tmp_path / "b.xlsx", "w") as copy,
        ):
            for name in book.namelist():
                copy.writestr(name, more if name.endswith("sheet3.xml") else book.read(name))
        return list(Table(tmp_path / "b.xlsx", Job.TEXTS).texts())

    with pytest.raises(DataError, match="sheet Tickets: the cells from A1 to XFD1048576 are 17,17"):
        texts_with('<c r="XFD1048576"><v>1</v></c>')
    # A cell that only has a format takes no memory.
    assert texts_with('<c r="XFD1048576" s="1"/>') == ["One."]
