"""The STS tasks that can be scored: those of a SentEval folder, and the user's own pair files."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from simcse_cli.data.columns import parse_columns
from simcse_cli.data.pair_files import SCORED_PAIR, read_scored_pairs
from simcse_cli.data.senteval import Split, StsTask, has_split, read_sts_task, resolve_senteval_dir
from simcse_cli.errors import DataError, UsageError
from simcse_cli.files.output import output_text
from simcse_cli.progress import Progress
from simcse_cli.results.columns import parse_tasks
from simcse_cli.settings.choices import STS_TASKS


def check_task_name(name: str, taken: Sequence[str], option: str) -> None:
    """Raise UsageError if another task has the name of a file."""
    if name in taken:
        raise UsageError(f"there is a task called {name}; give the file another name", option=option)


def read_pair_tasks(paths: Sequence[Path], columns: str | None) -> dict[str, StsTask]:
    """Return each pair file as a task of one test set, called by the file's stem."""
    for number, path in enumerate(paths):
        check_task_name(path.stem, [*STS_TASKS, *(other.stem for other in paths[:number])], "--pair-file")
    names = parse_columns(columns, SCORED_PAIR)
    return {path.stem: StsTask(path.stem, "test", {"test": read_scored_pairs(path, names)}) for path in paths}


def choose_sts_tasks(
    text: str | None, paths: Sequence[Path], columns: str | None, split: Split
) -> tuple[tuple[str, ...], dict[str, StsTask]]:
    """Return the names of the tasks to read, and the pair files as tasks.

    The names are those in the list ``text``; without one none beside pair files, else all tasks that have the split.
    """
    own = read_pair_tasks(paths, columns)
    if text is None and own:
        return (), own
    if text is None and split != "test":
        return ("STSBenchmark",) if split == "dev" else ("STSBenchmark", "SICKRelatedness"), own
    return parse_tasks(text, STS_TASKS), own


def read_available_tasks(
    data_dir: Path | str | None,
    tasks: Sequence[str],
    split: Split,
    progress: Progress,
    pair_tasks: Mapping[str, StsTask],
) -> tuple[dict[str, StsTask], dict[str, str]]:
    """Return the tasks that can be read, and the reason for each that cannot."""
    if data_dir is not None and any(name not in pair_tasks for name in tasks):
        resolve_senteval_dir(data_dir)
    found: dict[str, StsTask] = {}
    missing: dict[str, str] = {}
    for name in tasks:
        if name not in pair_tasks and not has_split(name, split):
            missing[name] = f"{name} has no {split} split"
            continue
        try:
            if data_dir is None or name in pair_tasks:
                found[name] = pair_tasks[name]
            else:
                found[name] = read_sts_task(data_dir, name, split=split)
        except DataError as error:
            missing[name] = error.message
    for name, reason in missing.items():
        progress.warn(f"{name} is left out of the average: {reason}")
    if not found:
        raise DataError(
            f"none of {', '.join(tasks)} can be scored below {data_dir}: {next(iter(missing.values()))}",
            hint="check the folder with `simcse prepare senteval --data-dir DIR`",
        )
    return found, missing


def write_sts_sentences(
    target: Path,
    data_dir: Path | str | None,
    tasks: Sequence[str],
    split: Split,
    progress: Progress,
    pair_tasks: Mapping[str, StsTask],
    *,
    force: bool,
) -> None:
    """Write every distinct sentence of the tasks, one per line, for models that are run elsewhere."""
    found, _ = read_available_tasks(data_dir, tasks, split, progress, pair_tasks)
    distinct = dict.fromkeys(sentence for task in found.values() for sentence in task.sentences)
    with output_text(target, force=force) as stream:
        stream.writelines(f"{sentence}\n" for sentence in distinct)
    progress.info(f"wrote {target}: {len(distinct):,} sentences")
