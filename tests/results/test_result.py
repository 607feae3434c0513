"""The one result of every suite: averages, the JSON of each suite and of earlier versions, what is refused."""

import json
import math

import numpy as np
import pytest

from simcse_cli.errors import DataError
from simcse_cli.results.report import (
    Column,
    Report,
    mean_and_deviation,
    to_text,
    with_seed_means,
)
from simcse_cli.results.result import PUBLISHED, SuiteResult, TaskResult, known_sets

STS_TASK = TaskResult(
    0.7,
    3,
    {"test": {"n_pairs": 3, "spearman": 0.7, "pearson": None}},
    "x",
    {
        "spearman": {"all": 0.7, "mean": 0.6},
        "pearson": {"all": None, "mean": 0.4},
        "ci": {"low": 0.5, "high": 0.8},
    },
)
STS = SuiteResult(
    "sts",
    {"model": "m", "metric": "spearman", "aggregation": "all", "split": "test"},
    {"own": STS_TASK, "STS12": None},
    {"STS12": "why"},
    {
        "n_sentences": 6,
        "seconds": 0.5,
        "sentences_per_second": 12.0,
        "average_ci": {"low": 0.5, "high": 0.8},
    },
)
MRPC = TaskResult(
    0.25, 4, data_sha256="x", extra={"dev_accuracy": 1.0, "f1": 0.8, "penalties": [1e-3]}
)
TRANSFER = SuiteResult(
    "transfer",
    {"model": "m", "protocol": "fast", "probe": "sklearn"},
    {
        "MR": TaskResult(
            0.75, 4, data_sha256="y", extra={"dev_accuracy": 0.5, "classes": ["no", "yes"]}
        ),
        "MRPC": MRPC,
    },
    figures={"average_dev": 0.75, "seconds": 2.0},
)
MTEB = SuiteResult(
    "mteb",
    {"model": "m", "mteb_version": "2"},
    {"A": TaskResult(0.9, extra={"category": "STS", "metric": "cosine_spearman"}), "B": None},
    {"B": "no data"},
    {
        "categories": {"STS": {"n_tasks": 2, "n_scored": 1, "score": 0.9}},
        "n_tasks": 2,
        "n_scored": 1,
    },
)


@pytest.mark.parametrize(
    ("scores", "mean", "deviation"),
    [
        ([0.5, 0.7], 0.6, math.sqrt(0.02)),
        ([0.5], 0.5, None),
        ([0.5, None], None, None),
        ([], None, None),
    ],
)
def test_mean_and_deviation_leave_nothing_missing_out(scores, mean, deviation):
    found = mean_and_deviation(scores)
    assert found[0] == (mean if mean is None else pytest.approx(mean))
    assert found[1] == (deviation if deviation is None else pytest.approx(deviation))


def test_mean_and_deviation_are_those_of_numpy():
    values = np.random.default_rng(0).normal(size=7).tolist()
    assert mean_and_deviation(values) == (
        pytest.approx(np.mean(values)),
        pytest.approx(np.std(values, ddof=1)),
    )


def test_seeds_get_a_mean_and_a_single_seed_gets_none():
    columns = [Column("model"), Column("score", kind="score")]
    rows = [{"model": "a", "score": 1}, {"model": "b", "score": 2}, {"model": "c", "score": 6}]
    report = with_seed_means(Report("", columns, rows), {"a": "x", "b": "x", "c": "y"})
    assert report.rows[3:] == [
        {"model": "x (mean of 2)", "score": 1.5},
        {"model": "  deviation", "score": pytest.approx(math.sqrt(0.5))},
    ]
    single = Report("", columns, rows[2:])
    assert with_seed_means(single, {"c": "y"}) == single


@pytest.mark.parametrize(
    ("kind", "value", "shown"),
    [
        ("difference", -0.00001, "0.00"),
        ("difference", 0.00001, "0.00"),
        ("difference", -0.0001, "-0.01"),
        ("difference", 0.1, "+10.00"),
        ("score", -0.00001, "0.00"),
        ("signed", -0.0, "0"),
        ("signed", -0.00001, "-1e-05"),
        ("count", 0, "0"),
        ("count", 1000, "1,000"),
    ],
)
def test_what_is_shown_as_zero_has_no_sign(kind, value, shown):
    assert Column("x", kind=kind).show(value) == shown


def test_json_of_an_sts_result_is_complete():
    assert STS.to_json() == {
        "suite": "sts",
        **STS.settings,
        "tasks": {
            "own": {"n_pairs": 3, "score": 0.7, **STS_TASK.extra, "subsets": STS_TASK.parts},
            "STS12": None,
        },
        "missing": {"STS12": "why"},
        "data_sha256": {"own": "x"},
        "average": 0.7,
        **STS.figures,
    }


def test_json_of_a_transfer_result_is_complete():
    assert TRANSFER.to_json() == {
        "suite": "transfer",
        "model": "m",
        "protocol": "fast",
        "probe": "sklearn",
        "tasks": {
            "MR": {"accuracy": 0.75, "n_test": 4, "dev_accuracy": 0.5, "classes": ["no", "yes"]},
            "MRPC": {
                "accuracy": 0.25,
                "n_test": 4,
                "dev_accuracy": 1.0,
                "f1": 0.8,
                "penalties": [1e-3],
            },
        },
        "missing": {},
        "data_sha256": {"MR": "y", "MRPC": "x"},
        "average": 0.5,
        "average_dev": 0.75,
        "seconds": 2.0,
    }


