"""`simcse train --track`: what reaches each tracker, under which names, on resume, and what keeps it from working."""

import json
import math
import struct
import sys
from importlib.util import module_from_spec, spec_from_file_location

import pytest
from accelerate.state import PartialState

from helpers import SENTENCES, write_sts_folder
from simcse_cli.errors import ConfigError, how_to_install
from simcse_cli.progress import SilentProgress
from simcse_cli.results.runs import TRACKING, RunRecord, lock_run
from simcse_cli.settings.choices import Tracker
from simcse_cli.settings.recipes import dump_config, resolve_config
from simcse_cli.training.loop import Trainer
from simcse_cli.training.record import open_log
from simcse_cli.training.run import train_run
from simcse_cli.training.setup import build_parts
from simcse_cli.training.trackers import loggable, tracked_run

# A stand-in for the packages of the trackers: it writes down how it is called.
STAND_IN = """
import json, os, sys
from types import SimpleNamespace
config = SimpleNamespace(update=lambda values, **_: note("config", values))
calls = []
def note(name, *values):
    calls.append([name, *values])
class Run:
    def log(self, values, step=None):
        if os.environ.get("TRACKER_FAILS"):
            raise ConnectionError("the server is gone")
        note("log", values, step)
    def finish(self):
        note("finish")
        print("* finished")
def init(**settings):
    if os.environ.get("TRACKER_REFUSES"):
        raise ValueError("no such project")
    note("init", settings)
    print("* started")
    return Run()
# MLflow
utils = SimpleNamespace(validation=SimpleNamespace(MAX_PARAM_VAL_LENGTH=6000, MAX_PARAMS_TAGS_PER_BATCH=100))
known = {}
def search_experiments(filter_string):
    return []
def create_experiment(name, **_):
    note("experiment", name)
    return "1"
def start_run(run_id=None, run_name=None, tags=None, **_):
    run_id = run_id or f"id{len(known)}"
    known[run_id] = tags
    note("init", {"run_id": run_id, "name": run_name, "tags": tags})
def search_runs(experiment_names, filter_string, output_format):
    found = [i for i, tags in known.items() if tags["simcse.run"] in filter_string]
    return [SimpleNamespace(info=SimpleNamespace(run_id=i)) for i in found]
def log_params(values):
    note("config", values)
def log_metrics(values, step):
    note("log", values, step)
def end_run():
    note("finish")
"""


@pytest.fixture
def settings(tiny_model_dir, tmp_path):
    (tmp_path / "train.txt").write_text("\n".join(SENTENCES) + "\n")
    dev = (
        write_sts_folder(tmp_path / "senteval")
        / "downstream"
        / "STS"
        / "STSBenchmark"
        / "sts-dev.csv"
    )
    return {
        "model": str(tiny_model_dir),
        "train_file": [str(tmp_path / "train.txt")],
        "dev_file": str(dev),
        "batch_size": 8,
        "max_steps": 20,
        "log_every": 1,
        "eval_every": 10,
        "device": "cpu",
    }


@pytest.fixture
def stand_in(monkeypatch, tmp_path):
    """Return a function that puts the stand-in in the place of a package and returns what it is told."""

    def install(name):
        (tmp_path / f"{name}.py").write_text(STAND_IN)
        spec = spec_from_file_location(name, tmp_path / f"{name}.py")
        module = module_from_spec(spec)
        spec.loader.exec_module(module)
        monkeypatch.setitem(sys.modules, name, module)
        return module.calls

    return install


def config_of(settings, **more):
    return resolve_config(flags=settings | more)


def logged_lines(run):
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


