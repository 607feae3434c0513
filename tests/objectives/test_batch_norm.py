import pytest
import torch
from torch import Tensor, distributed, nn

from processes import run_on_processes
from simcse_cli.objectives.batch_norm import GlobalBatchNorm

ROWS = torch.randn(7, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0)) * 3 + 1
TARGETS = torch.randn(7, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


def gradients(norm: nn.Module, rows: slice) -> tuple[Tensor, Tensor, Tensor]:
    """Return output, input gradient and weight gradient of a loss summed over rows."""
    inputs = ROWS[rows].clone().requires_grad_()
    output = norm(inputs)
    (output * TARGETS[rows]).square().sum().backward()
    return output.detach(), inputs.grad, norm.weight.grad


def worker(rank: int) -> tuple[Tensor, Tensor, Tensor]:
    rows = slice(0, 2) if rank == 0 else slice(2, 7)
    output, input_gradient, weight_gradient = gradients(GlobalBatchNorm(4).double(), rows)
    distributed.all_reduce(weight_gradient)
    return output, input_gradient, weight_gradient


def test_global_batch_norm_on_two_processes_equals_one(tmp_path):
    first, second = run_on_processes(worker, tmp_path)
    expected = gradients(nn.BatchNorm1d(4).double(), slice(0, 7))
    for i in range(2):
        torch.testing.assert_close(torch.cat([first[i], second[i]]), expected[i], rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(first[2], expected[2], rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("scale", [1.0, 0.0])
def test_global_batch_norm_on_one_process_is_batch_norm(scale):
    rows = ROWS * scale
    torch.testing.assert_close(
        GlobalBatchNorm(4).double()(rows), nn.BatchNorm1d(4).double()(rows), rtol=0, atol=0
    )
