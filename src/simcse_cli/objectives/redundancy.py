"""What Barlow Twins and VICReg share: a projector behind the encoder, discarded after training."""

from typing import Any, ClassVar

from torch import Tensor

from simcse_cli.choices import DropoutMode
from simcse_cli.errors import ConfigError
from simcse_cli.losses.gather import gather_with_grad
from simcse_cli.models.encoder import SentenceEncoder
from simcse_cli.models.heads import Projector
from simcse_cli.objectives.base import Batch
from simcse_cli.objectives.batch_norm import GlobalBatchNorm
from simcse_cli.objectives.views import TextViews


class ProjectedViews(TextViews):
    """Two views of each sentence through encoder and projector.

    Source of the set-up: Farina and Pappadopulo 2023; [CLS] without a head, batch 256, two epochs.

    Args:
        encoder: gives the embedding that is kept.
        projector_dim: width of all three layers of the projector.
        **settings: of the views and the second encoder.
    """

    projector_bias: ClassVar[bool]
    defaults = {"batch_size": 256, "epochs": 2.0, "head": "none"}  # noqa: RUF012 - a ClassVar of the base class

    def __init__(self, encoder: SentenceEncoder, *, projector_dim: int = 8192, **settings: Any) -> None:
        super().__init__(encoder, **settings)
        if projector_dim < 2:
            raise ConfigError(
                f"--set projector_dim={projector_dim}: need at least 2 dimensions to decorrelate"
            )
        if self.dropout_mode is DropoutMode.FIXED:
            raise ConfigError(
                f"--dropout-mode fixed: --objective {self.name} asks two views of a sentence to agree, "
                "and one vector always agrees with itself",
                hint="use --dropout-mode independent, or none with --augment",
            )
        self.projector = Projector(
            encoder.hidden_size, projector_dim, bias=self.projector_bias, norm=GlobalBatchNorm
        )

    def projections(self, embeddings: Tensor, batch: Batch) -> list[Tensor]:
        """Return both views, ``(N, P)`` over all processes; they pass the projector one after the other."""
        return [gather_with_grad(self.projector(view)) for view in self.local_views(embeddings, batch)]
