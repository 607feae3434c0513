"""Runs of several processes by each way to start them: equal to one process, stopped, killed, and resumed."""

import json
import os
import shutil
import signal
import socket
import time
from argparse import Namespace
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate.commands.launch import _validate_launch_command, launch_command_parser
from accelerate.utils.launch import (
    prepare_deepspeed_cmd_env,
    prepare_multi_gpu_env,
    prepare_simple_launcher_cmd_env,
)
from safetensors.torch import load_file, save_file
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

from helpers import LIMIT_S, SENTENCES, wait_until, with_options
from processes import FORKS, is_alive, run_command, start_command
from simcse_cli.errors import OutputError
from simcse_cli.results import runs
from simcse_cli.results.runs import lock_run
from simcse_cli.training.launch import free_port
from simcse_cli.training.loop import Trainer


@pytest.fixture
def arguments(tiny_model_dir, tmp_path) -> list[str]:
    """Return a run without randomness, steps and batch size left open."""
    (tmp_path / "rows.txt").write_text("".join(f"{sentence}\n" for sentence in SENTENCES))
    flags = {
        "--model": tiny_model_dir,
        "--train-file": tmp_path / "rows.txt",
        "--objective": "simcse-unsup",
        "--dropout-mode": "none",
        "--pooler": "avg",
        "--log-every": 1,
        "--lr": 1e-6,
        "--device": "cpu",
    }
    return ["train", "-q", *(str(part) for flag in flags.items() for part in flag)]


def losses(run: Path) -> list[float]:
    return [json.loads(line)["loss"] for line in (run / "metrics.jsonl").read_text().splitlines()]


def accelerate_launch(tmp_path: Path, *flags: str, **configuration: object) -> Namespace:
    """Return what ``accelerate launch`` makes of its flags and its configuration file."""
    settings = {
        "compute_environment": "LOCAL_MACHINE",
        "num_machines": 1,
        "num_processes": 2,
    } | configuration
    file = tmp_path / "accelerate.json"
    file.write_text(json.dumps(settings))
    words = [*flags, "--config_file", str(file), "-m", "simcse_cli", "train"]
    args = _validate_launch_command(launch_command_parser().parse_args(words))[0]
    args.deepspeed_fields_from_accelerate_config = ""
    return args


def run_as_torchrun_does(
    arguments: list[str],
    environment: dict[str, str],
    n_machines: int = 1,
    endpoint: str = "localhost:0",
    stop_at: Path | None = None,
    **rendezvous: object,
) -> None:
    """Run the command in two processes that PyTorch's launcher starts, here or on each of two machines one."""
    os.environ |= environment
    patience = dict.fromkeys(
        ("read_timeout", "heartbeat_timeout", "keep_alive_interval"), int(LIMIT_S)
    )
    config = LaunchConfig(
        *(
            n_machines,
            n_machines,
            2 // n_machines,
        ),  # machines at least and at most, processes of each
        run_id="test",
        rdzv_backend="c10d",
        rdzv_endpoint=endpoint,
        rdzv_configs=patience | rendezvous,
        local_addr="127.0.0.1",
        max_restarts=0 if stop_at is None else 1,
        monitor_interval=0.1,
        start_method="fork",
    )
    if stop_at is not None:
        stay_until_released(stop_at)
    elastic_launch(config, run_to_success)(arguments)


def stay_until_released(marker: Path) -> None:
    """Let runs wait after the state of step 4 until there is a file."""
    save_state = Trainer.save_state

    def save_and_stay(trainer: Trainer) -> None:
        save_state(trainer)
        while trainer.position.step == 4 and not marker.exists():
            time.sleep(0.01)

    Trainer.save_state = save_and_stay


def run_to_success(arguments: list[str]) -> None:
    try:
        run_command(arguments, {})
    except SystemExit as stop:
        if stop.code:
            raise RuntimeError(stop.code) from None


@pytest.mark.parametrize("launcher", ["torchrun", "accelerate launch"])
def test_two_processes_of_a_launcher_log_what_one_logs(launcher, invoke, arguments, tmp_path):
    arguments += ["--max-steps", "3"]
    environment = {"OMP_NUM_THREADS": "1", "XDG_CACHE_HOME": os.environ["XDG_CACHE_HOME"]}
    if launcher != "torchrun":
        args = accelerate_launch(
            tmp_path, "--multi_gpu", distributed_type="MULTI_GPU", mixed_precision="no"
        )
        environment |= prepare_multi_gpu_env(args)
    two = [*arguments, "--batch-size", "4", "-o", str(tmp_path / "two")]
    process = FORKS.Process(target=run_as_torchrun_does, args=(two, environment))
    process.start()
    process.join(LIMIT_S)
    assert process.exitcode == 0
    record = json.loads((tmp_path / "two" / "run.json").read_text())
    assert (record["status"], record["n_processes"]) == ("finished", 2)
    assert invoke(*arguments, "--batch-size", "8", "-o", tmp_path / "one").exit_code == 0
    assert losses(tmp_path / "two") == pytest.approx(losses(tmp_path / "one"), abs=1e-5)


