"""``prepare hard-negatives`` and ``prepare pairs --paraphrases``: find rows by search with a model.

Texts, vectors and the result of every block of queries are kept in a folder beside the output, so
that an interrupted search continues where it stopped. Memory holds a few numbers per text, and one
block.
"""

import json
import random
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain, compress
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simcse_cli.data.given import Given
from simcse_cli.data.jobs import Job
from simcse_cli.data.names import POSITIONAL
from simcse_cli.data.packed_texts import PackedTexts
from simcse_cli.data.table import Table
from simcse_cli.data.text import clean_text, digest_keys, match_key
from simcse_cli.data.writers import Row, describe_file, manifest_path, output_format
from simcse_cli.encoding.job import EncodeJob
from simcse_cli.encoding.search_index import ExactSearcher, SearchIndex
from simcse_cli.encoding.sinks import VectorSink
from simcse_cli.errors import DataError, OutputError, UsageError
from simcse_cli.files.atomic import EXISTS_HINT, atomic_path, check_output
from simcse_cli.files.output import work_folder
from simcse_cli.files.streams import OLDER_DIGEST, STDIO, Inputs, is_older_digest, read_json
from simcse_cli.models.checkpoint import load_for_encoding
from simcse_cli.models.encode import ReadyEncoder
from simcse_cli.prepare.options import HardNegativeOptions, MiningOptions, PairOptions
from simcse_cli.prepare.pairs import PairCounts, given_pairs, pair_rows
from simcse_cli.prepare.rows import RowWriter
from simcse_cli.progress import Progress
from simcse_cli.settings.choices import NegativePick
from simcse_cli.settings.config import pinned

BLOCK = 1024
"""Queries that are searched together; results are saved block by block."""
DEFAULT_MARGIN = 0.05

# Names of the files of a search, including those that a kill leaves.
_WORK_FILES = r"(texts|anchors)\.(txt|npy)(\.part.*)?|found-\d+\.npy"

Digests = NDArray[np.uint64]
Numbers = NDArray[np.int64]


def prepare_hard_negatives(
    inputs: Sequence[str], options: HardNegativeOptions, writer: RowWriter
) -> None:
    """Write a row for each pair of the inputs and each hard negative of its anchor."""
    given = given_pairs(options, writer.progress)
    own = ("ratio", "min_score", "max_score", "per_anchor", "pick", "corpus")
    settings: dict[str, Any] = {
        "model": pinned(options.model, options.revision),
        "columns": options.columns,
        "range": options.ranks,
        "margin": _Limits(options).margin,
        **{name: getattr(options, name) for name in own},
        "index": None if options.index is None else str(options.index),
        "corpus_prompt": options.corpus_prompt,
    }
    sources = [*inputs, *(options.corpus or []), *([str(options.index)] if options.index else [])]
    _require_files(inputs, options)
    for source in inputs:  # what is asked is asked before anything is loaded
        _ = Table(source, Job.ROWS, given).reading
    mine = partial(_negative_rows, inputs, given, options, writer.progress)
    _mine("hard-negatives", sources, POSITIONAL, options, settings, mine, writer)


def prepare_paraphrases(inputs: Sequence[str], options: PairOptions, writer: RowWriter) -> None:
    """Write the nearest pairs of texts of one corpus, nearest first."""
    own = ("columns", "top_k", "max_pairs", "min_score", "max_score")
    settings = {"model": pinned(options.model, options.revision), "paraphrases": True}
    settings |= {name: getattr(options, name) for name in own}
    mine = partial(_paraphrase_rows, inputs, options, writer.progress)
    _mine("pairs", inputs, POSITIONAL[:2], options, settings, mine, writer)


