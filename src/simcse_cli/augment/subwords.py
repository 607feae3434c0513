"""Shuffle the sub-words of a text as text: the pieces of its surface, cut where a tokenizer cuts it.

Re-tokenised, the result may be cut elsewhere; training shuffles the ids themselves
(:func:`simcse_cli.augment.augmentations.shuffle_token_ids`).
"""

import random
from collections.abc import Sequence
from functools import cached_property, partial
from itertools import pairwise
from pathlib import Path
from typing import Any

from simcse_cli.augment.augmentations import Augmenter
from simcse_cli.augment.operators import shuffle
from simcse_cli.augment.text_units import grapheme_starts


class SubwordSplitter:
    """Cuts text where the tokenizer of a model does, but never inside a grapheme.

    Args:
        model_dir: folder with the files of a fast tokenizer; read when first needed, again in each worker.
    """

    def __init__(self, model_dir: Path) -> None:
        self.model_dir = model_dir

    def __reduce__(self) -> tuple[type["SubwordSplitter"], tuple[Path]]:
        return type(self), (self.model_dir,)

    def split(self, text: str) -> tuple[list[str], list[str]]:
        """Return the ``n`` pieces of ``text`` and the ``n + 1`` stretches of white space around them.

        ``"unhappy cat"`` may give ``["un", "happy", "cat"]`` and ``["", "", " ", ""]``.
        """
        encoding = self._tokenizer(text, add_special_tokens=False, return_offsets_mapping=True, verbose=False)
        return cut_pieces(text, [start for start, end in encoding["offset_mapping"] if start < end])

    @cached_property
    def _tokenizer(self) -> Any:
        from transformers import AutoTokenizer

        return AutoTokenizer.from_pretrained(self.model_dir, trust_remote_code=False, local_files_only=True)


def cut_pieces(text: str, starts: Sequence[int]) -> tuple[list[str], list[str]]:
    """Cut ``text`` at those ``starts`` that begin a grapheme; return the pieces and the gaps around them."""
    pieces: list[str] = []
    gaps = [""]
    borders = [0, *sorted(set(starts) & grapheme_starts(text) - {0}), len(text)]
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
    """Return the text of ``n`` pieces between ``n + 1`` gaps."""
    return gaps[0] + "".join(piece + gap for piece, gap in zip(pieces, gaps[1:], strict=True))


def make_subword_shuffler(model_dir: Path, rate: float) -> Augmenter:
    """Return the callable that permutes a fraction ``rate`` of a text's sub-words; the gaps stay.

    Args:
        model_dir: folder with the files of a fast tokenizer.
        rate: fraction of the sub-words, in (0, 1].
    """
    return Augmenter(partial(_shuffle_text, rate=rate, splitter=SubwordSplitter(model_dir)))


def _shuffle_text(text: str, rng: random.Random, *, rate: float, splitter: SubwordSplitter) -> str:
    pieces, gaps = splitter.split(text)
    return join_pieces(shuffle(pieces, rate, rng), gaps).strip()