def read_tensorboard(folder):
    """Return the scalars of a folder by name and step, and its settings, by TensorBoard's own reader."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from tensorboard.plugins.hparams import plugin_data_pb2

    reader = EventAccumulator(str(folder))
    reader.Reload()
    scalars = {
        name: [(event.step, event.value) for event in reader.Scalars(name)]
        for name in reader.Tags()["scalars"]
    }
    stored = reader.SummaryMetadata("_hparams_/session_start_info").plugin_data.content
    info = plugin_data_pb2.HParamsPluginData.FromString(stored).session_start_info.hparams
    values = {name: getattr(value, value.WhichOneof("kind")) for name, value in info.items()}
    return scalars, values


def test_tensorboard_reads_back_the_metrics_and_settings_of_a_run(settings, tmp_path):
    pytest.importorskip("tensorboard")
    config, run = config_of(settings, track="tensorboard"), tmp_path / "run"
    train_run(config, run, SilentProgress())
    scalars, stored = read_tensorboard(run / TRACKING)
    lines = logged_lines(run)
    assert [line["step"] for line in lines] == list(range(21))
    expected = {}
    for line in lines:
        for name, value in loggable(line).items():
            expected.setdefault(name, []).append((line["step"], value))
    del expected["step"]
    assert scalars.keys() == expected.keys()
    assert {"loss", "losses/contrastive", "lr", "dev_score", "uniformity"} <= scalars.keys()
    for name, points in expected.items():
        assert [step for step, _ in scalars[name]] == [step for step, _ in points]
        for (_, found), (_, value) in zip(scalars[name], points, strict=True):
            assert math.isclose(found, value, rel_tol=1e-6), name
    assert stored == loggable(json.loads((run / "run.json").read_text())["config"])
    assert stored["batch_size"] == 8
    assert stored["track"] == "tensorboard"


def test_tensorboard_forgets_the_steps_that_a_resumed_run_repeats(settings, tmp_path):
    pytest.importorskip("tensorboard")
    config, run = config_of(settings | {"max_steps": 4}, track="tensorboard"), tmp_path / "run"
    run.mkdir()
    (run / "config.yaml").write_text(dump_config(config))
    asked = iter([False, True])
    trainer = Trainer(
        config, build_parts(config, SilentProgress()), run, SilentProgress(), lambda: next(asked)
    )
    trainer.run()
    (newest,) = (run / "checkpoint").iterdir()
    assert newest.name == "step-00000002"
    newest.rename(
        newest.with_name("step-00000001")
    )  # as if the kill had come before the state of step 2
    state = newest.with_name("step-00000001") / "state.json"
    state.write_text(json.dumps(json.loads(state.read_text()) | {"position": {"step": 1}}))
    train_run(config, run, SilentProgress(), resume=True)
    scalars, _ = read_tensorboard(run / TRACKING)
    assert [step for step, _ in scalars["loss"]] == [1, 2, 3, 4]


def test_wandb_is_offline_and_told_everything(settings, stand_in, tmp_path, monkeypatch):
    monkeypatch.delenv("WANDB_MODE", raising=False)
    calls, run = stand_in("wandb"), tmp_path / "run"
    config = config_of(
        settings | {"max_steps": 2}, track="wandb", track_project="p", track_name="n"
    )
    train_run(config, run, SilentProgress())
    (_, started), (_, stored), *logged, (last,) = calls
    assert started["mode"] == "offline"
    assert (started["project"], started["name"], started["group"]) == ("p", "n", None)
    assert started["dir"] == str(run / TRACKING)
    assert started["resume"] == "allow"
    assert stored == loggable(config.to_dict())
    assert [(step, values) for _, values, step in logged] == [
        (line.pop("step"), loggable(line)) for line in logged_lines(run)
    ]
    assert last == "finish"


@pytest.fixture
def record(settings):
    """Return what a run writes down when it starts, by its tracker and more settings."""
    PartialState(cpu=True)  # trackers of Accelerate ask it; in a run the Accelerator is there

    def make(tracker, *, step=0, started="2026-01-01", **more):
        config = config_of(settings, track=tracker, **more).to_dict()
        return RunRecord("running", "simcse-unsup", "m", 1, config, {}, 9, step, started=started)

    return make


def test_wandb_goes_online_where_its_variable_says_so(record, stand_in, tmp_path, monkeypatch):
    monkeypatch.setenv("WANDB_MODE", "online")
    calls = stand_in("wandb")
    open_log(tmp_path, record("wandb"), SilentProgress(), resumed=False)
    assert calls[0][1]["mode"] == "online"


@pytest.mark.parametrize("tracker", ["wandb", "trackio", "mlflow"])
def test_a_resumed_run_is_the_same_run_of_the_tracker(record, stand_in, tmp_path, tracker):
    calls, run = stand_in(tracker), tmp_path / "run"
    run.mkdir()
    with open_log(run, record(tracker), SilentProgress(), resumed=False) as log:
        for step in range(3):
            log.append({"step": step, "loss": 1.0})
    with open_log(run, record(tracker, step=2), SilentProgress(), resumed=True) as log:
        log.append({"step": 3, "loss": 0.5})
    first, second = (call[1] for call in calls if call[0] == "init")
    assert first["name"] == second["name"] == "run"
    match tracker:
        case "wandb":
            assert first["id"] == second["id"]
        case "trackio":
            assert (first["resume"], second["resume"]) == ("never", "allow")
        case "mlflow":
            assert first["run_id"] == second["run_id"]
            assert sum(call[0] == "config" for call in calls) == 1
    assert [call[2] for call in calls if call[0] == "log"] == [0, 1, 2, 3]
    assert [call[0] for call in calls].count("finish") == 2


def test_two_runs_of_one_folder_are_two_runs_of_the_tracker(record, tmp_path):
    keys = [
        tracked_run(
            record("wandb", started=f"2026-01-0{day}"), tmp_path / "run", last_step=last_step
        ).key
        for day, last_step in ((1, None), (2, None), (1, 5))
    ]
    assert keys[0] == keys[2] != keys[1]


@pytest.mark.parametrize(
    ("folder", "name", "expected"),
    [
        ("one", None, (None, "one")),
        ("one", "mine", (None, "mine")),
        ("many/seed-1", None, ("many", "many/seed-1")),
        ("many/seed-1", "warm", ("warm", "warm/seed-1")),
        ("many/lr=1", None, ("many", "many/lr=1")),
        ("many/lr=1/seed-2", "warm", ("warm", "warm/lr=1/seed-2")),
    ],
)
def test_runs_of_one_folder_are_a_group(record, tmp_path, folder, name, expected):
    top = tmp_path / "top"  # the folder of temporary files has a lock of pytest
    (top / "many").mkdir(parents=True)
    with lock_run(top / "many"), lock_run(top / folder):
        run = tracked_run(record("wandb", track_name=name), top / folder, last_step=None)
    assert (run.group, run.name) == expected


@pytest.mark.parametrize(
    ("flag", "names"), [("--seeds", ["seed-1", "seed-2"]), ("--sweep", ["lr=0.0001", "lr=0.001"])]
)
def test_seeds_and_trials_are_logged_as_a_group(invoke, settings, stand_in, tmp_path, flag, names):
    calls = stand_in("wandb")
    grid = tmp_path / "lr.yaml"
    grid.write_text("settings: {objective: simcse-unsup}\ngrid: {lr: [1.0e-4, 1.0e-3]}\n")
    outcome = invoke(
        "train", "-m", settings["model"], "--train-file", settings["train_file"][0], "--max-steps", "1",
        "--dev-file", settings["dev_file"], flag, "1,2" if flag == "--seeds" else grid,
        "--track", "wandb", "-o", tmp_path / "many",
    )  # fmt: skip
    assert outcome.exit_code == 0, outcome.stderr
    started = [call[1] for call in calls if call[0] == "init"]
    assert [(each["group"], each["name"]) for each in started] == [
        ("many", f"many/{name}") for name in names
    ]
    assert started[0]["id"] != started[1]["id"]
    assert "* started" not in outcome.stdout


def log_twice(record, tracker, run):
    """Log steps 0 to 2, then resume after step 1 as a killed run does, and log steps 2 and 3."""
    run.parent.mkdir(parents=True)
    with lock_run(run.parent), lock_run(run):
        for last_step, steps in ((0, range(3)), (1, range(2, 4))):
            started = record(tracker, step=last_step)
            with open_log(run, started, SilentProgress(), resumed=last_step > 0) as log:
                for step in steps:
                    log.append(
                        {"step": step, "loss": 1.0 / (1 + step), "losses": {"contrastive": 0.5}}
                    )
    return loggable(started.config)


def wandb_records(path):
    """Yield the records of a file of Weights & Biases: 7 bytes, then a log in LevelDB's format, in blocks of 32 KiB."""
    from wandb.proto.wandb_internal_pb2 import Record

    data, place, record = path.read_bytes(), 7, b""
    while place + 7 <= len(data):
        rest = 32768 - place % 32768
        if rest < 7:
            place += rest
            continue
        _, size, kind = struct.unpack_from("<IHB", data, place)
        record += data[place + 7 : place + 7 + size]
        place += 7 + size
        if kind in (1, 4):  # whole, or the last part
            yield Record.FromString(record)
            record = b""


