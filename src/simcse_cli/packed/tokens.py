"""Sentences laid end to end, the token layout of the packed transformer."""

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from simcse_cli.machine.transfer import to_device

ROUNDED_TO = 64
"""Packed sizes are rounded up to multiples of this, so that most batches share oneDNN's kernels."""
LARGE = 1024
"""With fewer tokens than this, two shares on threads cost more time than they save."""


class Group(NamedTuple):
    """Consecutive packed sentences of equal length.

    Attributes:
        start: index of the first token.
        n_rows: number of sentences.
        length: tokens of each sentence.
    """

    start: int
    n_rows: int
    length: int

    @property
    def end(self) -> int:
        """The index one past the last token."""
        return self.start + self.n_rows * self.length


@dataclass(frozen=True)
class PackedTokens:
    """Token ids without padding between sentences.

    Attributes:
        ids: ``(T,)``; zeros may follow the last sentence, because T may be rounded up.
        positions: ``(T,)``, index of each token in the position table.
        groups: all sentences, in groups of equal length, the longest first.
        order: for each packed sentence, its index in the rows given to ``pack``, ``(R,)``.
    """

    ids: Tensor
    positions: Tensor
    groups: tuple[Group, ...]
    order: Tensor

    @property
    def is_large(self) -> bool:
        """Whether the tokens are on a CPU, and so many that threads and kernels save time."""
        return self.ids.device.type == "cpu" and len(self.ids) >= LARGE

    @cached_property
    def offsets(self) -> Tensor:
        """The index of each sentence's first token, then the end of the last, ``(R + 1,)``."""
        starts = [np.arange(group.start, group.end, group.length) for group in self.groups]
        offsets = np.append(np.concatenate(starts), self.groups[-1].end)
        return to_device(torch.from_numpy(offsets), self.ids.device)

    def first_tokens(self) -> Tensor:
        """Return the index of each sentence's first token, ``(R,)``."""
        return self.offsets[:-1]

    def to(self, device: torch.device) -> "PackedTokens":
        ids = to_device(self.ids, device)
        positions = to_device(self.positions, device)
        return replace(self, ids=ids, positions=positions, order=to_device(self.order, device))

    def rows(self, states: Tensor) -> Iterator[Tensor]:
        """Yield a view ``(n_rows, length, D)`` for each group of packed states ``(T, D)``."""
        sizes = [group.n_rows * group.length for group in self.groups]
        # One split, not one slice per group: its backward pass is a single concatenation. The last
        # part holds the tokens behind the last sentence.
        *parts, _ = torch.split(states, [*sizes, len(states) - sum(sizes)])
        for group, part in zip(self.groups, parts, strict=True):
            yield part.view(group.n_rows, group.length, states.shape[-1])

    def halves(self) -> tuple["PackedTokens", "PackedTokens"] | None:
        """Return the sentences in two parts with nearly equal numbers of tokens.

        The split depends on the lengths alone. The result is None for a single sentence.
        """
        lengths: list[int] = []
        for group in self.groups:
            lengths += [group.length] * group.n_rows
        if len(lengths) < 2:
            return None
        *ends, total = itertools.accumulate(lengths)
        # The first part ends with the sentence whose end is nearest to the middle, total / 2.
        distances = [abs(2 * end - total) for end in ends]
        n_first = 1 + distances.index(min(distances))
        return self._part(lengths, 0, n_first), self._part(lengths, n_first, len(lengths))

    def _part(self, lengths: Sequence[int], first_row: int, end_row: int) -> "PackedTokens":
        """Return sentences ``first_row`` to ``end_row - 1``; ``lengths`` are those of all."""
        start = sum(lengths[:first_row])
        end = sum(lengths[:end_row])
        return PackedTokens(
            self.ids[start:end],
            self.positions[start:end],
            tuple(_groups(lengths[first_row:end_row])),
            self.order[first_row:end_row],
        )


def _groups(lengths: Iterable[int]) -> Iterator[Group]:
    """Yield a group for each run of equal lengths; the sentences are laid end to end."""
    start = 0
    for length, equal_lengths in itertools.groupby(lengths):
        group = Group(start, len(list(equal_lengths)), length)
        yield group
        start = group.end


def pack(
    rows: Sequence[Sequence[int]], *, pad_id: int | None = None, multiple: int = 1
) -> PackedTokens:
    """Return sentences laid end to end, the longest first.

    Args:
        rows: token ids of each sentence, at least one each.
        pad_id: None numbers every token. For architectures that number only real tokens (RoBERTa,
            MPNet), a token with this id is not counted, and gets the position ``pad_id``.
        multiple: the number of tokens is rounded up to a multiple of this, so that the library that
            multiplies matrices meets few different numbers and reuses its kernels. The added tokens
            belong to no sentence.
    """
    if not all(rows):
        raise ValueError("pack: every row needs at least one token")
    # Sentences of equal length keep their order.
    order = sorted(range(len(rows)), key=lambda i: len(rows[i]), reverse=True)
    sorted_rows = [rows[i] for i in order]
    n_tokens = sum(map(len, rows))
    size = -(-n_tokens // multiple) * multiple  # rounded up
    ids = np.zeros(size, dtype=np.int64)
    ids[:n_tokens] = np.fromiter(itertools.chain.from_iterable(sorted_rows), np.int64, n_tokens)

    # Positions start anew in each sentence.
    positions = np.zeros(size, dtype=np.int64)
    groups = tuple(_groups(map(len, sorted_rows)))
    for group in groups:
        block = ids[group.start : group.end].reshape(group.n_rows, group.length)
        positions[group.start : group.end] = _positions(block, pad_id).ravel()
    return PackedTokens(
        torch.from_numpy(ids),
        torch.from_numpy(positions),
        groups,
        torch.tensor(order, dtype=torch.int64),
    )


def _positions(ids: np.ndarray, pad_id: int | None) -> np.ndarray:
    """Return the position of each token in its row.

    If ``pad_id`` is None, all tokens are counted, from 0. Otherwise tokens with this id are not
    counted and have the position ``pad_id``; the others are counted from ``pad_id + 1``.
    """
    if pad_id is None:
        return np.broadcast_to(np.arange(ids.shape[1]), ids.shape)
    is_real = ids != pad_id
    return np.where(is_real, pad_id + is_real.cumsum(axis=1), pad_id)


class PackedRows(list[Sequence[int]]):
    """Rows of token ids, with their packed form in ``tokens``; a slice has only the rows."""

    def __init__(self, rows: Sequence[Sequence[int]], tokens: PackedTokens) -> None:
        super().__init__(rows)
        self.tokens = tokens
