import itertools
import threading

import numpy as np
import pytest
import torch

from simcse_cli.models.batching import map_on_cores, pad, token_batches


@pytest.fixture
def four_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(4)
    yield
    torch.set_num_threads(before)


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


@pytest.mark.usefixtures("four_threads")
def test_map_on_cores_keeps_the_order_and_shares_the_threads():
    together = threading.Barrier(2, timeout=30)  # passes only if two items are computed at the same time

    def compute(item):
        together.wait()
        return item, torch.get_num_threads(), torch.is_inference_mode_enabled()

    assert list(map_on_cores(compute, [3, 1])) == [(3, 2, True), (1, 2, True)]
    assert torch.get_num_threads() == 4


@pytest.mark.usefixtures("four_threads")
def test_one_item_is_computed_here_with_all_threads():
    def compute(_):
        return threading.current_thread(), torch.get_num_threads()

    assert list(map_on_cores(compute, [0])) == [(threading.current_thread(), 4)]


@pytest.mark.usefixtures("four_threads")
def test_an_error_arrives_and_ends_the_workers():
    def compute(item):
        if item == 2:
            raise ValueError("item 2")
        return item

    with pytest.raises(ValueError, match="item 2"):
        list(map_on_cores(compute, range(100)))
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("simcse-encode")]
    assert torch.get_num_threads() == 4


def test_vectors_do_not_depend_on_the_number_of_threads(tiny_encoder, sentences):
    before = torch.get_num_threads()
    found = []
    for n_threads in (1, 2, 3):
        torch.set_num_threads(n_threads)
        found.append(tiny_encoder.encode(sentences, batch_tokens=32))
    torch.set_num_threads(before)
    np.testing.assert_array_equal(found[0], found[1])
    np.testing.assert_array_equal(found[0], found[2])
