"""Sentences and neighbouring sentences from running text."""

import random
from collections import deque
from collections.abc import Iterable, Iterator, Sequence

from simcse_cli.data.readers import FileFormat, Source, guess_format, iter_sentences
from simcse_cli.data.rows import Row
from simcse_cli.data.sentence_splitter import split_sentences


def sentence_rows(
    sources: Sequence[Source], *, column: str | None = None, split: bool = False, encoding: str = "utf-8"
) -> Iterator[Row]:
    """Yield one row per line or table row of the sources, or one per sentence with ``split``."""
    for source in sources:
        for text in iter_sentences(source, column=column, encoding=encoding):
            if split:
                yield from ((sentence,) for sentence in split_sentences(text))
            else:
                yield (text,)


def iter_documents(
    sources: Sequence[Source], *, column: str | None = None, split: bool = False, encoding: str = "utf-8"
) -> Iterator[Iterator[str]]:
    """Yield documents, each an iterator over its sentences, to be used up before the next is asked for.

    In text, blank lines separate documents; in a table each row is one, its lines are the sentences. With
    ``split`` every line is split into sentences by rule. A document never reaches into the next source.
    """
    for source in sources:
        texts = iter_sentences(source, column=column, encoding=encoding)
        if guess_format(source) is FileFormat.TEXT:
            yield from _blank_separated(texts, split)
        else:
            yield from (_sentences(text.split("\n"), split) for text in texts)


def _blank_separated(lines: Iterator[str], split: bool) -> Iterator[Iterator[str]]:
    for line in lines:
        if line.strip():
            yield _sentences(_until_blank(line, lines), split)


def _until_blank(first: str, lines: Iterator[str]) -> Iterator[str]:
    yield first
    for line in lines:
        if not line.strip():
            return
        yield line


def _sentences(lines: Iterable[str], split: bool) -> Iterator[str]:
    for line in lines:
        if split:
            yield from split_sentences(line)
        elif line.strip():
            yield line.strip()


def neighbour_rows(
    documents: Iterable[Iterable[str]], *, reach: int = 1, every: bool = False, seed: int
) -> Iterator[Row]:
    """Yield ``(sentence, neighbour)`` pairs that never cross a document border.

    Source: Gao et al. 2021, Table 2: the positive is the next sentence (``reach`` 1), or one drawn uniformly
    from the next three (``reach`` 3). Near the end of a document it is drawn from those that are left
    (toolkit default), and the last sentence is nobody's anchor: n sentences in m documents give n - m pairs.

    Args:
        documents: sentences in order.
        reach: how many following sentences are candidates.
        every: yield a pair for each candidate instead of drawing one.
        seed: of the draws.
    """
    rng = random.Random(seed)

    def pairs(anchor: str, following: Sequence[str]) -> Iterator[Row]:
        chosen = following if every or len(following) < 2 else [rng.choice(following)]
        return ((anchor, positive) for positive in chosen)

    for document in documents:
        window: deque[str] = deque(maxlen=reach + 1)
        for sentence in document:
            window.append(sentence)
            if len(window) > reach:
                yield from pairs(window[0], list(window)[1:])
        if len(window) > reach:
            window.popleft()
        while window:
            anchor = window.popleft()
            yield from pairs(anchor, list(window))
