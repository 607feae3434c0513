"""`encode --engine ray`: encode the parts of an output on a Ray cluster, by Ray Data (extra ray).

A row of the Ray data set names a part and its output. Workers are actors that hold the model and
read the sentences of a part themselves. A part consists of whole windows, so its vectors do not
depend on the worker. If a worker dies, Ray restarts it and gives its part to another worker, which
continues from the journal of the part.
"""

import logging
import os
import platform
import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from dataclasses import asdict, dataclass, replace
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
_QUIET_RAY = {
    "RAY_USAGE_STATS_ENABLED": "0",  # no telemetry
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",  # no deprecation notice of Ray's own
    "RAY_DATA_LOG_LEVEL": "CRITICAL",
    "RAY_BACKEND_LOG_LEVEL": "fatal",
}
_STORE_BYTES = 256 << 20
"""Memory of Ray's object store on one machine; only descriptions of parts pass through it."""


@dataclass
class _Worker:
    """A worker, which loads the model for its first part and writes one part after another.

    Paths are relative to ``folder``, where the command was started. A worker sees the folder of the
    output if it finds the file ``marker``, which exists while the command runs. For outputs at
    addresses, ``marker`` is None.
    """

    files: FileSet
    options: EncodeOptions
    folder: str
    marker: Path | None

    @cached_property
    def _writer(self) -> VectorWriter:
        try:
            os.chdir(self.folder)
            is_shared = self.marker is None or self.marker.exists()
        except OSError:
            is_shared = False
        if not is_shared:
            raise OutputError(
                f"{platform.node()} does not see the folder of the output",
                hint="write to a folder that all machines of the cluster share, or to an address: "
                "-o s3://BUCKET/FOLDER",
            )
        return VectorWriter(self.files, Inputs(self.files.files), self.options, SilentProgress())

    def __call__(self, row: dict[str, Any]) -> dict[str, Any]:
        """Write one part, and return errors as values: Ray would turn raised ones into text."""
        part = Part(**row["part"])
        progress = SilentProgress()
        answer = {"n_rows": part.n_rows, "n_blank": 0, "warning": "", "error": "", "hint": ""}
        self.files.blank.clear()  # it counts empty texts, here those of this part
        try:
            encode_part(self._writer, row["output"], part, progress)
        except SimcseError as error:
            return answer | {"error": error.message, "hint": error.hint or ""}
        self._writer.encode.model.warn_unread(progress)
        n_blank = self.files.blank.total()
        return answer | {"n_blank": n_blank, "warning": "; ".join(progress.warnings)}


def encode_on_ray(
    files: FileSet,
    outputs: Outputs,
    marker: Path | None,
    options: EncodeOptions,
    progress: Progress,
) -> None:
    """Write parts on the workers of the cluster at ``RAY_ADDRESS``, or of a new local cluster.

    All workers must see the input. ``marker`` is a file beside the outputs that exists while this
    runs: a worker sees the folder of the outputs if it finds the marker. ``marker`` is None for
    outputs at addresses (``s3://...``).
    """
    # Reading the digest computes it here, once: ``files`` keeps it and takes it to the workers.
    progress.detail(f"{files.source}: {files.digest}")
    # Workers always resume (see below), so ``--force`` removes unfinished work before they start.
    if options.force and not options.resume:
        for output, _ in outputs:
            drop_unfinished(Path(output))
    with _cluster(progress) as ray:
        workers, resources = _resources(ray, options)
        compute = ray.data.ActorPoolStrategy(
            min_size=1, max_size=workers, initial_size=workers, max_tasks_in_flight_per_actor=1
        )
        # A worker always resumes: its part may be one that another worker has begun.
        worker_args = (files, replace(options, resume=True), str(Path.cwd()), marker)
        rows = [{"output": output, "part": asdict(part)} for output, part in outputs]
        work = ray.data.from_items(rows, override_num_blocks=len(rows)).map(
            _Worker, fn_constructor_args=worker_args, compute=compute, **resources
        )
        warnings: list[str] = []
        n_blank = 0
        n_rows = sum(part.n_rows for _, part in outputs)
        with progress.task("encoding", n_rows) as task, kept_on_interrupt(lambda: PARTS_KEPT):
            for row in work.iter_rows():
                if row["error"]:
                    raise SimcseError(row["error"], hint=row["hint"] or None)
                task.advance(row["n_rows"])
                n_blank += row["n_blank"]
                if row["warning"]:
                    warnings.append(row["warning"])
        files.blank[files.source] = n_blank
        if len(warnings) > 1:
            warnings[0] += f" (and {len(warnings) - 1} more parts like this)"
        if warnings:
            progress.warn(warnings[0])


