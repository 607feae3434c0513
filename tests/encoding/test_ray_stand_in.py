"""What `encode --engine ray` asks of Ray and does with its answers, with a stand-in that works in this process."""

import logging
import os
import sys
from dataclasses import asdict
from importlib.machinery import ModuleSpec
from types import ModuleType, SimpleNamespace

import pytest

from helpers import SENTENCES, CountingProgress, sigterm_in_second_window
from simcse_cli.data.file_sets import FileSet
from simcse_cli.encoding import parts, ray_engine
from simcse_cli.encoding.options import EncodeOptions
from simcse_cli.encoding.parts import cut, shard_file
from simcse_cli.encoding.ray_engine import _Worker, encode_on_ray
from simcse_cli.errors import SimcseError

LINES = [f"{sentence} {number}" for number, sentence in enumerate(SENTENCES * 2)]
CORE = {"Alive": True, "Resources": {"CPU": 2.0}}


class StandIn(ModuleType):
    """The parts of ``ray`` and ``ray.data`` that the engine uses; keeps in ``asked`` what it was asked for."""

    def __init__(self):
        super().__init__("ray")
        self.__spec__ = ModuleSpec("ray", None)
        self.asked, self.machines, self.gpus, self.failure, self.says = {}, [CORE], {}, None, ""
        self.data = ModuleType("ray.data")
        self.data.ActorPoolStrategy = lambda **sizes: self.asked.update(pool=sizes)
        self.data.from_items = self.from_items
        context = SimpleNamespace(enable_progress_bars=True)
        self.data.DataContext = SimpleNamespace(
            get_current=lambda: self.asked.setdefault("context", context)
        )

    def init(self, **options):
        os.write(2, b"noise of a native library")
        self.asked["init"] = options
        if self.failure is not None:
            raise self.failure

    def shutdown(self):
        self.asked["ended"] = True

    def nodes(self):
        return self.machines

    def cluster_resources(self):
        return self.gpus

    def from_items(self, rows, *, override_num_blocks):
        assert len(rows) == override_num_blocks

        def work(worker, *, fn_constructor_args, compute, **resources):
            self.asked.update(marker=fn_constructor_args[3], resources=resources)
            sys.stdout.write(self.says)
            return SimpleNamespace(iter_rows=lambda: map(worker(*fn_constructor_args), rows))

        return SimpleNamespace(map=work)


@pytest.fixture(autouse=True)
def ray(monkeypatch):
    """Return the stand-in, in the place of Ray; windows have eight rows."""
    made = StandIn()
    monkeypatch.setitem(sys.modules, "ray", made)
    monkeypatch.setitem(sys.modules, "ray.data", made.data)
    monkeypatch.setattr(parts, "WINDOW", 8)
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    for name in ("RAY_USAGE_STATS_ENABLED", "RAY_DATA_LOG_LEVEL", "RAY_BACKEND_LOG_LEVEL"):
        monkeypatch.setenv(name, "as the user has it")
    return made


