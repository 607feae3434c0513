"""``prepare hard-negatives`` and ``prepare pairs --paraphrases``: find rows by search with a model.

Texts, vectors and the result of every block of queries are kept in a folder beside the output, so
that an interrupted search can go on where it stopped. Memory holds a few numbers per text, and one
block.
"""

import json
import random
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import compress
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simcse_cli.arrays import Array, Booleans, Floats32, Integers
from simcse_cli.data.given import Given
from simcse_cli.data.jobs import Job
from simcse_cli.data.names import POSITIONAL
from simcse_cli.data.packed_texts import PackedTexts
from simcse_cli.data.table import Table
from simcse_cli.data.text import clean_text, digest_keys, match_key
from simcse_cli.data.writers import Row, describe_file, manifest_path, output_format
from simcse_cli.encoding.search_index import ExactSearcher, SearchIndex
from simcse_cli.encoding.units import Units, unit_vectors
from simcse_cli.errors import DataError, NothingFoundError, OutputError, UsageError
from simcse_cli.files.atomic import EXISTS_HINT, atomic_path, check_output
from simcse_cli.files.digests import OLDER_DIGEST, is_older_digest
from simcse_cli.files.inputs import Inputs, is_stream, read_json
from simcse_cli.files.output import work_folder
from simcse_cli.machine.precision import resolve_precision
from simcse_cli.models.checkpoint import load_for_encoding
from simcse_cli.models.encode import ReadyEncoder
from simcse_cli.prepare.options import HardNegativeOptions, MiningOptions, PairOptions
from simcse_cli.prepare.pairs import PairCounts, given_pairs, pair_rows
from simcse_cli.prepare.rows import RowWriter, chosen, shared_settings
from simcse_cli.progress import Progress
from simcse_cli.settings.choices import NegativePick
from simcse_cli.settings.config import pinned

_READING = ("encoding", "header", "separator", "sheet", "keep_label")
"""Settings that decide which texts are read."""
BLOCK = 1024
"""Queries that are searched together; results are saved block by block."""
DEFAULT_MARGIN = 0.05

# Names of the files in the work folder; a killed search leaves files named with ``.part``.
_WORK_FILES = r"(texts|anchors)\.(txt|npy)(\.part.*)?|found-\d+\.npy"

Digests = NDArray[np.uint64]
"""Digests of ``digest_keys``, one per text."""


def prepare_hard_negatives(
    inputs: Sequence[str], options: HardNegativeOptions, writer: RowWriter
) -> None:
    """Write for each pair of the inputs a row with each hard negative of its anchor."""
    given = given_pairs(options, writer.progress)
    search = NegativeSearch(inputs, given, options, writer.progress)
    index = None if options.index is None else str(options.index)
    settings = {
        "columns": options.columns,
        "range": options.ranks,
        "margin": search.limits.margin,
        **chosen(options, "ratio", "min_score", "max_score", "per_anchor", "pick", "corpus"),
        "index": index,
        "corpus_prompt": options.corpus_prompt,
    }
    sources = [*inputs, *(options.corpus or [])]
    if index is not None:
        sources.append(index)

    # Opening a table may ask the user a question, so it comes before the model is loaded.
    _require_files(inputs, options)
    for source in inputs:
        _ = Table(source, Job.ROWS, given).reading
    _mine("hard-negatives", sources, POSITIONAL, options, settings, search.mine, writer)


def prepare_paraphrases(inputs: Sequence[str], options: PairOptions, writer: RowWriter) -> None:
    """Write the pairs of nearest texts in one corpus, the nearest pair first."""
    names = ("columns", "top_k", "max_pairs", "min_score", "max_score")
    settings = {"paraphrases": True, **chosen(options, *names)}
    given = Given.of(options, progress=writer.progress).of_texts(options.columns)
    mine = partial(_paraphrase_rows, inputs, given, options, writer.progress)
    _mine("pairs", inputs, POSITIONAL[:2], options, settings, mine, writer)


