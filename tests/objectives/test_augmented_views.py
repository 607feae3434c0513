from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoConfig, AutoModelForMaskedLM

from objectives.cases import SINGLES
from simcse_cli.augment.augmentations import (
    CombinedAugmenter,
    TokenRepeat,
    TokenShuffle,
    make_augmenter,
)
from simcse_cli.errors import ConfigError
from simcse_cli.models.encoder import SentenceEncoder
from simcse_cli.objectives.simcse_unsup import SimcseUnsup, SimcseUnsupOptions
from simcse_cli.settings.choices import Augmentation, Device
from simcse_cli.training.setup import build_augment

DELETE = make_augmenter(Augmentation.DELETE, 0.3)


def generator() -> np.random.Generator:
    return np.random.default_rng(11)


def test_collate_augments_the_positive_and_leaves_the_anchor(tiny_encoder: SentenceEncoder) -> None:
    batch = SimcseUnsup(tiny_encoder, SimcseUnsupOptions(augment=DELETE)).collate(
        SINGLES.rows, generator()
    )
    keys = generator().integers(0, 2**62, size=len(SINGLES.rows))
    assert list(batch.texts) == [
        (text, DELETE(text, int(key))) for (text,), key in zip(SINGLES.rows, keys, strict=True)
    ]


def test_collate_augments_both_sides_independently(tiny_encoder: SentenceEncoder) -> None:
    batch = SimcseUnsup(
        tiny_encoder, SimcseUnsupOptions(augment=DELETE, augment_both=True)
    ).collate(SINGLES.rows, generator())
    long_enough = [pair for pair in batch.texts if len(pair[0].split()) > 4]
    assert all(
        pair[0].split() != text.split()
        for pair, (text,) in zip(batch.texts, SINGLES.rows, strict=True)
    )
    assert sum(pair[0] != pair[1] for pair in long_enough) > len(long_enough) / 2


@pytest.mark.parametrize("both", [False, True])
def test_collate_shuffles_the_subwords_of_the_augmented_side(
    tiny_encoder: SentenceEncoder, both: bool
) -> None:
    plain = SimcseUnsup(tiny_encoder).collate(SINGLES.rows, generator()).rows
    objective = SimcseUnsup(
        tiny_encoder, SimcseUnsupOptions(augment=TokenShuffle(1.0), augment_both=both)
    )
    shuffled = objective.collate(SINGLES.rows, generator()).rows
    n = len(SINGLES.rows)
    assert (shuffled[:n] == plain[:n]) is not both
    assert shuffled[n:] != plain[n:]
    for before, after in zip(plain, shuffled, strict=True):
        assert sorted(before) == sorted(after)
        assert (before[0], before[-1]) == (after[0], after[-1])  # [CLS] and [SEP]


def test_collate_repeats_subwords_of_the_positive_and_special_ones_once(
    tiny_encoder: SentenceEncoder,
) -> None:
    plain = SimcseUnsup(tiny_encoder).collate(SINGLES.rows, generator()).rows
    objective = SimcseUnsup(tiny_encoder, SimcseUnsupOptions(augment=TokenRepeat(0.5)))
    repeated = objective.collate(SINGLES.rows, generator()).rows
    n = len(SINGLES.rows)
    assert repeated[:n] == plain[:n]
    assert any(len(after) > len(before) for before, after in zip(plain, repeated, strict=True))
    for before, after in zip(plain[n:], repeated[n:], strict=True):
        assert 0 <= len(after) - len(before) <= 9
        assert all(after.count(special) == 1 for special in (before[0], before[-1]))


def test_repeated_subwords_must_fit_the_positions(tiny_encoder: SentenceEncoder) -> None:
    limit = tiny_encoder.tokens.max_length
    fits = SimcseUnsupOptions(augment=TokenRepeat(0.5), max_length=limit - 9)
    SimcseUnsup(tiny_encoder, fits)
    with pytest.raises(ConfigError, match=f"and .* reads {limit}") as caught:
        SimcseUnsup(tiny_encoder, SimcseUnsupOptions(augment=TokenRepeat(0.5), max_length=limit))
    assert caught.value.hint == f"use --max-length {limit - 9}"


def test_collate_draws_nothing_where_nothing_augments(tiny_encoder: SentenceEncoder) -> None:
    used = generator()
    SimcseUnsup(tiny_encoder).collate(SINGLES.rows, used)
    assert used.integers(2**62) == generator().integers(2**62)


def test_build_augment_makes_text_and_subword_augmenters() -> None:
    delete = build_augment("delete:0.3")
    assert isinstance(delete, CombinedAugmenter)
    assert delete.many(["one two three four"], [5]) == [DELETE("one two three four", 5)]
    assert build_augment("shuffle:0.2") == TokenShuffle(0.2)
    assert build_augment("shuffle") == TokenShuffle(0.1)
    assert build_augment("repeat") == TokenRepeat(0.32)
    assert build_augment("repeat:0.3") == TokenRepeat(0.3) != TokenShuffle(0.3)
    assert build_augment(None) is None


def test_build_augment_loads_the_masked_lm_named_after_the_rate(tiny_model_dir: Path) -> None:
    torch.manual_seed(0)
    model = AutoModelForMaskedLM.from_config(AutoConfig.from_pretrained(tiny_model_dir))
    model.save_pretrained(tiny_model_dir)
    filler = build_augment(f"mlm:1:{tiny_model_dir}", Device.CPU)
    assert isinstance(filler, CombinedAugmenter)
    (filled,) = filler.many(["cat dog"], [0])
    assert all(a != b for a, b in zip(filled.split(), ["cat", "dog"], strict=True))


def test_build_augment_refuses_a_model_elsewhere() -> None:
    with pytest.raises(ConfigError, match="only mlm and shuffle take a model"):
        build_augment("delete:0.1:bert-base")


def test_build_augment_combines_methods_on_text_and_keeps_shuffle_apart() -> None:
    combined = build_augment("crop:0.5+delete-one")
    assert isinstance(combined, CombinedAugmenter)
    assert [len(text.split()) for text in combined.many(["a b c d e f"] * 5, range(5))] == [2] * 5
    for on_tokens in ("shuffle:0.2", "repeat:0.3"):
        with pytest.raises(ConfigError, match="cannot be combined") as caught:
            build_augment(f"crop:0.5+{on_tokens}")
        assert f"write --augment {on_tokens}, or" in str(caught.value.hint)
