"""Barlow Twins: make the cross-correlation of two views the identity."""

from typing import Any

from torch import Tensor

from simcse_cli.errors import ConfigError
from simcse_cli.losses.barlow_twins import barlow_twins
from simcse_cli.models.encoder import SentenceEncoder
from simcse_cli.objectives.base import Batch, Losses
from simcse_cli.objectives.views import ProjectedViews
from simcse_cli.settings.choices import ObjectiveName


class BarlowTwins(ProjectedViews):
    """Equal views correlate in each dimension, different dimensions do not.

    Source: Zbontar et al. 2021.
    """

    name = ObjectiveName.BARLOW_TWINS
    projector_bias = False

    def __init__(
        self, encoder: SentenceEncoder, *, redundancy_weight: float = 0.0051, **settings: Any
    ) -> None:
        super().__init__(encoder, **settings)
        if redundancy_weight < 0:
            raise ConfigError(f"--set redundancy_weight={redundancy_weight}: need 0 or more")
        self.redundancy_weight = redundancy_weight

    def losses(self, representations: tuple[Tensor, ...], batch: Batch) -> Losses:
        view_a, view_b = self.projections(representations[0], batch)
        return {"barlow_twins": barlow_twins(view_a, view_b, redundancy_weight=self.redundancy_weight)}, {}
