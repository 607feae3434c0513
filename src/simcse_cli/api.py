"""The toolkit in Python: train a model; encode, compare and search sentences with it (``docs/python.md``)."""

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self, overload

import numpy as np
from numpy.typing import NDArray

from simcse_cli.encoding.search_index import Neighbour, SearchIndex, nearest
from simcse_cli.errors import DataError
from simcse_cli.models.checkpoint import load_encoder
from simcse_cli.models.encode import ReadyEncoder, with_use
from simcse_cli.postprocess.unit_rows import unit_rows
from simcse_cli.progress import SilentProgress
from simcse_cli.results.runs import Measured, RunRecord, read_metrics, read_run_record
from simcse_cli.settings.choices import Device, LongTexts, Pooler, Precision, SearchBackend
from simcse_cli.settings.config import TrainConfig, pinned
from simcse_cli.settings.declare import coerce_settings

Texts = str | Sequence[str]
Vectors = NDArray[np.floating[Any]]


class Embedder:
    """A sentence encoder that is ready to use; :meth:`load` returns one.

    Methods take one text or a sequence. The result for one text has no axis for the sequence. An empty text is
    encoded as the special tokens of the model.
    """

    def __init__(self, encoder: ReadyEncoder, *, batch_tokens: int | None = None) -> None:
        self._encoder, self._batch_tokens = encoder, batch_tokens

    @classmethod
    def load(
        cls,
        model: str | Path = "minilm",
        *,
        pooler: Pooler | str | None = None,
        force_pooler: bool = False,
        device: Device | str = Device.AUTO,
        precision: Precision | str = Precision.FP32,
        batch_tokens: int | None = None,
        prompt: str | None = None,
        truncate_dim: int | None = None,
        long: LongTexts | str = LongTexts.CUT,
        revision: str | None = None,
    ) -> Self:
        """Load a model.

        Args:
            model: run folder, Hugging Face or sentence-transformers folder, Hub name or alias.
            pooler: how token states become a vector; default is what the model records.
            force_pooler: use ``pooler`` although the model records another or lacks its weights.
            device: ``auto``, ``cpu``, ``cuda`` or ``mps``.
            precision: arithmetic of the encoder: ``fp32``, ``bf16``, ``fp16`` or ``auto``.
            batch_tokens: tokens per forward pass; default is tuned to the machine.
            prompt: text to put before every input, or the name of one of the model's prompts; default is the
                model's default prompt. ``search`` uses the model's prompts for queries and for documents.
            truncate_dim: number of leading components to keep.
            long: ``cut`` texts beyond the model's length, or take the ``mean`` over their windows.
            revision: branch, tag or commit of a Hub model; default is the newest.

        Raises:
            CheckpointError: the model is not found, broken, or refuses the pooler.
            ConfigError: device, precision, prompt or dimension is not available.

        Example:
            >>> from simcse_cli import load
            >>> encoder = load("minilm")
            >>> float(encoder.similarity("A man plays a guitar.", "Someone makes music."))
        """
        loaded = load_encoder(
            pinned(str(model), revision),
            pooler=pooler,
            force_pooler=force_pooler,
            device=device,
            precision=precision,
            encode_only=True,
            progress=_PythonWarnings(),
        )
        encoder = with_use(loaded, prompt=prompt, truncate_dim=truncate_dim, long=long)
        return cls(encoder, batch_tokens=batch_tokens)

    @property
    def dim(self) -> int:
        """Width of the vectors."""
        return self._encoder.dim

    @property
    def pooler(self) -> Pooler:
        """How token states become a vector."""
        return self._encoder.pooler

    @property
    def digest(self) -> str:
        """SHA-256 of everything that determines the vectors: equal digests give equal vectors."""
        return self._encoder.digest

    @property
    def prompts(self) -> dict[str, str]:
        """The model's prompts by name."""
        return dict(self._encoder.prompts)

    def encode(
        self,
        texts: Texts,
        *,
        normalize: bool = False,
        max_length: int | None = None,
        prompt: str | None = None,
    ) -> NDArray[np.float32]:
        """Return vectors, ``(N, D)`` float32, or ``(D,)`` for one text.

        Args:
            texts: one text or a sequence.
            normalize: scale vectors to length 1.
            max_length: most sub-words per text; the model's own limit is the default and the upper bound.
            prompt: text or name of a prompt, instead of that of :meth:`load`.
        """
        chosen = None if prompt is None else self._encoder.find_prompt(prompt)
        return self._encode(texts, chosen, normalize=normalize, max_length=max_length)

    def _encode(
        self, texts: Texts, prompt: str | None, *, normalize: bool = False, max_length: int | None = None
    ) -> NDArray[np.float32]:
        vectors = self._encoder.encode(
            [texts] if isinstance(texts, str) else texts,
            batch_tokens=self._batch_tokens,
            max_length=max_length,
            normalize=normalize,
            prompt=prompt,
            progress=_PythonWarnings(),
        )
        return vectors[0] if isinstance(texts, str) else vectors

    def similarity(self, a: Texts | Vectors, b: Texts | Vectors) -> NDArray[np.float32]:
        """Return cosines, ``(N, M)``: entry i, j compares ``a[i]`` with ``b[j]``.

        Either side may be texts or vectors of any length. A single text or vector has no axis, so two of them
        give a number, ``()``.
        """
        left, right = (side if isinstance(side, np.ndarray) else self.encode(side) for side in (a, b))
        cosines = unit_rows(np.atleast_2d(left), np.float32) @ unit_rows(np.atleast_2d(right), np.float32).T
        return cosines.clip(-1, 1).reshape(left.shape[:-1] + right.shape[:-1])

    def index(
        self,
        corpus: Sequence[str],
        *,
        backend: SearchBackend | str = SearchBackend.EXACT,
        prompt: str | None = None,
    ) -> SearchIndex:
        """Return an index over texts, to search repeatedly or to save: ``index.save(path)``.

        Args:
            corpus: the texts.
            backend: ``exact`` or ``faiss``.
            prompt: text or name of a prompt; default is the model's for documents, if it has one.
        """
        encoder = self._encoder
        chosen = encoder.document_prompt if prompt is None else encoder.find_prompt(prompt)
        vectors, backend = self._encode(corpus, chosen), SearchBackend(backend)
        return SearchIndex.build(vectors, corpus, backend=backend, info=encoder.facts(chosen))

    @overload  # a str is a sequence of str too: the first signature wins
    def search(  # type: ignore[overload-overlap]
        self, queries: str, corpus: Sequence[str] | SearchIndex, k: int = 10
    ) -> list[Neighbour]: ...

    @overload
    def search(
        self, queries: Sequence[str], corpus: Sequence[str] | SearchIndex, k: int = 10
    ) -> list[list[Neighbour]]: ...

    def search(
        self, queries: Texts, corpus: Sequence[str] | SearchIndex, k: int = 10
    ) -> list[Neighbour] | list[list[Neighbour]]:
        """Return the ``k`` nearest texts of a corpus for each query, best first, by cosine.

        Queries get the prompt given to :meth:`load`, else the model's prompt for queries; for the prompt of a corpus
        see :meth:`index`.

        Args:
            queries: one text (the result is its list) or several (a list for each).
            corpus: texts, or an index of this model over them.
            k: number of results; fewer if the corpus is smaller.

        Raises:
            DataError: the index was made by another model.
        """
        index = corpus if isinstance(corpus, SearchIndex) else self.index(corpus)
        encoder = self._encoder
        if not index.is_made_by(encoder):
            raise DataError(
                f"the index was made by another model than {encoder.name} ({index.info.get('model')})",
                hint="search it with the model that made it, or build it again",
            )
        vectors = self._encode([queries] if isinstance(queries, str) else queries, encoder.query_prompt)
        found = nearest(index, vectors, k)
        return found[0] if isinstance(queries, str) else found


