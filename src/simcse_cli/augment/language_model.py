"""Augmentations that need a language model or its tokenizer.

A masked language model fills in words, and a tokenizer cuts the sub-words to shuffle.

Source of the filling: Gao et al. 2021, Table 1 ("MLM k%"). The paper does not say whether all words
are filled together, nor how a new word is chosen. Here each chosen word becomes one mask token, and
one pass fills all of them, each by the likeliest whole word that differs from the original. The
paper's auxiliary MLM loss is another thing: it changes no text.
"""

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache, partial
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from simcse_cli.augment import augmentations
from simcse_cli.augment.operators import n_chosen, shuffle
from simcse_cli.augment.options import AugmentOptions
from simcse_cli.augment.words import grapheme_starts, match_case, split_punctuation, split_words
from simcse_cli.errors import CheckpointError
from simcse_cli.machine.devices import resolve_device
from simcse_cli.models.model_files import find_model
from simcse_cli.models.padding import pad
from simcse_cli.models.pretrained import load_masked_lm, load_tokenizer
from simcse_cli.models.resolve import resolve_model
from simcse_cli.progress import SILENT, Progress
from simcse_cli.settings.choices import Augmentation

# The most logits in one forward pass: 256 MiB in float32. It is a constant, so that the batches,
# and with them the last bits of the logits, depend on the sentences alone.
_LOGITS_PER_PASS = 1 << 26
_MAX_TOKENS = 512
_N_CANDIDATES = 16  # no word has so many spellings in a vocabulary: one candidate is another word
# Marks of a token that begins a word, in byte-level BPE and in SentencePiece; WordPiece marks the
# tokens that continue a word instead.
_WORD_START_MARKERS = ("Ġ", "▁")


def model_augmenter(
    options: AugmentOptions, progress: Progress = SILENT
) -> augmentations.TextAugmenter:
    """Return the augmenter of all steps of ``options.method``; some steps may need a model."""
    steps = augmentations.parse_steps(options)
    return augmentations.CombinedAugmenter([_model_step(step, progress) for step in steps])


def _model_step(step: AugmentOptions, progress: Progress) -> augmentations.TextAugmenter:
    # mlm and shuffle have a default rate, so ``or 0.0`` only helps the type checker.
    if step.method == Augmentation.MLM:
        name = step.model or augmentations.DEFAULT_MLM
        device = resolve_device(step.device)
        return load_mlm_filler(name, rate=step.rate or 0.0, device=device, progress=progress)
    if step.model is not None:  # besides mlm, only shuffling by sub-words has one
        return make_subword_shuffler(resolve_model(step.model, progress), step.rate or 0.0)
    return augmentations.word_step(step)


WordParts = tuple[str, str, str]  # punctuation before, the word, punctuation after


@dataclass(frozen=True)
class MaskedText:
    parts: list[WordParts]  # of every word
    text: str  # with a mask token for each masked word
    masks: list[tuple[int, int]]  # index of each masked word, offset of its mask token in ``text``


class _Place(NamedTuple):
    row: int  # in the batch
    token: int  # position in the row
    text: int  # number among all texts
    word: int  # position in the text
    is_behind_space: bool


def mask_words(text: str, rate: float, rng: random.Random, mask_token: str) -> MaskedText:
    """Mask ``max(1, round(rate n))`` of the ``n`` words, every choice equally likely.

    Punctuation around a word stays, and a word of punctuation alone is counted but never chosen.
    """
    parts = [split_punctuation(word) for word in split_words(text)]
    eligible = [position for position, (_, word, _) in enumerate(parts) if word]
    n_masked = min(len(eligible), n_chosen(len(parts), rate))
    chosen = rng.sample(eligible, n_masked)
    words = []
    masks = []
    text_length = 0
    for position, (before, word, after) in enumerate(parts):
        if position in chosen:
            masks.append((position, text_length + len(before)))
            word = mask_token
        words.append(before + word + after)
        text_length += len(words[-1]) + 1  # with the space behind it
    return MaskedText(parts, " ".join(words), masks)


