"""``--objective mlm`` beside transformers: loss, gradients, and the model that it leaves."""

import json
import math
import random

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch.nn import functional
from transformers import AutoModelForMaskedLM, AutoTokenizer, BertConfig, BertForMaskedLM, pipeline

from helpers import SENTENCES, build_tiny_model, with_options
from objectives.cases import SINGLES, batch_of, build
from simcse_cli.augment.language_model import load_mlm_filler
from simcse_cli.errors import ConfigError
from simcse_cli.models.checkpoint import load_encoder
from simcse_cli.models.encoder import SentenceEncoder
from simcse_cli.models.heads import MlpHead
from simcse_cli.models.padding import pad
from simcse_cli.objectives.mlm import NOT_MASKED, Masking
from simcse_cli.objectives.registry import build_objective
from simcse_cli.settings.choices import HeadUse, Pooler
from simcse_cli.settings.choices import ObjectiveName as Name


@pytest.fixture
def masked_lm(tmp_path, tiny_model_dir):
    """A folder with a whole masked language model of random weights."""
    torch.manual_seed(1)
    model = BertForMaskedLM(BertConfig.from_pretrained(tiny_model_dir))
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.2)
    model.save_pretrained(tmp_path / "bert")
    AutoTokenizer.from_pretrained(tiny_model_dir).save_pretrained(tmp_path / "bert")
    return tmp_path / "bert"


@pytest.fixture
def train(invoke, tmp_path, tiny_model_dir):
    def run(*arguments):
        (tmp_path / "texts.txt").write_text("\n".join(SENTENCES) + "\n")
        source, run = tmp_path / "texts.txt", tmp_path / "run"
        command = ("train", "--objective", "mlm", "--model", tiny_model_dir, "-o", run)
        length = ("--batch-size", 6, "--max-steps", 3, "--lr", 1e-3, "--device", "cpu")
        outcome = invoke(*with_options((*command, "--train-file", source, *length), *arguments))
        return outcome, tmp_path / "run"

    return run


@pytest.mark.parametrize("is_packed", [True, False])
def test_value_and_gradients_are_those_of_transformers(masked_lm, is_packed, monkeypatch):
    if not is_packed:
        monkeypatch.setattr(SentenceEncoder, "_packed", lambda self: None)
    encoder = load_encoder(masked_lm, pooler="avg", device="cpu")
    objective = build_objective(Name.MLM, encoder, {}, {}).double().eval()
    assert objective.warnings == []
    batch = batch_of(objective, SINGLES)
    found = objective(batch)[0]["mlm"]
    found.backward()

    model = AutoModelForMaskedLM.from_pretrained(masked_lm).double().eval()
    ids, labels = (
        pad(rows, fill)[0]
        for rows, fill in ((batch.rows, 0), (batch.extra["mlm_labels"], NOT_MASKED))
    )
    expected = model(ids, attention_mask=(ids != 0).long(), labels=labels).loss
    expected.backward()
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-6)
    theirs = {name: weight.grad for name, weight in model.named_parameters()}
    ours = {
        name.replace("encoder.backbone.", "bert.").replace("mlm.head.head.", "cls."): weight.grad
        for name, weight in objective.named_parameters()
    }
    assert ours.keys() == theirs.keys()
    for name, gradient in theirs.items():
        torch.testing.assert_close(ours[name], gradient, rtol=1e-6, atol=1e-6)


def test_scores_that_are_all_equal_cost_ln_v(tiny_model_dir):
    objective, data = build("mlm", tiny_model_dir)
    for parameter in objective.mlm.head.parameters():
        torch.nn.init.zeros_(parameter)
    value = objective(batch_of(objective, data))[0]["mlm"].item()
    assert value == pytest.approx(math.log(objective.encoder.config.vocab_size))


def test_a_run_leaves_a_masked_language_model_for_every_reader(train, invoke, tmp_path):
    outcome, run = train()
    assert outcome.exit_code == 0, outcome.stderr
    assert "has no masked-LM head: training starts from a fresh one" in " ".join(
        outcome.stderr.split()
    )
    model, info = AutoModelForMaskedLM.from_pretrained(run / "model", output_loading_info=True)
    assert not info["missing_keys"]
    assert not info["unexpected_keys"]
    state = load_file(next((run / "checkpoint").glob("step-*")) / "state.safetensors")
    for name, weight in model.cls.named_parameters():
        assert torch.equal(weight, state[f"module.mlm.head.head.{name}"]), name

    fill = pipeline("fill-mask", model=str(run / "model"), device="cpu")
    assert len(fill("A [MASK] is playing a guitar.")) == 5
    filler = load_mlm_filler(run, rate=0.3)
    assert filler.many(["A man is playing a guitar."], [1])[0] != "A man is playing a guitar."

    shared = (
        "--device",
        "cpu",
        "--max-steps",
        1,
        "--batch-size",
        4,
        "--train-file",
        tmp_path / "texts.txt",
    )
    after = invoke(
        "train",
        "--mode",
        "unsup",
        "--pooler",
        "cls",
        "--model",
        run,
        "-o",
        tmp_path / "simcse",
        *shared,
    )
    assert after.exit_code == 0, after.stderr
    again = invoke("train", "--objective", "mlm", "--model", run, "-o", tmp_path / "again", *shared)
    assert again.exit_code == 0, again.stderr
    assert "no masked-LM head" not in again.stderr


