import math
import shutil
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from simcse_cli.comparison.compare import compare
from simcse_cli.comparison.options import CompareOptions
from simcse_cli.errors import ConfigError, DataError, OutputError, TrainingError
from simcse_cli.files.digests import digest, sha256_file
from simcse_cli.files.inputs import read_json
from simcse_cli.progress import SilentProgress
from simcse_cli.results.runs import RunRecord, lock_run, open_run_dir, read_run_record
from simcse_cli.settings.config import TrainConfig
from simcse_cli.training.launch import Stopped
from simcse_cli.training.seeds import ManyRuns, run_or_reuse, train_seeds
from simcse_cli.training.sweep import (
    Trial,
    grid_trials,
    nest_options,
    ranked,
    read_plan,
    run_sweep,
    score_quantiles,
    search_trials,
    sweep_report,
    train_sweep,
)


class FakeTraining:
    """Writes a record whose score follows from lr and seed; counts its calls; may be stopped."""

    def __init__(self, stop_at: int | None = None) -> None:
        self.trained: list[Path] = []
        self.stop_at = stop_at

    def __call__(self, config: TrainConfig, run_dir: Path) -> RunRecord:
        self.trained.append(run_dir)
        run_dir.mkdir(parents=True, exist_ok=True)
        (run_dir / "checkpoint").mkdir(exist_ok=True)
        status = "interrupted" if len(self.trained) == self.stop_at else "finished"
        score = 1 - abs(math.log10(config.lr) + 4.5) / 10 + config.seed / 1000
        record = RunRecord(
            status,
            "simcse-unsup",
            "tiny",
            config.seed,
            config.to_dict(),
            {},
            1,
            best_score=score,
            best_step=1,
        )
        record.write(run_dir)
        return record


def sweep(folder: Path, training: FakeTraining, proposed=None, seeds=(1, 2)) -> list[Trial]:
    return run_sweep(
        proposed or grid_trials({"lr": [1e-5, 3e-5, 1e-4], "batch_size": [8, 16]}),
        lambda settings: TrainConfig(**settings),
        ManyRuns(folder, training, seeds),
        SilentProgress(),
    )


def test_run_sweep_trains_every_combination_for_every_seed(tmp_path):
    training = FakeTraining()
    trials = sweep(tmp_path, training)
    assert [trial.settings for trial in trials] == [
        {"lr": lr, "batch_size": size} for lr in (1e-5, 3e-5, 1e-4) for size in (8, 16)
    ]
    assert len(training.trained) == 12
    assert {trial.measure for trial in trials} == {"spearman of the dev file"}
    assert (tmp_path / "lr=3e-05,batch_size=8" / "seed-2" / "run.json").is_file()
    assert not list(tmp_path.rglob("checkpoint"))
    record = read_json(tmp_path / "sweep.json")
    assert record["best"] == ranked(trials)[0].name == "lr=3e-05,batch_size=8"
    assert record["trials"][0]["score"] == pytest.approx(sum(trials[0].scores) / 2)
    assert record["trials"][0]["deviation"] == pytest.approx(math.sqrt(2) / 2 / 1000)


def test_run_sweep_resumes_where_it_was_stopped(tmp_path):
    stopped, resumed, whole = FakeTraining(stop_at=5), FakeTraining(), FakeTraining()
    with pytest.raises(Stopped):
        sweep(tmp_path / "a", stopped)
    trials = sweep(tmp_path / "a", resumed)
    assert len(resumed.trained) == 8
    assert [t.score for t in trials] == [t.score for t in sweep(tmp_path / "b", whole)]


def test_a_search_proposes_the_same_in_every_process(tmp_path, monkeypatch):
    pytest.importorskip("optuna")
    first, second = [], []  # what the two processes send

    def exchange_of_first(value):
        first.append(value)
        return [value, ([], [])]

    def exchange_of_second(value):
        second.append(value)
        return [first[len(second) - 1], value]

    names = []
    for training, exchange in (
        (FakeTraining(), exchange_of_first),
        (lambda config, run_dir: None, exchange_of_second),
    ):
        monkeypatch.setattr("simcse_cli.training.sweep.exchange", exchange)
        ranges = {"lr": {"low": 1e-6, "high": 1e-3, "log": True}}
        folder = tmp_path / str(len(names))
        trials = sweep(folder, training, search_trials(ranges, 14, seed=3), seeds=(1,))
        names.append([trial.name for trial in trials])
    assert second == [{}, *[([], [])] * 14]  # the earlier failures come first
    assert names[0] == names[1]


