"""`simcse train --num-processes`: real processes, their errors, and a signal that lets them save."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from unittest.mock import Mock

import pytest

from helpers import SENTENCES
from simcse_cli.errors import OutputError, TrainingError
from simcse_cli.processes import LAUNCHED
from simcse_cli.progress import SilentProgress
from simcse_cli.runs import lock_run
from simcse_cli.training import launch as launching
from simcse_cli.training import run as runs_of_training
from simcse_cli.training.launch import Stopped, first_failure, free_port, launch, without_flag


def test_the_flag_is_not_passed_on():
    assert without_flag(["train", "--num-processes", "2", "--lr", "1"]) == ["train", "--lr", "1"]
    assert without_flag(["train", "--num-processes=2", "-q"]) == ["train", "-q"]


def test_a_free_port_can_be_bound():
    with socket.socket() as server:
        server.bind(("127.0.0.1", free_port()))


def start(code: str) -> "subprocess.Popen[bytes]":
    return subprocess.Popen([sys.executable, "-c", code])


def test_the_first_failure_does_not_wait_for_the_others():
    fine, failing, endless = map(start, ("pass", "raise SystemExit(7)", "import time; time.sleep(60)"))
    try:
        assert first_failure([fine, failing, endless]) is failing
        assert endless.poll() is None
    finally:
        endless.kill()
        endless.wait()
    assert first_failure([fine, fine]) is None


def test_a_process_that_lost_contact_is_not_the_one_to_blame(monkeypatch):
    lost, failing = map(start, ("raise SystemExit(75)", "import time; time.sleep(1); raise SystemExit(7)"))
    assert first_failure([lost, failing]) is failing
    lost, endless = map(start, ("raise SystemExit(75)", "import time; time.sleep(60)"))
    monkeypatch.setattr(launching, "GRACE_S", 0.2)
    try:
        assert first_failure([endless, lost]) is lost
    finally:
        endless.kill()
        endless.wait()


def test_an_error_of_all_processes_is_shown_once_and_no_module_is_taken_from_here(
    capfd, tmp_path, monkeypatch
):
    (tmp_path / "yaml.py").write_text("open('executed', 'w')")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(Stopped) as caught:
        launch(2, ["train", "--num-processes", "2", "--objective", "nonsense"], SilentProgress())
    assert caught.value.exit_code == 2
    assert capfd.readouterr().err.count("nonsense") == 1
    assert not (tmp_path / "executed").exists()


@pytest.fixture
def program(tmp_path):
    """Return a function that writes what the processes run, and returns their environment."""

    def write(code: str) -> dict[str, str]:
        (tmp_path / "simcse_cli").mkdir()
        (tmp_path / "simcse_cli" / "__init__.py").touch()
        (tmp_path / "simcse_cli" / "__main__.py").write_text(
            f"import os, signal, sys, time\nrank = int(os.environ['RANK'])\n{code}\n"
        )
        return os.environ | {"PYTHONPATH": str(tmp_path)}

    return write


def test_an_error_of_only_another_process_is_passed_on(program):
    progress = Mock(spec=SilentProgress)
    environment = program("sys.exit('broken' * rank or 75)")
    with pytest.raises(Stopped) as caught:
        launch(2, ["train"], progress, environment=environment)
    assert caught.value.exit_code == 1
    progress.relay.assert_called_once_with("broken\n")


@pytest.mark.parametrize("killed", [0, 1])
def test_a_killed_process_is_named_and_the_others_end(program, tmp_path, killed):
    environment = program(
        f"open(f'{tmp_path}/{{os.getpid()}}.pid', 'w')\n"
        f"time.sleep(0.5)\nif rank == {killed}: os.kill(os.getpid(), signal.SIGKILL)\ntime.sleep(60)"
    )
    with pytest.raises(TrainingError, match=rf"process {killed} of 2 was killed \(SIGKILL\)") as caught:
        launch(2, ["train"], SilentProgress(), environment=environment)
    assert "--resume" in caught.value.hint
    pids = [int(path.stem) for path in tmp_path.glob("*.pid")]
    assert len(pids) == 2
    assert not any(map(is_alive, pids))


def is_alive(pid: int) -> bool:
    """Tell whether a process runs; one that has ended and was not waited for does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_standard_input_is_refused(invoke):
    outcome = invoke("train", "--num-processes", "2", "--train-file", "-", input="a\nb\n")
    assert outcome.exit_code == 2
    assert "cannot share standard input" in outcome.stderr


@pytest.fixture
def arguments(tiny_model_dir, tmp_path) -> list[str]:
    """Return a run without randomness, the batch size left open."""
    (tmp_path / "rows.txt").write_text("".join(f"{sentence}\n" for sentence in SENTENCES))
    flags = {
        "--model": tiny_model_dir,
        "--train-file": tmp_path / "rows.txt",
        "--objective": "simcse-unsup",
        "--dropout-mode": "none",
        "--pooler": "avg",
        "--max-steps": 300,
        "--save-every": 10,
        "--log-every": 1,
        "--lr": 1e-6,
        "--device": "cpu",
    }
    return ["train", "-q", *(str(part) for flag in flags.items() for part in flag)]


