"""`simcse train --num-processes`: how processes are started and watched, and whose error is shown."""

import json
import math
import os
import socket
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import pytest

from helpers import LIMIT_S, SENTENCES
from processes import is_alive
from simcse_cli.errors import TrainingError
from simcse_cli.machine.processes import LAUNCHED
from simcse_cli.progress import SilentProgress
from simcse_cli.training import launch as launching
from simcse_cli.training import run as runs_of_training
from simcse_cli.training.launch import Stopped, first_failure, free_port, launch


def test_a_free_port_can_be_bound():
    with socket.socket() as server:
        server.bind(("127.0.0.1", free_port()))


class Worker:
    """A process that ends with its code at the N-th look."""

    returncode: int | None = None

    def __init__(self, code: int, after: float = 1) -> None:
        self.code, self.left = code, after

    def poll(self) -> int | None:
        self.left -= 1
        self.returncode = None if self.left > 0 else self.code
        return self.returncode


@pytest.fixture
def clock(monkeypatch) -> SimpleNamespace:
    """Let the launcher sleep in no time."""
    clock = SimpleNamespace(now=0.0)

    def sleep(seconds: float) -> None:
        clock.now += seconds

    monkeypatch.setattr(
        launching, "time", SimpleNamespace(monotonic=lambda: clock.now, sleep=sleep)
    )
    return clock


@pytest.mark.usefixtures("clock")
def test_the_first_failure_does_not_wait_for_the_others():
    fine, failing, endless = Worker(0), Worker(7, after=5), Worker(0, after=math.inf)
    assert first_failure([fine, failing, endless]) is failing
    assert first_failure([fine, Worker(0, after=3)]) is None


def test_a_process_that_lost_contact_is_not_the_one_to_blame(clock):
    lost, failing = Worker(75), Worker(7, after=launching.GRACE_S / launching.POLL_S / 2)
    assert first_failure([lost, failing]) is failing
    assert clock.now == pytest.approx(launching.GRACE_S / 2, abs=2 * launching.POLL_S)
    assert first_failure([Worker(0, after=math.inf), lost]) is lost
    assert first_failure([lost, lost]) is lost


def test_an_error_of_all_processes_is_shown_once_and_no_module_is_taken_from_here(
    capfd, tmp_path, monkeypatch
):
    (tmp_path / "yaml.py").write_text("open('executed', 'w')")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(launching, "GRACE_S", LIMIT_S)
    with pytest.raises(Stopped) as caught:
        launch(
            2,
            ["train", "--num-processes", "2", "--objective", "nonsense"],
            SilentProgress(),
            environment=os.environ,
        )
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
            f"import os, pathlib, signal, sys, time\nrank = int(os.environ['RANK'])\n{code}\n"
        )
        return os.environ | {"PYTHONPATH": str(tmp_path)}

    return write


def test_an_error_of_only_another_process_is_passed_on(program, monkeypatch):
    monkeypatch.setattr(launching, "GRACE_S", LIMIT_S)
    progress = Mock(spec=SilentProgress)
    environment = program("sys.exit('broken' * rank or 75)")
    with pytest.raises(Stopped) as caught:
        launch(2, ["train"], progress, environment=environment)
    assert caught.value.exit_code == 1
    progress.relay.assert_called_once_with("broken\n")


def test_processes_that_all_lost_contact_do_not_end_in_silence(program):
    with pytest.raises(TrainingError, match="the 2 processes have lost contact") as caught:
        launch(2, ["train"], SilentProgress(), environment=program("sys.exit(75)"))
    assert "torchrun" in caught.value.hint


@pytest.mark.parametrize("killed", [0, 1])
def test_a_killed_process_is_named_and_the_others_end(program, tmp_path, killed):
    environment = program(
        f"folder = pathlib.Path({str(tmp_path)!r})\n(folder / f'{{os.getpid()}}.pid').touch()\n"
        "while len([*folder.glob('*.pid')]) < 2: time.sleep(0.01)\n"
        f"if rank == {killed}: os.kill(os.getpid(), signal.SIGKILL)\nsys.stdin.read()"
    )
    with pytest.raises(
        TrainingError, match=rf"process {killed} of 2 was killed \(SIGKILL\)"
    ) as caught:
        launch(2, ["train"], SilentProgress(), environment=environment)
    assert "--resume" in caught.value.hint
    pids = [int(path.stem) for path in tmp_path.glob("*.pid")]
    assert len(pids) == 2
    assert not any(map(is_alive, pids))