@pytest.mark.parametrize(
    ("grid", "message"),
    [
        ("{lr: [1.0e-5, -1]}", "--lr -1.0: need a number above 0"),
        ("{options.mix: [0.2, 1.5]}", "--set mix 1.5: need at most 1"),
        ("{temperature: [0.05, 0.1], objective: [cosent, vicreg]}", "its loss has no temperature"),
    ],
)
def test_a_wrong_value_of_a_grid_is_told_before_the_first_trial(tmp_path, grid, message):
    (tmp_path / "grid.yaml").write_text(f"grid: {grid}\n")
    training = FakeTraining()
    runs = ManyRuns(tmp_path / "sweep", training, ())
    with pytest.raises(ConfigError, match=message):
        train_sweep(
            str(tmp_path / "grid.yaml"),
            lambda swept: TrainConfig(**{"dev_file": "pairs.csv"} | swept),
            runs,
            SilentProgress(),
        )
    assert not training.trained
    assert not (tmp_path / "sweep").exists()


def test_search_repeats_itself_after_a_stop(tmp_path):
    pytest.importorskip("optuna")
    ranges = {"lr": {"low": 1e-6, "high": 1e-3, "log": True}, "batch_size": {"choices": [8, 16]}}
    with pytest.raises(Stopped):
        sweep(tmp_path / "a", FakeTraining(stop_at=9), search_trials(ranges, 14, seed=3), seeds=())
    resumed = FakeTraining()
    trials = sweep(tmp_path / "a", resumed, search_trials(ranges, 14, seed=3), seeds=())
    whole = sweep(tmp_path / "b", FakeTraining(), search_trials(ranges, 14, seed=3), seeds=())
    assert [trial.settings for trial in trials] == [trial.settings for trial in whole]
    assert len(resumed.trained) == 6
    assert ranked(whole)[0].score > 0.97


@pytest.mark.parametrize(("low", "high"), [(0.99, 0.999), (0.9999123, 0.9999987), (0, 0.1234567)])
def test_the_name_of_a_proposed_trial_is_all_of_its_value(low, high):
    """Two values near each other once had one folder, where the second ended the sweep."""
    values = []
    for trial in search_trials({"options.momentum": {"low": low, "high": high}}, 30, seed=3):
        (value,) = trial.settings.values()
        assert trial.name.startswith("momentum=")
        assert float(trial.name.removeprefix("momentum=")) == value
        assert low <= value <= high
        trial.scores = [value]  # so that the search goes on near the highest
        values.append(value)
    assert len(set(values)) > 20


def test_trials_of_a_grid_have_names_of_their_own():
    trials = grid_trials({"options.momentum": [0.99, 0.99991, 0.99993, 0.123456789], "lr": [1e-5]})
    assert [trial.name for trial in trials] == [
        "momentum=0.99,lr=1e-05",
        "momentum=0.99991,lr=1e-05",
        "momentum=0.99993,lr=1e-05",
        "momentum=0.123456789,lr=1e-05",
    ]


def test_run_or_reuse_refuses_a_run_with_other_settings(tmp_path):
    training = FakeTraining()
    run_or_reuse(TrainConfig(lr=1e-5), tmp_path / "run", training)
    with pytest.raises(OutputError, match=r"other settings \(lr\)"):
        run_or_reuse(TrainConfig(lr=3e-5), tmp_path / "run", training)


