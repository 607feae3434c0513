"""The public Python interface: `load` and what it returns."""

import ast
import json
import random
import re
import subprocess
import sys
import time
import traceback
import warnings
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import pairwise
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import torch

import simcse_cli
from helpers import SENTENCES, plain_vectors
from processes import run_on_processes
from simcse_cli.api import BatchEncoder, Embedder
from simcse_cli.encoding.search_index import SearchIndex
from simcse_cli.errors import (
    CheckpointError,
    ConfigError,
    DataError,
    OutputError,
    SimcseError,
    TrainingError,
    hints_in_python,
)
from simcse_cli.models.encode import ReadyEncoder
from simcse_cli.results.runs import read_run_record
from simcse_cli.settings.choices import Precision
from simcse_cli.training import loop

PAGE = Path(__file__).resolve().parent.parent / "docs" / "python.md"


@pytest.fixture
def embedder(tiny_model_dir):
    return simcse_cli.load(tiny_model_dir, pooler="avg", device="cpu")


def test_encode_equals_one_sentence_at_a_time(embedder, tiny_model_dir):
    expected = plain_vectors(tiny_model_dir, "avg", SENTENCES)
    vectors = embedder.encode(SENTENCES)
    np.testing.assert_allclose(vectors, expected, atol=1e-5)
    np.testing.assert_array_equal(embedder.encode(SENTENCES[3]), embedder.encode([SENTENCES[3]])[0])
    assert vectors.shape == (len(SENTENCES), embedder.dim)
    np.testing.assert_allclose(
        np.linalg.norm(embedder.encode(SENTENCES, normalize=True), axis=1), 1, atol=1e-6
    )


def test_a_batch_has_the_tokens_of_so_many_of_the_longest_texts(tiny_model_dir, monkeypatch):
    """Of 64 sub-words each, as long as the model allows, or of ``max_length``."""
    embedder = simcse_cli.load(tiny_model_dir, pooler="avg", device="cpu", batch_tokens=7)
    asked = []

    def encode(_, texts, **how):
        asked.append((how["batch_tokens"], how.get("max_length"), how.get("normalize", False)))
        return np.ones((len(texts), 2), np.float32)

    monkeypatch.setattr(ReadyEncoder, "encode", encode)
    embedder.index(["b"])
    assert asked.pop() == (7, None, False)
    for how in (
        {},
        {"batch_size": 3},
        {"batch_size": 3, "max_length": 5, "normalize_embeddings": True},
    ):
        embedder.encode(["a"], **how)
    assert asked == [(7, None, False), (192, None, False), (15, 5, True)]


def bf16():
    return torch.autocast("cpu", torch.bfloat16)


def test_vectors_have_the_precision_of_the_model_under_autocast(embedder):
    expected = embedder.encode(SENTENCES)
    with bf16():
        np.testing.assert_array_equal(embedder.encode(SENTENCES), expected)


def test_similarity_is_the_cosine_of_texts_or_vectors(embedder, tiny_model_dir):
    vectors = plain_vectors(tiny_model_dir, "avg", SENTENCES[:5])
    units = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    expected = units[:2] @ units[2:].T
    np.testing.assert_allclose(
        embedder.similarity(SENTENCES[:2], SENTENCES[2:5]), expected, atol=1e-5
    )
    np.testing.assert_allclose(embedder.similarity(vectors[:2], vectors[2:]), expected, atol=1e-6)
    np.testing.assert_allclose(
        embedder.similarity(SENTENCES[0], SENTENCES[2:5]), expected[0], atol=1e-5
    )
    assert float(embedder.similarity(SENTENCES[1], SENTENCES[4])) == pytest.approx(
        expected[1, 2], abs=1e-5
    )
    many = np.random.default_rng(0).normal(
        size=(200, 16)
    )  # the cosine of some with itself is rounded up
    assert (embedder.similarity(many, many).max(), embedder.similarity(many, -many).min()) == (
        1,
        -1,
    )


@pytest.mark.parametrize("texts", [["12", "7"], ["A cat.", "Dogs run."]])
def test_similarity_takes_any_column_of_texts(embedder, texts):
    """An array of digits is no array of numbers."""
    expected = embedder.similarity(texts, ["11", "8", "A dog."])
    assert expected.shape == (2, 3)
    columns = [np.array(texts), np.array(texts, dtype=object), list(np.array(texts))]
    columns += [pd.Series(texts), pd.Series(texts, dtype="string").to_numpy()]
    columns += [pd.Series(texts, dtype="string").array, pa.array(texts), iter(texts)]
    for column in columns:
        found = embedder.similarity(column, ["11", "8", "A dog."])
        np.testing.assert_allclose(found, expected, atol=1e-6)


