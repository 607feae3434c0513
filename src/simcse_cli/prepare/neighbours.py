"""``prepare neighbours``: make pairs of neighbouring sentences from documents."""

import random
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

from simcse_cli.data.formats import InputPath
from simcse_cli.data.given import Given
from simcse_cli.data.jobs import Job
from simcse_cli.data.names import POSITIONAL
from simcse_cli.data.table import Table
from simcse_cli.data.writers import Row
from simcse_cli.prepare.options import NeighbourOptions
from simcse_cli.prepare.rows import RowWriter, chosen
from simcse_cli.prepare.sentences import split_sentences


def prepare_neighbours(inputs: Sequence[str], options: NeighbourOptions, writer: RowWriter) -> None:
    """Write pairs of neighbouring sentences; warn if nothing separates documents in the inputs."""
    given = Given.of(options, progress=writer.progress).of_texts(options.column)
    counts = DocumentCounts()
    documents = iter_documents(inputs, given, split=options.split_sentences, counts=counts)
    rows = neighbour_pairs(documents, reach=options.reach, every=options.every, seed=options.seed)
    settings = {"next": options.reach, **chosen(options, "every", "column", "split_sentences")}
    result = writer.write(
        "neighbours", rows, POSITIONAL[:2], inputs=inputs, settings=settings, corpus=counts
    )
    # If there is one document per input, no input has a blank line.
    if counts.n_documents == len(inputs) and result.counts.read > 1:
        writer.progress.warn(
            "no blank line separates documents: "
            "pairs are neighbours only if the lines are in document order"
        )


@dataclass
class DocumentCounts:
    n_documents: int = 0
    n_sentences: int = 0

    def summary(self) -> str:
        return f"read {self.n_sentences:,} sentences in {self.n_documents:,} documents"


def iter_documents(
    sources: Sequence[InputPath], given: Given, *, split: bool, counts: DocumentCounts
) -> Iterator[Iterator[str]]:
    """Yield each document as an iterator over its sentences, to be exhausted before the next.

    In a text file, blank lines separate documents. In a table, each row is a document, and its
    lines are the sentences. With ``split``, every line is split into sentences by rule. The end of
    a source ends a document.
    """
    for source in sources:
        table = Table(source, Job.TEXTS, given)
        for lines in _documents(table):
            counts.n_documents += 1
            yield _sentences(lines, split, counts)


def _documents(table: Table) -> Iterator[Iterable[str]]:
    """Yield the lines of each document in a source."""
    if not table.is_text:
        yield from (text.split("\n") for text in table.texts())
        return
    for is_blank, lines in groupby(table.texts(), lambda line: not line.strip()):
        if not is_blank:
            yield lines


def _sentences(lines: Iterable[str], split: bool, counts: DocumentCounts) -> Iterator[str]:
    """Yield and count the sentences in the lines of a document."""
    for line in lines:
        sentences = split_sentences(line) if split else [line.strip()]
        for sentence in sentences:
            if sentence:
                counts.n_sentences += 1
                yield sentence


def neighbour_pairs(
    documents: Iterable[Iterable[str]], *, reach: int = 1, every: bool = False, seed: int
) -> Iterator[Row]:
    """Yield ``(sentence, neighbour)`` pairs that never cross a document border.

    The positive is drawn uniformly from the next ``reach`` sentences, or from as many as follow in
    the document (toolkit default). The last sentence is never an anchor: n sentences in m documents
    give n - m pairs. With ``every``, nothing is drawn: each of these sentences gives a pair.

    Source: Gao et al. 2021, Table 2: the next sentence (``reach`` 1), or one of the next three
    (``reach`` 3).
    """
    rng = random.Random(seed)

    def pairs(anchor: str, following: Sequence[str]) -> Iterator[Row]:
        # Nothing is drawn if there is no choice.
        positives = following if every or len(following) < 2 else [rng.choice(following)]
        return ((anchor, positive) for positive in positives)

    for document in documents:
        window: deque[str] = deque(maxlen=reach + 1)
        for sentence in document:
            window.append(sentence)
            if len(window) > reach:
                yield from pairs(window[0], list(window)[1:])
        # The anchors that remain have fewer than ``reach`` sentences after them. The first sentence
        # of a full window is not among them: it has already been an anchor.
        if len(window) > reach:
            window.popleft()
        while window:
            anchor = window.popleft()
            yield from pairs(anchor, list(window))
