"""Rows of an embedding table: equal to the module's own, in value and gradient."""

import pytest
import torch
from torch import nn

from simcse_cli.machine.buffers import BufferPool
from simcse_cli.packed.layers import look_up


@pytest.mark.parametrize(
    "settings", [{}, {"padding_idx": 0}, {"padding_idx": -1}, {"scale_grad_by_freq": True}]
)
def test_rows_and_gradients_equal_those_of_the_module(settings):
    torch.manual_seed(0)
    table, ids = nn.Embedding(7, 3, **settings), torch.tensor([1, 0, 1, 6, 2])
    weights = torch.randn(5, 3)
    found = []
    for rows in (look_up(table, ids, BufferPool()), table(ids)):
        table.zero_grad()
        (rows * weights).sum().backward()
        found.append((rows, table.weight.grad))
    torch.testing.assert_close(*found)