def test_similarity_takes_vectors_of_any_real_numbers(embedder):
    vectors = np.array([[3, 4], [1, 0]])
    for given in (vectors, vectors.astype(np.int8), vectors.astype(np.float16), vectors > 1):
        plain = given.astype(float)
        units = plain / np.linalg.norm(plain, axis=1, keepdims=True).clip(1)
        found = embedder.similarity(given, given)
        np.testing.assert_allclose(found, units @ units.T, atol=1e-6)


@pytest.mark.parametrize("backend", ["exact", "faiss"])
def test_search_ranks_by_cosine_in_texts_and_in_a_saved_index(embedder, tmp_path, backend):
    if backend == "faiss":
        pytest.importorskip("faiss")
    cosines = embedder.similarity(SENTENCES[0], SENTENCES)
    order = np.argsort(-cosines, kind="stable")[:4].tolist()
    assert [len(found) for found in embedder.search(SENTENCES[:2], SENTENCES)] == [10, 10]
    found = embedder.search(SENTENCES[0], SENTENCES, k=4, keep_identical=True)
    assert [each.row for each in found] == order
    assert [each.sentence for each in found] == [SENTENCES[row] for row in order]
    assert [each.cosine for each in found] == pytest.approx(cosines[order].tolist(), abs=1e-6)
    embedder.index(SENTENCES, backend=backend).save(tmp_path / "some.index")
    index = SearchIndex.load(tmp_path / "some.index")
    (found,) = embedder.search(SENTENCES[:1], index, k=4, keep_identical=True)
    assert [each.row for each in found] == order
    (others,) = embedder.search(SENTENCES[:1], index, k=3)  # as the command does
    equal = [row for row in order if SENTENCES[row] == SENTENCES[0]]
    assert equal
    assert [each.row for each in others] == [row for row in order if row not in equal][:3]


@pytest.mark.parametrize("kind", [str, Path])
def test_the_file_of_an_index_is_to_be_opened_first(embedder, tmp_path, kind):
    file = kind(tmp_path / "some.index")
    embedder.index(SENTENCES).save(file)
    with pytest.raises(DataError, match=r"some\.index is the file of an index") as caught:
        embedder.search("dogs", file)
    assert caught.value.hint == f"give SearchIndex.load({str(file)!r})"
    assert embedder.search("dogs", 60 * "long ", k=1)


def test_search_refuses_the_index_of_another_model(embedder, tiny_model_dir):
    other = simcse_cli.load(tiny_model_dir, pooler="cls_before_pooler", device="cpu")
    with pytest.raises(
        DataError,
        match=r"was made by .* with pooler (avg|cls_before_pooler), not (avg|cls_before_pooler)",
    ):
        embedder.search("A man", other.index(SENTENCES))


def test_batches_get_vectors_beside_their_columns(embedder, tiny_model_dir):
    settings = {"pooler": "avg", "device": "cpu"}
    batch = {"id": np.arange(3), "body": np.array(SENTENCES[:3], dtype=object)}
    for given in ({}, {"normalize": True}):
        encode = BatchEncoder(tiny_model_dir, column="body", to="v", **given, **settings)
        found = encode(batch)
        assert list(found) == ["id", "body", "v"]
        np.testing.assert_array_equal(found["v"], embedder.encode(SENTENCES[:3], **given))
    with pytest.raises(DataError, match=r"a batch has the columns id, need body"):
        encode({"id": np.arange(3)})


def test_a_text_that_is_cut_is_warned_of_in_a_search_too(embedder):
    with pytest.warns(UserWarning, match=r"cut 1 text at 64 sub-words") as caught:
        embedder.search("a cat", ["a dog", "cat " * 100])
    assert len(caught) == 1


def test_a_length_beyond_that_of_the_model_is_warned_of(embedder):
    with pytest.warns(UserWarning, match=r"max_length=65: .* reads at most 64 sub-words") as caught:
        embedder.encode("a cat", max_length=65)
    assert [warning.filename for warning in caught] == [__file__]
    with warnings.catch_warnings(action="error"):
        embedder.encode("a cat", max_length=64)


def test_load_passes_on_what_is_wrong(tmp_path):
    with pytest.raises(CheckpointError, match=r"no config\.json"):
        simcse_cli.load(tmp_path)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"pooler": "avgg"}, "pooler 'avgg', need one of cls, "),
        ({"precision": "fp8"}, "precision 'fp8', need one of "),
        ({"long": "middle"}, "long 'middle', need one of cut, mean"),
    ],
)
def test_load_names_the_choices(wrong, message, tiny_model_dir):
    with pytest.raises(ConfigError, match=message):
        Embedder.load(tiny_model_dir, **wrong)


