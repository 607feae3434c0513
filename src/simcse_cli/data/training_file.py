"""Read training files for objectives: rows of one to three texts, documents, labelled pairs, or scored pairs."""

import hashlib
import re
import shlex
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, combinations, islice
from pathlib import Path
from typing import Any, overload

from simcse_cli.data.columns import (
    COLUMN_ALIASES,
    POSITIONAL,
    Record,
    columns_hint,
    find_column,
    is_number,
    resolve_columns,
)
from simcse_cli.data.formats import FileFormat, guess_format, source_name
from simcse_cli.data.nli import iter_nli
from simcse_cli.data.packed_texts import PackedTexts
from simcse_cli.data.pair_files import SCORED_PAIR, iter_scored_pairs
from simcse_cli.data.table import Table
from simcse_cli.data.writers import Row
from simcse_cli.errors import DataError
from simcse_cli.files.streams import STDIO, digest, sha256_file

_SET = "set"  # a list of texts that all mean the same
_ROWS_SHOWN = 3
_NUMBERED = re.compile(r"[ _-]?\d+$")
# Whether a label marks a pair: in any table, and in those with one of these columns of positives, which are NLI corpora
# (as on the Hub and in ANLI) and WikiAuto.
_LABELS = dict.fromkeys(("1", "1.0", "true", "entailment"), True) | dict.fromkeys(
    ("0", "0.0", "false", "neutral", "contradiction", "not_entailment", "-", ""), False
)
_LABELS_OF = {
    "hypothesis": {"0": True, "1": False, "2": False, "-1": False, "e": True, "n": False, "c": False},
    "simple_sentence": {"aligned": True, "partialaligned": True, "2": True, "notaligned": False},
}


class StoredRows(Sequence[Row]):
    """Rows of texts on disk, all with the same number of texts."""

    def __init__(self, rows: Iterable[Row]) -> None:
        rows = iter(rows)
        first = next(rows, ())
        self._width = max(1, len(first))
        self._texts = PackedTexts.stored(chain(first, chain.from_iterable(rows)))

    def __len__(self) -> int:
        return len(self._texts) // self._width

    @overload
    def __getitem__(self, index: int) -> Row: ...
    @overload
    def __getitem__(self, index: slice) -> list[Row]: ...
    def __getitem__(self, index: int | slice) -> Row | list[Row]:
        if isinstance(index, slice):
            return [self[row] for row in range(*index.indices(len(self)))]
        first = range(len(self))[index] * self._width
        return tuple(self._texts[first : first + self._width])


@dataclass(frozen=True)
class TrainingRows:
    """Sentences, pairs (anchor, positive) or triplets (with a hard negative).

    ``files`` gives, for several files, the number of rows of each and its passes per epoch; ``remarks`` tell the user
    about rows left out for other reasons than a missing text.
    """

    name: str
    columns: tuple[str, ...]
    rows: Sequence[Row]
    n_dropped: int
    digest: str
    files: tuple[tuple[int, float], ...] = ()
    remarks: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.rows)


def _digest(source: str | Path, lines: Iterator[str]) -> str:
    """Return the SHA-256 of a file, or over the lines of a source that is not a file (stdin, Hub)."""
    if str(source) != STDIO and Path(source).is_file():
        return sha256_file(source)
    state = hashlib.sha256()
    for line in lines:
        state.update(f"{line}\n".encode("utf-8", "surrogatepass"))
    return state.hexdigest()


@dataclass(frozen=True)
class RowLayout:
    """The columns of a table that make up training rows.

    ``keys`` are the table's columns for each of ``columns``; hard negatives may have several (``negative_1``, ...).
    ``labels`` tells whether each value of the column ``label`` marks a pair.
    """

    columns: tuple[str, ...]
    keys: tuple[tuple[str, ...], ...]
    label: str | None = None
    labels: Mapping[str, bool] = field(default_factory=lambda: _LABELS)


def iter_training_rows(
    records: Iterable[Record[Any]],
    columns: Mapping[str, str] | None = None,
    *,
    left_out: Counter[str] | None = None,
    allow_numbers: bool = False,
    n_columns: int = 1,
) -> Iterator[tuple[tuple[str, ...], Row]]:
    """Yield ``(columns, row)`` for each training row of a table; the layouts are in ``docs/data.md``.

    The first record determines the layout. A cell may hold a list: a record with several positives or hard
    negatives becomes as many rows as its longer list has items, and the shorter list is repeated.

    ``columns`` are the names of ``anchor``, ``positive`` and ``hard_negative``; other columns are then ignored.
    ``left_out`` counts, by label, the records that are not pairs. ``allow_numbers`` accepts a column of numbers, which
    nobody reads as texts. ``n_columns`` is the least number of texts in a row.
    """
    layout: RowLayout | None = None
    first: list[Row] = []  # until they show that no column holds numbers
    for record in records:
        place = record.place
        if layout is None:
            layout = find_layout(record, columns or {}, record.columns_place)
            if len(layout.columns) < n_columns and layout.columns != (_SET,):
                resolve_columns(record, POSITIONAL[:n_columns], record.columns_place)
        if layout.label is not None and not _is_pair(str(record[layout.label]), layout, place):
            if left_out is not None:
                left_out[str(record[layout.label])] += 1
            continue
        texts = [[text for key in keys for text in _texts(record[key], place)] for keys in layout.keys]
        if layout.columns == (_SET,):
            yield from ((POSITIONAL[:2], pair) for pair in combinations(texts[0], 2))
            continue
        sides = [side or [""] for side in texts]
        for turn in range(max(map(len, sides))):
            row = tuple(side[turn % len(side)] for side in sides)
            if not (columns or allow_numbers) and len(first) < _ROWS_SHOWN:
                first.append(row)
                if len(first) == _ROWS_SHOWN:
                    _refuse_numbers(first, layout, record.columns_place)
            yield layout.columns, row
    if layout is not None and 0 < len(first) < _ROWS_SHOWN:
        _refuse_numbers(first, layout, record.columns_place)


