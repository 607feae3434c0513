from collections import Counter

import numpy as np
import pytest
from scipy.stats import beta, chisquare

from simcse_cli.data.training_file import TrainingRows
from simcse_cli.errors import DataError
from simcse_cli.objectives.ct import ContrastiveTension, sample_tension_pairs
from simcse_cli.objectives.declutr import SpanSampler
from simcse_cli.objectives.mlm import NOT_MASKED, Masking
from simcse_cli.objectives.next_sentence import sample_next, sentences_and_following

MASK, SPECIAL = 4, (0, 2, 3)
DOCUMENTS = [["a", "b", "c", "d"], ["e"], ["f", "g"]]


def test_sentences_and_following_counts_what_follows():
    sentences, following = sentences_and_following(DOCUMENTS)
    assert sentences == list("abcdefg")
    assert following.tolist() == [3, 2, 1, 0, 0, 1, 0]


def test_positions_in_no_documents_are_none():
    sentences, following = sentences_and_following([])
    assert (sentences, following.tolist()) == ([], [])


def test_sample_next_with_window_1_is_the_following_sentence():
    sentences, following = sentences_and_following(DOCUMENTS)
    anchors, positives = sample_next(following, window=1, generator=np.random.default_rng(0))
    assert [sentences[i] + sentences[j] for i, j in zip(anchors, positives, strict=True)] == [
        "ab",
        "bc",
        "cd",
        "fg",
    ]


def test_sample_next_draws_evenly_within_the_document():
    following = np.arange(5, -1, -1)
    generator = np.random.default_rng(0)
    draws = np.stack(
        [sample_next(following, window=3, generator=generator)[1] for _ in range(6000)]
    )
    for anchor, n_choices in enumerate([3, 3, 3, 2, 1]):
        distances, counts = np.unique(draws[:, anchor] - anchor, return_counts=True)
        assert distances.tolist() == list(range(1, n_choices + 1))
        assert n_choices == 1 or chisquare(counts).pvalue > 0.001


def test_sample_tension_pairs_groups_one_positive_with_k_negatives():
    left, right, is_positive = sample_tension_pairs(
        9, n_negatives=7, generator=np.random.default_rng(0)
    )
    groups = [side.reshape(9, 8) for side in (left, right, is_positive)]
    assert (groups[0][:, 0] == groups[1][:, 0]).all()
    assert (groups[2] == ([True] + [False] * 7)).all()
    default = sample_tension_pairs(9, generator=np.random.default_rng(0))
    assert all(
        (one == other).all() for one, other in zip(default, (left, right, is_positive), strict=True)
    )


def test_sample_tension_pairs_draws_positives_and_both_sides_of_negatives_independently():
    generator = np.random.default_rng(0)
    triples = np.zeros((4, 4, 4))
    n_distinct = []
    for _ in range(3000):
        left, right, is_positive = sample_tension_pairs(4, n_negatives=1, generator=generator)
        n_distinct.append(len(set(left[is_positive])))
        np.add.at(triples, (left[is_positive], left[~is_positive], right[~is_positive]), 1)
    assert chisquare(triples.ravel()).pvalue > 0.001
    # Four draws with replacement from four sentences: 4!/4^4 of the epochs have each of them once.
    assert abs(np.mean(np.array(n_distinct) == 4) - 24 / 256) < 0.02


def test_tension_needs_two_sentences(tiny_encoder):
    assert len(sample_tension_pairs(2, generator=np.random.default_rng(0))[0]) == 16
    rows = TrainingRows("equal.txt", ("anchor",), [("a dog",)] * 3, 0, "")
    with pytest.raises(DataError, match=r"equal\.txt: all texts are equal, need two"):
        ContrastiveTension(tiny_encoder).examples(rows, np.random.default_rng(0))


def length_probabilities(a, b, sampler):
    """Return P(length) of ``floor(beta * (max - min) + min)``, from the distribution function of beta."""
    width = sampler.max_length - sampler.min_length
    edges = beta.cdf(np.arange(width + 1) / width, a, b)
    return dict(zip(range(sampler.min_length, sampler.max_length), np.diff(edges), strict=True))


def block_probabilities(blocks, n_left):
    """Return P(blocks of the anchors, in order), by the rule of the original: a chosen block takes its neighbours
    in the list with it; with few blocks for the anchors that are left, the first or the last is
    chosen.
    """
    if n_left == 0:
        return {(): 1.0}
    ends = len(blocks) // n_left < n_left
    choices = [0, len(blocks) - 1] if ends else range(len(blocks))
    found = Counter()
    for i in choices:
        rest = blocks[: max(0, i - 1)] + blocks[i + 2 :]
        for later, share in block_probabilities(rest, n_left - 1).items():
            found[(blocks[i], *later)] += share / len(choices)
    return found


def assert_follows(observed, expected):
    """Compare counts with expected ones by chi-square; rare outcomes count as one."""
    assert set(observed) <= set(expected)
    rare = {outcome for outcome, share in expected.items() if share < 5}
    counts = [
        [table.get(o, 0) for o in expected if o not in rare] for table in (observed, expected)
    ]
    if sum(expected[o] for o in rare) >= 5:
        for row, table in zip(counts, (observed, expected), strict=True):
            row.append(sum(table.get(o, 0) for o in rare))
    scale = sum(counts[0]) / sum(counts[1])  # less than 1 where rare outcomes were left out
    assert chisquare(counts[0], [share * scale for share in counts[1]]).pvalue > 0.001


