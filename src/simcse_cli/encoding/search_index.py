"""Search a set of sentences by cosine, exactly or through a FAISS index.

An index is one file in the layout of safetensors, so nothing in it is executed. It holds the
sentences, a record of the model that made the vectors, and either the unit vectors or the
serialised FAISS index. If the name ends in ``.faiss``, the file is one that ``faiss.read_index``
opens, and everything else is in a second file beside it. An index is mapped from disk when it is
read, so it may be larger than the memory.
"""

from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch

from simcse_cli.arrays import AnyFloats, Array, Floats32, Integers
from simcse_cli.data.packed_texts import PackedTexts
from simcse_cli.errors import DataError, hints_in_python, require_extra
from simcse_cli.files.atomic import check_output
from simcse_cli.files.digests import OLDER_DIGEST, digest, is_older_digest
from simcse_cli.files.inputs import require_file
from simcse_cli.files.output import output_path
from simcse_cli.files.safetensors import mapped_tensors, sort_metadata
from simcse_cli.files.schema import foreign_format
from simcse_cli.models.encode import ReadyEncoder
from simcse_cli.packed.products import multiply
from simcse_cli.postprocess.unit_rows import unit_rows
from simcse_cli.settings.choices import SearchBackend
from simcse_cli.settings.convert import check_switches

FORMAT = "simcse-index-1"
DEFAULT_FACTORY = "HNSW32"
FAISS_ENDING = ".faiss"
QUERY_BLOCK = 1024
CORPUS_BLOCK = 8192
# How many candidates FAISS keeps when it searches an HNSW graph, and how many lists of an IVF index
# it searches.
HNSW_EFFORT = 256
IVF_PROBES = 32
# rank_rows asks for this many more neighbours, since some may be left out.
SPARE = 16
FAISS_BLOCK = 1 << 18
FAISS_TRAINING_BYTES = 1 << 30
Scores = Floats32
Rows = Integers


def index_files(path: Path | str) -> list[Path]:
    """Return the files of an index: its path and, if this ends in ``.faiss``, a file beside it."""
    path = Path(path)
    if path.suffix == FAISS_ENDING:
        return [path, path.with_name(f"{path.name}.texts")]
    return [path]


def is_index(path: Path | str) -> bool:
    """Tell whether a path is a search index, by its ending or its first bytes."""
    path = Path(path)
    if path.suffix == FAISS_ENDING:
        return True
    if not path.is_file():
        return False
    with path.open("rb") as stream:
        return f'"{FORMAT}"'.encode() in stream.read(4096)  # the metadata comes first


def check_index_output(path: Path, *, force: bool) -> None:
    """Raise the error that saving an index would raise, before anything is computed."""
    files = index_files(path)
    if path.suffix == FAISS_ENDING:
        require_extra("faiss", str(path))
    for file in files:
        check_output(file, force=force)


def require_made_by(info: Mapping[str, Any], encoder: ReadyEncoder, place: Path | str) -> None:
    """Raise DataError if the record of some vectors says that another encoder made them.

    The record is ``info``, of which the keys ``model``, ``digest``, ``prompt``, ``pooler`` and
    ``truncate_dim`` are read; a record without a digest passes. ``place`` names the vectors in the
    message.
    """
    recorded = info.get("digest")
    current = encoder.digest_with(info.get("prompt", ""))
    if is_older_digest(recorded, current):
        raise DataError(f"{place} {OLDER_DIGEST}", hint="build it again with --force")
    if recorded not in (None, current):
        if info.get("model") == encoder.name:
            raise _made_otherwise(info, encoder, place)
        made_by = f"another model or pooler ({info.get('model')})"
        raise DataError(
            f"{place} was made by {made_by} than {encoder.name}",
            hint="search it with the model that made it, or build it again",
        )


