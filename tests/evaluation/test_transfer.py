import dataclasses
import zlib
from contextlib import nullcontext
from types import SimpleNamespace

import numpy as np
import pytest
from sklearn.metrics import f1_score as sklearn_f1

from helpers import write_transfer_folder
from simcse_cli.data.transfer_files import (
    TransferTask,
    read_task_file,
    read_transfer_task,
    transfer_files,
)
from simcse_cli.errors import DataError, TrainingError
from simcse_cli.evaluation import probe, transfer
from simcse_cli.evaluation.embedding_cache import EvaluationCache
from simcse_cli.evaluation.folds import stratified_folds
from simcse_cli.evaluation.probe import PROBE_SETTINGS, run_probe
from simcse_cli.evaluation.transfer import (
    TransferSuite,
    evaluate_transfer,
    f1_score,
    outer_splits,
)
from simcse_cli.progress import SILENT, SilentProgress
from simcse_cli.results.examples import same_examples
from simcse_cli.settings.choices import TRANSFER_TASKS, Probe, TransferProtocol

FAST = TransferProtocol.FAST


class HashingEncoder:
    """A bag of hashed words; counts the sentences it was asked for."""

    def __init__(self, dim=12):
        self.table = np.random.default_rng(0).normal(size=(997, dim)).astype(np.float32)
        self.n_sentences = 0

    def __call__(self, sentences):
        self.n_sentences += len(sentences)
        rows = [[zlib.crc32(word.encode()) % 997 for word in s.split()] for s in sentences]
        return np.stack([self.table[row].sum(axis=0) if row else 0 * self.table[0] for row in rows])


@pytest.fixture
def senteval(tmp_path):
    return write_transfer_folder(tmp_path / "senteval")


def evaluate(encode, root, *, cache=None, progress=SILENT, **options):
    suite = TransferSuite(root, **{"protocol": FAST} | options)
    return evaluate_transfer(encode, suite, cache=cache, progress=progress)


def test_all_seven_tasks_are_scored_in_the_documented_form(senteval):
    progress = SilentProgress()
    record = (
        evaluate(HashingEncoder(), senteval, progress=progress)
        .with_settings(model="hash")
        .to_json()
    )
    assert (record["suite"], record["protocol"], record["model"]) == ("transfer", "fast", "hash")
    assert list(record["tasks"]) == list(TRANSFER_TASKS)
    for name, task in record["tasks"].items():
        assert 1 / (6 if name == "TREC" else 2) < task["accuracy"] <= 1
        assert ("f1" in task) == (name == "MRPC")
    assert record["average"] == pytest.approx(
        np.mean([t["accuracy"] for t in record["tasks"].values()])
    )
    assert record["average_dev"] == pytest.approx(
        np.mean([t["dev_accuracy"] for t in record["tasks"].values()])
    )
    assert "MR all has 110 rows, the published set 10,662" in progress.warnings[0]


def test_task_score_is_that_of_its_probe(senteval):
    encode = HashingEncoder()
    result = evaluate(encode, senteval, tasks=("CR",))
    score, found = result.tasks["CR"], result.examples["CR"]
    task = read_transfer_task(senteval, "CR")
    outer = stratified_folds(task.labels, 5, seed=1111)
    probe = run_probe(
        encode(task.left), task.labels, outer, PROBE_SETTINGS[FAST], progress=SilentProgress()
    )
    assert (score.extra["dev_accuracy"], score.score) == (probe.dev_accuracy, probe.accuracy)
    assert np.array_equal(found.gold, task.labels)
    assert np.array_equal(found.predicted, probe.predictions)
    assert found.correct.mean() == pytest.approx(score.score, abs=0.01)


def test_second_call_computes_nothing(senteval, tmp_path, monkeypatch):
    encode, cache = HashingEncoder(), EvaluationCache(tmp_path / "cache", "hash")
    first = evaluate(encode, senteval, tasks=("CR", "MRPC"), cache=cache)
    n_sentences = encode.n_sentences
    monkeypatch.setattr(probe, "run_probe", None)
    second = evaluate(encode, senteval, tasks=("CR", "MRPC"), cache=cache)
    assert encode.n_sentences == n_sentences
    assert first.tasks == second.tasks
    assert np.array_equal(first.examples["MRPC"].predicted, second.examples["MRPC"].predicted)


def test_task_files_stand_beside_the_tasks_of_a_folder(senteval):
    own = dataclasses.replace(read_transfer_task(senteval, "MR"), name="own")
    scores = evaluate(HashingEncoder(), senteval, tasks=("own", "CR"), own_tasks={"own": own}).tasks
    assert [score.n for score in scores.values()] == [len(own.left), 110]


def test_kept_results_are_found_by_all_that_they_depend_on(senteval):
    class Asking(EvaluationCache):
        def __init__(self):
            super().__init__(None, "")

        def load_result(self, name, key):
            asked.append(key)

    asked: list[dict] = []
    evaluate(HashingEncoder(), senteval, tasks=("CR",), cache=Asking())
    task, settings = read_transfer_task(senteval, "CR"), PROBE_SETTINGS[FAST]
    assert asked == [
        {
            "version": transfer._RESULT_VERSION,
            "probe": "senteval",
            "settings": dataclasses.asdict(settings),
            "data": task.digest,
        }
    ]


