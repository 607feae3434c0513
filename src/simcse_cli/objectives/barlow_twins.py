"""Barlow Twins: decorrelated dimensions instead of negatives."""

from dataclasses import dataclass

from simcse_cli.losses.barlow_twins import barlow_twins
from simcse_cli.objectives.base import Batch, Losses, Representations
from simcse_cli.objectives.views import ProjectedOptions, ProjectedViews
from simcse_cli.settings.choices import ObjectiveName
from simcse_cli.settings.declare import setting


@dataclass(frozen=True)
class BarlowTwinsOptions(ProjectedOptions):
    redundancy_weight: float = setting(
        0.0051, "Weight of the correlations of different dimensions.", min=0
    )


class BarlowTwins(ProjectedViews):
    """Two views of a sentence correlate in each dimension, and different dimensions do not.

    Source: Zbontar et al. 2021.
    """

    name = ObjectiveName.BARLOW_TWINS
    projector_bias = False

    Options = BarlowTwinsOptions
    options: BarlowTwinsOptions

    def losses(self, representations: Representations, batch: Batch) -> Losses:
        view_a, view_b = self.projections(representations[0], batch)
        weight = self.options.redundancy_weight
        return {"barlow_twins": barlow_twins(view_a, view_b, redundancy_weight=weight)}, {}