@dataclass
class NegativeCounts:
    """Counts of a search for negatives, and two mean cosines with the anchor.

    ``n_short_of_negatives`` counts the pairs with fewer negatives than asked for, and
    ``n_without_negative`` those without any. ``positive_cosine`` is the mean cosine of an anchor
    with its farthest positive, over all pairs. ``negative_cosine`` is the mean over the rows to
    write.
    """

    n_pairs: int
    n_anchors: int
    n_texts: int
    n_short_of_negatives: int
    n_without_negative: int
    positive_cosine: float
    negative_cosine: float

    def summary(self) -> str:
        parts = [
            f"{self.n_pairs:,} pairs of {self.n_anchors:,} anchors, "
            f"{self.n_texts:,} texts searched",
            f"mean cosine {self.positive_cosine:.3f} of positives, "
            f"{self.negative_cosine:.3f} of negatives",
        ]
        if self.n_without_negative:
            parts.append(f"{self.n_without_negative:,} pairs found no negative and are left out")
        if n_with_some := self.n_short_of_negatives - self.n_without_negative:
            parts.append(f"{n_with_some:,} pairs found fewer negatives than asked for")
        return "; ".join(parts)


@dataclass
class ParaphraseCounts:
    """The number of different texts searched, and the cosines of the first and the last pair."""

    n_texts: int
    highest_cosine: float
    lowest_cosine: float

    def summary(self) -> str:
        return (
            f"{self.n_texts:,} different texts searched; cosines from {self.highest_cosine:.3f} "
            f"down to {self.lowest_cosine:.3f}"
        )


class _Limits:
    """Decide which of the texts near an anchor may be negatives.

    There are three steps:

    - of the texts that are in no pair with the anchor, take the ``last`` nearest;
    - drop those that are too near or too far by cosine, as ``allow`` says;
    - of the rest, skip the ``first`` nearest.

    ``--range MIN:MAX`` gives ``first`` as MIN and ``last`` as MAX. Source: the options of
    ``mine_hard_negatives`` in sentence-transformers, with the same results.
    """

    def __init__(self, options: HardNegativeOptions) -> None:
        try:
            self.first, self.last = map(int, options.ranks.split(":"))
        except ValueError:
            what = f"{options.ranks!r}: need two ranks, as in 10:100"
            raise UsageError(what, option="--range") from None
        if not 0 <= self.first <= self.last - options.per_anchor:
            needed = f"0 <= MIN < MAX, and room for --per-anchor {options.per_anchor} between"
            raise UsageError(f"{options.ranks}: need {needed}", option="--range")
        self.options = options
        self.margin = options.margin
        if options.margin is None and options.ratio is None:  # --ratio replaces the default
            self.margin = DEFAULT_MARGIN

    def allow(self, scores: Floats32, positive: float) -> Booleans:
        """Return for each text, given by its cosine with the anchor, whether it may be a negative.

        ``positive`` is the cosine of the anchor with its farthest positive.
        """
        allowed = np.isfinite(scores)  # the score of a missing text is not finite
        if self.margin is not None:
            allowed &= scores + self.margin <= positive
        if self.options.ratio is not None:
            # A share of the absolute value is taken off, so that a cosine below 0 is lowered, too.
            highest = positive - abs(positive) * (1 - self.options.ratio)
            allowed &= scores <= highest
        if self.options.max_score is not None:
            allowed &= scores <= self.options.max_score
        if self.options.min_score is not None:
            allowed &= scores >= self.options.min_score
        return allowed


Mined = tuple[Iterator[Row], NegativeCounts | ParaphraseCounts]
"""What a search returns: the rows to write, and its counts."""


def _require_files(sources: Sequence[str], options: MiningOptions) -> None:
    """Raise UsageError if an input or the output is a pipe, or ``-`` for a standard stream."""
    paths_by_option = {"--output": [str(options.output)], "INPUT": sources}
    for option, paths in paths_by_option.items():
        if any(map(is_stream, paths)):
            what = "mining reads its input several times and saves its progress beside its output"
            raise UsageError(f"{what}: need files", option=option)


