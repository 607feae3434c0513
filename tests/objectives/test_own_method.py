"""Methods from a user's file: the page's examples work, are recorded, resumed and run on two processes."""

import json
import re
from collections import Counter
from importlib import metadata
from importlib.metadata import EntryPoint, EntryPoints
from pathlib import Path
from traceback import extract_tb

import numpy as np
import pytest
import torch

import simcse_cli
from helpers import SENTENCES
from processes import start_command
from simcse_cli.augment.augmentations import word_augmenter
from simcse_cli.augment.options import AugmentOptions
from simcse_cli.errors import ConfigError, UsageError
from simcse_cli.files import code
from simcse_cli.losses.info_nce import info_nce
from simcse_cli.objectives.base import Objective
from simcse_cli.objectives.registry import (
    check_objective,
    find_objective,
    objective_defaults,
    option_rows,
)
from simcse_cli.objectives.sbert import Sbert
from simcse_cli.settings.choices import Similarity

PAGE = Path(__file__).parents[2] / "docs" / "your-own-method.md"


@pytest.fixture
def folder(tmp_path, monkeypatch, tiny_model_dir):
    """Return a current folder with the two files of the page, training text and a model."""
    for block in re.findall(r"```python\n(# (\w+\.py)\n.*?)```", PAGE.read_text(), re.DOTALL):
        (tmp_path / block[1]).write_text(block[0])
    (tmp_path / "rows.txt").write_text("".join(f"{sentence}\n" for sentence in SENTENCES))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run_of(model, *more):
    flags = ["--model", model, "--train-file", "rows.txt", "--batch-size", 8, "--max-steps", 4]
    return ["train", *flags, "--device", "cpu", "--lr", 1e-4, *more]


MARGIN = ("--objective", "margin.py:Margin", "--set", "margin=0.2")


def vectors_of(run):
    return simcse_cli.load(str(run)).encode(SENTENCES[:5])


def test_the_page_has_at_most_85_lines():
    assert len(PAGE.read_text().splitlines()) <= 85


@pytest.mark.usefixtures("folder")
def test_the_margin_is_info_nce_where_it_is_0_and_adds_in_closed_form():
    cls = find_objective("margin.py:Margin")
    objective = object.__new__(cls)
    generator = torch.Generator().manual_seed(0)
    views = list(torch.randn(2, 6, 5, generator=generator, dtype=torch.float64))
    torch.nn.Module.__init__(objective)
    objective.options = cls.Options(margin=0.0)
    expected = info_nce(*views, temperature=0.05, similarity=Similarity.COSINE)
    torch.testing.assert_close(objective.contrast(views), expected)
    objective.options = cls.Options(margin=0.2)
    # Equal vectors: every score is 1/t, the own one (1 - m)/t.
    alike = [torch.ones(6, 5, dtype=torch.float64)] * 2
    closed = np.log(1 + 5 * np.exp(0.2 / 0.05))
    torch.testing.assert_close(objective.contrast(alike), torch.tensor(closed))


