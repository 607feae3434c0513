"""``prepare pairs``: read paraphrase and caption corpora in their published layouts."""

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import combinations, groupby, zip_longest
from operator import itemgetter

from simcse_cli.data.delimited import refuse_returns
from simcse_cli.data.formats import FileFormat, InputPath, guess_format, source_name
from simcse_cli.data.given import Given, parse_columns
from simcse_cli.data.jobs import Job
from simcse_cli.data.names import POSITIONAL, fold
from simcse_cli.data.table import RowPosition, Table
from simcse_cli.data.text import digest_keys
from simcse_cli.data.training_file import iter_training_rows, list_left_out
from simcse_cli.data.writers import Row
from simcse_cli.errors import ConfigError, DataError
from simcse_cli.files.inputs import is_stream
from simcse_cli.files.streams import iter_lines
from simcse_cli.prepare.options import HardNegativeOptions, PairOptions
from simcse_cli.prepare.rows import RowWriter, chosen
from simcse_cli.progress import Progress


@dataclass
class PairCounts:
    """Counts of what is left out of tables: hard negatives, and records of other labels."""

    other_labels: Counter[str] = field(default_factory=Counter)
    n_hard_negatives: int = 0

    def summary(self) -> str:
        parts = list_left_out(self.other_labels)
        if self.n_hard_negatives:
            parts.append(
                f"left out {self.n_hard_negatives:,} hard negatives; "
                "`simcse train` reads such files as they are"
            )
        return "; ".join(parts)


def prepare_pairs(inputs: Sequence[str], options: PairOptions, writer: RowWriter) -> None:
    counts = PairCounts()
    position = None  # a pair of captions comes from two rows
    if options.flickr30k:
        rows = caption_rows(inputs, encoding=options.encoding)
    elif options.parallel:
        position = RowPosition()
        files = _two(inputs, "--parallel", "files")
        rows = parallel_rows(*files, encoding=options.encoding, position=position)
    else:
        position = RowPosition()
        given = given_pairs(options, writer.progress)
        rows = pair_rows(inputs, given, counts=counts, position=position)
    settings = chosen(options, "flickr30k", "parallel", "columns")
    writer.write(
        "pairs",
        rows,
        POSITIONAL[:2],
        inputs=inputs,
        settings=settings,
        corpus=counts,
        position=position,
    )


PAIR_ROLES = (*POSITIONAL[:2], "label")


def given_pairs(options: PairOptions | HardNegativeOptions, progress: Progress) -> Given:
    """Return what the options say about how to read tables of pairs."""
    # Only ``ROLE=COLUMN`` can name a column of labels; plain names are the two columns of texts.
    has_roles = "=" in (options.columns or "")
    columns = parse_columns(options.columns, PAIR_ROLES if has_roles else POSITIONAL[:2])
    if options.columns is not None:
        # Raise an error unless two columns of texts are named.
        _two([role for role in columns if role != "label"], "--columns", "names of texts")
    return Given.of(options, columns, roles=PAIR_ROLES, progress=progress)


def _two(values: Sequence[str], flag: str, what: str) -> tuple[str, str]:
    """Return the two values of a flag; raise ConfigError if there are fewer or more."""
    if len(values) != 2:
        raise ConfigError(f"{flag} needs two {what}, found {len(values)}: {', '.join(values)}")
    return values[0], values[1]


def pair_rows(
    sources: Sequence[InputPath],
    given: Given | None = None,
    *,
    counts: PairCounts | None = None,
    position: RowPosition | None = None,
) -> Iterator[Row]:
    """Yield the pairs of sources in any layout that ``iter_training_rows`` reads.

    A pair that a file repeats with several hard negatives is yielded once. ``counts`` is filled
    with what is left out, and ``position`` follows the rows of each source.
    """
    given = given or Given(roles=PAIR_ROLES)
    counts = counts or PairCounts()
    for source in sources:
        yield from _pairs_of(Table(source, Job.ROWS, given), counts, position)


def _pairs_of(table: Table, counts: PairCounts, position: RowPosition | None) -> Iterator[Row]:
    """Yield the pairs of a table; a pair with several hard negatives is yielded once."""
    seen: set[int] = set()
    columns: tuple[str, ...] = ()  # stays empty if the table has no pairs
    left_out = Counter[str]()
    for columns, row in iter_training_rows(table, left_out=left_out, position=position):
        # With hard negatives, a pair may occur once for each of them.
        if len(columns) > 2:
            counts.n_hard_negatives += bool(row[2])
            digest = digest_keys(row[:2])
            if digest in seen:
                continue
            seen.add(digest)
        yield row[:2]
    counts.other_labels.update(left_out)
    if left_out and not columns:
        labels = ", ".join(sorted(left_out)[:10])
        raise DataError(
            f"{table.name}: no row has a label of pairs; the labels are {labels}",
            hint="name the labels whose rows are pairs: --keep-label LABEL",
        )
    if not columns:
        raise DataError(f"{table.name} has no rows")