def test_the_package_is_light_until_something_is_loaded():
    code = (
        "import sys, simcse_cli\nheavy = {'torch', 'transformers', 'numpy'} & "
        "set(sys.modules)\nassert not heavy, heavy\nassert callable(simcse_cli.load)\ntry:\n  "
        "  simcse_cli.nothing\nexcept AttributeError as error:\n    assert 'nothing' in "
        "str(error)\nelse:\n    raise SystemExit('found')"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_the_page_lists_what_is_public():
    methods = {name for name in vars(Embedder) if not name.startswith("_")}
    listed = set()
    for line in PAGE.read_text(encoding="utf-8").splitlines():
        if line.startswith("| `"):
            listed |= set(re.findall(r"`(?:encoder\.)?(\w+)[`(]", line.split(" | ")[0] + "`"))
    assert listed == methods | set(simcse_cli.__all__) | {"Neighbour", "SearchIndex", "SimcseError"}


def test_load_documents_every_precision():
    about = Embedder.load.__doc__.split("precision: ")[1].split("batch_tokens: ")[0]
    assert set(re.findall(r"``(\w+)``", about)) == set(Precision)


def test_the_page_names_every_module_of_losses():
    named = PAGE.read_text(encoding="utf-8").split("## Loss functions")[1].split("```")[0]
    folder = Path(simcse_cli.__file__).parent / "losses"
    modules = {path.stem for path in folder.glob("*.py")} - {"__init__", "similarity"}
    assert set(re.findall(r"`(\w+)`", named)) - {"angle", "help"} == modules


def test_the_examples_of_the_page_run(tiny_model_dir, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("captions.txt").write_text("\n".join(SENTENCES), encoding="utf-8")
    rows = [f"{a},{b}\n" for a, b in pairwise(SENTENCES)]
    Path("nli.csv").write_text("anchor,positive\n" + "".join(rows), encoding="utf-8")
    scored = [f"{row.strip()},{i % 5}\n" for i, row in enumerate(rows)]
    Path("sts-dev.csv").write_text(
        "sentence1,sentence2,score\n" + "".join(scored), encoding="utf-8"
    )
    load, train = simcse_cli.load, simcse_cli.train
    short = {"model": str(tiny_model_dir), "max_steps": 2, "device": "cpu"}
    mine = simcse_cli.mine_hard_negatives
    tiny = {"model": str(tiny_model_dir), "pooler": "avg", "ranks": "0:20", "margin": -2.0}
    monkeypatch.setattr(
        "simcse_cli.api.mine_hard_negatives", lambda *paths, **given: mine(*paths, **given | tiny)
    )
    monkeypatch.setattr(
        "simcse_cli.api.train_model", lambda path, **given: train(path, **given | short)
    )
    monkeypatch.setattr(
        Embedder, "load", lambda _="": load(tiny_model_dir, pooler="avg", device="cpu")
    )
    for block in re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL):
        exec(compile(ast.parse(block), str(PAGE), "exec"), {"print": lambda *_: None})


@pytest.mark.filterwarnings(
    "ignore:training did not improve"
)  # a random model may not, in three steps
def test_training_is_the_run_of_the_command_and_reports_every_step(
    tiny_model_dir, invoke, tmp_path
):
    pairs = tmp_path / "dev.csv"
    rows = (f"{left},{SENTENCES[row * 7 % 24]},{row % 5}\n" for row, left in enumerate(SENTENCES))
    pairs.write_text("sentence1,sentence2,score\n" + "".join(rows))
    (tmp_path / "rows.txt").write_text("".join(f"{sentence}\n" for sentence in SENTENCES))
    settings = {
        "model": str(tiny_model_dir),
        "train_file": str(tmp_path / "rows.txt"),
        "dev_file": str(pairs),
        "pooler": "avg",
        "max_steps": 3,
        "eval_every": 1,
        "device": "cpu",
    }
    steps, scores = [], []
    run = simcse_cli.train(
        tmp_path / "python",
        **settings,
        on_step=lambda step, result: steps.append((step, result.loss)),
        on_eval=lambda step, score: scores.append((step, score.score)),
    )
    flags = (
        part for name, value in settings.items() for part in (f"--{name.replace('_', '-')}", value)
    )
    outcome = invoke("train", *flags, "-o", tmp_path / "command")
    assert outcome.exit_code == 0, outcome.stderr
    weights = [tmp_path / name / "model" / "model.safetensors" for name in ("python", "command")]
    assert weights[0].read_bytes() == weights[1].read_bytes()
    assert [step for step, _ in steps] == [1, 2, 3]
    assert [step for step, _ in scores] == [0, 1, 2, 3]
    assert [each.dev_score for each in run.metrics] == [score for _, score in scores]
    assert run.load(device="cpu").digest == run.record.model_digest
    with pytest.raises(CheckpointError, match="records --pooler avg"):
        run.load(pooler="cls_before_pooler")
    with pytest.raises(OutputError, match="holds a run") as refused:
        simcse_cli.train(tmp_path / "python", **settings)
    hint = "resume it with resume=True, choose another folder, or replace it with force=True"
    assert refused.value.hint == hint
    assert simcse_cli.train(tmp_path / "python", **settings, resume=True).record == run.record
    again = simcse_cli.train(tmp_path / "python", **settings | {"max_steps": 1}, force=True)
    assert [each.step for each in again.metrics if each.dev_score is not None] == [0, 1]


def fail_at_first_step(step: int, result: object) -> None:
    raise ValueError("wrong")


def test_a_forced_training_that_fails_early_leaves_the_earlier_run(tiny_model_dir, tmp_path):
    texts = tmp_path / "train.txt"
    texts.write_text("\n".join(f"This is sentence {number}." for number in range(8)))
    settings = {
        "model": tiny_model_dir,
        "train_file": texts,
        "batch_size": 4,
        "device": "cpu",
        "save_every": 1,
    }
    folder = tmp_path / "run"
    simcse_cli.train(folder, **settings, max_steps=2)
    (folder / "results").mkdir()
    (folder / "results" / "sts.json").write_text("{}")

    def files() -> dict[Path, bytes]:
        return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}

    # An error before the first saved step of the new run brings back every file of the earlier one.
    earlier = files()
    with pytest.raises(ValueError, match="wrong"):
        simcse_cli.train(folder, **settings, seed=7, force=True, on_step=fail_at_first_step)
    assert files() == earlier
    with pytest.raises(TrainingError, match="the loss of step 1"):
        simcse_cli.train(folder, **settings, temperature=1e-300, force=True)
    assert files() == earlier

    # An error after it keeps the new run.
    def fail_later(step: int, result: object) -> None:
        if step == 2:
            raise ValueError("wrong")

    with pytest.raises(ValueError, match="wrong"):
        simcse_cli.train(folder, **settings, seed=7, max_steps=3, force=True, on_step=fail_later)
    assert not (folder / "results").exists()
    assert simcse_cli.train(folder, resume=True).record.step == 3
    assert not (folder / ".earlier").exists()


