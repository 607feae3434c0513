"""What training changes of a model: pooler, head and normalisation, the best step, and what it says of them."""

import dataclasses
import json

import numpy as np
import pytest
from transformers import AutoTokenizer

from helpers import SENTENCES, small_run
from simcse_cli.models.checkpoint import load_encoder
from simcse_cli.models.encode import encode
from simcse_cli.models.export import save_encoder
from simcse_cli.models.heads import MlpHead
from simcse_cli.progress import SilentProgress
from simcse_cli.settings.choices import HeadUse, ObjectiveName, Pooler
from simcse_cli.training import setup
from simcse_cli.training.record import StepResult, show_step
from simcse_cli.training.run import train_run
from simcse_cli.training.setup import build_encoder, with_model_defaults
from simcse_cli.training.state import Position


@pytest.fixture
def settings(tiny_model_dir, tmp_path, sts_folder):
    return small_run(tiny_model_dir, tmp_path, sts_folder, batch_size=8, max_steps=2)


@pytest.fixture
def recording(tiny_encoder, tmp_path):
    """Return a function that saves the tiny model with a pooler, a kept head or not, and normalisation or not."""

    def save(pooler: Pooler, *, head: bool = False, normalize: bool = False) -> str:
        own = MlpHead(32, 0.2) if head else None
        tiny_encoder.change(head=own, head_use=HeadUse.KEPT, pooler=pooler, normalize=normalize)
        save_encoder(tiny_encoder, tmp_path / "recording")
        return str(tmp_path / "recording")

    return save


class Said(SilentProgress):
    def __init__(self):
        super().__init__()
        self.lines = []

    def info(self, message):
        self.lines.append(message)


def test_a_plain_transformer_is_trained_as_simcse_does(settings):
    said = Said()
    encoder = build_encoder(settings, said)
    assert (encoder.pooler, encoder.record.head_use) == (Pooler.CLS, HeadUse.TRAIN_ONLY)
    assert said.lines == [
        f"training {settings.model} with pooler cls through a fresh head, dropped after training; "
        "the model records no pooler"
    ]


def test_what_a_model_records_is_trained(settings, recording):
    config = dataclasses.replace(settings, model=recording(Pooler.AVG, normalize=True))
    said = Said()
    encoder = build_encoder(config, said)
    assert (encoder.pooler, encoder.head, encoder.record.normalize) == (Pooler.AVG, None, True)
    assert said.lines == [f"training {config.model} with pooler avg, as the model records"]
    assert with_model_defaults(config, SilentProgress()).pooler is Pooler.AVG


def test_another_pooler_is_trained_when_asked_for_and_said(settings, recording):
    config = dataclasses.replace(
        settings, model=recording(Pooler.AVG, normalize=True), pooler=Pooler.CLS
    )
    said = Said()
    encoder = build_encoder(config, said)
    assert (encoder.pooler, encoder.record.head_use, encoder.record.normalize) == (
        Pooler.CLS,
        HeadUse.TRAIN_ONLY,
        False,
    )
    assert said.lines == [
        f"training {config.model} with pooler cls through a fresh head, dropped after "
        "training; the model records avg"
    ]


def test_a_head_that_a_model_keeps_is_trained_on(settings, recording):
    model = recording(Pooler.CLS, head=True)
    before = load_encoder(model, device="cpu")
    said = Said()
    encoder = build_encoder(dataclasses.replace(settings, model=model), said)
    np.testing.assert_array_equal(encode(encoder, SENTENCES), encode(before, SENTENCES))
    assert encoder.record.head_use is HeadUse.KEPT
    assert said.lines == [
        f"training {model} with pooler cls through its own head, kept, as the model records"
    ]
    bare = build_encoder(dataclasses.replace(settings, model=model, head=HeadUse.NONE), said)
    assert (bare.pooler, bare.head) == (Pooler.CLS_BEFORE_POOLER, None)


def test_head_none_is_a_value_in_settings(invoke, settings, tmp_path):
    outcome = invoke(
        "train", "-m", settings.model, "--train-file", settings.train_file[0], "--head", "none",
        "--max-steps", 1, "-o", tmp_path / "run",
    )  # fmt: skip
    assert outcome.exit_code == 0, outcome.stderr
    assert "with pooler cls_before_pooler;" in outcome.stderr
    assert json.loads((tmp_path / "run" / "run.json").read_text())["config"]["head"] == "none"


def test_the_model_before_training_may_be_the_best(settings, recording, tmp_path):
    """Steps that ruin the vectors leave the model as it was, and say so."""
    model = recording(Pooler.AVG, normalize=True)
    vectors = encode(load_encoder(model, device="cpu"), SENTENCES)
    order = np.argsort(
        vectors[1:] @ vectors[0]
    )  # gold scores that rank the pairs as the model does: it scores 1
    rows = [f"{SENTENCES[0]}\t{SENTENCES[1 + row]}\t{rank}" for rank, row in enumerate(order)]
    dev_file = tmp_path / "dev.tsv"
    dev_file.write_text("\n".join(["sentence1\tsentence2\tscore", *rows]) + "\n")
    config = dataclasses.replace(settings, model=model, lr=0.5, dev_file=str(dev_file))
    progress = SilentProgress()
    record = train_run(config, tmp_path / "run", progress)
    assert (record.best_step, record.best_score) == (0, record.start_score)
    assert record.trained_score < record.start_score
    (warning,) = [text for text in progress.warnings if "did not improve" in text]
    assert f"{100 * record.start_score:.2f} before" in warning
    assert f"{100 * record.trained_score:.2f} after" in warning
    kept, before = (load_encoder(path, device="cpu") for path in (tmp_path / "run", model))
    np.testing.assert_array_equal(encode(kept, SENTENCES), encode(before, SENTENCES))
    assert "(step 0)" in (tmp_path / "run" / "README.md").read_text()