@pytest.mark.parametrize(
    "changed",
    ["plain.txt", "weighted.txt", "documents.txt", "dev.csv", "sts-dev.csv", "v.npy", "m.py"],
)
def test_a_complete_run_on_a_file_that_has_changed_is_not_reused(tmp_path, changed):
    """The mean over seeds would be over runs on different data."""
    suite = tmp_path / "senteval" / "downstream" / "STS"
    suite.mkdir(parents=True)
    place = tmp_path
    if changed == "sts-dev.csv":
        place = suite
    file = place / changed
    file.write_text("before")
    sha256 = sha256_file(file)
    train_file = [str(file)]
    data: dict[str, object] = {
        "plain.txt": {"train_sha256": sha256},
        "weighted.txt": {"train_sha256": digest(f"{sha256} {sha256}")},
        "documents.txt": {"train_sha256": digest(sha256)},
        "dev.csv": {"dev_file": str(file), "dev_sha256": sha256},
        "sts-dev.csv": {"dev_suite": "sts", "dev_files": {"STS/sts-dev.csv": sha256}},
        "v.npy": {"teachers": {str(file): sha256}},
        "m.py": {"code_files": {str(file): sha256}},
    }[changed]
    if changed == "weighted.txt":
        train_file = [str(file), f"{file}:2"]
    config = TrainConfig(
        train_file=train_file, dev_suite="sts", data_dir=str(tmp_path / "senteval")
    )
    record = FakeTraining()(config, tmp_path / "run")
    record.data = {"train_file": ", ".join(train_file)} | data
    record.write(tmp_path / "run")
    assert run_or_reuse(config, tmp_path / "run", FakeTraining()) == record
    file.write_text("after")
    with pytest.raises(DataError, match=rf"{changed} has changed since the run in"):
        run_or_reuse(config, tmp_path / "run", FakeTraining())
    shutil.rmtree(suite)
    file.unlink(missing_ok=True)  # what is not there any more is not compared
    assert run_or_reuse(config, tmp_path / "run", FakeTraining()) == record


def test_the_files_of_complete_runs_are_read_once_for_all_seeds(tmp_path, monkeypatch):
    file = tmp_path / "data.txt"
    file.write_text("before")
    data = {"train_file": str(file), "train_sha256": sha256_file(file)}
    config = TrainConfig(train_file=str(file))
    for seed in (1, 2, 3):
        run = tmp_path / f"seed-{seed}"
        record = FakeTraining()(replace(config, seed=seed), run)
        record.data = data
        record.write(run)
    digested = []
    monkeypatch.setattr(
        "simcse_cli.training.record.sha256_file",
        lambda path: digested.append(path) or data["train_sha256"],
    )
    assert len(ManyRuns(tmp_path, FakeTraining(), [1, 2, 3]).train(config)) == 3
    assert digested == [file]


def test_the_state_of_a_run_is_removed_after_a_kill_that_came_first(tmp_path):
    record = FakeTraining()(TrainConfig(), tmp_path / "run")
    assert run_or_reuse(TrainConfig(), tmp_path / "run", FakeTraining()) == record
    assert not (tmp_path / "run" / "checkpoint").exists()


def test_every_process_stops_when_the_first_is_told_to(tmp_path, monkeypatch):
    """This is the second process, which has no record; it must not go on to the next seed."""
    monkeypatch.setattr("simcse_cli.training.seeds.exchange", lambda _: ["interrupted", None])
    with pytest.raises(Stopped):
        run_or_reuse(TrainConfig(), tmp_path / "run", lambda *_: None)


def test_force_removes_nothing_beside_files_of_others(tmp_path):
    runs = ManyRuns(tmp_path, FakeTraining(), [1, 2], force=True)
    runs.train(TrainConfig())
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "config.yaml").write_text("of: another program")
    (tmp_path / "notes" / "idea.txt").write_text("Keep me.")
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(OutputError, match="notes is no run of this toolkit"):
        runs.open()
    assert sorted(tmp_path.rglob("*")) == before


def forced(folder, training):
    """Train two seeds anew in a folder, as ``train --seeds 1,2 --force`` does."""
    with lock_run(folder):
        train_seeds(TrainConfig(lr=2e-5), ManyRuns(folder, training, [1, 2], force=True))


class Failing(FakeTraining):
    """Fails with a mistake in the data of a seed."""

    def __init__(self, seed):
        super().__init__()
        self.seed = seed

    def __call__(self, config, run_dir):
        if config.seed == self.seed:
            raise DataError("row 7 has no text")
        return super().__call__(config, run_dir)