@pytest.mark.filterwarnings("default")
def test_wandb_keeps_a_resumed_run_of_a_group_as_one_run(record, tmp_path, monkeypatch):
    """Both sessions have one id, which `wandb sync` joins in the order of their start."""
    pytest.importorskip("wandb")
    monkeypatch.delenv("WANDB_MODE", raising=False)
    run = tmp_path / "top" / "many" / "seed-1"
    settings = log_twice(record, "wandb", run)
    steps = []
    for file in sorted((run / TRACKING / "wandb").glob("offline-run-*/run-*.wandb")):
        found = list(wandb_records(file))
        (started,) = (each.run for each in found if each.HasField("run"))
        assert (started.project, started.run_group, started.display_name) == (
            "simcse",
            "many",
            "many/seed-1",
        )
        assert file.stem == f"run-{started.run_id}"
        stored = {
            item.key: json.loads(item.value_json) for each in found for item in each.config.update
        }
        assert {name: stored[name] for name in settings} == settings
        for each in (each.history for each in found if each.HasField("history")):
            values = {
                item.key or "/".join(item.nested_key): json.loads(item.value_json)
                for item in each.item
            }
            assert values["loss"] == pytest.approx(1 / (1 + each.step.num))
            assert values["losses/contrastive"] == 0.5
            steps.append((started.run_id, each.step.num))
    assert steps == [(steps[0][0], step) for step in (0, 1, 2, 2, 3)]


