"""SNCSE: SimCSE with PromptBERT's templates, and negated sentences as soft negatives."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from torch import Tensor

from simcse_cli.errors import ConfigError
from simcse_cli.losses.sncse import soft_negative_margin
from simcse_cli.objectives.base import Batch, Losses
from simcse_cli.objectives.promptbert import TemplateOptions, TemplateViews, template_defaults
from simcse_cli.settings.choices import ObjectiveName
from simcse_cli.settings.declare import setting


@dataclass(frozen=True)
class SncseOptions(TemplateOptions):
    max_length: int = setting(24, "Sub-words per text, including special ones.", "--max-length")
    template: Sequence[str] = setting(
        ('This sentence : " {.} " means {mask} .', 'This sentence of " {.} " means {mask} .'),
        "Words around the anchor, and around positive and negation.",
        "--template",
    )
    margin_low: float = setting(
        0.1, "Least by which the cosine of a negation is below that of the positive.", min=0
    )
    margin_high: float = setting(0.3, "Most by which it is.", min=0)
    soft_weight: float = setting(1e-3, "Weight of that term.", min=0)


class Sncse(TemplateViews):
    """SimCSE with the negation of each sentence as a soft negative.

    Source: Wang et al. 2022 and the authors' code. The loss is InfoNCE of anchors and positives,
    without the negations, plus ``soft_weight`` times ``soft_negative_margin``.
    """

    name = ObjectiveName.SNCSE
    n_columns = (3, 3)
    defaults = template_defaults(SncseOptions)
    Options = SncseOptions
    options: SncseOptions

    def set_up(self) -> None:
        super().set_up()
        low = self.options.margin_low
        high = self.options.margin_high
        if low > high:
            raise ConfigError(f"--set margin_low={low:g}: need at most margin_high, {high:g}")

    def collate(self, examples: Sequence[tuple[str, ...]], generator: np.random.Generator) -> Batch:
        # With weight 0, negations are not encoded: they would change the dropout masks.
        n_views = 3 if self.options.soft_weight else 2
        return super().collate([texts[:n_views] for texts in examples], generator)

    def view_terms(self, views: list[Tensor], batch: Batch) -> Losses:
        options = self.options
        anchors, positives, *negations = views
        # Equal texts are looked for among anchors and positives alone.
        if "texts" in batch.extra:
            two_texts = {"texts": batch.extra["texts"][:, :2]}
            batch = replace(batch, extra=batch.extra | two_texts)
        terms, metrics = super().view_terms([anchors, positives], batch)
        # There is one view of negations, or none if their weight is 0.
        for negated in negations:
            margin = soft_negative_margin(
                anchors, positives, negated, low=options.margin_low, high=options.margin_high
            )
            terms["margin"] = options.soft_weight * margin
        return terms, metrics
