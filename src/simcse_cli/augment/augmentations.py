"""Make an augmenter of sentences from ``METHOD:RATE`` (``docs/augmentation.md``).

An augmenter takes texts with a key for each; the same text and key give the same result.
"""

import random
import re
from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Protocol

from simcse_cli.augment import operators
from simcse_cli.augment.negation import negate
from simcse_cli.augment.options import AugmentOptions
from simcse_cli.augment.own import OwnOperator, names_rate, parse_own, parse_rate
from simcse_cli.augment.synonyms import replace_with_synonyms
from simcse_cli.augment.wordnet import WordNet, find_wordnet
from simcse_cli.augment.words import join_units, split_units, split_words
from simcse_cli.errors import ConfigError, did_you_mean
from simcse_cli.settings.choices import Augmentation, TextUnit

_TAKE_A_TENTH = ("crop", "crop-prefix-chars", "delete", "shuffle", "eda")
DEFAULT_RATES = dict.fromkeys(map(Augmentation, _TAKE_A_TENTH), 0.1) | {
    Augmentation.MLM: 0.15,
    Augmentation.REPEAT: 0.32,
    Augmentation.REPEAT_WORDS: 0.32,
    Augmentation.MASK_SPAN: 5.0,  # characters, not a fraction
}
"""``delete-one`` and ``negate`` take no rate; ``synonym`` without a rate replaces one word."""

UNIT_OPERATORS: dict[Augmentation, Callable[..., list[str]]] = {
    Augmentation.CROP: operators.crop,
    Augmentation.DELETE: operators.delete,
    Augmentation.DELETE_ONE: operators.delete_one,
    Augmentation.SHUFFLE: operators.shuffle,
    Augmentation.REPEAT_WORDS: operators.repeat_words,
}
"""The methods that work on characters as well as on words."""

ON_CHARACTERS = (Augmentation.CROP_PREFIX_CHARS, Augmentation.MASK_SPAN)
"""The methods that always work on characters."""

WITH_SYNONYMS = (Augmentation.SYNONYM, Augmentation.EDA)
"""The methods that need WordNet."""

WITHOUT_CHANCE = (Augmentation.CROP_PREFIX_CHARS, Augmentation.NEGATE)
"""The methods that change a text in one way only."""

DEFAULT_MLM = "bert-base"  # as in Table 1 of Gao et al. 2021
_JOINT = re.compile(r"\s*\+\s*(?=[A-Za-z-]+\s*(?:[:+]|$)|[^+:]+\.py:)")
"""A plus sign between two methods; a plus sign in the name of a folder does not match."""
_STEP_BITS = 192  # bits of a key; above them stands the number of a step, so no steps share a key


def sentence_key(seed: int, line: int, copy: int = 0, side: int = 0) -> int:
    """Return the number that seeds all random choices for one augmented sentence.

    Every (seed, line, copy, side) has a different key. ``line`` is the position in the input, below
    2**64; ``copy`` is below 2**31; ``side`` is 0 for the positive and 1 for the anchor.
    """
    return (((seed << 64) | line) << 32) | (copy << 1) | side


def check_rate(method: Augmentation, rate: float | None) -> float | None:
    """Return ``rate``, or for None the default of the method, if it has one.

    Raise ConfigError for a rate that the method does not allow.
    """
    if rate is None:
        return DEFAULT_RATES.get(method)
    if method in (Augmentation.DELETE_ONE, Augmentation.NEGATE):
        hint = "leave it out"
        if method is Augmentation.DELETE_ONE:
            hint = "use `delete` to drop a share of the words"
        raise ConfigError(f"{method} takes no rate, found {rate}", hint=hint)
    if method is Augmentation.MASK_SPAN:
        if rate < 1 or rate != int(rate):
            raise ConfigError(
                f"{method}:{rate:g}: need a number of characters, at least 1",
                hint=f"write {method}:5",
            )
        return rate
    if not 0 < rate <= 1:
        raise ConfigError(
            f"rate {rate} of {method}: need a fraction above 0 and at most 1",
            hint=f"for 10% write {method}:0.1",
        )
    return rate


def check_unit(method: Augmentation, unit: TextUnit) -> None:
    if unit is not TextUnit.CHAR or method in UNIT_OPERATORS:
        return
    if method in ON_CHARACTERS:
        raise ConfigError(
            f"{method} works on characters in any case, found unit char", hint="leave --unit out"
        )
    hint = f"use --unit word, or one of: {', '.join(sorted(UNIT_OPERATORS))}"
    raise ConfigError(f"{method} works on whole words, found unit char", hint=hint)


