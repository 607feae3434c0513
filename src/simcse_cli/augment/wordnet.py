"""Reader of the WordNet database files, with base forms.

The formats are those of wndb(5WN) and morphy(7WN) of WordNet 3.0.
"""

import functools
import importlib.metadata
import mmap
import os
import sys
from collections import defaultdict
from collections.abc import Iterator
from contextlib import AbstractContextManager
from enum import StrEnum
from itertools import product
from pathlib import Path

from simcse_cli.errors import DataError
from simcse_cli.files.digests import digest, sha256_file
from simcse_cli.files.schema import foreign_format

INSTALL_HINT = (
    "install the files (Debian, Ubuntu: apt install wordnet-base), or unpack WNdb-3.0.tar.gz of "
    "wordnet.princeton.edu and name its folder with --wordnet-dir"
)
_STANDARD_PLACES = (
    "/usr/share/wordnet",
    "/usr/local/WordNet-3.0/dict",
    "/usr/local/share/wordnet/dict",
    "/opt/homebrew/opt/wordnet/dict",
    "/usr/local/opt/wordnet/dict",
    "/usr/share/nltk_data/corpora/wordnet",
    "/usr/local/share/nltk_data/corpora/wordnet",
)
_CACHED_WORDS = 1 << 16


class Pos(StrEnum):
    NOUN = "n"
    VERB = "v"
    ADJECTIVE = "a"
    ADVERB = "r"


_FILE_ENDING = {Pos.NOUN: "noun", Pos.VERB: "verb", Pos.ADJECTIVE: "adj", Pos.ADVERB: "adv"}
_REQUIRED_FILES = tuple(map(".".join, product(("index", "data"), _FILE_ENDING.values())))
_TAG_COUNTS = "cntlist.rev"
# Sense keys in this file number the parts of speech; 5 is an adjective satellite.
_SENSE_KEY_POS = {
    "1": Pos.NOUN,
    "2": Pos.VERB,
    "3": Pos.ADJECTIVE,
    "4": Pos.ADVERB,
    "5": Pos.ADJECTIVE,
}

# morphy(7WN): ending of an inflected form, ending of its base form.
_DETACHMENT_RULES: dict[Pos, tuple[tuple[str, str], ...]] = {
    Pos.NOUN: (
        ("s", ""),
        ("ses", "s"),
        ("xes", "x"),
        ("zes", "z"),
        ("ches", "ch"),
        ("shes", "sh"),
        ("men", "man"),
        ("ies", "y"),
    ),
    Pos.VERB: (
        ("s", ""),
        ("ies", "y"),
        ("es", "e"),
        ("es", ""),
        ("ed", "e"),
        ("ed", ""),
        ("ing", "e"),
        ("ing", ""),
    ),
    Pos.ADJECTIVE: (("er", ""), ("est", ""), ("er", "e"), ("est", "e")),
    Pos.ADVERB: (),
}


