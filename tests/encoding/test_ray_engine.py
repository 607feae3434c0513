import json
import os
import signal
import threading
import time

import pytest

from helpers import SENTENCES

pytest.importorskip("ray")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings(
        "ignore::DeprecationWarning", "ignore::ResourceWarning"
    ),  # of Ray itself
]


@pytest.fixture
def source(tmp_path):
    path = tmp_path / "input.txt"
    path.write_text(
        "".join(f"{SENTENCES[n % 24][:20]} {n}\n" for n in range(17_000))
    )  # three windows
    return path


def kill_a_worker(folder, killed):
    """Kill the first process that writes a shard in the folder."""
    while not killed:
        for lock in folder.glob(".v.shard-*.lock"):
            try:
                pid = json.loads(lock.read_text())["pid"]
                os.kill(pid, signal.SIGKILL)
            except (OSError, ValueError):  # not written yet, or gone
                continue
            killed.append(pid)
            break
        time.sleep(0.01)


def test_killed_worker_loses_nothing(invoke, source, tiny_model_dir, tmp_path, monkeypatch):
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    killed = []
    killer = threading.Thread(target=kill_a_worker, args=(tmp_path, killed), daemon=True)
    killer.start()
    command = ("encode", source, "-m", tiny_model_dir, "--pooler", "avg")
    outcome = invoke(*command, "-o", tmp_path / "v.npy", "--engine", "ray", "--workers", 2)
    assert outcome.exit_code == 0, outcome.stderr
    assert outcome.stdout == ""
    assert len(killed) == 1
    assert "warning: Ray: " in outcome.stderr
    assert invoke(*command, "-o", tmp_path / "one.npy").exit_code == 0
    assert (tmp_path / "v.npy").read_bytes() == (tmp_path / "one.npy").read_bytes()
    assert (tmp_path / "v.npy.json").read_bytes() == (tmp_path / "one.npy.json").read_bytes()
    assert sorted(path.name for path in tmp_path.glob("*v.*")) == ["v.npy", "v.npy.json"]