def test_json_of_an_mteb_result_is_complete():
    assert MTEB.to_json() == {
        "suite": "mteb",
        **MTEB.settings,
        "tasks": {"A": {"score": 0.9, "category": "STS", "metric": "cosine_spearman"}, "B": None},
        "missing": {"B": "no data"},
        "average": 0.9,
        **MTEB.figures,
    }


@pytest.mark.parametrize("result", [STS, TRANSFER, MTEB])
def test_a_result_is_read_as_it_was_written(result):
    assert SuiteResult.from_json(json.loads(json.dumps(result.to_json())), "r.json") == result


def test_a_result_of_an_earlier_version_is_read():
    tasks = {"MR": {"accuracy": 0.8}}
    found = SuiteResult.from_json(
        {"suite": "transfer", "protocol": "fast", "tasks": tasks}, "old.json"
    )
    assert found.tasks == {"MR": TaskResult(0.8)}
    assert found.settings == {"protocol": "fast"}


def test_missing_scores_are_not_averaged():
    assert STS.average == 0.7
    assert SuiteResult("sts", {}, {"STS12": None, "own": TaskResult(None)}).average is None


def test_a_result_under_another_metric_has_its_scores_and_no_intervals():
    found = STS.under("pearson", "mean")
    assert found.scores == {"own": 0.4, "STS12": None}
    assert (found.settings["metric"], found.settings["aggregation"]) == ("pearson", "mean")
    assert found.intervals() == {}
    assert STS.under(None, "mean").average == 0.6
    assert STS.under("pearson", None).average is None
    assert STS.under(None, None) is STS
    with pytest.raises(DataError, match="own has no spearman for aggregation wmean"):
        STS.under(None, "wmean")


def test_intervals_are_two_rows_below_the_model():
    assert STS.interval_rows() == [
        {"model": "95% low", "own": 0.5, "average": 0.5},
        {"model": "95% high", "own": 0.8, "average": 0.8},
    ]
    assert TRANSFER.interval_rows() == []


def test_notes_name_missing_tasks_and_data_that_are_not_those_published():
    n, digest = known_sets()["STS13", "test"][PUBLISHED]
    tasks = {
        "STS12": TaskResult(0.5, 3, data_sha256="x"),
        "STS13": TaskResult(0.5, n, data_sha256=digest),
    }
    found = SuiteResult("sts", {}, tasks, {"STS14": "why"})
    assert found.sets() == {
        "STS12": "3 examples instead of the published 3,108",
        "STS13": PUBLISHED,
    }
    assert found.notes() == [
        "STS14 missing: why",
        "compares with no published number: STS12: 3 examples instead of the published 3,108",
    ]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ([1], "r.json: .* need an object"),
        ({"suite": ["sts"]}, "r.json: holds .*need one of sts, transfer, mteb"),
        ({"suite": "sts", "split": "test"}, "not a whole sts result: tasks"),
        ({"suite": "sts", "tasks": {"STS12": 3}}, "tasks: STS12 is 3"),
        ({"suite": "sts", "tasks": {"STS12": {}}}, "STS12 has no score"),
        ({"suite": "sts", "tasks": {"STS12": {"score": "high"}}}, "STS12.score: 'high'"),
        (
            {"suite": "sts", "tasks": {"STS12": {"score": 1, "spearman": {"all": "x"}}}},
            "spearman: all is 'x'",
        ),
        ({"suite": "mteb", "tasks": {}, "n_tasks": 0.5}, "n_tasks: 0.5"),
    ],
)
def test_what_is_no_whole_result_is_refused(content, message):
    with pytest.raises(DataError, match=message):
        SuiteResult.from_json(content, "r.json")


@pytest.mark.parametrize(
    ("values", "shown"),
    [
        ([-3.81712, -3.74, 0.003838], ["-3.817", "-3.740", "0.003838"]),
        ([239.7, 238.0, None, 1e-9], ["239.7", "238.0", "–", "1e-09"]),
        ([0.25, 0.125, 0.0], ["0.250", "0.125", "0.000"]),
        ([3, 1.25], ["3.00", "1.25"]),
        ([12345.0, 7.0], ["1.234e+04", "7"]),
    ],
)
def test_numbers_of_a_column_keep_their_zeros(values, shown):
    table = Report("", [Column("x", kind="number")], [{"x": value} for value in values])
    assert table.cells() == [[cell] for cell in shown]


def test_columns_of_a_text_table_are_as_wide_as_their_letters_on_a_terminal():
    texts = ["plain", "我昨天", "ที่นี่", "e\u0301te\u0301"]
    rows = [{"text": text, "n": 1} for text in texts]
    table = to_text(Report("", [Column("text"), Column("n", kind="count")], rows))
    # Wide letters take two places, and marks none.
    assert [line.rpartition("1")[0] for line in table.splitlines()[1:]] == [
        "plain   ",
        "我昨天  ",
        "ที่นี่      ",
        "e\u0301te\u0301     ",
    ]
