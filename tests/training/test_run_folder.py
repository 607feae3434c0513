"""A run folder over time: one writer, what kills leave, what can be resumed, and damage that is named."""

import dataclasses
import json
import math
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from helpers import SENTENCES, Told
from processes import start_command
from simcse_cli.data.senteval import sts_files
from simcse_cli.errors import CheckpointError, ConfigError, DataError, OutputError, TrainingError
from simcse_cli.progress import SILENT, SilentProgress
from simcse_cli.results import runs
from simcse_cli.results.runs import (
    STATE_FILE,
    WEIGHTS_FILE,
    kept_states,
    lock_run,
    read_metrics,
    read_run_record,
)
from simcse_cli.settings.config import TrainConfig
from simcse_cli.settings.recipes import dump_config
from simcse_cli.training import loop, setup
from simcse_cli.training.loop import Trainer
from simcse_cli.training.run import ready_settings, train_run
from simcse_cli.training.setup import build_parts
from simcse_cli.training.state import OPTIMIZER_FILE
from simcse_cli.training.trackers import RunLog


@pytest.fixture
def settings(tiny_model_dir, tmp_path):
    (tmp_path / "train.txt").write_text("\n".join(SENTENCES) + "\n")
    return TrainConfig(
        model=str(tiny_model_dir),
        train_file=str(tmp_path / "train.txt"),
        batch_size=8,
        max_steps=2,
        device="cpu",
    )


@pytest.fixture
def stopped(settings, tmp_path):
    """Return the folder of a run that was stopped after its first step."""
    run = tmp_path / "run"
    run.mkdir()
    (run / "config.yaml").write_text(dump_config(settings))
    parts = build_parts(settings, SilentProgress())
    Trainer(settings, parts, run, SilentProgress(), should_stop=lambda: True).run()
    return run


def resume(settings, run):
    return train_run(settings, run, SilentProgress(), resume=True)


@pytest.mark.parametrize("flags", [("--resume",), ("--force",), ()])
def test_a_second_training_is_told_who_writes(invoke, settings, stopped, flags):
    before = {path: path.read_bytes() for path in stopped.rglob("*") if path.is_file()}
    with lock_run(stopped):
        outcome = invoke(
            "train",
            "-m",
            settings.model,
            "--train-file",
            settings.train_file[0],
            "-o",
            stopped,
            *flags,
        )
    assert outcome.exit_code == 1
    assert "is being written by process" in outcome.stderr
    assert before == {path: path.read_bytes() for path in stopped.rglob("*") if path.is_file()}
    assert resume(settings, stopped).status == "finished"


@pytest.mark.parametrize(
    ("length", "shorter", "longer", "n_processes"),
    [
        ("--max-steps", 2, 5, 1),
        ("--epochs", 1, 2, 1),
        pytest.param("--max-steps", 2, 5, 2, marks=pytest.mark.slow),
    ],
)
def test_a_run_with_a_constant_rate_goes_further(
    settings, tmp_path, length, shorter, longer, n_processes
):
    def train(run, *arguments):
        process = start_command(
            "train", "-o", tmp_path / run, *arguments, stderr=tmp_path / "stderr"
        )
        process.join()
        return process.exitcode

    common = ("--schedule", "constant", "--num-processes", n_processes)
    source = (
        "-m",
        settings.model,
        "--train-file",
        settings.train_file[0],
        "--batch-size",
        8,
        "--device",
        "cpu",
    )
    for run, *steps in (("parts", shorter, longer), ("whole", longer)):
        for number, n_steps in enumerate(steps):
            again = ("--resume", "--num-processes", n_processes) if number else (*source, *common)
            assert train(run, length, n_steps, *again) == 0, (tmp_path / "stderr").read_text()
    parts, whole = (load_file(state_of(tmp_path / run)) for run in ("parts", "whole"))
    assert parts.keys() == whole.keys()
    assert all(torch.equal(weight, whole[name]) for name, weight in parts.items())
    records = [read_run_record(tmp_path / run) for run in ("parts", "whole")]
    assert records[0].model_digest == records[1].model_digest
    assert records[0].config == records[1].config
    before = (tmp_path / "parts" / "config.yaml").read_bytes()
    assert train("parts", "--resume", "--num-processes", n_processes, length, 1) == 1
    assert "has done" in (tmp_path / "stderr").read_text()
    assert (tmp_path / "parts" / "config.yaml").read_bytes() == before


