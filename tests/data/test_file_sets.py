import gzip
import json

import datasets
import pyarrow as pa
import pytest
from pyarrow import parquet

from simcse_cli.data.file_sets import FileSet
from simcse_cli.data.jobs import Job
from simcse_cli.data.table import Table
from simcse_cli.data.training_file import read_training_rows
from simcse_cli.errors import DataError
from simcse_cli.settings.choices import TextPer

ROWS = [f"row {number}" for number in range(23)]


def write(path, rows=ROWS):
    path.parent.mkdir(parents=True, exist_ok=True)
    match "".join(path.suffixes):
        case ".txt":
            path.write_text("\n".join(rows))
        case ".txt.gz":
            path.write_bytes(gzip.compress("".join(f"{row}\n" for row in rows).encode()))
        case ".jsonl":
            path.write_text(
                "".join(json.dumps({"id": i, "text": r}) + "\n" for i, r in enumerate(rows))
            )
        case ".csv":
            path.write_text("id,text\n" + "".join(f'{i},"{r}"\n' for i, r in enumerate(rows)))
        case _:
            table = pa.table({"id": range(len(rows)), "text": rows})
            parquet.write_table(table, path, row_group_size=5)
    return path


@pytest.mark.parametrize("address", ["", "file://"])
@pytest.mark.parametrize("ending", ["txt", "txt.gz", "jsonl", "csv", "parquet"])
def test_rows_are_counted_and_left_out_in_every_format(tmp_path, ending, address):
    source = f"{address}{write(tmp_path / f'x.{ending}')}"
    assert Table(source, Job.TEXTS).count() == 23
    for start in (0, 4, 5, 11, 22, 23, 30):
        assert list(Table(source, Job.TEXTS).texts(start)) == ROWS[start:]
        if not ending.startswith("txt"):
            assert [
                int(cell) for cell in Table(source, Job.TEXTS).column("id", start=start)
            ] == list(range(23))[start:]


def test_parquet_keeps_the_type_of_a_column(tmp_path):
    assert next(Table(write(tmp_path / "x.parquet"), Job.TEXTS).column("id")) == 0
    with pytest.raises(DataError, match="no column key; there are id, text"):
        next(Table(tmp_path / "x.parquet", Job.TEXTS).column("key"))


@pytest.mark.parametrize("address", ["", "file://"])
def test_any_rows_of_a_folder_are_those_of_its_files_one_after_another(tmp_path, address):
    for name, rows in (("b/part-2", ROWS[9:17]), ("a/part-1", ROWS[:9]), ("b/part-3", ROWS[17:])):
        write(tmp_path / f"{name}.parquet", rows)
    write(tmp_path / "_metadata.parquet")
    write(tmp_path / ".hidden" / "x.parquet")
    files = FileSet.find(f"{address}{tmp_path}")
    assert files.counts == (9, 8, 6)
    assert files.total == 23
    for start in range(24):
        for stop in (start, start + 1, start + 9, 23, None):
            assert list(files.sentences(start, stop)) == ROWS[start:stop]
    assert list(files.within(8, 18).values()) == [1, 8, 1]
    chosen = FileSet.find(f"{address}{tmp_path}/b/*.parquet")
    assert [name.rpartition("/")[2] for name in chosen.files] == [
        "part-2.parquet",
        "part-3.parquet",
    ]


def test_digest_follows_content_and_names(tmp_path):
    write(tmp_path / "a" / "1.txt", ROWS[:3])
    write(tmp_path / "a" / "2.txt", ROWS[3:])
    digests = [FileSet.find(str(tmp_path / "a")).digest]
    write(tmp_path / "a" / "2.txt", ROWS[4:])
    digests.append(FileSet.find(str(tmp_path / "a")).digest)
    (tmp_path / "a" / "2.txt").rename(tmp_path / "a" / "3.txt")
    digests.append(FileSet.find(str(tmp_path / "a")).digest)
    assert len(set(digests)) == 3


def test_folders_without_data_or_of_several_formats_are_refused(tmp_path):
    (tmp_path / "readme.md").write_text("no data\n")
    with pytest.raises(DataError, match="holds no file with sentences"):
        FileSet.find(str(tmp_path))
    write(tmp_path / "x.txt")
    write(tmp_path / "x.csv")
    with pytest.raises(DataError, match=r"several formats, such as .*x\.csv and .*x\.txt"):
        FileSet.find(str(tmp_path))
    with pytest.raises(DataError, match="holds no file"):
        FileSet.find(f"{tmp_path}/*.parquet")


def test_a_folder_of_documents_asks_what_one_text_is(tmp_path):
    write(tmp_path / "a.txt", ["A title", "", "A  paragraph."])
    write(tmp_path / "b.txt", ["", "Another text.", ""])
    with pytest.raises(
        DataError, match=r"2 text files with blank lines, such as .*a\.txt"
    ) as caught:
        FileSet.find(str(tmp_path))
    assert caught.value.hint == "say it with --text-per file or --text-per line"
    files = FileSet.find(str(tmp_path), text_per=TextPer.FILE)
    assert list(files.sentences()) == ["A title A paragraph.", "Another text."]
    assert (files.counts, list(files.sentences(1))) == ((1, 1), ["Another text."])
    lines = FileSet.find(str(tmp_path), text_per=TextPer.LINE)
    assert list(lines.sentences()) == ["A title", "", "A  paragraph.", "", "Another text."]
    assert lines.blank == {str(tmp_path / "a.txt"): 1, str(tmp_path / "b.txt"): 1}


@pytest.mark.parametrize(
    ("name", "content"),
    [("a.jsonl", '{"text": "One."}\n{"text": "Two."}\n'), ("a.csv", "text\nOne.\nTwo.\n")],
)
def test_a_table_keeps_its_rows_where_a_text_file_would_be_one_text(tmp_path, name, content):
    for folder in ("x", "y"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / name).write_text(content)
    files = FileSet.find(str(tmp_path), text_per=TextPer.FILE)
    assert files.counts == (2, 2)
    assert list(files.sentences(start=3)) == ["Two."]


def test_a_saved_dataset_is_known_by_its_files(tmp_path):
    rows = datasets.Dataset.from_dict({"id": [1, 2], "text": ["One.", "Two."]})
    rows.save_to_disk(tmp_path / "rows")
    datasets.DatasetDict(dev=rows).save_to_disk(tmp_path / "splits")
    assert list(FileSet.find(str(tmp_path / "rows")).sentences()) == ["One.", "Two."]
    assert read_training_rows(tmp_path / "rows").columns == ("anchor",)
    with pytest.raises(DataError, match="no split train; there are dev") as caught:
        read_training_rows(tmp_path / "splits")
    source = caught.value.hint.rpartition(" ")[2]
    assert list(FileSet.find(source).sentences()) == ["One.", "Two."]
