"""Unsupervised SimCSE, and the variants of its successors, which change the negatives."""

import copy
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from simcse_cli.errors import ConfigError
from simcse_cli.losses.dclr import ascended, released_dclr
from simcse_cli.losses.info_nce import equal_pairs, info_nce
from simcse_cli.losses.mixcse import mixcse
from simcse_cli.losses.nt_xent import nt_xent
from simcse_cli.losses.simcse_plus_plus import dimension_contrast, off_dropout
from simcse_cli.machine.gather import gather_with_grad
from simcse_cli.objectives.base import (
    Batch,
    Examples,
    Losses,
    Representations,
    training_width,
)
from simcse_cli.objectives.simcse import (
    Simcse,
    SimcseOptions,
    numbers_of_texts,
    sums_apart,
    teacher_cosines,
    with_anchors_again,
)
from simcse_cli.objectives.vector_queue import VectorQueue
from simcse_cli.settings.choices import (
    DropoutMode,
    MixMasked,
    MixSides,
    Negatives,
    ObjectiveName,
    Similarity,
)
from simcse_cli.settings.declare import setting

# The setting that some options need, and why they are refused without it.
ONE_FORM = {"negatives=dropout": "the loss has one form"}


@dataclass(frozen=True)
class SimcseUnsupOptions(SimcseOptions):
    queue_size: int = setting(
        0,
        "Vectors of past batches that are negatives too (ESimCSE).",
        min=0,
        enables=("momentum",),
        needs=ONE_FORM,
    )
    momentum: float = setting(
        0.995, "Share that the copy behind the queue keeps of itself in a step.", min=0, max=1
    )
    negatives: Negatives = setting(
        Negatives.DROPOUT,
        "Other rows under dropout, without it (SimCSE++), or of all views (Mirror-BERT).",
    )
    positive_scale: float = setting(
        1.0, "Factor of the positive's logit.", above=0, needs="negatives=no-dropout"
    )
    head_dropout: float = setting(
        0.0,
        "Probability that a row loses an attention head of a layer (Mirror-BERT).",
        min=0,
        below=1,
    )
    dimension_weight: float = setting(
        0.0,
        "Weight of the contrast between dimensions (SimCSE++).",
        min=0,
        enables=("dimension_temperature",),
    )
    dimension_temperature: float = setting(5.0, "Divisor of correlations in that term.", above=0)
    mix: float = setting(
        0.0,
        "Share of the own positive in mixed negatives (MixCSE); 0: none.",
        min=0,
        max=1,
        enables=("mix_masked", "mix_sides"),
        excludes=("queue_size", "noise"),
        because="the loss has one form",
        needs=ONE_FORM,
    )
    mix_masked: MixMasked = setting(
        MixMasked.EXCLUDE, "What becomes of mixed vectors that hold a row's own pair."
    )
    mix_sides: MixSides = setting(MixSides.BOTH, "Views that are mixed.")
    noise: float = setting(
        0.0,
        "Random vectors that are negatives too, as a multiple of the batch (DCLR).",
        min=0,
        enables=("noise_steps",),
        needs=ONE_FORM,
    )
    noise_steps: int = setting(4, "Steps of the random vectors up the loss.", min=0)
    teacher: int | None = setting(
        None,
        "Frozen model that finds false negatives (DCLR).",
        "--teacher",
        needs="false_negative_cosine",
    )
    false_negative_cosine: float | None = setting(
        None,
        "Rows that the teacher finds closer than this are no negatives (DCLR).",
        needs="teacher",
        max=1,
    )
    as_released: bool = setting(
        False,
        "The loss of DCLR as its code has it: false negatives at logit 0, binary cross-entropy.",
        needs="false_negative_cosine",
        excludes=("symmetric", "queue_size", "mix", "negatives"),
    )


