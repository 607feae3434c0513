"""Find the data of MTEB tasks on this machine, and fetch the rest if the Hub is reachable."""

import os
import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import datasets
import huggingface_hub

from simcse_cli.data import senteval
from simcse_cli.errors import DataError
from simcse_cli.files.streams import digest, sha256_file

LOAD_ERRORS = (OSError, datasets.exceptions.DatasetsError, huggingface_hub.errors.HfHubHTTPError)
"""Exceptions of loading a dataset that is not on this machine and cannot be fetched."""

FORMAT_ERRORS = (ValueError, KeyError)
"""Further exceptions of loading a local folder whose files do not fit the task."""

SENTEVAL_TASKS: Mapping[str, str] = {
    **{f"STS{year}": f"STS{year}" for year in range(12, 17)},
    "STSBenchmark": "STSBenchmark",
    "SICK-R": "SICKRelatedness",
}
"""MTEB's names of the STS tasks with the same pairs as SentEval."""

_SPLIT_NAMES: Mapping[senteval.Split, str] = {"train": "train", "dev": "validation", "test": "test"}
_PROBE_SECONDS = 5.0


def find_dataset_folder(data_dir: Path, task_name: str, repository: str) -> Path | None:
    """Return the folder of a task's dataset below ``data_dir``: ``TASK``, ``OWNER/NAME`` or ``NAME``."""
    candidates = (
        data_dir / task_name,
        data_dir / repository,
        data_dir / repository.rpartition("/")[2],
    )
    return next(
        (folder for folder in candidates if folder.is_dir() and any(folder.iterdir())), None
    )


def folder_digest(folder: Path) -> str:
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return digest(
        *(f"{path.relative_to(folder).as_posix()}:{sha256_file(path)}\n" for path in files)
    )


def senteval_dataset(data_dir: Path, task_name: str) -> datasets.DatasetDict | None:
    """Return the splits of an MTEB task made from SentEval files, or None if the files do not have them.

    MTEB scores SICK-R on all 9,927 pairs, so its test split joins train, trial and test.
    """
    name = SENTEVAL_TASKS.get(task_name)
    try:
        root = senteval.resolve_senteval_dir(data_dir)
    except DataError:
        return None
    if name is None or not senteval.sts_folder(root, name).is_dir():
        return None
    by_split = {
        _SPLIT_NAMES[split]: list(senteval.read_sts_task(root, name, split=split).subsets.values())
        for split in _SPLIT_NAMES
        if senteval.has_split(name, split)
    }
    if name == "SICKRelatedness":
        by_split = {"test": [subset for subsets in by_split.values() for subset in subsets]}
    splits = {}
    for split, subsets in by_split.items():
        joined = senteval.StsSubset.join(subsets)
        columns = {
            "sentence1": joined.left,
            "sentence2": joined.right,
            "score": joined.gold.tolist(),
        }
        splits[split] = datasets.Dataset.from_dict(columns)
    return datasets.DatasetDict(splits)


def dataset_digest(splits: datasets.DatasetDict) -> str:
    lines: list[str] = []
    for name in sorted(splits):
        lines.append(f"{name}\n")
        lines += (
            f"{row['sentence1']}\t{row['sentence2']}\t{row['score']}\n" for row in splits[name]
        )
    return digest(*lines)


@contextmanager
def hub_session() -> Iterator[None]:
    """Load datasets offline if the Hub cannot be reached; otherwise each would wait for its own timeouts."""
    constants, config = huggingface_hub.constants, datasets.config
    before = constants.HF_HUB_OFFLINE, config.HF_HUB_OFFLINE
    if not constants.HF_HUB_OFFLINE and not _is_reachable(constants.ENDPOINT):
        constants.HF_HUB_OFFLINE = config.HF_HUB_OFFLINE = True
    try:
        yield
    finally:
        constants.HF_HUB_OFFLINE, config.HF_HUB_OFFLINE = before


@contextmanager
def cache_of(revision: str) -> Iterator[None]:
    """Make ``datasets`` cache a local folder under its digest; its own key ignores files that a README lists."""
    before = datasets.config.HF_DATASETS_CACHE
    datasets.config.HF_DATASETS_CACHE = Path(before) / revision
    try:
        yield
    finally:
        datasets.config.HF_DATASETS_CACHE = before


def _is_reachable(endpoint: str) -> bool:
    if any(
        os.environ.get(name) for name in ("HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy")
    ):
        return True
    address = urlsplit(endpoint)
    port = address.port or (80 if address.scheme == "http" else 443)
    try:
        with socket.create_connection((address.hostname or endpoint, port), timeout=_PROBE_SECONDS):
            return True
    except OSError:
        return False