@dataclass(frozen=True)
class FinishedRun:
    """A run folder and its record; ``metrics`` are the dev scores of its steps, fractions."""

    path: Path
    record: RunRecord

    @property
    def metrics(self) -> list[Measured]:
        return read_metrics(self.path / "metrics.jsonl")

    def load(self, **settings: Any) -> Embedder:
        """Load the best model; the settings are those of :meth:`Embedder.load`."""
        return Embedder.load(self.path, **settings)


def train_model(
    output: str | Path,
    *,
    config: str | None = None,
    resume: bool = False,
    force: bool = False,
    on_step: Callable[[int, Any], object] | None = None,
    on_eval: Callable[[int, Any], object] | None = None,
    **settings: Any,
) -> FinishedRun:
    """Train a model: the same run as ``simcse train`` with these settings, bit for bit.

    Args:
        output: the run folder.
        config: YAML file or name of a shipped recipe.
        resume: continue the run in the folder, if there is one.
        force: replace the run in the folder.
        on_step: called with the number of steps done and their ``StepResult``: loss, terms, rate.
        on_eval: called with the number of steps done and the ``DevScore``; 0 steps is the model before training.
        settings: by the names of a recipe, such as ``objective="simcse-sup"`` or ``train_file="nli.csv"``.

    Raises:
        SimcseError: a setting, a file or the model is wrong; raised before anything is written.
    """
    from simcse_cli.training.run import ready_settings, train_run  # takes seconds

    run_dir, progress = Path(output), _PythonWarnings()
    flags = coerce_settings(TrainConfig, settings, place="train")
    ready = ready_settings(flags, config, progress, resumed=run_dir if resume else None)
    record = train_run(ready, run_dir, progress, resume=resume, force=force, on_step=on_step, on_eval=on_eval)
    return FinishedRun(run_dir, record or read_run_record(run_dir))


class _PythonWarnings(SilentProgress):
    """Issues warnings through Python's ``warnings``."""

    def warn(self, message: str) -> None:
        warnings.warn(message, stacklevel=4)