def test_a_run_records_resumes_and_needs_the_name_again(folder, invoke, tiny_model_dir):
    whole = invoke(*run_of(tiny_model_dir, *MARGIN, "-o", "whole", "--save-every", 1))
    assert whole.exit_code == 0, whole.stderr
    record = json.loads(Path("whole/run.json").read_text())
    assert record["objective"] == "margin.py:Margin"
    assert record["config"]["options"] == {"margin": 0.2}
    digest = code.sha256_file("margin.py")
    assert record["data"]["code_files"] == {"margin.py": digest}
    assert "# margin.py:Margin on" in Path("whole/README.md").read_text()

    # The model is read without the file.
    file = Path("margin.py")
    text = file.read_text()
    file.unlink()
    vectors = vectors_of("whole")
    file.write_text(text)

    # Another run stops in the middle and goes on to the same weights, if the file is named again.
    steps = run_of(tiny_model_dir, *MARGIN, "-o", "cut", "--schedule", "constant")
    steps[steps.index("--max-steps") + 1] = 2
    assert invoke(*steps, "--save-every", 1).exit_code == 0
    resumed = ["train", "-o", "cut", "--resume", "--max-steps", 4]
    refused = invoke(*resumed)
    assert refused.exit_code == 1
    assert "cut/config.yaml: objective names code, margin.py:Margin" in refused.stderr
    assert "add --objective margin.py:Margin" in refused.stderr
    file.write_text(text + "\n")
    changed = invoke(*resumed, *MARGIN[:2])
    assert "margin.py has changed since the run in cut started" in changed.stderr
    complete = ["train", "-o", "whole", "--resume", *MARGIN[:2]]
    assert "margin.py has changed since the run in whole was trained" in invoke(*complete).stderr
    file.write_text(text)
    assert "whole is complete already" in invoke(*complete).stderr
    assert invoke(*resumed, *MARGIN[:2]).exit_code == 0
    constant = run_of(tiny_model_dir, *MARGIN, "-o", "constant", "--schedule", "constant")
    assert invoke(*constant).exit_code == 0
    np.testing.assert_array_equal(vectors_of("cut"), vectors_of("constant"))
    assert not np.array_equal(vectors, vectors_of("constant"))


def test_a_list_of_code_in_a_file_of_settings_is_refused(folder, invoke):
    """Taken as a text, the list would name a file that begins with its bracket."""
    Path("['own.py").write_text("raise SystemExit('this file was run')\n")
    Path("own.yaml").write_text('method: ["own.py:shout:0.1"]\n')
    Path("in.txt").write_text("a b\n")
    refused = invoke("augment", "in.txt", "--config", "own.yaml", "--preview", 1)
    assert refused.exit_code == 1
    assert "own.yaml: method names code" in refused.stderr


def test_two_processes_train_it_like_one(folder, invoke, tiny_model_dir):
    alone = run_of(tiny_model_dir, *MARGIN, "--dropout-mode", "none", "-o", "one")
    assert invoke(*alone).exit_code == 0
    two = run_of(tiny_model_dir, *MARGIN, "--dropout-mode", "none", "-o", "two")
    two[two.index("--batch-size") + 1] = 4
    process = start_command(*two, "--num-processes", 2)
    process.join()
    assert process.exitcode == 0
    np.testing.assert_allclose(vectors_of("two"), vectors_of("one"), atol=2e-5)


@pytest.mark.parametrize("source", ["recipe", "variable", "sweep"])
def test_code_is_named_by_the_command_line_alone(
    folder, invoke, tiny_model_dir, monkeypatch, source
):
    more = ["-o", "run"]
    if source == "recipe":
        Path("own.yaml").write_text("objective: margin.py:Margin\n")
        more += ["--config", "own.yaml"]
    elif source == "variable":
        monkeypatch.setenv("SIMCSE_OBJECTIVE", "margin.py:Margin")
    else:
        Path("sweep.yaml").write_text("grid:\n  objective: [margin.py:Margin]\n")
        pairs = "left,right,score\na dog runs,a dog runs fast,5\na cat,a car,1\none man,a man,4\n"
        Path("dev.csv").write_text(pairs)
        more += ["--sweep", "sweep.yaml", "--dev-file", "dev.csv"]
    refused = invoke(*run_of(tiny_model_dir, *more))
    assert refused.exit_code == 1
    assert "objective names code, margin.py:Margin, which is run only if" in refused.stderr
    if source != "variable":
        typed = invoke(*run_of(tiny_model_dir, *more, *MARGIN))
        assert typed.exit_code == 0, typed.stderr
    if source != "sweep":  # a flag overrides recipes and variables, whose code does not run then
        more += ["--objective", "simcse-unsup", "--force"]
        assert invoke(*run_of(tiny_model_dir, *more)).exit_code == 0


