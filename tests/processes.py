"""Run a function on several gloo processes of this machine and bring the results back."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import distributed, multiprocessing


def run_on_processes(worker: Callable[..., Any], folder: Path, *args: Any, n_processes: int = 2) -> list[Any]:
    """Return ``worker(rank, *args)`` of each rank; the worker must be importable by name.

    The processes are forked from one that has imported the package, and nothing else has happened there.
    """
    multiprocessing.set_forkserver_preload(["simcse_cli.losses.gather", "simcse_cli.training.loop"])
    multiprocessing.start_processes(
        _enter, (worker, str(folder), n_processes, args), nprocs=n_processes, start_method="forkserver"
    )
    return [torch.load(folder / f"result-{rank}.pt") for rank in range(n_processes)]


def _enter(
    rank: int, worker: Callable[..., Any], folder: str, n_processes: int, args: tuple[Any, ...]
) -> None:
    torch.set_num_threads(1)
    distributed.init_process_group(
        "gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=n_processes
    )
    try:
        torch.save(worker(rank, *args), Path(folder) / f"result-{rank}.pt")
    finally:
        distributed.destroy_process_group()
