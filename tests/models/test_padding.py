import itertools

import numpy as np
import pytest

from simcse_cli.models.padding import pad, token_batches


def test_padding_goes_to_the_right():
    ids, mask = pad([[5, 6, 7], [8]], pad_id=1)
    assert ids.tolist() == [[5, 6, 7], [8, 1, 1]]
    assert mask.tolist() == [[1, 1, 1], [1, 0, 0]]


@pytest.mark.parametrize("padded", [True, False])
def test_token_batches_hold_every_row_once_within_the_budget(padded):
    lengths = [3, 50, 7, 7, 2, 9, 31]
    batches = list(token_batches(lengths, 40, padded=padded))
    assert sorted(i for batch in batches for i in batch) == list(range(len(lengths)))
    for batch in batches:
        sizes = [lengths[i] for i in batch]
        assert sizes == sorted(sizes, reverse=True)
        assert (len(sizes) * max(sizes) if padded else sum(sizes)) <= 40 or len(sizes) == 1


def test_unpadded_batches_are_filled():
    lengths = np.random.default_rng(0).integers(3, 40, 500).tolist()
    batches = list(token_batches(lengths, 256, padded=False))
    for batch, following in itertools.pairwise(batches):
        assert sum(lengths[i] for i in batch) + lengths[following[0]] > 256


def test_no_rows_make_no_batches():
    assert list(token_batches([], 40)) == []
