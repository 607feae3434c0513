"""What --help teaches: examples that parse, groups, defaults, choices, variables; and what a shell completes."""

import os
import re
import shlex
import subprocess
import sys

import pytest

from simcse_cli.commands import completion
from simcse_cli.commands.app import COMMANDS, build
from simcse_cli.commands.help import examples_of, help_page, main_options


def leaves(command, path=("simcse",)):
    for name, child in getattr(command, "commands", {}).items():
        yield from leaves(child, (*path, name))
    if not hasattr(command, "commands"):
        yield path, command


LEAVES = dict(leaves(build()))
each_command = pytest.mark.parametrize("path", LEAVES, ids=" ".join)


@each_command
@pytest.mark.parametrize("width", [80, 100])
def test_help_fits_and_breaks_no_word(invoke, monkeypatch, path, width):
    monkeypatch.setenv("COLUMNS", str(width))
    shown = invoke(*path[1:], "--help")
    assert shown.exit_code == 0
    assert max(len(line) for line in shown.stdout.splitlines()) <= width
    choices = [
        word
        for param in LEAVES[path].params
        for word in (param.metavar or "").split("|")
        if word.islower()
    ]
    assert all(
        re.search(rf"(?<![\\w-]){re.escape(word)}(?![\\w-])", shown.stdout) for word in choices
    ) or main_options(LEAVES[path])


@each_command
def test_command_has_examples_of_its_own_with_options_that_exist(path):
    _, examples = examples_of(LEAVES[path].help)
    assert examples
    for example in examples:
        words = shlex.split(example.split("|")[0])
        command = LEAVES[tuple(words[: len(path)])]
        assert command.help == LEAVES[path].help  # `analyze retrieval` is `analyze search`
        known = {name for param in command.params for name in (*param.opts, *param.secondary_opts)}
        assert {word for word in words if re.match(r"--?[a-z]", word)} <= known, example


def test_commands_stand_in_the_order_of_work(invoke):
    lines = invoke("--help").stdout.splitlines()
    listed = [line.split()[0] for line in lines[lines.index("Commands") + 1 :][: len(COMMANDS)]]
    assert listed == ["prepare", "augment", "train", "eval", "encode", "analyze", "compare"]


def test_the_first_page_says_of_each_command_what_its_own_page_says_first():
    for name, command in build().commands.items():
        paragraphs, _ = examples_of(command.help)
        assert paragraphs[0] == COMMANDS[name]


@pytest.mark.parametrize(
    ("arguments", "loaded"), [(["-h"], set()), (["eval", "sts", "-h"], {"eval"})]
)
def test_only_the_command_that_is_called_is_imported(arguments, loaded):
    """A page without conversions does not import pydantic either."""
    code = (
        "import sys\nfrom simcse_cli.commands.app import COMMANDS, main\ntry:\n    "
        f"main({arguments!r})\nexcept SystemExit:\n    pass\n"
        "names = {name for name in COMMANDS if f'simcse_cli.commands.{name}' in sys.modules}\n"
        f"assert names == {loaded!r}, names\nassert 'pydantic' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.DEVNULL)


def test_train_shows_the_main_options_on_a_screen_and_a_half_and_names_the_others(
    invoke, monkeypatch
):
    monkeypatch.setenv("COLUMNS", "100")
    short, long = invoke("train", "--help").stdout, invoke("train", "--help-all").stdout
    assert len(short.splitlines()) <= 70
    flags = {max(param.opts, key=len) for param in LEAVES["simcse", "train"].params}
    assert all(flag in short for flag in flags)
    assert "Weight of an anchor's own hard negative." not in short
    assert "Weight of an anchor's own hard negative." in long


def test_defaults_choices_and_variables_are_shown(invoke):
    text = " ".join(invoke("eval", "sts", "--help").stdout.split())
    assert "[fp32, tf32, bf16, fp16, int8, auto] [default: fp32] [env: SIMCSE_PRECISION]" in text
    assert "[fp32, tf32, bf16, fp16, auto] [default: fp32]" in " ".join(
        invoke("train", "--help-all").stdout.split()
    )
    assert "[default: test]" in text
    assert "--cache / --no-cache" in text


def test_every_variable_of_an_option_is_named_at_the_root(invoke):
    root = invoke("--help").stdout
    variables = {
        str(param.envvar) for command in LEAVES.values() for param in command.params if param.envvar
    }
    assert {name for name in variables if name not in root} <= {"SIMCSE_WORDNET"}


def test_groups_of_eval_stand_in_the_order_of_use(invoke):
    headings = [
        line for line in invoke("eval", "sts", "--help").stdout.splitlines() if line[:1].isalpha()
    ]
    assert headings[1:4] == ["Examples", "Model", "Options"]
    assert headings[-2:] == ["Output", "Everywhere"]
    assert {"Word vectors", "Vectors from elsewhere", "Post-processing"} <= set(headings[4:-2])


@pytest.mark.parametrize(
    ("complete", "typed", "expected"),
    [
        (completion.recipe, "simcse-unsup-b", "simcse-unsup-bert-base"),
        (completion.model, "min", "minilm"),
        (completion.table, "simcse.5", "simcse.5"),
        (completion.tasks, "STS12,STSB", "STS12,STSBenchmark"),
    ],
)
def test_names_are_completed(complete, typed, expected):
    assert expected in complete(typed)


def test_tasks_are_offered_once():
    assert "MR,MR" not in completion.tasks("MR,")


def test_runs_are_completed_to_a_depth_of_two(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for folder in ("runs/a", "runs/b", "single"):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / "run.json").touch()
    (tmp_path / "other").mkdir()
    assert completion.run("") == ["runs/a", "runs/b", "single"]
    assert completion.run("runs/") == ["runs/a", "runs/b"]
    assert completion.run("runs/b") == ["runs/b"]
    assert completion.run("oth") == []


def test_a_shell_gets_completions_of_options_and_values():
    words = "simcse train --config simcse-unsup-r"
    environment = {"_SIMCSE_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": "3"}
    code = "from simcse_cli.commands.app import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert "simcse-unsup-roberta-base" in done.stdout.split(), done.stderr


def test_usage_names_what_is_required():
    command = LEAVES["simcse", "prepare", "demo"]
    assert (
        help_page(command.context_class(command, info_name="demo")).usage
        == "Usage: demo --output FOLDER [OPTIONS]"
    )


@pytest.mark.parametrize("path", [(), ("prepare",), ("eval",), ("augment",), ("compare",)])
def test_a_command_without_arguments_shows_its_help_and_no_error(invoke, path):
    outcome = invoke(*path)
    assert (outcome.exit_code, outcome.stderr) == (2, "")
    assert outcome.stdout.strip() == invoke(*path, "--help").stdout.strip()
