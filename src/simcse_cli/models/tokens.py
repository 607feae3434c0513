"""Turn texts into sub-word ids: whole, cut at a length, or in windows."""

import functools
import itertools
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tokenizers import Tokenizer
from tokenizers.normalizers import Lowercase
from tokenizers.normalizers import Sequence as Normalizers

from simcse_cli.errors import CheckpointError, ConfigError, DataError
from simcse_cli.files.schema import foreign_format
from simcse_cli.models.record import PROMPTS_FILE
from simcse_cli.progress import Progress

CLEAN_FILE = "clean the file with `simcse prepare sentences FILE -o CLEAN.txt`"
_SURROGATE = re.compile("[\ud800-\udfff]")
# Settings that say where the files of a tokenizer are; no sub-word depends on them.
_PATH_SETTINGS = (
    "name_or_path",
    "vocab_file",
    "merges_file",
    "tokenizer_file",
    "special_tokens_map_file",
)
NO_LIMIT = 2**31 - 1
"""The length of a model that reads texts of any length."""


def lower_case(tokenizer: Any) -> None:
    """Make a tokenizer lower-case every text before its own normalisation.

    Source: sentence-transformers 6, ``do_lower_case`` of a Transformer module.
    """
    if not getattr(tokenizer, "is_fast", False):
        tokenizer.do_lower_case = True
        return
    backend = tokenizer.backend_tokenizer
    normalizer: Any = backend.normalizer
    steps: list[Any] = []
    if isinstance(normalizer, Normalizers):
        steps = [*normalizer]  # type: ignore[misc]
    elif normalizer is not None:
        steps = [normalizer]
    if not any(isinstance(step, Lowercase) for step in steps):
        backend.normalizer = Normalizers([Lowercase(), *steps])


def turn_off_dropout(tokenizer: Any) -> float | None:
    """Let a tokenizer of byte pairs cut a text in the same way each time.

    Return the share of merges that it left out at random before, or None if it left out none.
    """
    if not getattr(tokenizer, "is_fast", False):
        return None
    model = tokenizer.backend_tokenizer.model
    dropout: float | None = getattr(model, "dropout", None)
    if not dropout:
        return None
    model.dropout = None
    return dropout