@pytest.mark.usefixtures("folder")
def test_help_shows_the_options_of_the_class(invoke):
    shown = invoke("train", "--objective", "margin.py:Margin", "--help").stdout
    assert "Options of --objective margin.py:Margin" in shown
    assert "--set margin=X" in shown
    assert "Subtracted from the cosine of a pair. [default: 0.1]" in " ".join(shown.split())


def test_a_class_of_a_program_trains_like_the_file(folder, invoke, tiny_model_dir):
    assert invoke(*run_of(tiny_model_dir, *MARGIN, "-o", "typed")).exit_code == 0
    cls = find_objective("margin.py:Margin")
    settings = {"model": str(tiny_model_dir), "train_file": "rows.txt", "batch_size": 8}
    settings |= {"max_steps": 4, "device": "cpu", "lr": 1e-4, "options": {"margin": 0.2}}
    simcse_cli.train("program", objective=cls, **settings)
    np.testing.assert_array_equal(vectors_of("typed"), vectors_of("program"))


@pytest.mark.parametrize(
    ("text", "message", "hint"),
    [
        ("gone.py:Loss", "gone.py does not exist", "need FILE.py:NAME"),
        ("margin.py:Margn", "no Margn in the file", "did you mean Margin?"),
        ("bad.py:Loss", "ZeroDivisionError: division by zero", "python bad.py shows where"),
        ("other.py:function", "is no subclass of Objective", "simcse_cli.Objective"),
        ("other.py:Half", "lacks collate, losses", "define what is missing"),
        ("other.py:Loose", "Options is no dataclass", "write @dataclass(frozen=True)"),
    ],
)
def test_what_cannot_be_used_is_named(folder, text, message, hint):
    Path("bad.py").write_text("1 / 0\n")
    Path("other.py").write_text(
        "from simcse_cli import Objective, ObjectiveOptions\n"
        "def function(): pass\n"
        "class Half(Objective): pass\n"
        "class Loose(Objective):\n"
        "    collate = losses = function\n"
        "    class Options(ObjectiveOptions): pass\n"
    )
    with pytest.raises(simcse_cli.errors.SimcseError) as raised:
        find_objective(text)
    assert message in raised.value.message
    assert hint in raised.value.hint


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize("beside", ["helper.py", "helper"])
def test_a_file_that_imports_a_file_beside_it_is_told_to_stand_alone(beside):
    path = Path(beside)
    path.mkdir() if path.suffix == "" else path.write_text("SCALE = 2\n")
    Path("importing.py").write_text("from helper.scales import SCALE\n")
    with pytest.raises(ConfigError, match="imports helper, a file beside it") as raised:
        find_objective("importing.py:Loss")
    assert f"put what it needs of {beside} into the file" in raised.value.hint


OWN = """
from dataclasses import dataclass
from simcse_cli import Simcse, setting
class Vector(Simcse):
    def contrast(self, views, texts=None):
        return (views[0] * views[1]).sum(1)
class Nothing(Simcse):
    def contrast(self, views, texts=None):
        (views[0] * views[1]).sum()
class Number(Simcse):
    def contrast(self, views, texts=None):
        return 1.0
class Cut(Simcse):
    def contrast(self, views, texts=None):
        return (views[0] * views[1]).sum().detach()
class Terms(Simcse):
    def losses(self, representations, batch):
        return {"own": representations[0].sum(1)}, {}
class Wrong(Simcse):
    def contrast(self, views, texts=None):
        return views[0] @ views[1]
class Undeclared(Simcse):
    @dataclass(frozen=True)
    class Options(Simcse.Options):
        margin: float = 0.1
"""