@dataclass
class NegativeCounts:
    """Counts of a search for negatives; cosines are means over pairs and over rows."""

    n_pairs: int
    n_anchors: int
    n_texts: int
    n_short_of_negatives: int
    n_without_negative: int = 0
    positive_cosine: float | None = None
    negative_cosine: float | None = None

    def summary(self) -> str:
        text = (
            f"{self.n_pairs:,} pairs of {self.n_anchors:,} anchors, {self.n_texts:,} texts searched"
        )
        if self.negative_cosine is not None:
            text += f"; mean cosine {self.positive_cosine:.3f} of positives, {self.negative_cosine:.3f} of negatives"
        if self.n_without_negative:
            text += f"; {self.n_without_negative:,} pairs found no negative and are left out"
        if n_others := self.n_short_of_negatives - self.n_without_negative:
            text += f"; {n_others:,} pairs found fewer negatives than asked for"
        return text


@dataclass
class ParaphraseCounts:
    """The number of different texts searched, and the cosines of the first and the last pair."""

    n_texts: int
    highest_cosine: float | None = None
    lowest_cosine: float | None = None

    def summary(self) -> str:
        found = f"{self.n_texts:,} different texts searched"
        if self.lowest_cosine is None:
            return found
        return f"{found}; cosines from {self.highest_cosine:.3f} down to {self.lowest_cosine:.3f}"


class _Limits:
    """Decide which texts near an anchor may be its negatives.

    Source: the options of ``mine_hard_negatives`` in sentence-transformers, with the same results:
    of the ``last`` nearest texts that are not known positives, those too near (or too far) are
    dropped, and the ``first`` nearest of the rest are skipped. With several positives the farthest
    one counts.
    """

    def __init__(self, options: HardNegativeOptions) -> None:
        try:
            first, last = (int(part) for part in options.ranks.split(":"))
        except ValueError:
            raise UsageError(
                f"{options.ranks!r}: need two ranks, as in 10:100", option="--range"
            ) from None
        if not 0 <= first <= last - options.per_anchor:
            raise UsageError(
                f"{options.ranks}: need 0 <= MIN < MAX, and room for --per-anchor {options.per_anchor} between",
                option="--range",
            )
        self.first, self.last, self.options = first, last, options
        self.margin = (
            DEFAULT_MARGIN if options.margin is None and options.ratio is None else options.margin
        )

    def allow(self, scores: NDArray[np.float32], positive: float) -> NDArray[np.bool_]:
        """Return which cosines a negative may have if the farthest positive has cosine ``positive``."""
        allowed = np.isfinite(scores)
        if self.margin is not None:
            allowed &= scores + self.margin <= positive
        if self.options.ratio is not None:
            allowed &= scores <= positive - abs(positive) * (1 - self.options.ratio)
        if self.options.max_score is not None:
            allowed &= scores <= self.options.max_score
        if self.options.min_score is not None:
            allowed &= scores >= self.options.min_score
        return allowed


Mined = tuple[Iterator[Row], NegativeCounts | ParaphraseCounts]


def _require_files(sources: Sequence[str], options: MiningOptions) -> None:
    if STDIO in sources or str(options.output) == STDIO:
        what = "mining reads its input several times and saves its progress beside its output: need files"
        raise UsageError(what, option="--output" if str(options.output) == STDIO else "INPUT")


def _mine(
    kind: str,
    sources: Sequence[str],
    columns: Sequence[str],
    options: MiningOptions,
    settings: dict[str, Any],
    mine: Callable[[ReadyEncoder, Path], Mined],
    writer: RowWriter,
) -> None:
    """Check the output, load the model, mine in a folder beside the output, and write the rows."""
    _require_files(sources, options)
    is_there = options.resume and not options.force and options.output.exists()
    output_format(options.output, columns)
    check_output(options.output, force=options.force or is_there)
    work = options.output.with_name(f"{options.output.name}.mining")
    encoder = load_for_encoding(options.model, options, writer.progress)
    settings = settings | {"model_digest": encoder.digest}
    inputs = [describe_file(source) for source in sources]
    if is_there:
        _require_finished(options.output, {"seed": options.seed, "inputs": inputs}, settings)
    facts = {**settings, "seed": options.seed, "block": BLOCK, "inputs": inputs}
    read = Inputs(sources)
    with work_folder(work, facts, names=_WORK_FILES, resume=options.resume, force=options.force):
        if is_there:
            writer.progress.info(f"{options.output} is already finished")
            return
        rows, counts = mine(encoder, work)
        read.require_unchanged()
        writer.write(kind, rows, columns, inputs=sources, settings=settings, corpus=counts)


