"""The classifiers of transfer tasks: the protocol's softmax regression, and scikit-learn's.

Source: SentEval (Conneau and Kiela 2018), as run by Gao et al. 2021 (``docs/evaluation.md``,
transfer). Every task is a set of *outer* splits into training and test rows: ten or five folds for
MR, CR, SUBJ and MPQA, the given split for TREC, MRPC and SST2. For each outer split the weight
decay is chosen by the mean accuracy over *inner* folds of the training rows (SST2: on the given dev
rows); a last model with that weight decay holds out 5% of the training rows for early stopping and
is scored on the test rows.
"""

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch

from simcse_cli.arrays import Floats, Integers
from simcse_cli.errors import TrainingError
from simcse_cli.evaluation.folds import FitRows, Fold, RowIndices, holdout_split, stratified_folds
from simcse_cli.evaluation.linear import (
    Features,
    FitSettings,
    fit_linear,
    predict,
    with_constant,
)
from simcse_cli.progress import Progress, ProgressTask
from simcse_cli.settings.choices import TransferProtocol

PENALTIES = (1e-5, 1e-4, 1e-3, 1e-2)
HOLDOUT_SHARE = 0.05

# Settings of scikit-learn's probe.
INVERSE_PENALTIES = (1e-4, 1e-3, 1e-2, 1e-1, 1.0, 10.0)
N_INNER_FOLDS = 5
MAX_ITERATIONS = 1000
TOLERANCE = 1e-6
"""The largest component of the gradient of the mean loss at which a fit has converged.

With scikit-learn's default of 1e-4, small tasks get other strengths and accuracies than with 1e-9;
with 1e-6 they are the same.
"""
_SKLEARN_SEED = 1111


@dataclass(frozen=True)
class ProbeSettings:
    """The number of folds at both levels, how to train a model, and the weight decays to try."""

    n_folds: int
    fit: FitSettings
    penalties: tuple[float, ...] = PENALTIES


PROBE_SETTINGS = {
    TransferProtocol.DEFAULT: ProbeSettings(
        n_folds=10, fit=FitSettings("adam", batch_size=64, tenacity=5, epoch_size=4)
    ),
    TransferProtocol.FAST: ProbeSettings(
        n_folds=5, fit=FitSettings("rmsprop", batch_size=128, tenacity=3, epoch_size=2)
    ),
}


@dataclass(frozen=True)
class ProbeResult:
    """The result of a probe.

    Accuracies are fractions at full precision; the original tool rounds the accuracy of each fold
    to two decimals of a percent first, which moves the mean by at most 0.005 points. ``penalties``
    holds what was chosen for each outer split: a weight decay or, by scikit-learn's probe, an
    inverse strength. ``predictions`` are the classes predicted for ``test_rows``, which are in
    ascending order.
    """

    dev_accuracy: float
    accuracy: float
    penalties: tuple[float, ...]
    test_rows: RowIndices
    predictions: Integers


def run_probe(
    features: Features,
    labels: Integers,
    outer: Sequence[Fold],
    settings: ProbeSettings,
    *,
    dev_rows: RowIndices | None = None,
    progress: Progress,
    description: str = "probe",
) -> ProbeResult:
    """Choose the weight decay and score the test rows of every outer split.

    ``features`` are ``(N, D)``, and ``labels`` ``(N,)`` are classes from 0. If there is a single
    outer split, ``dev_rows`` may replace the inner folds. The best model is then final, since a
    last fit on the same rows from the same seed would repeat it.
    """
    design = with_constant(features)
    targets = torch.from_numpy(labels)
    n_classes = int(labels.max()) + 1
    seed = settings.fit.seed
    n_penalties = len(settings.penalties)

    # Split the training rows of each outer split again.
    splits: list[FitRows] = []
    for fold in outer:
        if dev_rows is not None:
            splits.append(FitRows(fold.train, dev_rows))
            continue
        for inner in stratified_folds(labels[fold.train], settings.n_folds, seed=seed):
            splits.append(FitRows(fold.train[inner.train], fold.train[inner.test]))
    n_models = len(splits) * n_penalties
    if dev_rows is None:
        n_models += len(outer)

    # Choose each weight decay on the inner splits, then train the final models.
    with progress.task(description, total=n_models) as task:
        fit = partial(
            fit_linear, design, targets, settings=settings.fit, n_classes=n_classes, task=task
        )
        tried = fit(splits, np.tile(settings.penalties, (len(splits), 1)))
        # The means over the inner folds of each outer split, (outer splits, penalties).
        dev_means = tried.dev_accuracy.reshape(len(outer), -1, n_penalties).mean(axis=1)
        choices = choose_penalties(dev_means)  # a column of dev_means for each outer split
        if dev_rows is None:
            penalties = np.array(settings.penalties)[choices][:, None]
            final_splits = [holdout_split(fold.train, HOLDOUT_SHARE, seed=seed) for fold in outer]
            # A final model has a single penalty, so the axis of the penalties is dropped.
            final = fit(final_splits, penalties).weights[:, 0]
        else:
            # For each outer split, the model with the best penalty.
            final = tried.weights[range(len(outer)), choices]

    # Predict the test rows.
    predictions = []
    for weights, fold in zip(final, outer, strict=True):
        rows = torch.from_numpy(fold.test)
        predictions.append(predict(weights, design[rows]).numpy())
    return collect_result(
        labels,
        outer,
        predictions,
        dev_accuracies=dev_means[range(len(outer)), choices].tolist(),
        penalties=[settings.penalties[choice] for choice in choices],
    )