@pytest.mark.parametrize(
    ("cls", "found", "more"),
    [
        ("Vector", "'contrastive' of its losses has the shape (8,)", ()),
        ("Nothing", "'contrastive' of its losses is NoneType", ()),
        ("Number", "'contrastive' of its losses is float", ()),
        ("Terms", "'own' of its losses has the shape (16,)", ()),
        ("Terms", "'own' of its losses has the shape (16,)", ("--micro-batch-size", 5)),
    ],
)
def test_a_loss_that_is_no_scalar_is_refused(folder, invoke, tiny_model_dir, cls, found, more):
    Path("own.py").write_text(OWN)
    run = invoke(*run_of(tiny_model_dir, "--objective", f"own.py:{cls}", "-o", "run", *more))
    assert run.exit_code == 1
    assert f"--objective own.py:{cls}: {found}, need a scalar tensor" in " ".join(
        run.stderr.split()
    )


def test_a_loss_without_a_gradient_is_refused(folder, invoke, tiny_model_dir):
    Path("own.py").write_text(OWN)
    for more in (("-o", "a"), ("-o", "b", "--micro-batch-size", 5)):
        run = invoke(*run_of(tiny_model_dir, "--objective", "own.py:Cut", *more))
        assert run.exit_code == 1
        assert "--objective own.py:Cut: none of its losses depends on the vectors" in " ".join(
            run.stderr.split()
        )


def test_an_option_without_setting_is_told_how_to_declare_it(folder, invoke, tiny_model_dir):
    Path("own.py").write_text(OWN)
    own = ("--objective", "own.py:Undeclared", "--set", "margin=0.2")
    run = invoke(*run_of(tiny_model_dir, *own, "-o", "run"))
    assert run.exit_code == 1
    assert "write margin: TYPE = setting(DEFAULT," in run.stderr


def test_an_error_in_the_file_names_its_line(folder, invoke, tiny_model_dir):
    Path("own.py").write_text(OWN)
    line = OWN.splitlines().index("        return views[0] @ views[1]") + 1
    words = run_of(tiny_model_dir, "--objective", "own.py:Wrong", "-o", "run")
    run = invoke(*words)
    assert run.exit_code == 1
    said = " ".join(run.stderr.split())
    assert f"error: own.py, line {line}: RuntimeError in Wrong.contrast: " in said
    assert "-v shows the traceback" in said
    assert "Traceback" not in said

    # With -v, the traceback begins at the line.
    with pytest.raises(RuntimeError, match="cannot be multiplied") as raised:
        invoke(*words, "--force", "-v")
    (frame,) = extract_tb(code.users_traceback(raised.value))
    assert (Path(frame.filename).name, frame.name) == ("own.py", "contrast")
    other = ValueError()
    assert code.users_traceback(other) is other.__traceback__
    assert code.error_of_code(other) is None


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize("lines", [8, 8000])  # one process, and several
def test_an_error_in_a_function_names_its_line(invoke, lines):
    Path("own.py").write_text("def fail(text, rng):\n    return text[1000]\n")
    Path("many.txt").write_text("a text\n" * lines)
    words = ("augment", "many.txt", "--method", "own.py:fail", "-o", "o.csv", "--workers", 2)
    run = invoke(*words)
    assert run.exit_code == 1
    said = " ".join(run.stderr.split())
    assert "error: own.py, line 2: IndexError in fail: string index out of range" in said
    assert "Traceback" not in said


@pytest.mark.usefixtures("folder")
def test_a_method_with_other_arguments_is_refused_when_it_is_loaded():
    Path("own.py").write_text(
        "from simcse_cli import Simcse\n"
        "class Short(Simcse):\n"
        "    def contrast(self, views): return views[0].sum()\n"
        "class After(Simcse):\n"
        "    def after_step(self, step): pass\n"
        "class Star(Simcse):\n"
        "    def contrast(self, *views): return views[0][0].sum()\n"
    )
    with pytest.raises(ConfigError, match=r"contrast\(self, views\) is called") as raised:
        find_objective("own.py:Short")
    assert raised.value.hint == "write def contrast(self, views, texts)"
    with pytest.raises(ConfigError, match=r"after_step\(.*\) is called with nothing"):
        find_objective("own.py:After")
    find_objective("own.py:Star")


