"""What a `fix:` line says is done: each error is provoked, and the command with the fix must work."""

import json
import re
import shlex
import shutil
from itertools import pairwise
from pathlib import Path

import pytest

from helpers import SENTENCES, build_tiny_model, with_options, write_sts_folder
from simcse_cli.commands.app import build
from simcse_cli.models.checkpoint import load_encoder
from simcse_cli.models.export import save_encoder

TINY = "-m bert --pooler avg"
MINE = "prepare hard-negatives pairs.csv -o o.csv --range 0:9 --margin 0 --force"
TRAIN = "train -m bert --batch-size 4 --max-steps 1 --dry-run"
OF_CT = f"{TRAIN} --objective ct".replace("--batch-size 4", "--batch-size 8")
# A command that fails, and what its fix says: a pattern whose match is added to the command; with a
# flag before a colon, the match is the value of that flag; `without FLAG`, which is to be left out;
# `simcse ...`, to be run first.
FIXES = [
    (f"encode text.txt -o mine.npy {TINY}", "--force"),
    (f"encode three.csv -o v.npy {TINY}", r"--column \w+"),
    (f"encode faq.csv --column Antwort -o v.npy {TINY}", r"--column \w+"),
    ("encode text.txt -o v.npy -m recorded --pooler cls_before_pooler", "--force-pooler"),
    ("encode text.txt -o v.npy -m recorded --pooler cls_before_pooler", "without --pooler"),
    (f"encode text.txt -o v.vec {TINY}", r"-o: \.npy"),
    ("augment three.csv --method delete -o o.csv", r"--column \w+"),
    ("augment text.txt --method delete:2 -o o.csv", r"--method: delete:0\.1"),
    ("augment text.txt --method delete -o mine.csv", "--force"),
    ("prepare sentences three.csv -o o.txt", r"--column \w+"),
    ("prepare sentences text.txt -o o.parquet", r"-o: \.txt"),
    ("prepare pairs three.csv -o o.csv", r"--columns \S+"),
    ("prepare pairs twice.csv -o o.csv --strict", "without --strict"),
    (f"{MINE} --corpus three.csv {TINY}", "simcse prepare"),
    ("analyze overlap three.csv", r"--columns \S+"),
    (f"analyze search three.csv --query rain {TINY}", r"--column \w+"),
    (f"analyze geometry --pair-file scored.csv {TINY}", r"--columns \S+"),
    (f"eval sts --pair-file scored.csv {TINY}", r"--columns \S+"),
    (f"eval sts --tasks STS12 --data-dir senteval --postprocess sif --fit three.csv {TINY}", "simcse prepare"),
    (f"eval transfer --task-file classes.csv --no-cache {TINY}", "--protocol fast"),
    (f"{TRAIN} --mode sup --train-file three.csv", r"--columns \S+"),
    (f"{TRAIN} --mode unsup --train-file three.csv", r"--columns? \S+"),
    (f"{TRAIN} --mode unsup --train-file text.txt --dev-suite sts", "--data-dir DIR"),
    (f"{TRAIN} --mode unsup --train-file text.txt --config simcse-unsup-bert-bas", r"--config: simcse[\w-]+"),
    (f"{TRAIN} --mode unsup --train-file text.txt --set serve_encoder=second", "--dual-encoder"),
    (f"{OF_CT} --train-file text.txt --temperature 0.1", "without --temperature"),
    (f"{TRAIN} --mode unsup --train-file text.txt --dropout-mode fixed --dual-encoder", "without --dual-encoder"),
    ("compare result.json --against simcse.5 --row SimCSE-BERT-base", r"--group \w+"),
    ("compare result.json --check --tolerance 100", "--against TABLE --row NAME"),
    ("compare result.json --measures STS21", r"--measures: STS\d\d"),
]  # fmt: skip
WORDS = {"TABLE": "simcse.5", "NAME": "SBERT-base", "DIR": "senteval"}


