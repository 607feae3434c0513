"""The invertible layers of BERT-flow: actnorm, reversal with additive coupling, and their multi-level stack.

Every layer maps ``(B, C)`` to ``(B, C)`` and returns the log-determinant of its Jacobian, a scalar: it is the same
for every row, because only actnorm changes volume.
"""

import torch
from torch import Tensor, nn

LOG_SCALE_FACTOR = 3.0
INIT_STD = 0.05
_SCALE_EPSILON = 1e-6


class ActNorm(nn.Module):
    """Per-channel ``y = (x + bias) * exp(3 * log_scale)``, started from data (Kingma and Dhariwal 2018).

    The first batch it sees sets both so that the output has mean 0 and variance 1 in every channel; after
    that they are trained. Log-determinant: ``3 * log_scale`` summed over channels.
    """

    initialised: Tensor

    def __init__(self, n_channels: int) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(n_channels))
        self.log_scale = nn.Parameter(torch.zeros(n_channels))
        self.register_buffer("initialised", torch.tensor(False))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        if not self.initialised:
            with torch.no_grad():
                self.bias.copy_(-x.mean(dim=0))
                spread = (x + self.bias).square().mean(dim=0).sqrt()
                self.log_scale.copy_(-torch.log(spread + _SCALE_EPSILON) / LOG_SCALE_FACTOR)
                self.initialised.fill_(True)
        log_scale = LOG_SCALE_FACTOR * self.log_scale
        return (x + self.bias) * torch.exp(log_scale), log_scale.sum()


class CouplingNet(nn.Module):
    """The shift of a coupling layer: linear, actnorm, ReLU, linear, actnorm, ReLU, linear started at zero.

    ``(B, C / 2)`` to ``(B, C / 2)`` through ``width`` units. Weights start normal with deviation 0.05. The
    output is ``(W x + b) * exp(3 s)`` with W, b and s zero at the start, so that a fresh coupling is the
    identity.
    """

    def __init__(self, n_channels: int, width: int, generator: torch.Generator) -> None:
        super().__init__()
        self.first = nn.Linear(n_channels, width, bias=False)
        self.first_norm = ActNorm(width)
        self.second = nn.Linear(width, width, bias=False)
        self.second_norm = ActNorm(width)
        self.last = nn.Linear(width, n_channels)
        self.log_scale = nn.Parameter(torch.zeros(n_channels))
        nn.init.normal_(self.first.weight, std=INIT_STD, generator=generator)
        nn.init.normal_(self.second.weight, std=INIT_STD, generator=generator)
        nn.init.zeros_(self.last.weight)
        nn.init.zeros_(self.last.bias)

    def forward(self, x: Tensor) -> Tensor:
        hidden = torch.relu(self.first_norm(self.first(x))[0])
        hidden = torch.relu(self.second_norm(self.second(hidden))[0])
        shift: Tensor = self.last(hidden) * torch.exp(LOG_SCALE_FACTOR * self.log_scale)
        return shift


class FlowStep(nn.Module):
    """Actnorm, reversal of the channels, then the first half shifts the second by a network of itself."""

    def __init__(self, n_channels: int, width: int, generator: torch.Generator) -> None:
        super().__init__()
        self.norm = ActNorm(n_channels)
        self.shift = CouplingNet(n_channels // 2, width, generator)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        x, log_det = self.norm(x)  # reversal and coupling keep volume
        first, second = x.flip(-1).chunk(2, dim=-1)
        return torch.cat([first, second + self.shift(first)], dim=-1), log_det


class MultiLevelFlow(nn.Module):
    """Levels of ``depth`` steps; after each but the last, the second half of the channels is final.

    Source: Li et al. 2020, configuration ``l3_d3_w32``. With D = 768 the latent is made of the 384 channels
    that leave after level 1, the 192 after level 2 and the 192 of the top, in that order.
    """

    def __init__(self, dim: int, *, levels: int, depth: int, width: int, seed: int) -> None:
        super().__init__()
        if dim % 2**levels:
            raise ValueError(
                f"a flow of {levels} levels needs a dimension divisible by {2**levels}, got {dim}"
            )
        generator = torch.Generator().manual_seed(seed)
        self.levels = nn.ModuleList(
            nn.ModuleList(FlowStep(dim // 2**level, width, generator) for _ in range(depth))
            for level in range(levels)
        )

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return the latent ``(B, D)`` and the log-determinant of the whole map."""
        finished: list[Tensor] = []
        log_det = x.new_zeros(())
        for number, level in enumerate(self.levels):
            if number:
                x, leaving = x.chunk(2, dim=-1)
                finished.append(leaving)
            for step in level.children():
                x, step_log_det = step(x)
                log_det = log_det + step_log_det
        return torch.cat([*finished, x], dim=-1), log_det
