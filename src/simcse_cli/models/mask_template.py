"""The template of the pooler ``mask``: words around a sentence, among them a [MASK]."""

import re
from collections.abc import Sequence

from simcse_cli.errors import ConfigError
from simcse_cli.models.tokens import NO_LIMIT, Tokens

NOTHING_AROUND = "{}"
_PLACE = re.compile(r"\{(\.?)\}")
_MASK = "{mask}"
_ENDS = tuple(".?\"'")


class MaskTemplate:
    """Words around a sentence, as in ``This sentence : "{}" means {mask}`` and a full stop.

    Source: Jiang et al. 2022 (PromptBERT) and the authors' code. ``{}`` is the place of the
    sentence. ``{.}`` is the same, but a sentence that does not end in one of ``.?"'`` gets a full
    stop. ``{mask}`` must come after the sentence: the last [MASK] of a row is then that of the
    template, even if the sentence holds one. A row has the sub-words ``[CLS] prefix sentence suffix
    [SEP]``; a long sentence is cut before the template is put around it. The template ``{}``
    changes nothing.

    Attributes:
        text: the template as it was given.
        n_added: how many sub-words it adds to a row.
        n_before: how many sub-words of a row come before the sentence, special ones included; 0 for
            the template ``{}``.
    """

    def __init__(self, text: str, tokens: Tokens) -> None:
        self.text = text
        # The sub-words of the template around the sentence; none for ``{}``.
        self._prefix: list[int] = []
        self._suffix: list[int] = []
        # How many special sub-words a row has at its start and at its end; 0 for ``{}``, which
        # leaves a row as it is.
        self._n_special_first = 0
        self._n_special_last = 0
        self._space = ""
        self._adds_stop = False
        if text != NOTHING_AROUND:
            self._read(text, tokens)
        self.n_added = len(self._prefix) + len(self._suffix)
        self.n_before = self._n_special_first + len(self._prefix)

    def _read(self, text: str, tokens: Tokens) -> None:
        """Find the sub-words around a sentence; raise ConfigError for an invalid template."""
        option = f"--template {text!r}"
        parts = _PLACE.split(text)
        if len(parts) != 3 or _MASK in parts[0] or parts[2].count(_MASK) != 1:
            raise ConfigError(
                f"{option}: need one {{}} for the sentence, and one {_MASK} behind it",
                hint="""write for example --template 'This sentence : "{}" means {mask}.'""",
            )
        mask = tokens.tokenizer.mask_token
        if mask is None:
            raise ConfigError(
                f"{option}: the tokenizer of {tokens.name} has no [MASK]",
                hint="use a model that was trained with masks, such as BERT or RoBERTa",
            )
        # ``stop`` is the full stop of the place ``{.}``; it is empty for the place ``{}``.
        prefix, stop, suffix = parts
        self._adds_stop = bool(stop)
        # A space before the sentence is part of its first sub-word in some tokenizers.
        self._space = prefix[len(prefix.rstrip()) :]
        self._n_special_first, self._n_special_last = tokens.frame(prompt="", limit=NO_LIMIT)

        # ``ids`` puts special sub-words around each of the two texts. They are removed, because a
        # row needs them only once: around the whole.
        framed = tokens.ids([prefix.rstrip(), suffix.replace(_MASK, mask)], limit=None)
        self._prefix, self._suffix = (
            ids[self._n_special_first : len(ids) - self._n_special_last] for ids in framed
        )
        if self._suffix.count(tokens.tokenizer.mask_token_id) != 1:
            raise ConfigError(f"{option}: {tokens.name} does not read {mask} as one sub-word")

    def texts(self, sentences: Sequence[str]) -> list[str]:
        """Return the sentences for the tokenizer, with the space and the stop of the template."""
        return [self._space + self._stopped(sentence) for sentence in sentences]

    def _stopped(self, sentence: str) -> str:
        if self._adds_stop and sentence and not sentence.endswith(_ENDS):
            return f"{sentence}."
        return sentence

    def around(self, rows: list[list[int]]) -> list[list[int]]:
        """Return rows of sub-words with the template put around their sentences."""
        if not self.n_added:
            return rows
        framed = []
        for row in rows:
            first = self._n_special_first
            end = len(row) - self._n_special_last
            framed.append(row[:first] + self._prefix + row[first:end] + self._suffix + row[end:])
        return framed

    def n_of_sentence(self, row: Sequence[int]) -> int:
        """Return how many sub-words of a row belong to the sentence."""
        return len(row) - self.n_added - self._n_special_first - self._n_special_last
