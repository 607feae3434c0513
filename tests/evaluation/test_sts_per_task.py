import numpy as np
import pytest

from simcse_cli.errors import DataError
from simcse_cli.evaluation.sts import StsResult, evaluate_sts
from simcse_cli.evaluation.sts_per_task import evaluate_per_task
from simcse_cli.progress import SilentProgress


def encode(sentences):
    return np.array([[len(s), s.count("a"), s.count("e") + 1] for s in sentences], dtype=np.float32)


def test_one_by_one_gives_the_result_of_all_at_once(sts_folder):
    tasks = ("STS12", "STSBenchmark", "SICKRelatedness")

    def one(task: str) -> StsResult:
        return evaluate_sts(encode, sts_folder, tasks=(task,))

    joined = evaluate_per_task(one, tasks, progress=SilentProgress())
    whole = evaluate_sts(encode, sts_folder, tasks=tasks)
    assert joined.scores() == whole.scores()
    assert joined.average == whole.average
    assert joined.n_sentences == whole.n_sentences


def failing_on(names: set[str], folder):
    def one(task: str) -> StsResult:
        if task in names:
            raise DataError(f"{task} is not there")
        return evaluate_sts(encode, folder, tasks=(task,))

    return one


def test_a_missing_task_is_left_out_with_the_reason(sts_folder):
    progress = SilentProgress()
    joined = evaluate_per_task(failing_on({"STS12"}, sts_folder), ("STS12", "STS13"), progress=progress)
    assert joined.scores()["STS12"] is None
    assert joined.average == joined.scores()["STS13"]
    assert joined.missing == {"STS12": "STS12 is not there"}
    assert "STS12 is left out" in progress.warnings[0]


def test_nothing_at_all_is_an_error(sts_folder):
    with pytest.raises(DataError, match="STS13 is not there"):
        evaluate_per_task(
            failing_on({"STS12", "STS13"}, sts_folder), ("STS12", "STS13"), progress=SilentProgress()
        )
