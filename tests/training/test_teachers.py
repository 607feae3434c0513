"""Teachers: whose vectors they give for which row, made once; what is refused."""

import json

import numpy as np
import pytest
import torch

from helpers import SENTENCES, build_tiny_model
from simcse_cli.errors import ConfigError, UsageError
from simcse_cli.models.checkpoint import load_encoder
from simcse_cli.models.encode import ReadyEncoder
from simcse_cli.objectives.registry import objective_defaults
from simcse_cli.progress import SilentProgress
from simcse_cli.settings.recipes import resolve_config
from simcse_cli.training.setup import build_parts
from simcse_cli.training.teachers import Teachers

ROWS = [(text,) for text in SENTENCES[:6]]


def cosines(vectors):
    units = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    return units @ units.T


def test_products_are_weighted_means_of_the_teachers_cosines(tmp_path):
    rng = np.random.default_rng(0)
    vectors = [rng.normal(size=(6, width)).astype(np.float32) for width in (3, 5)]
    named = []
    for number, own in enumerate(vectors):
        np.save(tmp_path / f"{number}.npy", own)
        named.append((str(tmp_path / f"{number}.npy"), (1.0, 3.0)[number]))
    teachers = Teachers(named, ROWS, "cpu", SilentProgress())
    assert teachers.dim == 8
    rows = np.array([4, 0, 2])
    found = teachers.of_rows(rows)[:, 0]
    expected = (cosines(vectors[0]) + 3 * cosines(vectors[1])) / 4
    torch.testing.assert_close(
        found @ found.T, torch.from_numpy(expected[rows][:, rows]), rtol=1e-5, atol=1e-6
    )


def test_a_zero_vector_has_cosine_zero(tmp_path):
    vectors = np.eye(6, 4, dtype=np.float32)
    np.save(tmp_path / "some.npy", vectors)
    teachers = Teachers([(str(tmp_path / "some.npy"), 1.0)], ROWS, "cpu", SilentProgress())
    found = teachers.of_rows(np.arange(6))[:, 0]
    assert (found @ found.T).tolist() == (vectors @ vectors.T).tolist()


def test_a_model_reads_every_text_once_and_its_file_is_found_again(tiny_model_dir, tmp_path):
    rows = list(zip(SENTENCES[:6], SENTENCES[6:12], strict=True))
    named = [(str(tiny_model_dir), 1.0)]
    teachers = Teachers(named, rows, "cpu", SilentProgress())
    assert teachers.of_rows(np.arange(2)).shape == (2, 2, 1)  # before they are made
    teachers.prepare(tmp_path, SilentProgress())
    encoder = ReadyEncoder(load_encoder(tiny_model_dir, pooler="avg"))
    expected = encoder.encode([text for row in rows for text in row], normalize=True)
    found = teachers.of_rows(np.arange(6))
    np.testing.assert_allclose(found.view(12, -1), expected, rtol=1e-4, atol=1e-5)
    written = (tmp_path / "teachers" / "1.npy").stat().st_mtime_ns
    again = Teachers(named, rows, "cpu", SilentProgress())
    again.prepare(tmp_path, SilentProgress())
    assert torch.equal(again.of_rows(np.arange(6)), found)
    assert (tmp_path / "teachers" / "1.npy").stat().st_mtime_ns == written


@pytest.mark.parametrize("changed", ["texts", "teacher"])
def test_vectors_of_other_texts_or_of_another_teacher_are_made_again(
    tiny_model_dir, tmp_path, changed
):
    """A run that was killed before its first record has nothing else that tells."""
    named = [(str(tiny_model_dir), 1.0)]
    Teachers(named, ROWS, "cpu", SilentProgress(), texts_digest="a").prepare(
        tmp_path, SilentProgress()
    )
    rows, texts_digest = ROWS, "a"
    if changed == "texts":
        rows, texts_digest = ROWS[::-1], "b"
    else:
        build_tiny_model(tmp_path / "other", seed=1)
        named = [(str(tmp_path / "other"), 1.0)]
    found, expected = (
        Teachers(named, rows, "cpu", SilentProgress(), texts_digest=texts_digest) for _ in range(2)
    )
    found.prepare(tmp_path, SilentProgress())
    expected.prepare(tmp_path / "new", SilentProgress())
    every = np.arange(len(rows))
    assert torch.equal(found.of_rows(every), expected.of_rows(every))


def test_a_run_reads_its_teacher_and_one_that_teaches_itself_has_nothing_to_learn(
    invoke, tiny_model_dir, tmp_path
):
    """Without dropout the student's cosines are the teacher's; vectors of zeros would differ."""
    (tmp_path / "plain.txt").write_text("\n".join(SENTENCES))
    run, losses = tmp_path / "run", []
    command = ["train", "--objective", "distill", "--set", "match=similarities", "-o", run]
    command += ["--model", tiny_model_dir, "--dropout", 0, "--pooler", "avg", "--device", "cpu"]
    command += ["--train-file", tmp_path / "plain.txt", "--batch-size", 8, "--max-steps", 1]
    for teacher in (tiny_model_dir, build_tiny_model(tmp_path / "other", seed=1)):
        result = invoke(*command, "--teacher", teacher, "--force")
        assert result.exit_code == 0, result.stderr
        assert (run / "teachers" / "1.npy").is_file()
        losses.append(json.loads((run / "metrics.jsonl").read_text())["loss"])
    assert losses[0] < 1e-9
    assert losses[1] > 1e-5


