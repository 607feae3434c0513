"""The architectures that docs/answers.md lists: each trains and encodes as transformers and the equations say."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
import torch

from helpers import SENTENCES, build_tiny_model, plain_vectors
from simcse_cli.models.checkpoint import load_encoder
from simcse_cli.models.encode import encode
from simcse_cli.packed.architectures import read_parts

PAGE = Path(__file__).resolve().parents[2] / "docs" / "answers.md"
ROWS = re.findall(
    r"^\| `([a-z0-9-]+)` \|.*\| (packed|padded) \|", PAGE.read_text(encoding="utf-8"), re.MULTILINE
)
TEXTS = SENTENCES[:6]


def first_loss(states):
    """Return the unsupervised loss of [CLS] states in one batch without dropout: both views are the same vectors.

    The head is drawn as docs/training.md says: one linear layer and tanh, by the seed of the run,
    42.
    """
    torch.manual_seed(42)
    head = torch.nn.Linear(32, 32).requires_grad_(False)
    torch.nn.init.normal_(head.weight, std=0.02)
    torch.nn.init.zeros_(head.bias)
    views = torch.nn.functional.normalize(torch.tanh(head(torch.from_numpy(states))), dim=1)
    return float(
        torch.nn.functional.cross_entropy(views @ views.T / 0.05, torch.arange(len(views)))
    )


@pytest.mark.parametrize(("model_type", "passes"), ROWS)
def test_listed_backbone_trains_two_steps_and_encodes(invoke, tmp_path, model_type, passes):
    folder, run = build_tiny_model(tmp_path / "model", model_type=model_type), tmp_path / "run"
    before = plain_vectors(folder, "cls_before_pooler", TEXTS)
    (tmp_path / "train.txt").write_text("".join(f"{text}\n" for text in TEXTS))
    settings = (
        "--dropout",
        0,
        "--lr",
        "1e-3",
        "--batch-size",
        len(TEXTS),
        "--epochs",
        2,
        "--log-every",
        1,
    )
    trained = invoke(
        "train",
        "--mode",
        "unsup",
        "-m",
        folder,
        "--train-file",
        tmp_path / "train.txt",
        *settings,
        "-o",
        run,
    )
    assert trained.exit_code == 0, trained.stderr
    losses = [json.loads(line)["loss"] for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert len(losses) == 2
    assert losses[0] == pytest.approx(first_loss(before), rel=1e-4)
    encoder = load_encoder(run / "model", device="cpu")
    vectors = encode(encoder, TEXTS)
    np.testing.assert_allclose(
        vectors, plain_vectors(run / "model", "cls_before_pooler", TEXTS), atol=1e-5
    )
    assert np.abs(vectors - before).max() > 1e-3
    assert ("padded" if read_parts(encoder.backbone) is None else "packed") == passes


def test_the_list_holds_what_users_ask_for():
    asked = {
        "bert",
        "roberta",
        "distilbert",
        "mpnet",
        "electra",
        "deberta-v2",
        "modernbert",
        "xlm-roberta",
    }
    assert asked | {"longformer"} <= dict(ROWS).keys()
