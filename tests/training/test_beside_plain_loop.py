"""Runs with default settings beside a plain loop on transformers and torch: equal losses, rates, norms and weights."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional
from transformers import AutoModel, AutoTokenizer, get_linear_schedule_with_warmup

from helpers import SENTENCES, build_tiny_model
from simcse_cli.objectives.registry import objective_defaults
from simcse_cli.progress import SilentProgress
from simcse_cli.settings.recipes import resolve_config
from simcse_cli.training.loop import Trainer
from simcse_cli.training.setup import build_parts

SEED = 42


def plain_loop(
    folder: Path, rows: list[tuple[str, ...]], *, lr: float, n_epochs: int, dtype: torch.dtype
):
    """Train SimCSE as the paper describes it; return encoder, head, and loss, rate and norm of each step.

    Gao et al. 2021: [CLS], linear layer and tanh drawn at random, cosine over 0.05, batch 64, 32
    sub-words, AdamW without weight decay, linear decay without warm-up, clip 1, seed 42. The order
    of an epoch and the random state of a step follow from the seed as docs/architecture.md says.
    """
    tokenizer, model = AutoTokenizer.from_pretrained(folder), AutoModel.from_pretrained(folder)
    torch.manual_seed(SEED)
    head = nn.Linear(32, 32)
    nn.init.normal_(head.weight, std=0.02)
    nn.init.zeros_(head.bias)
    model.to(dtype).train()
    head.to(dtype)
    parameters = [*model.parameters(), *head.parameters()]
    optimizer = torch.optim.AdamW(parameters, lr=lr, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.0)
    n_steps = -(-len(rows) // 64)
    schedule = get_linear_schedule_with_warmup(optimizer, 0, n_epochs * n_steps)
    seen = []
    for epoch in range(n_epochs):
        order = np.random.default_rng(np.random.SeedSequence((SEED, epoch))).permutation(len(rows))
        for start in range(0, len(rows), 64):
            views = list(zip(*(rows[i] for i in order[start : start + 64]), strict=True))
            texts = [text for view in (views * 2 if len(views) == 1 else views) for text in view]
            inputs = tokenizer(
                texts, padding=True, truncation=True, max_length=32, return_tensors="pt"
            )
            key = np.random.SeedSequence((SEED, len(seen), 0)).generate_state(1, np.uint64)[0]
            torch.manual_seed(int(key >> np.uint64(1)))
            states = torch.tanh(head(model(**inputs).last_hidden_state[:, 0]))
            anchors, *others = states.view(-1, len(views[0]), 32)
            scores = [
                functional.cosine_similarity(anchors[:, None], o[None], dim=-1) / 0.05
                for o in others
            ]
            loss = functional.cross_entropy(torch.cat(scores, dim=1), torch.arange(len(anchors)))
            loss.backward()
            norm = nn.utils.clip_grad_norm_(parameters, 1.0)
            seen.append((loss.item(), schedule.get_last_lr()[0], norm.item()))
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
    return model, head, seen


def write_model(folder: Path, model_type: str, dropout: float) -> Path:
    build_tiny_model(folder, model_type=model_type)
    config = json.loads((folder / "config.json").read_text())
    config |= {"hidden_dropout_prob": dropout, "attention_probs_dropout_prob": dropout}
    (folder / "config.json").write_text(json.dumps(config))
    return folder


@pytest.mark.parametrize(
    ("mode", "model_type", "dropout", "dtype"),
    [
        ("unsup", "bert", 0.0, torch.float32),
        ("sup", "bert", 0.0, torch.float64),
        ("unsup", "albert", 0.1, torch.float64),  # padded, so the masks are those of transformers
    ],
)
def test_default_settings_train_as_the_plain_loop_does(mode, model_type, dropout, dtype, tmp_path):
    model_dir = write_model(tmp_path / "model", model_type, dropout)
    rng = np.random.default_rng(0)
    n_columns, n_rows, lr, n_epochs = (
        (1, 1280, 3e-5, 1) if mode == "unsup" else (3, 7 * 64 - 30, 5e-5, 3)
    )
    rows = [
        tuple(f"{SENTENCES[i]} {SENTENCES[j]}" for i, j in pairs)
        for pairs in rng.integers(0, len(SENTENCES), size=(n_rows, n_columns, 2))
    ]
    train_file = tmp_path / "train.tsv"
    header = ("anchor", "positive", "hard_negative")[:n_columns]
    train_file.write_text("".join("\t".join(row) + "\n" for row in [header, *rows]))

    flags = {
        "objective": f"simcse-{mode}",
        "model": str(model_dir),
        "train_file": str(train_file),
        "batches": "shuffled",
    }
    config = resolve_config(flags=flags, objective_defaults=objective_defaults)
    parts = build_parts(config, SilentProgress())
    parts.objective.to(dtype)
    assert Trainer(config, parts, tmp_path, SilentProgress()).train() == "finished"
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]

    model, head, seen = plain_loop(model_dir, rows, lr=lr, n_epochs=n_epochs, dtype=dtype)
    exact = dtype is torch.float64
    assert len(seen) >= 20
    assert [line["step"] for line in lines] == [1, 10, 20] + [21] * (mode == "sup")
    for line in lines:
        found = [line["loss"], line["lr"], line["grad_norm"]]
        assert found == pytest.approx(seen[line["step"] - 1], rel=1e-9 if exact else 1e-4)
    weights = model.state_dict() | {
        f"head.{name}": value for name, value in head.state_dict().items()
    }
    encoder = parts.objective.encoder
    found = encoder.backbone.state_dict() | {
        f"head.{n}": v for n, v in encoder.head.dense.state_dict().items()
    }
    for name, value in found.items():
        if not name.endswith(
            "key.bias"
        ):  # without gradient but for rounding, which Adam makes as large as any
            torch.testing.assert_close(value, weights[name], rtol=0, atol=1e-9 if exact else 1e-6)