def _mine(
    kind: str,
    sources: Sequence[str],
    columns: Sequence[str],
    options: MiningOptions,
    settings: dict[str, Any],
    mine: Callable[[ReadyEncoder, Path], Mined],
    writer: RowWriter,
) -> None:
    """Check the output, load the model, search in a folder beside the output, and write the rows.

    ``mine`` is the search: a function of the model and that folder. ``columns`` are the headings of
    the output. The manifest records ``settings`` and ``kind`` (the sub-command).
    """
    _require_files(sources, options)
    # With --resume, an output that exists must be the finished output of this search. It is
    # checked by ``_require_finished`` below, once the digest of the model is known.
    is_finished = options.resume and not options.force and options.output.exists()
    output_format(options.output, columns)  # raises an error if the ending does not fit
    check_output(options.output, force=options.force or is_finished)
    work = options.output.with_name(f"{options.output.name}.mining")
    encoder = load_for_encoding(options.model, options, writer.progress)
    precision = resolve_precision(options.precision, encoder.device)
    settings = {
        "model": pinned(options.model, options.revision),
        **settings,
        "model_digest": encoder.digest,
        "precision": precision.value,
    }
    facts = {**settings, "seed": options.seed, "inputs": list(map(describe_file, sources))}
    facts |= chosen(options, *_READING)
    if is_finished:
        # The manifest also has the settings of the filters, which come after the search.
        _require_finished(options.output, facts | shared_settings(options))
    # Only unfinished work depends on the size of the blocks, so no manifest records it.
    facts["block"] = BLOCK
    files = Inputs(sources)
    with work_folder(work, facts, names=_WORK_FILES, resume=options.resume, force=options.force):
        # If the output is finished, leaving this context removes what a killed process has left.
        if is_finished:
            writer.progress.info(f"{options.output} is already finished")
            return
        rows, counts = mine(encoder, work)
        files.require_unchanged()  # from here on, the writer watches them
        writer.write(kind, rows, columns, inputs=sources, settings=settings, corpus=counts)


def _require_finished(output: Path, facts: dict[str, Any]) -> None:
    """Raise OutputError unless the manifest beside an output records the ``facts`` of this search.

    These are its settings and inputs.
    """
    path = manifest_path(output)
    manifest = read_json(path) if path.is_file() else None
    recorded = {}
    if isinstance(manifest, dict):
        recorded = manifest | manifest.get("settings", {})
    # JSON turns tuples into lists and paths into strings, so the facts must pass through it, too.
    wanted = json.loads(json.dumps(facts, default=str))
    if is_older_digest(recorded.get("model_digest"), str(wanted.get("model_digest"))):
        raise OutputError(f"{output} exists already and {OLDER_DIGEST}", hint=EXISTS_HINT)
    for key, value in wanted.items():
        if recorded.get(key) != value:
            what = f"{output} exists already, and this search did not write it"
            raise OutputError(what, hint=EXISTS_HINT)


def _number(digests: Digests) -> tuple[Booleans, Integers]:
    """Number the different digests in the order in which they first occur.

    Return for each digest whether it occurs for the first time, and its number.

    Example:
        >>> _number(np.array([7, 5, 7], np.uint64))
        (array([ True,  True, False]), array([0, 1, 0]))
    """
    _, first_places, sorted_number = np.unique(digests, return_index=True, return_inverse=True)
    is_first = np.zeros(len(digests), dtype=bool)
    is_first[first_places] = True
    # `np.unique` numbers the digests by size; the double `argsort` ranks them by first place.
    return is_first, np.argsort(np.argsort(first_places))[sorted_number]


def _digests(texts: Iterable[str]) -> tuple[Digests, Digests]:
    """Return the digests of the texts themselves, and the digests of their match keys."""
    exact = array("Q")
    keys = array("Q")
    for text in texts:
        exact.append(digest_keys([text]))
        keys.append(digest_keys([match_key(text)]))
    return np.frombuffer(exact, np.uint64), np.frombuffer(keys, np.uint64)


def _blocks(
    work: Path, n_rows: int, search: Callable[[slice], Array], progress: Progress
) -> Iterator[Array]:
    """Yield the result of ``search`` for each block of rows, and save it in ``work``.

    If an interrupted search has saved the result of a block, it is read instead.
    """
    with progress.task("searching", n_rows) as task:
        for start in range(0, n_rows, BLOCK):
            path = work / f"found-{start}.npy"
            if not path.exists():
                with atomic_path(path) as temporary, temporary.open("wb") as stream:
                    np.save(stream, search(slice(start, start + BLOCK)))
            yield np.load(path)
            task.advance(min(BLOCK, n_rows - start))


def _clean_texts(sources: Sequence[str], given: Given) -> Iterator[str]:
    """Yield the cleaned texts of the files; empty texts are left out."""
    for source in sources:
        cleaned = map(clean_text, Table(source, Job.TEXTS, given).texts())
        yield from filter(None, cleaned)


