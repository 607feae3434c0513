"""How commands end: what Ctrl-C keeps, which command follows, and what is refused before it costs anything."""

import os
import re
import shlex
import sys
from contextlib import suppress

import pytest

from helpers import SENTENCES
from simcse_cli.commands.app import build, main
from simcse_cli.models.encode import ReadyEncoder


@pytest.fixture
def corpus(tmp_path):
    path = tmp_path / "corpus.txt"
    path.write_text("\n".join(SENTENCES) + "\n")
    return path


def interrupt(*_, **__):
    raise KeyboardInterrupt


@pytest.mark.skipif(sys.platform == "win32", reason="pipes end otherwise")
@pytest.mark.parametrize("words", ["prepare sentences FILE -o -", "analyze overlap FILE", "--help"])
def test_a_command_whose_reader_has_ended_ends_silently(words, tmp_path, monkeypatch, capfd):
    pairs = tmp_path / "pairs.csv"
    pairs.write_text("anchor,positive\na dog,a big dog\na cat,the cat\n")
    reader, writer = os.pipe()
    os.close(reader)
    closed = os.fdopen(writer, "w")
    monkeypatch.setattr(sys, "stdout", closed)
    with pytest.raises(SystemExit) as stop:
        main(["-q", *words.replace("FILE", str(pairs)).split()])
    with suppress(BrokenPipeError):  # of what is still in its buffer
        closed.close()
    assert stop.value.code == 141
    assert capfd.readouterr().err == ""


def test_ctrl_c_in_encode_says_what_is_kept_and_resume_goes_on(
    invoke, corpus, tiny_model_dir, tmp_path, monkeypatch
):
    call = ("encode", corpus, "-o", tmp_path / "v.npy", "-m", tiny_model_dir, "--pooler", "avg")
    with monkeypatch.context() as patch:
        patch.setattr(ReadyEncoder, "encode", interrupt)
        stopped = invoke(*call)
    assert stopped.exit_code == 130
    assert stopped.stderr.splitlines()[-2:] == [
        "stopped",
        "nothing is kept: sentences are kept 8,192 at a time",
    ]
    assert invoke(*call, "--resume").exit_code == 0


def test_ctrl_c_in_transfer_says_that_finished_tasks_are_kept(
    invoke, tiny_model_dir, tmp_path, monkeypatch
):
    from helpers import write_transfer_folder

    folder = write_transfer_folder(tmp_path / "senteval")
    monkeypatch.setattr(ReadyEncoder, "encode", interrupt)
    stopped = invoke(
        "eval",
        "transfer",
        "-m",
        tiny_model_dir,
        "--pooler",
        "avg",
        "--data-dir",
        folder,
        "--tasks",
        "MR",
    )
    assert stopped.exit_code == 130
    assert "finished tasks are kept; the same command continues" in stopped.stderr


def test_ctrl_c_in_mteb_says_where_finished_tasks_are(
    invoke, tiny_model_dir, sts_folder, tmp_path, monkeypatch
):
    pytest.importorskip("mteb")
    monkeypatch.setattr(ReadyEncoder, "encode", interrupt)
    stopped = invoke(
        *("eval", "mteb", "-m", tiny_model_dir, "--pooler", "avg", "--tasks", "STS12"),
        *("--data-dir", sts_folder, "--results-dir", tmp_path / "results"),
    )
    assert stopped.exit_code == 130
    said = f"finished tasks are kept in {tmp_path / 'results'}; the same command continues"
    assert stopped.stderr.splitlines()[-2:] == ["stopped", said]


@pytest.mark.parametrize(
    "arguments",
    [
        ("eval", "sts"),
        ("analyze", "geometry"),
        ("analyze", "density"),
        ("compare", "nothing.json"),
    ],
    ids=" ".join,
)
def test_ctrl_c_elsewhere_says_that_nothing_was_written(invoke, arguments, monkeypatch):
    monkeypatch.setattr("simcse_cli.commands.options.OutputOptions.check", interrupt)
    stopped = invoke(*arguments, "-o", "out.json")
    assert (stopped.exit_code, stopped.stderr) == (130, "stopped; nothing was written\n")


def next_commands(text):
    return re.findall(r"^next: (.*)$", text, re.MULTILINE)


def test_encode_names_the_search_once_and_it_works(invoke, corpus, tiny_model_dir, tmp_path):
    call = ("encode", corpus, "-o", tmp_path / "v.npy", "-m", tiny_model_dir, "--pooler", "avg")
    (command,) = next_commands(invoke(*call).stderr)
    found = invoke(*shlex.split(command)[1:], input="The cat sleeps.\n\n")
    assert found.exit_code == 0, found.stderr
    assert "Query: The cat sleeps." in found.stdout
    assert next_commands(invoke(*call, "-q", "--force").stderr) == []