def parse_augmentation(text: str) -> tuple[Augmentation, float | None]:
    name, _, number = text.partition(":")
    try:
        method = Augmentation(name.strip().lower())
    except ValueError:
        all_methods = f"choose one of: {', '.join(Augmentation)}, or FILE.py:FUNCTION"
        hint = did_you_mean(name, Augmentation, all_methods)
        raise ConfigError(f"unknown augmentation {name!r}", hint=hint) from None
    rate = parse_rate(number, text, method) if number else None
    return method, check_rate(method, rate)


def parse_steps(options: AugmentOptions) -> list[AugmentOptions]:
    """Return the options of each step of ``options.method``; a step is one method.

    The form is ``METHOD[:RATE[:RESOURCE]]``, with ``+`` between steps.
    ``RESOURCE`` is the masked language model of ``mlm``, the model whose sub-words ``shuffle``
    moves, or the WordNet folder of ``synonym`` and ``eda``. If there is only one step, its rate may
    be in ``options.rate`` instead.
    """
    parts = _JOINT.split(options.method)
    if options.rate is not None and (len(parts) > 1 or names_rate(parts[0])):
        raise ConfigError(
            f"--rate {options.rate} beside {options.method}: rates stand behind the methods there",
            hint="write for example crop:0.1+mlm:0.15, and leave --rate out",
        )
    if options.revision is not None and options.model is None:
        raise ConfigError(
            f"--revision {options.revision}: of which model?", hint="name it with --model"
        )
    steps = [_parse_step(part, options) for part in parts]
    if options.model is not None and not any(step.model for step in steps):
        raise ConfigError(
            "--model is for mlm and for shuffle by sub-words, "
            f"found --method {options.method} --unit {options.unit}",
            hint="leave --model out",
        )
    return steps


def _parse_step(text: str, options: AugmentOptions) -> AugmentOptions:
    """Return the options of the step in ``text``; its rate may be in ``options.rate`` instead."""
    if user_step := parse_own(text, options.rate):
        source, rate = user_step
        return replace(options, method=source, rate=rate, model=None)
    # A built-in method is METHOD, METHOD:RATE or METHOD:RATE:RESOURCE.
    name, colon, settings = text.partition(":")
    number, _, resource = settings.partition(":")
    without_resource = name + colon + number
    method, rate = parse_augmentation(without_resource)
    check_unit(method, options.unit)
    if options.rate is not None:
        rate = check_rate(method, options.rate)

    # The resource is a model or a folder, depending on the method.
    step = replace(options, method=method, rate=rate, model=None)
    # With the default unit, shuffle moves the sub-words of a model if one is given, else words.
    may_move_subwords = method is Augmentation.SHUFFLE and options.unit is TextUnit.WORD
    if method is Augmentation.MLM or may_move_subwords:
        return replace(step, model=resource or options.pinned_model)
    if not resource:
        return step
    if method in WITH_SYNONYMS:
        return replace(step, wordnet_dir=Path(resource))
    raise ConfigError(
        f"{text}: only mlm and shuffle take a model, and synonym and eda a WordNet folder",
        hint=f"write {without_resource}",
    )


def needs_model(options: AugmentOptions) -> bool:
    """Tell whether a step fills in words by a model, or shuffles the sub-words of one."""
    steps = parse_steps(options)
    return any(step.method == Augmentation.MLM or step.model is not None for step in steps)


class TextAugmenter(Protocol):
    """Changes texts; the key of a text seeds all random choices for it."""

    def many(self, texts: Sequence[str], keys: Sequence[int]) -> list[str]: ...


@dataclass(frozen=True)
class Augmenter:
    """Applies an operator to single sentences; a sentence that would become empty stays as it is.

    An augmenter can be pickled for other processes.
    """

    operator: Callable[[str, random.Random], str]

    def __call__(self, text: str, key: int) -> str:
        changed = self.operator(text, random.Random(key))
        return changed if changed else text

    def many(self, texts: Sequence[str], keys: Sequence[int]) -> list[str]:
        return [self(text, key) for text, key in zip(texts, keys, strict=True)]


@dataclass(frozen=True)
class CombinedAugmenter:
    """Applies augmenters one after the other.

    Each step has keys of its own, made from the keys of the texts, and so other random choices.
    """

    steps: Sequence[TextAugmenter]

    def many(self, texts: Sequence[str], keys: Sequence[int]) -> list[str]:
        for number, step in enumerate(self.steps):
            texts = step.many(texts, [key + (number << _STEP_BITS) for key in keys])
        return list(texts)


