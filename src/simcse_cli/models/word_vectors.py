"""Sentence vectors as means of GloVe, word2vec or fastText vectors, plain or weighted by SIF.

A vectors file of several gigabytes is scanned once for the position of each word; numbers are
parsed only for words that occur in the sentences.
"""

import json
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path

import numpy as np

from simcse_cli.arrays import Floats32
from simcse_cli.errors import DataError
from simcse_cli.files.digests import digest, sha256_file
from simcse_cli.files.inputs import require_file
from simcse_cli.files.streams import iter_lines, raw_lines
from simcse_cli.progress import SILENT, Progress

SIF_SMOOTHING = 1e-3
"""The constant a of SIF."""

_PACKED = {".gz": "gunzip", ".zip": "unzip", ".bz2": "bunzip2", ".xz": "unxz"}
_TEXT_HINT = (
    "need a text file with one word and its numbers per line, as GloVe, fastText (.vec) and "
    "word2vec (save_word2vec_format with binary=False) write it"
)


class WordVectors:
    """The vectors of a text file, looked up by word; a word listed twice has its last vector.

    A first line of two integers is the header of word2vec and fastText; every other line is a
    word and ``D`` numbers, separated by single spaces. Words that contain spaces, of which GloVe
    has a few, are never looked up.
    """

    def __init__(self, path: Path | str, *, progress: Progress = SILENT) -> None:
        self.path = require_file(path)
        if self.path.suffix in _PACKED:
            raise DataError(
                f"{self.path} is packed, need the text file",
                hint=f"{_PACKED[self.path.suffix]} {self.path}",
            )
        self._vectors: dict[str, Floats32] = {}
        with progress.task(f"scanning {self.path.name}") as task:
            self.dim, self._places = self._scan()
            task.update(words=f"{len(self._places):,}")

    def __len__(self) -> int:
        return len(self._places)

    def __contains__(self, word: object) -> bool:
        return word in self._places

    def __getitem__(self, word: str) -> Floats32:
        """Return the vector of a word, ``(D,)``."""
        if word not in self._vectors:
            self.load([word])
        return self._vectors[word]

    def load(self, words: Sequence[str]) -> None:
        """Read the vectors of ``words`` in file order, which is the fastest."""
        missing = set(words) - self._vectors.keys()
        in_file_order = sorted((self._places[word], word) for word in missing)
        with self.path.open("rb") as stream:
            for place, word in in_file_order:
                stream.seek(place)
                self._vectors[word] = self._parse(stream.readline(), word)

    def _parse(self, line: bytes, word: str) -> Floats32:
        try:
            vector = np.array(line.split()[-self.dim :], dtype=np.float32)
        except ValueError as error:
            raise DataError(f"{self.path}, word {word!r}: {error}", hint=_TEXT_HINT) from error
        if not np.isfinite(vector).all():
            raise DataError(f"{self.path}, word {word!r}: a value is not finite", hint=_TEXT_HINT)
        return vector

    def _scan(self) -> tuple[int, dict[str, int]]:
        """Return the dimension and the byte at which the line of each word starts."""
        places: dict[str, int] = {}
        dim = n_announced = line_number = n_bytes_read = n_blank = 0

        # Only the places of lines are kept, because few of the words will be looked up.
        with self.path.open("rb") as stream:
            for line_number, full_line in enumerate(raw_lines(stream, str(self.path)), start=1):
                place = n_bytes_read
                n_bytes_read += len(full_line)
                line = full_line.rstrip()
                if not line:  # such as an empty last line
                    n_blank += 1
                    continue
                n_values = line.count(b" ")
                if line_number == 1 and _is_header(line):
                    n_announced, dim = map(int, line.split())
                    continue
                # Without a header, the first line gives the dimension.
                dim = dim or n_values
                word = line.partition(b" ")[0]
                # A line with more or fewer values is an error, unless its word has spaces. No token
                # equals such a word, so it is skipped.
                if n_values != dim or not dim:
                    self._check_spaced_word(line, line_number, dim)
                    continue
                if b"\0" in word:
                    raise DataError(
                        f"{self.path}, line {line_number}: a NUL byte; this is a binary file",
                        hint=_TEXT_HINT,
                    )
                places[word.decode("utf-8", errors="replace")] = place

        # Refuse a file that is empty or was cut off.
        if not places:
            raise DataError(f"{self.path} holds no word vectors", hint=_TEXT_HINT)
        n_words = line_number - n_blank - 1  # if there is a header; else n_announced is 0
        if n_words < n_announced:
            raise DataError(
                f"{self.path} ends after {n_words:,} of the {n_announced:,} words that its "
                "header announces",
                hint="it was cut off; download or unpack it again",
            )
        return dim, places

    def _check_spaced_word(self, line: bytes, line_number: int, dim: int) -> None:
        """Raise DataError if a line has too few numbers for its word, or too many.

        It has too many if the parts of the word behind the first space are numbers as well.
        """
        fields = line.split(b" ")
        n_values = len(fields) - 1
        rest_of_word = fields[1 : len(fields) - dim]
        if dim == 0 or n_values < dim or all(map(_is_number, rest_of_word)):
            raise DataError(
                f"{self.path}, line {line_number}: {n_values} values, need {dim or 1}",
                hint=_TEXT_HINT,
            )


