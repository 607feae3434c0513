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
from simcse_cli.files.digests import digest, sha256_file

LOAD_ERRORS = (OSError, datasets.exceptions.DatasetsError, huggingface_hub.errors.HfHubHTTPError)
"""Exceptions of loading a dataset that is not on this machine and cannot be fetched."""

FORMAT_ERRORS = (ValueError, KeyError)
"""Further exceptions of loading a local folder whose files do not fit the task."""

SENTEVAL_TASKS: Mapping[str, str] = {
    **{f"STS{year}": f"STS{year}" for year in range(12, 17)},
    "STSBenchmark": "STSBenchmark",
    "SICK-R": "SICKRelatedness",
}
"""The STS tasks of MTEB that have SentEval's pairs: from MTEB's name to SentEval's."""

# The split of SentEval for each split of MTEB.
_SPLITS: Mapping[str, senteval.Split] = {"train": "train", "validation": "dev", "test": "test"}
_SICK_SPLITS: Mapping[str, senteval.Split] = {"test": "all"}
_PROBE_SECONDS = 5.0


def find_dataset_folder(data_dir: Path, task_name: str, repository: str) -> Path | None:
    """Return a dataset's folder below ``data_dir``: ``TASK``, ``OWNER/NAME`` or ``NAME``."""
    for name in (task_name, repository, repository.rpartition("/")[2]):
        folder = data_dir / name
        if folder.is_dir() and any(folder.iterdir()):
            return folder
    return None


def folder_digest(folder: Path) -> str:
    lines = []
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            lines.append(f"{path.relative_to(folder).as_posix()}:{sha256_file(path)}\n")
    return digest(*lines)


def senteval_dataset(data_dir: Path, task_name: str) -> datasets.DatasetDict | None:
    """Return the splits of an MTEB task from SentEval files, or None if the files are not there.

    MTEB scores SICK-R on all 9,927 pairs, so its test split joins train, trial and test.
    """
    name = SENTEVAL_TASKS.get(task_name)
    try:
        root = senteval.resolve_senteval_dir(data_dir)
    except DataError:
        return None
    if name is None or not senteval.sts_folder(root, name).is_dir():
        return None
    splits = datasets.DatasetDict()
    split_names = _SICK_SPLITS if name == "SICKRelatedness" else _SPLITS
    for mteb_split, split in split_names.items():
        if not senteval.has_split(name, split):
            continue
        subsets = senteval.read_sts_task(root, name, split=split).subsets
        joined = senteval.StsSubset.join(list(subsets.values()))
        columns = {
            "sentence1": joined.left,
            "sentence2": joined.right,
            "score": joined.gold.tolist(),
        }
        splits[mteb_split] = datasets.Dataset.from_dict(columns)
    return splits


def dataset_digest(splits: datasets.DatasetDict) -> str:
    lines: list[str] = []
    for name in sorted(splits):
        lines.append(f"{name}\n")
        for row in splits[name]:
            lines.append(f"{row['sentence1']}\t{row['sentence2']}\t{row['score']}\n")
    return digest(*lines)


@contextmanager
def hub_session() -> Iterator[None]:
    """Within the block, let datasets load only local copies if the Hub cannot be reached.

    Without this, each load would first wait for its timeout.
    """
    constants = huggingface_hub.constants
    config = datasets.config
    old_settings = constants.HF_HUB_OFFLINE, config.HF_HUB_OFFLINE
    if not constants.HF_HUB_OFFLINE and not is_reachable(constants.ENDPOINT):
        constants.HF_HUB_OFFLINE = config.HF_HUB_OFFLINE = True
    try:
        yield
    finally:
        constants.HF_HUB_OFFLINE, config.HF_HUB_OFFLINE = old_settings


@contextmanager
def cache_of(revision: str) -> Iterator[None]:
    """Within the block, let ``datasets`` use a separate cache for this revision of a folder.

    The usual cache does not notice that files listed in a README have changed, and would give their
    old rows.
    """
    usual_cache = datasets.config.HF_DATASETS_CACHE
    datasets.config.HF_DATASETS_CACHE = Path(usual_cache) / revision
    try:
        yield
    finally:
        datasets.config.HF_DATASETS_CACHE = usual_cache


def is_reachable(endpoint: str) -> bool:
    """Tell whether a server accepts connections; behind a proxy, assume that it does."""
    # A proxy may reach what this machine cannot reach directly.
    if any(map(os.environ.get, ("HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy"))):
        return True
    address = urlsplit(endpoint)
    usual_port = 80 if address.scheme == "http" else 443
    server = (address.hostname or endpoint, address.port or usual_port)
    try:
        with socket.create_connection(server, timeout=_PROBE_SECONDS):
            return True
    except OSError:
        return False