def _require_finished(output: Path, facts: dict[str, Any], settings: dict[str, Any]) -> None:
    """Raise OutputError unless the manifest of a finished output has the facts and settings of this search."""
    path = manifest_path(output)
    found = read_json(path) if path.is_file() else None
    wanted = json.loads(json.dumps(facts | settings, default=str))
    kept = {**found, **found.get("settings", {})} if isinstance(found, dict) else {}
    if is_older_digest(kept.get("model_digest"), str(wanted.get("model_digest"))):
        raise OutputError(f"{output} exists already and {OLDER_DIGEST}", hint=EXISTS_HINT)
    if any(kept.get(key) != value for key, value in wanted.items()):
        raise OutputError(
            f"{output} exists already, and this search did not write it", hint=EXISTS_HINT
        )


def _units(
    texts: PackedTexts, output: Path, encoder: ReadyEncoder, progress: Progress, **how: Any
) -> NDArray[np.float32]:
    """Return vectors of length 1, on disk; those that an earlier run has written are not computed again."""
    if not output.exists():
        encode = partial(encoder.encode, normalize=True, **how)
        job = EncodeJob(texts, encode, total=len(texts))
        job.run(VectorSink(output, encoder.dim, resume=True), progress)
    units: NDArray[np.float32] = np.load(output, mmap_mode="r")
    return units


def _number(digests: Digests) -> tuple[NDArray[np.bool_], Numbers]:
    """Return which entries are the first of their value, and the number of each entry's value, by first occurrence.

    Example:
        >>> _number(np.array([7, 5, 7], np.uint64))
        (array([ True,  True, False]), array([0, 1, 0]))
    """
    _, first, inverse = np.unique(digests, return_index=True, return_inverse=True)
    is_first = np.zeros(len(digests), dtype=bool)
    is_first[first] = True
    return is_first, np.argsort(np.argsort(first))[inverse]


def _digests(texts: Iterable[str]) -> tuple[Digests, Digests]:
    exact, keys = array("Q"), array("Q")
    for text in texts:
        exact.append(digest_keys([text]))
        keys.append(digest_keys([match_key(text)]))
    return np.frombuffer(exact, np.uint64), np.frombuffer(keys, np.uint64)


def _blocks(
    work: Path, n_rows: int, search: Callable[[slice], NDArray[Any]], progress: Progress
) -> Iterator[NDArray[Any]]:
    """Yield the results of each block of rows; a saved block is not searched again."""
    with progress.task("searching", n_rows) as task:
        for start in range(0, n_rows, BLOCK):
            path = work / f"found-{start}.npy"
            if not path.exists():
                with atomic_path(path) as temporary, temporary.open("wb") as stream:
                    np.save(stream, search(slice(start, start + BLOCK)))
            yield np.load(path)
            task.advance(min(BLOCK, n_rows - start))


