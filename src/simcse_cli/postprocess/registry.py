"""Build post-processors by name, and save and load them as safetensors files with a record."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import safe_open
from safetensors.numpy import save_file

from simcse_cli.arrays import AnyFloats
from simcse_cli.errors import CheckpointError, ConfigError
from simcse_cli.files.digests import OLDER_DIGEST, digest, is_older_digest
from simcse_cli.files.inputs import require_file
from simcse_cli.files.output import output_path
from simcse_cli.files.schema import checked, foreign_format, parse_json
from simcse_cli.postprocess.base import PostProcessor
from simcse_cli.postprocess.directions import AllButTheTop, CommonComponentRemoval
from simcse_cli.postprocess.flow import BertFlow
from simcse_cli.postprocess.unit_rows import unit_rows
from simcse_cli.postprocess.whitening import Whitening
from simcse_cli.settings.choices import Postprocess
from simcse_cli.version import __version__

POSTPROCESSORS: dict[Postprocess, type[PostProcessor]] = {
    each.name: each for each in (Whitening, BertFlow, AllButTheTop, CommonComponentRemoval)
}

_RECORD_KEY = "simcse_postprocess"
_HOW_TO_SAVE = (
    "fit one on this encoder: simcse eval sts --model NAME --postprocess whitening --fit nli "
    "--save-postprocess FILE.safetensors"
)


@dataclass(frozen=True)
class FitRecord:
    encoder: str
    encoder_digest: str
    source: str
    n_vectors: int


@dataclass(frozen=True)
class FittedPostProcessor:
    processor: PostProcessor
    record: FitRecord

    def apply(self, vectors: AnyFloats, *, normalize: bool = False) -> AnyFloats:
        """Return the processed vectors; ``normalize`` scales all but zero vectors to length 1."""
        processed = self.processor.transform(vectors)
        if normalize:
            processed = unit_rows(processed, processed.dtype.type)
        return processed

    @property
    def digest(self) -> str:
        """SHA-256 over settings and learned arrays: equal digests give equal maps."""
        parts: list[str | bytes] = [json.dumps([self.processor.name, self.processor.settings()])]
        for name, array in sorted(self.processor.state().items()):
            parts += [f"{name}:{array.dtype}:{array.shape}", array.tobytes()]
        return digest(*parts)

    def describe(self) -> dict[str, Any]:
        return {
            "name": str(self.processor.name),
            "settings": self.processor.settings(),
            "fit": asdict(self.record),
            "version": __version__,
        }


def create(name: Postprocess, **settings: Any) -> PostProcessor:
    try:
        return POSTPROCESSORS[name](**settings)
    except (TypeError, ValueError) as error:
        raise ConfigError(
            f"post-processing {name}: {error}", hint="see docs/postprocess.md for its settings"
        ) from error


def save(fitted: FittedPostProcessor, path: Path | str, *, force: bool = False) -> None:
    arrays = {name: np.ascontiguousarray(array) for name, array in fitted.processor.state().items()}
    with output_path(path, force=force) as temporary:
        facts = fitted.describe() | {"sha256": fitted.digest}
        save_file(arrays, temporary, metadata={_RECORD_KEY: json.dumps(facts)})


def load(path: Path | str) -> FittedPostProcessor:
    """Read what ``save`` wrote; nothing in the file is executed."""
    path = require_file(path, hint=_HOW_TO_SAVE)
    with foreign_format(path, "a saved post-processor", error=CheckpointError, hint=_HOW_TO_SAVE):
        with safe_open(path, framework="numpy") as stream:
            described = parse_json((stream.metadata() or {})[_RECORD_KEY], str(path))
            names = list(stream.keys())
            arrays = {name: stream.get_tensor(name) for name in names}
        broken = [name for name, array in arrays.items() if not np.isfinite(array).all()]
        if broken:
            raise ValueError(f"{broken[0]} is not finite")
        processor_class = POSTPROCESSORS[Postprocess(described["name"])]
        processor = processor_class(**described["settings"]).load_state(arrays)
        fitted = FittedPostProcessor(processor, checked(described["fit"], FitRecord, str(path)))
        # A file without a digest is not checked.
        if described.get("sha256", fitted.digest) != fitted.digest:
            raise ValueError("its content has changed since it was written")
    return fitted


def check_encoder(fitted: FittedPostProcessor, *, dim: int, digest: str, place: str) -> None:
    """Raise CheckpointError unless the post-processor was fitted on this encoder.

    ``dim`` and ``digest`` are those of the encoder; ``place`` names the post-processor in the
    message.
    """
    record = fitted.record
    needed = fitted.processor.n_features_in_
    if dim == needed and digest == record.encoder_digest:
        return
    if is_older_digest(record.encoder_digest, digest):
        raise CheckpointError(f"{place} {OLDER_DIGEST}", hint=_HOW_TO_SAVE)
    problem = "has other weights or another pooler"
    if dim != needed:
        problem = f"gives {dim} dimensions, need {needed}"
    raise CheckpointError(
        f"{place} was fitted on the vectors of {record.encoder}: this encoder {problem}",
        hint=_HOW_TO_SAVE,
    )