class MlmFiller:
    """Fills in words by a masked-LM of ``transformers`` in evaluation mode."""

    def __init__(self, model: Any, tokenizer: Any, *, rate: float) -> None:
        self.rate = rate
        self._model = model
        self._tokenizer = tokenizer
        n_positions = getattr(model.config, "max_position_embeddings", _MAX_TOKENS)
        # RoBERTa has two positions that no text can take; they are subtracted for any model.
        self._max_length = min(_MAX_TOKENS, tokenizer.model_max_length, n_positions - 2)

        # Embedding matrices are often padded beyond the vocabulary; the added rows are no words.
        n_rows = model.config.vocab_size
        tokens: list[str] = tokenizer.convert_ids_to_tokens(list(range(len(tokenizer))))
        no_words = [""] * n_rows
        tokens = [*tokens, *no_words][:n_rows]
        self._word_of_token = _whole_words(tokenizer, tokens)
        self._is_word = torch.tensor([word != "" for word in self._word_of_token])
        # If a vocabulary marks the tokens that begin a word, a word behind a space needs this mark.
        # At the start of a text or behind punctuation, it may have a token without the mark.
        starts_word = torch.tensor([token.startswith(_WORD_START_MARKERS) for token in tokens])
        self._is_word_behind_space = self._is_word
        if starts_word.any():
            self._is_word_behind_space = self._is_word & starts_word

    def many(self, texts: Sequence[str], keys: Sequence[int]) -> list[str]:
        """Return the augmented ``texts``; the key of a text decides which of its words are masked.

        Masked words beyond the model's maximum length are restored.
        """
        # Mask words in all texts.
        mask_token = self._tokenizer.mask_token
        masked = []
        for text, key in zip(texts, keys, strict=True):
            masked.append(mask_words(text, self.rate, random.Random(key), mask_token))
        masked_texts = [item.text for item in masked]
        encoding = self._tokenizer(masked_texts, truncation=True, max_length=self._max_length)
        rows = encoding["input_ids"]

        # Fill in the masked words, batch by batch. ``words`` holds the parts of each word of each
        # text: at first they are all original, then new words take the places of some.
        words = [list(item.parts) for item in masked]
        lengths = list(map(len, rows))
        for batch in self._batches(lengths):
            places = list(_places(batch, masked, encoding))
            candidates = self._candidates([rows[index] for index in batch], places)
            for place, tokens in zip(places, candidates, strict=True):
                before, word, after = words[place.text][place.word]
                new_word = match_case(word, self._first_other(word, tokens))
                words[place.text][place.word] = before, new_word, after

        # A text without a masked word stays as it is, with its white space.
        filled = list(texts)
        for index, item in enumerate(masked):
            if item.masks:
                filled[index] = " ".join("".join(parts) for parts in words[index])
        return filled

    def _first_other(self, word: str, tokens: Sequence[int]) -> str:
        """Return the first word of ``tokens`` other than ``word``, or ``word`` if there is none."""
        for token in tokens:
            other = self._word_of_token[token]
            if other and other.lower() != word.lower():
                return other
        return word

    def _batches(self, lengths: Sequence[int]) -> Iterator[list[int]]:
        """Yield batches of texts, as their indices in ``lengths``, short texts first.

        A batch, padded to its longest text, gives at most ``_LOGITS_PER_PASS`` logits, unless it is
        a single text.
        """
        max_tokens = _LOGITS_PER_PASS // self._model.config.vocab_size
        batch: list[int] = []
        for index in sorted(range(len(lengths)), key=lengths.__getitem__):
            # This text is the longest so far, and the others are padded to its length.
            if batch and lengths[index] * (len(batch) + 1) > max_tokens:
                yield batch
                batch = []
            batch.append(index)
        if batch:
            yield batch

    def _candidates(
        self, rows: Sequence[Sequence[int]], places: Sequence[_Place]
    ) -> list[list[int]]:
        """Return the ids of the likeliest words for each place, best first.

        ``rows`` are the token ids of a batch, and ``places`` are those of its mask tokens.
        """
        if not places:
            return []
        device = self._model.device
        token_ids, mask = pad(rows, self._tokenizer.pad_token_id or 0, device)
        with torch.inference_mode():
            output = self._model(input_ids=token_ids, attention_mask=mask)
        logits: Tensor = output.logits  # (B, L, V)
        place_rows = [place.row for place in places]
        place_tokens = [place.token for place in places]
        scores = logits[place_rows, place_tokens].float()  # (M, V) for M places

        # Behind a space a word needs a token with the mark of a new word. At the start of the text
        # and right behind punctuation it may have any token that is a whole word.
        allowed = []
        for place in places:
            allowed.append(self._is_word_behind_space if place.is_behind_space else self._is_word)
        scores = scores.masked_fill(~torch.stack(allowed).to(device), -torch.inf)
        best: list[list[int]] = scores.topk(min(_N_CANDIDATES, scores.shape[1])).indices.tolist()
        return best


