"""Sentences that post-processors are fitted on, and the fitting: NLI, the evaluated task itself, or a file.

Source: Su et al. 2021 and Li et al. 2020. Both sides of every pair, labels unread. ``nli`` is SNLI train, dev
and test with MNLI train; ``target`` is all pairs of the evaluated task: every subset of an STS year, train,
dev and test of STS-B and SICK-R.
"""

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Literal, get_args

import numpy as np

from simcse_cli.data.readers import find_column, iter_records, iter_sentences
from simcse_cli.data.senteval import has_split, read_sts_task, resolve_senteval_dir
from simcse_cli.errors import ConfigError, DataError
from simcse_cli.evaluation.embedding_cache import Encode
from simcse_cli.files import iter_lines
from simcse_cli.postprocess.base import PostProcessor
from simcse_cli.postprocess.registry import FitRecord, FittedPostProcessor
from simcse_cli.progress import Progress

Example = tuple[str, ...]
"""One sentence, or the two sides of a pair."""

NliPart = Literal["SNLI train", "SNLI dev", "SNLI test", "MNLI train"]

_COLUMN_FILES: dict[NliPart, tuple[str, ...]] = {
    "SNLI train": ("SNLI/s{}.train",),
    "SNLI dev": ("SNLI/s{}.dev",),
    "SNLI test": ("SNLI/s{}.test",),
    "MNLI train": ("MNLI/s{}.train", "MultiNLI/s{}.train"),
}
_JSON_FILES: dict[NliPart, tuple[str, ...]] = {
    "SNLI train": ("snli_1.0_train.jsonl", "snli_train.jsonl"),
    "SNLI dev": ("snli_1.0_dev.jsonl", "snli_dev.jsonl"),
    "SNLI test": ("snli_1.0_test.jsonl", "snli_test.jsonl"),
    "MNLI train": ("multinli_1.0_train.jsonl", "mnli_train.jsonl"),
}


def target_examples(data_dir: Path | str, task: str) -> list[Example]:
    """Return all pairs of an STS task, whatever split is scored.

    Raises:
        DataError: a file of the task is missing or malformed.
    """
    chosen = read_sts_task(data_dir, task, split="all" if has_split(task, "all") else "test")
    return [
        pair for subset in chosen.subsets.values() for pair in zip(subset.left, subset.right, strict=True)
    ]


def nli_examples(data_dir: Path | str, progress: Progress) -> list[Example]:
    """Return the pairs of the NLI files below a folder; warns about the corpora that are not there.

    Looked for are ``SNLI/s1.train`` with ``s2.train`` and so on in the SentEval folder, and the JSON Lines
    files of the two corpora (``snli_1.0_train.jsonl``, ``multinli_1.0_train.jsonl``) in ``data_dir``, its
    ``nli`` folder or the SentEval folder.

    Raises:
        DataError: no NLI file at all, or a malformed one.
    """
    folders = [Path(data_dir), Path(data_dir) / "nli"]
    with suppress(DataError):
        folders.append(resolve_senteval_dir(data_dir))
    found = {part: _nli_part(part, folders) for part in get_args(NliPart)}
    missing = [part for part, pairs in found.items() if not pairs]
    if len(missing) == len(found):
        raise DataError(
            f"{data_dir} has no NLI files (SNLI/s1.train, snli_1.0_train.jsonl, multinli_1.0_train.jsonl)",
            hint="put them there, or give any sentences or pairs with --fit FILE",
        )
    if missing:
        present = [part for part in found if part not in missing]
        progress.warn(f"fitting on {', '.join(present)} only; the papers also use {', '.join(missing)}")
    return [pair for pairs in found.values() for pair in pairs]


def file_examples(path: Path | str) -> list[Example]:
    """Return the pairs of a table with columns ``anchor`` and ``positive`` (or aliases), else its sentences.

    Raises:
        DataError: unreadable or empty file.
    """
    examples: list[Example] = []
    for _, record in iter_records(path):
        left, right = find_column(record, "anchor"), find_column(record, "positive")
        if left is None or right is None:
            return [(sentence,) for sentence in iter_sentences(path) if sentence.strip()]
        examples.append((record[left], record[right]) if right != left else (record[left],))
    return examples


def sample_examples(examples: Sequence[Example], n_examples: int | None, seed: int) -> list[Example]:
    """Return at most ``n_examples`` of them, drawn without replacement and kept in order."""
    if n_examples is None or n_examples >= len(examples):
        return list(examples)
    rows = np.random.default_rng(seed).choice(len(examples), n_examples, replace=False)
    return [examples[row] for row in np.sort(rows)]


def fit_postprocessor(
    processor: PostProcessor,
    encode: Encode,
    examples: Sequence[Example],
    *,
    encoder: str,
    encoder_digest: str,
    source: str,
    progress: Progress | None = None,
) -> FittedPostProcessor:
    """Encode the examples, fit on their vectors and return the result with its record.

    Args:
        processor: what to fit.
        encode: the encoder.
        examples: all sentences, or all pairs.
        encoder: name of the encoder, for the record.
        encoder_digest: of the encoder's weights and pooler, for the record.
        source: what the examples are, for the record.
        progress: told about long work.

    Raises:
        ConfigError: the vectors do not suffice, or their dimension does not suit the processor.
    """
    n_sides = len(examples[0]) if examples else 1
    vectors = encode([sentence for example in examples for sentence in example])
    try:
        processor.fit(vectors.reshape(len(examples), n_sides, -1), progress=progress)
    except ValueError as error:
        raise ConfigError(
            f"cannot fit {processor.name} on {len(vectors):,} vectors of {source}: {error}",
            hint="fit on other sentences (--fit nli or --fit FILE) or choose another --postprocess",
        ) from error
    return FittedPostProcessor(processor, FitRecord(encoder, encoder_digest, source, len(vectors)))


def _nli_part(part: NliPart, folders: Sequence[Path]) -> list[Example]:
    """Return the pairs of the first file that holds a part, or none."""
    for folder in folders:
        for pattern in _COLUMN_FILES[part]:
            left, right = folder / pattern.format(1), folder / pattern.format(2)
            if left.exists() and right.exists():
                return _aligned_lines(left, right)
        for name in _JSON_FILES[part]:
            if (folder / name).exists():
                return file_examples(folder / name)
    return []


def _aligned_lines(left: Path, right: Path) -> list[Example]:
    sides = list(iter_lines(left)), list(iter_lines(right))
    if len(sides[0]) != len(sides[1]):
        raise DataError(f"{left} has {len(sides[0]):,} lines, {right} has {len(sides[1]):,}; need as many")
    return list(zip(*sides, strict=True))
