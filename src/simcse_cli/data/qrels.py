"""Queries, corpora, and relevance judgements (qrels): which corpus sentences answer which query.

Judgements come in three layouts, told apart by the number of columns (tabs, or any white space if
there is no tab):

- 2, ``group<TAB>sentence``: sentences of one group are relevant to each other, such as captions of
  one image; queries and corpus sentences are matched by their text;
- 3, ``query-id corpus-id relevance`` with or without a header (BEIR);
- 4, ``query-id iteration corpus-id relevance`` (TREC).

Ids are those of an ``id`` or ``_id`` column. Without one, they are row numbers from 1, and each
judged id has to be a row number. Only a relevance above 0 counts. The corpus may lack a judged
document, which then counts as not found, as in trec_eval. It may also lack sentences of a group,
and these do not count. In a table with ``_id``, ``title`` and ``text``, as BEIR has, a title is
part of its text.
"""

import random
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import chain, islice
from pathlib import Path
from typing import Any

from simcse_cli.data.file_sets import FileSet
from simcse_cli.data.given import NOTHING_GIVEN, Given
from simcse_cli.data.ids import USUAL_NAMES, require_unique, usual_column
from simcse_cli.data.jobs import Job
from simcse_cli.data.kinds import cell_text
from simcse_cli.data.packed_texts import PackedTexts
from simcse_cli.data.table import Table
from simcse_cli.errors import DataError
from simcse_cli.files.schema import parse_number
from simcse_cli.files.streams import iter_lines
from simcse_cli.progress import SILENT, Progress

Relevance = dict[int, float]
"""The rows of the corpus, from 0, that are relevant to a query, each with its relevance above 0.

A relevant document that the corpus lacks has a row after the last one of the corpus.
"""
_Judgement = tuple[int, list[str]]
"""The number of a line, and its cells."""
_HINT = "the layouts are described in docs/analysis.md, retrieval"
_ROW_NUMBER = re.compile(r"[1-9][0-9]{0,17}")
_SHOWN_IDS = 3  # in a message


@dataclass(frozen=True)
class NumberedTexts:
    """Sentences with their rows, which are counted from 1, and their ids.

    Attributes:
        given_ids: None if the rows are the ids.
        given_rows: None unless the sentences are a selection from a file.
        source: where the sentences are, for messages.
        id_column: the column of the ids, if there is one.
        unused: the columns that hold no texts, if no column is read for ids.
        id_fix: how the user can give ids to texts that are in no table.
    """

    sentences: Sequence[str]
    given_ids: Sequence[str] | None = None
    given_rows: Sequence[int] | None = None
    source: str = field(default="the queries", compare=False)
    id_column: str | None = field(default=None, compare=False)
    unused: Sequence[str] = field(default=(), compare=False)
    id_fix: str | None = field(default=None, compare=False)

    @property
    def rows(self) -> Sequence[int]:
        if self.given_rows is not None:
            return self.given_rows
        return range(1, len(self.sentences) + 1)

    @cached_property
    def ids(self) -> Sequence[str]:
        if self.given_ids is not None:
            return self.given_ids
        return list(map(str, self.rows))

    def select(self, positions: Sequence[int]) -> "NumberedTexts":
        """Return the sentences at some positions, from 0; they keep their rows and ids."""
        ids = None
        if self.given_ids is not None:
            ids = [self.given_ids[position] for position in positions]
        sentences = [self.sentences[position] for position in positions]
        rows = [self.rows[position] for position in positions]
        return replace(self, sentences=sentences, given_ids=ids, given_rows=rows)


