import pytest

from simcse_cli.choices import Dedup
from simcse_cli.errors import DataError
from simcse_cli.prepare.lint import Linter
from simcse_cli.prepare.options import RefineOptions
from simcse_cli.prepare.refine import write_refined
from simcse_cli.progress import SilentProgress


def refine(rows, output, n_columns=1, *, measure_overlap=False, **options):
    return write_refined(
        rows,
        output,
        n_columns,
        RefineOptions(**options),
        linter=Linter(),
        measure_overlap=measure_overlap,
        progress=SilentProgress(),
    )


def test_write_refined_cleans_filters_and_counts(tmp_path):
    rows = [(" a  b ",), ("",), ("A b!",), ("c",)]
    result = refine(rows, tmp_path / "a.txt", dedup=Dedup.EXACT, min_words=2)
    assert (tmp_path / "a.txt").read_text() == "a b\n"
    assert result.counts.dropped == {"empty": 1, "duplicate": 1, "too_short": 1}
    assert (result.counts.read, result.counts.kept) == (4, 1)


def test_write_refined_samples_after_filtering(tmp_path):
    rows = [(f"row number {i}",) for i in range(100)] + [("x",)] * 100
    result = refine(rows, tmp_path / "a.txt", min_words=2, sample=10, keep_order=True)
    lines = (tmp_path / "a.txt").read_text().splitlines()
    numbers = [int(line.split()[-1]) for line in lines]
    assert len(lines) == result.counts.kept == 10
    assert numbers == sorted(numbers)
    assert result.counts.dropped == {"too_short": 100, "not_sampled": 90}


def test_write_refined_measures_overlap_of_what_is_written(tmp_path):
    rows = [("a b", "a b"), ("a", "b"), ("", "c")]
    assert refine(rows, tmp_path / "a.csv", 2, measure_overlap=True).overlap.value == 0.5
    assert refine(rows, tmp_path / "b.csv", 2).overlap.value is None


def test_write_refined_with_strict_writes_nothing_after_a_finding(tmp_path):
    with pytest.raises(DataError, match="lint found empty 1"):
        refine([("a",), ("",)], tmp_path / "a.txt", strict=True)
    assert list(tmp_path.iterdir()) == []
    assert refine([("a",)], tmp_path / "a.txt", strict=True).counts.kept == 1


def test_write_refined_says_why_no_row_is_left(tmp_path):
    with pytest.raises(
        DataError, match=r"no row is left of 2 \(dropped: too_short 1, empty 1\)|empty 1, too_short 1"
    ):
        refine([("a",), ("",)], tmp_path / "a.txt", min_words=2)
    assert list(tmp_path.iterdir()) == []