SHARED = """
from dataclasses import dataclass
from simcse_cli import Simcse, setting
from simcse_cli.objectives.sbert import Sbert
from simcse_cli.objectives.simcse import SimcseSup
class Warm(Simcse):
    @dataclass(frozen=True)
    class Options(Simcse.Options):
        temperature: float = setting(0.2, "Mine.", above=0)
        max_length: int = setting(20, "Mine.")
class Lower(Simcse):
    defaults = {"temperature": 0.3, "lr": 1e-5}
class Rate(SimcseSup):
    @dataclass(frozen=True)
    class Options(SimcseSup.Options):
        lr: float = setting(0.7, "Mine.")
class Bare(Simcse):
    @dataclass(frozen=True)
    class Options(Simcse.Options):
        temperature: float = 0.2
class Pairs(Sbert):
    defaults = {"lr": 1e-5}
class Short(Sbert):
    @dataclass(frozen=True)
    class Options(Sbert.Options):
        max_length: int = setting(64, "Mine.")
"""


@pytest.mark.parametrize(
    ("cls", "more", "expected"),
    [
        ("Warm", (), {"temperature": 0.2, "max_length": 20, "lr": 1e-4}),
        ("Warm", ("--temperature", 0.1), {"temperature": 0.1}),
        ("Lower", (), {"temperature": 0.3}),
    ],
)
def test_the_default_of_a_setting_that_a_class_changes_counts(
    folder, invoke, tiny_model_dir, cls, more, expected
):
    Path("own.py").write_text(SHARED)
    own = ("--objective", f"own.py:{cls}", "-o", "run")
    run = invoke(*run_of(tiny_model_dir, *own, *more))
    assert run.exit_code == 0, run.stderr
    config = json.loads(Path("run/run.json").read_text())["config"]
    assert {name: config[name] for name in expected} == expected


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize(
    ("cls", "changed"), [("Pairs", {"lr": 1e-5}), ("Short", {"max_length": 64})]
)
def test_a_class_changes_some_defaults_of_its_base_and_keeps_the_others(cls, changed):
    Path("own.py").write_text(SHARED)
    assert objective_defaults(f"own.py:{cls}") == {**Sbert.defaults, **changed}


def option_defaults(name):
    """Return the default of each option that the help of an objective shows, by its usage."""
    shown = {usage: re.search(r"\[default: (.*)\]", text) for usage, text in option_rows(name)}
    return {usage: found[1] for usage, found in shown.items() if found}


@pytest.mark.usefixtures("folder")
def test_the_help_shows_the_default_that_counts():
    Path("own.py").write_text(SHARED)
    defaults = option_defaults("own.py:Warm")
    assert (defaults["--temperature X"], defaults["--max-length N"]) == ("0.2", "20")
    assert option_defaults("own.py:Lower")["--temperature X"] == "0.3"


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize(
    ("cls", "name", "hint"),
    [
        ("Rate", "lr", "{'epochs': 3.0, 'head': 'kept', 'lr': 0.7}"),
        ("Bare", "temperature", "{'temperature': 0.2}"),
    ],
)
def test_an_option_with_the_name_of_a_setting_is_refused(cls, name, hint):
    Path("own.py").write_text(SHARED)
    with pytest.raises(ConfigError, match=f"own.py:{cls}: Options declares {name}, ") as raised:
        find_objective(f"own.py:{cls}")
    assert f"write defaults = {hint} in the class" in raised.value.hint


def test_a_subclass_of_a_method_with_a_teacher_asks_for_one(folder, invoke, tiny_model_dir):
    Path("own.py").write_text(
        "from simcse_cli.objectives.rankcse import Rankcse\nclass Mine(Rankcse): pass\n"
    )
    refused = invoke(*run_of(tiny_model_dir, "--objective", "own.py:Mine", "-o", "run"))
    assert "own.py:Mine learns from a teacher, and none is named" in refused.stderr


