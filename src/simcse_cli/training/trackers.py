"""Log the settings and metrics of a run to experiment trackers, through Accelerate.

Everything stays on this machine unless a variable of the tracker itself says otherwise
(``WANDB_MODE``, ``TRACKIO_SPACE_ID``, ``MLFLOW_TRACKING_URI``). Once a tracker has started, its
errors end the logging, not the run.
"""

import io
import json
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from accelerate import tracking
from accelerate.tracking import GeneralTracker
from huggingface_hub import constants

from simcse_cli.errors import ConfigError, reason_of
from simcse_cli.files.atomic import atomic_text, output_error
from simcse_cli.files.digests import digest
from simcse_cli.progress import Progress
from simcse_cli.results.runs import TRACKING, RunRecord, flat, group_folder
from simcse_cli.settings.choices import Tracker

Value = bool | int | float | str
Started = tuple[GeneralTracker, str]
"""A tracker, and the place or the command where its runs can be seen."""

_REMOTE_TRACKIO = ("TRACKIO_SPACE_ID", "TRACKIO_SERVER_URL")


@dataclass(frozen=True)
class TrackedRun:
    """Facts about a run for its tracker.

    ``group`` is None for a single run. ``key`` is the same in all sessions of a run. ``last_step``
    is the step from which a resumed run continues; it is None for a new run.
    """

    folder: Path
    project: str
    name: str
    group: str | None
    key: str
    settings: dict[str, Value]
    last_step: int | None


def tracked_run(record: RunRecord, run_dir: Path, *, last_step: int | None) -> TrackedRun:
    """Return the facts about a run for its tracker.

    The runs of several seeds or of a sweep form a group, which is named after their folder.
    """
    settings = record.config
    folder = run_dir.resolve()
    given_name = settings["track_name"]
    group_dir = group_folder(folder)
    group = None
    name = given_name or folder.name
    if group_dir is not None:
        group = given_name or group_dir.name
        name = f"{group}/{folder.relative_to(group_dir).as_posix()}"
    key = digest(f"{folder} {record.started}")[:16]
    project = settings["track_project"] or "simcse"
    return TrackedRun(run_dir, project, name, group, key, loggable(settings), last_step)


def loggable(values: Mapping[str, Any]) -> dict[str, Value]:
    """Flatten nested values under names with slashes; turn lists into text, and drop nulls."""
    flattened: dict[str, Value] = {}
    for name, value in flat(values, "/"):
        if isinstance(value, list):
            flattened[name] = ", ".join(map(str, value))
        elif value is not None:
            flattened[name] = value
    return flattened


def _start_tensorboard(run: TrackedRun) -> Started:
    first_step = None if run.last_step is None else run.last_step + 1
    tracker = tracking.TensorBoardTracker(TRACKING, run.folder, purge_step=first_step)
    tracker.start()
    if run.last_step is None:
        from torch.utils.tensorboard.summary import hparams

        # Write the settings here: Accelerate would write them as a separate run, named by the
        # clock. Of the metrics, only the names are used.
        for summary in hparams(run.settings, {"dev_score": 0.0, "loss": 0.0}):  # type: ignore[no-untyped-call]
            tracker.writer.file_writer.add_summary(summary)
    return tracker, f"tensorboard --logdir {group_folder(run.folder) or run.folder}"


def _start_wandb(run: TrackedRun) -> Started:
    folder = run.folder / TRACKING
    folder.mkdir(exist_ok=True)
    tracker = tracking.WandBTracker(
        run.project,
        name=run.name,
        group=run.group,
        id=run.key,
        resume="allow",
        dir=str(folder),
        mode=os.environ.get("WANDB_MODE", "offline"),
        settings={"console": "off", "silent": True},
    )
    tracker.start()
    tracker.store_init_configuration(run.settings)
    return tracker, f"{folder}; upload with: wandb sync {folder}/wandb/offline-run-*"


def _start_trackio(run: TrackedRun) -> Started:
    tracker = tracking.TrackioTracker(
        run.project,
        name=run.name,
        group=run.group,
        resume="never" if run.last_step is None else "allow",
        config=dict(run.settings),
        embed=False,
    )
    tracker.start()
    return tracker, f"trackio show --project {run.project}"