def on_two_machines(arguments: list[str], *, is_first: bool, **more: object) -> Any:
    """Start one of two agents of torchrun; the first one holds their rendezvous."""
    agent = FORKS.Process(
        target=run_as_torchrun_does,
        args=(arguments, {"OMP_NUM_THREADS": "1", "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}, 2),
        kwargs={"is_host": is_first, **more},
    )
    agent.start()
    return agent


@pytest.mark.slow
@pytest.mark.upkeep
def test_two_machines_are_one_process_and_survive_the_loss_of_one(invoke, arguments, tmp_path):
    """The second agent and its process are killed after step 4; another agent takes its place."""
    arguments += ["--max-steps", "6"]
    two = [*arguments, "--batch-size", "4", "--save-every", "2", "--resume", "-o"]
    agents, disturbed = [], tmp_path / "disturbed"
    for name in ("calm", "disturbed"):
        where = {"endpoint": f"127.0.0.1:{free_port()}"}
        if name == "disturbed":  # a dead machine is given up after 15 seconds
            where |= {"stop_at": tmp_path / "go", "keep_alive_interval": 5}
        pair = [
            on_two_machines([*two, str(tmp_path / name)], is_first=first, **where)
            for first in (True, False)
        ]
        if name == "disturbed":
            wait_until(lambda: (disturbed / "checkpoint" / "step-00000004").is_dir())
            lost = pair.pop()
            for pid in (lost.pid, *children_of(lost.pid)):
                os.kill(pid, signal.SIGKILL)
            (tmp_path / "go").touch()
            pair.append(on_two_machines([*two, str(disturbed)], is_first=False, **where))
        for agent in pair:
            agent.join(LIMIT_S)
        agents += pair
    assert [agent.exitcode for agent in agents] == [0] * 4
    calm = load_file(tmp_path / "calm" / "model" / "model.safetensors")
    for name in ("model/model.safetensors", "checkpoint/step-00000006/optimizer.safetensors"):
        assert (disturbed / name).read_bytes() == (tmp_path / "calm" / name).read_bytes()
    assert invoke(*arguments, "--batch-size", "8", "-o", tmp_path / "one").exit_code == 0
    for name, weight in load_file(tmp_path / "one" / "model" / "model.safetensors").items():
        torch.testing.assert_close(calm[name], weight, rtol=0, atol=2e-6)


def start_group(command: list[str], *, prepare: Callable[[], None] | None = None) -> list[Any]:
    """Start a command in two processes, the second one after a call of ``prepare``."""
    group = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": "2"}
    started = []
    with pytest.MonkeyPatch.context() as patch:
        for rank, before in enumerate((None, prepare)):
            for variable, value in (group | {"RANK": str(rank), "LOCAL_RANK": "0"}).items():
                patch.setenv(variable, value)
            started.append(start_command(*command, stderr=Path(f"{rank}.stderr"), prepare=before))
    return started


def of_an_older_version() -> None:
    runs.__version__ = "0.9.0"


def with_another_seed() -> None:
    os.environ["SIMCSE_SEED"] = "7"


@pytest.mark.parametrize(
    ("found", "prepare"),
    [
        ("simcse-cli 0.9.0, process 0", of_an_older_version),
        ("seed 7, process 0", with_another_seed),
        ("train_sha256 ", partial(os.chdir, "other-rows")),
        ("model_digest ", partial(os.chdir, "other-model")),
    ],
)
def test_machines_that_are_not_alike_do_not_start(found, prepare, arguments, tmp_path, monkeypatch):
    """Paths are relative, and the second process may find something else behind them."""
    monkeypatch.chdir(tmp_path)
    for name in ("other-rows", "other-model"):
        Path(name).mkdir()
        shutil.copy("rows.txt", name)
        shutil.copytree(arguments[arguments.index("--model") + 1], f"{name}/model")
    shutil.copytree("other-rows/model", "model")
    Path("other-rows/rows.txt").write_text("A cat.\nA dog.\n")
    weights = load_file("model/model.safetensors")
    weights["embeddings.word_embeddings.weight"] += 1
    save_file(weights, "other-model/model/model.safetensors")
    flags = [
        "--model",
        "model",
        "--train-file",
        "rows.txt",
        "--resume",
        "-o",
        str(tmp_path / "run"),
    ]
    group = start_group(with_options(arguments, *flags), prepare=prepare)
    for process in group:
        process.join(LIMIT_S)
    assert [process.exitcode for process in group] == [1, 1]
    for rank in range(2):
        said = " ".join(Path(f"{rank}.stderr").read_text().split())
        assert f"process 1 (on {socket.gethostname()}) has {found}" in said
        assert "Traceback" not in said
    assert not Path("run").exists()


def test_a_machine_that_never_comes_ends_the_wait(arguments, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SIMCSE_START_TIMEOUT", "1")
    first, second = start_group([*arguments, "-o", "run"], prepare=partial(os._exit, 0))
    first.join(LIMIT_S)
    second.join(LIMIT_S)
    said = " ".join(Path("0.stderr").read_text().split())
    assert (first.exitcode, second.exitcode) == (1, 0)
    assert "error: not all of the 2 processes have met at 127.0.0.1:" in said
    assert "within 1 s" in said
    assert "SIMCSE_START_TIMEOUT=SECONDS" in said


def test_accelerate_launch_on_a_processor_says_that_it_starts_one(
    invoke, arguments, tmp_path, monkeypatch
):
    args = accelerate_launch(
        tmp_path, "--cpu", distributed_type="MULTI_CPU", mixed_precision="bf16"
    )
    command, environment = prepare_simple_launcher_cmd_env(args)
    assert command[1:] == ["-m", "simcse_cli", "train"]
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    arguments.remove("-q")
    run = tmp_path / "run"
    outcome = invoke(*arguments, "--max-steps", "1", "--batch-size", "8", "-o", run)
    assert outcome.exit_code == 0
    said = " ".join(outcome.stderr.split())
    assert "this is one process: without GPUs `accelerate launch` starts no more" in said
    assert "--mixed_precision bf16 of accelerate has no effect" in said
    record = json.loads((run / "run.json").read_text())
    assert (record["n_processes"], record["precision"]) == (1, "fp32")


@pytest.mark.parametrize("kind", ["FSDP", "DeepSpeed"])
def test_a_configuration_that_splits_the_model_is_refused(
    kind, invoke, arguments, tmp_path, monkeypatch
):
    args = accelerate_launch(
        tmp_path,
        distributed_type=kind.upper(),
        mixed_precision="no",
        **({"fsdp_config": {}} if kind == "FSDP" else {"deepspeed_config": {"zero_stage": 2}}),
    )
    environment = (
        prepare_multi_gpu_env(args) if kind == "FSDP" else prepare_deepspeed_cmd_env(args)[1]
    )
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    outcome = invoke(*arguments, "-o", tmp_path / "run")
    assert outcome.exit_code == 1
    assert f"accelerate is configured to use {kind}" in outcome.stderr
    assert "MULTI_GPU" in outcome.stderr
    assert not (tmp_path / "run").exists()


def stay_after_a_state() -> None:
    """Let runs wait after each state until they are told to stop, or are killed."""
    save_state = Trainer.save_state

    def save_and_stay(trainer: Trainer) -> None:
        save_state(trainer)
        while trainer.position.step and not trainer.should_stop():
            time.sleep(0.01)

    Trainer.save_state = save_and_stay


def is_free(run: Path) -> bool:
    try:
        with lock_run(run):
            return True
    except OutputError:
        return False


def children_of(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def test_two_processes_stop_together_and_resume_to_what_one_logs(
    invoke, arguments, tmp_path, monkeypatch
):
    """SIGTERM to the command, then a kill of one process, then a kill of the command, then to the end."""
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    run, stderr = tmp_path / "two", tmp_path / "stderr"
    arguments += ["--max-steps", "60"]
    command = [
        *arguments,
        "--batch-size",
        "4",
        "--save-every",
        "10",
        "-o",
        run,
        "--num-processes",
        "2",
    ]

    def start_and_stop(*more: str, stop) -> tuple[int, str]:
        before = {path.name for path in run.glob("checkpoint/step-*0")}
        stderr.unlink(missing_ok=True)
        process = start_command(*command, *more, stderr=stderr, prepare=stay_after_a_state)
        wait_until(
            lambda: (
                process.exitcode
                or {path.name for path in run.glob("checkpoint/step-*[1-9]0")} - before
            )
        )
        assert process.exitcode is None, stderr.read_text()
        ranks = children_of(process.pid)
        assert len(ranks) == 2
        stop(process, ranks)
        process.join(LIMIT_S)
        wait_until(lambda: not any(map(is_alive, ranks)) and is_free(run))
        assert "Traceback" not in stderr.read_text()
        return process.exitcode, stderr.read_text()

    code, errors = start_and_stop(stop=lambda process, _: process.terminate())
    assert code == 130, errors
    stopped = json.loads((run / "run.json").read_text())
    assert (stopped["status"], stopped["n_processes"]) == ("interrupted", 2)
    assert [path.name for path in run.glob("checkpoint/*")] == [f"step-{stopped['step']:08d}"]

    code, errors = start_and_stop(
        "--resume", stop=lambda _, ranks: os.kill(ranks[1], signal.SIGKILL)
    )
    assert code == 1
    assert "process 1 of 2 was killed (SIGKILL)" in errors
    code, _ = start_and_stop("--resume", stop=lambda process, _: process.kill())
    assert code == -signal.SIGKILL

    process = start_command(*command, "--resume")
    process.join()
    assert process.exitcode == 0
    assert json.loads((run / "run.json").read_text())["status"] == "finished"
    outcome = invoke(*arguments, "--batch-size", "8", "-o", tmp_path / "one")
    assert outcome.exit_code == 0, outcome.stderr
    assert losses(run) == pytest.approx(losses(tmp_path / "one"), abs=1e-4)
