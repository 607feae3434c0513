"""Pairs that chose a model are no test of it, in whatever file they come back."""

import json

import pytest

from helpers import SENTENCES
from simcse_cli.data.senteval import digest_of_pairs, read_sts_task
from simcse_cli.results.result import CHOSE_MODEL, NO_TEST

DEV = "downstream/STS/STSBenchmark/sts-dev.csv"


@pytest.fixture
def run(invoke, tiny_model_dir, sts_folder, tmp_path):
    """A run that the dev pairs of STS-B have chosen."""
    source = tmp_path / "sentences.txt"
    source.write_text("\n".join(SENTENCES) + "\n")
    files = ("--model", tiny_model_dir, "--train-file", source, "--dev-file", sts_folder / DEV)
    length = ("--batch-size", 4, "--max-steps", 1, "--eval-every", 1, "--device", "cpu")
    outcome = invoke("train", *files, *length, "-o", tmp_path / "run")
    assert outcome.exit_code == 0, outcome.stderr
    return tmp_path / "run"


@pytest.fixture
def pair_file(sts_folder, tmp_path):
    """The same pairs in another order and format, on another scale, with sides exchanged."""
    (subset,) = read_sts_task(sts_folder, "STSBenchmark", split="dev").subsets.values()
    rows = ["sentence1\tsentence2\tscore"]
    for left, right, gold in zip(subset.left, subset.right, subset.gold, strict=True):
        rows.insert(1, f"{right}\t{left}\t{20 * gold}")
    path = tmp_path / "own.tsv"
    path.write_text("\n".join(rows) + "\n")
    return path


def test_digest_ignores_order_sides_and_repetition():
    pairs = [("a b", "c"), ("d", "e")]
    assert digest_of_pairs(pairs) == digest_of_pairs([("e", "d"), ("c", "a b"), ("d", "e")])
    assert digest_of_pairs(pairs) != digest_of_pairs([("a", "b c"), ("d", "e")])


def test_pairs_that_chose_are_known_as_task_and_as_file(
    invoke, run, tiny_model_dir, sts_folder, pair_file
):
    as_task = ("--data-dir", sts_folder, "--tasks", "STSBenchmark", "--split", "dev")
    as_file = ("--pair-file", pair_file)
    for data, name in ((as_task, "STSBenchmark"), (as_file, "own")):
        for model in (run, run / "model"):
            outcome = invoke("eval", "sts", "--model", model, *data, "--format", "json")
            assert json.loads(outcome.stdout)["chosen_on"] == [name]
        outcome = invoke("eval", "sts", "--model", run, *data)
        assert NO_TEST in outcome.stdout + outcome.stderr
        other = invoke("eval", "sts", "--model", tiny_model_dir, *data, "--format", "json")
        assert "chosen_on" not in json.loads(other.stdout)


def test_other_pairs_are_a_test(invoke, run, sts_folder):
    tasks = ("--data-dir", sts_folder, "--tasks", "STSBenchmark", "--format", "json")
    outcome = invoke("eval", "sts", "--model", run, *tasks)
    assert "chosen_on" not in json.loads(outcome.stdout)


def test_card_comparison_and_page_name_them(invoke, run, pair_file, tmp_path):
    result, page = tmp_path / "own.json", tmp_path / "page.html"
    invoke("eval", "sts", "--model", run, "--pair-file", pair_file, "-o", result)
    assert f"| own | {CHOSE_MODEL} |" in (run / "README.md").read_text()
    for compared in (run, result):
        assert f"own of {compared.stem}: {NO_TEST}" in invoke("compare", compared).stderr
    pytest.importorskip("matplotlib")
    outcome = invoke("analyze", "report", run, "-o", page)
    assert outcome.exit_code == 0, outcome.stderr
    assert f"own of run: {NO_TEST}" in page.read_text(encoding="utf-8")
