"""Inputs of the tests of losses."""

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