def test_the_search_after_encode_reads_the_same_texts_with_the_same_encoder(
    invoke, tiny_model_dir, tmp_path
):
    table = tmp_path / "rows.txt"
    table.write_bytes("a;Öl\nb;A dog runs.\nc;The cat sleeps.\n".encode("latin-1"))
    reading = ("--column", "2", "--no-header", "--separator", ";", "--encoding", "latin-1")
    encoder = ("-m", tiny_model_dir, "--pooler", "avg", "--truncate-dim", "8")
    outcome = invoke("encode", table, *reading, *encoder, "-o", tmp_path / "v.npy")
    (command,) = next_commands(outcome.stderr)
    found = invoke(*shlex.split(command)[1:], input="Oil\n\n")
    assert found.exit_code == 0, found.stderr
    assert "Öl" in found.stdout
    assert "a;" not in found.stdout


def test_encode_with_an_index_names_its_search(invoke, corpus, tiny_model_dir, tmp_path):
    files = ("-o", tmp_path / "v.npy", "--index", tmp_path / "v.index")
    outcome = invoke("encode", corpus, *files, "-m", tiny_model_dir, "--pooler", "avg")
    (command,) = next_commands(outcome.stderr)
    found = invoke(*shlex.split(command)[1:], input="The cat sleeps.\n\n")
    assert found.exit_code == 0, found.stderr


def test_eval_names_compare_and_it_works(invoke, tiny_model_dir, sts_folder, tmp_path):
    call = ("eval", "sts", "-m", tiny_model_dir, "--pooler", "avg", "--data-dir", sts_folder)
    call += ("--tasks", "STS12,STS13")
    assert "-o FILE.json" in invoke(*call).stderr
    (command,) = next_commands(invoke(*call, "-o", tmp_path / "r.json").stderr)
    shown = invoke(*shlex.split(command)[1:])
    assert shown.exit_code == 0
    assert "simcse.5: SimCSE-BERT-base (unsupervised)" in shown.stdout
    assert next_commands(invoke(*call, "-f", "csv").stderr) == []
    # Nothing published stands beside the user's own pairs.
    pairs = tmp_path / "own.csv"
    pairs.write_text("left,right,score\nabc,abd,2\naab,aac,3\nxyz,abc,1\n")
    own = (*call[:6], "--pair-file", pairs, "-o", tmp_path / "own.json")
    outcome = invoke(*own)
    assert outcome.exit_code == 0, outcome.stderr
    assert next_commands(outcome.stderr) == []


@pytest.mark.parametrize(
    "arguments",
    [
        ("encode", "corpus.txt", "-m", "nowhere/model"),
        ("eval", "sts", "-m", "nowhere/model"),
        ("eval", "transfer", "-m", "nowhere/model", "--data-dir", "nothing"),
        ("analyze", "geometry", "-m", "nowhere/model", "--data-dir", "nothing"),
        ("analyze", "retrieval", "corpus.txt", "a query", "-m", "nowhere/model"),
        ("analyze", "trace", "nothing"),
        ("analyze", "report", "nothing"),
        ("compare", "nothing"),
        ("augment", "corpus.txt", "--method", "mlm", "-m", "nowhere/model"),
        ("prepare", "sentences", "corpus.txt"),
    ],
    ids=lambda words: " ".join(words[:2]),
)
def test_an_output_that_exists_is_refused_before_anything_is_opened(
    invoke, arguments, corpus, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    name = "out.npy" if arguments[0] == "encode" else "out.csv"
    (tmp_path / name).write_text("mine")
    outcome = invoke(*arguments, "-o", name)
    assert outcome.exit_code == 1
    assert f"{name} exists already" in outcome.stderr
    assert (tmp_path / name).read_text() == "mine"


def hints():
    """Yield every piece of text given as a hint anywhere in the program."""
    import ast
    from pathlib import Path

    import simcse_cli

    for path in sorted(Path(simcse_cli.__file__).parent.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.keyword) and node.arg == "hint":
                parts = [
                    part.value for part in ast.walk(node.value) if isinstance(part, ast.Constant)
                ]
                yield (
                    f"{path.name}:{node.value.lineno}",
                    "X".join(part for part in parts if isinstance(part, str)),
                )


def test_flags_and_commands_of_every_fix_exist():
    tree = build()
    leaves = [
        child
        for top in tree.commands.values()
        for child in getattr(top, "commands", {"": top}).values()
    ]
    names = {
        name
        for leaf in leaves
        for param in leaf.params
        for name in (*param.opts, *param.secondary_opts)
    }
    names |= {
        "--force-reinstall",
        "--no-deps",
        "--repo-type",
        "--local-dir",
        "--user",
        "--standalone",
        "--nproc_per_node",
        "--multi_gpu",
    }  # of pip, hf, accelerate and torchrun
    for place, text in hints():
        flags = set(re.findall(r"(?<![\w-])--[a-z][a-z_-]+", text))
        assert flags <= names, f"{place}: {flags - names}"
        for words in re.findall(r"simcse ((?:[a-z]+(?:-[a-z]+)* ?)+)", text):
            top = words.split()[0]
            if top in ("cli",):
                continue
            assert top in tree.commands, f"{place}: simcse {words}"
            children, rest = getattr(tree.commands[top], "commands", None), words.split()[1:]
            assert not children or not rest or rest[0] in children, f"{place}: simcse {words}"
