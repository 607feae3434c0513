"""Objectives on projected views, without negatives: Barlow Twins and VICReg."""

from typing import Any, ClassVar

from torch import Tensor

from simcse_cli.errors import ConfigError
from simcse_cli.losses.barlow_twins import barlow_twins
from simcse_cli.losses.vicreg import vicreg
from simcse_cli.machine.gather import gather_views
from simcse_cli.models.encoder import SentenceEncoder
from simcse_cli.models.heads import Projector
from simcse_cli.objectives.base import Batch, Losses, require_least
from simcse_cli.objectives.views import TextViews
from simcse_cli.settings.choices import DropoutMode, ObjectiveName


class ProjectedViews(TextViews):
    """Two views of each sentence through encoder and projector: Barlow Twins and VICReg.

    Source of the set-up: Farina and Pappadopulo 2023; [CLS] without a head, batch 256, two epochs. All three
    layers of the projector have ``projector_dim``.
    """

    projector_bias: ClassVar[bool]
    defaults = {"batch_size": 256, "epochs": 2.0, "head": "none"}  # noqa: RUF012 - a ClassVar of the base class

    projector_dim: int = 8192

    def __init__(self, encoder: SentenceEncoder, **options: Any) -> None:
        super().__init__(encoder, **options)
        require_least(2, projector_dim=self.projector_dim)
        if self.dropout_mode is DropoutMode.FIXED:
            raise ConfigError(
                f"--dropout-mode fixed: --objective {self.name} asks two views of a sentence to agree, "
                "and one vector always agrees with itself",
                hint="use --dropout-mode independent, or none with --augment",
            )
        self.projector = Projector(encoder.hidden_size, self.projector_dim, bias=self.projector_bias)

    def projections(self, embeddings: Tensor, batch: Batch) -> list[Tensor]:
        """Return both views, ``(N, P)`` over all processes; they pass the projector one after the other."""
        projected = [self.projector(view) for view in self.local_views(embeddings, batch)]
        return gather_views(projected, batch.counts)


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
        return {"barlow_twins": barlow_twins(view_a, view_b, redundancy_weight=self.redundancy_weight)}, {}


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
