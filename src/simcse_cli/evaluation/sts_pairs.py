"""The scored pairs of an STS result, with their sentences, for paired tests and for looking at errors."""

from pathlib import Path
from typing import cast

from simcse_cli.data.senteval import Split, read_sts_task
from simcse_cli.evaluation.sts import StsResult
from simcse_cli.pair_scores import PairScores, SubsetPairs


def sts_pair_scores(result: StsResult, data_dir: Path | str) -> PairScores:
    """Return gold score, predicted similarity and sentences of every scored pair, in file order.

    Under a regressor the ``cosine`` of STS-B and SICK-R is the regressor's prediction instead, in 1 .. 5.
    """
    scores: PairScores = {}
    for name, task in result.tasks.items():
        if task is None:
            continue
        texts = read_sts_task(data_dir, name, split=cast(Split, task.split)).subsets
        scores[name] = {
            subset: SubsetPairs(
                gold=score.gold,
                cosine=score.predicted,
                left=tuple(texts[subset].left),
                right=tuple(texts[subset].right),
            )
            for subset, score in task.subsets.items()
        }
    return scores