def _is_number(field: bytes) -> bool:
    try:
        float(field)
    except ValueError:
        return False
    return True


def _is_header(line: bytes) -> bool:
    fields = line.split()
    return len(fields) == 2 and all(field.isdigit() and len(field) < 19 for field in fields)


def read_word_frequencies(path: Path | str) -> dict[str, float]:
    """Return the share of each word in a corpus.

    The file has lines of ``word count``. The shares add up to 1.
    """
    counts: dict[str, float] = {}
    for number, line in enumerate(iter_lines(path), start=1):
        fields = line.split()
        is_pair = len(fields) == 2 and _is_number(fields[1].encode())
        if not is_pair or not 0 < float(fields[1]) < np.inf:
            raise DataError(
                f"{path}, line {number}: {line[:40]!r}, need a word and its count",
                hint="SIF's own file is enwiki_vocab_min200.txt of PrincetonML/SIF",
            )
        counts[fields[0]] = float(fields[1])
    total = sum(counts.values())
    return {word: count / total for word, count in counts.items()}


class WordAverage:
    """Sentence vectors as means of word vectors over white-space tokens, ``(N, D)`` float32.

    Without ``frequencies``, the mean is plain and words keep their case, as in the bag-of-words
    example of SentEval (Conneau and Kiela 2018). ``frequencies``, the shares of words in a corpus,
    give the weighted mean of SIF (Arora et al. 2017, algorithm 1, first step) over words in lower
    case. With the words w of a sentence s, their vectors v_w and shares p(w), the vector is

        v_s = (1 / |s|) sum_w a / (a + p(w)) v_w

    where a is ``SIF_SMOOTHING`` and a word without a share has p(w) = 0. SIF's second step is
    ``postprocess.directions.CommonComponentRemoval``.

    Tokens without a vector are skipped and not counted in |s| (the SIF paper leaves this open). If
    no token of a sentence has a vector, the result is zero, whose cosine with anything counts as 0.
    """

    def __init__(
        self, vectors: WordVectors, frequencies: Mapping[str, float] | None = None
    ) -> None:
        self.vectors = vectors
        self.frequencies = frequencies
        self.dim = vectors.dim
        self.name = vectors.path.name if frequencies is None else f"{vectors.path.name} (SIF)"

    @cached_property
    def digest(self) -> str:
        """SHA-256 over the vectors file and the frequencies."""
        weights = ""
        if self.frequencies is not None:
            weights = json.dumps([SIF_SMOOTHING, *sorted(self.frequencies.items())])
        return digest(sha256_file(self.vectors.path), weights)

    def encode(self, sentences: Sequence[str], *, progress: Progress = SILENT) -> Floats32:
        """Return one vector per sentence; warn of sentences without a known word."""
        known = [self._known_tokens(sentence) for sentence in sentences]
        self.vectors.load([token for tokens in known for token in tokens])
        rows = np.zeros((len(sentences), self.dim), dtype=np.float32)
        for row, tokens in zip(rows, known, strict=True):
            if tokens:
                total = sum(self._weight(token) * self.vectors[token] for token in tokens)
                row[:] = total / len(tokens)
        if n_empty := sum(not tokens for tokens in known):
            affected = f"{n_empty:,} of {len(sentences):,} sentences"
            progress.warn(f"{affected} have no word in {self.name}: zero vectors")
        return rows

    def _known_tokens(self, sentence: str) -> list[str]:
        if self.frequencies is not None:
            sentence = sentence.lower()
        return [token for token in sentence.split() if token in self.vectors]

    def _weight(self, token: str) -> np.float32:
        if self.frequencies is None:
            return np.float32(1)
        return np.float32(SIF_SMOOTHING / (SIF_SMOOTHING + self.frequencies.get(token, 0.0)))
