import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from analysis.cases import encoder, space
from helpers import Told
from simcse_cli.analysis.options import SpaceOptions
from simcse_cli.analysis.spaces import (
    EmbeddingSpace,
    PairSet,
    encode_pairs,
    load_encoders,
    read_pair_set,
    spaces_payload,
    sts_average,
)
from simcse_cli.data.pair_files import read_scored_pairs
from simcse_cli.data.senteval import StsSubset, read_sts_task
from simcse_cli.errors import DataError, UsageError
from simcse_cli.evaluation.eval_encoder import EvalEncoder
from simcse_cli.progress import SILENT
from simcse_cli.settings.choices import STS_TASKS, Pooler, Precision

PAIRS = StsSubset(["a", "bb", "c c"], ["dddd", "e", "f"], np.array([5.0, 1.0, 2.0]))


def test_whole_stsb_is_train_dev_and_test_in_order(sts_folder):
    data = read_pair_set(SpaceOptions(data_dir=sts_folder))
    parts = [
        read_sts_task(sts_folder, "STSBenchmark", split=part) for part in ("train", "dev", "test")
    ]
    assert data.pairs.left == [
        text for part in parts for each in part.subsets.values() for text in each.left
    ]
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
    right = np.array([[0, 1], [1, 0], [1, 9], [1, 1]])
    found = space(np.tile([1.0, 0.0], (4, 1)), right, [5.0, 0.0, 1.0, 2.0])
    assert replace(found, data=replace(found.data, n_scored=3)).score == pytest.approx(-0.5)
    assert replace(found, left=found.right).score is None  # all cosines are 1, up to rounding


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("sentence1,sentence2\na,b\n", "no column looks like the score"),
        (
            "sentence1,sentence2,score\na,b,high\nc,d,1\n",
            "line 2: score 'high' is not a finite number",
        ),
    ],
)
def test_rated_file_names_what_is_wrong(tmp_path, text, message):
    path = tmp_path / "mine.csv"
    path.write_text(text)
    with pytest.raises(DataError, match=message):
        read_scored_pairs(path)


def test_the_average_of_an_encoder_is_that_of_the_test_split_with_all_tasks(tmp_path):
    def write(name: str, score: float | None, **facts: object) -> None:
        others = None if score is None else score - 0.1
        measured = {
            "spearman": {"all": score, "mean": others, "wmean": others},
            "pearson": {"all": others, "mean": others, "wmean": others},
        }
        tasks = {task: {"n_pairs": 3, "score": score} | measured for task in STS_TASKS}
        asked = {"metric": "spearman", "aggregation": "all", "split": "test", "pooler": "avg"}
        result = {
            "suite": "sts",
            "model": str(tmp_path),
            "model_digest": "abc",
            "tasks": tasks,
            "seconds": 1.0,
        }
        (tmp_path / name).write_text(json.dumps(result | asked | facts))

    plain = replace(encoder("m"), source=str(tmp_path))
    whitened = replace(plain, digest="def", suffix=" + whitening (nli)")
    (tmp_path / "0.json").write_text("[1]")
    (tmp_path / "1.json").write_text('{"suite": "transfer"}')
    write("2.json", 0.9, split="dev")
    write("3.json", 0.7, model_digest="other")
    write("4.json", 0.8, postprocess={"name": "whitening"})
    write("5.json", None)
    assert sts_average(plain, []) is None
    write("5-regressor.json", 0.9, regressor=True)
    assert sts_average(plain, []) is None
    write("6.json", 0.6)
    assert sts_average(plain, []) == pytest.approx(0.6)
    # the average is always of one kind: here the result shows other scores first
    write("6.json", 0.6, metric="pearson", aggregation="mean")
    content = json.loads((tmp_path / "6.json").read_text())
    for task in content["tasks"].values():
        task["score"] = task["pearson"]["mean"]
    (tmp_path / "6.json").write_text(json.dumps(content))
    assert sts_average(plain, []) == pytest.approx(0.6)
    assert sts_average(whitened, []) is None
    write("7.json", 0.5, model_digest="def", postprocess={"name": "whitening"})
    assert sts_average(whitened, []) == pytest.approx(0.5)
    (tmp_path / "7.json").unlink()
    # a post-processor for each task: the digest is that of the model
    write("8.json", 0.4, model=f"{tmp_path} + whitening (nli)", postprocess={"name": "whitening"})
    assert sts_average(whitened, []) == pytest.approx(0.4)
    # Version 1.0.0 had another digest, without a mark; nothing is known by it, nor by the name
    # alone.
    for now in (plain, whitened):
        progress = Told()
        assert sts_average(replace(now, digest="2-abc"), [], progress) is None
        (said,) = progress.warnings
        assert said.startswith(f"{tmp_path / '8.json'} is of simcse 1.0.0")
        assert said.endswith("so whether it is of m is not known; evaluate it again")
    write("9.json", 0.3, model_digest="2-abc")
    assert sts_average(replace(plain, digest="2-abc"), [], progress) == pytest.approx(0.3)
    assert len(progress.warnings) == 1


