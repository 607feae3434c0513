"""Two processes that encode one input: the bytes of one process, and what they have to share."""

import os
import socket
from contextlib import nullcontext
from pathlib import Path

import pytest
import torch

from helpers import SENTENCES, build_tiny_model
from processes import run_on_processes, start_command
from simcse_cli.encoding import parts
from simcse_cli.encoding.encode_file import encode_file
from simcse_cli.encoding.journal import Journal, is_unfinished
from simcse_cli.encoding.options import EncodeOptions
from simcse_cli.errors import ConfigError, ContactError, OutputError
from simcse_cli.machine import processes
from simcse_cli.progress import SilentProgress
from simcse_cli.training.launch import free_port


def encode(source: str, output: str, model: str, **more: bool) -> None:
    options = EncodeOptions(
        output=output, model=model, pooler="avg", force_pooler=True, device="cpu", **more
    )
    encode_file(source, options, write=print, progress=SilentProgress())


def encode_on_each(rank: int, folder: str, model: str) -> dict[str, str]:
    parts.WINDOW = 5  # sentences; process 0 takes three windows, process 1 two
    processes.LONGEST_DELAY_S = 0.0
    own = Path(folder) / f"own-{rank}"
    own.mkdir()
    os.chdir(own)
    encode("../rows.txt", "../shared.npy", model)
    with pytest.raises(OutputError) as unshared:
        encode("../rows.txt", "v.npy", model)
    Path("rows.txt").write_text("A cat.\n" * (6 + rank))
    with pytest.raises(ConfigError) as unlike:
        encode("rows.txt", "../other.npy", model)
    with pytest.raises(ConfigError, match=r"process 1 .* has model_digest "):
        encode("../rows.txt", "../other.npy", model if rank else f"{folder}/other-model")
    found = {
        "unshared": str(unshared.value),
        "unlike": str(unlike.value),
        "left": ",".join(sorted(path.name for path in own.iterdir())),
    }
    if rank == 0:  # the second process ends here
        with pytest.raises(
            ContactError, match=r"^another process of the group has ended\n"
        ) as alone:
            encode("../rows.txt", "../alone.npy", model)
        found["hint"] = str(alone.value.hint)
    return found


def test_two_processes_need_one_folder_and_one_input(tmp_path, tiny_model_dir, monkeypatch):
    monkeypatch.setattr(parts, "WINDOW", 5)
    (tmp_path / "rows.txt").write_text("".join(f"{sentence}\n" for sentence in SENTENCES))
    encode(str(tmp_path / "rows.txt"), str(tmp_path / "one.npy"), str(tiny_model_dir))
    build_tiny_model(tmp_path / "other-model", seed=1)
    first, second = run_on_processes(encode_on_each, tmp_path, str(tmp_path), str(tiny_model_dir))
    assert (tmp_path / "shared.npy").read_bytes() == (tmp_path / "one.npy").read_bytes()
    assert first.pop("hint") == "look at its messages, then continue with --resume"
    assert first == second
    assert "v.npy: process 1 (on " in first["unshared"]
    here = f"(on {socket.gethostname()})"
    assert first["unlike"] == f"process 1 {here} has rows of the input 7, process 0 {here} has 6"
    assert first["left"] == "rows.txt"


def test_a_process_that_finds_its_input_missing_does_not_leave_the_other_waiting(
    tmp_path, tiny_model_dir, monkeypatch
):
    (tmp_path / "here.txt").write_text("A cat.\n")
    group = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": "2"}
    started = []
    for rank, name in enumerate(("here", "missing")):
        for variable, value in (group | {"RANK": str(rank)}).items():
            monkeypatch.setenv(variable, value)
        told = tmp_path / f"{rank}.stderr"
        words = ("encode", tmp_path / f"{name}.txt", "-o", tmp_path / "v.npy", "-m", tiny_model_dir)
        started.append(start_command(*words, stderr=told))
    for process in started:
        process.join()
    assert [process.exitcode for process in started] == [1, 1]
    assert "another process of the group has ended" in (tmp_path / "0.stderr").read_text()
    assert "missing.txt does not exist" in (tmp_path / "1.stderr").read_text()


def test_what_killed_processes_have_completed_is_compared_with_the_command(
    tmp_path, tiny_model_dir, monkeypatch
):
    """Like any finished output, in place of being taken for that of another command."""
    (tmp_path / "rows.txt").write_text("A cat.\nA dog.\n")
    words = (str(tmp_path / "rows.txt"), str(tmp_path / "v.npy"), str(tiny_model_dir))
    encode(*words)
    monkeypatch.setattr(processes, "process_count", lambda: 2)
    for name in ("join_group", "require_shared", "require_alike"):
        monkeypatch.setattr(processes, name, lambda *_: None)
    monkeypatch.setattr(torch.distributed, "barrier", lambda: None)
    for changed in ({"normalize": True}, {}):
        journal = Journal(tmp_path / "v.npy", 0, 2)
        journal.open()
        journal.finish(tmp_path / "v.npy")
        told = nullcontext()
        if changed:
            told = pytest.raises(OutputError, match="has normalize False, not True")
        with told:
            encode(*words, resume=True, **changed)
        assert not is_unfinished(tmp_path / "v.npy")
