"""A present-day probe for those who do not need the old protocol's numbers.

It is scikit-learn's LogisticRegressionCV. Features are standardised on the training rows; the strength of
the L2 penalty is chosen by stratified five-fold accuracy and the model is fitted to convergence, so there
is no learning rate, no batch order and no early stopping to agree on.
"""

import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simcse_cli.errors import TrainingError
from simcse_cli.evaluation.folds import Fold, RowIndices
from simcse_cli.evaluation.probe import ProbeResult, collect_result
from simcse_cli.progress import Progress

INVERSE_PENALTIES = (1e-4, 1e-3, 1e-2, 1e-1, 1.0, 10.0)
N_INNER_FOLDS = 5
MAX_ITERATIONS = 1000
SEED = 1111


def run_sklearn_probe(
    features: NDArray[np.floating],
    labels: RowIndices,
    outer: Sequence[Fold],
    *,
    dev_rows: RowIndices | None = None,
    max_iterations: int = MAX_ITERATIONS,
    progress: Progress,
    description: str = "probe",
) -> ProbeResult:
    """Fit and score LogisticRegressionCV on every outer split; arguments as in ``run_probe``.

    ``dev_rows`` choose the penalty instead of inner folds; the last fit then uses them for training too. ``penalties``
    are the inverse strengths C chosen for each outer split.
    """
    dev_scores, choices, predictions = [], [], []
    with progress.task(description, total=len(outer)) as task:
        for fold in outer:
            pipeline = _fit(features, labels, fold.train, dev_rows, max_iterations)
            classifier = pipeline[-1]
            dev_scores.append(float(classifier.scores_.mean(axis=0).max()))
            choices.append(float(classifier.C_))
            predictions.append(np.asarray(pipeline.predict(features[fold.test]), dtype=np.int64))
            task.advance()
    return collect_result(labels, outer, predictions, dev_accuracies=dev_scores, penalties=choices)


def _fit(
    features: NDArray[np.floating],
    labels: RowIndices,
    train: RowIndices,
    dev_rows: RowIndices | None,
    max_iterations: int,
) -> Any:
    """Return the fitted pipeline; its last step is the classifier."""
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.linear_model import LogisticRegressionCV
    from sklearn.model_selection import PredefinedSplit, StratifiedKFold
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    if dev_rows is None:
        inner: Any = StratifiedKFold(N_INNER_FOLDS, shuffle=True, random_state=SEED)
        rows = train
    else:
        inner = PredefinedSplit(np.repeat([-1, 0], [len(train), len(dev_rows)]))
        rows = np.concatenate([train, dev_rows])
    classifier = LogisticRegressionCV(
        Cs=list(INVERSE_PENALTIES),
        l1_ratios=(0.0,),
        cv=inner,
        scoring="accuracy",
        max_iter=max_iterations,
        use_legacy_attributes=False,
    )
    with warnings.catch_warnings():
        warnings.simplefilter("error", ConvergenceWarning)
        try:
            return make_pipeline(StandardScaler(), classifier).fit(features[rows], labels[rows])
        except ConvergenceWarning as error:
            raise TrainingError(
                f"LogisticRegressionCV did not converge in {max_iterations} iterations",
                hint="the vectors may be degenerate; look at them with `simcse analyze geometry`, "
                "or use --probe senteval",
            ) from error
