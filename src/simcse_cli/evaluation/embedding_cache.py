"""Encode each sentence once: within a call, over calls, and with a cache on disk.

The cache has one folder per encoder, named by a digest of everything that determines its vectors
(weights, pooler, post-processing, precision). Vectors are keyed by their sentences and results by
their settings and data, so a changed file or setting never matches an old entry.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from simcse_cli.arrays import Floats32
from simcse_cli.errors import DataError, OutputError
from simcse_cli.files.atomic import atomic_path, write_json
from simcse_cli.files.digests import digest
from simcse_cli.files.inputs import read_json
from simcse_cli.files.schema import foreign_format
from simcse_cli.files.system import default_cache_dir
from simcse_cli.progress import SILENT, Progress

_MARK = "2-"  # starts the name of a folder; the folders of version 1.0.0 have no mark
Embeddings = Floats32
Encode = Callable[[Sequence[str]], Embeddings]
"""Maps N sentences to ``(N, D)`` vectors; row i belongs to sentence i."""


def encode_distinct(encode: Encode, sentences: Sequence[str]) -> Mapping[str, Embeddings]:
    """Return a mapping from every distinct sentence to its vector; call ``encode`` once."""
    distinct = list(dict.fromkeys(sentences))
    return dict(zip(distinct, encode(distinct), strict=True))


def memoize(encode: Encode) -> Encode:
    """Return a function like ``encode`` that keeps its vectors, and encodes no sentence twice."""
    vector_of: dict[str, Embeddings] = {}

    def encode_once(sentences: Sequence[str]) -> Embeddings:
        new = [sentence for sentence in dict.fromkeys(sentences) if sentence not in vector_of]
        if new:
            vector_of.update(zip(new, encode(new), strict=True))
        return np.stack([vector_of[sentence] for sentence in sentences])

    return encode_once


def cache_folder(cache_dir: Path | None, is_on: bool, progress: Progress) -> Path | None:
    if not is_on:
        return None
    folder = cache_dir or default_cache_dir()
    progress.detail(f"vectors and finished tasks are kept below {folder}")
    return folder


def digest_of(*parts: Any) -> str:
    """Return a digest of JSON values and NumPy arrays, in 16 hex digits."""
    pieces: list[bytes] = []
    for part in parts:
        if isinstance(part, np.ndarray):
            data = part.tobytes()
        else:
            data = json.dumps(part, sort_keys=True).encode()
        # The length keeps parts apart: "ab", "c" and "a", "bc" have different digests.
        pieces += [len(data).to_bytes(8, "little"), data]
    return digest(*pieces)[:16]


@dataclass(frozen=True)
class _KeptResult:
    result: dict[str, Any]
    digest: str


class EvaluationCache:
    """Vectors and results of one encoder, kept on disk.

    Each entry has a checksum; a corrupt entry is computed again and replaced. If the cache is not
    writable, there is one warning and the cache is not used any more.

    ``folder`` holds the caches of all encoders; without it nothing is kept. Without
    ``keep_vectors`` only results are kept. ``encoder_key`` is a text that differs for any two
    encoders with different vectors.
    """

    def __init__(
        self,
        folder: Path | None,
        encoder_key: str,
        *,
        keep_vectors: bool = True,
        progress: Progress = SILENT,
    ) -> None:
        self._folder = folder
        self._keep_vectors = keep_vectors
        self._progress = progress
        if folder is not None:
            self._folder = folder / f"{_MARK}{digest_of(encoder_key)}"
            if not self._folder.exists():  # else an earlier call gave the hint
                _tell_of_older_folders(folder, progress)

    def embed(self, name: str, sentences: Sequence[str], encode: Encode) -> Embeddings:
        """Return the vectors of ``sentences``, ``(N, D)``, from the cache or from ``encode``.

        ``encode`` gets every distinct sentence once. The name of the file of vectors begins with
        ``name``.
        """
        distinct = list(dict.fromkeys(sentences))
        path = self._path(name, distinct, "npz")
        vectors = _load_vectors(path, len(distinct))
        if vectors is None:
            vectors = np.asarray(encode(distinct), dtype=np.float32)
            if path is not None and self._keep_vectors:
                self._save_vectors(path, vectors)
        position = {sentence: i for i, sentence in enumerate(distinct)}
        return vectors[[position[sentence] for sentence in sentences]]

    def _save_vectors(self, path: Path, vectors: Embeddings) -> None:
        with (
            self._stop_caching_on_error(),
            atomic_path(path, force=True) as file,
            file.open("wb") as stream,
        ):
            np.savez(stream, vectors=vectors)

    def load_result(self, name: str, key: Mapping[str, Any]) -> dict[str, Any] | None:
        """Return the kept result ``name``; None if there is none or if its file is damaged.

        ``key`` holds all that the result depends on besides the encoder, as JSON values.
        """
        path = self._path(name, dict(key), "json")
        if path is None:
            return None
        try:
            kept: _KeptResult = read_json(path, _KeptResult)
        except DataError:
            return None
        if kept.digest != digest_of(kept.result):
            return None
        return kept.result

    def save_result(self, name: str, key: Mapping[str, Any], result: Mapping[str, Any]) -> None:
        path = self._path(name, dict(key), "json")
        if path is not None:
            kept = _KeptResult(dict(result), digest_of(dict(result)))
            with self._stop_caching_on_error():
                write_json(path, asdict(kept))

    @contextmanager
    def _stop_caching_on_error(self) -> Iterator[None]:
        """Warn and stop using the cache if a write in the block fails."""
        try:
            yield
        except OutputError as error:
            self._progress.warn(
                f"continuing without the cache: {error.message} (choose another with --cache-dir)"
            )
            self._folder = None

    def _path(self, name: str, key: Any, ending: str) -> Path | None:
        """Return the file of an entry, named by a digest of ``key``; None if nothing is kept.

        ``key`` holds the sentences of vectors, or what a result depends on besides the encoder.
        """
        if self._folder is None:
            return None
        return self._folder / f"{name}-{digest_of(key)}.{ending}"


def _tell_of_older_folders(folder: Path, progress: Progress) -> None:
    """If the cache has folders of simcse 1.0.0, say how to remove them."""
    pattern = "[0-9a-f]" * 16  # newer names start with a mark
    if any(folder.glob(pattern)):
        progress.hint(
            f"vectors and results of simcse 1.0.0 below {folder} are not used, since it did "
            f"not tell models of other tokenizers apart; remove them with: rm -r {folder}/{pattern}"
        )


def _load_vectors(path: Path | None, n_rows: int) -> Embeddings | None:
    """Return the ``n_rows`` vectors of a cache file, or None.

    None means that there is no such file, or that its vectors are damaged, of another number or
    type, or not finite.
    """
    if path is None or not path.is_file():
        return None
    try:
        with foreign_format(path, "kept vectors"), np.load(path, allow_pickle=False) as archive:
            # Reading damaged vectors is an error, since the checksum of the zip file differs.
            vectors: Embeddings = archive["vectors"]
    except DataError:
        return None
    has_expected_form = vectors.ndim == 2 and vectors.dtype == np.float32 and len(vectors) == n_rows
    if has_expected_form and np.isfinite(vectors).all():
        return vectors
    return None
