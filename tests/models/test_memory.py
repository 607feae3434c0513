"""Memory that is handed on: blocks come back when nothing refers to them, and never before."""

import gc
import threading

import torch
from torch import nn

from simcse_cli.models.packed.memory import Memory, memory_of


def address(tensor):
    return tensor.untyped_storage().data_ptr()


def test_tensors_have_their_shapes_stand_side_by_side_and_do_not_overlap():
    shapes = {"a": ((3, 5), torch.float32), "b": ((7,), torch.bfloat16), "c": ((0, 4), torch.float32)}
    tensors = Memory().tensors(shapes)
    assert {key: (tuple(t.shape), t.dtype) for key, t in tensors.items()} == shapes
    assert address(tensors["a"]) == address(tensors["b"])
    tensors["a"].fill_(1)
    tensors["b"].fill_(2)
    assert (tensors["a"] == 1).all()
    assert all(t.data_ptr() % 4 == 0 for t in tensors.values())


def test_a_block_is_used_again_when_the_last_view_is_gone():
    memory = Memory()
    first = memory.tensor((1000, 8))
    view, place = first[10:20].view(-1), address(first)
    del first
    gc.collect()
    other = memory.tensor((1000, 8))
    assert address(other) != place  # a view is left
    del view
    gc.collect()
    assert address(memory.tensor((1000, 8))) == place


def test_a_gradient_that_a_parameter_keeps_is_not_overwritten():
    memory, parameter = Memory(), nn.Parameter(torch.zeros(1000))
    parameter.grad = memory.tensor((1000,)).fill_(3)
    other = memory.tensor((1000,)).fill_(9)
    assert (parameter.grad == 3).all()
    place = address(parameter.grad)
    parameter.grad = None
    assert address(memory.tensor((1000,))) == place
    assert (other == 9).all()


def test_a_larger_request_takes_the_place_of_an_outgrown_block():
    memory = Memory()
    memory.tensor((1000,))  # given back at once
    grown = memory.tensor((1500,))
    del grown
    assert [len(block) >= 6000 for block in [*memory._free, *memory._returned]] == [True]


def test_a_small_request_leaves_a_large_block_alone():
    memory = Memory()
    large = memory.tensor((10_000,))
    place = address(large)
    del large
    small = memory.tensor((10,))
    assert address(small) != place
    assert address(memory.tensor((10_000,))) == place


def test_several_threads_never_get_the_same_block():
    memory, wrong = Memory(), []

    def work(number):
        for _ in range(200):
            own = memory.tensor((64,)).fill_(number)
            if not (own == number).all():
                wrong.append(number)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_a_module_has_one_memory_and_takes_it_along():
    module = nn.Linear(2, 2)
    assert memory_of(module) is memory_of(module)
    assert memory_of(module) is not memory_of(nn.Linear(2, 2))


def test_joined_parts_follow_each_other():
    parts = [torch.arange(6.0).view(2, 3), torch.arange(9.0).view(3, 3)]
    assert torch.equal(Memory().joined(parts), torch.cat(parts))
