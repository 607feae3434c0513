"""Augmentation by a masked language model: mask some words, fill in the likeliest other words.

Source: Gao et al. 2021, Table 1 ("MLM k%"). Whether words are filled together and how the filling is chosen
is not stated there; toolkit default: one mask token for each chosen word, all filled in one pass, each by the
likeliest whole word that differs from the original. The auxiliary MLM loss changes no text.
"""

import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from simcse_cli.data.augmentations import n_chosen
from simcse_cli.data.text_units import match_case, split_punctuation, split_words
from simcse_cli.errors import CheckpointError

# Logits of one forward pass, in float32 256 MiB. A constant, so that the batches, and with them the last bits
# of the logits, depend on the sentences alone.
_LOGITS_PER_PASS = 1 << 26
_MAX_TOKENS = 512
_MIN_TOKENS = 64
_N_CANDIDATES = 16  # more than a vocabulary has spellings of one word
_WORD_START_MARKERS = ("Ġ", "▁")  # of byte-level BPE and of SentencePiece; WordPiece marks continuations


@dataclass(frozen=True)
class MaskedText:
    """A sentence with chosen words masked.

    Args:
        parts: per word what stands before it, the word, what stands after it.
        chosen: positions of the masked words, ascending.
        text: the sentence with a mask token in each chosen place.
        mask_offsets: where in ``text`` the mask tokens begin.
    """

    parts: list[tuple[str, str, str]]
    chosen: list[int]
    text: str
    mask_offsets: list[int]


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
        vocab_size = model.config.vocab_size
        tokens: list[str] = tokenizer.convert_ids_to_tokens(list(range(min(vocab_size, len(tokenizer)))))
        # Embedding matrices are often padded beyond the vocabulary; those rows are no words.
        self._words = _vocabulary_words(tokenizer, tokens) + [""] * (vocab_size - len(tokens))
        is_marked = [token.startswith(_WORD_START_MARKERS) for token in tokens] + [False] * (
            vocab_size - len(tokens)
        )
        self._glued_words = torch.tensor([word != "" for word in self._words])
        self._spaced_words = (
            self._glued_words & torch.tensor(is_marked) if any(is_marked) else self._glued_words
        )

    def __call__(self, text: str, key: int) -> str:
        """Return the augmented ``text``; see :meth:`many`."""
        return self.many([text], [key])[0]

    def many(self, texts: Sequence[str], keys: Sequence[int]) -> list[str]:
        """Return the augmented ``texts``; which words are masked follows from each text's key alone.

        A mask beyond the model's maximum length, and blank text, stay as they were.
        """
        masked = [
            mask_words(text, self.rate, random.Random(key), self._tokenizer.mask_token)
            if text.strip()
            else None
            for text, key in zip(texts, keys, strict=True)
        ]
        filled = list(texts)
        for batch in self._batches([(i, item) for i, item in enumerate(masked) if item is not None]):
            for index, text in self._fill(batch):
                filled[index] = text
        return filled

    def _batches(self, items: list[tuple[int, MaskedText]]) -> Iterator[list[tuple[int, MaskedText]]]:
        """Yield the sentences in order of length, as many at a time as the logits' limit allows."""
        items.sort(key=lambda item: len(item[1].text))
        budget = max(1, _LOGITS_PER_PASS // self._model.config.vocab_size)
        batch: list[tuple[int, MaskedText]] = []
        for item in items:
            # Sub-words are at least a character each, so characters bound the padded length from above.
            n_tokens = min(self._max_length, len(item[1].text) + 2)
            if batch and n_tokens * (len(batch) + 1) > budget:
                yield batch
                batch = []
            batch.append(item)
        if batch:
            yield batch

    def _fill(self, batch: Sequence[tuple[int, MaskedText]]) -> Iterator[tuple[int, str]]:
        encoding = self._tokenizer(
            [item.text for _, item in batch],
            padding=True,
            truncation=True,
            max_length=self._max_length,
            return_tensors="pt",
        )
        places = [
            (row, position, token)
            for row, (_, item) in enumerate(batch)
            for position, offset in zip(item.chosen, item.mask_offsets, strict=True)
            if (token := encoding.char_to_token(row, offset)) is not None
        ]
        words = [list(item.parts) for _, item in batch]
        candidates = self._candidates(encoding, places, words)
        for (row, position, _), tokens in zip(places, candidates, strict=True):
            before, word, after = words[row][position]
            words[row][position] = before, self._first_other(tokens, word), after
        for (index, _), parts in zip(batch, words, strict=True):
            yield index, " ".join(before + word + after for before, word, after in parts)

    def _candidates(
        self,
        encoding: Any,
        places: Sequence[tuple[int, int, int]],
        words: Sequence[Sequence[tuple[str, str, str]]],
    ) -> list[list[int]]:
        """Return for each place the ids of its likeliest words, best first."""
        if not places:
            return []
        with torch.inference_mode():
            logits: Tensor = self._model(**encoding.to(self._model.device)).logits  # (B, L, V)
        rows, positions, tokens = zip(*places, strict=True)
        scores = logits[list(rows), list(tokens)].float()  # (M, V)
        # A place glued to what stands before it, as after a bracket, takes words that begin no new word.
        glued = [
            position == 0 or words[row][position][0] != ""
            for row, position in zip(rows, positions, strict=True)
        ]
        allowed = torch.stack([self._glued_words if is_glued else self._spaced_words for is_glued in glued])
        scores = scores.masked_fill(~allowed.to(scores.device), -torch.inf)
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
        if token in special or token.startswith("##")
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
