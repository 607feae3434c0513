import numpy as np
import pytest

from simcse_cli.analysis.rated_pairs import read_rated_file, read_whole_stsb
from simcse_cli.errors import DataError


def test_whole_stsb_is_train_dev_and_test_in_order(sts_folder):
    pairs = read_whole_stsb(sts_folder)
    assert len(pairs.gold) == 24
    assert pairs.is_test.tolist() == [False] * 16 + [True] * 8
    assert pairs.sentences == pairs.left + pairs.right


def test_whole_stsb_of_the_full_data_has_the_published_sizes(shared_data):
    pairs = read_whole_stsb(shared_data)
    assert (len(pairs.gold), len(pairs.sentences)) == (8628, 17256)
    assert int((pairs.gold > 4).sum()) == 1491
    assert np.histogram(pairs.gold, bins=[0, 1, 2, 3, 4, 5])[0].tolist() == [1478, 1334, 1520, 2288, 2008]


def test_rated_file_finds_columns_by_their_usual_names(tmp_path):
    path = tmp_path / "mine.tsv"
    path.write_text("sentence1\tsentence2\tscore\na b\tc\t4.5\nd\te\t0\n")
    pairs = read_rated_file(path)
    assert (pairs.left, pairs.right, pairs.gold.tolist()) == (["a b", "d"], ["c", "e"], [4.5, 0.0])
    assert pairs.is_test.all()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("sentence1,sentence2\na,b\n", "need a rating"),
        ("sentence1,sentence2,score\na,b,high\n", "line 2: rating 'high' is not a number"),
    ],
)
def test_rated_file_names_what_is_wrong(tmp_path, text, message):
    path = tmp_path / "mine.csv"
    path.write_text(text)
    with pytest.raises(DataError, match=message):
        read_rated_file(path)
