import numpy as np
import pytest
from scipy.stats import chisquare, kstest

from simcse_cli.objectives.ct import sample_tension_pairs
from simcse_cli.objectives.declutr import SpanSampler
from simcse_cli.objectives.mlm import NOT_MASKED, mask_tokens
from simcse_cli.objectives.next_sentence import positions_in_documents, sample_next

MASK, SPECIAL = 4, (0, 2, 3)
DOCUMENTS = [["a", "b", "c", "d"], ["e"], ["f", "g"]]


def test_positions_in_documents_counts_what_follows():
    sentences, following = positions_in_documents(DOCUMENTS)
    assert sentences == list("abcdefg")
    assert following.tolist() == [3, 2, 1, 0, 0, 1, 0]


def test_sample_next_with_window_1_is_the_following_sentence():
    sentences, following = positions_in_documents(DOCUMENTS)
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
    draws = np.stack([sample_next(following, window=3, generator=generator)[1] for _ in range(6000)])
    for anchor, n_choices in enumerate([3, 3, 3, 2, 1]):
        distances, counts = np.unique(draws[:, anchor] - anchor, return_counts=True)
        assert distances.tolist() == list(range(1, n_choices + 1))
        assert n_choices == 1 or chisquare(counts).pvalue > 0.001


def test_sample_tension_pairs_groups_one_positive_with_k_negatives():
    left, right, is_positive = sample_tension_pairs(9, n_negatives=7, generator=np.random.default_rng(0))
    groups = [side.reshape(9, 8) for side in (left, right, is_positive)]
    own = groups[0][:, 0]
    assert sorted(own) == list(range(9))
    assert (groups[1][:, 0] == own).all()
    assert (groups[2] == ([True] + [False] * 7)).all()
    for side in groups[:2]:
        assert (side[:, 1:] != own[:, None]).all()


def test_sample_tension_pairs_draws_negatives_evenly_and_independently():
    generator = np.random.default_rng(0)
    tables = np.zeros((4, 4))
    for _ in range(3000):
        left, right, is_positive = sample_tension_pairs(5, n_negatives=1, generator=generator)
        own = left[is_positive]
        np.add.at(tables, tuple((side[~is_positive] - own - 1) % 5 for side in (left, right)), 1)
    assert chisquare(tables.ravel()).pvalue > 0.001


def test_sample_tension_pairs_needs_two_sentences():
    with pytest.raises(ValueError, match="at least 2"):
        sample_tension_pairs(1, generator=np.random.default_rng(0))


class TestSpanSampler:
    sampler = SpanSampler(min_length=8, max_length=32)

    def groups(self, n_tokens: int, times: int):
        generator = np.random.default_rng(0)
        return [self.sampler.sample(n_tokens, generator) for _ in range(times)]

    @pytest.mark.parametrize("n_tokens", [128, 129, 500])
    def test_sample_stays_inside_the_document_and_its_lengths(self, n_tokens):
        for group in self.groups(n_tokens, 300):
            assert len(group) == 2
            for anchor, positives in group:
                assert len(positives) == 2
                for span in (anchor, *positives):
                    assert 0 <= span.start < span.stop <= n_tokens
                    assert 8 <= span.stop - span.start < 32

    def test_sample_positives_touch_or_overlap_their_anchor(self):
        for group in self.groups(200, 300):
            for anchor, positives in group:
                for positive in positives:
                    assert positive.start <= anchor.stop
                    assert positive.stop >= anchor.start

    def test_sample_anchors_start_in_blocks_that_are_no_neighbours(self):
        for first, second in self.groups(320, 300):
            assert abs(first[0].start // 32 - second[0].start // 32) > 1

    def test_sample_lengths_follow_their_beta_distributions(self):
        groups = [pair for group in self.groups(2000, 2000) for pair in group]
        anchors = np.array([anchor.stop - anchor.start for anchor, _ in groups])
        positives = np.array([span.stop - span.start for _, spans in groups for span in spans])
        jitter = np.random.default_rng(1)
        for lengths, (a, b) in ((anchors, (4, 2)), (positives, (2, 4))):
            fractions = (lengths + jitter.random(len(lengths)) - 8) / 24
            assert kstest(fractions, "beta", args=(a, b)).statistic < 0.03

    def test_sample_with_many_anchors_reuses_neighbours_only_when_it_must(self):
        sampler = SpanSampler(n_anchors=3, min_length=4, max_length=8)
        generator = np.random.default_rng(0)
        for _ in range(100):
            assert len(sampler.sample(sampler.min_document, generator)) == 3

    def test_sample_refuses_a_short_document(self):
        with pytest.raises(ValueError, match="127 tokens: need at least 128"):
            self.sampler.sample(127, np.random.default_rng(0))


def masked(rows, seed=0):
    generator = np.random.default_rng(seed)
    return mask_tokens(
        rows, probability=0.15, mask_id=MASK, special_ids=SPECIAL, n_vocabulary=1000, generator=generator
    )


def test_mask_tokens_never_touches_special_tokens_and_labels_the_original():
    rows = [[2, *range(10, 10 + n), 3] for n in range(1, 60)]
    inputs, labels = masked(rows)
    assert [len(row) for row in inputs] == [len(row) for row in rows] == [len(row) for row in labels]
    for row, new, label in zip(rows, inputs, labels, strict=True):
        for before, after, target in zip(row, new, label, strict=True):
            assert target in (NOT_MASKED, before)
            assert target != NOT_MASKED or after == before
            assert before not in SPECIAL or target == NOT_MASKED


def test_mask_tokens_follows_15_80_10_10():
    rows = [[500] * 200 for _ in range(500)]
    inputs, labels = masked(rows)
    chosen = np.array(labels) != NOT_MASKED
    assert abs(chosen.mean() - 0.15) < 0.005
    fates = np.array(inputs)[chosen]
    counts = [np.sum(fates == MASK), np.sum(fates == 500), np.sum((fates != MASK) & (fates != 500))]
    assert chisquare(counts, np.array([0.8, 0.1, 0.1]) * len(fates)).pvalue > 0.001


def test_mask_tokens_repeats_with_the_seed():
    rows = [[2, *range(10, 30), 3]] * 5
    assert masked(rows) == masked(rows)
    assert masked(rows) != masked(rows, seed=1)