class TestSpanSampler:
    """Spans against the exact distributions of the definitions (Giorgi et al. 2021 and their code)."""

    sampler = SpanSampler(min_length=3, max_length=8)

    def groups(self, n_tokens: int, times: int, sampler=sampler):
        generator = np.random.default_rng(0)
        return [sampler.sample(n_tokens, generator) for _ in range(times)]

    def test_the_defaults_are_those_of_the_original(self):
        assert SpanSampler() == SpanSampler(
            n_anchors=2, n_positives=2, min_length=32, max_length=512
        )
        assert SpanSampler().min_document == 2048

    @pytest.mark.parametrize(
        ("n_anchors", "n_tokens"), [(1, 16), (2, 32), (2, 47), (2, 80), (3, 48), (4, 77)]
    )
    def test_blocks_follow_the_rule_of_neighbours_and_ends(self, n_anchors, n_tokens):
        sampler = SpanSampler(n_anchors, 1, 3, 8)
        times = 4000
        observed = Counter(
            tuple(anchor.start // 8 for anchor, _ in group)
            for group in self.groups(n_tokens, times, sampler)
        )
        expected = block_probabilities(list(range(n_tokens // 8)), n_anchors)
        assert_follows(observed, {blocks: times * share for blocks, share in expected.items()})

    def test_anchors_lie_anywhere_inside_their_block(self):
        anchors = [anchor for group in self.groups(43, 4000) for anchor, _ in group]
        observed = Counter((a.stop - a.start, a.start % 8) for a in anchors)
        expected = {
            (length, start): len(anchors) * share / (8 - length + 1)
            for length, share in length_probabilities(4, 2, self.sampler).items()
            for start in range(8 - length + 1)
        }
        assert_follows(observed, expected)

    def test_positives_start_anywhere_around_their_anchor_that_the_document_allows(self):
        observed, expected = Counter(), Counter()
        lengths = length_probabilities(2, 4, self.sampler)
        for group in self.groups(34, 4000):
            for anchor, positives in group:
                assert len(positives) == 2
                observed.update((p.stop - p.start, p.start) for p in positives)
                for length, share in lengths.items():
                    starts = [
                        start
                        for start in range(34 - length + 1)
                        if anchor.start - length <= start <= anchor.stop
                    ]
                    expected.update(
                        {(length, start): len(positives) * share / len(starts) for start in starts}
                    )
        assert_follows(observed, expected)

    def test_no_anchor_crosses_a_block_at_the_original_lengths(self):
        for group in self.groups(2048, 200, SpanSampler()):
            for anchor, positives in group:
                assert anchor.start // 512 == (anchor.stop - 1) // 512
                for positive in positives:
                    assert 0 <= positive.start < positive.stop <= 2048

    def test_sample_refuses_a_short_document(self):
        self.sampler.sample(32, np.random.default_rng(0))
        with pytest.raises(ValueError, match="31 tokens: need at least 32"):
            self.sampler.sample(31, np.random.default_rng(0))


def masked(rows, seed=0):
    generator = np.random.default_rng(seed)
    return Masking(0.15, MASK, SPECIAL, n_vocabulary=1000)(rows, generator)


def test_masking_never_touches_special_tokens_and_labels_the_original():
    rows = [[2, *range(10, 10 + n), 3] for n in range(1, 60)]
    inputs, labels = masked(rows)
    assert (
        [len(row) for row in inputs] == [len(row) for row in rows] == [len(row) for row in labels]
    )
    for row, new, label in zip(rows, inputs, labels, strict=True):
        for before, after, target in zip(row, new, label, strict=True):
            assert target in (NOT_MASKED, before)
            assert target != NOT_MASKED or after == before
            assert before not in SPECIAL or target == NOT_MASKED


def test_masking_follows_15_80_10_10():
    rows = [[500] * 200 for _ in range(500)]
    inputs, labels = masked(rows)
    chosen = np.array(labels) != NOT_MASKED
    assert abs(chosen.mean() - 0.15) < 0.005
    fates = np.array(inputs)[chosen]
    counts = [np.sum(fates == MASK), np.sum(fates == 500), np.sum((fates != MASK) & (fates != 500))]
    assert chisquare(counts, np.array([0.8, 0.1, 0.1]) * len(fates)).pvalue > 0.001


def test_masking_draws_random_tokens_from_the_whole_vocabulary():
    mask = Masking(0.999, MASK, SPECIAL, n_vocabulary=3)
    inputs, labels = mask([[7] * 20_000], np.random.default_rng(0))
    drawn = np.array(
        [new for new, label in zip(inputs[0], labels[0], strict=True) if label == 7 and new < 3]
    )
    assert chisquare(np.bincount(drawn, minlength=3)).pvalue > 0.001


def test_masking_repeats_with_the_seed():
    rows = [[2, *range(10, 30), 3]] * 5
    assert masked(rows) == masked(rows)
    assert masked(rows) != masked(rows, seed=1)
