"""Barlow Twins: decorrelated dimensions instead of negatives."""

from typing import Any

from torch import Tensor

from simcse_cli.losses.barlow_twins import barlow_twins
from simcse_cli.models.encoder import SentenceEncoder
from simcse_cli.objectives.base import Batch, Losses, require_least
from simcse_cli.objectives.views import ProjectedViews
from simcse_cli.settings.choices import ObjectiveName


class BarlowTwins(ProjectedViews):
    """Equal views correlate in each dimension, different dimensions do not (Zbontar et al. 2021)."""

    name = ObjectiveName.BARLOW_TWINS
    projector_bias = False

    redundancy_weight: float = 0.0051

    def __init__(self, encoder: SentenceEncoder, **options: Any) -> None:
        super().__init__(encoder, **options)
        require_least(0, redundancy_weight=self.redundancy_weight)

    def losses(self, representations: tuple[Tensor, ...], batch: Batch) -> Losses:
        view_a, view_b = self.projections(representations[0], batch)
        return {
            "barlow_twins": barlow_twins(view_a, view_b, redundancy_weight=self.redundancy_weight)
        }, {}