def parallel_rows(
    first: InputPath,
    second: InputPath,
    *,
    encoding: str = "utf-8",
    position: RowPosition | None = None,
) -> Iterator[Row]:
    """Yield line i of two files, such as WikiAuto's ``train.src`` and ``train.dst``, as a pair.

    ``position`` follows the lines of the first file.
    """
    position = position or RowPosition()
    position.open(source_name(first))
    lines = zip_longest(_lines(first, encoding), _lines(second, encoding))
    for n_before, (left, right) in enumerate(lines):
        # None stands for the lines that the shorter file lacks.
        if left is None or right is None:
            shorter = source_name(first)
            longer = source_name(second)
            if right is None:
                shorter, longer = longer, shorter
            raise DataError(
                f"{shorter} ends after line {n_before:,}, "
                f"but {longer} has more lines; need as many in both"
            )
        position.row += 1
        yield left, right


def _lines(source: InputPath, encoding: str) -> Iterator[str]:
    lines = iter_lines(source, encoding=encoding, asks_encoding=True)
    return refuse_returns(lines, source_name(source))


_CAPTION_NUMBER = re.compile(r"#\d+$")
_IMAGE_COLUMNS = ("image_id", "image", "image_name", "filename", "img_id")
_CAPTION_COLUMNS = ("caption", "comment", "sentence", "text", "raw")


def caption_rows(sources: Sequence[InputPath], *, encoding: str = "utf-8") -> Iterator[Row]:
    """Yield every two captions of an image as a pair, so that five captions give ten pairs.

    A source is the official Flickr30k ``results_20130124.token`` (``1000.jpg#0<TAB>caption``), the
    version of this file with ``|`` between the columns, or a table. The version with ``|`` begins
    with a header, which is read as an image with one caption, so it gives no pair.
    """
    for source in sources:
        seen: set[str] = set()
        for image, group in groupby(_iter_captions(source, encoding), itemgetter(1)):
            rows = list(group)
            if image in seen:
                first_place, *_ = rows[0]
                raise DataError(
                    f"{first_place}: image {image} comes again after other images",
                    hint=f"sort the file by image first, for example: sort -s -k1,1 {source}",
                )
            seen.add(image)
            captions = [caption for _, _, caption in rows]
            yield from combinations(captions, 2)


def _iter_captions(source: InputPath, encoding: str) -> Iterator[tuple[str, str, str]]:
    """Yield the place, the image and the text of each caption."""
    # The first line shows which character separates the columns. Stdin and pipes are taken for
    # tables, since they cannot be read twice, and so are formats other than text and CSV.
    can_peek = guess_format(source) in (FileFormat.TEXT, FileFormat.CSV) and not is_stream(source)
    first = next(_lines(source, encoding), "") if can_peek else ""
    if "\t" in first:
        cut = partial(str.split, sep="\t", maxsplit=1)  # image#number, caption
    elif "|" in first:
        cut = partial(str.split, sep="|", maxsplit=2)  # image, number, caption
    else:
        yield from _captions_of_table(source, encoding)
        return
    for number, line in enumerate(_lines(source, encoding), start=1):
        cells = list(map(str.strip, cut(line)))
        place = f"{source_name(source)}, line {number}"
        if len(cells) < 2:
            raise DataError(f"{place}: 1 column, need an image name and a caption")
        yield place, _CAPTION_NUMBER.sub("", cells[0]), cells[-1]


def _captions_of_table(source: InputPath, encoding: str) -> Iterator[tuple[str, str, str]]:
    """Yield the place, the image and the text of each caption in a table.

    The columns are found by the names that such tables usually give them.
    """
    table = Table(source, Job.LINT, Given(encoding=encoding))  # LINT asks no question
    if not table.reading.grid.sample:
        return  # the table is empty
    by_folded = {fold(column): column for column in table.reading.grid.names}
    image_columns = [by_folded[name] for name in _IMAGE_COLUMNS if name in by_folded]
    caption_columns = [by_folded[name] for name in _CAPTION_COLUMNS if name in by_folded]
    if not image_columns or not caption_columns:
        what = f"{table.name}: the columns are {', '.join(by_folded.values())}"
        raise DataError(
            f"{what}, need an image name and a caption", hint="name them image_id and caption"
        )
    for number, record in table.records():
        yield table.place(number), record[image_columns[0]], record[caption_columns[0]]
