"""Vectors of length 1 of many texts, for commands that compare texts with each other."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from simcse_cli.arrays import Floats32
from simcse_cli.encoding.job import EncodeJob
from simcse_cli.encoding.sinks import VectorSink
from simcse_cli.models.checkpoint import load_for_encoding
from simcse_cli.models.encode import ReadyEncoder
from simcse_cli.progress import Progress
from simcse_cli.settings.config import ModelOptions

Units = Floats32


def unit_vectors(
    texts: Sequence[str],
    encoder: ReadyEncoder,
    progress: Progress,
    *,
    file: Path | None = None,
    **how: Any,
) -> Units:
    """Return ``(n, D)`` vectors of length 1, in memory, or mapped from ``file`` if it is given.

    If an earlier run has finished ``file``, nothing is computed; a run that was interrupted is
    continued. ``how`` are further arguments of ``encoder.encode``.
    """
    if file is None:
        return encoder.encode(texts, normalize=True, progress=progress, **how)
    if not file.exists():
        job = EncodeJob(texts, partial(encoder.encode, normalize=True, **how), total=len(texts))
        job.run(VectorSink(file, encoder.dim, resume=True), progress)
    units: Units = np.load(file, mmap_mode="r")
    return units


def load_and_encode(
    texts: Sequence[str], options: ModelOptions, progress: Progress
) -> tuple[Units, list[int]]:
    """Encode texts with the model that the options name.

    Return vectors of length 1, ``(n, D)``, and the positions of the texts in which the model knows
    no sub-word.
    """
    encoder = load_for_encoding(options.model, options, progress)
    units = unit_vectors(texts, encoder, progress, batch_tokens=options.batch_tokens)
    # Most often no sub-word is unknown, and the texts need not be read again.
    unknown = encoder.unknown_texts(texts) if encoder.model.tokens.n_unknown else []
    encoder.warn_unread(progress)
    return units, unknown