def read_texts(
    source: Path | str,
    given: Given = NOTHING_GIVEN,
    *,
    id_column: str | None = None,
    may_lack: bool = False,
    usual: Sequence[str] = USUAL_NAMES,
) -> NumberedTexts:
    """Return the sentences of an input with their ids.

    The ids are those of ``id_column``, by default of a column with one of the ``usual`` names.
    Without such a column they are row numbers from 1. With ``may_lack``, an input without the
    ``id_column`` is read as if none was given.
    """
    files = FileSet.find(str(source), given)
    given = replace(given, joins_titles=True)
    tables = [Table(file, Job.TEXTS, given) for file in files.files]
    first = tables[0]
    name = first.name if len(tables) == 1 else files.source
    columns = first.reading.grid.names

    if id_column is not None and may_lack and not _has_column(first, id_column):
        id_column = None
    id_name = id_column or usual_column(columns, usual)
    # A column with a usual name holds the ids only if every file has it.
    if id_column is None and id_name is not None:
        is_in_all = all(_has_column(table, id_name) for table in tables)
        id_name = id_name if is_in_all else None
    if id_name is None:
        texts = chain.from_iterable(table.texts() for table in tables)
        return NumberedTexts(PackedTexts.of(texts), source=name, unused=first.unused)

    ids = []
    sentences = []
    for text, (row_id,) in chain.from_iterable(table.texts_with(id_name) for table in tables):
        ids.append(cell_text(row_id))
        sentences.append(text)
    if id_column is not None:
        require_unique(lambda: ids, name, id_name)
    return NumberedTexts(sentences, ids, source=name, id_column=id_name)


def _has_column(table: Table, name: str) -> bool:
    with suppress(DataError):
        table.place_of(name)
        return True
    return False


def sample_texts(texts: NumberedTexts, count: int, *, seed: int) -> NumberedTexts:
    """Return ``count`` random texts in file order, or all texts if there are fewer."""
    n_texts = len(texts.sentences)
    return texts.select(sorted(random.Random(seed).sample(range(n_texts), min(count, n_texts))))


def tell_blank(corpus: NumberedTexts, progress: Progress) -> None:
    """Tell how many rows lack a text, so no search finds them; raise DataError if all lack it."""
    n_blank = sum(not text.strip() for text in corpus.sentences)
    if n_blank == len(corpus.sentences):
        raise DataError(f"{corpus.source} has no row with text, need texts to search")
    if n_blank:
        progress.info(f"{corpus.source}: no results, since without text: {n_blank:,} rows")


def queries_with_text(queries: NumberedTexts, source: str, progress: Progress) -> NumberedTexts:
    """Return the queries with text, and tell how many have none; messages call them ``source``."""
    with_text = [i for i, query in enumerate(queries.sentences) if query.strip()]
    if not with_text:
        raise DataError(f"{source} has no row with text, need a query")
    n_blank = len(queries.sentences) - len(with_text)
    if not n_blank:
        return queries
    progress.info(f"{source}: left out, since without text: {n_blank:,} rows")
    return queries.select(with_text)


def read_relevance(
    path: Path | str,
    queries: NumberedTexts,
    corpus: NumberedTexts,
    progress: Progress = SILENT,
    *,
    id_option: str | None = None,
) -> list[Relevance]:
    """Return, for each query, the rows of the corpus that are relevant to it; there may be none.

    The user is told how many documents the corpus lacks, and how many queries are left out.
    ``id_option`` is the option of the command that names the column of ids, if there is one.
    """
    judgements: list[_Judgement] = []
    for line_no, line in enumerate(iter_lines(path), start=1):
        if line.strip():
            judgements.append((line_no, line.split("\t" if "\t" in line else None)))
    if not judgements:
        raise DataError(f"{path} holds no judgements", hint=_HINT)

    # The columns of the first line tell the layout, and every line needs as many.
    first_line_no, first_cells = judgements[0]
    n_columns = len(first_cells)
    if n_columns not in (2, 3, 4):
        raise _wrong_columns(path, first_line_no, first_cells, "2, 3 or 4")
    for line_no, cells in judgements:
        if len(cells) != n_columns:
            raise _wrong_columns(path, line_no, cells, str(n_columns))
    if n_columns == 2:
        relevant = _by_group(judgements, queries, corpus)
    else:
        _skip_header(judgements)
        relevant = _by_id(path, judgements, queries, corpus, progress, id_option)
    if not any(relevant):
        what = f"{path}: none of the {len(queries.ids)} queries has a relevant sentence"
        raise DataError(what, hint=_HINT)
    n_without = sum(not rows for rows in relevant)
    if n_without:
        counts = f"{n_without:,} of {len(relevant):,} queries"
        progress.info(f"{path}: left out, since without a relevant sentence: {counts}")
    return relevant


