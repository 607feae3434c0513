"""``encode --update``: encode the rows of a table that are new or changed, and keep the others.

Rows of input and output with the same id are compared by a digest of their texts. Rows are written
in the order of the input. Rows that are gone from the input follow, unless they are dropped.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy as np

from simcse_cli.arrays import Array, Integers
from simcse_cli.data.file_sets import FileSet
from simcse_cli.data.kinds import cell_text
from simcse_cli.data.packed_texts import PackedTexts
from simcse_cli.encoding import formats
from simcse_cli.encoding.parts import side_file
from simcse_cli.encoding.row_names import NamedRow, names_file, read_names, text_digest
from simcse_cli.encoding.search_index import SearchIndex
from simcse_cli.errors import DataError, OutputError
from simcse_cli.files.inputs import read_json
from simcse_cli.files.output import differences, other_value
from simcse_cli.files.schema import checked

FACTS = {"format", "version", "model", "input", "files", "n_rows", "dim", "index", "rows"}
FACTS |= {"index_sha256", "input_rows", "rows_sha256", "texts_sha256"}
"""Entries of a side file that are not settings."""
NOT_RECORDED = {"capability", "column"}
"""Settings that simcse 1.0.0 did not record; they are compared if a side file has them."""
_OF_INPUT = {"input_sha256", "header", "separator", "sheet", "encoding", "keep_label", "text_per"}
"""Entries about the input and how it is read; they may differ in an update."""
_AGAIN = "encode all rows again with --force, without --update"


def read_side(output: Path, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the content of an output's side file; raise OutputError if its settings differ.

    Settings about the input may differ.
    """
    path = side_file(output)
    side = read_json(path) if path.is_file() else None
    if not isinstance(side, dict) or "model_digest" not in side:
        raise OutputError(f"{output} has no side file that tells what it holds", hint=_AGAIN)
    if side.get("id_column") is None:
        raise OutputError(
            f"{output} was written without ids, by which an update knows rows",
            hint=f"{_AGAIN}, with --id-column",
        )

    # A setting that simcse 1.0.0 did not record is ignored if the side file lacks it.
    ignored = FACTS | _OF_INPUT | (NOT_RECORDED - side.keys())
    for key, recorded, current in differences(side, settings):
        if key not in ignored:
            other = other_value(key, recorded, current)
            if key == "model_digest":
                other = "another model"
            raise OutputError(
                f"{output} was written with {other}",
                hint=f"repeat the options of the first time, or {_AGAIN}",
            )
    for key in ("n_rows", "dim"):  # raise DataError unless they are whole numbers
        checked(side.get(key), int, f"{path}: {key}", hint=formats.DAMAGED)
    return side


