"""Buffers come back to the pool when nothing refers to them, and never before."""

import gc
import threading

import torch
from torch import nn

from simcse_cli.machine.buffers import BufferPool, pool_of


def address(tensor):
    return tensor.untyped_storage().data_ptr()


def test_tensors_have_their_shapes_and_do_not_overlap():
    pool = BufferPool()
    shapes = [
        ((3, 5), torch.float32),
        ((7,), torch.bfloat16),
        ((0, 4), torch.float32),
        ((), torch.uint8),
    ]
    tensors = [pool.tensor(*shape) for shape in shapes]
    assert [(tuple(t.shape), t.dtype) for t in tensors] == shapes
    tensors[0].fill_(1)
    tensors[1].fill_(2)
    assert (tensors[0] == 1).all()


def test_a_buffer_is_used_again_when_the_last_view_is_gone():
    pool = BufferPool()
    first = pool.tensor((1000, 8))
    view, place = first[10:20].view(-1), address(first)
    del first
    gc.collect()
    other = pool.tensor((1000, 8))
    assert address(other) != place  # a view is left
    del view
    gc.collect()
    assert address(pool.tensor((1000, 8))) == place


def test_a_gradient_that_a_parameter_keeps_is_not_overwritten():
    pool, parameter = BufferPool(), nn.Parameter(torch.zeros(1000))
    parameter.grad = pool.tensor((1000,)).fill_(3)
    other = pool.tensor((1000,)).fill_(9)
    assert (parameter.grad == 3).all()
    place = address(parameter.grad)
    parameter.grad = None
    assert address(pool.tensor((1000,))) == place
    assert (other == 9).all()


def test_a_slightly_larger_request_finds_the_same_buffer():
    pool = BufferPool()
    place = address(pool.tensor((600,)))  # given back at once
    assert address(pool.tensor((1000,))) == place


def test_tensors_begin_at_a_cache_line():
    pool = BufferPool()
    assert {pool.tensor((n,)).data_ptr() % 64 for n in (1, 100, 5000, 2_000_000)} == {0}


def test_a_small_request_leaves_a_large_buffer_alone():
    pool = BufferPool()
    large = pool.tensor((10_000,))
    place = address(large)
    del large
    small = pool.tensor((10,))
    assert address(small) != place
    assert address(pool.tensor((10_000,))) == place


def test_several_threads_never_get_the_same_buffer():
    pool, wrong = BufferPool(), []

    def work(number):
        for _ in range(200):
            own = pool.tensor((64,)).fill_(number)
            if not (own == number).all():
                wrong.append(number)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_a_module_has_one_pool_and_takes_it_along():
    module = nn.Linear(2, 2)
    assert pool_of(module) is pool_of(module)
    assert pool_of(module) is not pool_of(nn.Linear(2, 2))


def test_concatenated_parts_follow_each_other():
    parts = [torch.arange(6.0).view(2, 3), torch.arange(9.0).view(3, 3)]
    assert torch.equal(BufferPool().concatenated(parts), torch.cat(parts))