@pytest.fixture
def opened(monkeypatch):
    """Open every source as an encoder of lengths, and return the options of each with the calls of its ``encode``."""
    found = []

    def open_encoder(options, progress):
        calls = []

        def encode(sentences):
            calls.append(list(sentences))
            return np.array([[len(text), text.count(" ")] for text in sentences], np.float32)

        found.append((options, calls))
        pooler = "avg" if options.embeddings is None else None
        return EvalEncoder("name", pooler, f"digest of {options.model}", 2, Precision.FP32, encode)

    monkeypatch.setattr("simcse_cli.analysis.spaces.open_encoder", open_encoder)
    return found


def load(labels=None, **options):
    return list(load_encoders(SpaceOptions(**options), labels, PAIRS, SILENT))


def test_models_and_vectors_are_opened_with_their_own_options(opened):
    vectors = {"embeddings": [Path("e/v.npy")], "sentences": Path("t.txt")}
    fit = {"postprocess": ["none", "whitening:1"], "fit": "target", "fit_seed": 7}
    found = load(model=["d/m"], pooler=Pooler.CLS, **vectors, **fit)
    assert [(each.label, each.name, each.pooler) for each in found] == [
        ("m", "d/m", "avg"),
        ("v.npy + whitening:1 (target)", "e/v.npy + whitening:1 (target)", None),
    ]
    assert [each.encode(["a", "b b"]).shape for each in found] == [(2, 2), (2, 1)]
    (model, _), (file, _) = opened
    assert (model.model, model.embeddings, model.sentences, model.pooler) == (
        "d/m",
        None,
        None,
        Pooler.CLS,
    )
    assert model.postprocess is None
    assert (file.embeddings, file.sentences) == (Path("e/v.npy"), Path("t.txt"))
    assert (file.postprocess, file.fit, file.fit_seed) == ("whitening:1", "target", 7)


def test_one_post_processor_is_for_all_and_a_repeated_model_is_opened_and_run_once(opened):
    fit = {"postprocess": ["whitening:1"], "fit": "target"}
    assert [each.label for each in load(model=["d/m", "d/n", "n"], **fit)] == [
        f"{name} + whitening:1 (target)" for name in ("m", "d/n", "n")
    ]
    opened.clear()
    twice = load(model=["d/m", "d/m"], postprocess=["none", "whitening:1"], fit="target")
    assert [each.label for each in twice] == ["m", "m + whitening:1 (target)"]
    for each in twice:
        each.encode(["a", "bb"])
    ((_, calls),) = opened
    assert sorted(text for call in calls for text in call) == sorted(PAIRS.sentences)
    opened.clear()
    (once,) = load(["mine"], model=["d/m"])
    assert (once.label, once.facts()) == (
        "mine",
        {"model": "d/m", "label": "mine", "model_digest": "digest of d/m", "pooler": "avg"},
    )
    for _ in range(2):
        once.encode(["a"])
    assert opened[0][1] == [["a"], ["a"]]  # the vectors of a model that is named once are not kept


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "need a model, or --embeddings with --sentences"),
        ({"embeddings": ["v.npy"]}, "needed with --embeddings: line i is the sentence of row i"),
        (
            {"embeddings": ["v.npy"], "sentences": Path("t.txt"), "pooler": Pooler.CLS},
            "has no use with --embeddings, which need no model",
        ),
        (
            {"model": ["m"], "postprocess": ["none", "none"]},
            "2 for 1 models, need one for all or one for each",
        ),
        (
            {"model": ["m", "n"], "postprocess": ["none", "whitening"], "fit": "nli"},
            "nli looks for its pairs below --data-dir",
        ),
    ],
)
def test_wrong_sources_are_refused_before_any_is_opened(opened, options, message):
    with pytest.raises(UsageError) as raised:
        load(**options)
    assert message in str(raised.value)
    assert opened == []


