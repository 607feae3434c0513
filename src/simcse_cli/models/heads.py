"""Small networks on top of an encoder: MLP, projector, BatchNorm head, CNN over tokens."""

import torch
from torch import Tensor, nn
from torch.nn import functional

from simcse_cli.machine.gather import n_processes, sum_over_processes
from simcse_cli.machine.precision import wide

INITIALIZER_RANGE = 0.02
_EPSILON = 1e-5


class MlpHead(nn.Module):
    """One linear layer and tanh: the head of SimCSE, BERT's own pooler, or a Dense module.

    Args:
        std: standard deviation of the initial weights, by default BERT's ``initializer_range``; the
            bias starts at 0, as in BERT.
        tanh: whether tanh follows; False for a plain linear Dense module of sentence-transformers.
    """

    def __init__(
        self,
        dim: int,
        std: float = INITIALIZER_RANGE,
        *,
        out_dim: int | None = None,
        bias: bool = True,
        tanh: bool = True,
    ) -> None:
        super().__init__()
        self.dense = nn.Linear(dim, out_dim or dim, bias=bias)
        nn.init.normal_(self.dense.weight, std=std)
        if bias:
            nn.init.zeros_(self.dense.bias)
        self.tanh = tanh

    def forward(self, hidden: Tensor) -> Tensor:
        """Map ``(B, D)`` to ``(B, D_out)``, in (-1, 1) with tanh."""
        projected: Tensor = self.dense(hidden)
        return projected.tanh() if self.tanh else projected


class GlobalBatchNorm(nn.Module):
    """BatchNorm over the rows of all processes; unlike SyncBatchNorm, it needs no CUDA.

    On one process it equals ``BatchNorm1d`` bit for bit. It keeps no running statistics: projectors
    are discarded after training and never run in evaluation mode. 1e-5 is added to the biased
    variance. ``affine`` adds a trained scale and shift.
    """

    def __init__(self, width: int, *, affine: bool = True) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width)) if affine else None
        self.bias = nn.Parameter(torch.zeros(width)) if affine else None

    def forward(self, rows: Tensor) -> Tensor:
        """Normalise ``(B, width)`` by mean and variance over all processes.

        B may differ between processes.
        """
        if n_processes() == 1:
            return functional.batch_norm(
                rows, None, None, self.weight, self.bias, training=True, eps=_EPSILON
            )
        # In the 16-bit types of autocast, the counts and the sums would be rounded.
        rows = wide(rows)
        count = sum_over_processes(rows.new_full((), len(rows)))
        mean = sum_over_processes(rows.sum(dim=0)) / count
        centred = rows - mean
        variance = sum_over_processes(centred.square().sum(dim=0)) / count
        normalised = centred * torch.rsqrt(variance + _EPSILON)
        if self.weight is None or self.bias is None:
            return normalised
        return normalised * self.weight + self.bias


class Projector(nn.Sequential):
    """Three linear layers, BatchNorm and ReLU after the first two; maps ``(B, D)`` to ``(B, P)``.

    ``bias`` gives biases to the first two layers, as in VICReg; Barlow Twins has none. P is the
    ``width`` of all three, 8192 in both papers. PyTorch draws the initial weights in its default
    way, as in the official code of both.
    """

    def __init__(self, dim: int, width: int, *, bias: bool) -> None:
        super().__init__(
            nn.Linear(dim, width, bias=bias),
            GlobalBatchNorm(width),
            nn.ReLU(),
            nn.Linear(width, width, bias=bias),
            GlobalBatchNorm(width),
            nn.ReLU(),
            nn.Linear(width, width, bias=False),
        )


class BatchNormHead(nn.Sequential):
    """The head of DiffCSE: two linear layers without bias, and BatchNorm.

    It maps ``(R, D)`` to ``(R, D)`` by linear, BatchNorm, ReLU, linear, BatchNorm. The last
    BatchNorm has no scale and shift, so a batch of two rows becomes entries near 1 and -1, or 0
    where the rows are equal. PyTorch draws the initial weights in its default way.
    """

    def __init__(self, dim: int) -> None:
        super().__init__(
            nn.Linear(dim, 2 * dim, bias=False),
            GlobalBatchNorm(2 * dim),
            nn.ReLU(),
            nn.Linear(2 * dim, dim, bias=False),
            GlobalBatchNorm(dim, affine=False),
        )


class TokenCnn(nn.Module):
    """Parallel convolutions over token states: the local features of IS-BERT.

    There is one convolution for each of ``kernel_sizes``, which are odd, so that a text keeps its
    length. No activation follows (the paper has a ReLU, the released code none). Padded positions
    are zeros, so the features of a sentence do not depend on its batch.
    """

    def __init__(
        self, dim: int, n_channels: int = 256, kernel_sizes: tuple[int, ...] = (1, 3, 5)
    ) -> None:
        super().__init__()
        self.dim = n_channels * len(kernel_sizes)
        self.kernel_sizes = list(kernel_sizes)
        self.convolutions = nn.ModuleList(
            nn.Conv1d(dim, n_channels, size, padding=size // 2) for size in kernel_sizes
        )

    def forward(self, tokens: Tensor, attention_mask: Tensor) -> Tensor:
        """Map ``(B, L, H)`` to local features ``(B, L, dim)``.

        The values at padded positions mean nothing.
        """
        channels = (tokens * attention_mask.unsqueeze(-1)).transpose(1, 2)  # (B, H, L)
        features = torch.cat([convolution(channels) for convolution in self.convolutions], dim=1)
        return features.transpose(1, 2)