def state_of(run):
    (folder,) = (run / "checkpoint").iterdir()
    return folder / WEIGHTS_FILE


@pytest.mark.parametrize(
    ("schedule", "asked", "why"),
    [
        ((), ("--max-steps", 4), "(--schedule linear, --warmup 0)"),
        (
            ("--schedule", "constant", "--warmup", 0.5),
            ("--max-steps", 4),
            "(--schedule constant, --warmup 0.5)",
        ),
        (("--schedule", "constant"), ("--epochs", 4), "counts steps"),
    ],
)
def test_a_run_whose_rates_depend_on_its_length_goes_no_further(
    invoke, settings, tmp_path, schedule, asked, why
):
    source = ("-m", settings.model, "--train-file", settings.train_file[0], "--device", "cpu")
    assert (
        invoke("train", *source, "-o", tmp_path / "run", "--max-steps", 2, *schedule).exit_code == 0
    )
    outcome = invoke("train", "-o", tmp_path / "run", "--resume", *asked)
    assert outcome.exit_code == 1
    assert why in " ".join(outcome.stderr.split())


def test_a_complete_run_without_a_state_goes_no_further(settings, tmp_path):
    settings = dataclasses.replace(settings, schedule="constant")
    train_run(settings, tmp_path / "run", SilentProgress())
    shutil.rmtree(tmp_path / "run" / "checkpoint")
    with pytest.raises(ConfigError, match="keeps no state to go further from"):
        resume(dataclasses.replace(settings, max_steps=4), tmp_path / "run")


def test_the_lock_of_several_runs_covers_their_folder(invoke, settings, tmp_path):
    with lock_run(tmp_path / "runs"):
        outcome = invoke(
            "train", "-m", settings.model, "--train-file", settings.train_file[0], "--seeds", "1,2",
            "-o", tmp_path / "runs",
        )  # fmt: skip
    assert outcome.exit_code == 1
    assert "is being written by process" in outcome.stderr


def test_a_lock_leaves_no_empty_folder(tmp_path):
    with lock_run(tmp_path / "new" / "run"):
        assert (tmp_path / "new" / "run").is_dir()
    assert not (tmp_path / "new" / "run").exists()
    (tmp_path / "file").touch()
    with pytest.raises(OutputError, match="is not UTF-8"), lock_run(tmp_path / "caf\udce9/run"):
        pass
    with pytest.raises(OutputError, match="is a file"), lock_run(tmp_path / "file"):
        pass


@pytest.mark.parametrize("seeds", [(), ("--seeds", "1,2")])
def test_resuming_a_folder_without_a_run_is_an_error(invoke, settings, tmp_path, seeds):
    outcome = invoke("train", "-o", tmp_path / "typo", "--resume", *seeds)
    assert outcome.exit_code == 1
    assert "typo does not exist" in outcome.stderr
    assert "give the whole command (with --train-file) to start a run there" in outcome.stderr
    assert not (tmp_path / "typo").exists()


@pytest.mark.parametrize("many", ["", "--seeds 1,2", "--sweep sweep.yaml"])
def test_resume_starts_what_was_killed_before_it_had_a_folder(
    many, invoke, settings, sts_folder, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "sweep.yaml").write_text("grid:\n  lr: [1.0e-5]\n")
    dev = sts_folder / "downstream/STS/STSBenchmark/sts-dev.csv"
    source = (
        "-m",
        settings.model,
        "--train-file",
        settings.train_file[0],
        "--dev-file",
        dev,
        "--device",
        "cpu",
    )
    command = (
        "train",
        *source,
        "--max-steps",
        2,
        "--batch-size",
        4,
        *many.split(),
        "--resume",
        "-o",
        "run",
    )
    for _ in range(2):
        outcome = invoke(*command)
        assert outcome.exit_code == 0, outcome.stderr
    assert list((tmp_path / "run").rglob("model.safetensors"))


def test_resume_needs_a_name(invoke):
    outcome = invoke("train", "--resume")
    assert outcome.exit_code == 2
    assert "-o" in outcome.stderr


def test_resuming_a_folder_of_other_things_is_an_error(invoke, tmp_path):
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "a.txt").write_text("mine")
    outcome = invoke("train", "-o", tmp_path / "notes", "--resume")
    assert "holds no run to resume" in outcome.stderr
    assert [path.name for path in (tmp_path / "notes").iterdir()] == ["a.txt"]