def test_scores_are_counted_from_step_0():
    position = Position()
    assert position.note_score(0.5, {})
    position.step = 1
    assert not position.note_score(0.4, {})
    position.step = 2
    assert not position.note_score(0.45, {})
    assert (position.start_score, position.trained_score, position.best_score) == (0.5, 0.45, 0.5)
    assert (position.best_step, position.evaluations_without_gain) == (0, 2)
    position.step = 3
    assert position.note_score(0.6, {})
    assert (position.best_step, position.trained_score, position.evaluations_without_gain) == (
        3,
        0.6,
        0,
    )


def test_no_model_is_praised_without_a_dev_score(invoke, settings, tmp_path):
    run = tmp_path / "run"
    command = (
        "train",
        "-m",
        settings.model,
        "--train-file",
        settings.train_file[0],
        "--max-steps",
        1,
    )
    outcome = invoke(*command, "-o", run)
    assert outcome.exit_code == 0, outcome.stderr
    assert f"wrote {run} (model: {run / 'model'})" in outcome.stderr
    for text in (outcome.stdout, outcome.stderr, (run / "README.md").read_text()):
        assert "best" not in text.replace(str(run), "")
    outcome = invoke(*command, "-o", tmp_path / "scored", "--dev-file", settings.dev_file)
    assert "best model" in outcome.stderr
    assert "dev best" in outcome.stdout


def test_a_triplet_counts_three_sentences(settings, tmp_path):
    rows = [f"{SENTENCES[i]}\t{SENTENCES[i + 8]}\t{SENTENCES[i + 16]}" for i in range(8)]
    (tmp_path / "sup.tsv").write_text("anchor\tpositive\thard_negative\n" + "\n".join(rows) + "\n")
    for name, settings_ in {
        "unsup": settings,
        "sup": dataclasses.replace(
            settings, objective=ObjectiveName.SIMCSE_SUP, train_file=str(tmp_path / "sup.tsv")
        ),
    }.items():
        record = train_run(
            dataclasses.replace(settings_, dev_file=None), tmp_path / name, SilentProgress()
        )
        per_step = record.timings["sentences_per_second"] * record.timings["train_s"] / record.step
        assert per_step == pytest.approx(24 if name == "sup" else 8)


@pytest.mark.parametrize(
    ("seconds", "rate"), [(0.01, "800"), (16.0, "0.5"), (240.0, "0.033"), (3.0, "2.7")]
)
def test_the_rate_has_a_unit_and_is_never_0(seconds, rate):
    shown = {}

    class Task:
        def update(self, **values):
            shown.update(values)

        def advance(self): ...

    show_step(Task(), StepResult(1.0, {}, {}, 1.0, 1e-5, 8, 80, seconds), None, None)
    assert shown["rate"] == f"{rate} sentences/s"


@pytest.mark.parametrize("most_looked_at", [1000, 5])
def test_rows_that_are_cut_are_counted_said_and_recorded(
    settings, monkeypatch, tmp_path, most_looked_at
):
    """Against the plain tokenizer: a pair is cut if one of its texts is."""
    monkeypatch.setattr(setup, "MOST_LOOKED_AT", most_looked_at)
    texts = [" ".join(["dog"] * n_words) for n_words in (2, 5, 6, 7, 9, 30)]
    pairs = [(texts[i % 6], texts[i // 3 % 6]) for i in range(12)]
    lines = ["anchor\tpositive", *(f"{left}\t{right}" for left, right in pairs)]
    path = tmp_path / "pairs.tsv"
    path.write_text("\n".join(lines) + "\n")
    config = dataclasses.replace(settings, train_file=[str(path)], max_length=8)
    config = dataclasses.replace(config, objective=ObjectiveName.SIMCSE_SUP)
    said = Said()
    parts = setup.build_parts(config, said)

    tokenizer = AutoTokenizer.from_pretrained(settings.model)
    looked_at = pairs if most_looked_at == 1000 else pairs[::3]
    lengths = [[len(tokenizer(text)["input_ids"]) for text in pair] for pair in looked_at]
    n_cut = sum(max(pair) > 8 for pair in lengths)
    assert 0 < n_cut < len(looked_at)
    assert parts.digests["n_cut"] == n_cut
    assert parts.digests["n_looked_at"] == len(looked_at)
    (line,) = [line for line in said.lines if "sub-words" in line]
    share = f"{n_cut / len(looked_at):.1%}"
    if looked_at is pairs:
        assert line.startswith(f"{n_cut} of 12 rows ({share}) have a text of more than 8 sub-words")
    else:
        assert line.startswith(f"about {share} of the rows have a text of more than 8 sub-words")
        assert line.endswith("; 4 were looked at")


def test_texts_that_the_model_cuts_are_said_to_be_cut_by_its_limit(settings, tmp_path):
    path = tmp_path / "long.txt"
    path.write_text("dog\ncat\n" + " ".join(["dog"] * 70) + "\n")
    said = Said()
    setup.build_parts(dataclasses.replace(settings, train_file=[str(path)], max_length=1000), said)
    assert [line for line in said.lines if "sub-words" in line] == [
        "1 of 3 rows (33.3%) have a text of more than 64 sub-words, which is cut there (the "
        "model's limit, below --max-length 1000)"
    ]
