"""Training files as objectives need them: rows of one to three texts, documents, or labelled pairs."""

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from simcse_cli.data.nli import iter_nli
from simcse_cli.data.readers import (
    POSITIONAL,
    FileFormat,
    find_column,
    guess_format,
    iter_records,
    iter_sentences,
    source_name,
)
from simcse_cli.errors import DataError
from simcse_cli.files import STDIO, sha256_file


@dataclass(frozen=True)
class TrainingRows:
    """Sentences, pairs (anchor, positive) or triplets (with a hard negative)."""

    name: str
    columns: tuple[str, ...]
    rows: list[tuple[str, ...]]
    n_dropped: int
    digest: str

    def __len__(self) -> int:
        return len(self.rows)


def _digest(source: str | Path, lines: Iterator[str]) -> str:
    """Return the SHA-256 of a file, or of its lines where it is no file (stdin, Hub)."""
    if str(source) != STDIO and Path(source).is_file():
        return sha256_file(source)
    state = hashlib.sha256()
    for line in lines:
        state.update(f"{line}\n".encode())
    return state.hexdigest()


def read_training_rows(source: str | Path) -> TrainingRows:
    """Return the rows of a training file; rows with an empty text are dropped and counted.

    Text files give single sentences. Tables give the columns ``anchor``, ``positive`` and ``hard_negative``
    as far as they have them (under their usual names too); the first row decides which.

    Raises:
        DataError: unreadable or malformed input, no ``anchor`` column, or no row left.
    """
    name = source_name(source)
    columns: tuple[str, ...] = ()
    keys: tuple[str, ...] = ()
    rows: list[tuple[str, ...]] = []
    n_dropped = 0
    for number, record in iter_records(source):
        if not columns:
            found = {column: find_column(record, column) for column in POSITIONAL}
            columns = tuple(column for column, key in found.items() if key is not None)
            keys = tuple(key for key in found.values() if key is not None)
            if not columns or columns[0] != "anchor" or columns == ("anchor", "hard_negative"):
                raise DataError(
                    f"{name}: columns {', '.join(record)}; "
                    "need anchor, or anchor and positive, or these and hard_negative",
                    hint="rename the columns, or build the file with `simcse prepare`",
                )
        try:
            row = tuple(" ".join(record[key].split()) for key in keys)
        except KeyError as error:
            raise DataError(f"{name}, line {number}: column {error} is missing") from error
        if all(row):
            rows.append(row)
        else:
            n_dropped += 1
    if not rows:
        raise DataError(
            f"{name} holds no training example", hint="give a file with one sentence a line, or a table"
        )
    digest = _digest(source, ("\t".join(row) for row in rows))
    return TrainingRows(name, columns, rows, n_dropped, digest)


@dataclass(frozen=True)
class TrainingDocuments:
    """Documents as lists of sentences in order."""

    name: str
    documents: list[list[str]]
    digest: str

    def __len__(self) -> int:
        return sum(map(len, self.documents))


def split_documents(lines: Iterable[str]) -> list[list[str]]:
    """Return the sentences of each document; blank lines stand between documents."""
    documents: list[list[str]] = [[]]
    for line in lines:
        if sentence := line.strip():
            documents[-1].append(sentence)
        elif documents[-1]:
            documents.append([])
    return documents if documents[-1] else documents[:-1]


def read_training_documents(source: str | Path) -> TrainingDocuments:
    """Return the documents of a file: text with a blank line between documents, or a table with one a row.

    Raises:
        DataError: no sentence, or a text file without any blank line, whose lines may be in no order.
    """
    name = source_name(source)
    lines = list(iter_sentences(source))
    if guess_format(source) is not FileFormat.TEXT:
        lines = [line for text in lines for line in (*text.splitlines(), "")]
    documents = split_documents(lines)
    if not documents:
        raise DataError(f"{name} holds no sentence", hint="give documents with a blank line between them")
    if all(line.strip() for line in lines):
        raise DataError(
            f"{name}: {len(lines):,} lines and no blank line, need documents with a blank line between them",
            hint="lines in random order have no neighbours; end the file with a blank line if it is one text",
        )
    return TrainingDocuments(name, documents, _digest(source, iter(lines)))


def read_labelled_rows(source: str | Path) -> TrainingRows:
    """Return premise, hypothesis and label of an NLI file; rows without a label or a text are dropped.

    Raises:
        DataError: the file is no NLI corpus, or no row is left.
    """
    name = source_name(source)
    pairs = [pair for part in iter_nli(source) for pair in part]
    rows: list[tuple[str, ...]] = [
        (pair.premise, pair.hypothesis, pair.label.value)
        for pair in pairs
        if pair.label is not None and pair.premise and pair.hypothesis
    ]
    if not rows:
        raise DataError(f"{name} holds no labelled pair", hint="give an SNLI or MNLI file with gold labels")
    digest = _digest(source, ("\t".join(row) for row in rows))
    return TrainingRows(name, ("anchor", "positive", "label"), rows, len(pairs) - len(rows), digest)
