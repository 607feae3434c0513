import pytest

from simcse_cli.data.overlap import OverlapMean, overlap_f1
from simcse_cli.data.readers import iter_records


def slow_f1(first, second):
    """Cross off each word of one side in the other, one by one."""
    left, right = first.lower().split(), second.lower().split()
    n_words = len(left) + len(right)
    shared = 0
    for word in left:
        if word in right:
            right.remove(word)
            shared += 1
    return 2 * shared / n_words


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        ("a dog runs", "a dog sleeps here", 4 / 7),
        ("A dog runs.", "runs a dog", 1.0),
        ("yes", "no", 0.0),
        ("", "...", 0.0),
        ("a a a", "a", 0.5),
    ],
)
def test_overlap_f1_of_known_pairs(first, second, expected):
    assert overlap_f1(first, second) == pytest.approx(expected)


def test_overlap_f1_of_sets_counts_each_word_once():
    assert overlap_f1("a a a", "a", multiset=False) == 1.0


def test_overlap_f1_agrees_with_crossing_off_and_is_symmetric(sentences):
    for first in sentences[:8]:
        for second in sentences:
            first, second = first.strip(".?"), second.strip(".?")
            assert overlap_f1(first, second) == pytest.approx(slow_f1(first, second))
            assert overlap_f1(first, second) == overlap_f1(second, first)


def test_overlap_mean_has_no_value_before_the_first_pair():
    mean = OverlapMean()
    assert mean.value is None
    mean.add("a b", "a b")
    mean.add("a", "b")
    assert (mean.value, mean.n_pairs) == (0.5, 2)


def test_overlap_f1_of_snli_entailments_is_near_the_papers_39_percent(shared_data):
    mean = OverlapMean()
    for split in ("dev", "test"):
        for _, record in iter_records(shared_data / "nli" / f"snli_{split}.jsonl"):
            if record["gold_label"] == "entailment":
                mean.add(record["sentence1"], record["sentence2"])
    assert mean.value == pytest.approx(0.39, abs=0.01)