@dataclass
class NegativeSearch:
    """Find hard negatives for the anchors of all pairs: ``read``, then ``search``, then ``rows``.

    Every pass reads the pairs from the files again; memory holds a few integers for each pair.
    Equal anchors have one number, and so have equal texts. The number is also the row in the matrix
    of vectors, so attributes with such numbers are named ``..._rows``.
    """

    inputs: Sequence[str]
    given: Given
    options: HardNegativeOptions
    progress: Progress

    def __post_init__(self) -> None:
        self.limits = _Limits(self.options)

    def mine(self, encoder: ReadyEncoder, work: Path) -> Mined:
        self.read(encoder, work)
        counts = self.search(work)
        return self.rows(), counts

    def _pairs(self) -> Iterator[tuple[str, str]]:
        """Yield the pairs of two texts that are not empty, and tell the user what is left out."""
        counts = PairCounts()
        n_empty = 0
        for texts in pair_rows(self.inputs, self.given, counts=counts):
            anchor, positive = map(clean_text, texts)
            if anchor and positive:
                yield anchor, positive
            else:
                n_empty += 1
        if summary := counts.summary():
            self.given.told.info(summary)
        if n_empty:
            self.given.told.info(f"left out {n_empty:,} pairs with an empty text")

    def _anchors(self) -> Iterator[str]:
        return map(itemgetter(0), self._pairs())

    def _texts(self) -> Iterator[str]:
        """Yield the positives of all pairs, then the texts of the corpus."""
        yield from map(itemgetter(1), self._pairs())
        yield from _clean_texts(self.options.corpus or [], self.given.of_file("--corpus"))

    def read(self, encoder: ReadyEncoder, work: Path) -> None:
        """Read all anchors and texts, number the different ones, and store and encode these."""
        options = self.options
        files = Inputs([*self.inputs, *(options.corpus or [])])
        anchor_digests, anchor_keys = _digests(self._anchors())
        text_digests, text_keys = _digests(self._texts())
        n_pairs = len(anchor_digests)
        if not n_pairs:
            what = f"{', '.join(self.inputs)}: no pair of texts"
            raise DataError(what, hint="need the columns anchor and positive")
        is_new_anchor, self._anchor_rows = _number(anchor_digests)
        is_new_text, text_rows = _number(text_digests)

        # Sort the positives by anchor: those of anchor i lie from `_starts[i]` to `_starts[i + 1]`.
        # The first ``n_pairs`` texts are the positives of the pairs.
        order = np.argsort(self._anchor_rows, kind="stable")
        self._positive_rows = text_rows[:n_pairs][order]
        self._anchor_keys = anchor_keys[is_new_anchor]
        anchors_and_end = np.arange(len(self._anchor_keys) + 1)
        self._starts = np.searchsorted(self._anchor_rows[order], anchors_and_end)
        self._partners = _Partners(anchor_keys, text_keys[:n_pairs])

        # In a second pass, store each different text once.
        texts = PackedTexts.stored(compress(self._texts(), is_new_text), work / "texts.txt")
        anchors = PackedTexts.stored(compress(self._anchors(), is_new_anchor), work / "anchors.txt")
        files.require_unchanged()  # in a changed file, the numbers would belong to other texts
        encode = partial(
            unit_vectors,
            encoder=encoder,
            progress=self.progress,
            batch_tokens=options.batch_tokens,
        )
        prompt = encoder.document_prompt(options.corpus_prompt)
        self._units = encode(texts, file=work / "texts.npy", prompt=prompt)
        anchor_file = work / "anchors.npy"
        self._queries = encode(anchors, file=anchor_file, prompt=encoder.query_prompt)
        encoder.warn_unread(self.progress)
        self._open_pool(texts, text_keys[is_new_text], encoder)

    def _open_pool(self, texts: PackedTexts, keys: Digests, encoder: ReadyEncoder) -> None:
        """Set the pool (the texts that may become negatives) and the searcher over it.

        With the option ``index``, the pool is the texts of the index. Otherwise it is ``texts``,
        those that were read; ``keys`` are their match keys.
        """
        self._pool: Sequence[str] = texts
        self._pool_keys = keys
        self._searcher: ExactSearcher | SearchIndex = ExactSearcher(self._units)
        if self.options.index is not None:
            index = SearchIndex.load(self.options.index)
            index.require_made_by(encoder, self.options.index)
            self._pool = index.sentences
            _, self._pool_keys = _digests(map(clean_text, index.sentences))
            self._searcher = index
        self._sorted_keys = np.sort(self._pool_keys)

    def search(self, work: Path) -> NegativeCounts:
        """Find the negatives of each anchor; raise NothingFoundError if no anchor has any."""
        n_anchors = len(self._anchor_keys)
        blocks = _blocks(work, n_anchors, self._search_block, self.progress)
        results = np.concatenate(list(blocks))
        n_pairs = len(self._anchor_rows)
        # A pair gets the negatives of its anchor; the shape is ``(n_pairs, per_anchor)``.
        self._negatives = results["rows"][self._anchor_rows]
        is_negative = self._negatives >= 0
        if not is_negative.any():
            raise NothingFoundError(
                f"none of {n_pairs:,} pairs found a negative among {len(self._pool_keys):,} texts",
                hint=f"search nearer texts (--range 0:{self.limits.last}), "
                "allow closer ones (--margin -1), or add --corpus",
            )
        return NegativeCounts(
            n_pairs,
            n_anchors,
            n_texts=len(self._pool_keys),
            n_short_of_negatives=n_pairs - int(is_negative.all(axis=1).sum()),
            n_without_negative=n_pairs - int(is_negative.any(axis=1).sum()),
            positive_cosine=float(results["positive"][self._anchor_rows].mean()),
            negative_cosine=float(results["scores"][self._anchor_rows][is_negative].mean()),
        )

    def _search_block(self, block: slice) -> Array:
        """Return an array with one record for each anchor in a block.

        A record has the pool rows and the cosines of ``per_anchor`` negatives, nearest first, and
        the cosine of the farthest positive. If there are fewer negatives, the other rows are -1.
        """
        last = self.limits.last
        per_anchor = self.options.per_anchor
        numbers = range(*block.indices(len(self._anchor_keys)))

        # The anchor and its partners are dropped from what is found, so the search asks for more.
        excluded = [self._partners.with_text(self._anchor_keys[number]) for number in numbers]
        n_excluded = max(map(self._count_in_pool, excluded))
        scores, rows = self._searcher.search(self._queries[block], last + n_excluded)

        fields = [("rows", "<i8", per_anchor), ("scores", "<f4", per_anchor), ("positive", "<f4")]
        results = np.zeros(len(numbers), np.dtype(fields))
        results["rows"] = -1
        for i, number in enumerate(numbers):
            # The search gives -1 if it finds fewer texts.
            is_candidate = (rows[i] >= 0) & ~np.isin(self._pool_keys[rows[i]], excluded[i])
            candidates = rows[i][is_candidate][:last]
            cosines = scores[i][is_candidate][:last]
            positive = self._farthest_positive(number)
            picked = self._choose(self.limits.allow(cosines, positive), number)
            results["rows"][i, : len(picked)] = candidates[picked]
            results["scores"][i, : len(picked)] = cosines[picked]
            results["positive"][i] = positive
        return results

    def _count_in_pool(self, keys: Digests) -> int:
        """Return how many texts of the pool have one of the keys."""
        starts = np.searchsorted(self._sorted_keys, keys)
        ends = np.searchsorted(self._sorted_keys, keys, "right")
        return int((ends - starts).sum())

    def _farthest_positive(self, number: int) -> float:
        """Return the cosine of the anchor of this number with its farthest positive."""
        positives = self._positive_rows[self._starts[number] : self._starts[number + 1]]
        return float((self._units[positives] @ self._queries[number]).min())

    def _choose(self, is_allowed: Booleans, number: int) -> NDArray[np.intp]:
        """Choose negatives for the anchor of this number; return their positions in ``is_allowed``.

        ``is_allowed`` says for each text near the anchor, nearest first, whether it may be a
        negative.
        """
        allowed = np.flatnonzero(is_allowed)[self.limits.first :]
        nearest = allowed[: self.options.per_anchor]
        if self.options.pick is NegativePick.TOP:
            return nearest
        # The draw depends on the seed and the anchor alone; the nearest text drawn comes first.
        draw = random.Random(f"{self.options.seed}/{int(self._anchor_keys[number])}")
        drawn = draw.sample(range(len(allowed)), len(nearest))
        return allowed[sorted(drawn)]

    def rows(self) -> Iterator[Row]:
        """Yield the training rows: each pair with each negative of its anchor."""
        # A changed file may now have more or fewer pairs; the writer raises the error for that.
        for pair, negatives in zip(self._pairs(), self._negatives, strict=False):
            for row in negatives.tolist():
                if row >= 0:
                    yield (*pair, self._pool[row])