def train_in_group(rank: int, folder: str, settings: dict[str, object]) -> tuple[str, str | None]:
    complete = loop.complete_record
    if rank == 0:  # the folder is complete a second after the last step
        loop.complete_record = lambda *given: (time.sleep(1), complete(*given))
    record = simcse_cli.train(folder, **settings).record
    return record.status, record.model_digest


def test_all_processes_of_a_training_return_the_finished_run(tiny_model_dir, tmp_path):
    (tmp_path / "rows.txt").write_text("".join(f"{sentence}\n" for sentence in SENTENCES))
    settings = {
        "model": str(tiny_model_dir),
        "train_file": str(tmp_path / "rows.txt"),
        "max_steps": 1,
        "device": "cpu",
    }
    run = tmp_path / "run"
    returned = run_on_processes(train_in_group, tmp_path, str(run), settings)
    assert returned == 2 * [("finished", read_run_record(run).model_digest)]


def test_training_in_another_thread_leaves_signals_to_the_main_one(tiny_model_dir, tmp_path):
    (tmp_path / "rows.txt").write_text("".join(f"{sentence}\n" for sentence in SENTENCES))
    settings = {"model": str(tiny_model_dir), "train_file": str(tmp_path / "rows.txt")}
    with ThreadPoolExecutor(1) as pool:
        run = pool.submit(simcse_cli.train, tmp_path / "run", **settings, max_steps=1).result()
    assert run.record.status == "finished"


def test_a_wrong_setting_of_training_is_named(tmp_path):
    with pytest.raises(ConfigError, match="train: unknown key 'batchsize'"):
        simcse_cli.train(tmp_path / "run", batchsize=3)
    with pytest.raises(ConfigError, match="unknown key 'dual_encoder'") as failure:
        simcse_cli.train(tmp_path / "run", dual_encoder=True)
    assert failure.value.hint == 'give options={"dual_encoder": True}'
    with pytest.raises(ConfigError, match="unknown key 'learning_rate'") as failure:
        simcse_cli.train(tmp_path / "run", learning_rate=1)
    assert failure.value.hint == "give lr=3e-5, for example"


