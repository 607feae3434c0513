"""Processes that work together: what they exchange, and what they notice before they start."""

import os
import socket
import time
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from torch import distributed, nn

from processes import run_on_processes
from simcse_cli.errors import ConfigError, OutputError
from simcse_cli.files.locks import sole_writer
from simcse_cli.machine import processes
from simcse_cli.models.checkpoint import load_encoder
from simcse_cli.models.encode import encode
from simcse_cli.progress import SilentProgress


def refusal(error: type[Exception], check, *arguments) -> str:
    with pytest.raises(error) as caught:
        check(*arguments)
    return str(caught.value)


def average_of_gradients(rank: int) -> dict[str, object]:
    """Average gradients of several layouts on this process, in buckets of 10 numbers and one by one."""

    def parameters() -> list[nn.Parameter]:
        draws = torch.Generator().manual_seed(rank)
        made = [
            nn.Parameter(torch.zeros(shape)) for shape in [(2, 3), (), (7, 2), (3,), (4, 2), (3,)]
        ]
        for parameter in made:
            gradient = torch.randn(parameter.shape[::-1], generator=draws)
            parameter.grad = gradient.mT if gradient.ndim == 2 else gradient
        made[3].grad = None
        return made

    plain, bucketed, sizes = parameters(), parameters(), []
    for gradient in [parameter.grad for parameter in plain if parameter.grad is not None]:
        whole = gradient.contiguous()
        distributed.all_reduce(whole)
        gradient.copy_(whole / 2)
    all_reduce = distributed.all_reduce
    processes.BUCKET_BYTES = 40
    distributed.all_reduce = lambda tensor: sizes.append(tensor.numel()) or all_reduce(tensor)
    processes.average_gradients(bucketed, 2)
    distributed.all_reduce = all_reduce
    pairs = [(one.grad, other.grad) for one, other in zip(plain, bucketed, strict=True)]
    return {
        "sizes": sizes,
        "same bits": [one is other or torch.equal(one, other) for one, other in pairs],
        "same place": all(other is None or other.stride() == one.stride() for one, other in pairs),
    }


def work_together(rank: int, folder: str, model: str) -> dict[str, object]:
    """Do on each of two processes what the test below looks at."""
    found: dict[str, object] = {"exchanged": processes.exchange(f"of {rank}")}
    rows = np.full((2, 3), 1.0 + rank, dtype=np.float32)
    processes.add_up(rows)
    found["sum"] = rows.tolist()
    found["average"] = average_of_gradients(rank)

    shared = Path(folder) / "shared"
    shared.mkdir(exist_ok=True)
    late = (
        Path(folder) / f"view-{rank}"
    )  # of the same folder, on the second process only once it waits
    if rank == 0:
        late.symlink_to(shared)
    else:
        processes.time = SimpleNamespace(
            monotonic=time.monotonic, sleep=lambda _: late.symlink_to(shared)
        )
    own = Path(folder) / f"own-{rank}"
    own.mkdir()
    os.chdir(own)
    with sole_writer(shared / "v.npy") if rank == 0 else sole_writer(own / "other"):
        processes.require_shared(late / "v.npy")
    processes.LONGEST_DELAY_S = 0.0
    with sole_writer(Path("v.npy")):  # each in the folder where it runs
        found["unshared"] = refusal(OutputError, processes.require_shared, Path("v.npy"))

    processes.require_alike({"seed": 1})
    found["unlike"] = refusal(
        ConfigError, processes.require_alike, {"seed": 1, "train_sha256": f"abc{rank}"}
    )

    encoder = load_encoder(model, pooler="avg", force_pooler=True)
    texts = [f"{word} " * n for n in range(1, 9) for word in ("cat", "dog", "river")]
    passed = 0
    embed_rows = encoder.embed_rows

    def count(token_rows, **options):
        nonlocal passed
        passed += len(token_rows)
        return embed_rows(token_rows, **options)

    encoder.embed_rows = count
    vectors = encode(encoder, texts, batch_tokens=32, shared=True)
    found["n_own"], whole = passed, encode(encoder, texts, batch_tokens=32)
    found["same bits"] = vectors.tobytes() == whole.tobytes()
    return found