def test_a_run_killed_before_its_first_record_starts_over(invoke, settings, tmp_path):
    run = tmp_path / "run"
    run.mkdir()
    (run / "config.yaml").write_text(dump_config(settings))
    outcome = invoke("train", "-o", run, "--resume")
    assert outcome.exit_code == 0, outcome.stderr
    assert read_run_record(run).status == "finished"


@pytest.mark.parametrize("resume", [(), ("--resume",)])
def test_a_run_killed_before_its_settings_starts_by_the_same_command(
    invoke, settings, tmp_path, resume
):
    run = tmp_path / "run"
    run.mkdir()
    (run / ".lock").write_text('{"pid": 1}')
    (run / ".config.yaml.simcse-0123abcd.tmp").write_text("objective")
    command = (
        "train",
        "-m",
        settings.model,
        "--train-file",
        settings.train_file[0],
        "--max-steps",
        1,
        "-o",
        run,
    )
    outcome = invoke(*command, *resume)
    assert outcome.exit_code == 0, outcome.stderr
    assert not list(run.glob(".*"))


def test_what_a_kill_left_is_removed_and_what_is_the_users_stays(settings, stopped):
    left = [
        stopped / ".run.json.simcse-0123abcd.tmp",
        stopped / ".model.simcse-0123abcd.tmp",
        stopped / "checkpoint" / ".step-00000001.simcse-0123abcd.tmp",
    ]
    mine = [
        stopped / ".model.backup.tmp",
        stopped / "checkpoint" / ".notes",
        stopped / "checkpoint" / "step-one",
    ]
    for path in left + mine:
        path.mkdir()
    resume(settings, stopped)
    assert [path.exists() for path in left + mine] == [False] * len(left) + [True] * len(mine)


def test_a_model_that_was_put_aside_comes_back(settings, stopped, sts_folder, tmp_path):
    """A kill between the two renames of a new best model must not lose the earlier best one."""
    dev = str(sts_folder / "downstream" / "STS" / "STSBenchmark" / "sts-dev.csv")
    settings = dataclasses.replace(settings, dev_file=dev, lr=1e-12)
    run = tmp_path / "other"
    resume(settings, run)
    shutil.rmtree(run / "checkpoint")
    shutil.rmtree(run / "model")
    parts = build_parts(settings, SilentProgress())
    progress = SilentProgress()
    Trainer(settings, parts, run, progress, should_stop=lambda: True).run()
    assert progress.warnings == []  # nothing is said of a training that goes on
    (run / "model").rename(run / ".model.simcse-0123abcd.old")
    assert resume(settings, run).best_step == 0
    assert json.loads((run / "model" / "simcse.json").read_text())["step"] == 0


def newest(run: Path) -> Path:
    return kept_states(run / "checkpoint")[-1]


def change(path, edit):
    tensors = load_file(path)
    edit(tensors)
    save_file(tensors, path)


def first(tensors, name):
    return next(key for key in tensors if key.endswith(name))


DAMAGE = {
    "moments of another shape": (
        OPTIMIZER_FILE,
        lambda t: t.update({first(t, "exp_avg"): torch.zeros(3)}),
        "not of its shape",
    ),
    "moments of no parameter": (
        OPTIMIZER_FILE,
        lambda t: t.update({"optimizer.9999.exp_avg": torch.zeros(3)}),
        "not of its shape",
    ),
    "a missing moment": (OPTIMIZER_FILE, lambda t: t.pop(first(t, "exp_avg_sq")), "moments are missing"),
    "a parameter without moments": (
        OPTIMIZER_FILE,
        lambda t: [t.pop(f"optimizer.0.{name}") for name in ("step", "exp_avg", "exp_avg_sq")],
        "moments are missing",
    ),
    "infinite moments": (OPTIMIZER_FILE, lambda t: t[first(t, "exp_avg")].fill_(torch.inf), "not finite"),
    "a weight that is no number": (WEIGHTS_FILE, lambda t: t[first(t, "weight")].fill_(torch.nan), "not finite"),
}  # fmt: skip


@pytest.mark.parametrize("kind", DAMAGE)
def test_a_state_that_does_not_fit_is_refused(settings, stopped, kind):
    name, edit, message = DAMAGE[kind]
    change(newest(stopped) / name, edit)
    with pytest.raises(CheckpointError, match=message):
        resume(settings, stopped)


