"""Augmentation by a masked language model: mask some words, fill in the likeliest other words.

Source: Gao et al. 2021, Table 1 ("MLM k%"). Whether words are filled together and how the filling is chosen
is not stated there; toolkit default: one mask token for each chosen word, all filled in one pass, each by the
likeliest whole word that differs from the original. The auxiliary MLM loss changes no text.
"""

import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from simcse_cli.augment.operators import n_chosen
from simcse_cli.augment.text_units import match_case, split_punctuation, split_words
from simcse_cli.errors import CheckpointError

# Logits of one forward pass, in float32 256 MiB. A constant, so that the batches, and with them the last bits
# of the logits, depend on the sentences alone.
_LOGITS_PER_PASS = 1 << 26
_MAX_TOKENS = 512
_MIN_TOKENS = 64
_N_CANDIDATES = 16  # more than a vocabulary has spellings of one word
_WORD_START_MARKERS = ("Ġ", "▁")  # of byte-level BPE and of SentencePiece; WordPiece marks continuations


WordParts = tuple[str, str, str]
"""What stands before a word, the word, what stands after it."""


@dataclass(frozen=True)
class MaskedText:
    """A sentence with chosen words masked.

    Args:
        parts: every word with the punctuation around it.
        chosen: positions of the masked words, ascending.
        text: the sentence with a mask token in each chosen place.
        mask_offsets: where in ``text`` the mask tokens begin.
    """

    parts: list[WordParts]
    chosen: list[int]
    text: str
    mask_offsets: list[int]


class _Place(NamedTuple):
    """One mask: row and token in the batch, number of the text, position of the word in it."""

    row: int
    token: int
    text: int
    word: int


def mask_words(text: str, rate: float, rng: random.Random, mask_token: str) -> MaskedText:
    """Mask ``max(1, round(rate n))`` of the ``n`` words, every choice equally likely.

    Punctuation around a word stays, and a word of punctuation alone is counted but never chosen.
    """
    parts = [split_punctuation(word) for word in split_words(text)]
    eligible = [position for position, (_, word, _) in enumerate(parts) if word]
    chosen = sorted(rng.sample(eligible, min(len(eligible), n_chosen(len(parts), rate))))
    masked, offsets, length = [], [], 0
    for position, (before, word, after) in enumerate(parts):
        if position in chosen:
            offsets.append(length + len(before))
            word = mask_token
        masked.append(before + word + after)
        length += len(masked[-1]) + 1
    return MaskedText(parts, chosen, " ".join(masked), offsets)


