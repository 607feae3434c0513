"""Which examples a step sees: every one once an epoch, in an order that follows from the seed alone."""

import threading
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from helpers import wait_until
from simcse_cli.models.padding import PaddedRows, pad
from simcse_cli.objectives.base import Batch, Examples
from simcse_cli.settings.config import TrainConfig
from simcse_cli.training.batches import (
    BatchMaker,
    bucket_by_length,
    files_of,
    prefetch,
)


def drawn(*key):
    return np.random.default_rng(np.random.SeedSequence(key))


class Numbers(SimpleNamespace):
    """An objective whose examples are numbers as texts; a batch shows them and what its generator draws."""

    ordered = False
    n_reads = 0
    encoder = SimpleNamespace(prepacked=lambda rows: rows, device=SimpleNamespace(type="cpu"))

    def examples(self, data, generator):
        self.n_reads += 1
        return Examples([str(number) for number in data])

    def collate(self, examples, generator):
        return Batch([], len(examples), texts=examples, extra={"draw": generator.random()})


def maker(n, rank=0, n_processes=1, objective=None, least_rows=2, **settings):
    config = TrainConfig(**{"batch_size": 4, "seed": 7} | settings)
    return BatchMaker(
        objective or Numbers(),
        range(n),
        n,
        config,
        rank=rank,
        n_processes=n_processes,
        least_rows=least_rows,
    )


def numbers(batch):
    return [int(text) for text in batch.texts]


@pytest.mark.parametrize(
    ("n", "n_processes", "least_rows", "steps", "n_left_out"),
    [
        (8, 1, 2, 2, 0),
        (9, 1, 2, 2, 1),
        (9, 1, 1, 3, 0),
        (10, 1, 2, 3, 0),
        (1, 1, 1, 1, 0),
        (3, 2, 2, 1, 0),
        (11, 2, 2, 1, 3),
        (11, 2, 1, 2, 0),
        (9, 2, 1, 1, 1),
        (12, 2, 2, 2, 0),
    ],
)
def test_a_last_batch_counts_if_each_process_has_enough_examples(
    n, n_processes, least_rows, steps, n_left_out
):
    batches = maker(n, n_processes=n_processes, least_rows=least_rows)
    assert (batches.steps_per_epoch, batches.n_left_out) == (steps, n_left_out)
    n_made = 0
    for rank in range(n_processes):
        batches = maker(n, rank, n_processes, least_rows=least_rows)
        sizes = [batches.make(step).n_examples for step in range(steps)]
        assert min(sizes) > 0
        n_made += sum(sizes)
    assert n_made == n - n_left_out


def test_an_epoch_is_the_permutation_of_seed_and_epoch():
    objective = Numbers()
    batches = maker(10, objective=objective)
    found = [numbers(batches.make(step)) for step in range(6)]
    for epoch in (0, 1):
        order = drawn(7, epoch).permutation(10).tolist()
        assert found[3 * epoch : 3 * epoch + 3] == [order[:4], order[4:8], order[8:]]
    assert objective.n_reads == 2  # the examples of an epoch are made once
    assert [numbers(maker(10).make(step)) for step in (4, 1)] == [found[4], found[1]]


def test_a_batch_has_a_generator_of_seed_epoch_step_and_process():
    assert maker(8).make(3).extra["draw"] == drawn(7, 1, 3, 0).random()
    second = maker(8, rank=1, n_processes=2, batch_size=2)
    assert second.make(1).extra["draw"] == drawn(7, 0, 1, 1).random()


def test_processes_share_a_batch_in_contiguous_parts():
    whole = drawn(7, 0).permutation(20).tolist()
    parts = [numbers(maker(20, rank, 3, batch_size=3).make(1)) for rank in range(3)]
    assert parts == [whole[9:12], whole[12:15], whole[15:18]]
    last = [numbers(maker(20, rank, 2, batch_size=8).make(1)) for rank in range(2)]
    assert last == [whole[16:18], whole[18:20]]