def _made_otherwise(info: Mapping[str, Any], encoder: ReadyEncoder, place: Path | str) -> DataError:
    """Return the error for vectors that this model made with another pooler, width or weights.

    ``info`` holds the width as ``truncate_dim``; without this key, it is the full width of the
    model.
    """
    pooler, width = encoder.pooler.value, str(encoder.dim)
    old_pooler = info.get("pooler", pooler)
    old_width = str(info.get("truncate_dim", encoder.model.dim))
    found: list[str] = []
    old_options = options = ""
    if old_pooler != pooler:
        found.append(f"pooler {old_pooler}, not {pooler}")
        old_options += f"--pooler {old_pooler} "
        options += f"--pooler {pooler} "
    if old_width != width:
        found.append(f"{old_width} components, not {width}")
        old_options += f"--truncate-dim {old_width} "
        options += f"--truncate-dim {width} "
    if found:
        return DataError(
            f"{place} was made by {encoder.name} with {' and '.join(found)}",
            hint=f"repeat this command with {old_options.strip()}, or encode again with "
            f"{options}--force",
        )
    return DataError(
        f"{place} was made by {encoder.name} with other weights or settings",
        hint="repeat the options with which it was made, or encode again with --force",
    )


def index_checksum(path: Path | str) -> str | None:
    """Return the checksum of the content of an index, or None if there is no undamaged index."""
    files = index_files(path)
    if not all(map(Path.is_file, files)):
        return None
    # For a damaged file, ``foreign_format`` raises DataError, and the result is None.
    with suppress(DataError), foreign_format(path, "a search index"):
        info, _ = _read_tensors(files)
        return info["sha256"]
    return None


class _UnitBlocks:
    """Vectors of any type; a slice of them is read as float32 rows of length 1.

    The vectors may stay on disk. ``are_units`` says that they have length 1 already.
    """

    def __init__(self, vectors: AnyFloats, *, are_units: bool) -> None:
        self.vectors = vectors
        self._are_units = are_units

    def __getitem__(self, block: slice) -> Floats32:
        rows = self.vectors[block]
        if self._are_units:
            return np.require(rows, np.float32, "W")  # writable, as PyTorch wants it
        row_numbers = range(len(self.vectors))[block]  # for the error about a row
        return unit_rows(rows, np.float32, numbers=row_numbers)


class ExactSearcher:
    """Compare every query with every vector, in blocks; the ranking is exact."""

    compresses = False

    def __init__(self, vectors: AnyFloats, *, are_units: bool = True) -> None:
        self._units = _UnitBlocks(vectors, are_units=are_units)

    @property
    def shape(self) -> tuple[int, int]:
        """Number of vectors and their width."""
        return self._units.vectors.shape[0], self._units.vectors.shape[1]

    def search(self, queries: Floats32, k: int) -> tuple[Scores, Rows]:
        """Return the cosine and row of the ``k`` nearest vectors per query, best first.

        For M queries and N vectors, both arrays have the shape ``(M, min(k, N))``.
        """
        k = min(k, self.shape[0])
        scores = np.empty((len(queries), k), dtype=np.float32)
        rows = np.empty((len(queries), k), dtype=np.int64)
        for start in range(0, len(queries), QUERY_BLOCK):
            block = slice(start, start + QUERY_BLOCK)
            scores[block], rows[block] = self._search_block(queries[block], k)
        return scores, rows

    def _search_block(self, queries: Floats32, k: int) -> tuple[Scores, Rows]:
        """Do ``search`` for one block of queries, with one block of vectors after the other."""
        n_queries = len(queries)
        # PyTorch wants memory that can be written, even where it only reads.
        query_tensor = torch.from_numpy(np.require(queries, np.float32, "W"))
        # Memory for the scores of one block, which all blocks use in turn.
        memory = np.empty(n_queries * min(CORPUS_BLOCK, self.shape[0]), np.float32)

        # The best pairs so far: pair i is the vector ``rows[i]`` and the query ``owners[i]``. A
        # further pair of a query must have a higher score than the query's entry in ``lowest``.
        scores = np.empty(0, np.float32)
        rows = np.empty(0, np.int64)
        owners = np.empty(0, np.int64)
        lowest = np.full(n_queries, -np.inf, np.float32)
        for start in range(0, self.shape[0], CORPUS_BLOCK):
            units = self._units[start : start + CORPUS_BLOCK]
            tile = memory[: n_queries * len(units)].reshape(n_queries, -1)
            multiply(query_tensor, torch.from_numpy(units).T, out=torch.from_numpy(tile))
            new_owners, new_columns = _candidates(tile, lowest, k)
            scores = np.concatenate([scores, tile[new_owners, new_columns]])
            rows = np.concatenate([rows, new_columns + start])
            owners = np.concatenate([owners, new_owners])
            best = _best_of_each(n_queries, owners, scores, rows, k)
            scores = scores[best]
            rows = rows[best]
            owners = owners[best]
            # Pairs are sorted by query, best first. Once every query has k pairs, every k-th pair
            # is the worst of its query.
            if len(scores) == n_queries * k:
                lowest = scores[k - 1 :: k]
        return scores.reshape(-1, k), rows.reshape(-1, k)

    def tensors(self) -> dict[str, Array]:
        return {"vectors": np.ascontiguousarray(self._units[:])}