def test_kept_results_are_of_the_same_split(tmp_path):
    """The same texts and labels in the same order are another task if other rows are tested."""
    rows = [f"{'word ' * length}{length},{length % 2}" for length in range(1, 101)]
    scores = []
    cache = EvaluationCache(tmp_path / "cache", "hash")
    for n_train in (60, 80):
        path = tmp_path / "own.csv"
        parts = ["train"] * n_train + ["test"] * (len(rows) - n_train)
        lines = [f"{row},{part}" for row, part in zip(rows, parts, strict=True)]
        path.write_text("\n".join(["text,label,split", *lines]))
        own = {"own": read_task_file(path)}
        result = evaluate(HashingEncoder(), None, tasks=("own",), own_tasks=own, cache=cache)
        scores.append(result.tasks["own"].n)
    assert scores == [40, 20]


def test_tasks_finished_before_a_failure_are_kept(senteval, tmp_path, monkeypatch):
    encode, cache = HashingEncoder(), EvaluationCache(tmp_path / "cache", "hash")

    def failing_probe(*arguments, description, **options):
        if description == "TREC probe":
            raise TrainingError("the probe diverged")
        return run_probe(*arguments, description=description, **options)

    monkeypatch.setattr(probe, "run_probe", failing_probe)
    with pytest.raises(TrainingError, match="TREC: the probe diverged"):
        evaluate(encode, senteval, tasks=("CR", "TREC"), cache=cache)
    n_sentences = encode.n_sentences
    monkeypatch.setattr(probe, "run_probe", None)
    assert evaluate(encode, senteval, tasks=("CR",), cache=cache).tasks["CR"].score > 0.5
    assert encode.n_sentences == n_sentences


def test_another_protocol_or_probe_or_changed_file_is_computed_anew(senteval, tmp_path):
    encode, cache = HashingEncoder(), EvaluationCache(tmp_path / "cache", "hash")
    evaluate(encode, senteval, tasks=("CR",), cache=cache)
    sklearn = evaluate(encode, senteval, tasks=("CR",), cache=cache, probe=Probe.SKLEARN)
    assert sklearn.tasks["CR"].extra["penalties"][0] >= 1e-4
    path = transfer_files(senteval, "CR")["pos"]
    path.write_text(path.read_text() + "one more good line\n")
    assert evaluate(encode, senteval, tasks=("CR",), cache=cache).tasks["CR"].n == 111


def test_a_task_that_lacks_files_is_left_out_as_in_sts(senteval):
    """The scores of the others are those without it, and without any task nothing is encoded."""
    whole = evaluate(HashingEncoder(), senteval, tasks=("CR",))
    lacking = [transfer_files(senteval, "SST2")["dev"], transfer_files(senteval, "TREC")["test"]]
    for path in lacking:
        path.unlink()
    progress = SilentProgress()
    found = evaluate(HashingEncoder(), senteval, tasks=("CR", "SST2", "TREC"), progress=progress)
    assert found.scores == {**whole.scores, "SST2": None, "TREC": None}
    assert (found.average, found.figures["average_dev"]) == (
        whole.average,
        whole.figures["average_dev"],
    )
    assert found.missing == {
        name: f"no {path}" for name, path in zip(("SST2", "TREC"), lacking, strict=True)
    }
    assert [warning.split(":")[0] for warning in progress.warnings][:2] == [
        f"{name} is left out of the average" for name in ("SST2", "TREC")
    ]
    encode = HashingEncoder()
    with pytest.raises(DataError, match=r"none of TREC can be scored below .*TREC_10\.label"):
        evaluate(encode, senteval, tasks=("TREC",))
    assert encode.n_sentences == 0


def test_vectors_that_are_not_finite_are_an_error(senteval):
    def encode(batch):
        return np.full((len(batch), 3), np.nan, dtype=np.float32)

    with pytest.raises(DataError, match="CR: the vectors of 110 of 110 examples are not finite"):
        evaluate(encode, senteval, tasks=("CR",))


def test_too_few_examples_for_the_folds_are_an_error(senteval):
    transfer_files(senteval, "CR")["neg"].write_text("bad one\nbad two\n")
    with pytest.raises(DataError, match="CR: a class has 2 training examples, need 7 for 5 folds"):
        outer_splits(read_transfer_task(senteval, "CR"), PROBE_SETTINGS[FAST])


@pytest.mark.parametrize(("sizes", "is_proposed"), [((10, 10), False), ((7, 18), True)])
def test_the_fast_protocol_is_proposed_where_it_works(sizes, is_proposed):
    task = fold_task(*sizes)
    with pytest.raises(DataError, match="need 12 for 10 folds") as caught:
        outer_splits(task, PROBE_SETTINGS[TransferProtocol.DEFAULT])
    assert ("--protocol fast" in caught.value.hint) is is_proposed
    with nullcontext() if is_proposed else pytest.raises(DataError):
        outer_splits(task, PROBE_SETTINGS[FAST])