def test_lora_is_merged_under_the_head(train, tmp_path):
    outcome, run = train("--lora", 4)
    assert outcome.exit_code == 0, outcome.stderr
    _, info = AutoModelForMaskedLM.from_pretrained(run / "model", output_loading_info=True)
    assert not info["missing_keys"]
    assert not info["unexpected_keys"]


@pytest.mark.parametrize("model_type", ["roberta", "mpnet"])
def test_other_architectures_are_saved_with_their_head(train, tmp_path, model_type):
    model = build_tiny_model(tmp_path / model_type, model_type=model_type)
    outcome, run = train("--model", model)
    assert outcome.exit_code == 0, outcome.stderr
    found, info = AutoModelForMaskedLM.from_pretrained(run / "model", output_loading_info=True)
    assert not info["missing_keys"]
    assert found.lm_head.decoder.weight is found.get_input_embeddings().weight


def test_the_dev_score_of_held_out_texts_is_one_by_perplexity(train):
    outcome, run = train("--dev-split", 0.25, "--eval-every", 1)
    assert outcome.exit_code == 0, outcome.stderr
    record = json.loads((run / "run.json").read_text())
    assert record["data"]["n_examples"] == 18
    assert "inverse perplexity on 25% held-out texts" in (run / "README.md").read_text()

    taken = set(random.Random("dev-split").sample(SENTENCES, 6))
    held_out = [text for text in SENTENCES if text in taken]
    # The masks of the dev set, and transformers' loss of the model that was kept.
    encoder = load_encoder(run / "model", device="cpu")
    objective = build_objective(Name.MLM, encoder, {}, {})
    batch = objective.collate(held_out, np.random.default_rng(0))
    model = AutoModelForMaskedLM.from_pretrained(run / "model").eval()
    ids, labels = (
        pad(rows, fill)[0]
        for rows, fill in ((batch.rows, 0), (batch.extra["mlm_labels"], NOT_MASKED))
    )
    loss = functional.cross_entropy(
        model(ids, attention_mask=(ids != 0).long()).logits.transpose(1, 2), labels
    )
    assert record["best_score"] == pytest.approx(math.exp(-loss.item()), rel=1e-4)


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (("--lora", 4, "--lora-save", "adapter"), "an adapter has no place for the masked-LM head"),
        (("--temperature", 0.1), "its loss has no temperature"),
        (("--pooler", "cls", "--head", "kept"), "trains no vector that passes a head"),
        (("--objective", "simcse-unsup", "--whole-words"), "it masks sub-words at most"),
    ],
)
def test_settings_without_use_are_refused(train, more, message):
    outcome, _ = train(*more)
    assert outcome.exit_code == 1
    assert message in " ".join(outcome.stderr.split())


def test_whole_words_are_masked_as_wholes(tiny_encoder):
    texts = ["xylophone dogs zzz running", "a quick xylophone"]
    rows = tiny_encoder.tokenize(texts)
    words = tiny_encoder.tokens.words(texts, 64)
    assert [len(row) for row in words] == [len(row) for row in rows]
    tokenizer = tiny_encoder.tokenizer
    mask = Masking(0.15, tokenizer.mask_token_id, tokenizer.all_special_ids, n_vocabulary=9)
    generator, n_chosen, n_words = np.random.default_rng(0), 0, 0
    for _ in range(300):
        _, labels = mask(rows, generator, words)
        for ids, own, row in zip(labels, words, rows, strict=True):
            chosen = {word: set() for word in own}
            for label, word, token in zip(ids, own, row, strict=True):
                chosen[word].add(label != NOT_MASKED)
                assert label in (token, NOT_MASKED)
            assert chosen.pop(None) == {False}  # special tokens
            assert all(len(fates) == 1 for fates in chosen.values())
            n_chosen, n_words = n_chosen + sum(map(any, chosen.values())), n_words + len(chosen)
    assert n_chosen / n_words == pytest.approx(0.15, abs=0.02)  # 2100 words: a deviation of 0.008


def test_whole_words_need_a_tokenizer_that_tells_them(tiny_encoder, monkeypatch):
    monkeypatch.setattr(tiny_encoder.tokens, "_rust_tokenizer", lambda limit: None)
    with pytest.raises(ConfigError, match="does not tell which sub-words are one word"):
        tiny_encoder.tokens.words(["a"], 8)


def test_a_head_over_the_vector_is_refused(tiny_encoder):
    tiny_encoder.change(head=MlpHead(32), head_use=HeadUse.KEPT, pooler=Pooler.CLS)
    with pytest.raises(ConfigError, match="--head kept"):
        build_objective(Name.MLM, tiny_encoder, {}, {})