@dataclass
class Tokens:
    """The tokenizer of a model.

    Attributes:
        tokenizer: the Hugging Face tokenizer.
        max_length: how many sub-words of a text the model reads at most, special ones included;
            ``NO_LIMIT`` for any number.
        n_known: size of the vocabulary that the weights have.
        name: the name that the user gave the model, for messages.
        n_cut: texts cut since the last warning.
        n_unknown: texts without a known sub-word since the last warning.
    """

    tokenizer: Any
    max_length: int
    n_known: int
    name: str
    n_cut: int = 0
    n_unknown: int = 0

    def __post_init__(self) -> None:
        self._rust_tokenizers: dict[int | None, Tokenizer] = {}
        self._require_known_vocabulary()

    def _require_known_vocabulary(self) -> None:
        """Raise CheckpointError if the tokenizer gives sub-words unknown to the weights."""
        rust = self._rust_tokenizer(limit=None)
        if rust is None:
            n_words = len(self.tokenizer)
        else:
            n_words = rust.get_vocab_size(with_added_tokens=True)
        if n_words > self.n_known:
            raise CheckpointError(
                f"{self.name}: its tokenizer knows {n_words:,} sub-words, its weights have "
                f"embeddings for {self.n_known:,}",
                hint="give the weights as many by model.resize_token_embeddings(len(tokenizer)) "
                "of transformers, or remove the added tokens from the tokenizer",
            )

    @functools.cached_property
    def description(self) -> str:
        """A text that changes with every setting of the tokenizer that may change sub-words.

        The same rule for special tokens can be written in several ways in a file, so the rule is
        described by the ids of a short text with its special tokens.
        """
        rust = self._rust_tokenizer(limit=None)
        if rust is None:
            settings: dict[str, str] = {}
            for name, value in vars(self.tokenizer).get("init_kwargs", {}).items():
                if name not in _PATH_SETTINGS:
                    settings[name] = str(value)
            facts: dict[str, Any] = {
                "class": type(self.tokenizer).__name__,
                "vocabulary": self.tokenizer.get_vocab(),
                "settings": settings,
            }
        else:
            facts = json.loads(rust.to_str())
            for name in ("version", "truncation", "padding", "decoder"):
                del facts[name]
            facts["post_processor"] = rust.encode("a").ids
        return json.dumps([self.tokenizer.truncation_side, facts], sort_keys=True)

    @property
    def pad_id(self) -> int:
        """Id of the padding token; 0 if there is none, because padding is masked anyway.

        An empty text becomes this token if the tokenizer adds no special tokens.
        """
        return int(self.tokenizer.pad_token_id or 0)

    def ids(self, texts: Sequence[str], limit: int | None) -> list[list[int]]:
        """Return the sub-word ids of each text, special tokens included.

        A text is cut at ``limit`` ids; None leaves it whole. A text that gives no id becomes
        ``pad_id``. Raise DataError for a text that holds half of a character, and CheckpointError
        for a sub-word that the weights do not know.
        """
        rust = self._rust_tokenizer(limit)

        # For half of a character, the tokenizers would raise an error that does not name the text.
        for text in texts:
            if not text.isascii() and _SURROGATE.search(text):
                raise DataError(
                    f"{text[:80]!r} holds half of a character (a lone surrogate), need text",
                    hint=CLEAN_FILE,
                )
        with foreign_format(
            self.name, "a tokenizer that can cut every sentence", error=CheckpointError
        ):
            if rust is None:
                options: dict[str, Any] = {"verbose": False}  # no warning of long texts
                if limit:
                    options = {"truncation": True, "max_length": limit}
                rows = self.tokenizer(list(texts), **options)["input_ids"]
            else:
                rows = [encoding.ids for encoding in rust.encode_batch_fast(list(texts))]
        rows = [row or [self.pad_id] for row in rows]

        # The weights must know every sub-word.
        largest = max(map(max, rows), default=0)
        if largest >= self.n_known:
            raise CheckpointError(
                f"{self.name}: its tokenizer gives the sub-word {largest:,}, its weights know "
                f"{self.n_known:,}",
                hint="tokenizer and weights are of different models: take both from the same one",
            )
        return rows

    def _rust_tokenizer(self, limit: int | None) -> Tokenizer | None:
        """Return a private copy of the Rust tokenizer, or None for a slow tokenizer.

        The copy is private because all users of the original share its truncation.
        """
        if not getattr(self.tokenizer, "is_fast", False):
            return None
        if limit not in self._rust_tokenizers:
            copy = Tokenizer.from_str(self.tokenizer.backend_tokenizer.to_str())
            copy.no_padding()
            if limit is None:
                copy.no_truncation()
            else:
                copy.enable_truncation(max_length=limit, direction=self.tokenizer.truncation_side)
            self._rust_tokenizers[limit] = copy
        return self._rust_tokenizers[limit]

    def words(self, texts: Sequence[str], limit: int) -> list[list[int | None]]:
        """Return rows as ``ids`` does, with the number of its word in place of each sub-word.

        Words are what the tokenizer first cuts a text into, numbered from 0 in each text. Special
        tokens have None. Raise ConfigError if the tokenizer does not tell the words.
        """
        rust = self._rust_tokenizer(limit)
        if rust is None:
            raise ConfigError(
                f"--whole-words: the tokenizer of {self.name} does not tell which sub-words "
                "are one word",
                hint="leave it out, or use a model that has a tokenizer.json",
            )
        return [encoding.word_ids for encoding in rust.encode_batch(list(texts))]

    def frame(self, prompt: str, limit: int) -> tuple[int, int]:
        """Return how many tokens come before a text, the prompt included, and how many after it.

        Raise ConfigError if they leave no room for a text in a row of ``limit`` tokens.
        """
        # Only special tokens come after a text: those at the end of a row.
        n_after = sum(itertools.takewhile(bool, reversed(self._special_mask("a"))))
        # The prompt is read alone here, so its row also has the tokens that come after a text.
        n_before = len(self._special_mask(prompt)) - n_after
        if n_before + n_after >= limit:
            raise ConfigError(
                f"{self.name}: the prompt {prompt!r} has {n_before + n_after} sub-words with the "
                f"special ones, which leave no room for a text; need fewer than {limit}",
                hint=f"shorten it (--prompt, or {PROMPTS_FILE} of the model), or leave it out: "
                "--prompt ''",
            )
        return n_before, n_after

    def _special_mask(self, text: str) -> list[int]:
        """Return, for each token of a text, 1 if it is a special token and 0 otherwise."""
        rust = self._rust_tokenizer(limit=None)
        if rust is None:
            encoding = self.tokenizer(text, return_special_tokens_mask=True)
            return list(encoding["special_tokens_mask"])
        return list(rust.encode(text).special_tokens_mask)

    def longer_than(
        self, limit: int, texts: Sequence[str], rows: Sequence[Sequence[int]]
    ) -> dict[int, list[int]]:
        """Return, for each text of more than ``limit`` sub-words, its position and all of these.

        ``rows`` holds the sub-words of all texts, cut at ``limit``.
        """
        # A row shorter than the limit was not cut, so only the others are read again.
        candidates = [position for position, row in enumerate(rows) if len(row) >= limit]
        if not candidates:
            return {}
        uncut = self.ids([texts[position] for position in candidates], limit=None)
        pairs = zip(candidates, uncut, strict=True)
        return {position: ids for position, ids in pairs if len(ids) > limit}

    @functools.cached_property
    def _ids_of_unknown(self) -> frozenset[int]:
        """All ids that a text may have if none of its sub-words is known.

        The set is empty if the tokenizer has no token that stands only for unknown sub-words.
        """
        unknown_id = self.tokenizer.unk_token_id
        (empty_row,) = self.ids([""], limit=None)
        # Some tokenizers give unknown sub-words the end token, which an empty text has as well.
        if unknown_id is None or unknown_id in empty_row:
            return frozenset()
        return frozenset([unknown_id, *empty_row])

    def without_known(self, rows: Sequence[list[int]], frame: tuple[int, int]) -> list[int]:
        """Return the positions of the rows in whose texts all sub-words are unknown.

        An empty text does not count. ``frame`` tells how many tokens stand before and after each
        text. If there is no prompt, it may be zeros: special tokens do not count as known.
        """
        ids_of_unknown = self._ids_of_unknown
        if not ids_of_unknown:
            return []
        unknown_id = self.tokenizer.unk_token_id
        n_before, n_after = frame
        positions = []
        for position, row in enumerate(rows):
            if unknown_id in row:  # few rows have it, so few are sliced
                text = row[n_before : len(row) - n_after]
                if unknown_id in text and ids_of_unknown.issuperset(text):
                    positions.append(position)
        return positions

    def cut_note(self, n_texts: int) -> str:
        """Return the warning that this many texts were cut."""
        noun = "text" if n_texts == 1 else "texts"
        return (
            f"cut {n_texts:,} {noun} at {self.max_length} sub-words, the most that {self.name} "
            "reads; --long mean takes the mean of their windows"
        )

    def unknown_note(self, n_texts: int) -> str:
        """Return the warning that the model cannot read this many texts."""
        texts_are = "text is" if n_texts == 1 else "texts are"
        return (
            f"{n_texts:,} {texts_are} unknown to {self.name}: all sub-words are "
            f"{self.tokenizer.unk_token}, so the vector says nothing of the text"
        )

    def warn_unread(self, progress: Progress) -> None:
        """Warn of the texts that were cut or unknown since the last warning, if there are any."""
        if self.n_cut:
            progress.warn(self.cut_note(self.n_cut))
        if self.n_unknown:
            progress.warn(self.unknown_note(self.n_unknown))
        self.n_cut = self.n_unknown = 0


def in_windows(ids: list[int], frame: tuple[int, int], limit: int) -> list[list[int]]:
    """Return the sub-words of a text in pieces of at most ``limit``.

    ``frame`` tells how many tokens stand before and after the text; each piece gets these tokens.
    """
    n_before, n_after = frame
    end = len(ids) - n_after
    before = ids[:n_before]
    after = ids[end:]
    room = limit - n_before - n_after
    pieces: list[list[int]] = []
    for start in range(n_before, end, room):
        stop = min(start + room, end)
        pieces.append(before + ids[start:stop] + after)
    return pieces