def _wrong_columns(path: Path | str, line_no: int, cells: list[str], needed: str) -> DataError:
    what = f"{path}, line {line_no}: {len(cells)} columns, need {needed}"
    return DataError(what, hint=_HINT)


def _by_group(
    judgements: list[_Judgement], queries: NumberedTexts, corpus: NumberedTexts
) -> list[Relevance]:
    """Return, for each query, the rows of the corpus sentences that share a group with it."""
    groups_of_sentence: defaultdict[str, set[str]] = defaultdict(set)
    rows_of_group: defaultdict[str, set[int]] = defaultdict(set)
    for _, (group, sentence) in judgements:
        groups_of_sentence[sentence].add(group)

    # The corpus sentences of each group, by their rows.
    for row, sentence in enumerate(corpus.sentences):
        for group in groups_of_sentence.get(sentence, ()):
            rows_of_group[group].add(row)

    # For a query in several groups, the members of all of them are relevant.
    relevant = []
    for sentence in queries.sentences:
        relevant_rows = set[int]()
        for group in groups_of_sentence.get(sentence, ()):
            relevant_rows |= rows_of_group[group]
        relevant.append(dict.fromkeys(relevant_rows, 1.0))
    return relevant


def _by_id(
    path: Path | str,
    judgements: list[_Judgement],
    queries: NumberedTexts,
    corpus: NumberedTexts,
    progress: Progress,
    id_option: str | None,
) -> list[Relevance]:
    """Return the relevant rows of each query, from judgements with ids of queries and sentences."""
    _tell_row_numbers(queries, corpus, progress, id_option)
    corpus_rows = _positions(corpus, id_option)
    n_corpus = len(corpus_rows)  # documents that the corpus lacks are added below
    relevant: dict[str, Relevance] = {query: {} for query in _positions(queries, id_option)}
    judged_queries = dict.fromkeys(query for _, (query, *_) in judgements)
    documents = dict.fromkeys(cells[-2] for _, cells in judgements)

    # Some of the judged ids must be known; if ids are row numbers, all must be row numbers. A row
    # number above the last query is no error: queries that are not searched are left out below.
    query_hint = _id_hint(queries, id_option)
    hint = _id_hint(corpus, id_option)
    what = f"{path}: none of its queries"
    _require_known(what, judged_queries, relevant, queries.source, query_hint)
    _require_known(f"{path}: none of its documents", documents, corpus_rows, corpus.source, hint)
    for line_no, (query, *_, document, _) in judgements:
        _require_row(f"{path}, line {line_no}: query", query, queries, query_hint)
        _require_row(f"{path}, line {line_no}: document", document, corpus, hint, n_corpus)

    # Take the relevance of each pair. A pair may be judged twice, if the two agree.
    seen: dict[tuple[str, str], tuple[int, float]] = {}  # line and relevance of each pair
    for line_no, (query, *_, document, relevance) in judgements:
        gain = parse_number(relevance, f"{path}, line {line_no}", "relevance", hint=_HINT)
        first_line_no, first_gain = seen.setdefault((query, document), (line_no, gain))
        if gain != first_gain:
            raise DataError(
                f"{path}, lines {first_line_no} and {line_no}: document {document!r} has the "
                f"relevance {first_gain:g} and {gain:g} for query {query!r}, need one",
                hint="remove one of the two lines",
            )
        if gain > 0 and query in relevant:
            row = corpus_rows.setdefault(document, len(corpus_rows))
            relevant[query][row] = gain

    if not any(relevant.values()):
        what = f"{path}: none of the {len(relevant):,} queries has a relevance above 0"
        raise DataError(what, hint=_HINT)

    # Say what the scores are about.
    relevant_rows = [row for rows in relevant.values() for row in rows]
    n_missing = sum(row >= n_corpus for row in relevant_rows)
    if n_missing:
        progress.warn(
            f"{path}: the corpus lacks {n_missing:,} of the {len(relevant_rows):,} relevant "
            "sentences of these queries, which count as not found"
        )
    n_unknown = len(judged_queries.keys() - relevant.keys())
    if n_unknown:
        counts = f"{n_unknown:,} of {len(judged_queries):,} judged queries"
        progress.info(f"{path}: left out, since not among the queries that are searched: {counts}")
    return [relevant[identifier] for identifier in queries.ids]


