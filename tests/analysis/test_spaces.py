import json
from unittest.mock import Mock

import numpy as np
import pytest

from simcse_cli.analysis.options import SpaceOptions
from simcse_cli.analysis.spaces import EmbeddingSpace, NamedEncoder, PairSet, read_pair_set, sts_average
from simcse_cli.data.pair_files import read_scored_pairs
from simcse_cli.data.senteval import StsSubset, read_sts_task
from simcse_cli.errors import DataError
from simcse_cli.settings.choices import STS_TASKS


def test_whole_stsb_is_train_dev_and_test_in_order(sts_folder):
    data = read_pair_set(SpaceOptions(data_dir=sts_folder))
    parts = [read_sts_task(sts_folder, "STSBenchmark", split=part) for part in ("train", "dev", "test")]
    assert data.pairs.left == [text for part in parts for each in part.subsets.values() for text in each.left]
    assert (data.name, data.pairs.n_pairs, data.n_scored) == ("STS-B", 24, 8)


def test_whole_stsb_of_the_full_data_has_the_published_sizes(shared_data):
    data = read_pair_set(SpaceOptions(data_dir=shared_data))
    gold = data.pairs.gold
    assert (data.pairs.n_pairs, data.n_scored) == (8628, 1379)
    assert int((gold > 4).sum()) == 1491
    assert np.histogram(gold, bins=[0, 1, 2, 3, 4, 5])[0].tolist() == [1478, 1334, 1520, 2288, 2008]


def test_rated_file_finds_columns_by_their_usual_names(tmp_path):
    path = tmp_path / "mine.tsv"
    path.write_text("sentence1\tsentence2\tscore\na b\tc\t4.5\nd\te\t0\n")
    data = read_pair_set(SpaceOptions(pair_file=path))
    pairs = data.pairs
    assert (pairs.left, pairs.right, pairs.gold.tolist()) == (["a b", "d"], ["c", "e"], [4.5, 0.0])
    assert (data.name, data.n_scored) == ("mine.tsv", 2)


def test_score_is_taken_on_the_last_pairs():
    pairs = StsSubset(["a"] * 4, ["b"] * 4, np.array([5.0, 0.0, 1.0, 2.0]))
    right = np.array([[0, 1], [1, 0], [1, 9], [1, 1]])
    space = EmbeddingSpace(None, PairSet("some", pairs, 3), np.tile([1.0, 0.0], (4, 1)), right)
    assert space.score == pytest.approx(-0.5)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("sentence1,sentence2\na,b\n", "missing: score"),
        ("sentence1,sentence2,score\na,b,high\n", "line 2: score 'high' is not a finite number"),
    ],
)
def test_rated_file_names_what_is_wrong(tmp_path, text, message):
    path = tmp_path / "mine.csv"
    path.write_text(text)
    with pytest.raises(DataError, match=message):
        read_scored_pairs(path)


def test_the_average_of_an_encoder_is_that_of_the_test_split(tmp_path):
    def write(name: str, split: str, score: float, digest: str = "abc") -> None:
        measured = {kind: {"all": score, "mean": score, "wmean": score} for kind in ("spearman", "pearson")}
        tasks = {task: {"n_pairs": 3, "score": score} | measured for task in STS_TASKS}
        asked = {"metric": "spearman", "aggregation": "all", "split": split, "pooler": "avg"}
        result = {"suite": "sts", "model": "m", "model_digest": digest, "tasks": tasks, "seconds": 1.0}
        (tmp_path / name).write_text(json.dumps(result | asked))

    encoder = NamedEncoder("m", str(tmp_path), Mock(), "abc", "avg")
    write("a.json", "dev", 0.9)
    write("b.json", "test", 0.7, digest="other")
    assert sts_average(encoder, []) is None
    write("c.json", "test", 0.6)
    assert sts_average(encoder, []) == pytest.approx(0.6)
