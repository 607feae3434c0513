"""`encode --engine ray`: encode the parts of an output on a Ray cluster.

It works through Ray Data (extra ``ray``).

A row of the Ray data set is the number of a part, which consists of whole windows and is read by
the worker itself, so vectors do not depend on the worker. Workers are actors that hold the model.
If one dies, Ray restarts it and gives its part to another, which continues from the part's journal.
"""

import logging
import os
import platform
import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from dataclasses import asdict, replace
from functools import cached_property
from io import StringIO
from pathlib import Path
from typing import Any

from simcse_cli.data.file_sets import FileSet
from simcse_cli.encoding.journal import drop_unfinished
from simcse_cli.encoding.options import EncodeOptions
from simcse_cli.encoding.part_files import PARTS_KEPT, encode_part
from simcse_cli.encoding.parts import Outputs, Part
from simcse_cli.encoding.vector_writer import VectorWriter
from simcse_cli.errors import (
    ConfigError,
    OutputError,
    SimcseError,
    kept_on_interrupt,
    reason_of,
    require_extra,
)
from simcse_cli.files.inputs import Inputs
from simcse_cli.progress import Progress, SilentProgress
from simcse_cli.settings.choices import Device

_CONNECT_S = 20
_STORE_BYTES = 256 << 20
"""Memory of Ray's object store on one machine; only the numbers of parts pass through it."""


class _Worker:
    """Load the model with the first part, and write one part after another.

    Paths are relative to ``folder``.

    ``marker`` is a file that exists while the command runs, or None for outputs at addresses.
    """

    def __init__(
        self, files: FileSet, options: EncodeOptions, folder: str, marker: Path | None
    ) -> None:
        self._files, self._options, self._folder, self._marker = files, options, folder, marker

    @cached_property
    def _writer(self) -> VectorWriter:
        try:
            os.chdir(self._folder)
            is_shared = self._marker is None or self._marker.exists()
        except OSError:
            is_shared = False
        if not is_shared:
            raise OutputError(
                f"{platform.node()} does not see the folder of the output",
                hint="write to a folder that all machines of the cluster share, or to an address: "
                "-o s3://BUCKET/FOLDER",
            )
        return VectorWriter(self._files, Inputs(self._files.files), self._options, SilentProgress())

    def __call__(self, row: dict[str, Any]) -> dict[str, Any]:
        """Write one part, and return any error in the answer.

        Ray would turn a raised error into text.
        """
        part, progress = Part(**row["part"]), SilentProgress()
        answer = {"n_rows": part.n_rows, "warning": "", "error": "", "hint": ""}
        try:
            encode_part(self._writer, row["output"], part, progress)
        except SimcseError as error:
            return answer | {"error": error.message, "hint": error.hint or ""}
        self._writer.encode.model.warn_truncated(progress)
        return answer | {"warning": "; ".join(progress.warnings)}


def encode_on_ray(
    files: FileSet,
    outputs: Outputs,
    marker: Path | None,
    options: EncodeOptions,
    progress: Progress,
) -> None:
    """Write parts on the workers of the cluster at ``RAY_ADDRESS`` or of a new local one.

    All workers must see the input.

    ``marker`` is a file beside the outputs that exists while this runs, or None for outputs at
    addresses.
    """
    # The digest is computed once here and sent along with the files.
    progress.detail(f"{files.source}: {files.digest}")
    if options.force and not options.resume:
        for output, _ in outputs:
            drop_unfinished(Path(output))
    with _cluster(progress) as ray:
        workers, resources = _resources(ray, options)
        compute = ray.data.ActorPoolStrategy(
            min_size=1, max_size=workers, initial_size=workers, max_tasks_in_flight_per_actor=1
        )
        given = (files, replace(options, resume=True), str(Path.cwd()), marker)
        rows = [{"output": output, "part": asdict(part)} for output, part in outputs]
        work = ray.data.from_items(rows, override_num_blocks=len(rows)).map(
            _Worker, fn_constructor_args=given, compute=compute, **resources
        )
        warnings: list[str] = []
        n_rows = sum(part.n_rows for _, part in outputs)
        with progress.task("encoding", n_rows) as task, kept_on_interrupt(lambda: PARTS_KEPT):
            for row in work.iter_rows():
                if row["error"]:
                    raise SimcseError(row["error"], hint=row["hint"] or None)
                task.advance(row["n_rows"])
                warnings += [row["warning"]] if row["warning"] else []
        if warnings:
            more = f" (and {len(warnings) - 1} more parts like this)" if len(warnings) > 1 else ""
            progress.warn(warnings[0] + more)


