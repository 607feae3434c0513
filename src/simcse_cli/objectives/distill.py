"""Distillation: a student learns the vectors, or the similarities, of frozen teachers."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from torch import nn
from torch.nn import functional

from simcse_cli.losses.similarity import l2_normalize, similarity_matrix
from simcse_cli.machine.gather import gather_with_grad, mean_over_processes
from simcse_cli.machine.precision import no_autocast
from simcse_cli.objectives.base import (
    Batch,
    Losses,
    Objective,
    ObjectiveOptions,
    Representations,
    training_width,
)
from simcse_cli.objectives.simcse import teacher_cosines
from simcse_cli.settings.choices import DistillTarget, ObjectiveName
from simcse_cli.settings.declare import setting


@dataclass(frozen=True)
class DistillOptions(ObjectiveOptions):
    teacher: int | None = setting(None, "Frozen models to learn from.", "--teacher")
    match: DistillTarget = setting(
        DistillTarget.COSINE,
        "What is learnt: direction or entries (mse) of the teacher's vector, or cosines of a "
        "batch.",
    )


class Distill(Objective):
    """A student learns the teachers' vector of a text, or the teachers' cosines of a batch.

    Source: Reimers and Gurevych 2020 for ``match=mse``; the other values are variants. A teacher's
    vector has length 1; vectors of several teachers are joined, each times the square root of the
    teacher's share of the weights. The student's vector is the one that the finished model will
    give: it has length 1 as well if the model scales its vectors. If student and teachers differ in
    width, a linear map without bias is trained between them and dropped afterwards; cosines need no
    map.
    """

    name = ObjectiveName.DISTILL
    rows_are_examples = True
    needs_teacher = True
    defaults = {"head": "none"}
    Options = DistillOptions
    options: DistillOptions

    def set_up(self) -> None:
        # One vector has no cosine to another one.
        learns_cosines = self.options.match is DistillTarget.SIMILARITIES
        self.needs_two_rows = learns_cosines
        self.learns_from_one_row = not learns_cosines
        width = training_width(self.encoder)
        teacher_width = self.options.teacher or width  # the option holds the teachers' width alone
        is_mapped = teacher_width != width and not learns_cosines  # cosines fit any width
        self.map = nn.Linear(width, teacher_width, bias=False) if is_mapped else None

    def collate(self, examples: Sequence[tuple[str, ...]], generator: np.random.Generator) -> Batch:
        return self.batch_of([example[0] for example in examples])

    def losses(self, representations: Representations, batch: Batch) -> Losses:
        (vectors,) = representations
        if self.options.match is DistillTarget.SIMILARITIES:
            vectors = gather_with_grad(vectors, batch.counts)
            cosines = similarity_matrix(vectors, vectors)
            return {"distance": functional.mse_loss(cosines, teacher_cosines(batch))}, {}
        # The teacher's vectors ``(N, C, D)`` are for the rows of all processes and for all columns.
        # ``first`` is the first row of this process, and column 0 has the anchors.
        first = batch.extra["first"]
        targets = batch.extra["teacher"][first : first + len(vectors), 0]
        is_mse = self.options.match is DistillTarget.MSE
        if is_mse and self.encoder.record.normalize:  # cosines do not depend on lengths
            vectors = l2_normalize(vectors)
        mapped = vectors
        if self.map is not None:
            with no_autocast(vectors.device):
                mapped = self.map(vectors)
        if is_mse:
            losses = (mapped - targets).square().mean(dim=1)
        else:
            # Scaled first, because ``cosine_similarity`` is wrong for vectors shorter than 1e-8.
            losses = 1 - functional.cosine_similarity(l2_normalize(mapped), targets)
        return {"distance": mean_over_processes(losses)}, {}