def test_public_names_are_listed():
    classes = ["Batch", "BatchEncoder", "Embedder", "Losses", "Objective", "ObjectiveOptions"]
    functions = ["evaluate", "load", "mine_hard_negatives", "setting", "train"]
    assert dir(simcse_cli) == [*classes, "Simcse", *functions]
    assert all(getattr(simcse_cli, name) is not None for name in simcse_cli.__all__)


def test_texts_may_be_anything_that_yields_texts(embedder):
    texts = SENTENCES[:5]
    expected = embedder.encode(texts, normalize=True)
    columns = [iter(texts), tuple(texts), np.array(texts), pd.Series(texts, index=[7, 8, 9, 3, 1])]
    columns += [pa.array(texts), pa.chunked_array([texts[:2], texts[2:]])]
    for given in columns:
        found = embedder.encode(given, normalize_embeddings=True, batch_size=2)
        np.testing.assert_allclose(found, expected, atol=1e-6)
    found = embedder.search(iter(texts), (text for text in texts), k=1, keep_identical=True)
    assert [each[0].row for each in found] == [0, 1, 2, 3, 4]


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        (["a", None], r"texts\[1\] is a missing value \(None\)"),
        (pd.Series(["a", "b", float("nan")]), r"texts\[2\] is a missing value \(nan\)"),
        ([("a", "b")], r"texts\[0\] is a tuple \(\('a', 'b'\)\)"),
        ([3], r"texts\[0\] is an int"),
        ([[*range(20)]], r"texts\[0\] is a list \(\[0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 1\)"),
        (pd.DataFrame({"text": ["a"]}), "found a DataFrame"),
        ({"text": "a"}, "found a dict"),
    ],
)
def test_what_is_no_text_is_named_by_its_position(embedder, texts, message):
    with pytest.raises(DataError, match=message) as raised:
        embedder.encode(texts)
    if "texts" in message:
        is_pair = "tuple" in message or "list" in message
        hint = (
            "encode both sides of pairs"
            if is_pair
            else "leave it out, or give '' for an empty text"
        )
        assert raised.value.hint.startswith(hint)


def test_an_embedder_says_what_it_is(embedder):
    assert (
        repr(embedder)
        == f"Embedder({str(embedder._encoder.name)!r}, pooler='avg', dim={embedder.dim})"
    )


def test_progress_is_shown_only_when_asked_for(embedder, capsys):
    embedder.search(SENTENCES[0], SENTENCES)
    assert capsys.readouterr() == ("", "")
    embedder.encode(SENTENCES, show_progress_bar=True)
    shown = capsys.readouterr()
    assert shown.out == ""
    assert "encod" in shown.err


def test_evaluation_is_that_of_the_command(tiny_model_dir, sts_folder, invoke):
    settings = {"tasks": "STS12", "ci": True, "pooler": "avg"}
    found = simcse_cli.evaluate(
        tiny_model_dir, "sts", data_dir=sts_folder, device="cpu", **settings
    )
    outcome = invoke(
        *("eval", "sts", "--model", tiny_model_dir, "--data-dir", sts_folder, "--device", "cpu"),
        *("--tasks", "STS12", "--ci", "--pooler", "avg", "--format", "json"),
    )
    command = json.loads(outcome.stdout)
    for timing in ("seconds", "sentences_per_second"):
        found.pop(timing), command.pop(timing)
    assert found == command
    assert type(found["pooler"]) is str  # as JSON has it


def test_evaluation_keeps_a_file_unless_forced(tiny_model_dir, sts_folder, tmp_path):
    (tmp_path / "fit.txt").write_text("".join(f"{sentence}\n" for sentence in SENTENCES))
    settings = {"tasks": "STS12", "pooler": "avg", "device": "cpu", "data_dir": sts_folder}
    settings |= {"postprocess": "all-but-the-top:1", "fit": str(tmp_path / "fit.txt")}
    settings |= {"save_postprocess": tmp_path / "p.safetensors"}
    simcse_cli.evaluate(tiny_model_dir, **settings)
    with pytest.raises(OutputError, match=r"p\.safetensors exists already") as refused:
        simcse_cli.evaluate(tiny_model_dir, **settings)
    assert refused.value.hint == "choose another name, or overwrite it with force=True"
    simcse_cli.evaluate(tiny_model_dir, **settings, force=True)