@pytest.mark.parametrize("is_killed", [False, True])
def test_earlier_runs_come_back_if_no_new_one_has_begun(tmp_path, is_killed):
    train_seeds(TrainConfig(), ManyRuns(tmp_path, FakeTraining(), [1, 2]))
    before = {path: path.read_bytes() for path in tmp_path.rglob("*.json")}
    assert len(before) == 3
    if is_killed:
        ManyRuns(tmp_path, FakeTraining(), [1, 2], force=True).open()
        assert not (tmp_path / "seed-1").exists()
        with lock_run(tmp_path):
            pass
    else:
        with pytest.raises(DataError):
            forced(tmp_path, Failing(seed=1))
    assert {path: path.read_bytes() for path in tmp_path.rglob("*.json")} == before
    assert not (tmp_path / ".earlier").exists()


def test_earlier_runs_are_gone_once_a_new_one_is_complete(tmp_path):
    train_seeds(TrainConfig(), ManyRuns(tmp_path, FakeTraining(), [1, 2, 3]))
    with pytest.raises(DataError):
        forced(tmp_path, Failing(seed=2))
    assert [path.parent.name for path in tmp_path.rglob("*.json")] == ["seed-1"]
    assert read_run_record(tmp_path / "seed-1").config["lr"] == 2e-5
    assert not (tmp_path / ".earlier").exists()


def test_a_run_within_a_run_is_none_that_replaces_it(tmp_path):
    FakeTraining()(TrainConfig(lr=1e-5), tmp_path)
    FakeTraining()(TrainConfig(), tmp_path / "other")
    with lock_run(tmp_path):
        open_run_dir(tmp_path, force=True)
    assert read_run_record(tmp_path).config["lr"] == 1e-5
    assert (tmp_path / "other" / "run.json").is_file()


def test_runs_that_are_being_replaced_are_not_compared(tmp_path):
    train_seeds(TrainConfig(), ManyRuns(tmp_path, FakeTraining(), [1, 2]))
    ManyRuns(tmp_path, FakeTraining(), [1, 2], force=True).open()
    with pytest.raises(DataError, match=r"holds no run\.json"):
        compare([str(tmp_path)], CompareOptions(), SilentProgress())


def test_force_removes_what_early_kills_have_left(tmp_path):
    for name in (
        "seed-1/config.yaml",
        "lr=1/seed-1/config.yaml",
        "lr=1/seed-1/teachers/1.npy.part",
        "lr=2/seed-1/.lock",
    ):
        (tmp_path / name).parent.mkdir(parents=True)
        (tmp_path / name).touch()
    (tmp_path / "lr=3").mkdir()
    ManyRuns(tmp_path, FakeTraining(), [1, 2], force=True).open()
    assert [entry.name for entry in tmp_path.iterdir()] == [".earlier"]


def test_one_seed_trains_in_the_folder_itself(tmp_path):
    (record,) = ManyRuns(tmp_path / "run", FakeTraining(), [7]).train(TrainConfig())
    assert record.seed == 7
    assert (tmp_path / "run" / "run.json").is_file()


def test_trials_without_scores_come_last():
    trials = [Trial("a", {}, [None]), Trial("b", {}, [0.2]), Trial("c", {}, [0.3])]
    assert [trial.name for trial in ranked(trials)] == ["c", "b", "a"]


@pytest.mark.parametrize(
    ("best_steps", "note"),
    [
        ([0, 0], "no run beat the untrained model, whose dev score is 80.00"),
        ([0, 25], "best: runs/lr=0.1"),
    ],
)
def test_the_untrained_model_is_not_called_the_best_run(best_steps, note):
    trials = [
        Trial("lr=0.2", {"lr": 0.2}, [0.7, 0.7], [25, 50]),
        Trial("lr=0.1", {"lr": 0.1}, [0.8, 0.8], best_steps, measure="spearman of a.tsv"),
    ]
    report = sweep_report("grid", trials, ["lr"], Path("runs"))
    assert report.notes[0] == note
    assert "dev best: spearman of a.tsv" in report.notes
    assert [row.get("best_steps") for row in report.rows[:2]] == [
        ", ".join(map(str, best_steps)),
        "25, 50",
    ]


def test_ends_of_a_search_are_spelt_as_settings_are(tmp_path):
    """YAML reads 1e-5 as a text."""
    path = tmp_path / "sweep.yaml"
    path.write_text("search: {lr: {low: 1e-5, high: 1.0e-3, log: true}, epochs: {low: 1, high: 3}}")
    assert read_plan(str(path)).search == {
        "lr": {"low": 1e-5, "high": 1e-3, "log": True},
        "epochs": {"low": 1, "high": 3},
    }