def losses(run: Path) -> list[float]:
    return [json.loads(line)["loss"] for line in (run / "metrics.jsonl").read_text().splitlines()]


@pytest.fixture
def launches(invoke, monkeypatch) -> list[tuple[int, int]]:
    """Let launched commands run in this process; return number of processes and exit code of each."""
    done = []

    def run_here(n_processes, arguments, progress, *, environment, shows_result):
        assert "SIMCSE_LR" not in environment
        with monkeypatch.context() as patch:
            patch.delenv("SIMCSE_LR")
            patch.setenv(LAUNCHED, "1")
            patch.setattr(runs_of_training, "end_with_launcher", lambda: None)
            done.append((n_processes, invoke(*arguments).exit_code))

    monkeypatch.setattr(launching, "launch", run_here)
    monkeypatch.setenv("SIMCSE_LR", "1e-5")
    return done


def test_every_seed_is_launched_with_its_settings(invoke, arguments, launches, tmp_path):
    lr = arguments.index("--lr")
    del arguments[lr : lr + 2]
    arguments = [*arguments, "--max-steps", "2", "-o", tmp_path / "runs", "--format", "json"]
    outcome = invoke(*arguments, "--seeds", "1,2", "--num-processes", "3")
    assert outcome.exit_code == 0, outcome.stderr
    assert launches == [(3, 0), (3, 0)]
    assert [row["seed"] for row in json.loads(outcome.stdout)["seeds"]] == [1, 2]
    record = json.loads((tmp_path / "runs" / "seed-2" / "run.json").read_text())
    assert (record["seed"], record["config"]["lr"], record["step"]) == (2, 1e-5, 2)


def test_a_failed_launch_ends_the_runs_with_its_exit_code(invoke, arguments, monkeypatch, tmp_path):
    def fail(*_, **__):
        raise Stopped(exit_code=1)

    monkeypatch.setattr(launching, "launch", fail)
    outcome = invoke(*arguments, "-o", tmp_path / "runs", "--seeds", "1,2", "--num-processes", "2")
    assert outcome.exit_code == 1


def test_a_run_goes_on_with_as_many_processes_as_it_has(invoke, arguments, tmp_path):
    run = tmp_path / "run"
    assert invoke(*arguments, "--max-steps", "2", "-o", run).exit_code == 0
    record = json.loads((run / "run.json").read_text())
    (run / "run.json").write_text(json.dumps(record | {"n_processes": 4}))
    outcome = invoke("train", "-o", run, "--resume")
    assert outcome.exit_code == 1
    assert "--num-processes 4" in outcome.stderr


def wait_for(condition, seconds: float = 120) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def is_free(run: Path) -> bool:
    try:
        with lock_run(run):
            return True
    except OutputError:
        return False


def children_of(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def test_two_processes_stop_together_and_resume_to_what_one_logs(invoke, arguments, tmp_path):
    """SIGTERM to the command, then a kill of one process, then a kill of the command, then to the end."""
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    run = tmp_path / "two"
    command = [sys.executable, "-m", "simcse_cli", *arguments, "--batch-size", "4", "-o", str(run)]
    command += ["--num-processes", "2"]

    def start_and_stop(*more: str, stop) -> tuple[int, str]:
        before = {path.name for path in run.glob("checkpoint/step-*0")}
        process = subprocess.Popen([*command, *more], env=environment, stderr=subprocess.PIPE)
        wait_for(lambda: {path.name for path in run.glob("checkpoint/step-*[1-9]0")} - before)
        ranks = children_of(process.pid)
        assert len(ranks) == 2
        stop(process, ranks)
        _, errors = process.communicate(timeout=120)
        wait_for(lambda: not any(map(is_alive, ranks)) and is_free(run), seconds=10)
        assert b"Traceback" not in errors
        return process.returncode, errors.decode()

    code, errors = start_and_stop(stop=lambda process, _: process.send_signal(signal.SIGTERM))
    assert code == 130, errors
    stopped = json.loads((run / "run.json").read_text())
    assert (stopped["status"], stopped["n_processes"]) == ("interrupted", 2)
    assert [path.name for path in run.glob("checkpoint/*")] == [f"step-{stopped['step']:08d}"]

    code, errors = start_and_stop("--resume", stop=lambda _, ranks: os.kill(ranks[1], signal.SIGKILL))
    assert code == 1
    assert "process 1 of 2 was killed (SIGKILL)" in errors
    code, _ = start_and_stop("--resume", stop=lambda process, _: process.kill())
    assert code == -signal.SIGKILL

    subprocess.run([*command, "--resume"], env=environment, check=True, stdout=subprocess.DEVNULL)
    assert json.loads((run / "run.json").read_text())["status"] == "finished"
    outcome = invoke(*arguments, "--batch-size", "8", "-o", tmp_path / "one")
    assert outcome.exit_code == 0, outcome.stderr
    assert losses(run) == pytest.approx(losses(tmp_path / "one"), abs=1e-4)