@pytest.mark.filterwarnings("default")
def test_mlflow_keeps_a_resumed_run_of_a_group_as_one_run(record, tmp_path, monkeypatch):
    mlflow = pytest.importorskip("mlflow")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/mlflow.db")
    settings = log_twice(record, "mlflow", tmp_path / "top" / "many" / "seed-1")
    client = mlflow.MlflowClient()
    experiment = client.get_experiment_by_name("simcse")
    (run,) = client.search_runs([experiment.experiment_id], "tags.group = 'many'")
    assert (run.info.run_name, run.info.status) == ("many/seed-1", "FINISHED")
    assert run.data.params == {name: str(value) for name, value in settings.items()}
    history = client.get_metric_history(run.info.run_id, "loss")
    assert [each.step for each in history] == [0, 1, 2, 2, 3]
    assert [each.value for each in history] == [1 / (1 + each.step) for each in history]


def test_a_tracker_that_fails_does_not_end_the_run(record, stand_in, tmp_path, monkeypatch):
    stand_in("trackio")
    monkeypatch.setenv("TRACKER_FAILS", "1")
    progress = SilentProgress()
    with open_log(tmp_path, record("trackio"), progress, resumed=False) as log:
        for step in range(2):
            log.append({"step": step, "loss": 1.0})
    assert len(logged_lines(tmp_path)) == 2
    assert progress.warnings == [
        "logging to the tracker has stopped (the server is gone); the run continues"
    ]


def test_a_tracker_that_does_not_start_is_an_error(record, stand_in, tmp_path, monkeypatch):
    stand_in("trackio")
    monkeypatch.setenv("TRACKER_REFUSES", "1")
    with pytest.raises(ConfigError, match="--track trackio does not start: no such project"):
        open_log(tmp_path, record("trackio"), SilentProgress(), resumed=False)


@pytest.mark.parametrize("tracker", list(Tracker))
def test_a_missing_package_is_named_before_anything_is_read(invoke, tmp_path, tracker, monkeypatch):
    monkeypatch.setitem(sys.modules, str(tracker), None)
    (tmp_path / "empty.txt").touch()  # whoever read it would say so
    outcome = invoke(
        "train",
        "--train-file",
        tmp_path / "empty.txt",
        "-o",
        tmp_path / "run",
        "--track",
        tracker,
    )
    assert outcome.exit_code == 1
    assert (
        f"--track {tracker} needs the package {tracker}: {how_to_install(tracker)}"
        in outcome.stderr
    )
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--track-project", "p"), "--track-project: has no use without --track"),
        (("--track-name", "n"), "--track-name: has no use without --track"),
        (
            ("--track", "tensorboard", "--track-name", "n"),
            "--track-name: has no use with --track tensorboard, which shows folders",
        ),
    ],
)
def test_names_that_nothing_reads_are_refused(invoke, tmp_path, flags, message):
    (tmp_path / "empty.txt").touch()
    outcome = invoke("train", "--train-file", tmp_path / "empty.txt", *flags)
    assert outcome.exit_code == 2
    assert message in " ".join(outcome.stderr.split())


def test_flat_keeps_numbers_and_texts():
    values = {"a": 1, "b": {"c": 2.5, "d": {"e": True}}, "f": None, "g": ["x", 1], "h": "text"}
    assert loggable(values) == {"a": 1, "b/c": 2.5, "b/d/e": True, "g": "x, 1", "h": "text"}


def test_trackio_keeps_what_it_is_told(record, tmp_path, monkeypatch):
    pytest.importorskip("trackio")
    from trackio import sqlite_storage, utils

    for module in (utils, sqlite_storage):
        monkeypatch.setattr(module, "TRACKIO_DIR", tmp_path / "trackio", raising=False)
    with open_log(
        tmp_path, record("trackio", track_name="n"), SilentProgress(), resumed=False
    ) as log:
        log.append({"step": 0, "dev_score": 0.5})
        log.append({"step": 1, "loss": 2.5, "losses": {"contrastive": 2.5}})
    with open_log(
        tmp_path, record("trackio", track_name="n", step=1), SilentProgress(), resumed=True
    ) as log:
        log.append({"step": 2, "loss": 1.5})
    found = sqlite_storage.SQLiteStorage.get_logs("simcse", "n")
    assert [(entry["step"], entry.get("loss"), entry.get("dev_score")) for entry in found] == [
        (0, None, 0.5),
        (1, 2.5, None),
        (2, 1.5, None),
    ]
