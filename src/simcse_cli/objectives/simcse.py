"""SimCSE: the contrast of two views, and its supervised form with hard negatives."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from simcse_cli.errors import ConfigError
from simcse_cli.losses.cosent import angle
from simcse_cli.losses.guided import guided_info_nce
from simcse_cli.losses.info_nce import info_nce
from simcse_cli.losses.similarity import similarity_matrix
from simcse_cli.machine.gather import gather_views
from simcse_cli.objectives.base import (
    Batch,
    Examples,
    Losses,
    Representations,
    training_width,
)
from simcse_cli.objectives.mlm import mlm_term
from simcse_cli.objectives.views import TextViewOptions, TextViews
from simcse_cli.settings.choices import ContrastBlock, ObjectiveName, Similarity
from simcse_cli.settings.declare import setting


@dataclass(frozen=True)
class SimcseOptions(TextViewOptions):
    """Options of all forms of SimCSE; ``original_scaling`` is explained in ``gather_with_grad``."""

    temperature: float = setting(0.05, "Divisor of similarities.", "--temperature", above=0)
    similarity: Similarity = setting(Similarity.COSINE, "Similarity in the loss.", "--similarity")
    symmetric: bool = setting(False, "Classify positives among anchors as well, and average.")
    matryoshka_dims: tuple[int, ...] = setting(
        (), "Widths of leading parts of the vector that are trained too."
    )
    mlm_weight: float = setting(
        0.0, "Weight of the auxiliary masked-LM term.", "--mlm-weight", min=0
    )
    mlm_probability: float = setting(
        0.15, "Share of tokens that the masked-LM term predicts.", above=0, below=1
    )
    mlm_tied: bool = setting(False, "Use the word embeddings as the term's output matrix.")
    original_scaling: bool = setting(
        False, "Gradient of the original code with several processes.", "--gather original"
    )


class Simcse(TextViews):
    """The in-batch contrast of two views, which all forms of SimCSE share.

    Source: Gao et al. 2021.

    For each width in ``matryoshka_dims``, the leading part of the vector is trained too: a term
    that reads views is then the mean over these parts and the whole vector (Kusupati et al. 2022).

    A ``mlm_weight`` above 0 adds a masked-LM term; the paper's best weight is 0.1 (Table D.2). With
    ``mlm_tied``, the word embeddings are the output matrix of this term. Without it, as in the
    original code, a separate matrix is trained, which starts from the word embeddings.
    """

    in_batch_negatives = True
    hard_negative_alpha = 1.0
    Options = SimcseOptions
    options: SimcseOptions

    def set_up(self) -> None:
        super().set_up()
        width = training_width(self.encoder)
        for dim in self.options.matryoshka_dims:
            if not 1 <= dim <= width:
                raise ConfigError(
                    f"--set matryoshka_dims: {dim} is not between 1 and the vector's width, {width}"
                )
        self.widths = sorted({*self.options.matryoshka_dims, width})
        self.mlm = mlm_term(self, tied=self.options.mlm_tied)

    def collate(self, examples: Sequence[tuple[str, ...]], generator: np.random.Generator) -> Batch:
        """Tokenise the views of each example; with the MLM term, add masked copies of all rows."""
        batch = super().collate(examples, generator)
        if self.mlm is not None:
            masked, labels = self.mlm.mask(batch.rows, generator)
            batch.extra |= {"n_plain": len(batch.rows), "mlm_labels": labels}
            batch.rows = [*batch.rows, *masked]
        return batch

    def encode(self, batch: Batch) -> Representations:
        """Return the embeddings of the plain rows and, with the MLM term, the masked rows' losses.

        A chunk of a batch may have plain rows alone, or masked rows alone: either result may then
        have 0 rows.
        """
        if self.mlm is None:
            return super().encode(batch)

        n_plain = batch.extra["n_plain"]
        plain, masked = batch.split(n_plain)
        nothing = torch.zeros(0, device=self.encoder.device)
        embeddings = nothing.view(0, training_width(self.encoder))
        if plain:
            embeddings = self.embed(replace(batch, rows=plain))
        if not masked:
            return embeddings, nothing
        states, starts = self.encoder.token_states(masked)
        # The labels are those of all masked rows; this chunk may begin behind the first of them.
        first_masked = max(batch.offset - n_plain, 0)
        labels = batch.extra["mlm_labels"][first_masked : first_masked + len(masked)]
        return embeddings, self.mlm.row_losses(states, labels, starts)

    def losses(self, representations: Representations, batch: Batch) -> Losses:
        views = self.views(representations[0], batch)
        results = [
            self.view_terms([view[:, :width] for view in views], batch) for width in self.widths
        ]
        for terms_of_width, _ in results:
            self.require_scalars(terms_of_width)  # here, because ``stack`` takes tensors alone
        whole_terms, metrics = results[-1]  # the last width is that of the whole vector
        terms = {}
        for name in whole_terms:
            values = [terms_of_width[name] for terms_of_width, _ in results]
            terms[name] = torch.stack(values).mean(dim=0)
        if self.mlm is not None:
            terms["mlm"] = self.mlm.loss(representations[1], batch.extra["mlm_labels"])
        return terms, metrics

    def views(self, embeddings: Tensor, batch: Batch) -> list[Tensor]:
        """Return the views of all processes, each ``(N, D)``."""
        local = self.local_views(embeddings, batch)
        return gather_views(local, batch.counts, original_scaling=self.options.original_scaling)

    def view_terms(self, views: list[Tensor], batch: Batch) -> Losses:
        """Return the terms and metrics of gathered views, which are cut to one of the widths."""
        loss = self.contrast(sums_apart(views), numbers_of_texts(batch))
        return {"contrastive": loss}, {}

    def contrast(self, views: list[Tensor], texts: Tensor | None = None) -> Tensor:
        """Return the contrastive loss of gathered views: anchors, positives, hard negatives if any.

        ``texts`` holds a number for each text of each row. Texts with the same number are equal,
        and no negatives of each other. Without ``texts``, all texts of other rows are negatives.
        """
        anchors, positives, *hard_negatives = views
        return info_nce(
            anchors,
            positives,
            temperature=self.options.temperature,
            similarity=self.options.similarity,
            hard_negatives=torch.cat(hard_negatives) if hard_negatives else None,
            hard_negative_alpha=self.hard_negative_alpha,
            symmetric=self.options.symmetric,
            texts=texts,
        )


@dataclass(frozen=True)
class SimcseSupOptions(SimcseOptions):
    hard_negative_alpha: float = setting(
        1.0, "Weight of an anchor's own hard negative.", "--hard-neg-alpha", above=0
    )
    unsup_weight: float = setting(0.0, "Weight of the unsupervised loss of the anchors.", min=0)
    angle_weight: float = setting(0.0, "Weight of AnglE's term, which needs triplets.", min=0)
    teacher: int | None = setting(
        None,
        "Frozen model, a guide, that masks false negatives (GIST).",
        "--teacher",
        enables=("guide_margin", "contrast"),
        excludes=(
            "similarity",
            "symmetric",
            "hard_negative_alpha",
            "unsup_weight",
            "angle_weight",
        ),
        because="whose loss is of one form",
    )
    guide_margin: float = setting(
        0.0, "Negatives are masked above the guide's cosine of the pair less this."
    )
    contrast: tuple[ContrastBlock, ...] = setting(
        (ContrastBlock.AA, ContrastBlock.PP),
        "Further negatives beside a guide: anchors (aa), positives among themselves (pp).",
    )


class SimcseSup(Simcse):
    """Supervised SimCSE: annotated pairs, with each anchor's contradiction as a hard negative.

    Source: Gao et al. 2021, Eq. 5 and 8. If a teacher is given, it is a guide that masks false
    negatives (GIST).

    An ``unsup_weight`` above 0 adds the unsupervised loss of the anchors: each is encoded a second
    time under another dropout mask, as its own positive (Eq. 4). The paper tried such a combination
    without a gain (section 4), but states neither the form nor the weight.

    An ``angle_weight`` above 0 adds AnglE's term: an anchor and its positive are a pair of score 1,
    an anchor and its hard negative are a pair of score 0 (Li and Li 2023, the authors' code).
    """

    name = ObjectiveName.SIMCSE_SUP
    n_columns = (2, 3)
    defaults = {"epochs": 3.0, "head": "kept", "lr": 5e-5}

    Options = SimcseSupOptions
    options: SimcseSupOptions

    def set_up(self) -> None:
        super().set_up()
        self.hard_negative_alpha = self.options.hard_negative_alpha

    def examples(self, data: Any, generator: np.random.Generator) -> Examples:
        if self.options.angle_weight and len(data.columns) < 3:
            raise ConfigError(
                f"--set angle_weight={self.options.angle_weight:g}: {data.name} has no "
                "hard_negative",
                hint="AnglE's term takes triplets; pairs with scores are for --objective cosent",
            )
        alpha = self.options.hard_negative_alpha
        if alpha != 1 and len(data.columns) == 2:
            raise ConfigError(
                f"--hard-neg-alpha {alpha:g}: the rows of {data.name} are pairs, without hard "
                "negatives",
                hint="leave it out, or add negatives with `simcse prepare hard-negatives`",
            )
        return super().examples(data, generator)

    def collate(self, examples: Sequence[tuple[str, ...]], generator: np.random.Generator) -> Batch:
        batch = super().collate(examples, generator)
        if not self.options.unsup_weight:
            return batch
        return with_anchors_again(batch)

    def view_terms(self, views: list[Tensor], batch: Batch) -> Losses:
        options = self.options
        if "teacher" in batch.extra:
            loss, masked_share = guided_info_nce(
                views,
                batch.extra["teacher"].unbind(1),  # (N, C, D): one tensor for each column
                temperature=options.temperature,
                margin=options.guide_margin,
                blocks=options.contrast,
                texts=numbers_of_texts(batch),
            )
            return {"contrastive": loss}, {"masked": masked_share}
        terms, metrics = super().view_terms(views, batch)
        if options.angle_weight:
            terms["angle"] = options.angle_weight * self.angle_term(sums_apart(views))
        return terms, metrics

    def angle_term(self, views: Sequence[Tensor]) -> Tensor:
        """Return AnglE's loss of gathered views."""
        anchors, positives, hard_negatives, *_ = views  # ``_``: the anchors again, if any
        left = torch.cat([anchors, anchors])
        right = torch.cat([positives, hard_negatives])
        scores = torch.ones(len(left), device=left.device)
        scores[len(anchors) :] = 0
        return angle(left, right, scores, temperature=self.options.temperature)

    def contrast(self, views: list[Tensor], texts: Tensor | None = None) -> Tensor:
        if not self.options.unsup_weight:
            return super().contrast(views, texts)
        *supervised_views, anchors_again = views
        # In the unsupervised loss, a row holds its anchor's text twice.
        anchor_texts = None if texts is None else texts[:, :1].expand(-1, 2)
        unsupervised = super().contrast([views[0], anchors_again], anchor_texts)
        supervised = super().contrast(supervised_views, texts)
        return supervised + self.options.unsup_weight * unsupervised


def sums_apart(views: Sequence[Tensor]) -> list[Tensor]:
    """Return an alias of each view, for one of several terms of a loss.

    The gradients of this term are added up in the aliases, and only then to those of other terms.
    So other terms do not change the order of the additions, and with it the last bits.
    """
    return [view[...] for view in views]


def numbers_of_texts(batch: Batch) -> Tensor | None:
    """Return a number for each text of all rows, ``(N, C)`` with C at least 2; None without any.

    Equal texts have equal numbers: they tell a loss which texts are no negatives of a row. Only
    batches that mask duplicates have them.
    """
    texts: Tensor | None = batch.extra.get("texts")
    if texts is not None and texts.shape[1] == 1:
        return texts.expand(-1, 2)  # a single sentence is its own positive
    return texts


def teacher_cosines(batch: Batch) -> Tensor:
    """Return the teachers' weighted mean cosines between all anchors of the batch, ``(N, N)``."""
    # ``Teachers`` scales its vectors so that their dot products are these means.
    anchors: Tensor = batch.extra["teacher"][:, 0]  # column 0 of (N, C, D)
    return similarity_matrix(anchors, anchors, Similarity.DOT)


def with_anchors_again(batch: Batch) -> Batch:
    """Add the anchors' rows to the batch a second time, and return it.

    They stand behind the views, but before the masked rows, if there are any.
    """
    n_plain = batch.extra.get("n_plain", len(batch.rows))
    anchors = batch.rows[: batch.n_examples]
    batch.rows = [*batch.rows[:n_plain], *anchors, *batch.rows[n_plain:]]
    batch.extra["n_plain"] = n_plain + batch.n_examples
    return batch