def test_two_processes_share_work_and_notice_what_they_do_not_share(tmp_path, tiny_model_dir):
    first, second = run_on_processes(work_together, tmp_path, str(tmp_path), str(tiny_model_dir))
    assert first["exchanged"] == second["exchanged"] == ["of 0", "of 1"]
    assert first["sum"] == second["sum"] == [[3.0] * 3] * 2
    assert first["average"] == second["average"]
    assert first["average"] == {"sizes": [7, 14, 8, 3], "same bits": [True] * 6, "same place": True}
    assert first["unshared"] == second["unshared"]
    assert "v.npy: process 1 (on " in first["unshared"]
    assert first["unlike"] == second["unlike"]
    here = f"(on {socket.gethostname()})"
    assert first["unlike"] == f"process 1 {here} has train_sha256 abc1, process 0 {here} has abc0"
    assert first["same bits"]
    assert second["same bits"]
    assert 0 < first["n_own"] < 24
    assert first["n_own"] + second["n_own"] == 24


def test_one_process_has_nobody_to_ask(tmp_path):
    rows = np.ones((2, 2), dtype=np.float32)
    processes.add_up(rows)
    assert (rows == 1).all()
    assert processes.exchange(7) == [7]
    processes.require_shared(tmp_path / "v.npy")
    processes.require_alike({"seed": 1})


def test_a_group_starts_within_the_hour_and_then_waits_for_days(monkeypatch):
    """As long as an evaluation or the writing of an output may take; PyTorch's default is half an hour."""
    for name, value in {
        "WORLD_SIZE": "2",
        "RANK": "0",
        "MASTER_ADDR": "here",
        "MASTER_PORT": "1",
    }.items():
        monkeypatch.setenv(name, value)
    start = Mock(side_effect=lambda *_, **__: iter([("store", 0, 2)]))
    init = Mock()
    monkeypatch.setattr(processes, "rendezvous", start)
    monkeypatch.setattr(distributed, "init_process_group", init)
    monkeypatch.setattr(processes.atexit, "register", Mock())
    processes.join_group()
    assert timedelta(minutes=5) < start.call_args.kwargs["timeout"] < timedelta(hours=1)
    assert init.call_args.kwargs["timeout"] > timedelta(days=7)


@pytest.mark.parametrize(
    ("variables", "told"),
    [
        ({}, 0),
        ({"ACCELERATE_MIXED_PRECISION": "no", "MASTER_PORT": "29500"}, 1),
        ({"ACCELERATE_MIXED_PRECISION": "no", "MASTER_PORT": "29500", "WORLD_SIZE": "2"}, 0),
    ],
)
def test_one_process_where_several_were_asked_for_is_warned_about(variables, told, monkeypatch):
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    progress = SilentProgress()
    processes.tell_if_alone(progress)
    assert len(progress.warnings) == told
    assert all("one process" in warning and "torchrun" in warning for warning in progress.warnings)


@pytest.mark.parametrize(
    ("variables", "message"),
    [
        ({"WORLD_SIZE": "2"}, "WORLD_SIZE is 2, but RANK is not set"),
        ({"WORLD_SIZE": "2", "RANK": "0"}, "WORLD_SIZE is 2, but MASTER_ADDR is not set"),
        ({"WORLD_SIZE": "two"}, "WORLD_SIZE is 'two', need a whole number"),
        (
            {"WORLD_SIZE": "2", "RANK": "-1", "MASTER_ADDR": "", "MASTER_PORT": ""},
            "RANK is '-1', need a whole number",
        ),
        (
            {"WORLD_SIZE": "2", "RANK": "2", "MASTER_ADDR": "", "MASTER_PORT": ""},
            "RANK is 2, need a number below 2",
        ),
        (
            {"WORLD_SIZE": "2", "RANK": "1", "MASTER_ADDR": "", "MASTER_PORT": "http"},
            "MASTER_PORT is 'http', need a whole number",
        ),
    ],
)
def test_a_group_that_is_not_described_is_refused(variables, message, monkeypatch):
    for name in ("WORLD_SIZE", "RANK", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ConfigError, match=message):
        processes.join_group()


GPU = torch.device("cuda", 0)


@pytest.mark.parametrize(
    ("variables", "message"),
    [
        ({"LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "4"}, "4 processes on a machine with 2 GPUs"),
        ({"LOCAL_RANK": "2"}, "3 processes on a machine with 2 GPUs"),
        ({}, "WORLD_SIZE is 4, but LOCAL_RANK, by which a process takes its GPU, is not set"),
    ],
)
def test_processes_that_would_share_a_gpu_are_refused(variables, message, monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setenv("WORLD_SIZE", "4")
    for name in ("LOCAL_RANK", "LOCAL_WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert message in refusal(ConfigError, processes.require_own_gpus, GPU)
    processes.require_own_gpus(torch.device("cpu"))
    monkeypatch.setenv("LOCAL_RANK", "1")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    processes.require_own_gpus(GPU)  # four processes on two machines
