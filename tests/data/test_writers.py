import csv
import gzip

import pytest

from simcse_cli.data.readers import iter_records
from simcse_cli.data.writers import open_rows
from simcse_cli.errors import OutputError

ROWS = [("A dog, running.", 'He said "no".'), ("ç", '"all quoted"')]
COLUMNS = ("anchor", "positive")


@pytest.mark.parametrize("name", ["a.csv", "a.tsv", "a.jsonl", "a.csv.gz", "a.jsonl.gz"])
def test_open_rows_writes_what_readers_read(tmp_path, name):
    with open_rows(tmp_path / name, COLUMNS) as write:
        for row in ROWS:
            write(row)
    assert [tuple(record.values()) for _, record in iter_records(tmp_path / name)] == ROWS


def test_open_rows_writes_plain_lines(tmp_path):
    with open_rows(tmp_path / "a.txt", ("text",)) as write:
        write(("a",))
        write(("b",))
    assert (tmp_path / "a.txt").read_bytes() == b"a\nb\n"


def test_open_rows_gives_the_same_gzip_bytes(tmp_path):
    for name in ("a.txt.gz", "b.txt.gz"):
        with open_rows(tmp_path / name, ("text",)) as write:
            write(("a",))
    assert (tmp_path / "a.txt.gz").read_bytes() == (tmp_path / "b.txt.gz").read_bytes()
    assert gzip.decompress((tmp_path / "a.txt.gz").read_bytes()) == b"a\n"


def test_open_rows_leaves_nothing_behind_after_an_error(tmp_path):
    with pytest.raises(csv.Error), open_rows(tmp_path / "a.csv", COLUMNS) as write:
        write(None)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("name", "message"),
    [("a.parquet", "cannot write parquet"), ("a.txt", "cannot hold the columns anchor, positive")],
)
def test_open_rows_refuses_formats_that_do_not_fit(tmp_path, name, message):
    with pytest.raises(OutputError, match=message), open_rows(tmp_path / name, COLUMNS):
        pass


def test_open_rows_does_not_overwrite(tmp_path):
    (tmp_path / "a.csv").write_text("mine")
    with pytest.raises(OutputError, match="exists already"), open_rows(tmp_path / "a.csv", COLUMNS):
        pass
    assert (tmp_path / "a.csv").read_text() == "mine"