@pytest.mark.parametrize(
    "edit",
    [
        lambda facts: "nothing",
        lambda facts: facts | {"position": facts["position"] | {"step": "one"}},
        lambda facts: facts | {"position": facts["position"] | {"step": 7}},
        lambda facts: facts | {"position": [1]},
        lambda facts: {k: v for k, v in facts.items() if k != "optimizer"},
        lambda facts: facts | {"optimizer": {"momentum": 1}},
    ],
)
def test_a_damaged_position_is_explained(settings, stopped, edit):
    path = newest(stopped) / STATE_FILE
    path.write_text(json.dumps(edit(json.loads(path.read_text()))))
    with pytest.raises(CheckpointError, match=r"step-00000001: the resume state cannot be read"):
        resume(settings, stopped)


@pytest.mark.parametrize(
    "text",
    ['{"status": ', "[]", '"run"', '{"status": "running"}', "\x00", '{"format": 1, "nonsense": 2}'],
)
def test_a_damaged_record_is_named(settings, stopped, text):
    (stopped / "run.json").write_text(text)
    with pytest.raises(DataError, match=r"run\.json"):
        resume(settings, stopped)


@pytest.mark.parametrize(
    ("name", "value"), [("data", []), ("step", "3"), ("best_score", "0.8"), ("timings", 1)]
)
def test_a_record_of_wrong_types_is_named(stopped, name, value):
    values = json.loads((stopped / "run.json").read_text())
    (stopped / "run.json").write_text(json.dumps(values | {name: value}))
    with pytest.raises(DataError, match=name):
        read_run_record(stopped)


def test_damaged_metrics_are_named_and_cut_ones_are_read(tmp_path):
    path = tmp_path / "metrics.jsonl"
    good = (
        '{"step": 1, "loss": 0.5, "dev_score": 0.25, "alignment": 1, "dev_tasks": {"MR-dev": '
        "0.5}}\n"
    )
    path.write_text(good + '{"step": 2, "dev_')
    (line,) = read_metrics(path)
    assert (line.step, line.dev_score, line.alignment, line.uniformity) == (1, 0.25, 1, None)
    for damage in (
        "nothing\n",
        "[]\n",
        '{"loss": 1}\n',
        '{"step": "2"}\n',
        '{"step": 2, "dev_score": "x"}\n',
    ):
        path.write_text(good + damage + good)
        with pytest.raises(DataError, match="line 2"):
            read_metrics(path)


