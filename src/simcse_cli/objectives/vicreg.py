"""VICReg: variance and covariance terms instead of negatives."""

from typing import Any

from torch import Tensor

from simcse_cli.losses.vicreg import vicreg
from simcse_cli.models.encoder import SentenceEncoder
from simcse_cli.objectives.base import Batch, Losses, require_least
from simcse_cli.objectives.views import ProjectedViews
from simcse_cli.settings.choices import ObjectiveName


class Vicreg(ProjectedViews):
    """Views agree, dimensions vary, dimensions do not covary (Bardes et al. 2022)."""

    name = ObjectiveName.VICREG
    projector_bias = True

    invariance_weight: float = 25.0
    variance_weight: float = 25.0
    covariance_weight: float = 1.0

    def __init__(self, encoder: SentenceEncoder, **options: Any) -> None:
        super().__init__(encoder, **options)
        names = ("invariance_weight", "variance_weight", "covariance_weight")
        self.weights = {name: getattr(self, name) for name in names}
        require_least(0, **self.weights)

    def losses(self, representations: tuple[Tensor, ...], batch: Batch) -> Losses:
        view_a, view_b = self.projections(representations[0], batch)
        return vicreg(view_a, view_b, **self.weights)._asdict(), {}
