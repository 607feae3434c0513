import pytest

from helpers import STS_PAIRS
from simcse_cli.data.senteval import read_sts_task, resolve_senteval_dir
from simcse_cli.errors import DataError
from simcse_cli.settings.choices import STS_TASKS


def test_blank_gold_lines_are_dropped_and_white_space_is_joined(sts_folder):
    folder = sts_folder / "downstream" / "STS" / "STS16-en-test"
    (folder / "STS.gs.headlines.txt").write_text("3\n\n1.5\n")
    (folder / "STS.input.headlines.txt").write_text("a  b\tc\nx\ty\nd\u00a0e\t f \n")
    subset = read_sts_task(sts_folder, "STS16").subsets["headlines"]
    assert (subset.left, subset.right, subset.gold.tolist()) == (
        ["a b", "d e"],
        ["c", "f"],
        [3.0, 1.5],
    )


YEAR, STSB, SICK = (
    "STS/STS16-en-test",
    "STS/STSBenchmark/sts-test.csv",
    "SICK/SICK_test_annotated.txt",
)


@pytest.mark.parametrize(
    ("task", "path", "text", "message"),
    [
        ("STS16", f"{YEAR}/STS.gs.headlines.txt", "3\n", "lines but"),
        ("STS16", f"{YEAR}/STS.gs.headlines.txt", "3\n" * 5 + "x\n", "line 6: gold score 'x' is not a finite number"),
        ("STS16", f"{YEAR}/STS.input.headlines.txt", "only one column\n" * 6, "line 1: 1 column"),
        ("STS16", f"{YEAR}/STS.gs.headlines.txt", "\n" * 6, "STS16-en-test holds no annotated pair"),
        ("STSBenchmark", STSB, "g\tf\ty\t1\t2.5\ta\tb\ng\tf\ty\t1\t2.5\ta\n", "line 2: 6 columns, need 7"),
        ("STSBenchmark", STSB, "g\tf\ty\t1\tx\ta\tb\n", "line 1: gold score 'x'"),
        ("SICKRelatedness", SICK, "header\n1\ta\tb\t2.5\n2\ta\tb\n", "line 3: 3 columns, need at least 4"),
        ("SICKRelatedness", SICK, "header\n1\ta\tb\tx\tNEUTRAL\n", "line 2: gold score 'x'"),
        ("SICKRelatedness", SICK, "header\n", "holds no annotated pair"),
    ],
)  # fmt: skip
def test_malformed_files_name_file_and_line(sts_folder, task, path, text, message):
    (sts_folder / "downstream" / path).write_text(text)
    with pytest.raises(DataError, match=message):
        read_sts_task(sts_folder, task)


@pytest.mark.parametrize(
    ("task", "path", "text"),
    [
        ("STSBenchmark", STSB, "g\tf\ty\t1\t2.5\ta  b\tc \tlicence\n"),
        ("SICKRelatedness", SICK, "header\n1\ta  b\tc \t2.5\n"),  # without a judgment
    ],
)
def test_columns_after_those_needed_may_be_there_or_not(sts_folder, task, path, text):
    (sts_folder / "downstream" / path).write_text(text)
    subset = read_sts_task(sts_folder, task).subsets["test"]
    assert (subset.left, subset.right, subset.gold.tolist()) == (["a b"], ["c"], [2.5])


@pytest.mark.parametrize("task", ["STSBenchmark", "SICKRelatedness"])
def test_all_splits_joined(sts_folder, task):
    parts = [
        read_sts_task(sts_folder, task, split=split).subsets[split]
        for split in ("train", "dev", "test")
    ]
    joined = read_sts_task(sts_folder, task, split="all").subsets["all"]
    for side in ("left", "right", "gold"):
        assert list(getattr(joined, side)) == [
            value for part in parts for value in getattr(part, side)
        ]


def test_a_year_has_a_test_split_only(sts_folder):
    for split in ("dev", "all"):
        with pytest.raises(ValueError, match="STS12 has a test set only"):
            read_sts_task(sts_folder, "STS12", split=split)
    with pytest.raises(ValueError, match="unknown STS task 'STS17', need one of STS12"):
        read_sts_task(sts_folder, "STS17")


def test_pairs_of_the_years_add_up_to_the_published_numbers():
    totals = {year: sum(subsets.values()) for year, subsets in STS_PAIRS.items()}
    assert totals == {"STS12": 3108, "STS13": 1500, "STS14": 3750, "STS15": 3000, "STS16": 1186}


def test_real_files_have_the_documented_sizes(shared_data):
    sizes = {task: read_sts_task(shared_data, task).n_pairs for task in STS_TASKS}
    assert list(sizes.values()) == [3108, 1500, 3750, 3000, 1186, 1379, 4927]
    for task, subsets in STS_PAIRS.items():
        found = read_sts_task(shared_data, task).subsets
        assert {name: subset.n_pairs for name, subset in found.items()} == subsets


@pytest.mark.parametrize("task", ["STS", "SICK", "MR"])
@pytest.mark.parametrize("below", [".", "downstream", "senteval/downstream", "data/downstream"])
def test_folder_of_senteval_is_found_from_above(tmp_path, task, below):
    (tmp_path / below / task).mkdir(parents=True)
    assert resolve_senteval_dir(tmp_path) == tmp_path / below


def test_folder_without_senteval_is_refused(tmp_path):
    for path, what in (
        (tmp_path, "has no downstream/STS folder"),
        (tmp_path / "no", "does not exist"),
    ):
        with pytest.raises(DataError, match=f"{path} {what}; need a SentEval data folder"):
            resolve_senteval_dir(path)