def _start_mlflow(run: TrackedRun) -> Started:
    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
    # At its default level, mlflow reports each table of a new store.
    os.environ.setdefault("MLFLOW_LOGGING_LEVEL", "WARNING")
    tags = {"simcse.run": run.key}
    if run.group:
        tags["group"] = run.group
    earlier_id = None if run.last_step is None else _earlier_mlflow_id(run)
    tracker = tracking.MLflowTracker(run.project, run_name=run.name, run_id=earlier_id, tags=tags)
    tracker.start()
    if earlier_id is None:  # otherwise mlflow has the settings already
        tracker.store_init_configuration(run.settings)
    store = os.environ.get("MLFLOW_TRACKING_URI", "")
    if store.startswith("http"):
        return tracker, store
    command = "mlflow ui"
    if store:
        command += f" --backend-store-uri {store}"
    return tracker, command


def _earlier_mlflow_id(run: TrackedRun) -> str | None:
    """Return the id that mlflow gave a resumed run when it started, or None if it has none."""
    import mlflow

    earlier_runs = mlflow.search_runs(
        experiment_names=[run.project],
        filter_string=f"tags.`simcse.run` = '{run.key}'",
        output_format="list",
    )
    return str(earlier_runs[0].info.run_id) if earlier_runs else None


_START: dict[Tracker, Callable[[TrackedRun], Started]] = {
    Tracker.TENSORBOARD: _start_tensorboard,
    Tracker.WANDB: _start_wandb,
    Tracker.TRACKIO: _start_trackio,
    Tracker.MLFLOW: _start_mlflow,
}


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep the trackers' output off stdout, and switch the Hub off unless trackio needs it.

    trackio would otherwise ask the Hub who the user is.
    """
    before = constants.HF_HUB_OFFLINE
    constants.HF_HUB_OFFLINE = before or not any(os.environ.get(name) for name in _REMOTE_TRACKIO)
    try:
        with redirect_stdout(io.StringIO()):
            yield
    finally:
        constants.HF_HUB_OFFLINE = before


class RunLog:
    """Writes ``metrics.jsonl`` of a run, and logs to its tracker if it has one.

    A new run starts with an empty file. A resumed run keeps the lines up to ``last_step``, the step
    from which it continues.
    """

    def __init__(
        self,
        path: Path,
        tracker: GeneralTracker | None,
        progress: Progress,
        *,
        last_step: int | None,
    ) -> None:
        self._path = path
        self._tracker = tracker
        self._progress = progress
        lines: list[str] = []
        if last_step is not None and path.exists():
            for line in path.read_bytes().split(b"\n"):
                try:
                    if json.loads(line)["step"] <= last_step:
                        lines.append(line.decode())
                except (ValueError, KeyError, TypeError, RecursionError):
                    continue  # the line that a kill cut short
        with atomic_text(path, force=True) as stream:
            stream.writelines(f"{line}\n" for line in lines)

    def append(self, line: dict[str, Any]) -> None:
        try:
            with self._path.open("a", encoding="utf-8", newline="\n") as stream:
                stream.write(json.dumps(line, allow_nan=False) + "\n")
        except OSError as error:
            raise output_error(self._path, error) from error
        numbers = loggable({name: value for name, value in line.items() if name != "step"})
        self._tell(lambda tracker: tracker.log(numbers, step=line["step"]))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._tell(lambda tracker: tracker.finish())

    def _tell(self, call: Callable[[GeneralTracker], Any]) -> None:
        """Call the tracker, if there is one; after an error, warn and stop using it."""
        if self._tracker is None:
            return
        try:
            with _quiet():
                call(self._tracker)
        except Exception as error:
            self._tracker = None
            self._progress.warn(
                f"logging to the tracker has stopped ({reason_of(error)}); the run continues"
            )


def start_tracker(
    record: RunRecord, run_dir: Path, progress: Progress, *, last_step: int | None
) -> Any:
    if record.config["track"] is None:
        return None
    tracker = Tracker(record.config["track"])
    run = tracked_run(record, run_dir, last_step=last_step)
    try:
        with _quiet():
            started, shown_by = _START[tracker](run)
    except Exception as error:
        raise ConfigError(
            f"--track {tracker} does not start: {reason_of(error)}",
            hint="correct the tracker's own settings, or leave --track out",
        ) from error
    progress.info(f"logging to {tracker}: {shown_by}")
    return started