def test_packages_offer_methods_by_name(folder, monkeypatch):
    objective = EntryPoint("margin", "margin:Margin", "simcse_cli.objectives")
    repeat = EntryPoint("twice", "repeated:repeat_words", "simcse_cli.augmentations")
    offered = EntryPoints((objective, repeat))
    monkeypatch.setattr(metadata, "entry_points", lambda **wanted: offered.select(**wanted))
    monkeypatch.syspath_prepend(folder)
    assert find_objective("margin").__name__ == "Margin"
    (twice,) = word_augmenter(AugmentOptions(method="twice:1.0")).many(["a b"], [3])
    assert twice == "a a b b"
    with pytest.raises(
        UsageError, match=r"'margn' is no objective; need one of .*mlm.*, margin, or FILE"
    ):
        find_objective("margn")


def test_a_package_that_cannot_be_imported_is_named(folder, monkeypatch):
    Path("broken_package.py").write_text("1 / 0\n")
    objective = EntryPoint("broken", "broken_package:Method", "simcse_cli.objectives")
    change = EntryPoint("breaks", "broken_package:change", "simcse_cli.augmentations")
    offered = EntryPoints((objective, change))
    monkeypatch.setattr(metadata, "entry_points", lambda **wanted: offered.select(**wanted))
    monkeypatch.syspath_prepend(folder)
    why = "of an installed package cannot be imported: ZeroDivisionError: division by zero"
    with pytest.raises(ConfigError, match=f"--objective broken: broken_package:Method {why}") as no:
        find_objective("broken")
    assert no.value.hint == "python -c 'import broken_package' shows where"
    with pytest.raises(ConfigError, match=f"augmentation breaks: broken_package:change {why}"):
        word_augmenter(AugmentOptions(method="breaks"))


def test_the_augmentation_of_the_page_repeats_words(folder, invoke, tiny_model_dir):
    run = invoke(
        *("augment", "rows.txt", "-o", "pairs.tsv", "--workers", 2),
        *("--method", "crop:0.1+repeated.py:repeat_words:0.5"),
    )
    assert run.exit_code == 0, run.stderr
    pairs = [line.split("\t") for line in Path("pairs.tsv").read_text().splitlines()[1:]]
    longer = 0
    for anchor, positive in pairs:
        assert set(positive.split()) <= set(anchor.split())
        longer += max(Counter(positive.split()).values()) > max(Counter(anchor.split()).values())
    assert longer > len(pairs) / 3
    manifest = json.loads(Path("pairs.tsv.manifest.json").read_text())
    assert manifest["settings"]["code"] == {"repeated.py": code.sha256_file("repeated.py")}

    trained = invoke(
        *run_of(tiny_model_dir, "--augment", "repeated.py:repeat_words:0.5", "-o", "run")
    )
    assert trained.exit_code == 0, trained.stderr
    record = json.loads(Path("run/run.json").read_text())
    assert list(record["data"]["code_files"]) == ["repeated.py"]


@pytest.mark.parametrize("rate", ["0.0", "0.25"])
def test_a_function_gets_the_rate_that_was_typed(folder, rate):
    Path("shown.py").write_text("def show(text, rng, rate): return str(rate)\n")
    augmenter = word_augmenter(AugmentOptions(method=f"shown.py:show:{rate}"))
    assert augmenter.many(["a text"], [1]) == [rate]
    augmenter = word_augmenter(AugmentOptions(method="shown.py:show", rate=float(rate)))
    assert augmenter.many(["a text"], [1]) == [rate]
    with pytest.raises(ConfigError, match="rates stand behind the methods"):
        word_augmenter(AugmentOptions(method="shown.py:show:0.5", rate=0.5))


