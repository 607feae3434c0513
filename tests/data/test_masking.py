import numpy as np
from scipy.stats import chisquare

from simcse_cli.data.masking import NOT_MASKED, mask_tokens

MASK, SPECIAL = 4, (0, 2, 3)


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