class MlmFiller:
    """Rewrites sentences with a masked language model; made by :func:`load_mlm_filler`.

    Args:
        model: a ``transformers`` masked-LM, in evaluation mode on its device.
        tokenizer: its fast tokenizer, with a mask token.
        rate: fraction of the words to mask, in (0, 1].
    """

    def __init__(self, model: Any, tokenizer: Any, *, rate: float) -> None:
        self.rate = rate
        self._model = model
        self._tokenizer = tokenizer
        limit = getattr(model.config, "max_position_embeddings", _MAX_TOKENS) - 2  # RoBERTa reserves two
        self._max_length = max(_MIN_TOKENS, min(_MAX_TOKENS, tokenizer.model_max_length, limit))
        tokens: list[str] = tokenizer.convert_ids_to_tokens(list(range(len(tokenizer))))
        # Embedding matrices are often padded beyond the vocabulary; those rows are no words.
        tokens = [*tokens, *[""] * model.config.vocab_size][: model.config.vocab_size]
        self._words = _vocabulary_words(tokenizer, tokens)
        begins = torch.tensor([token.startswith(_WORD_START_MARKERS) for token in tokens])
        self._glued_words = torch.tensor([word != "" for word in self._words])
        self._spaced_words = self._glued_words & begins if begins.any() else self._glued_words

    def __call__(self, text: str, key: int) -> str:
        """Return the augmented ``text``; see :meth:`many`."""
        return self.many([text], [key])[0]

    def many(self, texts: Sequence[str], keys: Sequence[int]) -> list[str]:
        """Return the augmented ``texts``; which words are masked follows from each text's key alone.

        A mask beyond the model's maximum length, and blank text, stay as they were.
        """
        mask_token = self._tokenizer.mask_token
        items = [
            mask_words(text, self.rate, random.Random(key), mask_token)
            for text, key in zip(texts, keys, strict=True)
        ]
        encoding = self._tokenizer(
            [item.text for item in items], truncation=True, max_length=self._max_length
        )
        words = [list(item.parts) for item in items]
        for batch in self._batches([len(row) for row in encoding["input_ids"]]):
            places = [
                _Place(row, token, index, position)
                for row, index in enumerate(batch)
                for position, offset in zip(items[index].chosen, items[index].mask_offsets, strict=True)
                if (token := encoding.char_to_token(index, offset)) is not None
            ]
            candidates = self._candidates([encoding["input_ids"][index] for index in batch], places, words)
            for place, tokens in zip(places, candidates, strict=True):
                before, word, after = words[place.text][place.word]
                words[place.text][place.word] = before, self._first_other(tokens, word), after
        return [
            " ".join(map("".join, parts)) if item.chosen else text
            for text, item, parts in zip(texts, items, words, strict=True)
        ]

    def _batches(self, lengths: Sequence[int]) -> Iterator[list[int]]:
        """Yield the texts' numbers in order of length, as many at a time as the logits' limit allows."""
        budget = max(1, _LOGITS_PER_PASS // self._model.config.vocab_size)
        batch: list[int] = []
        for index in sorted(range(len(lengths)), key=lengths.__getitem__):
            if batch and lengths[index] * (len(batch) + 1) > budget:
                yield batch
                batch = []
            batch.append(index)
        if batch:
            yield batch

    def _candidates(
        self, rows: Sequence[Sequence[int]], places: Sequence[_Place], words: Sequence[Sequence[WordParts]]
    ) -> list[list[int]]:
        """Return for each place the ids of its likeliest words, best first."""
        if not places:
            return []
        device = self._model.device
        tensors = [torch.tensor(row) for row in rows]
        padding = self._tokenizer.pad_token_id or 0
        token_ids = pad_sequence(tensors, batch_first=True, padding_value=padding).to(device)
        mask = pad_sequence([torch.ones_like(row) for row in tensors], batch_first=True).to(device)
        with torch.inference_mode():
            logits: Tensor = self._model(input_ids=token_ids, attention_mask=mask).logits  # (B, L, V)
        scores = logits[[place.row for place in places], [place.token for place in places]].float()  # (M, V)
        # A place glued to what stands before it, as after a bracket, takes words that begin no new word.
        glued = [place.word == 0 or words[place.text][place.word][0] != "" for place in places]
        allowed = torch.stack([self._glued_words if is_glued else self._spaced_words for is_glued in glued])
        scores = scores.masked_fill(~allowed.to(device), -torch.inf)
        best: list[list[int]] = scores.topk(min(_N_CANDIDATES, scores.shape[1])).indices.tolist()
        return best

    def _first_other(self, tokens: Sequence[int], original: str) -> str:
        words = (self._words[token] for token in tokens)
        word = next((word for word in words if word and word.lower() != original.lower()), original)
        return match_case(original, word)


def _vocabulary_words(tokenizer: Any, tokens: Sequence[str]) -> list[str]:
    """Return the text of each token that is a whole word, else the empty string.

    Special tokens, punctuation, WordPiece continuations and parts of a character are no words.
    """
    special = set(tokenizer.all_special_tokens)
    return [
        ""
        if not token or token in special or token.startswith("##")
        else _whole_word(tokenizer.convert_tokens_to_string([token]))
        for token in tokens
    ]


def _whole_word(text: str) -> str:
    text = text.strip()
    return text if text and "\ufffd" not in text and split_punctuation(text) == ("", text, "") else ""


def load_mlm_filler(model_dir: Path, *, rate: float, device: torch.device | str = "cpu") -> MlmFiller:
    """Return the filler of a local masked-LM checkpoint, in float32.

    Raises:
        CheckpointError: the files cannot be read, hold no masked-LM head, or the tokenizer has no mask token.
    """
    from transformers import AutoModelForMaskedLM, AutoTokenizer

    hint = "use a masked language model, for example --model bert-base"
    try:
        tokenizer = AutoTokenizer.from_pretrained(model_dir, trust_remote_code=False, local_files_only=True)
        model, info = AutoModelForMaskedLM.from_pretrained(
            model_dir,
            dtype=torch.float32,
            trust_remote_code=False,
            local_files_only=True,
            output_loading_info=True,
        )
    except (OSError, ValueError, KeyError) as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise CheckpointError(
            f"{model_dir}: no masked language model can be loaded ({reason})", hint=hint
        ) from error
    if tokenizer.mask_token is None:
        raise CheckpointError(f"{model_dir}: the tokenizer has no mask token", hint=hint)
    if not tokenizer.is_fast:
        raise CheckpointError(
            f"{model_dir}: the tokenizer gives no character offsets (no tokenizer.json)", hint=hint
        )
    missing = _named(info["missing_keys"])
    if missing:
        raise CheckpointError(
            f"{model_dir}: weights of the masked-LM head are missing and would be random ({missing})",
            hint=hint,
        )
    return MlmFiller(model.eval().to(device), tokenizer, rate=rate)


def _named(keys: Iterable[str]) -> str:
    names = sorted(keys)
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