@pytest.mark.parametrize("rank", [0, 1])
def test_counts_are_the_examples_that_each_process_makes(rank):
    objective = Numbers(collate=lambda examples, generator: Batch([], 3 * len(examples)))
    assert maker(7, rank, 2, objective=objective).make(0).counts == [3 * 4, 3 * 3]


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_tensors_are_pinned_for_gpus(device, monkeypatch):
    rows, labels, pinned = [[5, 6], [7]], torch.ones(1), []
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda tensor: pinned.append(tensor) or tensor)
    encoder = SimpleNamespace(
        prepacked=lambda rows: PaddedRows(rows, *pad(rows, 9)), device=SimpleNamespace(type=device)
    )
    made = Batch(rows, 2, extra={"labels": labels, "n": 3})
    objective = Numbers(encoder=encoder, collate=lambda examples, generator: made)
    ids, mask = maker(4, objective=objective).make(0).rows.tensors()
    assert (ids.tolist(), mask.tolist()) == ([[5, 6], [7, 9]], [[1, 1], [1, 0]])
    assert [tensor.numel() for tensor in pinned] == ([4, 4, 1] if device == "cuda" else [])


def test_an_ordered_objective_keeps_its_order():
    objective = Numbers()
    objective.ordered = True
    batches = maker(10, objective=objective, bucket_batches=2)
    assert [numbers(batches.make(step)) for step in range(3)] == [
        [0, 1, 2, 3],
        [4, 5, 6, 7],
        [8, 9],
    ]


def test_buckets_sort_by_length_within_their_window_and_shuffle_full_batches():
    texts = ["x" * length for length in (9, 1, 8, 2, 7, 3, 6, 4, 5, 11, 10)]
    order = np.arange(11)
    found = bucket_by_length(order, texts, 2, 3, np.random.default_rng(0))
    lengths = [len(texts[i]) for i in found]
    # Windows of six: 9 1 8 2 7 3 and 6 4 5 11 10; the batch of two that is left comes last.
    batches = [[1, 2, 3], [7, 8, 9], [4, 5, 6]]
    shuffled = np.random.default_rng(0).permutation(3)
    assert lengths == [*(n for i in shuffled for n in batches[i]), 10, 11]


def test_buckets_count_all_columns_of_a_row_and_keep_ties_in_order():
    rows = [("aaaa", "b"), ("c", "d"), ("e", "ff"), ("g", "hh")]
    found = bucket_by_length(np.array([3, 2, 1, 0]), rows, 1, 4, np.random.default_rng(0))
    assert found.tolist() == [1, 3, 2, 0]
    few = bucket_by_length(np.array([1, 0]), rows[:2], 1, 4, np.random.default_rng(0))
    assert few.tolist() == [1, 0]


def test_the_setting_sorts_batches_by_length():
    found = numbers(maker(200, bucket_batches=50).make(0))
    assert len({len(str(number)) for number in found}) == 1
    plain = drawn(7, 0).permutation(200)[:4].tolist()
    assert numbers(maker(200, bucket_batches=1).make(0)) == plain


def test_files_count_only_where_the_examples_are_their_rows():
    files = ((1, 2.0), (2, 1.0))
    assert files_of(Examples(["a", "b", "c"], files, are_rows=True)) == files
    assert files_of(Examples(["a", "b"])) == ((2, 1.0),)


def test_two_batches_are_the_smallest_window():
    generator = drawn(7, 0)
    order = generator.permutation(16)
    expected = bucket_by_length(order, list(map(str, range(16))), 2, 4, generator).tolist()
    batches = maker(16, bucket_batches=2)
    found = [number for step in range(4) for number in numbers(batches.make(step))]
    assert found == expected != order.tolist()


def test_prefetch_stays_three_steps_ahead_and_ends_with_its_consumer():
    made = []

    def make(step):
        made.append(step)
        return step

    batches = prefetch(make, range(3, 100))
    assert [next(batches), next(batches)] == [3, 4]
    wait_until(lambda: len(made) >= 5)
    (thread,) = [thread for thread in threading.enumerate() if thread.name.startswith("batches")]
    batches.close()
    assert not thread.is_alive()
    assert made == [3, 4, 5, 6, 7]  # two taken, three waiting


def test_prefetch_raises_an_error_where_its_batch_was_due():
    def make(step):
        if step == 2:
            raise ValueError("no batch 2")
        return step

    batches = prefetch(make, range(5))
    assert [next(batches), next(batches)] == [0, 1]
    with pytest.raises(ValueError, match="no batch 2"):
        next(batches)
    assert list(prefetch(make, range(3, 5))) == [3, 4]
