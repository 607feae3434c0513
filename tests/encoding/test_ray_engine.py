import json
import os
import signal
import threading
import time
from dataclasses import asdict

import pytest

from helpers import SENTENCES
from simcse_cli.data.file_sets import FileSet
from simcse_cli.encoding.options import EncodeOptions
from simcse_cli.encoding.ray_engine import _Worker
from simcse_cli.encoding.stream import cut

pytest.importorskip("ray")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning"),  # of Ray itself
]


@pytest.fixture
def source(tmp_path):
    path = tmp_path / "input.txt"
    path.write_text("".join(f"{SENTENCES[n % 24][:20]} {n}\n" for n in range(17_000)))  # three windows
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


def test_missing_cluster_is_told_with_its_address(invoke, source, tiny_model_dir, tmp_path, monkeypatch):
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:1")
    outcome = invoke("encode", source, "-o", tmp_path / "v.npy", "-m", tiny_model_dir, "--engine", "ray")
    assert outcome.exit_code == 1
    assert "no Ray cluster at 127.0.0.1:1" in outcome.stderr
    assert not list(tmp_path.glob("*v.*"))


def test_what_a_worker_refuses_is_in_its_answer(source, tiny_model_dir, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    files = FileSet.find(str(source))
    row = {"output": "v/part-00001-of-00001.parquet", "part": asdict(cut(17_000, 1)[0])}
    answer = _Worker(files, EncodeOptions(model="./nowhere"), str(tmp_path), None)(row)
    assert answer["error"].startswith("./nowhere does not exist")
    answer = _Worker(files, EncodeOptions(), str(tmp_path), tmp_path / ".v.lock")(row)
    assert "does not see the folder of the output" in answer["error"]
    assert "s3://" in answer["hint"]