def collect_result(
    labels: Integers,
    outer: Sequence[Fold],
    predictions: Sequence[Integers],
    *,
    dev_accuracies: Sequence[float],
    penalties: Sequence[float],
) -> ProbeResult:
    """Return the mean accuracies, and the predictions of all outer splits in order of the rows."""
    accuracies = []
    for predicted, fold in zip(predictions, outer, strict=True):
        accuracies.append(float((predicted == labels[fold.test]).mean()))
    test_rows = np.concatenate([fold.test for fold in outer])
    order = np.argsort(test_rows)
    return ProbeResult(
        dev_accuracy=float(np.mean(dev_accuracies)),
        accuracy=float(np.mean(accuracies)),
        penalties=tuple(penalties),
        test_rows=test_rows[order],
        predictions=np.concatenate(predictions)[order],
    )


def choose_penalties(accuracies: Floats) -> Integers:
    """Return for each row of mean accuracies ``(F, R)`` the first column with the best accuracy.

    As in the protocol, accuracies are compared in percent rounded to two decimals.
    """
    choices: Integers = np.argmax(np.round(100 * accuracies, 2), axis=1)
    return choices


def run_sklearn_probe(
    features: Features,
    labels: Integers,
    outer: Sequence[Fold],
    *,
    dev_rows: RowIndices | None = None,
    max_iterations: int = MAX_ITERATIONS,
    progress: Progress,
    description: str = "probe",
) -> ProbeResult:
    """Fit and score scikit-learn's LogisticRegressionCV on every outer split.

    This is a present-day probe for users who do not need the scores of the old protocol. Features
    are standardised on the training rows, the strength of the L2 penalty is chosen by stratified
    five-fold accuracy, and the model is fitted until no component of the gradient is above
    ``TOLERANCE``. There is no learning rate, batch order or early stopping that others would have
    to repeat.

    ``features`` are ``(N, D)``, and ``labels`` ``(N,)`` are classes from 0. If there are
    ``dev_rows``, they choose the penalty instead of inner folds, and the last fit uses them for
    training too. The ``penalties`` of the result are the inverse strengths C.
    """
    # Imported here, since the other probe does not need scikit-learn.
    from sklearn.exceptions import ConvergenceWarning

    # The accuracy of a fit that has not converged is arbitrary, so such a fit is an error.
    dev_scores = []
    choices = []
    predictions = []
    n_scored = len(INVERSE_PENALTIES) * (N_INNER_FOLDS if dev_rows is None else 1)
    n_models = len(outer) * n_scored
    with progress.task(description, total=n_models) as task, warnings.catch_warnings():
        warnings.simplefilter("error", ConvergenceWarning)
        for fold in outer:
            try:
                pipeline = _fit_sklearn(
                    features, labels, fold.train, dev_rows, max_iterations, task=task
                )
            except ConvergenceWarning as error:
                raise TrainingError(
                    f"LogisticRegressionCV did not converge in {max_iterations} iterations",
                    hint="the vectors may be degenerate; look at them with `simcse analyze "
                    "geometry`, or use --probe senteval",
                ) from error
            # The dev score is the mean over inner folds for the best penalty.
            classifier = pipeline[-1]
            dev_scores.append(float(classifier.scores_.mean(axis=0).max()))
            choices.append(float(classifier.C_))
            predictions.append(np.asarray(pipeline.predict(features[fold.test]), dtype=np.int64))
    return collect_result(labels, outer, predictions, dev_accuracies=dev_scores, penalties=choices)


def _fit_sklearn(
    features: Features,
    labels: Integers,
    train: RowIndices,
    dev_rows: RowIndices | None,
    max_iterations: int,
    *,
    task: ProgressTask,
) -> Any:
    """Return a fitted pipeline of a scaler and a classifier.

    ``task`` advances by one for each strength of the penalty that was scored on an inner fold.
    """
    from sklearn.linear_model import LogisticRegressionCV
    from sklearn.model_selection import PredefinedSplit, StratifiedKFold
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    rows = train
    inner = StratifiedKFold(N_INNER_FOLDS, shuffle=True, random_state=_SKLEARN_SEED)
    if dev_rows is not None:
        rows = np.concatenate([train, dev_rows])
        # Rows marked -1 are always trained on; those marked 0 are the only fold.
        inner = PredefinedSplit(np.repeat([-1, 0], [len(train), len(dev_rows)]))

    def accuracy(model: Any, *examples: Any) -> float:
        task.advance()
        return float(model.score(*examples))

    classifier = LogisticRegressionCV(
        Cs=list(INVERSE_PENALTIES),
        l1_ratios=(0.0,),  # the L2 penalty alone
        cv=inner,
        scoring=accuracy,
        tol=TOLERANCE,
        max_iter=max_iterations,
        use_legacy_attributes=False,  # `scores_` is then one array, and `C_` one float
    )
    return make_pipeline(StandardScaler(), classifier).fit(features[rows], labels[rows])
