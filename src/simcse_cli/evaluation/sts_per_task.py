"""The STS suite with an encode function for each task, as post-processing fitted on the target needs."""

from collections.abc import Callable, Sequence
from dataclasses import replace

from simcse_cli.errors import DataError
from simcse_cli.evaluation.sts import StsResult
from simcse_cli.progress import Progress


def evaluate_per_task(
    evaluate: Callable[[str], StsResult], tasks: Sequence[str], *, progress: Progress
) -> StsResult:
    """Return one result over all tasks, scored one by one.

    Args:
        evaluate: scores a single task.
        tasks: task names in the order of the result.
        progress: gets a warning for every task whose data are missing.

    Raises:
        DataError: no task can be scored.
    """
    results: list[StsResult] = []
    missing: dict[str, str] = {}
    for task in tasks:
        try:
            results.append(evaluate(task))
        except DataError as error:
            if task == tasks[-1] and not results:
                raise
            missing[task] = error.message
            progress.warn(f"{task} is left out of the average: {error.message}")
    scores = {name: score for result in results for name, score in result.tasks.items()}
    return replace(
        results[0],
        tasks={task: scores.get(task) for task in tasks},
        missing=missing,
        seconds=sum(result.seconds for result in results),
        n_sentences=sum(result.n_sentences for result in results),
    )
