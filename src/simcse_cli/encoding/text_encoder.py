"""A loaded model that encodes texts as the options of `encode` say."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from simcse_cli.arrays import Array
from simcse_cli.encoding.options import EncodeOptions
from simcse_cli.files.digests import sha256_file
from simcse_cli.machine.precision import resolve_precision
from simcse_cli.machine.processor import capability
from simcse_cli.models.checkpoint import load_for_encoding
from simcse_cli.models.encode import check_vectors
from simcse_cli.postprocess.registry import check_encoder, load
from simcse_cli.progress import SILENT, Progress
from simcse_cli.settings.choices import Precision
from simcse_cli.settings.declare import recorded


class TextEncoder:
    """A function from texts to vectors, post-processed and normalized as the options say.

    ``dim`` is the width of the vectors. ``settings`` holds everything that the vectors depend on,
    for journals and side files.
    """

    def __init__(self, options: EncodeOptions, progress: Progress) -> None:
        self.model = load_for_encoding(options.model, options, progress)
        if options.max_length is not None:
            place = f"--max-length {options.max_length}"
            self.model.warn_beyond(options.max_length, place, progress)
        self._options = options
        self._fitted = None
        self.dim = self.model.dim
        if options.postprocess is not None:
            self._fitted = load(options.postprocess)
            place = str(options.postprocess)
            check_encoder(self._fitted, dim=self.dim, digest=self.model.digest, place=place)
            self.dim = self._fitted.processor.n_features_out
        self.settings = self._all_settings()

    def __call__(self, texts: Sequence[str], *, progress: Progress = SILENT) -> Array:
        options = self._options
        # With a postprocessor, vectors are normalized after it and not before.
        vectors = self.model.encode(
            texts,
            normalize=options.normalize and self._fitted is None,
            batch_tokens=options.batch_tokens,
            max_length=options.max_length,
            progress=progress,
        )
        if self._fitted is not None:
            vectors = self._fitted.apply(vectors, normalize=options.normalize)
            check_vectors(vectors, texts, str(options.postprocess))
        return vectors

    def _all_settings(self) -> dict[str, Any]:
        """Return the options that are marked ``recorded``, and facts about the model."""
        settings: dict[str, Any] = {
            "model_digest": self.model.digest,
            "pooler": self.model.pooler.value,
        }
        for name, value in recorded(self._options).items():
            if isinstance(value, Path):
                settings[f"{name}_sha256"] = sha256_file(value)
            else:
                settings[name] = value
        device = self.model.device
        precision = resolve_precision(self._options.precision, device)
        settings |= {"precision": precision.value, **self.model.variations}
        if device.type == "cpu" and precision is not Precision.FP32:
            settings["capability"] = capability()  # other processors round differently
        return settings