class SimcseUnsup(Simcse):
    """Unsupervised SimCSE: each sentence is its own positive, and only dropout differs.

    Source: Gao et al. 2021, Eq. 4. If the training file has two columns, these are the two views.
    The options come from successors of SimCSE (``docs/objectives.md``); without them, the loss is
    exactly that of SimCSE.
    """

    name = ObjectiveName.SIMCSE_UNSUP
    Options = SimcseUnsupOptions
    options: SimcseUnsupOptions

    def set_up(self) -> None:
        if self.options.head_dropout:  # first, since ``super`` may copy the encoder
            self.encoder.drop_heads(self.options.head_dropout)
        super().set_up()
        self._check_loss_options()
        self.needs_two_rows = self.options.dimension_weight > 0
        self.queue: VectorQueue | None = None
        if queue_size := self.options.queue_size:
            width = training_width(self.encoder)
            self.queue = VectorQueue(self.encoder, queue_size, self.options.momentum, width=width)
        self.epoch = 0

    def _check_loss_options(self) -> None:
        """Raise ConfigError for options that exclude each other in the loss."""
        # The forms of SimCSE++, Mirror-BERT and MixCSE have one direction.
        options = self.options
        negatives_flag = f"--set negatives={options.negatives}"
        if options.symmetric and (options.mix or options.negatives is not Negatives.DROPOUT):
            form = f"--set mix={options.mix:g}" if options.mix else negatives_flag
            raise ConfigError(f"{form} has no other direction", hint="leave symmetric out")

        # DCLR's noise, its released loss, and the form of Mirror-BERT exist for cosines alone.
        cosine_forms = []
        if options.noise:
            cosine_forms.append(f"--set noise={options.noise:g}")
        if options.as_released:
            cosine_forms.append("--set as_released=true")
        if options.negatives is Negatives.ALL_VIEWS:
            cosine_forms.append(negatives_flag)
        if cosine_forms and options.similarity is not Similarity.COSINE:
            raise ConfigError(
                f"{cosine_forms[0]} compares by cosine", hint="leave --similarity out"
            )
        if options.negatives is not Negatives.NO_DROPOUT:
            return

        # Negatives without dropout need two views with dropout, and one encoder.
        if options.dropout_mode is not DropoutMode.INDEPENDENT:
            raise ConfigError(
                f"{negatives_flag}: with --dropout-mode {options.dropout_mode} there is nothing to "
                "leave out",
                hint="leave --dropout-mode out",
            )
        if self.second is not None:
            raise ConfigError(
                f"{negatives_flag} compares vectors of one encoder", hint="leave --dual-encoder out"
            )

    def examples(self, data: Any, generator: np.random.Generator) -> Examples:
        if self.options.negatives is Negatives.NO_DROPOUT and len(data.columns) > 1:
            raise ConfigError(
                "--set negatives=no-dropout compares a sentence with itself; these rows are pairs",
                hint="use it with single sentences",
            )
        # A new number tells the queue that an epoch begins. It is drawn from a copy of the
        # generator, so that later draws stay the same.
        self.epoch = int(copy.deepcopy(generator).integers(1, 2**62))
        return super().examples(data, generator)

    def collate(self, examples: Sequence[tuple[str, ...]], generator: np.random.Generator) -> Batch:
        batch = super().collate(examples, generator)
        if self.options.negatives is Negatives.NO_DROPOUT:
            batch = with_anchors_again(batch)
        if self.queue is not None:
            batch.extra["epoch"] = self.epoch
        if self.options.noise:
            size = self._n_noise(len(examples)), training_width(self.encoder)
            noise = generator.standard_normal(size, dtype=np.float32)
            batch.extra["noise"] = torch.from_numpy(noise)
        return batch

    def _n_noise(self, n_rows: int) -> int:
        """Return how many noise vectors a process with ``n_rows`` examples draws, rounded up."""
        return math.ceil(self.options.noise * n_rows)

    def embed(self, batch: Batch) -> Tensor:
        if self.options.negatives is not Negatives.NO_DROPOUT:
            return super().embed(batch)
        # The rows after the two views are the anchors again, which are encoded without dropout.
        views, anchors_again = batch.split(2 * batch.n_examples)
        vectors = []
        if views:
            vectors.append(super().embed(replace(batch, rows=views)))
        if anchors_again:
            vectors.append(self.encoder.embed_rows(anchors_again, dropout=False))
        return torch.cat(vectors)

    def losses(self, representations: Representations, batch: Batch) -> Losses:
        terms, metrics = super().losses(representations, batch)
        # The queue takes this batch's anchors after the loss has read the earlier ones.
        if self.queue is not None:
            self.queue.push(self.encoder, batch.rows[: batch.n_examples], batch.counts)
        return terms, metrics

    def views(self, embeddings: Tensor, batch: Batch) -> list[Tensor]:
        """Return the views of all processes, then negatives that belong to no row, if any."""
        views = super().views(embeddings, batch)
        n_rows = len(views[0])
        if self.queue is not None:
            views.append(self.queue.negatives(batch.extra["epoch"]))
        if self.options.noise:
            counts = list(map(self._n_noise, batch.counts))
            noise = gather_with_grad(batch.extra["noise"], counts)
            # Every process rounds its number of vectors up, so the total is cut here.
            n_noise = int(self.options.noise * n_rows)
            views.append(noise[:n_noise].to(views[0].dtype))
        return views

    def view_terms(self, views: list[Tensor], batch: Batch) -> Losses:
        options = self.options
        excluded, metrics = self._excluded(batch)
        terms = {"contrastive": self._loss(sums_apart(views), excluded)}
        if options.dimension_weight:
            loss = dimension_contrast(views[0], views[1], temperature=options.dimension_temperature)
            terms["dimension"] = options.dimension_weight * loss
        return terms, metrics

    def _excluded(self, batch: Batch) -> tuple[Tensor | None, dict[str, Tensor]]:
        """Return a mask that is true where row j is no negative of row i, and metrics.

        The mask is ``(N, N)``: the rows share a text, or a teacher finds them too close. It is None
        if neither is looked for. With a teacher, the metric is the share of pairs of rows that it
        finds too close.
        """
        texts = numbers_of_texts(batch)
        share_a_text = None if texts is None else equal_pairs(texts)
        threshold = self.options.false_negative_cosine
        if threshold is None:
            return share_a_text, {}
        too_close = (teacher_cosines(batch) > threshold).fill_diagonal_(False)
        n_pairs = too_close.numel() - len(too_close)  # without the diagonal
        metrics = {"false_negatives": too_close.sum() / max(n_pairs, 1)}
        if share_a_text is None:
            return too_close, metrics
        return share_a_text | too_close, metrics

    def _loss(self, views: list[Tensor], excluded: Tensor | None) -> Tensor:
        """Return the contrastive loss of gathered views, in the form that the options choose.

        ``views`` are the anchors and the positives. With ``negatives=no-dropout``, the anchors
        without dropout follow; otherwise, the queue and then the noise, if the options ask for
        them. ``excluded``, ``(N, N)``, is true where row j is no negative of row i.
        """
        options = self.options
        anchors, positives, *others = views
        shared: dict[str, Any] = {"temperature": options.temperature, "excluded": excluded}
        if options.negatives is Negatives.ALL_VIEWS:
            return nt_xent(anchors, positives, **shared)
        if options.noise:  # move the noise up the loss
            n_steps = options.noise_steps
            others[-1] = ascended(others[-1], anchors, positives, n_steps=n_steps, **shared)
        if options.as_released and excluded is not None:
            # ``as_released`` needs a threshold, so ``excluded`` is not None; mypy cannot know that.
            # ``cat`` refuses an empty list, so an empty part of the anchors is added.
            noise = torch.cat([*others, anchors[:0]])
            return released_dclr(
                anchors, positives, noise, excluded, temperature=options.temperature
            )

        # The forms below can also compare by dot product.
        shared["similarity"] = options.similarity
        if options.negatives is Negatives.NO_DROPOUT:
            shared["positive_scale"] = options.positive_scale
            return off_dropout(anchors, positives, others[0], **shared)
        if options.mix:
            shared |= {"masked": options.mix_masked, "sides": options.mix_sides}
            return mixcse(anchors, positives, mix=options.mix, **shared)
        negatives = torch.cat(others) if others else None
        return info_nce(
            anchors, positives, symmetric=options.symmetric, extra_negatives=negatives, **shared
        )