class _Partners:
    """The partners of each text: the texts that stand in a pair with it, on either side."""

    def __init__(self, anchor_keys: Digests, positive_keys: Digests) -> None:
        # Each pair stands here in both directions, sorted by the key of the text.
        texts = np.concatenate([anchor_keys, positive_keys])
        partners = np.concatenate([positive_keys, anchor_keys])
        order = np.argsort(texts, kind="stable")
        self._texts = texts[order]
        self._partners = partners[order]

    def with_text(self, key: np.uint64) -> Digests:
        """Return the key of a text, and the keys of its partners."""
        start = np.searchsorted(self._texts, key)
        end = np.searchsorted(self._texts, key, "right")
        return np.unique(np.append(self._partners[start:end], key))


_FOUND_PAIR = np.dtype([("left", "<i8"), ("right", "<i8"), ("score", "<f4")])


def _paraphrase_rows(
    inputs: Sequence[str],
    given: Given,
    options: PairOptions,
    progress: Progress,
    encoder: ReadyEncoder,
    work: Path,
) -> Mined:
    """Return the pairs of nearest texts, and counts; texts with the same match key are one text."""
    # The first text of each match key is stored and encoded.
    _, keys = _digests(_clean_texts(inputs, given))
    is_new, _ = _number(keys)
    texts = PackedTexts.stored(compress(_clean_texts(inputs, given), is_new), work / "texts.txt")
    if not texts:
        raise DataError(f"{', '.join(inputs)}: no text")
    units = unit_vectors(
        texts,
        encoder,
        progress,
        file=work / "texts.npy",
        prompt=encoder.prompt,
        batch_tokens=options.batch_tokens,
    )
    encoder.warn_unread(progress)
    best = _nearest_pairs(units, options, work, progress)

    if not len(best):
        raise _no_pair(len(texts), options)
    counts = ParaphraseCounts(
        len(texts),
        highest_cosine=float(best["score"][0]),
        lowest_cosine=float(best["score"][-1]),
    )
    found_pairs = zip(best["left"].tolist(), best["right"].tolist(), strict=True)
    return ((texts[left], texts[right]) for left, right in found_pairs), counts