def _positions(texts: NumberedTexts, id_option: str | None) -> dict[str, int]:
    """Return the position of each id, from 0; raise DataError if two texts have the same id."""
    positions: dict[str, int] = {}
    for position, identifier in enumerate(texts.ids):
        first = positions.setdefault(identifier, position)
        if first != position:
            rows = sorted((texts.rows[first], texts.rows[position]))
            hint = "give each row an id of its own"
            if id_option:
                hint += f", or name another column: {id_option} COLUMN"
            raise DataError(
                f"{texts.source}: rows {rows[0]:,} and {rows[1]:,} have the id {identifier!r}, "
                "need ids that differ",
                hint=texts.id_fix or hint,
            )
    return positions


def _tell_row_numbers(
    queries: NumberedTexts, corpus: NumberedTexts, progress: Progress, id_option: str | None
) -> None:
    """Tell the user which ids are row numbers; warn if a column that is not read may hold ids.

    An index does not look for a column of ids on its own. So DataError is raised if it was made
    without such a column, and the column has a usual name.
    """
    # Queries may be a sample of the corpus. Then both have one source, and the user is told once.
    for source, texts in {texts.source: texts for texts in (queries, corpus)}.items():
        if texts.given_ids is not None:
            continue
        line = f"{source}: the ids of the judgements are taken for its row numbers, from 1"
        if texts.unused:
            columns = ", ".join(texts.unused)
            name = usual_column(texts.unused)
            if texts.id_fix and name:
                raise DataError(
                    f"{source} was made without the column {name} of its table, need the ids of "
                    "the judgements",
                    hint=f"{texts.id_fix}; or encode it again with --id-column {name} --force",
                )
            own = f"name it with {id_option} or call it id" if id_option else "call it id in row 1"
            fix = texts.id_fix or own
            progress.warn(f"{line}; if one of its columns has the ids ({columns}), {fix}")
        else:
            progress.info(line)


def _id_hint(texts: NumberedTexts, id_option: str | None) -> str:
    """Return where the ids of some texts come from."""
    if texts.id_fix is not None:
        return texts.id_fix
    option = f", or of {id_option}" if id_option else ""
    return (
        "ids are those of a column `id` or `_id` (of queries also `qid`, `query-id` or "
        f"`query_id`){option}, else row numbers"
    )


def _require_known(
    what: str, judged: Mapping[str, Any], known: Mapping[str, Any], source: str, hint: str
) -> None:
    """Raise DataError if none of the judged ids is known; its message begins with ``what``."""
    if known.keys().isdisjoint(judged):
        raise DataError(
            f"{what} ({_first_ids(judged)}) is in {source} ({_first_ids(known)})", hint=hint
        )


def _require_row(
    what: str, identifier: str, texts: NumberedTexts, hint: str, last: int | None = None
) -> None:
    """If the ids of ``texts`` are row numbers, raise DataError for an identifier that is none.

    Row numbers begin with 1. They end with ``last``; if it is None, any number counts. The message
    begins with ``what``.
    """
    if texts.given_ids is not None:
        return
    if not _ROW_NUMBER.fullmatch(identifier) or (last is not None and int(identifier) > last):
        end = "" if last is None else f" to {last:,}"
        raise DataError(
            f"{what} {identifier!r} is no row of {texts.source}, need a row number from 1{end}",
            hint=hint,
        )


def _first_ids(ids: Mapping[str, Any]) -> str:
    shown = ", ".join(map(repr, islice(ids, _SHOWN_IDS)))
    return f"{shown}, ..." if len(ids) > _SHOWN_IDS else shown


def _skip_header(judgements: list[_Judgement]) -> None:
    """Remove the first line if its last cell is no number."""
    _, cells = judgements[0]
    try:
        float(cells[-1])
    except ValueError:
        del judgements[0]
