"""`--pooler mask --template` in the commands that make vectors, and the folder of a trained model."""

import json

import numpy as np
import pytest

from helpers import SENTENCES
from simcse_cli import load
from simcse_cli.models.checkpoint import load_encoder
from simcse_cli.models.encode import encode

TEMPLATE = "The film {.} is a {mask}."
OPTIONS = ("--pooler", "mask", "--template", TEMPLATE)


@pytest.fixture
def source(tmp_path):
    path = tmp_path / "input.txt"
    path.write_text("\n".join(SENTENCES))
    return path


def test_an_untrained_encoder_is_scored_and_encoded(
    invoke, tiny_model_dir, source, sts_folder, tmp_path
):
    expected = load_encoder(tiny_model_dir, pooler="mask", template=TEMPLATE, device="cpu")
    command = ("encode", source, "-m", tiny_model_dir, "-o", tmp_path / "v.npy")
    outcome = invoke(*command, *OPTIONS)
    assert outcome.exit_code == 0, outcome.stderr
    vectors = encode(expected, list(SENTENCES))
    np.testing.assert_allclose(np.load(tmp_path / "v.npy"), vectors, atol=1e-6)
    assert json.loads((tmp_path / "v.npy.json").read_text())["template"] == TEMPLATE
    encoder = load(tiny_model_dir, pooler="mask", template=TEMPLATE)
    np.testing.assert_allclose(encoder.encode(SENTENCES), vectors, atol=1e-6)
    scored = ("eval", "sts", "-m", tiny_model_dir, "--data-dir", sts_folder, "--format", "json")
    outcome = invoke(*scored, *OPTIONS)
    assert outcome.exit_code == 0, outcome.stderr
    assert json.loads(outcome.stdout)["template"] == TEMPLATE
    assert invoke(*scored, "--template", TEMPLATE).exit_code == 2
    assert "records no template" in invoke(*scored, "--pooler", "mask").stderr


def test_a_trained_model_keeps_its_template(invoke, tiny_model_dir, source, tmp_path):
    run = tmp_path / "run"
    train = ("train", "-m", tiny_model_dir, "--train-file", source, "--device", "cpu")
    more = ("--max-steps", 1, "--batch-size", 4, "-o", run)
    templates = ("--template", TEMPLATE, "--template", "A {mask} is {.} {mask}")
    outcome = invoke(*train, *more, "--objective", "promptbert", *templates)
    assert "one {mask} behind it" in outcome.stderr
    templates = ("--template", TEMPLATE, "--template", "A film {.} is a {mask}.")
    outcome = invoke(*train, *more, "--objective", "promptbert", *templates)
    assert outcome.exit_code == 0, outcome.stderr
    assert load(run).encode(SENTENCES).shape == (len(SENTENCES), 32)
    card = (run / "README.md").read_text()
    assert f"| template | `{TEMPLATE}` |" in card
    assert "sentence_transformers import" not in card
    outcome = invoke("prepare", "model", run, "-o", tmp_path / "copy")
    assert outcome.exit_code == 0, outcome.stderr
    assert "sentence-transformers has no pooler mask" in outcome.stderr
    outcome = invoke(*train, "-o", tmp_path / "other", "--mode", "unsup", "--pooler", "mask")
    assert "records no template" in outcome.stderr
    for two in (templates, ("--template", "{}", "--template", TEMPLATE)):
        outcome = invoke(
            *train, "-o", tmp_path / "other", "--mode", "unsup", "--pooler", "mask", *two
        )
        assert "puts one template around all texts, these are 2" in outcome.stderr
    outcome = invoke(
        *train, "-o", tmp_path / "other", "--objective", "sncse", "--hard-neg-alpha", 2
    )
    assert "--hard-neg-alpha 2.0: --objective sncse cannot use it" in outcome.stderr