def test_an_index_and_mined_rows_are_kept_unless_forced(tiny_model_dir, tmp_path):
    embedder = simcse_cli.load(tiny_model_dir, device="cpu", pooler="avg")
    index = embedder.index(SENTENCES)
    pairs = tmp_path / "pairs.csv"
    pairs.write_text("anchor,positive\nsome,more\n")
    hint = "choose another name, or overwrite it with force=True"
    for path, write in (
        (tmp_path / "some.index", index.save),
        (tmp_path / "rows.csv", partial(simcse_cli.mine_hard_negatives, str(pairs))),
    ):
        path.touch()
        with pytest.raises(OutputError, match="exists already") as refused:
            write(path)
        assert refused.value.hint == hint
    with pytest.raises(ConfigError, match="force='no': need True or False"):
        index.save(tmp_path / "some.index", force="no")
    index.save(tmp_path / "some.index", force=True)


def test_the_hint_on_another_pooler_names_the_argument(tiny_model_dir):
    (tiny_model_dir / "1_Pooling").mkdir()
    modes = {"word_embedding_dimension": 32, "pooling_mode_mean_tokens": True}
    (tiny_model_dir / "1_Pooling" / "config.json").write_text(json.dumps(modes))
    modules = [("", "Transformer"), ("1_Pooling", "Pooling")]
    listed = [
        {"idx": i, "name": str(i), "path": path, "type": f"sentence_transformers.models.{kind}"}
        for i, (path, kind) in enumerate(modules)
    ]
    (tiny_model_dir / "modules.json").write_text(json.dumps(listed))
    with pytest.raises(CheckpointError) as caught:
        simcse_cli.load(tiny_model_dir, pooler="cls_before_pooler", device="cpu")
    assert caught.value.hint == (
        "leave --pooler out, or use cls_before_pooler all the same with force_pooler=True"
    )


def test_evaluation_takes_a_list_of_tasks(tiny_model_dir, sts_folder):
    settings = {"data_dir": sts_folder, "pooler": "avg", "device": "cpu"}
    found = simcse_cli.evaluate(tiny_model_dir, tasks=["STS12", "STSBenchmark"], **settings)
    assert list(found["tasks"]) == ["STS12", "STSBenchmark"]


@pytest.mark.parametrize("error_type", [OutputError, DataError, CheckpointError, ConfigError])
def test_hints_in_python_leave_the_options_of_commands(error_type):
    typed = (
        "repeat `simcse encode a --force`, or start again with --force, or drop it with --resume"
    )
    with pytest.raises(error_type) as caught, hints_in_python():
        raise error_type("what", hint=typed)
    said = "repeat `simcse encode a --force`, or start again with force=True, or drop it with "
    assert caught.value.hint == f"{said}resume=True"
    with pytest.raises(error_type) as caught, hints_in_python():
        raise error_type("what")
    assert caught.value.hint is None


@pytest.mark.parametrize(
    ("suite", "settings", "message"),
    [
        ("sst", {}, "suite 'sst', need one of sts, transfer, mteb"),
        ("sts", {"datadir": "x"}, "evaluate sts: unknown key 'datadir'"),
        ("sts", {"columns": "left=A"}, "has no use without --pair-file"),
    ],
)
def test_a_wrong_setting_of_an_evaluation_is_named(suite, settings, message):
    with pytest.raises(SimcseError, match=message):
        simcse_cli.evaluate("minilm", suite, **settings)


def test_mining_is_that_of_the_command(tiny_model_dir, invoke, tmp_path):
    pairs = tmp_path / "pairs.csv"
    pairs.write_text("anchor,positive\n" + "".join(f"{a},{b}\n" for a, b in pairwise(SENTENCES)))
    settings = {
        "model": str(tiny_model_dir),
        "pooler": "avg",
        "device": "cpu",
        "ranks": "0:20",
        "margin": -2.0,
    }
    manifest = simcse_cli.mine_hard_negatives(pairs, tmp_path / "a.csv", **settings)
    flags = [
        f"--{'range' if name == 'ranks' else name}={value}" for name, value in settings.items()
    ]
    assert (
        invoke("prepare", "hard-negatives", pairs, "-o", tmp_path / "b.csv", *flags).exit_code == 0
    )
    assert (tmp_path / "a.csv").read_bytes() == (tmp_path / "b.csv").read_bytes()
    assert manifest["counts"]["kept"] == len((tmp_path / "a.csv").read_text().splitlines()) - 1


