"""RankCSE: SimCSE with consistent similarities that are ranked as by a teacher."""

from dataclasses import dataclass

from torch import Tensor

from simcse_cli.losses.rankcse import consistency, list_mle, list_net, negative_entropy
from simcse_cli.losses.similarity import similarity_matrix
from simcse_cli.objectives.base import Batch, Losses
from simcse_cli.objectives.simcse import Simcse, SimcseOptions, teacher_cosines
from simcse_cli.settings.choices import ObjectiveName, RankLoss
from simcse_cli.settings.declare import setting


@dataclass(frozen=True)
class RankcseOptions(SimcseOptions):
    teacher: int | None = setting(None, "Frozen models to learn from.", "--teacher")
    rank: RankLoss = setting(RankLoss.LISTMLE, "How the teachers' order is learnt.")
    rank_weight: float = setting(1.0, "Weight of that term.", min=0)
    consistency_weight: float = setting(
        1.0, "Weight of the agreement of both directions of the similarities.", min=0
    )
    rank_temperature: float = setting(
        0.05, "Divisor of the student's cosines in listnet.", above=0, needs="rank=listnet"
    )
    teacher_temperature: float = setting(
        0.025, "Divisor of the teachers' cosines in listnet.", above=0, needs="rank=listnet"
    )
    as_released: bool = setting(
        False,
        "The community's code: negative entropy for the agreement, one temperature in listnet.",
        excludes=("consistency_weight", "teacher_temperature"),
        because="which does not read it",
    )


class Rankcse(Simcse):
    """SimCSE with two more terms: consistency, and the teachers' ranking.

    Consistency is the agreement of the similarities in both directions, from anchors to positives
    and back.
    Source: Liu et al. 2023 (RankCSE), as in a community's code; the authors' code was not found.
    The teachers are frozen and read the anchor's text as it is in the file, without dropout.
    """

    name = ObjectiveName.RANKCSE
    Options = RankcseOptions
    options: RankcseOptions
    needs_teacher = True

    def view_terms(self, views: list[Tensor], batch: Batch) -> Losses:
        options = self.options
        terms, metrics = super().view_terms(views, batch)
        cosines = similarity_matrix(views[0], views[1], options.similarity)
        logits = cosines / options.temperature
        # The community's code uses negative entropy instead, without a weight.
        if options.as_released:
            terms["consistency"] = negative_entropy(logits)
        elif options.consistency_weight:
            terms["consistency"] = options.consistency_weight * consistency(logits)
        if options.rank_weight:
            loss = self._rank(logits, cosines, teacher_cosines(batch))
            terms["rank"] = options.rank_weight * loss
        return terms, metrics

    def _rank(self, logits: Tensor, cosines: Tensor, teacher: Tensor) -> Tensor:
        """Return the ranking loss that the options choose.

        ``cosines`` are those of the trained encoder, ``logits`` are these cosines divided by the
        temperature, and ``teacher`` are the cosines of the teachers.
        """
        options = self.options
        if options.rank is RankLoss.LISTMLE:
            return list_mle(logits, teacher)
        if options.as_released:
            return list_net(logits, teacher / options.rank_temperature)
        student = cosines / options.rank_temperature
        return list_net(student, teacher / options.teacher_temperature)
