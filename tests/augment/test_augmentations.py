import itertools
import pickle
from pathlib import Path

import pytest

from simcse_cli.augment.augmentations import (
    UNIT_OPERATORS,
    check_rate,
    make_augmenter,
    parse_augmentation,
    sentence_key,
    split_model,
)
from simcse_cli.augment.words import split_graphemes
from simcse_cli.choices import Augmentation, TextUnit
from simcse_cli.errors import ConfigError, DataError

AWKWARD = [
    "one",
    "two words",
    "...",
    "1999",
    "!? — …",
    "今天天气很好",
    "👨‍👩‍👧 🇩🇪",
    "e\u0301",
    "a \u0301b",
    " \t padded \u00a0 ",
    "It's a \u200bzero-width space.",
    "مرحبا بالعالم",
    "ยินดีต้อนรับ",
]
ON_TEXT = [method for method in Augmentation if method is not Augmentation.MLM]


def test_sentence_key_differs_for_every_argument() -> None:
    grid = itertools.product((0, 1, 42, 2**40), (0, 1, 2, 10**9), (0, 1, 2), (0, 1))
    keys = [sentence_key(*values) for values in grid]
    assert len(set(keys)) == len(keys) == 4 * 4 * 3 * 2


@pytest.mark.parametrize(
    ("text", "parsed"),
    [
        ("delete:0.1", (Augmentation.DELETE, 0.1)),
        ("mlm", (Augmentation.MLM, 0.15)),
        ("Delete-One", (Augmentation.DELETE_ONE, None)),
        ("synonym", (Augmentation.SYNONYM, None)),
        ("synonym:0.3", (Augmentation.SYNONYM, 0.3)),
        ("crop-prefix-chars:.2", (Augmentation.CROP_PREFIX_CHARS, 0.2)),
    ],
)
def test_parse_augmentation_reads_method_and_rate(
    text: str, parsed: tuple[Augmentation, float | None]
) -> None:
    assert parse_augmentation(text) == parsed


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("remove:0.1", "unknown augmentation 'remove'"),
        ("delete:ten", "'ten' is no number"),
        ("delete:0", "above 0 and at most 1"),
        ("delete:10", "above 0 and at most 1"),
        ("delete:nan", "above 0 and at most 1"),
        ("delete-one:0.1", "takes no rate"),
    ],
)
def test_parse_augmentation_names_what_is_wrong(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        parse_augmentation(text)
    assert caught.value.hint


def test_check_rate_fills_in_the_default_of_the_method() -> None:
    assert check_rate(Augmentation.CROP, None) == 0.1
    assert check_rate(Augmentation.DELETE_ONE, None) is None


@pytest.mark.parametrize("method", ON_TEXT)
@pytest.mark.parametrize("text", AWKWARD)
def test_augmenter_never_returns_blank_text(method: Augmentation, text: str, wordnet_dir: Path) -> None:
    for rate in (None,) if method is Augmentation.DELETE_ONE else (None, 0.1, 0.5, 1.0):
        augment = make_augmenter(method, rate, wordnet_dir=wordnet_dir)
        assert all(augment(text, key).strip() for key in range(20))


@pytest.mark.parametrize(
    ("method", "unit"),
    [(method, TextUnit.WORD) for method in ON_TEXT]
    + [(method, TextUnit.CHAR) for method in sorted(UNIT_OPERATORS)],
)
@pytest.mark.parametrize("text", AWKWARD)
def test_augmenter_never_splits_a_grapheme(
    method: Augmentation, unit: TextUnit, text: str, wordnet_dir: Path
) -> None:
    rate = None if method is Augmentation.DELETE_ONE else 0.5
    augment = make_augmenter(method, rate, unit=unit, wordnet_dir=wordnet_dir)
    known = {grapheme.strip() for grapheme in split_graphemes(text)}
    if method is Augmentation.EDA:
        known |= set("abcdefghijklmnopqrstuvwxyz")
    for key in range(20):
        assert {grapheme.strip() for grapheme in split_graphemes(augment(text, key))} <= known


@pytest.mark.parametrize("method", ON_TEXT)
def test_augmenter_repeats_itself_for_a_key_and_in_another_process(
    method: Augmentation, wordnet_dir: Path
) -> None:
    augment = make_augmenter(method, wordnet_dir=wordnet_dir)
    copy = pickle.loads(pickle.dumps(augment))  # noqa: S301 - our own bytes
    text = "The car and the dogs of a big city run to work quickly in the light of the day"
    outcomes = [augment(text, key) for key in range(40)]
    assert outcomes == copy.many([text] * 40, list(range(40)))
    assert len(set(outcomes)) > 1 or method is Augmentation.CROP_PREFIX_CHARS


def test_augmenter_deletes_characters_of_text_without_spaces() -> None:
    augment = make_augmenter(Augmentation.DELETE, 0.3, unit=TextUnit.CHAR)
    text = "今天天气很好我们去公园"
    assert len(augment(text, 0)) == 7
    assert make_augmenter(Augmentation.DELETE, 0.3)(text, 0) == text


def test_make_augmenter_refuses_characters_for_word_methods(wordnet_dir: Path) -> None:
    with pytest.raises(ConfigError, match="synonym works on whole words"):
        make_augmenter(Augmentation.SYNONYM, unit=TextUnit.CHAR, wordnet_dir=wordnet_dir)


def test_make_augmenter_has_no_mlm() -> None:
    with pytest.raises(ConfigError, match="masked language model") as caught:
        make_augmenter(Augmentation.MLM)
    assert "load_mlm_filler" in str(caught.value.hint)


@pytest.mark.parametrize(
    ("text", "split"),
    [
        ("mlm:0.15:bert-base", ("mlm:0.15", "bert-base")),
        ("mlm:0.15:D:/bert", ("mlm:0.15", "D:/bert")),
        ("delete:0.1", ("delete:0.1", None)),
        ("delete-one", ("delete-one", None)),
    ],
)
def test_split_model_takes_off_the_third_part(text: str, split: tuple[str, str | None]) -> None:
    assert split_model(text) == split


def test_make_augmenter_needs_a_wordnet(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no complete WordNet database"):
        make_augmenter(Augmentation.EDA, wordnet_dir=tmp_path)