@pytest.fixture
def encode(invoke, tiny_model_dir, tmp_path, monkeypatch):
    """Return a function that encodes the lines, where relative names mean ``tmp_path``."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "input.txt").write_text("".join(f"{line}\n" for line in LINES))

    def run(output, *arguments, ray=True):
        words = ("--engine", "ray") if ray else ()
        return invoke(
            "encode",
            "input.txt",
            "-o",
            output,
            "-m",
            tiny_model_dir,
            "--pooler",
            "avg",
            *words,
            *arguments,
        )

    return run


def test_shards_are_joined_and_removed_and_parts_stay(encode, tmp_path, ray, bucket):
    """A file beside the output says that the workers see its folder."""
    for output in ("one.npy", "one"):
        encode(output, ray=False)
    encode("v.npy", "--shard", "6/6", ray=False)
    assert "v.shard-6-of-6.npy is left from an interrupted run" in encode("v.npy").stderr
    (tmp_path / "v.shard-6-of-6.npy").rename(tmp_path / "v.shard-2-of-6.npy.part.json")
    assert "v.shard-2-of-6.npy is left from an interrupted run" in encode("v.npy").stderr
    assert encode("v.npy", "--force").exit_code == 0
    assert (str(ray.asked["marker"]), ray.asked["ended"]) == (".v.npy.lock", True)
    assert encode("v").exit_code == 0
    assert str(ray.asked["marker"]) == "v/.lock"
    assert sorted(path.name for path in tmp_path.glob("v*")) == ["v", "v.npy", "v.npy.json"]
    assert (tmp_path / "v.npy").read_bytes() == (tmp_path / "one.npy").read_bytes()
    for path in (tmp_path / "one").glob("part-*"):
        assert (tmp_path / "v" / path.name).read_bytes() == path.read_bytes()
    assert encode(f"{bucket}/there").exit_code == 0
    assert ray.asked["marker"] is None


@pytest.mark.parametrize("also", [(), ("--force",)])
def test_an_interrupted_run_is_continued(encode, tmp_path, monkeypatch, also):
    encode("one.npy", ray=False)
    with sigterm_in_second_window(monkeypatch):
        encode("v.npy")
    kept = tmp_path / "v.shard-1-of-6.npy"
    written = kept.stat().st_mtime_ns
    monkeypatch.setattr(ray_engine, "drop_unfinished", None)
    seen = []
    monkeypatch.setattr(
        "simcse_cli.encoding.encode_file.merge_shards", lambda *_, **__: seen.append(1) or []
    )
    assert encode("v.npy", "--resume", *also).exit_code == 0
    assert (kept.stat().st_mtime_ns == written, seen) == (not also, [1])


def test_progress_counts_the_rows_of_every_part(tiny_model_dir, tmp_path, ray, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "input.txt").write_text("".join(f"{line}\n" for line in LINES))
    outputs = [(str(shard_file(tmp_path / "v.npy", part)), part) for part in cut(48, 4)]
    progress, options = (
        CountingProgress(),
        EncodeOptions(model=str(tiny_model_dir), pooler="avg", device="cpu"),
    )
    encode_on_ray(FileSet.find("input.txt"), outputs, None, options, progress)
    assert progress.n_expected == progress.n_done == 48
    assert ray.asked["context"].enable_progress_bars is False


@pytest.mark.parametrize(
    ("n_long", "more"),
    [(1, ""), (2, " (and 1 more parts like this)"), (3, " (and 2 more parts like this)")],
)
def test_a_warning_is_shown_once_with_the_number_of_others(encode, tmp_path, n_long, more):
    long = "cat " * 90
    (tmp_path / "input.txt").write_text(
        "".join(f"{long if n % 8 == 3 and n // 8 < n_long else n}\n" for n in range(48))
    )
    told = " ".join(encode("v").stderr.split())
    assert told.count("cut 1 text at 64 sub-words") == 1
    assert f"the mean of their windows{more} wrote 6 of 6 parts" in told


def test_empty_texts_that_workers_read_are_counted(encode, tmp_path):
    (tmp_path / "input.txt").write_text("\n" + "A cat.\n" * 20 + "\n" + "A dog.\n" * 20)
    assert "input.txt: 2 texts are empty" in " ".join(encode("v").stderr.split())


def test_what_ray_prints_goes_to_stderr(encode, ray, capfd):
    ray.says = "Ray moved\nRay stays"
    outcome = encode("v.npy")
    assert (outcome.exit_code, outcome.stdout) == (0, "")
    assert "warning: Ray: Ray moved" in outcome.stderr
    ray.says = ""
    assert "Ray:" not in encode("v.npy", "--force").stderr
    os.write(2, b"shown")
    assert capfd.readouterr().err.endswith("shown")


def test_a_cluster_of_its_own_is_small_and_quiet(encode, ray, monkeypatch, capfd):
    for name in ("RAY_USAGE_STATS_ENABLED", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO"):
        monkeypatch.delenv(name, raising=False)
    assert encode("v.npy").exit_code == 0
    quiet = {"log_to_driver": False, "logging_level": logging.CRITICAL}
    assert ray.asked["init"] == {**quiet, "object_store_memory": 2**28, "include_dashboard": False}
    assert os.environ["RAY_USAGE_STATS_ENABLED"] == "0"
    assert "noise" not in capfd.readouterr().err
    monkeypatch.setenv("RAY_ADDRESS", "ray://10.0.0.1:10001")  # which Ray resolves
    assert encode("v.npy", "--force").exit_code == 0
    assert ray.asked["init"] == quiet


def test_a_cluster_that_is_missing_is_told_with_its_address(encode, ray, monkeypatch, tmp_path):
    asked = []

    def connect(address, timeout):
        asked.append((address, timeout))
        raise ConnectionRefusedError(111, "Connection refused")

    monkeypatch.setattr("socket.create_connection", connect)
    monkeypatch.setenv("RAY_ADDRESS", "10.0.0.1:6379")
    outcome = encode("v.npy")
    assert outcome.exit_code == 1
    assert "no Ray cluster at 10.0.0.1:6379: " in outcome.stderr
    assert asked == [(("10.0.0.1", 6379), 20)]
    monkeypatch.delenv("RAY_ADDRESS")
    ray.failure = RuntimeError("no room")
    assert "no Ray cluster at this machine: no room" in encode("v.npy").stderr
    assert not list(tmp_path.glob("*v.*"))


GPUS, CPUS = (
    {"GPU": 2.0},
    [CORE, {"Alive": True, "Resources": {}}, {"Alive": False, "Resources": {"CPU": 64.0}}],
)


@pytest.mark.parametrize(
    ("gpus", "given", "workers", "resources"),
    [
        (GPUS, {}, 2, {"num_gpus": 1}),
        (GPUS, {"workers": 4}, 4, {"num_gpus": 0.5}),
        (GPUS, {"workers": 3}, 3, {"num_gpus": 0.5}),  # at 2/3 the third would find no room
        (GPUS, {"workers": 1}, 1, {"num_gpus": 1}),
        (GPUS, {"device": "cpu"}, 1, {"num_cpus": 2}),
        ({}, {}, 1, {"num_cpus": 2}),
        ({}, {"workers": 2}, 2, {"num_cpus": 1}),
    ],
)
def test_workers_have_a_gpu_each_or_a_share_of_the_cores(
    tiny_model_dir, tmp_path, ray, monkeypatch, gpus, given, workers, resources
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "input.txt").write_text("A cat.\n")
    ray.gpus, ray.machines = gpus, CPUS
    options = EncodeOptions(model=str(tiny_model_dir), pooler="avg", **{"device": "auto", **given})
    (part,) = cut(1, 1)
    encode_on_ray(FileSet.find("input.txt"), [("v.npy", part)], None, options, CountingProgress())
    sizes = {
        "min_size": 1,
        "max_size": workers,
        "initial_size": workers,
        "max_tasks_in_flight_per_actor": 1,
    }
    assert (ray.asked["pool"], ray.asked["resources"]) == (sizes, resources)


def test_what_a_worker_refuses_is_in_its_answer(tmp_path, monkeypatch, tiny_model_dir):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "input.txt").write_text("".join(f"{line}\n" for line in LINES))
    files, part = FileSet.find("input.txt"), cut(48, 2)[1]
    row = {"output": "v/part-00002-of-00002.parquet", "part": asdict(part)}
    answer = _Worker(files, EncodeOptions(model="./nowhere"), str(tmp_path), None)(row)
    assert answer["error"].startswith("./nowhere does not exist")
    assert set(answer) == {
        "n_rows",
        "n_blank",
        "warning",
        "error",
        "hint",
    }  # Ray wants the same columns of all rows
    unseen = "does not see the folder of the output"
    for folder, marker in ((tmp_path, tmp_path / ".v.lock"), (tmp_path / "nowhere", None)):
        answer = _Worker(files, EncodeOptions(), str(folder), marker)(row)
        assert unseen in answer["error"]
        assert "s3://" in answer["hint"]
    options = EncodeOptions(model=str(tiny_model_dir), pooler="avg", device="cpu")
    (tmp_path / "v").mkdir()
    answer = _Worker(files, options, str(tmp_path), tmp_path)(row)
    assert answer == {"n_rows": 24, "n_blank": 0, "warning": "", "error": "", "hint": ""}
    with pytest.raises(SimcseError, match=unseen) as raised:
        encode_on_ray(
            files, [(row["output"], part)], tmp_path / ".v.lock", options, CountingProgress()
        )
    assert "s3://" in raised.value.hint