@pytest.mark.upkeep
def test_the_notebook_runs(tiny_model_dir, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    cells = json.loads((PAGE.parent / "own-table.ipynb").read_text(encoding="utf-8"))["cells"]
    namespace = {"print": lambda *_: None}
    for cell in cells:
        if cell["cell_type"] == "code":
            code = "".join(cell["source"]).replace('"minilm"', repr(str(tiny_model_dir)))
            exec(compile(ast.parse(code), "own-table.ipynb", "exec"), namespace)
    assert namespace["run"].record.best_score is not None


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda e: e.encode("a", batch_size=-3),
            "batch_size=-3: need a whole number of at least 1",
        ),
        (
            lambda e: e.encode("a", max_length=-1),
            "max_length=-1: need a whole number of at least 3",
        ),
        (lambda e: e.search("a", ["b"], k=0), "k=0: need a whole number of at least 1"),
        (lambda e: e.similarity(np.ones((2, 3)), np.ones(4)), "vectors of 3 and of 4 components"),
        (lambda e: e.encode(None), "need a text or several, found a missing value"),
        (
            lambda e: e.encode({"a", "b"}),
            "need texts in an order, as row i is of text i, found a set",
        ),
        (
            lambda e: e.encode(frozenset("a")),
            "in an order, as row i is of text i, found a frozenset",
        ),
        (lambda e: e.search("a", {"a", "b"}), "need texts in an order"),
        (lambda e: e.encode(["a", pd.NA]), r"texts\[1\] is a missing value"),
        (lambda e: e.encode(["a", pd.NaT]), r"texts\[1\] is a missing value"),
        (lambda e: e.encode(np.ones((2, 3))), r"texts\[0\] is a ndarray"),
        (lambda e: e.encode("a", prompt=5), "prompt=5: need a text"),
        (lambda e: e.index(["a"], prompt=5), "prompt=5: need a text"),
        (lambda e: e.index(["a"], backend="hnsw"), "backend 'hnsw', need one of exact, faiss"),
        (lambda e: e.encode("a", normalize="no"), "normalize='no': need True or False"),
        (lambda e: e.search("a", ["b"], keep_identical=0), "keep_identical=0: need True or False"),
        (lambda _: simcse_cli.evaluate("minilm", force="no"), "force='no': need True or False"),
        (
            lambda _: simcse_cli.mine_hard_negatives("a.csv", "b.csv", force="no"),
            "force='no': need True or False",
        ),
        (lambda _: simcse_cli.train("run", force="no"), "force='no': need True or False"),
        (lambda _: simcse_cli.train("run", resume=1), "resume=1: need True or False"),
    ],
)
def test_arguments_are_checked_as_options_are(embedder, call, message):
    with pytest.raises((ConfigError, DataError), match=message):
        call(embedder)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("truncate_dim", -5, "truncate_dim=-5: need a whole number of at least 1"),
        ("batch_tokens", 0, "batch_tokens=0"),
        ("prompt", 5, "prompt=5: need a text"),
        ("template", 5, "template=5: need a text"),
        ("force_pooler", "no", "force_pooler='no': need True or False"),
        ("device", "tpu", "need auto, cpu, cuda"),
    ],
)
def test_arguments_of_load_are_checked(tiny_model_dir, name, value, message):
    with pytest.raises(SimcseError, match=message):
        simcse_cli.load(tiny_model_dir, pooler="avg", **{name: value})


def test_a_traceback_shows_the_fix_below_the_message(tmp_path):
    with pytest.raises(CheckpointError) as caught:
        simcse_cli.load(tmp_path)
    lines = "".join(traceback.format_exception_only(caught.value)).splitlines()
    assert lines[1:] == [f"fix: {caught.value.hint}"]


