"""PromptBERT: a sentence is put into a template, whose state at [MASK] is its vector."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from simcse_cli.errors import ConfigError
from simcse_cli.models.mask_template import NOTHING_AROUND, MaskTemplate
from simcse_cli.objectives.base import Batch, Examples
from simcse_cli.objectives.simcse import Simcse, SimcseOptions
from simcse_cli.settings.choices import ObjectiveName, Pooler, TemplateBias
from simcse_cli.settings.declare import setting


@dataclass(frozen=True)
class TemplateOptions(SimcseOptions):
    template: Sequence[str] = setting(
        ('This sentence of "{.}" means {mask}.', 'This sentence : "{.}" means {mask}.'),
        "Words around the first and the other views.",
        "--template",
    )


def template_defaults(options: type[TemplateOptions]) -> dict[str, Any]:
    """Return the training defaults that follow from the options of a method with templates."""
    return {
        "max_length": options.max_length,
        "pooler": "mask",
        "template": list(options.template),
    }


class TemplateViews(Simcse):
    """SimCSE whose views may have different templates; the model keeps that of the first view."""

    Options = TemplateOptions
    options: TemplateOptions

    def set_up(self) -> None:
        super().set_up()
        texts = self.options.template
        if not 1 <= len(texts) <= 2:
            raise ConfigError(f"--template: {len(texts)} templates, need one or two")
        # Templates and the pooler ``mask`` need each other.
        is_plain = set(texts) == {NOTHING_AROUND}
        if (self.encoder.pooler is Pooler.MASK) == is_plain:
            raise ConfigError(
                f"--pooler {self.encoder.pooler} with --template {' and '.join(map(repr, texts))}",
                hint="templates want --pooler mask, other poolers --template '{}'",
            )
        if not is_plain:
            self.encoder.change(head=self.encoder.head, template=texts[0])
        self.first_template = MaskTemplate(texts[0], self.encoder.tokens)
        self.other_template = MaskTemplate(texts[-1], self.encoder.tokens)
        self._check_max_length()

    def _check_max_length(self) -> None:
        """Raise ConfigError if a text in one of the templates may be too long for the encoder."""
        # The loader has left room for the first template in ``tokens.max_length``.
        n_more = self.other_template.n_added - self.first_template.n_added
        room = self.encoder.tokens.max_length - max(n_more, 0)
        if self.options.max_length > room:
            raise ConfigError(
                f"--max-length {self.options.max_length}: with the template, {self.encoder.name} "
                f"has room for {room}",
                hint=f"use --max-length {room}",
            )

    def templates(self, n_views: int) -> Sequence[MaskTemplate]:
        return [self.first_template, *[self.other_template] * (n_views - 1)]


@dataclass(frozen=True)
class PromptbertOptions(TemplateOptions):
    max_length: int = setting(34, "Sub-words per text, including special ones.", "--max-length")
    template_bias: TemplateBias = setting(
        TemplateBias.TRAIN, "When the state of the template without a sentence is subtracted."
    )


class Promptbert(TemplateViews):
    """SimCSE whose views have different templates; the state of the template alone is subtracted.

    Source: Jiang et al. 2022 and the authors' code. The vector of a text with n sub-words is

        z = head(h - delta(n))

    h is the state of [MASK] in the template with the text. delta(n) is the state of [MASK] in the
    template alone, whose words are placed as around n sub-words (``around_nothing`` of the
    encoder); delta has dropout and a gradient. In a pass by chunks, each chunk computes delta anew,
    with other dropout masks. Pairs and triplets have the first template for all texts. For an empty
    text without dropout, ``h - delta(0)`` is 0.
    """

    name = ObjectiveName.PROMPTBERT
    n_columns = (1, 3)
    defaults = template_defaults(PromptbertOptions)
    Options = PromptbertOptions
    options: PromptbertOptions

    def set_up(self) -> None:
        super().set_up()
        bias = self.options.template_bias
        self.subtracts = bias in (TemplateBias.TRAIN, TemplateBias.BOTH)
        subtracts_at_test = bias in (TemplateBias.TEST, TemplateBias.BOTH)
        if bias is not TemplateBias.OFF:
            flag = f"--set template_bias={bias}"
            if self.encoder.pooler is not Pooler.MASK:
                raise ConfigError(f"{flag}: there is no template", hint="use template_bias=off")
            if self.second is not None:
                raise ConfigError(f"{flag} knows one encoder", hint="leave --dual-encoder out")
            self.encoder.with_movable_positions()  # raises an error if they cannot be moved
        self.encoder.change(head=self.encoder.head, subtracts_template=subtracts_at_test)
        self._has_one_column = True  # until ``examples`` has seen the rows

    def examples(self, data: Any, generator: np.random.Generator) -> Examples:
        self._has_one_column = len(data.columns) == 1
        return super().examples(data, generator)

    def templates(self, n_views: int) -> Sequence[MaskTemplate]:
        if self._has_one_column:
            return super().templates(n_views)
        return [self.first_template] * n_views

    def embed(self, batch: Batch) -> Tensor:
        """Return the embeddings, less the state of the template alone if training subtracts it."""
        if not self.subtracts:
            return super().embed(batch)
        # Only the second view of a single sentence has the other template.
        first = batch.rows
        second = batch.rows[:0]
        if self._has_one_column:
            first, second = batch.split(batch.n_examples)
        biases = []  # for the rows of each template, the states of the template alone
        for template, part in ((self.first_template, first), (self.other_template, second)):
            if part:
                biases.append(self.encoder.around_nothing(template, part))
        return self.encoder.apply_head(self.encoder.pooled_rows(batch.rows) - torch.cat(biases))
