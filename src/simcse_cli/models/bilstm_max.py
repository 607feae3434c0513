"""InferSent, a BiLSTM over word vectors with max pooling.

Nothing in a pickled checkpoint is executed.
"""

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from simcse_cli.arrays import Floats32
from simcse_cli.errors import CheckpointError
from simcse_cli.files.digests import digest, sha256_file
from simcse_cli.files.inputs import require_file
from simcse_cli.files.schema import foreign_format
from simcse_cli.models.word_vectors import WordVectors
from simcse_cli.progress import SILENT, Progress

MARKERS = {1: ("<s>", "</s>"), 2: ("<p>", "</p>")}
"""Words before and after each sentence; version 1 uses GloVe, version 2 fastText."""

_BATCH_SENTENCES = 64
_CHECKPOINT_HINT = (
    "need the state dict of an InferSent BiLSTM: infersent1.pkl, infersent2.pkl, "
    "or the same as safetensors"
)

_VECTORS_HINT = "version 1 goes with glove.840B.300d.txt, version 2 with crawl-300d-2M.vec"


class BiLstmMax:
    """InferSent sentence vectors, ``(N, 2 * hidden)`` float32.

    Source: Conneau et al. 2017 and facebookresearch/InferSent. A sentence is split at white space
    and put between two words of ``MARKERS``; words without a vector are skipped. Each dimension is
    the maximum of the BiLSTM's output over the tokens.

    In version 1, the zeros of the padding take part in the maximum, so no value is negative. The
    original code pads all but the longest sentences of a batch. Here, every sentence counts as
    padded, so its vector does not depend on the batch.

    The model is of version 2 if ``vectors`` has the markers of that version, else of version 1.

    Args:
        checkpoint: a state dict with ``enc_lstm.*``; pickles are read with the weights-only loader.
        vectors: those of the words.
    """

    def __init__(self, checkpoint: Path | str, vectors: WordVectors) -> None:
        self._path = require_file(checkpoint)
        self.name = self._path.name
        self.vectors = vectors
        self.version = 2 if all(marker in vectors for marker in MARKERS[2]) else 1
        self.lstm = _lstm_from(_read_state(self._path), self._path)
        self.dim = 2 * self.lstm.hidden_size
        if self.lstm.input_size != vectors.dim:
            raise CheckpointError(
                f"{vectors.path} has {vectors.dim} dimensions, {checkpoint} needs "
                f"{self.lstm.input_size}",
                hint=_VECTORS_HINT,
            )
        missing = [marker for marker in MARKERS[self.version] if marker not in vectors]
        if missing:
            raise CheckpointError(
                f"{vectors.path} has no {' and '.join(missing)}, which InferSent "
                f"{self.version} needs",
                hint=_VECTORS_HINT,
            )

    @cached_property
    def digest(self) -> str:
        """SHA-256 over checkpoint, word vectors and version."""
        return digest(sha256_file(self._path), sha256_file(self.vectors.path), str(self.version))

    def encode(self, sentences: Sequence[str], *, progress: Progress = SILENT) -> Floats32:
        """Return the vectors of the sentences, ``(N, 2 * hidden)``."""
        begin, end = MARKERS[self.version]
        tokens: list[list[str]] = []
        for sentence in sentences:
            words = (begin, *sentence.split(), end)
            tokens.append([word for word in words if word in self.vectors])
        self.vectors.load([token for row in tokens for token in row])
        # A packed sequence of PyTorch has its longest sentence first.
        order = sorted(range(len(tokens)), key=lambda i: -len(tokens[i]))
        encoded = np.empty((len(tokens), self.dim), dtype=np.float32)
        with progress.task("encoding", total=len(tokens)) as task, torch.inference_mode():
            for start in range(0, len(order), _BATCH_SENTENCES):
                batch = order[start : start + _BATCH_SENTENCES]
                encoded[batch] = self._encode_batch([tokens[i] for i in batch]).numpy()
                task.advance(len(batch))
        return encoded

    def _encode_batch(self, batch: list[list[str]]) -> Tensor:
        """Return ``(B, 2 * hidden)`` for sentences sorted from long to short."""
        lengths = torch.tensor([len(tokens) for tokens in batch])
        padded = torch.zeros(len(batch), int(lengths[0]), self.vectors.dim)
        for row, tokens in zip(padded, batch, strict=True):
            vectors = np.stack([self.vectors[token] for token in tokens])
            row[: len(tokens)] = torch.from_numpy(vectors)
        packed, _ = self.lstm(pack_padded_sequence(padded, lengths, batch_first=True))
        hidden, _ = pad_packed_sequence(packed, batch_first=True, padding_value=float("-inf"))
        maximum: Tensor = hidden.amax(dim=1)
        if self.version == 1:  # its maximum includes a zero of padding
            return maximum.clamp(min=0)
        return maximum


def _read_state(path: Path) -> dict[str, Tensor]:
    """Return the state dict in a file, without executing anything in it."""
    with foreign_format(path, "weights alone", error=CheckpointError, hint=_CHECKPOINT_HINT):
        if path.suffix == ".safetensors":
            state = load_file(path)
        else:
            state = torch.load(path, map_location="cpu", weights_only=True)
    if not isinstance(state, dict) or not all(
        isinstance(value, Tensor) for value in state.values()
    ):
        raise CheckpointError(f"{path} holds no state dict", hint=_CHECKPOINT_HINT)
    if not all(tensor.isfinite().all() for tensor in state.values()):
        raise CheckpointError(f"{path} holds weights that are not finite", hint=_CHECKPOINT_HINT)
    return state


def _lstm_from(state: dict[str, Tensor], path: Path) -> nn.LSTM:
    """Return the BiLSTM of a state dict, whose ``weight_ih_l0`` has rows for four gates."""
    weights: dict[str, Tensor] = {}
    for name, value in state.items():
        if "enc_lstm." in name:
            weights[name.removeprefix("enc_lstm.")] = value
    if "weight_ih_l0" not in weights or weights["weight_ih_l0"].ndim != 2:
        raise CheckpointError(f"{path} holds no enc_lstm.weight_ih_l0", hint=_CHECKPOINT_HINT)
    n_gate_rows, n_inputs = weights["weight_ih_l0"].shape
    lstm = nn.LSTM(n_inputs, n_gate_rows // 4, batch_first=True, bidirectional=True)
    try:
        lstm.load_state_dict(weights)
    except RuntimeError as error:
        raise CheckpointError(f"{path} is not a one-layer BiLSTM", hint=_CHECKPOINT_HINT) from error
    return lstm.eval()