@pytest.mark.parametrize(
    ("call", "message", "hint"),
    [
        (lambda e: e.encode(b"abc"), "need a text or several, found bytes", "make texts of bytes"),
        (lambda e: e.encode(["a", b"b"]), r"texts\[1\] is bytes", "make texts of bytes"),
        (
            lambda e: e.encode(np.array("a")),
            "need a text or several, found a nd",
            "give a text, or",
        ),
        (lambda e: e.encode([("a", "b")]), r"texts\[0\] is a tuple", "encode both sides of pairs"),
        (lambda e: e.search(e.encode("a"), ["b"]), r"texts\[0\] is a float32", "give the texts"),
        (lambda e: e.encode(np.ones((1, 2))), r"texts\[0\] is a ndarray", "give the texts"),
        (lambda e: e.encode([3]), r"texts\[0\] is an int", "leave it out"),
        (
            lambda e: e.similarity(torch.ones(2, e.dim), "c"),
            "similarity: found a Tensor, need texts or a NumPy array",
            "give vectors.numpy()",
        ),
        (
            lambda e: e.similarity("c", np.ones((2, e.dim)).tolist()),
            "similarity: found a list, need texts or a NumPy array",
            "give np.array(list(vectors), dtype=float)",
        ),
        (
            lambda e: e.similarity([np.ones(e.dim)], "c"),
            "found a list",
            "give np.array(list(vectors), dtype=float)",
        ),
        (
            lambda e: e.similarity([1.0, 2.0], "c"),
            "found a list",
            "give np.array(list(vectors), dtype=float)",
        ),
        (
            lambda e: e.similarity(np.ones((2, e.dim)).astype(object), "c"),
            "similarity: found a ndarray, need texts or a NumPy array",
            "give np.array(list(vectors), dtype=float)",
        ),
        (lambda e: e.similarity(np.array(3.0), "c"), r"an array of float64 of shape \(\)", "give"),
        (lambda e: e.similarity("c", np.ones((2, 3, 4))), r"of shape \(2, 3, 4\), need", "give"),
        (lambda e: e.similarity(np.ones((2, 3)) * 1j, "c"), "an array of complex128", "give"),
        (lambda e: e.similarity(np.array("abc"), "c"), "need a text or several", "give a text, or"),
        (lambda e: e.similarity(np.array([b"a"]), "c"), r"texts\[0\] is bytes", "make texts of"),
        (lambda e: e.encode(np.array([["a", "b"]])), r"texts\[0\] is a ndarray", "encode both"),
        (lambda e: e.encode([{"text": "a"}]), r"texts\[0\] is a dict", "give one column, such as"),
        (lambda e: e.similarity([("a", "b")], "c"), r"texts\[0\] is a tuple", "encode both sides"),
        (lambda e: e.similarity([None], "c"), r"texts\[0\] is a missing value", "leave it out"),
        (
            lambda e: e.encode("half \ud83d"),
            "holds half of a character",
            "give text.encode(errors=",
        ),
        (lambda _: simcse_cli.load(None), "model is a missing value", "give one, such as"),
        (lambda _: simcse_cli.train(None), "output is a missing value", "give one, such as"),
        (lambda _: simcse_cli.evaluate(3), r"model is an int \(3\)", "give one, such as"),
    ],
)
def test_wrong_arguments_have_a_fix_that_fits(embedder, call, message, hint):
    with pytest.raises((ConfigError, DataError), match=message) as caught:
        call(embedder)
    assert caught.value.hint.startswith(hint)


def test_an_augmentation_that_is_a_function_is_to_be_named_in_its_file(tmp_path):
    def twice(text, rng):
        return f"{text} {text}"

    with pytest.raises(ConfigError, match=r"train: augment is a function \(twice\)") as caught:
        simcse_cli.train(tmp_path / "run", augment=twice)
    assert caught.value.hint.endswith('augment="FILE.py:twice"')


@pytest.fixture
def short_run(tiny_model_dir, tmp_path):
    """Settings of a run of one step."""
    (tmp_path / "rows.txt").write_text("".join(f"{sentence}\n" for sentence in SENTENCES))
    settings = {"train_file": str(tmp_path / "rows.txt"), "model": str(tiny_model_dir)}
    return settings | {"max_steps": 1, "device": "cpu"}


def test_a_call_with_a_wrong_argument_leaves_the_finished_run(short_run, tmp_path):
    run = simcse_cli.train(tmp_path / "run", **short_run)
    for wrong in ({"on_step": 5}, {"on_eval": "x"}):
        (name,) = wrong
        with pytest.raises(ConfigError, match=f"train: {name} is an? .*, need a function"):
            simcse_cli.train(tmp_path / "run", force=True, **wrong, **short_run)
    assert run.load(device="cpu").digest == run.record.model_digest


def test_a_run_is_found_from_another_folder(short_run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run = simcse_cli.train("run", **short_run)
    monkeypatch.chdir("run")
    assert run.path == tmp_path / "run"
    assert run.load(device="cpu").digest == run.record.model_digest
    assert len(run.metrics) == 1


def test_training_keeps_the_random_generators_of_the_caller(short_run, tmp_path):
    def states():
        return random.getstate(), torch.get_rng_state().tolist(), str(np.random.get_state())

    def stop(*_):
        raise ValueError("stop")

    before = states()
    simcse_cli.train(tmp_path / "run", **short_run)
    assert states() == before
    with pytest.raises(ValueError, match="stop"):
        simcse_cli.train(tmp_path / "stopped", on_step=stop, **short_run)
    assert states() == before


@pytest.mark.parametrize("mode", [torch.inference_mode, torch.no_grad, bf16])
def test_training_is_the_same_wherever_it_is_called(short_run, tmp_path, mode):
    expected = simcse_cli.train(tmp_path / "plain", **short_run).record
    with mode():
        found = simcse_cli.train(tmp_path / "within", **short_run).record
    assert found.model_digest == expected.model_digest
