"""CoSENT and AnglE: ranking of scored pairs."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from simcse_cli.losses.cosent import angle, cosent
from simcse_cli.machine.gather import gather_views, gather_with_grad
from simcse_cli.objectives.base import Batch, DataKind, Losses, Representations
from simcse_cli.objectives.labelled_pairs import LabelledPairOptions, LabelledPairs
from simcse_cli.objectives.sbert import Sbert
from simcse_cli.settings.choices import ObjectiveName
from simcse_cli.settings.declare import setting


@dataclass(frozen=True)
class CosentOptions(LabelledPairOptions):
    temperature: float = setting(0.05, "Divisor of similarities.", "--temperature", above=0)
    cosine_weight: float = setting(1.0, "Weight of the term that ranks cosines.", min=0)
    angle_weight: float = setting(0.0, "Weight of AnglE's term.", min=0)


class Cosent(LabelledPairs):
    """The ranking loss of all scored pairs of a batch, by cosines, by AnglE's score, or by both.

    Source: Su 2022; Li and Li 2023 (AnglE). The defaults are those of sentence-transformers for
    STS-B, but the batch size is a default of this toolkit.
    """

    name = ObjectiveName.COSENT
    reads = DataKind.SCORED
    learns_from_one_row = False  # the loss compares the scores of a batch
    defaults = {**Sbert.defaults, "batch_size": 32, "epochs": 4.0}

    Options = CosentOptions
    options: CosentOptions

    def target(self, labels: Sequence[str]) -> Tensor:
        return torch.tensor([float(score) for score in labels], dtype=torch.float64)

    def losses(self, representations: Representations, batch: Batch) -> Losses:
        left, right = gather_views(representations[0].chunk(2), batch.counts)
        scores = gather_with_grad(batch.extra["labels"], batch.counts)
        options = self.options
        terms = {}
        # If both weights are 0, the cosine term stays, times 0, because the loss needs a term.
        if options.cosine_weight or not options.angle_weight:
            loss = cosent(left, right, scores, temperature=options.temperature)
            terms["cosent"] = options.cosine_weight * loss
        if options.angle_weight:
            loss = angle(left, right, scores, temperature=options.temperature)
            terms["angle"] = options.angle_weight * loss
        return terms, {}