def _places(batch: Sequence[int], masked: Sequence[MaskedText], encoding: Any) -> Iterator[_Place]:
    """Yield the place of each mask token in a batch, unless the tokenizer has cut it off.

    ``batch`` holds the indices of its texts in ``masked`` and ``encoding``.
    """
    for row, index in enumerate(batch):
        item = masked[index]
        for word, offset in item.masks:
            token = encoding.char_to_token(index, offset)
            if token is not None:
                punctuation, _, _ = item.parts[word]  # before the word
                is_behind_space = word > 0 and not punctuation
                yield _Place(row, token, index, word, is_behind_space)


def _whole_words(tokenizer: Any, tokens: Sequence[str]) -> list[str]:
    """Return the text of each token that is a whole word, and "" for parts and punctuation."""
    special = set(tokenizer.all_special_tokens)
    words = []
    for token in tokens:
        text = ""
        if token not in special:
            text = tokenizer.convert_tokens_to_string([token]).strip()
        is_word = split_punctuation(text) == ("", text, "")
        words.append(text if is_word else "")
    return words


def load_mlm_filler(
    name: str | Path,
    *,
    rate: float,
    device: torch.device | str = "cpu",
    progress: Progress = SILENT,
) -> MlmFiller:
    """Load a masked language model; raise CheckpointError for a model of another kind."""
    hint = (
        "give --model a masked language model, such as bert-base, "
        "or a folder that `train --objective mlm` wrote"
    )

    try:
        model_dir = find_model(name, progress).named
    except CheckpointError as error:  # its own hint may suggest a model that fills in no words
        raise CheckpointError(error.message, hint=hint) from error

    def refuse(reason: str) -> CheckpointError:
        return CheckpointError(f"{model_dir}: {reason}", hint=hint)

    tokenizer = load_tokenizer(model_dir)
    model = load_masked_lm(model_dir)
    if tokenizer.mask_token is None:
        raise refuse("the tokenizer has no mask token")
    if not tokenizer.is_fast:
        raise refuse("the tokenizer gives no character offsets (no tokenizer.json)")
    return MlmFiller(model.to(device), tokenizer, rate=rate)


def make_subword_shuffler(model_dir: Path, rate: float) -> augmentations.Augmenter:
    return augmentations.Augmenter(partial(_shuffle_subwords, rate=rate, model_dir=model_dir))


def _shuffle_subwords(text: str, rng: random.Random, *, rate: float, model_dir: Path) -> str:
    """Permute a fraction of a text's sub-words; the white space stays in its places."""
    # A tokenizer may cut the result into other sub-words. Training avoids this: it shuffles the
    # ids themselves (TokenShuffle).
    pieces, gaps = split_subwords(text, model_dir)
    return join_pieces(shuffle(pieces, rate, rng), gaps).strip()


_tokenizer = cache(load_tokenizer)  # read once in each worker


def split_subwords(text: str, model_dir: Path) -> tuple[list[str], list[str]]:
    """Return the ``n`` sub-words of ``text``, and the ``n + 1`` gaps around them.

    A gap is white space or empty. For example, ``"unhappy cat"`` may give
    ``["un", "happy", "cat"]`` and ``["", "", " ", ""]``. No grapheme is cut.
    """
    encoding = _tokenizer(model_dir)(text, return_offsets_mapping=True, verbose=False)
    return cut_pieces(text, [start for start, _ in encoding["offset_mapping"]])


def cut_pieces(text: str, starts: Sequence[int]) -> tuple[list[str], list[str]]:
    """Cut ``text`` at each of ``starts`` where a grapheme begins; return the pieces and the gaps.

    There is a gap before, between and after the pieces: white space, or an empty text.
    """
    pieces: list[str] = []
    gaps = [""]
    cuts = (set(starts) & grapheme_starts(text)) - {0}
    borders = [0, *sorted(cuts), len(text)]
    for start, end in pairwise(borders):
        stretch = text[start:end]
        piece = stretch.strip()
        if not piece:
            gaps[-1] += stretch
            continue
        before, _, after = stretch.partition(piece)
        gaps[-1] += before
        pieces.append(piece)
        gaps.append(after)
    return pieces, gaps


def join_pieces(pieces: Sequence[str], gaps: Sequence[str]) -> str:
    return gaps[0] + "".join(piece + gap for piece, gap in zip(pieces, gaps[1:], strict=True))
