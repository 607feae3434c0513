"""Inputs and plain-Python parts of the oracles that the tests of losses share."""

import math

import torch


def normal(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def signs(n_bits: int) -> torch.Tensor:
    """Return all rows of +-1: columns with mean 0, variance 1, no correlation."""
    rows = torch.arange(2**n_bits)
    return torch.stack([(rows >> bit & 1) * 2.0 - 1 for bit in range(n_bits)], dim=1).double()


def column(view: torch.Tensor, j: int) -> list[float]:
    return view[:, j].tolist()


def mean(values: list[float]) -> float:
    return sum(values) / len(values)


def cosine(a: torch.Tensor, b: torch.Tensor) -> float:
    a_list, b_list = a.tolist(), b.tolist()
    dot = sum(x * y for x, y in zip(a_list, b_list, strict=True))
    return dot / math.sqrt(sum(x * x for x in a_list)) / math.sqrt(sum(y * y for y in b_list))


def dot(a: torch.Tensor, b: torch.Tensor) -> float:
    return sum(x * y for x, y in zip(a.tolist(), b.tolist(), strict=True))
