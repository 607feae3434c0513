import random

import pytest

from helpers import CountingProgress, write_transfer_folder
from simcse_cli.data.demo import build_demo_corpus, write_demo_corpus
from simcse_cli.data.demo_grammar import DemoSizes
from simcse_cli.data.jobs import Job
from simcse_cli.data.table import Table
from simcse_cli.errors import ConfigError, DataError
from simcse_cli.prepare.leak import LeakFilter, evaluation_sentences, leak_filter
from simcse_cli.prepare.options import RowOptions

LONG = "Two dogs are running through a field of tall grass near the river."
SENTENCES = {"A": [LONG, "A man plays a guitar."], "B": ["A man plays a guitar.", "Very good."]}


def check(rows, **settings):
    leak = LeakFilter(SENTENCES, **settings)
    reasons = leak.reasons(rows)
    return reasons, {found.task: found for found in leak.result()}


def test_leak_filter_counts_exact_occurrences_per_task():
    reasons, found = check(
        [("x", "a man plays a guitar"), ("A man plays a guitar .", "y"), ("y", "z")]
    )
    assert reasons == [None] * 3
    assert (found["A"].n_sentences, found["A"].n_exact, found["A"].n_rows) == (2, 1, 2)
    assert (found["B"].n_sentences, found["B"].n_exact, found["B"].n_rows) == (1, 1, 2)
    assert found["A"].n_near is None


def test_leak_filter_leaves_sentences_of_two_words_out():
    assert check([("Very good.",)])[1]["B"].n_rows == 0
    leak = LeakFilter({"C": ["It is raining."]})
    leak.reasons([("it is raining",)])
    assert leak.result()[0].n_rows == 1


def test_leak_filter_drops_rows_if_asked():
    assert check([("A man plays a guitar",), ("b",)], drop=True)[0] == ["in_evaluation_set", None]


def test_leak_filter_finds_near_occurrences():
    _, found = check([(LONG.replace("tall", "dry"),)], near=0.7)
    assert (found["A"].n_exact, found["A"].n_near, found["A"].n_rows) == (0, 1, 1)


def test_leak_filter_counts_a_sentence_found_both_ways_as_exact():
    _, found = check([(LONG.replace("tall", "dry"),), (LONG,)], near=0.7)
    assert (found["A"].n_exact, found["A"].n_near, found["A"].n_rows) == (1, 0, 2)


def test_evaluation_sentences_takes_the_tasks_that_are_there(tmp_path):
    corpus = build_demo_corpus(DemoSizes(sentences=5, triplets=5, pairs=40, documents=1), seed=1)
    write_demo_corpus(corpus, tmp_path)
    found = evaluation_sentences(tmp_path)
    assert list(found) == ["STSBenchmark"]
    assert len(found["STSBenchmark"]) == 80


def test_evaluation_sentences_leaves_the_training_part_of_transfer_tasks_out(tmp_path):
    root = write_transfer_folder(tmp_path, n_good=4, n_bad=3) / "downstream"
    found = evaluation_sentences(tmp_path)
    assert {task: len(texts) for task, texts in found.items()} == {
        **dict.fromkeys(("MR", "CR", "SUBJ", "MPQA"), 7), "SST2": 14, "TREC": 4, "MRPC": 14
    }  # fmt: skip
    lines = [
        (root / f"SST/binary/sentiment-{part}").read_text().splitlines() for part in ("dev", "test")
    ]
    assert sorted(found["SST2"]) == sorted(line.split("\t")[0] for part in lines for line in part)


@pytest.mark.parametrize("flag", ["drop_leaks", "leak_near"])
def test_leak_filter_does_what_the_options_say(tmp_path, flag):
    with pytest.raises(
        ConfigError, match=f"^--{flag.replace('_', '-')} needs the evaluation folder"
    ):
        leak_filter(RowOptions(output=tmp_path / "a.txt", **{flag: True}), CountingProgress())
    assert leak_filter(RowOptions(output=tmp_path / "a.txt"), CountingProgress()) is None
    write_transfer_folder(tmp_path, n_good=4, n_bad=3)
    progress, longest = CountingProgress(), max(evaluation_sentences(tmp_path)["MRPC"], key=len)
    leak = leak_filter(
        RowOptions(output=tmp_path / "a.txt", check_leak=tmp_path, **{flag: True}), progress
    )
    assert (
        progress.said
        == "looking for 60 evaluation sentences of MR, CR, SUBJ, MPQA, SST2, TREC, MRPC"
    )
    assert leak.reasons([(longest,)]) == [("in_evaluation_set" if flag == "drop_leaks" else None)]
    assert [each.n_near is None for each in leak.result()] == [flag == "drop_leaks"] * 7


def test_evaluation_sentences_refuses_other_folders(tmp_path):
    with pytest.raises(DataError, match="SentEval"):
        evaluation_sentences(tmp_path)


@pytest.fixture(scope="module")
def captions(shared_data):
    return [
        (text,) for text in Table(shared_data / "flickr30k" / "captions.tsv", Job.TEXTS).texts()
    ]


@pytest.fixture(scope="module")
def evaluation_sets(shared_data):
    return evaluation_sentences(shared_data / "senteval")


def test_leak_filter_finds_the_sts_sentences_in_flickr_captions(evaluation_sets, captions):
    leak = LeakFilter(evaluation_sets)
    leak.reasons(captions)
    found = {task.task: task.n_exact for task in leak.result() if task.n_exact}
    assert found == {
        "STS12": 29,
        "STS14": 5,
        "STS15": 1210,
        "STSBenchmark": 1370,
        "SICKRelatedness": 137,
    }
    together = LeakFilter({"all": [text for texts in evaluation_sets.values() for text in texts]})
    together.reasons(captions)
    assert together.result()[0].n_exact == 1475


@pytest.mark.parametrize(("near", "n_rows"), [(None, 20000), (0.7, 2000)])
def test_leak_filter_finds_nothing_in_shuffled_captions(evaluation_sets, captions, near, n_rows):
    rng = random.Random(0)
    noise = []
    for (text,) in captions[:n_rows]:
        tokens = text.split()
        rng.shuffle(tokens)
        noise.append((" ".join(tokens),))
    leak = LeakFilter({"STS15": evaluation_sets["STS15"]}, near=near)
    for start in range(0, n_rows, 1000):
        leak.reasons(noise[start : start + 1000])
    assert leak.result()[0].n_rows == 0