def test_nest_options_gathers_dotted_names():
    nested = nest_options(
        {"lr": "1e-5", "options.window": 3, "options": {"symmetric": True}}, place="x"
    )
    assert nested == {"lr": 1e-5, "options": {"symmetric": True, "window": 3}}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("grid: {lr: [1.0e-5]}\nsearch: {lr: {low: 1, high: 2}}", "either `grid`"),
        ("settings: {lr: 1.0e-5}", "either `grid`"),
        ("grid: {lr: 1.0e-5}", "need a list"),
        ("grid: {learning: [1]}", "unknown key 'learning'"),
        ("search: {lr: {low: 1.0e-5}}", "need numbers low and high"),
        ("search: {lr: {low: least, high: 1e-3}}", "search.lr.low 'least', need a finite number"),
        ("search: {lr: {low: 2, high: 1}}", "need numbers low and high"),
        ("search: {lr: {low: 0, high: 1, log: true}}", "for numbers above 0"),
        ("search: {lr: {low: false, high: true}}", "need numbers low and high"),
        ("search: {batch_size: {choices: 8}}", "a list of choices"),
        ("search: {batch_size: {choices: []}}", "a list of choices"),
        ("search: {lr: {low: 1.0e-5, high: 1.0e-3}}\nn_trials: 0", "n_trials 0"),
        ("search: {lr: {low: 1.0e-5, high: 1.0e-3}}\nn_trials: true", "n_trials True"),
        ("grids: {lr: [1]}", "unknown key 'grids'"),
        ("grid: [lr]", "grid is .*, need names of settings"),
        ("search: {1: {low: 1, high: 2}}", "search is .*, need names of settings"),
        ("settings: []\ngrid: {lr: [1]}", r"settings is \[\], need names of settings"),
        ("settings: 5\ngrid: {lr: [1]}", "settings is 5, need names of settings"),
    ],
)
def test_read_plan_names_what_is_wrong(tmp_path, text, message):
    path = tmp_path / "sweep.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=message):
        read_plan(str(path))


def test_score_quantiles_are_those_of_numpy():
    scores = [0.7, 0.81, 0.75, 0.6, 0.79]
    trials = [Trial(str(score), {}, [score]) for score in scores] + [Trial("failed", {}, [None])]
    assert score_quantiles(trials) == pytest.approx(
        {"max": 0.81, "q75": np.quantile(scores, 0.75), "q50": np.median(scores)}
    )
    assert score_quantiles(trials[:1]) == {"max": 0.7, "q75": 0.7, "q50": 0.7}
    assert score_quantiles(trials[5:]) == {}


class Diverging(FakeTraining):
    """Fails at one learning rate."""

    error: Exception = TrainingError("the loss of step 3 is nan", hint="lower --lr")

    def __call__(self, config: TrainConfig, run_dir: Path) -> RunRecord:
        if config.lr == 3e-5:
            self.trained.append(run_dir)
            run_dir.mkdir(parents=True, exist_ok=True)
            raise self.error
        return super().__call__(config, run_dir)


def rates(folder: Path, training: FakeTraining) -> list[Trial]:
    return sweep(folder, training, grid_trials({"lr": [1e-5, 3e-5, 1e-4]}), seeds=(1,))


@pytest.mark.parametrize(
    ("error", "failure"),
    [
        (
            TrainingError("the loss of step 3 is nan", hint="lower --lr"),
            "the loss of step 3 is nan",
        ),
        (
            RuntimeError("CUDA out of memory. Tried to allocate 2 GiB"),
            "CUDA out of memory. Tried to allocate 2 GiB",
        ),
        (Stopped(exit_code=1), "its processes failed"),
    ],
)
def test_a_trial_that_fails_is_recorded_and_the_sweep_goes_on(tmp_path, error, failure):
    training = Diverging()
    training.error = error
    trials = rates(tmp_path, training)
    assert [trial.failure for trial in trials] == [None, failure, None]
    assert [trial.score is None for trial in trials] == [False, True, False]
    assert [trial["failure"] for trial in read_json(tmp_path / "sweep.json")["trials"]] == [
        None,
        failure,
        None,
    ]
    report = sweep_report("lr.yaml", trials, ["lr"], tmp_path)
    assert report.rows[2]["best_steps"] == "failed"
    assert f"failed: lr=3e-05 ({failure})" in report.notes
    # The next call leaves it alone until its folder is removed.
    again = Diverging()
    assert [trial.failure for trial in rates(tmp_path, again)] == [None, failure, None]
    assert again.trained == []
    (tmp_path / "lr=3e-05").rmdir()
    assert [trial.failure for trial in rates(tmp_path, FakeTraining())] == [None, None, None]


