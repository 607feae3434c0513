"""``prepare pairs``: read paraphrase and caption corpora in their published layouts."""

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations, groupby, zip_longest
from operator import itemgetter
from typing import Any

from simcse_cli.data.columns import POSITIONAL, Record, find_column, parse_columns
from simcse_cli.data.formats import FileFormat, InputPath, guess_format, source_name
from simcse_cli.data.table import Table
from simcse_cli.data.text import digest_keys
from simcse_cli.data.training_file import iter_training_rows, list_left_out
from simcse_cli.data.writers import Row
from simcse_cli.errors import ConfigError, DataError
from simcse_cli.files.streams import STDIO, iter_lines
from simcse_cli.prepare.options import PairOptions
from simcse_cli.prepare.rows import RowWriter

_WIKIAUTO_MANUAL = (
    *("alignment_label", "simple_sentence_id", "normal_sentence_id", "simple_sentence", "normal_sentence"),
    "gleu_score",
)
_WIKIAUTO_LABELS = ("aligned", "partialAligned", "notAligned")


@dataclass
class PairCounts:
    """Counts of what tables hold besides pairs: records with other labels, and hard negatives."""

    other_labels: Counter[str] = field(default_factory=Counter)
    n_hard_negatives: int = 0

    def summary(self) -> str:
        found = list_left_out(self.other_labels)
        if n_others := self.n_hard_negatives:
            found.append(f"left out {n_others:,} hard negatives; `simcse train` reads such files as they are")
        return "; ".join(found)


def prepare_pairs(inputs: Sequence[str], options: PairOptions, writer: RowWriter) -> None:
    encoding, counts = options.encoding, PairCounts()
    if options.flickr30k:
        rows = caption_rows(inputs, encoding=encoding)
    elif options.parallel:
        rows = parallel_rows(*_two(inputs, "--parallel", "files"), encoding=encoding)
    else:
        columns = parse_columns(options.columns, POSITIONAL[:2])
        if options.columns is not None:
            _two(list(columns), "--columns", "names")
        rows = pair_rows(inputs, columns=columns, encoding=encoding, counts=counts)
    own = {name: getattr(options, name) for name in ("flickr30k", "parallel", "columns")}
    writer.write("pairs", rows, POSITIONAL[:2], inputs=inputs, settings=own, corpus=counts)


def _two(values: Sequence[str], flag: str, what: str) -> tuple[str, str]:
    if len(values) != 2:
        raise ConfigError(f"{flag} needs two {what}, found {len(values)}: {', '.join(values)}")
    return values[0], values[1]


def pair_rows(
    sources: Sequence[InputPath],
    *,
    columns: Mapping[str, str] | None = None,
    encoding: str = "utf-8",
    counts: PairCounts | None = None,
) -> Iterator[Row]:
    """Yield the pairs of the sources; the column names tell the layout of each, as in ``iter_training_rows``.

    ParaNMT and any other file of two or three tab-separated columns without a header is read too. Of a file with hard
    negatives each pair is taken once. ``columns`` gives the names of ``anchor`` and ``positive`` in other tables.
    """
    counts = counts or PairCounts()
    for source in sources:
        given, names = (columns or {}).values(), _wikiauto_columns(source, encoding)
        table = Table(source, text_as=FileFormat.TSV, encoding=encoding, columns=given, names=names)
        # ParaNMT is a text file with a score in its third column, which is left out.
        is_text = guess_format(source) is FileFormat.TEXT
        how: dict[str, Any] = {"left_out": counts.other_labels, "allow_numbers": is_text, "n_columns": 2}
        seen: set[int] = set()
        found: tuple[str, ...] = ()
        for found, row in iter_training_rows(table.records(), columns, **how):
            if len(found) > 2 and not is_text:
                counts.n_hard_negatives += bool(row[2])
                digest = digest_keys(row[:2])
                if digest in seen:
                    continue
                seen.add(digest)
            yield row[:2]
        if not found:
            raise DataError(f"{table.name} has no rows")


def _wikiauto_columns(source: InputPath, encoding: str) -> Sequence[str]:
    """Return the columns of WikiAuto's manual alignments (tabs, no header); nothing for other files."""
    if guess_format(source) not in (FileFormat.TEXT, FileFormat.TSV) or str(source) == STDIO:
        return ()
    cells = next(iter_lines(source, encoding=encoding), "").split("\t")
    is_wikiauto = cells[0] in _WIKIAUTO_LABELS and len(cells) >= 5  # the score may be missing
    return _WIKIAUTO_MANUAL[: len(cells)] if is_wikiauto else ()


def parallel_rows(first: InputPath, second: InputPath, *, encoding: str = "utf-8") -> Iterator[Row]:
    """Pair line i of two text files, such as WikiAuto's ``train.src`` and ``train.dst``."""
    left, right = iter_lines(first, encoding=encoding), iter_lines(second, encoding=encoding)
    for n_before, (text, other) in enumerate(zip_longest(left, right)):
        if text is None or other is None:
            shorter, longer = (first, second) if text is None else (second, first)
            raise DataError(
                f"{source_name(shorter)} ends after line {n_before:,}, but {source_name(longer)} has more lines; "
                "need as many in both"
            )
        yield text, other


_CAPTION_NUMBER = re.compile(r"#\d+$")
_IMAGE_COLUMNS = ("image_id", "image", "image_name", "filename", "img_id")
_CAPTION_COLUMNS = ("caption", "comment", "sentence", "text", "raw")


def caption_rows(sources: Sequence[InputPath], *, encoding: str = "utf-8") -> Iterator[Row]:
    """Yield every two captions of an image as a pair, in file order; five captions give ten pairs.

    The sources are the official Flickr30k ``results_20130124.token`` (``1000.jpg#0<TAB>caption``), its version with
    ``|`` between the columns (whose header is like an image with one caption), or tables.
    """
    for source in sources:
        seen: set[str] = set()
        for image, group in groupby(_iter_captions(source, encoding), itemgetter(1)):
            rows = list(group)
            if image in seen:
                raise DataError(
                    f"{rows[0][0]}: image {image} comes again after other images",
                    hint=f"sort the file by image first, for example: sort -s -k1,1 {source}",
                )
            seen.add(image)
            yield from combinations([caption for _, _, caption in rows], 2)


def _iter_captions(source: InputPath, encoding: str) -> Iterator[tuple[str, str, str]]:
    is_text = guess_format(source) in (FileFormat.TEXT, FileFormat.CSV) and str(source) != STDIO
    first = next(iter_lines(source, encoding=encoding), "") if is_text else ""
    if "|" not in first and "\t" not in first:
        for place, (image, caption) in Table(source, encoding=encoding).pick(_caption_columns):
            yield place, image, caption
        return
    mark, n_cuts = ("\t", 1) if "\t" in first else ("|", 2)
    for number, line in enumerate(iter_lines(source, encoding=encoding), start=1):
        cells = [cell.strip() for cell in line.split(mark, n_cuts)]
        place = f"{source_name(source)}, line {number}"
        if len(cells) < 2:
            raise DataError(f"{place}: 1 column, need an image name and a caption")
        yield place, _CAPTION_NUMBER.sub("", cells[0]), cells[-1]


def _caption_columns(record: Record[str]) -> tuple[str, str]:
    image, caption = (
        next((found for name in names if (found := find_column(record, name))), None)
        for names in (_IMAGE_COLUMNS, _CAPTION_COLUMNS)
    )
    if image is None or caption is None:
        raise DataError(
            f"{record.columns_place}: the columns are {', '.join(record)}, need an image name and a caption",
            hint="name them image_id and caption",
        )
    return image, caption