def _refuse_numbers(rows: Sequence[Row], layout: RowLayout, place: str) -> None:
    """Raise DataError if a column of texts holds numbers, which are scores or labels and no texts."""
    for column, cells in zip(layout.columns, zip(*rows, strict=True), strict=True):
        if column != "anchor" and all(map(is_number, cells)):
            shown = "".join(f"\n   {' | '.join(text[:40] for text in row)}" for row in rows)
            keys = dict(zip(layout.columns, layout.keys, strict=True))
            named = shlex.quote(",".join(f"{each}={keys[each][0]}" for each in keys if each != column))
            raise DataError(
                f"{place}: the column of {column} texts holds numbers{shown}",
                hint=f"to train on scored pairs: --objective cosent; to leave the numbers out: --columns {named}",
            )


def list_left_out(left_out: Counter[str]) -> list[str]:
    labels = ", ".join(f"{n:,} with label {label or 'empty'}" for label, n in left_out.most_common())
    return [f"left out rows that are not pairs: {labels}"] if labels else []


def find_layout(record: Mapping[str, Any], given: Mapping[str, str], place: str) -> RowLayout:
    if given:
        wanted = tuple(column for column in POSITIONAL if column in given)
        if "anchor" not in wanted or wanted == ("anchor", "hard_negative"):
            what = f"{place}: --columns names {', '.join(wanted)}; need anchor, or anchor and positive"
            raise DataError(what, hint=columns_hint(record, POSITIONAL[:2]))
        return RowLayout(wanted, tuple((name,) for name in resolve_columns(record, wanted, place, given)))
    if list(record) in ([_SET], ["texts"]) and isinstance(next(iter(record.values())), list):
        return RowLayout((_SET,), (tuple(record),))
    found = {column: find_column(record, column) for column in POSITIONAL}
    keys = {column: (name,) for column, name in found.items() if name is not None}
    known = ("hard_negative", *COLUMN_ALIASES["hard_negative"])
    numbered = [name for name in record if _NUMBERED.search(name)]  # negative_1, neg2
    if numbered := [name for name in numbered if _NUMBERED.sub("", name.strip().lower()) in known]:
        keys["hard_negative"] = tuple(dict.fromkeys((*keys.get("hard_negative", ()), *numbered)))
    columns = tuple(keys)
    if not columns or columns[0] != "anchor" or columns == ("anchor", "hard_negative"):
        raise DataError(
            f"{place}: the columns are {', '.join(record)}; "
            "need anchor, or anchor and positive, or these and hard_negative",
            hint=columns_hint(record, POSITIONAL[:2], is_optional=True),
        )
    if len(columns) != 2:
        return RowLayout(columns, tuple(keys.values()))
    label = find_column(record, "label")
    positive, score = keys["positive"][0].lower(), find_column(record, "score")
    if label is None and score is not None and positive != "positive":
        pair = shlex.quote(",".join(f"{column}={names[0]}" for column, names in keys.items()))
        raise DataError(
            f"{place}: the columns are {', '.join(record)}; which of these scored pairs are positives?",
            hint=f"scored pairs serve as --dev-file; to train on every row: --columns {pair}",
        )
    return RowLayout(columns, tuple(keys.values()), label, _LABELS | _LABELS_OF.get(positive, {}))


def _is_pair(label: str, layout: RowLayout, place: str) -> bool:
    text = label.strip().lower()
    if text not in layout.labels:
        raise DataError(
            f"{place}: label {label!r}; need 1 for a pair and 0 for none, or the labels of an NLI corpus",
            hint="make triplets of an NLI corpus with `simcse prepare nli`; to take every row, name the columns with "
            "--columns anchor=anchor,positive=positive",
        )
    return layout.labels[text]


def _texts(value: Any, place: str) -> list[str]:
    """Return the texts of a cell, each on one line, without blank ones."""
    if isinstance(value, dict):
        raise DataError(f"{place}: a JSON object, need a text or a list of texts")
    values = value if isinstance(value, list) else [value]
    known = (each for each in values if each is not None and each == each)  # pandas writes NaN for missing ones
    return [text for text in (" ".join(str(each).split()) for each in known) if text]