def test_only_a_fit_on_nli_needs_the_data(opened, tmp_path):
    (tmp_path / "fit.txt").write_text("one\ntwo words\n")
    common = {"model": ["m", "n"], "postprocess": ["none", "whitening:1"]}
    assert len(load(**common, fit=str(tmp_path / "fit.txt"))) == 2
    (tmp_path / "snli_train.jsonl").write_text('{"sentence1": "a b c", "sentence2": "d"}\n' * 3)
    assert len(load(**common, fit="nli", data_dir=tmp_path)) == 2


def test_pairs_are_encoded_as_rows_of_both_sides(opened, tmp_path):
    path = tmp_path / "mine.tsv"
    path.write_text("sentence1\tsentence2\tscore\na b\tc\t4.5\nd\teee\t0\n")
    options = SpaceOptions(model=["m"], pair_file=path)
    (found,) = encode_pairs(options, None, SILENT)
    assert (found.left.tolist(), found.right.tolist()) == ([[3, 1], [1, 0]], [[1, 0], [3, 0]])
    assert (found.data.name, found.data.measure, found.average) == ("mine.tsv", "mine", None)
    options = SpaceOptions(model=["m"])
    (given,) = encode_pairs(options, ["x"], SILENT, PairSet("given", PAIRS, 3, "given"))
    assert (given.label, given.data.name, given.left.shape) == ("x", "given", (3, 2))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"split": "half"}, "'half'; need one of train, dev, test, all"),
        ({}, "need the SentEval folder, or --pair-file"),
        (
            {"pair_file": "p.tsv", "data_dir": "d"},
            "has no use with --pair-file and without --fit nli",
        ),
        ({"pair_file": "p.tsv", "split": "test"}, "STS-B has parts, --pair-file has none"),
    ],
)
def test_pairs_that_do_not_go_together_are_refused(options, message):
    with pytest.raises(UsageError) as raised:
        read_pair_set(SpaceOptions(**options))
    assert message in str(raised.value)


def test_a_part_of_stsb_is_scored_whole(sts_folder):
    part = read_pair_set(SpaceOptions(data_dir=sts_folder, split="dev"))
    assert (part.name, part.pairs.n_pairs, part.n_scored) == ("STS-B dev", 8, 8)
    assert part.measure == "STSBenchmark-dev"
    for split in ("test", "all"):
        assert read_pair_set(SpaceOptions(data_dir=sts_folder, split=split)).measure == (
            "STSBenchmark"
        )
    path = sts_folder / "downstream/STS/STSBenchmark/sts-dev.csv"
    own = SpaceOptions(pair_file=path, data_dir=sts_folder, postprocess=["whitening"], fit="nli")
    assert read_pair_set(own).n_scored == 8


def test_the_seeds_of_a_setting_get_mean_and_deviation_of_their_numbers():
    groups = {"r/seed-1": "r", "r/seed-2": "r", "q/seed-1": "q", "m": None}
    spaces = [
        EmbeddingSpace(
            encoder(label, group=group), PairSet("some", PAIRS, 3, "some"), np.eye(3), np.eye(3)
        )
        for label, group in groups.items()
    ]
    values = ((1.0, 0.5), (3.0, None), (2.0, 0.5), (5.0, 0.5))
    payload = spaces_payload("spectrum", spaces, [{"x": x, "score": score} for x, score in values])
    assert list(payload) == ["analysis", "data", "n_pairs", "rating_scale", "models", "seeds"]
    assert (payload["analysis"], payload["data"], payload["n_pairs"]) == ("spectrum", "some", 3)
    facts = {
        "model": "models/q/seed-1",
        "label": "q/seed-1",
        "model_digest": "abc",
        "pooler": "avg",
        "group": "q",
    }
    assert payload["models"][2] == facts | {"x": 2.0, "score": 0.5}
    assert payload["seeds"] == [
        {"label": "r", "n_seeds": 2, "mean": {"x": 2.0}, "deviation": {"x": pytest.approx(2**0.5)}},
        {"label": "q", "n_seeds": 1, "mean": {}, "deviation": {}},
    ]
    alone = spaces_payload("spectrum", spaces[3:], [{}])
    assert "seeds" not in alone