def _negative_rows(
    inputs: Sequence[str],
    given: Given,
    options: HardNegativeOptions,
    progress: Progress,
    encoder: ReadyEncoder,
    work: Path,
) -> Mined:
    limits = _Limits(options)

    def pairs() -> Iterator[tuple[str, str]]:
        counts, n_empty = PairCounts(), 0
        for anchor, positive in pair_rows(inputs, given, counts=counts):
            row = clean_text(anchor), clean_text(positive)
            if all(row):
                yield row
            else:
                n_empty += 1
        if summary := counts.summary():
            given.told.info(summary)
        if n_empty:
            given.told.info(f"left out {n_empty:,} pairs with an empty text")

    def candidates() -> Iterator[str]:
        others = given.of_file("--corpus")
        more = (Table(source, Job.TEXTS, others).texts() for source in options.corpus or [])
        cleaned = (clean_text(text) for text in chain.from_iterable(more))
        return chain((positive for _, positive in pairs()), filter(None, cleaned))

    read = Inputs([*inputs, *(options.corpus or [])])
    anchor_digests, anchor_keys = _digests(anchor for anchor, _ in pairs())
    text_digests, text_keys = _digests(candidates())
    if not len(anchor_digests):
        raise DataError(
            f"{', '.join(inputs)}: no pair of texts", hint="need the columns anchor and positive"
        )
    is_new_anchor, anchor_rows = _number(anchor_digests)
    is_new_text, text_rows = _number(text_digests)
    positive_rows, positive_keys = text_rows[: len(anchor_rows)], text_keys[: len(anchor_rows)]
    known = _known(anchor_keys, positive_keys)
    texts = PackedTexts.stored(compress(candidates(), is_new_text), work / "texts.txt")
    new_anchors = compress((anchor for anchor, _ in pairs()), is_new_anchor)
    anchors = PackedTexts.stored(new_anchors, work / "anchors.txt")
    prompt = encoder.document_prompt(options.corpus_prompt)
    read.require_unchanged()
    encode = partial(_units, encoder=encoder, progress=progress, batch_tokens=options.batch_tokens)
    units = encode(texts, work / "texts.npy", prompt=prompt)
    queries = encode(anchors, work / "anchors.npy", prompt=encoder.query_prompt)
    encoder.warn_truncated(progress)
    index, pool_keys = None, text_keys[is_new_text]
    if options.index is not None:
        index = SearchIndex.load(options.index)
        index.require_made_by(encoder, options.index)
        pool_keys = _digests(map(clean_text, index.sentences))[1]
    searcher = ExactSearcher(units) if index is None else index
    by_anchor = np.argsort(anchor_rows, kind="stable")
    starts = np.searchsorted(anchor_rows[by_anchor], np.arange(len(anchors) + 1))
    keys, sorted_pool = anchor_keys[is_new_anchor], np.sort(pool_keys)
    form = np.dtype(
        [
            ("rows", "<i8", options.per_anchor),
            ("scores", "<f4", options.per_anchor),
            ("positive", "<f4"),
        ]
    )

    def search(block: slice) -> NDArray[Any]:
        numbers = range(*block.indices(len(anchors)))
        excluded = [known(keys[number]) for number in numbers]
        n_excluded = (
            np.searchsorted(sorted_pool, each, "right") - np.searchsorted(sorted_pool, each)
            for each in excluded
        )
        depth = limits.last + max(int(n.sum()) for n in n_excluded)
        scores, rows = searcher.search(queries[block], depth)
        found = np.zeros(len(numbers), form)
        found["rows"] = -1
        for i, number in enumerate(numbers):
            positives = positive_rows[by_anchor[starts[number] : starts[number + 1]]]
            found["positive"][i] = positive = float((units[positives] @ queries[number]).min())
            is_other = (rows[i] >= 0) & ~np.isin(pool_keys[rows[i]], excluded[i])
            others, cosines = rows[i][is_other][: limits.last], scores[i][is_other][: limits.last]
            allowed = np.flatnonzero(limits.allow(cosines, positive))[limits.first :]
            chosen = allowed[: options.per_anchor]
            if options.pick is not NegativePick.TOP:
                draw = random.Random(
                    f"{options.seed}/{int(keys[number])}"
                )  # the seed and the anchor decide
                chosen = allowed[sorted(draw.sample(range(len(allowed)), len(chosen)))]
            found["rows"][i, : len(chosen)] = others[chosen]
            found["scores"][i, : len(chosen)] = cosines[chosen]
        return found

    found = np.concatenate(list(_blocks(work, len(anchors), search, progress)))
    has = found["rows"][anchor_rows] >= 0
    if not has.any():
        raise DataError(
            f"none of {len(has):,} pairs found a negative among {len(pool_keys):,} texts",
            hint=f"search nearer texts (--range 0:{limits.last}), allow closer ones (--margin -1), or add --corpus",
        )
    n_short, n_without = int((~has.all(axis=1)).sum()), int((~has.any(axis=1)).sum())
    counts = NegativeCounts(len(anchor_rows), len(anchors), len(pool_keys), n_short, n_without)
    counts.positive_cosine = float(found["positive"][anchor_rows].mean())
    counts.negative_cosine = float(found["scores"][anchor_rows][has].mean())

    pool = texts if index is None else index.sentences

    def rows() -> Iterator[Row]:
        for number, (anchor, positive) in zip(anchor_rows.tolist(), pairs(), strict=False):
            chosen = found["rows"][number].tolist()
            yield from ((anchor, positive, pool[row]) for row in chosen if row >= 0)

    return rows(), counts


