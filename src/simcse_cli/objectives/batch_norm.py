"""BatchNorm over the rows of all processes, on any device (PyTorch's SyncBatchNorm needs CUDA)."""

import torch
from torch import Tensor, nn
from torch.nn import functional

from simcse_cli.losses.gather import n_processes, sum_over_processes


class GlobalBatchNorm(nn.Module):
    """BatchNorm with affine parameters whose statistics are those of the global batch.

    ``BatchNorm1d`` on one process, bit for bit. It keeps no running statistics: projectors are discarded
    after training and never see a batch in evaluation mode.

    Args:
        width: number of columns.
        eps: added to the biased variance.
    """

    def __init__(self, width: int, eps: float = 1e-5) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(width))
        self.bias = nn.Parameter(torch.zeros(width))

    def forward(self, rows: Tensor) -> Tensor:
        """Normalise ``(B, width)`` by mean and variance over all processes; B may differ between them."""
        if n_processes() == 1:
            return functional.batch_norm(
                rows, None, None, self.weight, self.bias, training=True, eps=self.eps
            )
        count = sum_over_processes(rows.new_tensor(float(len(rows))))
        mean = sum_over_processes(rows.sum(dim=0)) / count
        centred = rows - mean
        variance = sum_over_processes(centred.square().sum(dim=0)) / count
        return centred * torch.rsqrt(variance + self.eps) * self.weight + self.bias
