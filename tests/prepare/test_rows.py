import pytest

from simcse_cli.choices import Dedup
from simcse_cli.errors import DataError
from simcse_cli.prepare.options import RowOptions
from simcse_cli.prepare.rows import write_rows
from simcse_cli.progress import SilentProgress

PAIR = ("anchor", "positive")


def write(rows, output, columns=("text",), *, measure_overlap=False, **options):
    return write_rows(
        "sentences",
        rows,
        columns,
        RowOptions(output=output, **options),
        inputs=[],
        settings={},
        measure_overlap=measure_overlap,
        progress=SilentProgress(),
    )


def test_write_rows_cleans_filters_and_counts(tmp_path):
    rows = [(" a  b ",), ("",), ("A b!",), ("c",)]
    result = write(rows, tmp_path / "a.txt", dedup=Dedup.EXACT, min_words=2)
    assert (tmp_path / "a.txt").read_text() == "a b\n"
    assert result.counts.dropped == {"empty": 1, "duplicate": 1, "too_short": 1}
    assert (result.counts.read, result.counts.kept) == (4, 1)


def test_write_rows_samples_after_filtering(tmp_path):
    rows = [(f"row number {i}",) for i in range(100)] + [("x",)] * 100
    result = write(rows, tmp_path / "a.txt", min_words=2, sample=10, keep_order=True)
    lines = (tmp_path / "a.txt").read_text().splitlines()
    numbers = [int(line.split()[-1]) for line in lines]
    assert len(lines) == result.counts.kept == 10
    assert numbers == sorted(numbers)
    assert result.counts.dropped == {"too_short": 100, "not_sampled": 90}


def test_write_rows_measures_overlap_of_what_is_written(tmp_path):
    rows = [("a b", "a b"), ("a", "b"), ("", "c")]
    assert write(rows, tmp_path / "a.csv", PAIR, measure_overlap=True).overlap.value == 0.5
    assert write(rows, tmp_path / "b.csv", PAIR).overlap.value is None


def test_write_rows_with_strict_writes_nothing_after_a_finding(tmp_path):
    with pytest.raises(DataError, match="lint found empty 1"):
        write([("a",), ("",)], tmp_path / "a.txt", strict=True)
    assert list(tmp_path.iterdir()) == []
    assert write([("a",)], tmp_path / "a.txt", strict=True).counts.kept == 1


def test_write_rows_says_why_no_row_is_left(tmp_path):
    with pytest.raises(
        DataError, match=r"no row is left of 2 \(dropped: too_short 1, empty 1\)|empty 1, too_short 1"
    ):
        write([("a",), ("",)], tmp_path / "a.txt", min_words=2)
    assert list(tmp_path.iterdir()) == []