def _no_pair(n_texts: int, options: PairOptions) -> NothingFoundError:
    """Return the error for a corpus in which no pair of texts is near enough."""
    if n_texts < 2:
        return NothingFoundError(
            "the input holds 1 different text, need two for a pair", hint="add texts"
        )
    limits = f"--min-score {options.min_score:g} or more"
    hint = "take farther ones: --min-score -1"
    if options.max_score is not None:
        limits += f" and --max-score {options.max_score:g} or less"
        hint += ", or leave out --max-score"
    what = f"no pair of {n_texts:,} different texts has a cosine of {limits}"
    return NothingFoundError(what, hint=hint)


def _nearest_pairs(units: Units, options: PairOptions, work: Path, progress: Progress) -> Array:
    """Return the nearest pairs of rows of ``units``, at most ``max_pairs``, the nearest first."""
    n_texts = len(units)
    searcher = ExactSearcher(units)
    best = np.empty(0, _FOUND_PAIR)

    def search(block: slice) -> Array:
        # A text may find itself, which is no pair, so the search is for one text more.
        scores, rows = searcher.search(units[block], options.top_k + 1)
        query_rows = np.arange(*block.indices(n_texts))[:, None]
        is_other = rows != query_rows
        is_pair = is_other & (scores >= options.min_score)
        # A text that did not find itself has one other text too many; only ``top_k`` may count.
        is_pair &= np.cumsum(is_other, axis=1) <= options.top_k
        if options.max_score is not None:
            is_pair &= scores <= options.max_score
        # The loop below fills ``best``. Once it is full, a pair must be nearer than the last one.
        if len(best) == options.max_pairs:
            is_pair &= scores > best["score"][-1]
        found_pairs = np.empty(int(is_pair.sum()), _FOUND_PAIR)
        found_pairs["left"] = np.minimum(rows, query_rows)[is_pair]
        found_pairs["right"] = np.maximum(rows, query_rows)[is_pair]
        found_pairs["score"] = scores[is_pair]
        return found_pairs

    for found_pairs in _blocks(work, n_texts, search, progress):
        best = _different_pairs(np.concatenate([best, found_pairs]), n_texts)[: options.max_pairs]
    return best


def _different_pairs(pairs: Array, n_texts: int) -> Array:
    """Return each pair once, nearest first; it occurs twice if both texts have found each other."""
    pair_ids = pairs["left"] * n_texts + pairs["right"]
    _, first_places = np.unique(pair_ids, return_index=True)
    different = pairs[first_places]
    # Pairs of the same score are in the order of their rows; `lexsort` takes the main key last.
    order = np.lexsort((different["right"], different["left"], -different["score"]))
    ranked: Array = different[order]
    return ranked