def test_functions_of_packages_are_found_once_and_take_the_rate_of_the_option(folder, monkeypatch):
    Path("graded.py").write_text(
        "def rated(text, rng, rate): return str(rate)\ndef plain(text, rng): return text\n"
    )
    offered = EntryPoints(
        EntryPoint(name, f"graded:{name}", "simcse_cli.augmentations")
        for name in ("rated", "plain")
    )
    searches = []

    def search(**wanted):
        searches.append(wanted)
        return offered.select(**wanted)

    monkeypatch.setattr(metadata, "entry_points", search)
    monkeypatch.syspath_prepend(folder)
    augmenter = word_augmenter(AugmentOptions(method="rated", rate=0.5))
    n_searches = len(searches)
    assert augmenter.many(["a", "b"], [1, 2]) == ["0.5", "0.5"]
    assert len(searches) == n_searches
    with pytest.raises(
        ConfigError, match=r"plain: plain\(text, rng\) is called with text, rng, rate"
    ):
        word_augmenter(AugmentOptions(method="plain", rate=0.5))


def test_a_worker_that_ends_is_an_error_that_says_how_to_see_why(folder, invoke):
    Path("ending.py").write_text("import os\ndef end(text, rng): os._exit(3)\n")
    Path("many.txt").write_text("a text\n" * 8000)
    words = ("augment", "many.txt", "--method", "ending.py:end", "-o", "o.csv", "--workers", "2")
    run = invoke(*words)
    assert run.exit_code == 1
    assert "a worker process has ended" in run.stderr
    assert "--workers 1" in run.stderr
    assert not Path("o.csv").exists()


def test_a_function_cannot_break_the_rows_of_a_table(folder, invoke):
    Path("breaking.py").write_text("def tabs(text, rng): return text.replace(' ', '\\t\\n')\n")
    run = invoke("augment", "rows.txt", "--method", "breaking.py:tabs", "-o", "pairs.tsv")
    assert run.exit_code == 0, run.stderr
    for line in Path("pairs.tsv").read_text().splitlines()[1:]:
        anchor, positive = line.split("\t")
        assert positive == anchor


@pytest.mark.parametrize("step", ["plain.py:upper", "plain.py:shout:0.5"])
def test_a_function_with_other_arguments_is_an_error_before_the_work(folder, step):
    Path("plain.py").write_text("def upper(text): pass\ndef shout(text, rng): pass\n")
    with pytest.raises(ConfigError, match=r"plain\.py:\w+: \w+\(text.*called with text, rng"):
        word_augmenter(AugmentOptions(method=step))


def test_a_function_that_returns_no_text_is_an_error(folder):
    Path("none.py").write_text("def lose(text, rng): return None\n")
    augmenter = word_augmenter(AugmentOptions(method="none.py:lose"))
    with pytest.raises(ConfigError, match=r"none\.py:lose: returned NoneType, need a text"):
        augmenter.many(["a b"], [1])


def test_an_objective_is_checked_before_it_is_used():
    with pytest.raises(ConfigError, match="is no subclass of Objective"):
        check_objective(dict, "here")
    assert simcse_cli.Objective is Objective


def test_a_loss_that_is_not_finite_at_step_1_is_the_fault_of_the_class(
    folder, invoke, tiny_model_dir
):
    Path("own.py").write_text(
        "from simcse_cli import Simcse\n"
        "class Nan(Simcse):\n"
        "    def contrast(self, views, texts=None): return (views[0] * float('nan')).sum()\n"
    )
    run = invoke(*run_of(tiny_model_dir, "--objective", "own.py:Nan", "-o", "run"))
    assert run.exit_code == 1
    assert "the loss of step 1 is nan" in run.stderr
    assert "fix: correct own.py:Nan: no weight has changed before step 1" in run.stderr
    ours = invoke(*run_of(tiny_model_dir, "--temperature", 1e-40, "-o", "ours"))
    assert "new -o and a higher --temperature\n" in ours.stderr