def read_training_rows(
    source: str | Path, columns: Mapping[str, str] | None = None, limit: int | None = None, n_columns: int = 1
) -> TrainingRows:
    """Return at most ``limit`` rows of a training file, kept on disk; rows with an empty text are dropped and counted.

    Text files give single sentences, or rows where a row needs more; for tables see ``iter_training_rows``.
    """
    is_text = guess_format(source) is FileFormat.TEXT
    text_as = FileFormat.TSV if n_columns > 1 else FileFormat.TEXT
    table = Table(source, text_as=text_as, columns=(columns or {}).values())
    left_out, n_dropped, name = Counter[str](), 0, table.name
    found_columns: tuple[str, ...] = ()
    least = 1 if is_text else n_columns
    found = iter_training_rows(table.records(), columns, left_out=left_out, n_columns=least)

    def whole_rows() -> Iterator[Row]:
        nonlocal n_dropped, found_columns
        for layout, row in found:
            found_columns = layout
            if all(row):
                yield row
            else:
                n_dropped += 1

    rows = StoredRows(islice(whole_rows(), limit))
    remarks = tuple(f"{name}: {remark}" for remark in list_left_out(left_out))
    if not rows:
        what = "; ".join((f"{name} holds no training example", *remarks))
        raise DataError(what, hint="give a file with one sentence a line, or a table")
    sha256 = _digest(source, ("\t".join(row) for row in rows))
    return TrainingRows(name, found_columns, rows, n_dropped, sha256, remarks=remarks)


@dataclass(frozen=True)
class TrainingDocuments:
    name: str
    documents: list[list[str]]
    digest: str

    def __len__(self) -> int:
        return sum(map(len, self.documents))


def split_documents(lines: Iterable[str]) -> list[list[str]]:
    """Return the sentences of each document; blank lines separate documents."""
    documents: list[list[str]] = [[]]
    for line in lines:
        if sentence := line.strip():
            documents[-1].append(sentence)
        elif documents[-1]:
            documents.append([])
    return documents if documents[-1] else documents[:-1]


def read_training_documents(source: str | Path, columns: Mapping[str, str] | None) -> TrainingDocuments:
    """Return the documents of a file: text with a blank line between documents, or a table with one per row."""
    anchor = (columns or {}).get("anchor")
    table = Table(source, columns=[anchor])
    name, lines = table.name, list(table.sentences(anchor, hint="choose with --columns anchor=COLUMN"))
    if not table.is_text:
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


def join_rows(parts: Sequence[tuple[TrainingRows, float]]) -> TrainingRows:
    (first, _), *_ = parts
    for part, _ in parts:
        if part.columns != first.columns:
            raise DataError(
                f"{part.name} has {', '.join(part.columns)}, but {first.name} has {', '.join(first.columns)}",
                hint="give files with the same columns, or leave others out: --columns anchor=anchor,positive=positive",
            )
    return TrainingRows(
        ", ".join(part.name for part, _ in parts),
        first.columns,
        StoredRows(chain.from_iterable(part.rows for part, _ in parts)),
        sum(part.n_dropped for part, _ in parts),
        digest(" ".join(part.digest for part, _ in parts)),
        tuple((len(part), weight) for part, weight in parts),
        tuple(remark for part, _ in parts for remark in part.remarks),
    )


def join_documents(parts: Sequence[TrainingDocuments]) -> TrainingDocuments:
    return TrainingDocuments(
        ", ".join(part.name for part in parts),
        [document for part in parts for document in part.documents],
        digest(" ".join(part.digest for part in parts)),
    )


def read_labelled_rows(source: str | Path, columns: Mapping[str, str] | None = None) -> TrainingRows:
    """Return premise, hypothesis and label of an NLI file; rows without a label or a text are dropped."""
    name = source_name(source)
    pairs = list(chain.from_iterable(iter_nli(source, columns)))
    rows = [(each.premise, each.hypothesis, each.label.value) for each in pairs if each.label is not None]
    rows = [row for row in rows if all(row)]
    if not rows:
        raise DataError(f"{name} holds no labelled pair", hint="give an SNLI or MNLI file with gold labels")
    sha256 = _digest(source, ("\t".join(row) for row in rows))
    return TrainingRows(name, ("anchor", "positive", "label"), rows, len(pairs) - len(rows), sha256)


def read_scored_rows(source: str | Path, columns: Mapping[str, str] | None = None) -> TrainingRows:
    """Return left text, right text and score of a file of scored pairs, such as any dev set."""
    name = source_name(source)
    rows = [(left, right, str(score)) for left, right, score in iter_scored_pairs(source, columns)]
    if len({score for *_, score in rows}) == 1:
        raise DataError(
            f"{name}: all {len(rows):,} scores are {rows[0][2]}, so no pair should be more similar than another",
            hint="check the column of scores: --columns left=A,right=B,score=C",
        )
    return TrainingRows(name, SCORED_PAIR, rows, 0, _digest(source, ("\t".join(row) for row in rows)))