def test_a_failed_trial_is_remembered_when_a_resume_is_killed_before_it(tmp_path):
    rates(tmp_path, Diverging())
    shutil.rmtree(tmp_path / "lr=1e-05")
    with pytest.raises(Stopped):
        rates(tmp_path, Diverging(stop_at=1))
    shutil.rmtree(tmp_path / "lr=1e-05")

    class KilledAtTheSecond(Diverging):
        def __call__(self, config: TrainConfig, run_dir: Path) -> RunRecord:
            if self.trained:
                raise KeyboardInterrupt
            return super().__call__(config, run_dir)

    killed = KilledAtTheSecond()
    with pytest.raises(KeyboardInterrupt):
        sweep(tmp_path, killed, grid_trials({"lr": [1e-5, 2e-5, 3e-5]}), seeds=(1,))
    again = Diverging()
    assert [trial.failure is None for trial in rates(tmp_path, again)] == [True, False, True]
    assert tmp_path / "lr=3e-05" not in again.trained


def test_a_trial_that_failed_with_other_settings_is_not_taken_for_this_one(tmp_path):
    training = Diverging()
    rates(tmp_path, training)
    failed = tmp_path / "lr=3e-05"
    FakeTraining(stop_at=1)(TrainConfig(lr=3e-5, batch_size=8), failed)
    with pytest.raises(OutputError, match=r"other settings \(batch_size, seed\)"):
        rates(tmp_path, Diverging())


@pytest.mark.parametrize("error", [Stopped(), RuntimeError("a mistake of ours")])
def test_what_is_no_failure_of_a_trial_ends_the_sweep(tmp_path, error):
    training = Diverging()
    training.error = error
    with pytest.raises(type(error)):
        rates(tmp_path, training)


def test_out_of_memory_in_a_group_ends_the_sweep(tmp_path, monkeypatch):
    """The others may have enough: they would wait for this process, which trains another trial."""
    monkeypatch.setattr("simcse_cli.training.sweep.process_count", lambda: 2)
    training = Diverging()
    training.error = MemoryError()
    with pytest.raises(MemoryError):
        rates(tmp_path, training)


@pytest.fixture
def second_process(monkeypatch):
    """Let this be the second process of a group, which gets what the first one sends."""
    for module in ("seeds", "sweep"):
        monkeypatch.setattr(f"simcse_cli.training.{module}.process_rank", lambda: 1)
        monkeypatch.setattr(f"simcse_cli.training.{module}.exchange", lambda value: [value])


@pytest.mark.usefixtures("second_process")
@pytest.mark.parametrize("force", [False, True])
def test_only_the_first_process_opens_the_folder_of_runs(tmp_path, force):
    """It may have begun the first run before the second process looks."""
    run = tmp_path / "seed-1"
    run.mkdir()
    ManyRuns(tmp_path, FakeTraining(), [1, 2], force=force).open()
    assert run.is_dir()


@pytest.mark.usefixtures("second_process")
def test_only_the_first_process_reports_several_runs(tmp_path):
    # All runs are finished already, so this process has their records, too.
    runs = ManyRuns(tmp_path / "seeds", FakeTraining(), [1, 2])
    assert train_seeds(TrainConfig(), runs) is None
    assert not (tmp_path / "seeds" / "seeds.json").exists()

    plan = tmp_path / "plan.yaml"
    plan.write_text("grid: {lr: [1.0e-5]}\n")
    runs = ManyRuns(tmp_path / "sweep", FakeTraining())
    make_config = partial(TrainConfig, dev_file="dev.csv")
    swept = train_sweep(str(plan), lambda s: make_config(**s), runs, SilentProgress())
    assert swept is None
    assert not (tmp_path / "sweep" / "sweep.png").exists()