@contextmanager
def _cluster(progress: Progress) -> Iterator[Any]:
    """Yield ray, connected to the cluster at ``RAY_ADDRESS`` or to a temporary one on this machine.

    Standard output is for data. Messages that Ray prints there are collected and shown at the end
    as a warning.
    """
    # Set before ray is imported; what the user has set stays.
    for name, value in _QUIET_RAY.items():
        os.environ.setdefault(name, value)
    require_extra("ray", "--engine ray")
    import ray
    import ray.data

    _connect(ray)
    try:
        ray.data.DataContext.get_current().enable_progress_bars = False
        with redirect_stdout(StringIO()) as printed:
            yield ray
    finally:
        ray.shutdown()
    if printed.getvalue():
        # The warning has the first line only, the detail all of them.
        progress.warn(f"Ray: {reason_of(RuntimeError(printed.getvalue()))}")
        progress.detail(printed.getvalue())


def _connect(ray: Any) -> None:
    """Connect to the cluster at ``RAY_ADDRESS``, or start a temporary one on this machine."""
    address = os.environ.get("RAY_ADDRESS")
    local_options: dict[str, Any] = {}
    if address is None:  # a temporary cluster needs little memory for objects
        local_options = {"object_store_memory": _STORE_BYTES, "include_dashboard": False}
    host, _, port = (address or "").rpartition(":")
    try:
        if port.isdigit() and "/" not in host:
            # Try a plain HOST:PORT first: Ray itself would go on trying for minutes.
            socket.create_connection((host, int(port)), _CONNECT_S).close()
        with _quiet_start():
            ray.init(log_to_driver=False, logging_level=logging.CRITICAL, **local_options)
    except (OSError, RuntimeError, ValueError) as error:
        place = "this machine" if address is None else address
        raise ConfigError(
            f"no Ray cluster at {place}: {reason_of(error)}",
            hint="start one with `ray start --head`, or unset RAY_ADDRESS to use a temporary one",
        ) from error


@contextmanager
def _quiet_start() -> Iterator[None]:
    """Hide what Ray's native library writes about its log level; errors are still raised.

    Native code does not use ``sys.stderr``, so file descriptor 2 itself is redirected.
    """
    saved_stderr = os.dup(2)
    try:
        with Path(os.devnull).open("wb") as null_device:
            os.dup2(null_device.fileno(), 2)
        yield
    finally:
        os.dup2(saved_stderr, 2)
        os.close(saved_stderr)


def _resources(ray: Any, options: EncodeOptions) -> tuple[int, dict[str, float]]:
    """Return the number of workers and the resources of each worker.

    If the cluster has GPUs, each worker gets a GPU, or a share of one if there are more workers
    than GPUs, so that all workers find room. Without GPUs, each worker gets a share of the cores.
    """
    if ":" in options.device:
        raise ConfigError(
            f"--device {options.device}: Ray gives each worker a GPU of its own",
            hint="use --device cuda",
        )
    n_gpus = 0
    if options.device != Device.CPU:
        n_gpus = int(ray.cluster_resources().get("GPU", 0))
    if n_gpus:
        workers = options.workers or n_gpus
        workers_per_gpu = -(-workers // n_gpus)  # rounded up
        return workers, {"num_gpus": 1 / workers_per_gpu}
    cores = [int(node["Resources"].get("CPU", 0)) for node in ray.nodes() if node["Alive"]]
    workers, share = share_cores(cores, options.workers)
    return workers, {"num_cpus": share}


def share_cores(cores: Sequence[int], workers: int | None) -> tuple[int, int]:
    """Return the number of workers, and the number of cores that each of them gets.

    ``cores`` has the number of cores of each machine. By default, a worker gets as many cores as
    the smallest machine has, and there are as many workers as fit. If the number of workers is
    given, each gets as many cores as possible, but at least one.

    Example:
        >>> share_cores([1, 3], None), share_cores([8, 8], None), share_cores([2], 3)
        ((4, 1), (2, 8), (3, 1))
    """
    # Machines without cores take no workers. If no machine has cores, one core is assumed.
    cores = [n_cores for n_cores in cores if n_cores] or [1]
    if workers is None:
        share = min(cores)
        return sum(n_cores // share for n_cores in cores), share
    for share in range(max(cores), 1, -1):
        if sum(n_cores // share for n_cores in cores) >= workers:
            return workers, share
    return workers, 1