@pytest.mark.parametrize("n_folds", [5, 10])
def test_smallest_accepted_class_is_enough_for_the_inner_folds(n_folds):
    labels = np.repeat([0, 1], [40, n_folds + 2])
    for fold in stratified_folds(labels, n_folds, seed=1111):
        stratified_folds(labels[fold.train], n_folds, seed=1111)


def test_predictions_are_those_of_the_test_examples_with_their_sentences(senteval):
    result = evaluate(HashingEncoder(), senteval, tasks=("CR", "TREC", "MRPC"))
    found = result.examples
    cr = read_transfer_task(senteval, "CR")
    assert found["CR"].left == tuple(cr.left)
    assert found["CR"].right == ()
    for name in ("TREC", "MRPC"):
        task = read_transfer_task(senteval, name)
        rows = task.parts["test"]
        assert found[name].left == tuple(task.left[row] for row in rows)
        assert np.array_equal(found[name].gold, task.labels[rows.start : rows.stop])
        assert found[name].correct.mean() == pytest.approx(result.tasks[name].score)
    assert found["MRPC"].right == tuple(
        read_transfer_task(senteval, "MRPC").right[row] for row in rows
    )


def test_examples_line_up_whatever_the_classifier(senteval):
    fast, sklearn = (
        evaluate(HashingEncoder(), senteval, tasks=("CR",), probe=probe).examples
        for probe in (Probe.SENTEVAL, Probe.SKLEARN)
    )
    assert same_examples(fast, sklearn, "CR")


def fold_task(*counts, classes=()):
    """Return a task without a test set whose classes have so many examples."""
    labels = np.repeat(np.arange(len(counts)), counts)
    return TransferTask(
        "own", ["x"] * len(labels), [], labels, {"all": range(len(labels))}, len(counts), classes
    )


def test_a_class_of_a_fold_task_needs_two_examples_more_than_folds():
    settings = PROBE_SETTINGS[FAST]
    folds, dev_rows = outer_splits(fold_task(40, 7), settings)
    assert (len(folds), dev_rows) == (5, None)
    expected = stratified_folds(np.repeat([0, 1], [40, 7]), 5, seed=1111)
    assert all(np.array_equal(a.test, b.test) for a, b in zip(folds, expected, strict=True))
    with pytest.raises(
        DataError, match=r"a class \(rare\) has 6 training examples, need 7 for 5 folds"
    ):
        outer_splits(fold_task(40, 6, classes=("common", "rare")), settings)


def test_a_class_of_a_task_with_a_test_set_needs_one_example_a_fold():
    labels = np.repeat([0, 1], [20, 5])
    task = TransferTask(
        "own",
        ["x"] * 28,
        [],
        np.append(labels, [0, 1, 1]),
        {"train": range(25), "test": range(25, 28)},
        2,
    )
    ((fold,), dev_rows) = outer_splits(task, PROBE_SETTINGS[FAST])
    assert (fold.train.tolist(), fold.test.tolist(), dev_rows) == (
        list(range(25)),
        [25, 26, 27],
        None,
    )
    short = dataclasses.replace(task, labels=np.append(np.repeat([0, 1], [21, 4]), [0, 1, 1]))
    with pytest.raises(DataError, match="a class has 4 training examples, need 5"):
        outer_splits(short, PROBE_SETTINGS[FAST])


@pytest.mark.parametrize(("n_train", "is_enough"), [(19, False), (20, True)])
def test_five_percent_of_the_training_rows_are_one_at_least(n_train, is_enough):
    labels = np.arange(n_train + 2) % 2
    parts = {"train": range(n_train), "test": range(n_train, n_train + 2)}
    task = TransferTask("own", ["x"] * len(labels), [], labels, parts, 2)
    if is_enough:
        outer_splits(task, PROBE_SETTINGS[FAST])
    else:
        with pytest.raises(DataError, match="19 training examples, need 20 to hold some out"):
            outer_splits(task, PROBE_SETTINGS[FAST])


def test_the_smallest_fold_has_to_be_large_enough():
    assert len(outer_splits(fold_task(13, 12), PROBE_SETTINGS[FAST])[0]) == 5
    with pytest.raises(DataError, match="19 training examples, need 20 to hold some out"):
        outer_splits(fold_task(12, 12), PROBE_SETTINGS[FAST])


def test_seconds_are_those_of_all_tasks(senteval, monkeypatch):
    clock = iter([10.0, 12.5])
    monkeypatch.setattr(transfer, "time", SimpleNamespace(perf_counter=lambda: next(clock)))
    assert evaluate(HashingEncoder(), senteval, tasks=("CR",)).figures["seconds"] == 2.5


def test_f1_score_equals_that_of_scikit_learn():
    gold, predicted = np.random.default_rng(0).integers(0, 2, (2, 50))
    assert f1_score(gold, predicted) == pytest.approx(sklearn_f1(gold, predicted))
    assert f1_score(np.zeros(3, dtype=int), np.zeros(3, dtype=int)) == 0
