"""VICReg: views agree, dimensions vary, dimensions do not covary."""

from typing import Any

from torch import Tensor

from simcse_cli.errors import ConfigError
from simcse_cli.losses.vicreg import vicreg
from simcse_cli.models.encoder import SentenceEncoder
from simcse_cli.objectives.base import Batch, Losses
from simcse_cli.objectives.views import ProjectedViews
from simcse_cli.settings.choices import ObjectiveName


class Vicreg(ProjectedViews):
    """Three terms on two projected views.

    Source: Bardes et al. 2022.
    """

    name = ObjectiveName.VICREG
    projector_bias = True

    def __init__(
        self,
        encoder: SentenceEncoder,
        *,
        invariance_weight: float = 25.0,
        variance_weight: float = 25.0,
        covariance_weight: float = 1.0,
        **settings: Any,
    ) -> None:
        super().__init__(encoder, **settings)
        self.weights = {
            "invariance_weight": invariance_weight,
            "variance_weight": variance_weight,
            "covariance_weight": covariance_weight,
        }
        for name, weight in self.weights.items():
            if weight < 0:
                raise ConfigError(f"--set {name}={weight}: need 0 or more")

    def losses(self, representations: tuple[Tensor, ...], batch: Batch) -> Losses:
        view_a, view_b = self.projections(representations[0], batch)
        return vicreg(view_a, view_b, **self.weights)._asdict(), {}
