import itertools
import pickle
from pathlib import Path

import pytest

from simcse_cli.augment.augmentations import (
    UNIT_OPERATORS,
    check_rate,
    make_augmenter,
    needs_model,
    parse_augmentation,
    parse_steps,
    sentence_key,
    word_augmenter,
)
from simcse_cli.augment.options import AugmentOptions
from simcse_cli.augment.words import split_graphemes
from simcse_cli.errors import ConfigError, DataError
from simcse_cli.settings.choices import Augmentation, TextUnit

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
ON_TEXT = [
    method for method in Augmentation if method not in (Augmentation.MLM, Augmentation.REPEAT)
]


def test_sentence_key_differs_for_every_argument() -> None:
    grid = itertools.product((0, 1, 42, 2**40), (0, 1, 2, 10**9), (0, 1, 2), (0, 1))
    keys = [sentence_key(*values) for values in grid]
    assert len(set(keys)) == len(keys) == 4 * 4 * 3 * 2
    assert sentence_key(1, 2) == 2**96 + 2 * 2**32
    assert sentence_key(1, 2, 3, 1) == 2**96 + 2 * 2**32 + 3 * 2 + 1


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
        ("delete:1.5", "above 0 and at most 1"),
        ("delete:nan", "above 0 and at most 1"),
        ("delete-one:0.1", "takes no rate"),
        ("negate:0.1", "takes no rate"),
        ("mask-span:0.1", "mask-span:0.1: need a number of characters"),
    ],
)
def test_parse_augmentation_names_what_is_wrong(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        parse_augmentation(text)
    assert caught.value.hint


def test_check_rate_fills_in_the_default_of_the_method() -> None:
    other = {Augmentation.MLM: 0.15, Augmentation.DELETE_ONE: None, Augmentation.SYNONYM: None}
    other |= {Augmentation.MASK_SPAN: 5, Augmentation.NEGATE: None}
    other |= dict.fromkeys((Augmentation.REPEAT, Augmentation.REPEAT_WORDS), 0.32)
    for method in Augmentation:
        assert check_rate(method, None) == other.get(method, 0.1)


@pytest.mark.parametrize("method", ON_TEXT)
@pytest.mark.parametrize("text", AWKWARD)
def test_augmenter_never_returns_blank_text(
    method: Augmentation, text: str, wordnet_dir: Path
) -> None:
    whole = {
        Augmentation.DELETE_ONE: (None,),
        Augmentation.NEGATE: (None,),
        Augmentation.MASK_SPAN: (None, 1, 7),
    }
    for rate in whole.get(method, (None, 0.1, 0.5, 1.0)):
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
    whole = method in (Augmentation.DELETE_ONE, Augmentation.MASK_SPAN, Augmentation.NEGATE)
    rate = None if whole else 0.5
    augment = make_augmenter(method, rate, unit=unit, wordnet_dir=wordnet_dir)
    known = {grapheme.strip() for grapheme in split_graphemes(text)}
    if method is Augmentation.NEGATE:
        known |= set("Not not")
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
    is_fixed = method in (Augmentation.CROP_PREFIX_CHARS, Augmentation.NEGATE)
    assert len(set(outcomes)) > 1 or is_fixed


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
    ("text", "parsed"),
    [
        ("crop", [("crop", 0.1, None, None)]),
        ("crop:0.2+mlm:0.15", [("crop", 0.2, None, None), ("mlm", 0.15, None, None)]),
        (
            "MLM:0.3:/a+b/c:d + delete-one",
            [("mlm", 0.3, "/a+b/c:d", None), ("delete-one", None, None, None)],
        ),
        ("shuffle::tiny", [("shuffle", 0.1, "tiny", None)]),
        (
            "synonym::wn+eda:0.2:wn",
            [("synonym", None, None, Path("wn")), ("eda", 0.2, None, Path("wn"))],
        ),
    ],
)
def test_parse_steps_reads_methods_rates_and_resources(
    text: str, parsed: list[tuple[object, ...]]
) -> None:
    steps = parse_steps(AugmentOptions(method=text))
    assert [(step.method, step.rate, step.model, step.wordnet_dir) for step in steps] == parsed


def test_parse_steps_takes_rate_and_model_from_options_of_their_own() -> None:
    (step,) = parse_steps(AugmentOptions(method="crop", rate=0.2))
    assert step.rate == 0.2
    crop, mlm = parse_steps(AugmentOptions(method="crop:0.2+mlm", model="m", revision="r"))
    assert (crop.model, mlm.model) == (None, "m@r")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (AugmentOptions(method="crop+delete", rate=0.2), "rates stand behind the methods"),
        (AugmentOptions(method="crop:0.1", rate=0.2), "rates stand behind the methods"),
        (AugmentOptions(method="crop+paint"), "unknown augmentation 'paint'"),
        (AugmentOptions(method="crop:0.1:bert-base"), "only mlm and shuffle take a model"),
        (AugmentOptions(method="crop+delete", model="bert-base"), "--model is for mlm"),
        (
            AugmentOptions(method="shuffle", unit=TextUnit.CHAR, model="bert-base"),
            "--model is for mlm",
        ),
        (AugmentOptions(method="mlm", revision="main"), "of which model"),
        (AugmentOptions(method="crop+synonym", unit=TextUnit.CHAR), "synonym works on whole words"),
        (AugmentOptions(method="mask-span", unit=TextUnit.CHAR), "works on characters in any case"),
    ],
)
def test_parse_steps_names_what_is_wrong(options: AugmentOptions, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        parse_steps(options)
    assert caught.value.hint


@pytest.mark.parametrize(
    ("method", "model", "needed"),
    [
        ("crop:0.1+delete", None, False),
        ("crop+mlm", None, True),
        ("MLM:0.1", None, True),
        ("shuffle::tiny", None, True),
        ("shuffle", "tiny", True),
    ],
)
def test_the_steps_tell_whether_a_model_is_needed(
    method: str, model: str | None, needed: bool
) -> None:
    assert needs_model(AugmentOptions(method=method, model=model)) is needed


def test_combination_applies_its_steps_in_turn_with_randomness_of_their_own() -> None:
    text = " ".join(map(str, range(40)))
    combined = word_augmenter(AugmentOptions(method="crop:0.5+delete:0.5"))
    crop, delete = make_augmenter(Augmentation.CROP, 0.5), make_augmenter(Augmentation.DELETE, 0.5)
    keys = [sentence_key(seed=3, line=line) for line in range(200)]
    results = combined.many([text] * 200, keys)
    assert [crop(text, key).split() for key in keys] == [
        [str(n) for n in range(first, first + 20)]
        for first in (int(crop(text, key).split()[0]) for key in keys)
    ]
    for key, result in zip(keys, results, strict=True):
        cropped = crop(text, key).split()
        assert set(result.split()) <= set(cropped)
        assert len(result.split()) == 10
        assert result == delete(
            crop(text, key), key + 2**192
        )  # not the draws of the first step again


def test_make_augmenter_needs_a_wordnet(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no complete WordNet database"):
        make_augmenter(Augmentation.EDA, wordnet_dir=tmp_path)
