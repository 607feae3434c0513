"""Rows of a Hugging Face dataset, streamed: ``hf://OWNER/NAME@CONFIG:SPLIT``, or a folder it was saved in."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from simcse_cli.errors import DataError

HUB_PREFIX = "hf://"
_HINT = (
    "write hf://OWNER/NAME, hf://OWNER/NAME:SPLIT or hf://OWNER/NAME@CONFIG:SPLIT (SPLIT is train by default)"
)


def parse_hub_source(source: str) -> tuple[str, str | None, str]:
    """Return ``(name, config, split)`` of ``hf://NAME[@CONFIG][:SPLIT]``.

    ``hf://nyu-mll/glue@qqp:validation`` is ``("nyu-mll/glue", "qqp", "validation")``.
    """
    body = source.removeprefix(HUB_PREFIX).removeprefix("datasets/")
    body, _, split = body.partition(":")
    name, _, config = body.partition("@")
    if not name:
        raise DataError(f"{source}: no dataset name", hint=_HINT)
    return name, config or None, split or "train"


def iter_hub_rows(source: str) -> Iterator[dict[str, Any]]:
    """Yield the rows of a Hub dataset without downloading it as a whole; ``hf:///folder`` reads a saved one.

    Raises:
        DataError: the dataset, its config or its split cannot be loaded.
    """
    import datasets

    name, config, split = parse_hub_source(source)
    try:
        if (Path(name) / "state.json").exists() or (Path(name) / "dataset_dict.json").exists():
            saved = datasets.load_from_disk(name)
            yield from saved[split] if isinstance(saved, datasets.DatasetDict) else saved
        else:
            yield from datasets.load_dataset(name, config, split=split, streaming=True)
    except (OSError, ValueError, KeyError, datasets.exceptions.DatasetsError) as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise DataError(f"{source} cannot be loaded: {reason}", hint=_HINT) from error