def test_resume_drops_damaged_lines_of_the_metrics(settings, stopped):
    with (stopped / "metrics.jsonl").open("ab") as stream:
        stream.write(b'[]\n"x"\n{"step": "1"}\n\xff\xfe\n{"step": 9}\n')
    resume(settings, stopped)
    lines = [json.loads(line) for line in (stopped / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == [1, 2]


@pytest.mark.parametrize(("lr", "found"), [(1e38, "weights are"), (1e22, "vectors are")])
def test_a_model_that_has_diverged_is_never_kept(settings, tmp_path, lr, found):
    with pytest.raises(TrainingError, match=f"{found} not finite after step 1") as caught:
        resume(dataclasses.replace(settings, lr=lr, max_steps=1), tmp_path / "run")
    assert caught.value.hint == "start another run with a new -o and a lower --lr"
    for state in kept_states(tmp_path / "run" / "checkpoint"):
        assert all(tensor.isfinite().all() for tensor in load_file(state / WEIGHTS_FILE).values())
    assert not (tmp_path / "run" / "model").exists()


@pytest.mark.parametrize(
    ("changed", "more"),
    [
        ({"precision": "fp32"}, "a higher --temperature"),
        ({"precision": "bf16"}, "a higher --temperature or --precision fp32"),
        (
            {"precision": "fp32", "objective": "vicreg", "options": {"projector_dim": 16}},
            "another --model: this one may be damaged",
        ),
    ],
)
def test_a_gradient_that_is_not_finite_stops_the_run(
    settings, tmp_path, monkeypatch, changed, more
):
    monkeypatch.setattr(loop, "clip_gradients", lambda *_: torch.tensor(torch.nan))
    with pytest.raises(TrainingError, match="gradient of step 1 is not finite") as caught:
        resume(dataclasses.replace(settings, **changed), tmp_path / "run")
    assert caught.value.hint == f"start another run with a new -o and {more}"


class Scaler:
    """The scaler of fp16, as the loop uses it; ``taken`` counts the optimizer's steps."""

    def __init__(self):
        self.taken = 0

    def state_dict(self):
        return {}

    def unscale_(self, optimizer):
        pass

    def step(self, optimizer):
        self.taken += 1

    def update(self):
        pass


@pytest.mark.parametrize("n_steps", [30, 3])
def test_a_gradient_that_is_never_finite_stops_a_run_in_fp16(
    settings, tmp_path, monkeypatch, n_steps
):
    """The scaler would skip every step, and the run would finish untrained."""
    monkeypatch.setattr(loop, "clip_gradients", lambda *_: torch.tensor(torch.nan))
    config = dataclasses.replace(settings, max_steps=n_steps, dev_file=None)
    (tmp_path / "run").mkdir()
    progress = Told()
    trainer = Trainer(config, build_parts(config, progress), tmp_path / "run", progress)
    trainer.scaler = Scaler()
    if n_steps < 20:  # the scale may just start too high
        trainer.run()
        assert "the model is untrained" in progress.warnings[-1]
        return
    with pytest.raises(TrainingError, match="gradient of step 20 is not finite"):
        trainer.train()


def test_a_few_infinite_gradients_stop_no_run_in_fp16(settings, tmp_path, monkeypatch):
    """The scale of the loss starts high and is halved until gradients are finite."""
    norms = iter([math.inf] * 19 + [1.0] + [math.inf] * 19 + [1.0])
    monkeypatch.setattr(loop, "clip_gradients", lambda *_: torch.tensor(next(norms)))
    config = dataclasses.replace(settings, max_steps=40)
    (tmp_path / "run").mkdir()
    trainer = Trainer(config, build_parts(config, SILENT), tmp_path / "run", SILENT)
    trainer.scaler = Scaler()
    assert trainer.train() == "finished"


def test_an_error_before_the_first_step_closes_the_log(settings, tmp_path, monkeypatch):
    """A run of a tracker that stays open would get the numbers of the next trial of a sweep."""
    closed = []

    def fail(*_):
        raise TrainingError("there is no memory for the dev set")

    monkeypatch.setattr(RunLog, "__exit__", lambda *_: closed.append(True))
    monkeypatch.setattr(Trainer, "evaluate", fail)
    with pytest.raises(TrainingError, match="no memory"):
        resume(settings, tmp_path / "run")
    assert closed == [True]


def test_fewer_rows_than_processes_are_refused(settings, monkeypatch):
    monkeypatch.setattr(setup, "process_count", lambda: 30)
    with pytest.raises(DataError, match="24 training examples, need one for each of the 30"):
        build_parts(settings, SILENT)


def test_a_second_interrupt_says_what_is_kept(settings, stopped, monkeypatch, invoke):
    def interrupt(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(Trainer, "start_step", interrupt)
    outcome = invoke("train", "-o", stopped, "--resume")
    assert outcome.exit_code == 130
    assert (
        f"step 1 of {stopped} is kept, continue with: simcse train -o {stopped} --resume"
        in " ".join(outcome.stderr.split())
    )


def test_the_last_line_of_progress_counts_the_steps_of_this_call(stopped, invoke):
    outcome = invoke("train", "-o", stopped, "--resume")
    assert outcome.exit_code == 0, outcome.stderr
    assert "\ntraining simcse-unsup, steps 2 to 2: 1 in " in outcome.stderr


def test_the_record_says_what_a_run_was_computed_on_and_took(settings, stopped):
    before = read_run_record(stopped)
    assert before.started is not None
    (stopped / "run.json").write_text(
        json.dumps(
            json.loads((stopped / "run.json").read_text())
            | {"started": "2020-01-01T00:00:00+00:00"}
        )
    )
    record = resume(settings, stopped)
    assert record.started == "2020-01-01T00:00:00+00:00"  # of the first session
    assert record.finished > record.started
    assert (record.device, record.precision) == ("cpu", "fp32")
    assert record.hardware["cores"] >= 1
    assert record.hardware["processor"]
    assert record.peak_memory_bytes >= before.peak_memory_bytes > 2**20
    assert record.timings["hours"] > before.timings["hours"]
    assert 3600 * record.timings["hours"] > record.timings["train_s"] + record.timings["eval_s"]


def test_the_gain_is_that_of_the_best_model_whether_resumed_or_not(settings, sts_folder, tmp_path):
    dev_file = sts_files(sts_folder, "STSBenchmark", split="dev")[0]
    config = dataclasses.replace(
        settings, dev_file=str(dev_file), eval_every=1, max_steps=4, lr=1e-3
    )
    whole = train_run(config, tmp_path / "whole", SilentProgress())
    assert whole.best_step > 0
    assert whole.gain.difference == pytest.approx(whole.best_score - whole.start_score)

    parts = build_parts(config, SilentProgress())
    run = tmp_path / "cut"
    run.mkdir()
    (run / "config.yaml").write_text(dump_config(config))
    Trainer(config, parts, run, SilentProgress(), should_stop=lambda: True).run()
    assert resume(config, run).gain == whole.gain
    assert read_run_record(run).gain == whole.gain
    assert str(whole.gain) in (run / "README.md").read_text()


def test_a_run_that_is_resumed_in_another_folder_says_so(tmp_path, monkeypatch):
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "config.yaml").write_text(
        dump_config(TrainConfig(train_file=["lines.txt:2"]))
    )
    monkeypatch.chdir(tmp_path / "elsewhere")
    with pytest.raises(
        ConfigError, match=r"lines.txt, which the run in .* names, is not in .*elsewhere"
    ) as refused:
        ready_settings({}, None, SILENT, resumed=tmp_path / "run")
    assert refused.value.hint == "repeat the command in the folder where the run was started"


def whole_run(folder: Path) -> dict[str, str]:
    """Write the files of a run, in the order in which they are set aside; return their texts."""
    texts = {name: name for name in ("config.yaml", "run.json", "metrics.jsonl", "README.md")}
    texts |= {"model/a": "a", "checkpoint/step-5/b": "b", "results/c": "c"}
    for name, text in texts.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return texts


def texts_in(folder: Path) -> dict[str, str]:
    paths = [path for path in folder.rglob("*") if path.is_file() and path.name != ".lock"]
    return {str(path.relative_to(folder)): path.read_text() for path in paths}


class KilledError(BaseException):
    pass


def kill_at(monkeypatch, n_moves: int) -> None:
    """Let the move after ``n_moves`` others end the process, as a kill would."""
    moves = iter(range(99))

    def replace(source, target):
        if next(moves) == n_moves:
            raise KilledError
        Path(source).rename(target)

    monkeypatch.setattr(runs.os, "replace", replace)


@pytest.mark.parametrize("n_moves", range(8))
def test_a_kill_while_a_run_is_set_aside_loses_nothing(tmp_path, monkeypatch, n_moves):
    texts = whole_run(tmp_path)
    with monkeypatch.context() as patch:
        kill_at(patch, n_moves)
        with pytest.raises(KilledError):
            runs.open_run_dir(tmp_path, force=True)
    with lock_run(tmp_path):
        pass
    assert texts_in(tmp_path) == texts


@pytest.mark.parametrize("n_moves", range(8))
def test_a_kill_while_a_run_is_put_back_loses_nothing(tmp_path, monkeypatch, n_moves):
    texts = whole_run(tmp_path)
    runs.open_run_dir(tmp_path, force=True)
    (tmp_path / "config.yaml").write_text("of the new run")
    with monkeypatch.context() as patch:
        kill_at(patch, n_moves)
        with pytest.raises(KilledError):
            runs.open_run_dir(tmp_path, force=True)
    with pytest.raises(OutputError, match="holds a run already"), lock_run(tmp_path):
        runs.open_run_dir(tmp_path, force=False)
    assert texts_in(tmp_path) == texts


def test_half_of_an_earlier_run_is_never_put_back(tmp_path, monkeypatch):
    whole_run(tmp_path)
    runs.open_run_dir(tmp_path, force=True)
    texts = whole_run(tmp_path)  # those of the new run, which has saved a step
    with monkeypatch.context() as patch:
        patch.setattr(runs.shutil, "rmtree", lambda folder: kill_halfway(Path(folder)))
        with pytest.raises(KilledError), lock_run(tmp_path):
            pass
    shutil.rmtree(tmp_path / "checkpoint")
    with lock_run(tmp_path):
        pass
    assert texts_in(tmp_path) == {name: texts[name] for name in texts if "step-5" not in name}


def kill_halfway(folder: Path) -> None:
    (folder / "run.json").unlink()
    raise KilledError