@dataclass(frozen=True)
class _EarlierRows:
    """The rows of the earlier output, and the texts of the rows that are gone from the input.

    Attributes:
        numbers: the number of each row, by its id as a text.
        ids: the id of each row, in the order of the rows.
        digests: the digest of each row's text, in the same order.
        gone_texts: the text of each row that is gone, by row number, in the same order. If the
            output holds no texts, all are empty.
    """

    numbers: dict[str, int] = field(default_factory=dict)
    ids: list[Any] = field(default_factory=list)
    digests: list[str] = field(default_factory=list)
    gone_texts: dict[int, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Update:
    """The rows that an output will have after an update.

    Attributes:
        output: the file to update.
        side: the content of its side file.
        texts, ids, digests: the text, the id and the text's digest of each row, in the new order.
        sources: where the vector of each row comes from: its row number in the earlier output, or
            ``-1 - n`` for the n-th text to encode (from 0).
        fresh: the numbers of the rows whose texts are to be encoded, in the new order.
        counts: how many rows are ``new``, ``changed``, ``gone`` and ``as before``.
        drops_gone: whether rows that are gone from the input are left out.
    """

    output: Path
    side: Mapping[str, Any]
    texts: PackedTexts
    ids: list[Any]
    digests: list[str]
    sources: Integers
    fresh: list[int]
    counts: Mapping[str, int]
    drops_gone: bool

    @classmethod
    def plan(
        cls, output: Path, side: Mapping[str, Any], files: FileSet, column: str, *, drops_gone: bool
    ) -> "Update":
        """Compare the input with the earlier output; ``column`` is the input's column of ids."""
        texts, ids, digests = _read_input(files, column)
        id_texts = list(map(cell_text, ids))
        earlier = _read_earlier(output, side, set(id_texts))

        # Compare each row with the earlier row of its id; -1 - n stands for the n-th fresh text.
        sources = np.empty(len(ids), np.int64)
        fresh: list[int] = []
        n_new = 0
        for row, (id_text, digest) in enumerate(zip(id_texts, digests, strict=True)):
            old = earlier.numbers.get(id_text)
            n_new += old is None
            if old is not None and earlier.digests[old] == digest:
                sources[row] = old
            else:
                sources[row] = -1 - len(fresh)
                fresh.append(row)
        gone = list(earlier.gone_texts)
        counts = {"new": n_new, "changed": len(fresh) - n_new, "gone": len(gone)}
        counts["as before"] = len(ids) - len(fresh)

        # Earlier rows that are gone from the input come last. Their texts are needed for the new
        # index; if the output holds no texts, they are taken from the earlier index.
        if gone and not drops_gone:
            gone_texts = earlier.gone_texts
            if "index" in side and names_file(output) is not None:
                gone_texts = _texts_of_index(output.parent / side["index"], earlier)
            texts = PackedTexts.stored(chain(texts, gone_texts.values()))
            ids += [earlier.ids[row] for row in gone]
            digests += [earlier.digests[row] for row in gone]
            sources = np.concatenate([sources, np.array(gone, np.int64)])
        return cls(output, side, texts, ids, digests, sources, fresh, counts, drops_gone)

    @property
    def keeps_gone(self) -> bool:
        """Tell whether the output keeps rows that are gone from the input."""
        return self.counts["gone"] > 0 and not self.drops_gone

    @property
    def changes_nothing(self) -> bool:
        return np.array_equal(self.sources, np.arange(self.side["n_rows"]))

    def summary(self) -> str:
        told = {name: f"{n_rows:,} {name}" for name, n_rows in self.counts.items()}
        if self.counts["gone"]:
            told["gone"] += " (kept)" if self.keeps_gone else " (dropped)"
        return f"{self.output}: {', '.join(told.values())}"

    def join(self, encoded: Array, folder: Path) -> Path:
        """Write all rows in their new order into a raw file in a folder, and return its path.

        ``encoded`` holds the stored vectors of the texts ``self.fresh``, in the same order.
        """
        # The earlier rows are read in their old order, but needed in another. So they are copied
        # into a file without a header, and this file is mapped.
        old_file = folder / "earlier"
        shape = (self.side["n_rows"], encoded.shape[1])
        with old_file.open("xb") as stream:
            for rows, _, _ in formats.read_blocks(self.output, self.side):
                stream.write(np.ascontiguousarray(rows).data)
        old: Array = encoded[:0]
        if shape[0]:  # a file without rows cannot be mapped
            old = np.memmap(old_file, encoded.dtype, mode="r", shape=shape)

        raw = folder / "rows"
        with raw.open("xb") as stream:
            stream.write(b"\0" * formats.HEADER_BYTES)
            for start in range(0, len(self.sources), formats.CHUNK_ROWS):
                sources = self.sources[start : start + formats.CHUNK_ROWS]
                block = np.empty((len(sources), shape[1]), encoded.dtype)
                is_old = sources >= 0
                block[is_old] = old[sources[is_old]]
                block[~is_old] = encoded[-1 - sources[~is_old]]  # -1 - n stands for `encoded[n]`
                stream.write(block.data)
        del old
        old_file.unlink()
        return raw


def _read_input(files: FileSet, column: str) -> tuple[PackedTexts, list[Any], list[str]]:
    """Return the texts of an input, the ids in a column, and the digests of the texts."""
    ids: list[Any] = []
    digests: list[str] = []

    def texts() -> Iterator[str]:
        for text, row_id in files.texts_with(column):
            ids.append(row_id)
            digests.append(text_digest(text))
            yield text

    return PackedTexts.stored(texts()), ids, digests


def _texts_of_index(index: Path, earlier: _EarlierRows) -> dict[int, str]:
    """Return the texts of gone rows, by row number, from the index of the earlier output.

    The texts are looked up by their digests, since the row numbers may not fit: a killed update may
    have replaced the index already.
    """
    by_digest = {text_digest(text): text for text in SearchIndex.load(index).sentences}
    texts: dict[int, str] = {}
    for row in earlier.gone_texts:
        text = by_digest.get(earlier.digests[row])
        if text is None:
            raise DataError(
                f"{index} lacks the texts of rows that are gone",
                hint=f"drop such rows with --drop-gone, or {_AGAIN}",
            )
        texts[row] = text
    return texts


def _read_earlier(output: Path, side: Mapping[str, Any], present: set[str]) -> _EarlierRows:
    """Return the rows of the earlier output, with the texts of the rows that the input has lost.

    ``present`` holds the ids that the input has now, as texts. ``side`` is the content of the side
    file; raise DataError if the output is not what the side file describes.
    """
    # All rows are read once. Only the texts of rows that are gone are kept.
    earlier = _EarlierRows()
    digest = formats.RowDigest()
    for (row_id, digest_of_text), text in _named_texts(output, side, digest):
        id_text = cell_text(row_id)
        number = len(earlier.ids)
        if id_text not in present:
            earlier.gone_texts[number] = text
        earlier.numbers[id_text] = number
        earlier.ids.append(row_id)
        earlier.digests.append(digest_of_text)

    # The number of ids also differs if an id occurs twice.
    has_same_digests = digest.facts().items() <= side.items()
    if len(earlier.numbers) != side["n_rows"] or not has_same_digests:
        raise DataError(f"{output} is not what its side file describes", hint=formats.DAMAGED)
    return earlier


def _named_texts(
    output: Path, side: Mapping[str, Any], digest: formats.RowDigest
) -> Iterator[tuple[NamedRow, str]]:
    """Yield the id, text digest and text of each row, and add rows and texts to ``digest``.

    A damaged output may lack ids. Rows without one are left out, and the caller sees that there are
    too few.
    """
    # If the format of the vectors holds no texts, a file beside them has the ids and the digests.
    ids_file = names_file(output)
    stored_names = None if ids_file is None else read_names(ids_file)
    for rows, stored_texts, ids in formats.read_blocks(output, side):
        digest.add(rows, stored_texts)
        texts = stored_texts or [""] * len(rows)
        named_rows: Iterable[NamedRow]
        if stored_names is not None:
            named_rows = islice(stored_names, len(rows))
        else:
            named_rows = zip(ids or (), map(text_digest, texts), strict=False)
        # There may be fewer names than rows, so zip is not strict.
        yield from zip(named_rows, texts, strict=False)