@contextmanager
def _cluster(progress: Progress) -> Iterator[Any]:
    """Yield ray, connected to the cluster at ``RAY_ADDRESS`` or to a temporary one on this machine.

    Standard output is for data, so messages that Ray prints there are shown at the end, on stderr.
    """
    # Set before ray is imported; what the user has set stays.
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # no telemetry
    os.environ.setdefault(
        "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0"
    )  # silences a deprecation notice of Ray
    os.environ.setdefault("RAY_DATA_LOG_LEVEL", "CRITICAL")
    os.environ.setdefault("RAY_BACKEND_LOG_LEVEL", "fatal")
    require_extra("ray", "--engine ray")
    import ray
    import ray.data

    # A temporary cluster gets a bounded store; a given one must answer soon.
    here: dict[str, Any] = {}
    if "RAY_ADDRESS" not in os.environ:
        here = {"object_store_memory": _STORE_BYTES, "include_dashboard": False}
    host, _, port = os.environ.get("RAY_ADDRESS", "").rpartition(":")
    try:
        if port.isdigit() and "/" not in host:
            socket.create_connection(
                (host, int(port)), _CONNECT_S
            ).close()  # ray would try for minutes
        with _quiet_start():
            ray.init(log_to_driver=False, logging_level=logging.CRITICAL, **here)
    except (OSError, RuntimeError, ValueError) as error:
        raise ConfigError(
            f"no Ray cluster at {os.environ.get('RAY_ADDRESS', 'this machine')}: "
            f"{reason_of(error)}",
            hint="start one with `ray start --head`, or unset RAY_ADDRESS to use a temporary one",
        ) from error
    try:
        ray.data.DataContext.get_current().enable_progress_bars = False
        with redirect_stdout(StringIO()) as said:
            yield ray
    finally:
        ray.shutdown()
    if said.getvalue():
        progress.warn(f"Ray: {reason_of(RuntimeError(said.getvalue()))}")
        progress.detail(said.getvalue())


@contextmanager
def _quiet_start() -> Iterator[None]:
    """Hide what Ray's native library writes about its log level; errors are still raised."""
    kept = os.dup(2)
    try:
        with Path(os.devnull).open("wb") as nothing:
            os.dup2(nothing.fileno(), 2)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)


def _resources(ray: Any, options: EncodeOptions) -> tuple[int, dict[str, float]]:
    """Return the number of workers and the resources of each worker.

    A worker has a GPU if there are any, else a share of the cores.
    """
    if ":" in options.device:
        what = f"--device {options.device}: Ray gives each worker a GPU of its own"
        raise ConfigError(what, hint="use --device cuda")
    n_gpus = 0 if options.device == Device.CPU else int(ray.cluster_resources().get("GPU", 0))
    if n_gpus:
        workers = options.workers or n_gpus
        return workers, {"num_gpus": min(1, n_gpus / workers)}
    cores = [int(node["Resources"].get("CPU", 0)) for node in ray.nodes() if node["Alive"]]
    workers, share = share_cores(cores, options.workers)
    return workers, {"num_cpus": share}


def share_cores(cores: Sequence[int], workers: int | None) -> tuple[int, int]:
    """Return the number of workers, and the number of cores that each of them gets.

    All workers have the same number of cores. ``cores`` has the number of cores of each machine.

    By default a worker has the cores of the smallest machine, and there are as many as fit.

    Example:
        >>> share_cores([1, 3], None), share_cores([8, 8], None), share_cores([2], 3)
        ((4, 1), (2, 8), (3, 1))
    """
    cores = [n_cores for n_cores in cores if n_cores] or [1]
    if workers is None:
        share = min(cores)
        return sum(n_cores // share for n_cores in cores), share
    fitting = (
        n for n in range(max(cores), 0, -1) if sum(n_cores // n for n_cores in cores) >= workers
    )
    return workers, next(fitting, 1)