class WordNet:
    """The database in one folder; files are opened when first needed, and again in each worker.

    The folder holds ``index.*`` and ``data.*``; ``*.exc`` and ``cntlist.rev`` are used where
    present.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        # Caches belong to the instance, so that they vanish with it.
        self.synsets = functools.lru_cache(_CACHED_WORDS)(self._read_synsets)
        self.base_forms = functools.lru_cache(_CACHED_WORDS)(self._find_base_forms)

    def __reduce__(self) -> tuple[type["WordNet"], tuple[Path]]:
        # A worker gets the folder only: open files and caches cannot be sent.
        return type(self), (self.directory,)

    @property
    def digest(self) -> str:
        """SHA-256 over the files of the database that are read."""
        names = (*_REQUIRED_FILES, *(f"{each}.exc" for each in _FILE_ENDING.values()), _TAG_COUNTS)
        files = [self.directory / name for name in names]
        return digest(*(f"{file.name} {sha256_file(file)}\n" for file in files if file.exists()))

    def all_synsets(self, word: str) -> Iterator[tuple[str, ...]]:
        for pos in Pos:
            for lemma in self.base_forms(word, pos):
                yield from self.synsets(lemma, pos)

    def frequency(self, lemma: str, pos: Pos) -> int:
        """Return how often ``lemma`` occurs as ``pos`` in the sense-tagged texts; 0 if unknown."""
        return self._tag_counts.get((lemma.replace(" ", "_"), pos), 0)

    def irregular_forms(self, lemma: str, pos: Pos) -> tuple[str, ...]:
        return self._irregular[pos].get(lemma, ())

    def _find_base_forms(self, word: str, pos: Pos) -> tuple[str, ...]:
        """Return the base forms of ``word`` that WordNet lists.

        The word itself may be one. The others are in the exception lists, or if the lists lack the
        word, they follow from rules. ``base_forms("axes", Pos.NOUN)`` is ax, axis (by a list), and
        ``base_forms("dogs", Pos.NOUN)`` is dog (by a rule).
        """
        irregular = self._exceptions[pos].get(word, ())
        candidates = [word, *irregular]
        if not irregular:
            for end, base in _DETACHMENT_RULES[pos]:
                if word.endswith(end):
                    candidates.append(word.removesuffix(end) + base)
        index = self._index[pos]
        distinct = dict.fromkeys(candidates)
        return tuple(form for form in distinct if form.replace(" ", "_") in index)

    def _read_synsets(self, lemma: str, pos: Pos) -> tuple[tuple[str, ...], ...]:
        """Return the synsets of a base form, most frequent sense first, each as its words.

        Words are written as in the database, with spaces instead of underscores; ``lemma`` is one
        of them. The first synset of the noun "car" is car, auto, automobile, machine, motorcar.
        """
        entry = self._index[pos].get(lemma.replace(" ", "_"))
        if entry is None:
            return ()
        with self._refuse_damaged_files():
            # The lemma is not in the entry: its second field is synset_cnt, and its last synset_cnt
            # fields are offsets.
            fields = entry.split()
            n_synsets = int(fields[1])
            offsets = map(int, fields[-n_synsets:])
            return tuple(self._synset_words(pos, offset) for offset in offsets)

    def _synset_words(self, pos: Pos, offset: int) -> tuple[str, ...]:
        """Return the words of the synset that starts at byte ``offset`` of the data file."""
        data = self._data[pos]
        line = data[offset : data.find(b"\n", offset)]
        fields = line.decode("utf-8", "replace").split(" ")
        if not fields[0].isdigit() or int(fields[0]) != offset:
            ending = _FILE_ENDING[pos]
            raise DataError(
                f"{self.directory / f'data.{ending}'}, byte {offset}: no synset starts here, "
                f"but index.{ending} says so: different releases, or edited files",
                hint=INSTALL_HINT,
            )
        # Field 3 is the number of words, in hexadecimal. The words begin with field 4, and each is
        # followed by its lexical id.
        n_words = int(fields[3], 16)
        words = []
        for word in fields[4 : 4 + 2 * n_words : 2]:
            if word.endswith(")"):  # adjectives may have a marker of their position: galore(ip)
                word = word.partition("(")[0]
            words.append(word.replace("_", " "))
        return tuple(words)

    @functools.cached_property
    def _index(self) -> dict[Pos, dict[str, str]]:
        """The line of each lemma in the index file of its part of speech, without the lemma."""
        entries: dict[Pos, dict[str, str]] = {}
        for pos, ending in _FILE_ENDING.items():
            entries[pos] = {}
            for line in self._lines(f"index.{ending}"):
                lemma, _, entry = line.partition(" ")
                if lemma:  # lines of the licence begin with a space
                    entries[pos][lemma] = entry
        return entries

    @functools.cached_property
    def _data(self) -> dict[Pos, mmap.mmap]:
        maps = {}
        for pos, ending in _FILE_ENDING.items():
            with (self.directory / f"data.{ending}").open("rb") as stream:
                maps[pos] = mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ)
        return maps

    @functools.cached_property
    def _exceptions(self) -> dict[Pos, dict[str, tuple[str, ...]]]:
        """The base forms of each irregular form, by part of speech."""
        exceptions: dict[Pos, dict[str, tuple[str, ...]]] = {}
        for pos, ending in _FILE_ENDING.items():
            lines = filter(None, map(str.split, self._lines(f"{ending}.exc")))
            exceptions[pos] = {form: tuple(bases) for form, *bases in lines if bases}
        return exceptions

    @functools.cached_property
    def _irregular(self) -> dict[Pos, dict[str, tuple[str, ...]]]:
        """The irregular forms of each base form, by part of speech: ``_exceptions`` inverted."""
        inverse: dict[Pos, dict[str, tuple[str, ...]]] = {pos: {} for pos in Pos}
        for pos, exceptions in self._exceptions.items():
            for form, bases in exceptions.items():
                for base in bases:
                    inverse[pos][base] = (*inverse[pos].get(base, ()), form)
        return inverse

    @functools.cached_property
    def _tag_counts(self) -> dict[tuple[str, Pos], int]:
        """How often each lemma is tagged as each part of speech, summed over its senses."""
        counts: dict[tuple[str, Pos], int] = defaultdict(int)
        with self._refuse_damaged_files():
            for line in self._lines(_TAG_COUNTS):
                sense_key, _, count = line.split()
                lemma, _, sense = sense_key.partition("%")
                pos = _SENSE_KEY_POS[sense[0]]
                counts[lemma, pos] += int(count)
        return counts

    def _refuse_damaged_files(self) -> AbstractContextManager[None]:
        """Return a context that turns any error of a damaged file into a DataError."""
        what = "the files of a WordNet release as they are"
        return foreign_format(self.directory, what, hint=INSTALL_HINT)

    def _lines(self, name: str) -> Iterator[str]:
        """Yield the lines of a file; none if it is missing, since some files are optional."""
        path = self.directory / name
        if path.exists():
            yield from path.read_text(encoding="utf-8", errors="replace").splitlines()


def find_wordnet(directory: Path | None = None) -> WordNet:
    """Return the WordNet database in ``directory``, which by default ``SIMCSE_WORDNET`` names.

    Without either, the first database in these places is taken: ``WNSEARCHDIR`` and ``WNHOME/dict``
    (WordNet's own variables), the usual folders of WordNet, the data folders of NLTK, and installed
    Python packages that carry the files. Nothing is downloaded.
    """
    if directory is None and "SIMCSE_WORDNET" in os.environ:
        directory = Path(os.environ["SIMCSE_WORDNET"])
    places = _usual_places()
    if directory is not None:  # the database may lie in a folder below it
        places = map(directory.joinpath, ("", "dict", "corpora/wordnet"))
    for place in places:
        if not _missing_files(place):
            return WordNet(place)

    # Nothing was found: tell why.
    if directory is None:
        raise DataError("no WordNet database was found on this machine", hint=INSTALL_HINT)
    if not directory.is_dir():
        raise DataError(
            f"{directory} is not a folder, need one with the WordNet database", hint=INSTALL_HINT
        )
    missing = ", ".join(_missing_files(directory))
    raise DataError(
        f"{directory} is no complete WordNet database: {missing} missing or empty",
        hint=INSTALL_HINT,
    )


def _missing_files(directory: Path) -> list[str]:
    paths = [directory / name for name in _REQUIRED_FILES]
    return [path.name for path in paths if not path.is_file() or path.stat().st_size == 0]


def _usual_places() -> Iterator[Path]:
    """Yield the folders that may hold WordNet, in the order in which they are tried."""
    if "WNSEARCHDIR" in os.environ:
        yield Path(os.environ["WNSEARCHDIR"])
    if "WNHOME" in os.environ:
        yield Path(os.environ["WNHOME"]) / "dict"
    yield from map(Path, _STANDARD_PLACES)
    nltk_folders = filter(None, os.environ.get("NLTK_DATA", "").split(os.pathsep))
    home = os.path.expanduser("~")  # noqa: PTH111 - Path.home() raises where there is none
    for folder in (*nltk_folders, f"{home}/nltk_data", f"{sys.prefix}/nltk_data"):
        yield Path(folder) / "corpora" / "wordnet"
    # Some Python packages hold a copy of the database.
    for distribution in importlib.metadata.distributions():
        for file in distribution.files or ():
            if file.name == "index.noun":
                yield Path(str(distribution.locate_file(file))).parent