@dataclass(frozen=True)
class TokenAugmenter:
    """Changes the sub-word ids of a sentence in training, but not the special ids around it."""

    rate: float
    operator: ClassVar[Callable[..., list[int]]]
    most_added: ClassVar[int] = 0  # sub-words by which a row may grow

    def __call__(self, token_ids: Sequence[int], special_ids: Set[int], key: int) -> list[int]:
        """Return the changed ids; ids in ``special_ids`` are neither moved nor repeated."""
        ordinary = [place for place, token in enumerate(token_ids) if token not in special_ids]
        # `operator` is looked up on the class: an instance would bind it as a method.
        return type(self).operator(token_ids, self.rate, random.Random(key), ordinary)


class TokenShuffle(TokenAugmenter):
    """Shuffles a fraction of a sentence's sub-word ids; a single id stays in its place."""

    operator = operators.shuffle


class TokenRepeat(TokenAugmenter):
    """Writes some of a sentence's sub-word ids twice (ESimCSE)."""

    operator = operators.repeat
    most_added = operators.MAX_REPEATED - 1  # the number of repetitions is drawn below the bound


ON_TOKENS = {Augmentation.SHUFFLE: TokenShuffle, Augmentation.REPEAT: TokenRepeat}
"""The methods that training applies to sub-word ids."""


def make_augmenter(
    method: Augmentation,
    rate: float | None = None,
    *,
    unit: TextUnit = TextUnit.WORD,
    wordnet_dir: Path | None = None,
) -> Augmenter:
    """Return the augmenter of a method.

    ``mlm`` and ``repeat`` are refused, since they need a language model or an encoder.
    """
    check_unit(method, unit)
    rate = check_rate(method, rate)
    settings: dict[str, Any] = {}  # some operators have no parameter ``rate``
    if rate is not None:
        settings["rate"] = rate

    # Methods on words or characters, without resources.
    if method in UNIT_OPERATORS:
        operator = partial(UNIT_OPERATORS[method], **settings)
        return Augmenter(partial(_on_units, operator=operator, unit=unit))
    if method in (*ON_CHARACTERS, Augmentation.NEGATE):
        return Augmenter(partial(_on_text, method=method, **settings))

    # Refuse the two methods that need a model. The methods left are those that need WordNet.
    if method is Augmentation.REPEAT:
        raise ConfigError(
            f"{method} acts on the sub-words of an encoder, in training",
            hint=f"use train --augment {method}, or repeat-words",
        )
    if method is Augmentation.MLM:
        raise ConfigError(
            f"{method} needs a masked language model and is no operator on words alone",
            hint="load one with simcse_cli.augment.language_model.load_mlm_filler",
        )
    on_words = _synonym_text if method is Augmentation.SYNONYM else _eda_text
    return Augmenter(partial(on_words, wordnet=find_wordnet(wordnet_dir), **settings))


def word_augmenter(options: AugmentOptions) -> TextAugmenter:
    """Return the augmenter of all steps of ``options.method``; no step may need a model."""
    return CombinedAugmenter(list(map(word_step, parse_steps(options))))


def word_step(step: AugmentOptions) -> Augmenter:
    if step.method not in list(Augmentation):  # then it names a function of the user
        return Augmenter(OwnOperator(step.method, step.rate))
    return make_augmenter(
        Augmentation(step.method), step.rate, unit=step.unit, wordnet_dir=step.wordnet_dir
    )


def _on_units(
    text: str, rng: random.Random, *, operator: Callable[..., list[str]], unit: TextUnit
) -> str:
    """Apply an operator to the words or graphemes of a text; an empty text stays as it is."""
    units = split_units(text, unit)
    if not units:
        return text
    return join_units(operator(units, rng=rng), unit)


def _on_text(text: str, rng: random.Random, *, method: Augmentation, rate: float = 0.0) -> str:
    """Apply a method that takes a whole text; ``negate`` takes no rate."""
    if method is Augmentation.MASK_SPAN:
        return operators.mask_span(text, int(rate), rng)
    if method is Augmentation.CROP_PREFIX_CHARS:
        return operators.crop_prefix_chars(text, rate)
    return negate(text)


def _synonym_text(
    text: str, rng: random.Random, *, wordnet: WordNet, rate: float | None = None
) -> str:
    words = split_words(text)
    count = operators.n_synonyms(len(words), rate)
    return " ".join(replace_with_synonyms(words, count, rng, wordnet))


def _eda_text(text: str, rng: random.Random, *, rate: float, wordnet: WordNet) -> str:
    words = operators.eda_clean(text)
    if not words:
        return text
    return " ".join(operators.eda(words, rate, rng, wordnet))