def _known(anchor_keys: Digests, positive_keys: Digests) -> Callable[[np.uint64], Digests]:
    """Return a function from a key to those of no negatives: itself, and its partners on either side of a pair."""
    left, right = (
        np.concatenate([anchor_keys, positive_keys]),
        np.concatenate([positive_keys, anchor_keys]),
    )
    order = np.argsort(left, kind="stable")
    left, right = left[order], right[order]

    def known(key: np.uint64) -> Digests:
        start, end = np.searchsorted(left, key), np.searchsorted(left, key, "right")
        return np.unique(np.append(right[start:end], key))

    return known


_FOUND_PAIR = np.dtype([("left", "<i8"), ("right", "<i8"), ("score", "<f4")])


def _paraphrase_rows(
    inputs: Sequence[str],
    options: PairOptions,
    progress: Progress,
    encoder: ReadyEncoder,
    work: Path,
) -> Mined:
    """Mine the pairs, nearest first; texts that are equal up to case, spacing and punctuation count once."""
    given = Given.of(options, progress=progress).of_texts(options.columns)

    def every() -> Iterator[str]:
        texts = chain.from_iterable(Table(source, Job.TEXTS, given).texts() for source in inputs)
        return filter(None, map(clean_text, texts))

    is_new, _ = _number(_digests(every())[1])
    texts = PackedTexts.stored(compress(every(), is_new), work / "texts.txt")
    if not texts:
        raise DataError(f"{', '.join(inputs)}: no text")
    how = {"prompt": encoder.prompt, "batch_tokens": options.batch_tokens}
    units = _units(texts, work / "texts.npy", encoder, progress, **how)
    encoder.warn_truncated(progress)
    searcher = ExactSearcher(units)
    best = np.empty(0, _FOUND_PAIR)

    def search(block: slice) -> NDArray[Any]:
        scores, rows = searcher.search(units[block], options.top_k + 1)
        own = np.arange(*block.indices(len(texts)))[:, None]
        is_pair = (rows != own) & (scores >= options.min_score)
        is_pair &= np.cumsum(rows != own, axis=1) <= options.top_k
        if options.max_score is not None:
            is_pair &= scores <= options.max_score
        if len(best) == options.max_pairs:
            is_pair &= scores > best["score"][-1]
        found = np.empty(int(is_pair.sum()), _FOUND_PAIR)
        found["left"], found["right"] = (
            np.minimum(rows, own)[is_pair],
            np.maximum(rows, own)[is_pair],
        )
        found["score"] = scores[is_pair]
        return found

    for found in _blocks(work, len(texts), search, progress):
        merged = np.concatenate([best, found])
        _, first = np.unique(merged["left"] * len(texts) + merged["right"], return_index=True)
        merged = merged[first]
        order = np.lexsort((merged["right"], merged["left"], -merged["score"]))
        best = merged[order[: options.max_pairs]]
    counts = ParaphraseCounts(len(texts))
    if len(best):
        counts.highest_cosine, counts.lowest_cosine = (float(best["score"][at]) for at in (0, -1))
    found_pairs = zip(best["left"].tolist(), best["right"].tolist(), strict=True)
    return ((texts[left], texts[right]) for left, right in found_pairs), counts
