"""VICReg: variance and covariance terms instead of negatives."""

from dataclasses import dataclass

from simcse_cli.losses.vicreg import vicreg
from simcse_cli.objectives.base import Batch, Losses, Representations
from simcse_cli.objectives.views import ProjectedOptions, ProjectedViews
from simcse_cli.settings.choices import ObjectiveName
from simcse_cli.settings.declare import setting


@dataclass(frozen=True)
class VicregOptions(ProjectedOptions):
    invariance_weight: float = setting(25.0, "Weight of the distance of the views.", min=0)
    variance_weight: float = setting(25.0, "Weight of the variance term.", min=0)
    covariance_weight: float = setting(1.0, "Weight of the covariance term.", min=0)


class Vicreg(ProjectedViews):
    """Two views agree, each dimension varies, and dimensions do not covary.

    Source: Bardes et al. 2022.
    """

    name = ObjectiveName.VICREG
    projector_bias = True

    Options = VicregOptions
    options: VicregOptions

    def losses(self, representations: Representations, batch: Batch) -> Losses:
        view_a, view_b = self.projections(representations[0], batch)
        terms = vicreg(
            view_a,
            view_b,
            invariance_weight=self.options.invariance_weight,
            variance_weight=self.options.variance_weight,
            covariance_weight=self.options.covariance_weight,
        )
        return terms, {}
