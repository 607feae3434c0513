import hashlib
import random

import numpy as np
import pytest

from simcse_cli.prepare.minhash import NearIndex, jaccard, shingles


def fill(texts, threshold=0.7):
    index = NearIndex(threshold)
    for sketch in index.sketch(texts):
        index.add(sketch)
    return index


def find(index, text):
    return index.find(index.sketch([text])[0])


def plain_jaccard(first, second):
    left, right = set(shingles(first).tolist()), set(shingles(second).tolist())
    return len(left & right) / len(left | right)


def test_shingles_are_words_and_word_pairs_with_borders():
    # a, b, "< a", "a b", "b >"
    assert len(shingles("A b.")) == 5
    assert shingles("A b.").tolist() == shingles("a  B").tolist()
    assert shingles("a b").tolist() != shingles("b a").tolist()


def test_shingles_of_text_without_words_differ():
    assert shingles("!!!").tolist() != shingles("???").tolist()


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("I like C++", "I like C#"),
        ("It is -5 °C", "It is +5 °C"),
        ("1.000 euros", "1,000 euros"),
        ("Fine 😀", "Fine 😭"),
    ],
)
def test_shingles_keep_the_marks_that_exact_duplicates_keep(first, second):
    assert plain_jaccard(first, second) < 1


def test_jaccard_agrees_with_sets(sentences):
    others = [*sentences, "A man is playing.", "one"]
    for first in others:
        expected = [plain_jaccard(first, other) for other in others]
        assert jaccard(shingles(first), [shingles(other) for other in others]) == pytest.approx(
            expected
        )


def test_near_index_finds_copies_and_small_changes(sentences):
    index = fill(sentences)
    for number, text in enumerate(sentences):
        assert number in find(index, text.upper())
    changed = sentences[4].replace("tall", "dry")
    assert plain_jaccard(changed, sentences[4]) > 0.7
    assert find(index, changed) == [4]


def test_near_index_returns_nothing_below_the_threshold(sentences):
    rng = random.Random(0)
    index = fill(sentences)
    for text in sentences:
        shuffled = text.split()
        rng.shuffle(shuffled)
        for number in find(index, " ".join(shuffled)):
            assert plain_jaccard(" ".join(shuffled), sentences[number]) >= 0.7


def test_near_index_recall_matches_its_formula():
    rng = random.Random(1)
    vocabulary = [f"w{i}" for i in range(5000)]
    originals = [" ".join(rng.choices(vocabulary, k=20)) for _ in range(300)]
    copies = []
    for text in originals:
        changed = text.split()
        changed[rng.randrange(20)] = "new"
        copies.append(" ".join(changed))
    similarity = np.mean([plain_jaccard(a, b) for a, b in zip(originals, copies, strict=True)])
    index = fill([*originals, *copies], threshold=0.5)  # the copy itself comes first in every chain
    found = np.mean([number in find(index, copy) for number, copy in enumerate(copies)])
    assert found == pytest.approx(1 - (1 - similarity**4) ** 16, abs=0.02)


def test_near_index_with_the_highest_threshold_finds_equal_texts_alone(sentences):
    index = fill(sentences, threshold=1.0)
    assert [find(index, text) for text in sentences] == [
        [number] for number in range(len(sentences))
    ]
    assert find(NearIndex(1.0), sentences[0]) == []


def test_near_index_has_the_keys_of_earlier_versions():
    keys = np.array([row for _, row in NearIndex(0.5).sketch(["Two dogs run."])], dtype="<u8")
    assert hashlib.sha256(keys.tobytes()).hexdigest()[:16] == "2bc1d50787e574b8"


def test_near_index_does_not_depend_on_batches(sentences):
    one_by_one = NearIndex(0.7)
    alone = [one_by_one.sketch([text])[0] for text in sentences]
    together = one_by_one.sketch(sentences)
    for (shingles_a, keys_a), (shingles_b, keys_b) in zip(alone, together, strict=True):
        assert keys_a == keys_b
        assert shingles_a.tolist() == shingles_b.tolist()


@pytest.mark.parametrize("threshold", [0.0, 1.5])
def test_near_index_refuses_impossible_thresholds(threshold):
    with pytest.raises(ValueError, match="threshold"):
        NearIndex(threshold)