@pytest.mark.parametrize(
    ("flags", "who"),
    [
        (("--num-processes", "2", "--train-file", "-"), "processes"),
        (("--num-processes", "2", "--train-file", "-:2"), "processes"),
        (("--num-processes", "2", "--config", "stdin.yaml"), "processes"),
        (("--seeds", "1,2", "--train-file", "-"), "runs"),
    ],
)
def test_standard_input_is_refused(invoke, tiny_model_dir, tmp_path, monkeypatch, flags, who):
    monkeypatch.chdir(tmp_path)
    Path("stdin.yaml").write_text("train_file: '-'\n")
    outcome = invoke("train", "--model", tiny_model_dir, *flags, input="a\nb\n")
    assert outcome.exit_code == 2
    assert f"{who} cannot share standard input" in outcome.stderr


@pytest.fixture
def arguments(tiny_model_dir, tmp_path) -> list[str]:
    """Return a run of two steps."""
    (tmp_path / "rows.txt").write_text("".join(f"{sentence}\n" for sentence in SENTENCES))
    flags = {
        "--model": tiny_model_dir,
        "--train-file": tmp_path / "rows.txt",
        "--max-steps": 2,
        "--device": "cpu",
    }
    return ["train", "-q", *(str(part) for flag in flags.items() for part in flag)]


@pytest.fixture
def launches(invoke, monkeypatch) -> list[tuple[int, int]]:
    """Let launched commands run in this process; return number of processes and exit code of each."""
    done = []

    def run_here(n_processes, arguments, progress, *, environment):
        assert "SIMCSE_LR" not in environment
        with monkeypatch.context() as patch:
            patch.delenv("SIMCSE_LR")
            patch.setenv(LAUNCHED, "1")
            patch.setattr(runs_of_training.processes, "end_with_launcher", lambda: None)
            done.append((n_processes, invoke(*arguments).exit_code))

    monkeypatch.setattr(launching, "launch", run_here)
    monkeypatch.setenv("SIMCSE_LR", "1e-5")
    return done


def test_every_seed_is_launched_with_its_settings(invoke, arguments, launches, tmp_path):
    arguments += ["-o", tmp_path / "runs", "--format", "json"]
    outcome = invoke(*arguments, "--seeds", "1,2", "--num-processes", "3")
    assert outcome.exit_code == 0, outcome.stderr
    assert launches == [(3, 0), (3, 0)]
    assert [row["seed"] for row in json.loads(outcome.stdout)["seeds"]] == [1, 2]
    record = json.loads((tmp_path / "runs" / "seed-2" / "run.json").read_text())
    assert (record["seed"], record["config"]["lr"], record["step"]) == (2, 1e-5, 2)


@pytest.mark.parametrize("loudness", [[], ["--quiet"], ["--verbose"]])
def test_launched_processes_are_as_loud_as_the_command(
    invoke, arguments, monkeypatch, tmp_path, loudness
):
    launched = []

    def fail(n_processes, arguments, *_, **__):
        launched.extend(arguments)
        raise Stopped(exit_code=1)

    monkeypatch.setattr(launching, "launch", fail)
    arguments.remove("-q")
    invoke(*arguments, *loudness, "-o", tmp_path / "run", "--num-processes", "2")
    assert [word for word in launched if word in ("--quiet", "--verbose")] == loudness


def test_a_failed_launch_ends_the_runs_with_its_exit_code(invoke, arguments, monkeypatch, tmp_path):
    def fail(*_, **__):
        raise Stopped(exit_code=1)

    monkeypatch.setattr(launching, "launch", fail)
    outcome = invoke(*arguments, "-o", tmp_path / "runs", "--seeds", "1,2", "--num-processes", "2")
    assert outcome.exit_code == 1


def test_a_run_goes_on_with_as_many_processes_as_it_has(invoke, arguments, tmp_path):
    run = tmp_path / "run"
    assert invoke(*arguments, "-o", run).exit_code == 0
    record = json.loads((run / "run.json").read_text())
    (run / "run.json").write_text(json.dumps(record | {"n_processes": 4}))
    outcome = invoke("train", "-o", run, "--resume")
    assert outcome.exit_code == 1
    assert "--num-processes 4" in outcome.stderr