@pytest.fixture(scope="module")
def _place(tmp_path_factory):
    """Make small files of every kind."""
    place = tmp_path_factory.mktemp("fixes")
    build_tiny_model(place / "bert")
    save_encoder(load_encoder(place / "bert", pooler="avg", device="cpu"), place / "recorded")
    write_sts_folder(place / "senteval")
    pairs = list(pairwise(SENTENCES))
    for name, header, rows in (
        ("faq.csv", "Question,Answer", pairs),
        ("three.csv", "Erst,Dann,Zuletzt", [(*pair, f"{pair[0]} again") for pair in pairs]),
        ("pairs.csv", "anchor,positive", pairs),
        ("twice.csv", "anchor,positive", pairs[:3] * 2),
        (
            "scored.csv",
            "A,B,C,D",
            [(*pair, f"0.{i}", f"1.{i}") for i, pair in enumerate(pairs[:9], 1)],
        ),
        (
            "classes.csv",
            "text,label",
            [(f"{i} {text}", i > 10) for i, text in enumerate(SENTENCES * 2)][:35],
        ),
    ):
        lines = (",".join(f'"{cell}"' for cell in row) for row in rows)
        (place / name).write_text("\n".join((header, *lines)) + "\n")
    (place / "text.txt").write_text("\n".join(SENTENCES) + "\n")
    for name in ("mine.npy", "mine.csv"):
        (place / name).write_text("mine")
    tasks = {"STS12": {"n_pairs": 9, "score": 0.5, "spearman": {"all": 0.5}, "pearson": {}}}
    asked = {
        "suite": "sts",
        "metric": "spearman",
        "aggregation": "all",
        "split": "test",
        "pooler": "avg",
    }
    (place / "result.json").write_text(json.dumps(asked | {"model": "m", "tasks": tasks}))
    return place


@pytest.fixture
def place(_place, tmp_path, monkeypatch):
    monkeypatch.chdir(shutil.copytree(_place, tmp_path / "place"))
    return Path()


def with_fix(words, fix, hint):
    """Return the command with what the hint says, and the command to be run before, if there is one."""
    if fix.startswith("without "):
        flag = fix.removeprefix("without ")
        assert re.search(rf"(leave|leave out) .*{flag}", hint), hint
        at = words.index(flag)
        is_switch = flag in ("--strict", "--dual-encoder")
        return [*words[:at], *words[at + 2 - is_switch :]], None
    if fix.startswith("simcse "):
        first = re.search(r"`(simcse [^`]*)`", hint)[1]
        flag, value = shlex.split(hint.rpartition(", then ")[2])
        at = words.index(flag) + 1
        return [*words[:at], value, *words[at + 1 :]], shlex.split(first)[1:]
    flag, _, pattern = fix.rpartition(": ")
    found = re.search(pattern, hint)
    assert found, hint
    more = [WORDS.get(word, word) for word in shlex.split(found[0])]
    if flag == "-o":
        at = words.index("-o") + 1
        return [*words[:at], f"{Path(words[at]).stem}{more[0]}", *words[at + 1 :]], None
    if flag and flag in words:
        at = words.index(flag) + 1
        return [*words[:at], *more, *words[at + 1 :]], None
    return with_options(words, *more), None


@pytest.mark.parametrize(
    ("command", "fix"), FIXES, ids=[f"{c.split(' -')[0]}: {f}" for c, f in FIXES]
)
@pytest.mark.usefixtures("place")
def test_what_a_fix_says_works(invoke, command, fix):
    words = shlex.split(command)
    failed = invoke(*words)
    assert failed.exit_code in (1, 2), failed.stdout
    hint = failed.stderr.partition("fix: ")[2].strip()
    again, before = with_fix(words, fix, hint)
    if before is not None:
        assert invoke(*before).exit_code == 0, before
    done = invoke(*again)
    assert done.exit_code == 0, done.stderr


@pytest.mark.usefixtures("place")
@pytest.mark.parametrize(
    "command",
    [
        "compare result.json --against simcse.55",
        "compare result.json --against simcse.5 --row SimCSE-BRT",
        "compare broken.json",
        "eval sts --data-dir nothing -m bert",
        "eval sts --data-dir senteval -m bert --tasks STS13 --metric pearson",
        "encode text.txt -o v.npy -m unfinished",
        "train -o run --mode unsup -m bert --train-file text.txt --max-steps 1",
        "prepare pairs pairs.csv -o o.csv --check-leak nothing",
    ],
)
def test_a_command_that_a_fix_names_is_one_that_the_program_takes(invoke, command):
    Path("broken.json").write_text("{}")
    Path("unfinished").mkdir()
    Path("unfinished/config.yaml").touch()
    Path("run").mkdir()
    Path("run/config.yaml").touch()
    Path("senteval/downstream/STS/STS13-en-test/STS.gs.FNWN.txt").unlink()
    failed = invoke(*shlex.split(command))
    assert failed.exit_code == 1, failed.stderr
    hint = failed.stderr.partition("fix: ")[2]
    called = re.findall(r"`simcse ([^`]*)`", hint) or re.findall(
        r"^simcse (.*)$", hint, re.MULTILINE
    )
    assert called, hint
    for words in map(shlex.split, called):
        tree, context = build(), None
        while hasattr(tree, "commands"):
            context = tree.make_context(tree.name, [], parent=context, resilient_parsing=True)
            tree = tree.commands[words.pop(0)]
        tree.make_context(tree.name, words, parent=context)