def test_vectors_of_other_texts_are_refused_by_their_number(tmp_path):
    np.save(tmp_path / "five.npy", np.ones((5, 3), np.float32))
    with pytest.raises(ConfigError, match="5 vectors for 6 training texts"):
        Teachers([(str(tmp_path / "five.npy"), 1.0)], ROWS, "cpu", SilentProgress())


def test_vectors_that_were_written_from_another_input_are_told(invoke, tiny_model_dir, tmp_path):
    """Whether the texts of two files differ is not recorded, so this is no error."""
    for name, texts in (("texts.txt", SENTENCES), ("turned.txt", SENTENCES[::-1])):
        (tmp_path / name).write_text("\n".join(texts) + "\n")
    (tmp_path / "table.tsv").write_text(
        "\n".join(["number\ttext", *map("1\t{}".format, SENTENCES)])
    )
    written = {}
    for name, *flags in (["texts.txt"], ["table.tsv", "--column", "text"]):
        output = written[name] = tmp_path / f"{name}.npy"
        encode = ["encode", tmp_path / name, "-o", output, *flags, "--model", tiny_model_dir]
        assert invoke(*encode, "--pooler", "avg").exit_code == 0

    def warnings(teacher, *train_files):
        named = [str(tmp_path / name) for name in train_files]
        flags = {"objective": "distill", "pooler": "avg", "model": str(tiny_model_dir)}
        flags |= {"teacher": [str(written[teacher])], "train_file": named, "text": "{text}"}
        if not named[0].endswith("tsv"):
            del flags["text"]
        told = SilentProgress()
        build_parts(resolve_config(flags=flags, objective_defaults=objective_defaults), told)
        return [warning for warning in told.warnings if "--teacher" in warning]

    assert warnings("texts.txt", "texts.txt") == warnings("table.tsv", "table.tsv") == []
    (warning,) = warnings("texts.txt", "turned.txt")
    for part in ("texts.txt.npy was written from", "turned.txt is another file or has changed"):
        assert part in warning
    np.save(tmp_path / "twice.npy", np.tile(np.load(written["texts.txt"]), (2, 1)))
    (tmp_path / "twice.npy.json").write_bytes((tmp_path / "texts.txt.npy.json").read_bytes())
    written["twice"] = tmp_path / "twice.npy"
    assert warnings("twice", "texts.txt", "turned.txt") == []


@pytest.mark.parametrize(
    ("flags", "error", "message"),
    [
        ({"objective": "rankcse"}, ConfigError, "learns from a teacher, and none is named"),
        ({"objective": "vicreg", "teacher": ["m"]}, ConfigError, "vicreg cannot use it"),
        (
            {"objective": "rankcse", "teacher": ["m:-1"]},
            ConfigError,
            "--teacher m:-1: need a weight",
        ),
        (
            {"objective": "simcse-unsup", "teacher": ["MODEL"]},
            UsageError,
            "without --set false_negative_cosine",
        ),
        (
            {"objective": "simcse-unsup", "options": {"false_negative_cosine": 0.9}},
            UsageError,
            "without --teacher",
        ),
    ],
)
def test_teachers_without_use_and_uses_without_teachers_are_refused(
    flags, error, message, tiny_model_dir, tmp_path
):
    train_file = tmp_path / "plain.txt"
    train_file.write_text("\n".join(SENTENCES))
    named = [str(tiny_model_dir) if each == "MODEL" else each for each in flags.get("teacher", [])]
    flags = {"model": str(tiny_model_dir), "train_file": str(train_file), "pooler": "avg"} | flags
    flags |= {"teacher": named} if named else {}
    config = resolve_config(flags=flags, objective_defaults=objective_defaults)
    with pytest.raises(error, match=message):
        build_parts(config, SilentProgress())


@pytest.mark.parametrize(
    ("words", "place", "fix"),
    [
        ("rankcse --teacher", "--teacher own/gone: no such folder", "or --teacher minilm"),
        (
            "diffcse --generator",
            "--generator own/gone: no such folder",
            "use a local folder with a masked language model",
        ),
    ],
)
def test_a_second_model_that_is_missing_is_told_by_its_option(
    tmp_path, invoke, tiny_model_dir, words, place, fix
):
    file = tmp_path / "rows.txt"
    file.write_text("".join(f"{sentence}\n" for sentence in SENTENCES))
    flags = ["--model", tiny_model_dir, "--train-file", file, "-o", tmp_path / "run"]
    run = invoke("train", *flags, "--objective", *words.split(), "own/gone")
    assert run.exit_code == 1
    said = " ".join(run.stderr.split())
    assert f"error: {place}" in said
    assert fix in said
    assert "--model minilm" not in said
    assert "training " not in said