def _accept_few_points(faiss: Any, index: Any) -> None:
    """Let FAISS train on few points without a warning, which it writes past our console."""
    # Clusters are made by an index, by its product quantiser, and by the indexes within it. ``cp``
    # holds the parameters of the clustering.
    for maker in (index, getattr(index, "pq", None)):
        if maker is not None and hasattr(maker, "cp"):
            maker.cp.min_points_per_centroid = 1
    for name in ("index", "base_index", "storage", "quantizer"):
        if (inner := getattr(index, name, None)) is not None:
            _accept_few_points(faiss, faiss.downcast_index(inner))


class FaissSearcher:
    """Search a FAISS index of unit vectors by inner product.

    The search is approximate unless the factory of the index is ``Flat``.
    """

    def __init__(self, index: Any) -> None:
        self._index = index
        if hasattr(index, "hnsw"):
            index.hnsw.efSearch = HNSW_EFFORT
        if hasattr(index, "nprobe"):
            index.nprobe = min(IVF_PROBES, index.nlist)

    @classmethod
    def build(
        cls, vectors: AnyFloats, factory: str = DEFAULT_FACTORY, *, are_units: bool = False
    ) -> Self:
        """Build an index of the vectors, block by block, from a FAISS factory string.

        An index that needs training is trained on all rows or, if they exceed
        ``FAISS_TRAINING_BYTES``, on every n-th row.
        """
        faiss = _import_faiss()
        units = _UnitBlocks(vectors, are_units=are_units)
        try:
            index = faiss.index_factory(vectors.shape[1], factory, faiss.METRIC_INNER_PRODUCT)
            if not index.is_trained:
                # Train on every n-th row, n = ``step``. A component takes 4 bytes.
                step = -(-4 * vectors.size // FAISS_TRAINING_BYTES)  # rounded up
                _accept_few_points(faiss, index)
                index.train(units[::step])
            for start in range(0, len(vectors), FAISS_BLOCK):
                index.add(units[start : start + FAISS_BLOCK])
        except RuntimeError as error:
            # The message names a place in the code of FAISS before the reason.
            reason = str(error).split("Error: ")[-1].strip()
            raise DataError(
                f"FAISS cannot build {factory!r} over {len(vectors)} vectors: {reason}",
                hint="use --backend exact, or a factory such as Flat, HNSW32 or IVF64,Flat",
            ) from error
        return cls(index)

    @property
    def shape(self) -> tuple[int, int]:
        return self._index.ntotal, self._index.d

    @property
    def compresses(self) -> bool:
        """Tell whether the index keeps the vectors rounded, so that its cosines are, too."""
        index = self._index
        if hasattr(index, "storage"):  # of an HNSW graph
            index = _import_faiss().downcast_index(index.storage)
        with suppress(RuntimeError):  # some kinds do not say how much they keep
            return bool(index.sa_code_size() < 4 * index.d)  # 4 bytes for a float32
        return False

    def search(self, queries: Floats32, k: int) -> tuple[Scores, Rows]:
        """Return what FAISS finds; neighbours that it does not find have score -inf and row -1."""
        scores, rows = self._index.search(np.ascontiguousarray(queries), min(k, self._index.ntotal))
        return np.where(rows < 0, -np.inf, scores).astype(np.float32), rows.astype(np.int64)

    @classmethod
    def mapped(cls, path: Path) -> Self:
        """Open an index file without reading it into memory; the caller has checked its digest."""
        faiss = _import_faiss()
        mapping_flag = getattr(faiss, "IO_FLAG_MMAP_IFC", 0)  # FAISS before 1.11 reads it all
        return cls(faiss.read_index(str(path), mapping_flag))

    def write(self, path: Path) -> None:
        _import_faiss().write_index(self._index, str(path))

    def tensors(self) -> dict[str, Array]:
        return {"faiss": _import_faiss().serialize_index(self._index)}


class SearchIndex:
    """Sentences, a searcher over their vectors, and a record of the model that made the vectors.

    See ``build`` for ``info``, ``ids`` and ``unused``.
    """

    def __init__(
        self,
        sentences: Sequence[str],
        searcher: ExactSearcher | FaissSearcher,
        info: Mapping[str, str],
        ids: Sequence[str] | None = None,
        unused: Sequence[str] = (),
    ) -> None:
        self.sentences = sentences
        self.info = dict(info)
        self.ids = ids
        self.unused = unused
        self._searcher = searcher

    @property
    def compresses(self) -> bool:
        """Tell whether the index is one of FAISS that compresses its vectors."""
        return self._searcher.compresses

    def require_made_by(self, encoder: ReadyEncoder, place: Path | str = "the index") -> None:
        """Raise DataError if another encoder made the vectors; an index without a record passes."""
        require_made_by(self.info, encoder, place)

    @classmethod
    def build(
        cls,
        vectors: AnyFloats,
        sentences: Sequence[str],
        *,
        backend: SearchBackend = SearchBackend.EXACT,
        factory: str = DEFAULT_FACTORY,
        info: Mapping[str, str] | None = None,
        ids: Sequence[str] | None = None,
        unused: Sequence[str] = (),
    ) -> Self:
        """Return an index over ``(N, D)`` vectors of any norm; row i belongs to sentence i.

        Memory-mapped vectors stay on disk. A zero row has cosine 0 with everything. ``factory`` is
        a FAISS factory string; exact search ignores it.

        ``info`` records the origin of the vectors (``model``, ``digest``, ``pooler``). ``ids`` name
        the sentences. Without ids, ``unused`` are the columns of the table of sentences that may
        hold them: all that hold no texts.
        """
        if not len(sentences):
            raise DataError("an index of no sentences, need at least one")
        if vectors.ndim != 2 or len(vectors) != len(sentences):
            raise DataError(
                f"{tuple(vectors.shape)} vectors for {len(sentences)} sentences, need one row per "
                "sentence",
                hint="encode the same file again: `simcse encode FILE -o VECTORS.npy --force`",
            )
        searcher: ExactSearcher | FaissSearcher
        if backend is not SearchBackend.EXACT:
            searcher = FaissSearcher.build(vectors, factory)
        elif isinstance(vectors, np.memmap):
            searcher = ExactSearcher(vectors, are_units=False)  # scales them when it reads them
        else:
            searcher = ExactSearcher(unit_rows(vectors, np.float32))
        return cls(sentences, searcher, info or {}, ids, unused)

    def search(self, queries: AnyFloats, k: int) -> tuple[Scores, Rows]:
        """Return the cosine and row of the ``k`` nearest sentences per query, best first.

        For M queries and N sentences, both arrays have the shape ``(M, min(k, N))``.
        """
        width = self._searcher.shape[1]
        if queries.shape[1] != width:
            raise DataError(
                f"the queries have {queries.shape[1]} dimensions, the indexed vectors {width}",
                hint="search with the model that made the vectors: --model",
            )
        return self._searcher.search(unit_rows(queries, np.float32), k)

    def save(self, path: Path | str, *, force: bool = False) -> str:
        """Write the index atomically, and return the checksum of its content.

        Exact vectors become a flat FAISS index if the path ends in ``.faiss``.
        """
        from safetensors.numpy import save_file

        check_switches(force=force)
        # A second file means `.faiss`: the first is FAISS's own, the second holds the texts.
        files = index_files(path)
        faiss_searcher = self._as_faiss() if len(files) > 1 else None
        texts = PackedTexts.of(self.sentences)
        tensors: dict[str, Array] = {"text": texts.content, "text_ends": texts.ends}
        if self.ids is not None:
            ids = PackedTexts.of(self.ids)
            tensors |= {"id": ids.content, "id_ends": ids.ends}
        if self.unused:
            unused = PackedTexts.of(self.unused)
            tensors |= {"unused": unused.content, "unused_ends": unused.ends}
        # Commands have checked that they may write the files, so only a caller in Python can get an
        # error about a file that exists.
        # An ExitStack closes in reverse order, so the first file, the index itself, appears last.
        with hints_in_python(), ExitStack() as stack:
            temporary = [stack.enter_context(output_path(file, force=force)) for file in files]
            if faiss_searcher is None:
                tensors |= self._searcher.tensors()
                checksum = _digest(tensors)
            else:
                faiss_searcher.write(temporary[0])
                # The checksum covers both files.
                written = np.memmap(temporary[0], np.uint8, "r")
                checksum = _digest(tensors | {"faiss": written})
            facts = {"sha256": checksum, "format": FORMAT}
            save_file(tensors, temporary[-1], metadata=self.info | facts)
            sort_metadata(temporary[-1])
        return checksum

    def _as_faiss(self) -> FaissSearcher:
        if isinstance(self._searcher, FaissSearcher):
            return self._searcher
        return FaissSearcher.build(self._searcher.tensors()["vectors"], "Flat", are_units=True)

    @classmethod
    def load(cls, path: Path | str) -> Self:
        """Return an index written by :meth:`save`."""
        hint = "write one with `simcse encode FILE -o VECTORS.npy --index FILE`"
        files = [require_file(file, hint=hint) for file in index_files(path)]
        for file in files:
            if not file.is_file():
                raise DataError(f"{file} is a pipe or a device, need a file", hint=hint)
        with foreign_format(path, "a search index", hint=hint):
            info, tensors = _read_tensors(files)
            del info["sha256"]  # the rest is the record that ``save`` was given
            sentences = PackedTexts(tensors["text"], tensors["text_ends"])
            ids = PackedTexts(tensors["id"], tensors["id_ends"]) if "id" in tensors else None
            unused: Sequence[str] = ()  # also in an index of an earlier version
            if "unused" in tensors:
                unused = PackedTexts(tensors["unused"], tensors["unused_ends"])
            searcher = _open_searcher(files, tensors)
            if searcher.shape[0] != len(sentences) or not sentences:
                raise ValueError(f"{searcher.shape[0]:,} vectors for {len(sentences):,} sentences")
            if ids is not None and len(ids) != len(sentences):
                raise ValueError(f"{len(ids):,} ids for {len(sentences):,} sentences")
        return cls(sentences, searcher, info, ids, unused)


def _read_tensors(files: Sequence[Path]) -> tuple[dict[str, str], dict[str, Array]]:
    """Return the record and the content of an index; raise ValueError if its content has changed.

    The last file holds the record and the texts. If there are two files, the first is FAISS's own
    (`.faiss`).
    """
    from safetensors import safe_open

    with safe_open(files[-1], framework="np") as stream:  # checks the layout
        info = stream.metadata() or {}
    if info.pop("format", None) != FORMAT:
        raise ValueError(f"a safetensors file that is not {FORMAT}")
    tensors = mapped_tensors(files[-1])
    if len(files) > 1:
        tensors["faiss"] = np.memmap(files[0], np.uint8, "r")
    # FAISS does not check what it reads, so it only gets bytes whose digest is right.
    if info.get("sha256") != _digest(tensors):
        raise ValueError("its content has changed since it was written")
    return info, tensors


def _open_searcher(
    files: Sequence[Path], tensors: Mapping[str, Array]
) -> ExactSearcher | FaissSearcher:
    # A file of FAISS's own is mapped; an index within the safetensors file is read into memory.
    if len(files) > 1:
        return FaissSearcher.mapped(files[0])
    if "faiss" in tensors:
        return FaissSearcher(_import_faiss().deserialize_index(tensors["faiss"]))
    _require_finite_float32(tensors["vectors"])
    return ExactSearcher(tensors["vectors"])


def _require_finite_float32(units: Array) -> None:
    starts = range(0, len(units), CORPUS_BLOCK)
    is_finite = all(np.isfinite(units[start : start + CORPUS_BLOCK]).all() for start in starts)
    if units.ndim != 2 or units.dtype != np.float32 or not is_finite:
        raise ValueError("its vectors are not finite float32 values")


@dataclass(frozen=True)
class Neighbour:
    """A sentence found by a search, with its row in the index (from 0), its cosine and its id."""

    row: int
    sentence: str
    cosine: float
    id: str | None = None


def rank_rows(
    index: SearchIndex, queries: AnyFloats, k: int, texts: Sequence[str] | None
) -> tuple[Rows, Scores]:
    """Return rows and cosines of the ``k`` nearest sentences of each query, best first.

    Queries are ``(M, D)`` of any norm. Both results are ``(M, k)``; if a query has fewer
    neighbours, the rest of its row is -1 and -inf. Sentences without text are left out. If the
    ``texts`` of the queries are given, a sentence that equals the text of the query is left out,
    too.
    """
    # Some of the sentences found are left out, so ask for more until k remain or all are found.
    n_asked = k if texts is None else k + SPARE
    while True:
        found_scores, found_rows = index.search(queries, n_asked)
        kept = np.zeros(found_rows.shape, dtype=bool)
        for query, candidates in enumerate(found_rows.tolist()):
            text = None if texts is None else texts[query]
            for place, row in enumerate(candidates):
                sentence = index.sentences[row] if row >= 0 else ""
                kept[query, place] = bool(sentence.strip()) and sentence != text
        has_enough = (kept.sum(axis=1) >= k).all()
        # FAISS gives row -1 once it finds no more neighbours, so a larger search would not help.
        if has_enough or n_asked >= len(index.sentences) or (found_rows < 0).any():
            break
        n_asked *= 4
    rows = np.full((len(queries), k), -1, dtype=np.int64)
    scores = np.full((len(queries), k), -np.inf, dtype=np.float32)
    for query, is_kept in enumerate(kept):
        best = np.flatnonzero(is_kept)[:k]
        rows[query, : len(best)] = found_rows[query, best]
        scores[query, : len(best)] = found_scores[query, best]
    return rows, scores


def nearest(
    index: SearchIndex, queries: AnyFloats, k: int, texts: Sequence[str] | None = None
) -> list[list[Neighbour]]:
    """Return for each query the ``k`` nearest sentences, or all if there are fewer, best first.

    Sentences without text are left out. If the ``texts`` of the queries are given, a sentence that
    equals the text of the query is left out, too.
    """
    rows, scores = rank_rows(index, queries, k, texts)
    neighbours_by_query = []
    for query_rows, query_scores in zip(rows.tolist(), scores.tolist(), strict=True):
        neighbours = []
        for row, score in zip(query_rows, query_scores, strict=True):
            if row >= 0:  # -1 is a missing neighbour
                row_id = None if index.ids is None else index.ids[row]
                # Rounding may give a cosine above 1.
                neighbours.append(Neighbour(row, index.sentences[row], min(1.0, score), row_id))
        neighbours_by_query.append(neighbours)
    return neighbours_by_query


def _best_of_each(n_queries: int, owners: Integers, scores: Scores, rows: Rows, k: int) -> Integers:
    """Return the positions of the ``k`` best pairs of each query, sorted by query, best first.

    Pair i has the query ``owners[i]``, the vector ``rows[i]`` and the score ``scores[i]``.
    """
    order = np.lexsort((rows, -scores, owners))  # by the last key first
    sorted_owners = owners[order]
    first_of_query = np.searchsorted(sorted_owners, np.arange(n_queries))
    rank_in_query = np.arange(len(owners)) - first_of_query[sorted_owners]
    return order[rank_in_query < k]


def _candidates(scores: Scores, lowest: Scores, k: int) -> tuple[Integers, Integers]:
    """Return rows and columns of the entries that may be among the ``k`` largest of their row.

    ``scores`` has a row for each query and a column for each vector. Entries that do not exceed the
    row's ``lowest`` may be left out. Each row is cut into about ``4 * k`` groups, because
    ``np.argpartition`` of whole rows is too slow: it would take half as long as the matrix product
    that computes the scores.
    """
    n_rows, n_columns = scores.shape
    group_size = n_columns // (4 * k)
    if group_size > 1:
        candidates = _candidates_of_groups(scores, lowest, k, group_size)
        if len(candidates[0]) <= 16 * k * n_rows:
            return candidates
    # There are too few columns for groups, or the groups gave too many candidates. So take the
    # k largest entries of each row, or all if there are fewer.
    if n_columns > k:
        columns = np.argpartition(scores, -k, axis=1)[:, -k:]
    else:
        columns = np.broadcast_to(np.arange(n_columns), (n_rows, n_columns))
    return np.repeat(np.arange(n_rows), columns.shape[1]), columns.ravel()


def _candidates_of_groups(
    scores: Scores, lowest: Scores, k: int, size: int
) -> tuple[Integers, Integers]:
    """Return rows and columns of the entries that may be among the ``k`` largest of their row.

    Each row is cut into groups of ``size`` columns, and the maximum of each group is taken. At
    least k entries of the row reach the k-th largest maximum, so smaller entries are left out.
    Entries below the row's ``lowest`` are left out, too. Few groups have a maximum that reaches
    both bounds, and only these groups are searched.
    """
    n_rows, n_columns = scores.shape
    end = n_columns // size * size  # of the last whole group
    groups = scores[:, :end].reshape(n_rows, -1, size)
    maxima = torch.from_numpy(groups).amax(2).numpy()
    bound = np.maximum(lowest, np.partition(maxima, -k, axis=1)[:, -k])
    rows, columns = _entries_that_reach(bound, groups, maxima)
    # The columns after the last whole group are searched one by one.
    rest_rows, rest_columns = np.nonzero(scores[:, end:] >= bound[:, None])
    return np.concatenate([rows, rest_rows]), np.concatenate([columns, rest_columns + end])


def _entries_that_reach(bound: Scores, groups: Scores, maxima: Scores) -> tuple[Integers, Integers]:
    """Return rows and columns of the entries that are not below the bound of their row.

    ``groups`` are ``(n_rows, n_groups, size)``; ``maxima`` are their largest entries,
    ``(n_rows, n_groups)``.
    """
    n_groups, size = groups.shape[1:]
    # Row and number of each group that reaches the bound.
    rows, numbers = np.divmod(np.flatnonzero(maxima >= bound[:, None]), n_groups)
    # For each entry of these groups that reaches the bound: the position of its group in ``rows``
    # and ``numbers``, and its offset in the group.
    do_reach = groups[rows, numbers] >= bound[rows, None]
    positions, offsets = np.divmod(np.flatnonzero(do_reach), size)
    return rows[positions], numbers[positions] * size + offsets


def _digest(tensors: Mapping[str, Array]) -> str:
    return digest(*(np.ascontiguousarray(tensors[name]).data for name in sorted(tensors)))


def _import_faiss() -> Any:
    require_extra("faiss", "a FAISS index")
    import faiss

    return faiss
