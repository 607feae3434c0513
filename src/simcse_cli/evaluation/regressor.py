"""The regressor that some papers train to predict the similarities of STS-B and SICK-R.

Source: Tai et al. 2015, section 4.2, who predict a score as a distribution over the integers 1 to
5. SentEval (Conneau and Kiela 2018) trains it on the squared error instead of a divergence, and
stops early by the Pearson correlation on the dev set.
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from simcse_cli.arrays import Floats, Floats32
from simcse_cli.data.senteval import Split, StsSubset, read_sts_task
from simcse_cli.evaluation import linear
from simcse_cli.evaluation.correlation import pearson
from simcse_cli.evaluation.embedding_cache import Embeddings, Encode, encode_distinct
from simcse_cli.evaluation.folds import epoch_orders
from simcse_cli.progress import SILENT, Progress

REGRESSED_TASKS = ("STSBenchmark", "SICKRelatedness")

N_GRADES = 5
BATCH_SIZE = 64
EPOCHS_PER_ROUND = 50
MAX_EPOCH = 1000
TENACITY = 3
REGRESSOR_SEED = 1111


@dataclass(frozen=True)
class PairVectors:
    """Vectors of sentence pairs, ``(N, D)`` each, and their gold scores ``(N,)`` in 0 .. 5.

    The order of the training rows matters: batches are drawn by position.
    """

    left: Embeddings
    right: Embeddings
    gold: Floats

    def design(self, name: str) -> Tensor:
        """Return the features ``[|u - v|, u * v, 1]`` of all pairs, ``(N, 2D + 1)``.

        If they are not finite, raise DataError; ``name`` is shown in it.
        """
        features = linear.difference_and_product(self.left, self.right)
        return linear.with_constant(linear.require_finite(features, name))


def grade_distribution(gold: Floats) -> Floats32:
    """Return probabilities ``(N, 5)`` of the grades 1 to 5; the expected grade is the gold score.

    The mass is on the two grades around the score: 3.6 gives (0, 0, 0.4, 0.6, 0). A score below 1
    has no lower grade. As in SentEval, the row then sums to the score: 0.4 gives (0.4, 0, 0, 0, 0).
    """
    gold = gold[:, None]
    lower = np.floor(gold)
    grades = np.arange(1, N_GRADES + 1)
    upper_share = np.where(grades == lower + 1, gold - lower, 0.0)
    return np.where(grades == lower, lower - gold + 1, upper_share).astype(np.float32)


def fit_regressor(
    train: PairVectors,
    dev: PairVectors,
    test: PairVectors,
    *,
    name: str,
    progress: Progress = SILENT,
) -> Floats:
    """Train a regressor, and return the similarities ``(n,)`` that it predicts for ``test``.

    The regressor is one linear layer with a softmax over five grades. It is trained by Adam on the
    mean squared error over all probabilities, without weight decay and in batches of 64.

    After every 50 passes, the Pearson correlation of the expected grade with the gold scores of
    ``dev`` is measured. Training ends once four measurements have brought no new best correlation
    (the count is never reset), or after more than 1,000 passes. The best model makes the
    predictions, in 1 .. 5. ``name`` is shown in messages.
    """
    design = train.design(name)
    targets = torch.from_numpy(grade_distribution(train.gold))
    dev_design = dev.design(name)
    n_features = design.shape[1] - 1  # the last column is the constant
    weights = linear.initial_weights(n_features, N_GRADES, seed=REGRESSOR_SEED)
    optimizer = linear.Adam(weights)
    n_drawn = 0  # the splits are given: no rows were permuted to draw them
    orders = epoch_orders((len(design), n_drawn), seed=REGRESSOR_SEED)

    # Train until the dev correlation no longer rises. ``_pass`` changes the weights in place.
    best = -1.0
    best_weights = weights.clone()
    failures = epoch = 0
    with progress.task(name, total=MAX_EPOCH + EPOCHS_PER_ROUND) as task:
        while failures <= TENACITY and epoch <= MAX_EPOCH:
            for _ in range(EPOCHS_PER_ROUND):
                _pass(weights, optimizer, design, targets, torch.from_numpy(next(orders)))
                task.advance()
            epoch += EPOCHS_PER_ROUND
            linear.require_finite_weights(weights, name)
            # Predictions that are all equal have no correlation, which counts as 0.
            score = pearson(_expected_grade(weights, dev_design), dev.gold) or 0.0
            if score > best:
                best = score
                best_weights = weights.clone()
            else:
                failures += 1
    progress.detail(f"{name}: Pearson {100 * best:.2f} on the dev set")
    return _expected_grade(best_weights, test.design(name))


def _pass(
    weights: Tensor, optimizer: linear.Adam, design: Tensor, targets: Tensor, order: Tensor
) -> None:
    """Train the weights in place, in one pass over the rows in the given ``order``."""
    for rows in torch.split(order, BATCH_SIZE):
        inputs = design.index_select(0, rows)  # (B, D)
        p = (inputs @ weights.T).softmax(dim=1)  # the probabilities of the grades, (B, 5)
        # The gradient of the squared error with respect to the probabilities, then to the logits.
        d_p = (p - targets.index_select(0, rows)).mul_(2 / p.numel())
        d_logits = p * (d_p - (d_p * p).sum(dim=1, keepdim=True))
        optimizer.step(weights, d_logits.T @ inputs)


def _expected_grade(weights: Tensor, design: Tensor) -> Floats:
    probabilities = (design @ weights.T).softmax(dim=1).numpy()
    return np.asarray(probabilities @ np.arange(1.0, N_GRADES + 1), dtype=np.float64)


def regress_task(
    name: str, encode: Encode, data_dir: Path | str, *, progress: Progress = SILENT
) -> Floats:
    """Return the similarities ``(n,)`` that a regressor predicts for test pairs, in 1 .. 5.

    ``name`` is one of ``REGRESSED_TASKS``. The regressor is trained on the training pairs of the
    task, and the dev pairs choose the best model.

    As in the protocol, the pairs of each split are sorted first, which fixes the batches. Their
    order is by number of words on the left, then on the right, and then by gold score. Predictions
    are returned in file order.
    """
    splits: tuple[Split, ...] = ("train", "dev", "test")
    parts = [read_sts_task(data_dir, name, split=split).subsets[split] for split in splits]
    sentences = [sentence for part in parts for sentence in part.sentences]
    vectors = encode_distinct(encode, sentences)
    orders = [_protocol_order(part) for part in parts]
    sorted_pairs = []
    for part, order in zip(parts, orders, strict=True):
        left = np.stack([vectors[part.left[i]] for i in order])
        right = np.stack([vectors[part.right[i]] for i in order])
        sorted_pairs.append(PairVectors(left, right, part.gold[order]))
    train, dev, test = sorted_pairs
    predicted = fit_regressor(train, dev, test, progress=progress, name=f"{name} regressor")

    # The test pairs were sorted too, so their predictions are put back in file order.
    test_order = orders[-1]
    in_file_order = np.empty_like(predicted)
    in_file_order[test_order] = predicted
    return in_file_order


def _protocol_order(part: StsSubset) -> list[int]:
    lengths = [(len(left.split()), len(right.split())) for left, right in part.pairs]
    return sorted(range(part.n_pairs), key=lambda i: (*lengths[i], part.gold[i]))
