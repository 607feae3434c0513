"""The toolkit in Python (``docs/python.md``).

It can train a model, evaluate it, and encode and search sentences with it.
"""

import json
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from numbers import Integral, Real
from os import PathLike
from pathlib import Path
from typing import Any, Self, overload

import numpy as np

from simcse_cli.arrays import AnyFloats, Floats32
from simcse_cli.commands.console import get_console
from simcse_cli.data.writers import manifest_path
from simcse_cli.encoding.search_index import Neighbour, SearchIndex, is_index, nearest
from simcse_cli.errors import ConfigError, DataError, hints_in_python
from simcse_cli.files.inputs import read_json
from simcse_cli.machine import processes
from simcse_cli.machine.devices import resolve_device
from simcse_cli.machine.precision import training_modes
from simcse_cli.machine.rng import kept_rng_state
from simcse_cli.models.checkpoint import load_encoder
from simcse_cli.models.encode import ReadyEncoder, with_use
from simcse_cli.models.tokens import CLEAN_FILE
from simcse_cli.postprocess.unit_rows import unit_rows
from simcse_cli.progress import ProgressTask, SilentProgress
from simcse_cli.results.runs import Measured, RunRecord, read_metrics
from simcse_cli.settings.choices import (
    Device,
    LongTexts,
    OutputFormat,
    Pooler,
    Precision,
    SearchBackend,
)
from simcse_cli.settings.config import TrainConfig, pinned
from simcse_cli.settings.convert import check_switches, convert
from simcse_cli.settings.declare import build_options, coerce_settings

Texts = str | Iterable[str]
Corpus = Iterable[str] | SearchIndex
Vectors = AnyFloats
_HINT_FOR_BYTES = "make texts of bytes with .decode()"
_HINT_FOR_TABLE = "give one column, such as table['text']"


class Embedder:
    """A sentence encoder that is ready to use; :meth:`load` returns one.

    Methods take one text or several: a list, a generator, a column of a data frame. The result for
    one text has no axis for the texts. An empty text is encoded as the special tokens of the model.
    None, NaN and anything else that is no text raises an error that names its position.
    """

    def __init__(self, encoder: ReadyEncoder, *, batch_tokens: int | None = None) -> None:
        self._encoder = encoder
        self._batch_tokens = batch_tokens

    @classmethod
    def load(
        cls,
        model: str | Path = "minilm",
        *,
        pooler: Pooler | str | None = None,
        template: str | None = None,
        force_pooler: bool = False,
        device: str = Device.AUTO,
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
            template: words around each text for the pooler ``mask``, with ``{}`` for the text and
                ``{mask}`` for the mask token; default is what the model records.
            force_pooler: use ``pooler`` although the model records another or lacks its weights.
            device: ``auto``, ``cpu``, ``cuda``, ``cuda:N`` for the GPU of this number, or ``mps``.
            precision: arithmetic of the encoder: ``fp32``, ``bf16``, ``auto`` (bf16 if the device
                is fast at it, else fp32), ``fp16`` or ``tf32`` (GPU), or ``int8`` (x86 processor).
            batch_tokens: tokens per forward pass; default is tuned to the machine.
            prompt: text to put before every input, or the name of one of the model's prompts;
                default is the model's default prompt. ``search`` uses the model's prompts for
                queries and for documents.
            truncate_dim: number of leading components to keep.
            long: ``cut`` texts that are too long for the model, or take the ``mean`` of the
                vectors of their parts.
            revision: branch, tag or commit of a Hub model; default is the newest.

        Raises:
            CheckpointError: the model is not found, is broken, or refuses the pooler.
            ConfigError: the device, precision, prompt or dimension is not available.

        Example:
            >>> from simcse_cli import load
            >>> encoder = load("minilm")
            >>> float(encoder.similarity("A man plays a guitar.", "Someone makes music."))
        """
        check_number("batch_tokens", batch_tokens)
        check_number("truncate_dim", truncate_dim)
        _check_texts(template=template, prompt=prompt, revision=revision)
        check_switches(force_pooler=force_pooler)
        pooler = convert(pooler, Pooler | None, "pooler")
        precision = convert(precision, Precision, "precision")
        long = convert(long, LongTexts, "long")
        with hints_in_python(("--force-pooler", "force_pooler=True")):
            loaded = load_encoder(
                pinned(_name_of(model), revision),
                pooler=pooler,
                template=template,
                force_pooler=force_pooler,
                device=device,
                precision=precision,
                encode_only=True,
                progress=_PythonWarnings(),
            )
        encoder = with_use(loaded, prompt=prompt, truncate_dim=truncate_dim, long=long)
        return cls(encoder, batch_tokens=batch_tokens)

    def __repr__(self) -> str:
        return f"Embedder({self._encoder.name!r}, pooler={self.pooler.value!r}, dim={self.dim})"

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
        batch_size: int | None = None,
        show_progress_bar: bool = False,
        normalize_embeddings: bool = False,
    ) -> Floats32:
        """Return vectors, ``(N, D)`` float32, or ``(D,)`` for one text.

        Args:
            texts: one text or several.
            normalize: scale vectors to length 1.
            max_length: most sub-words per text; the limit of the model is the default and the upper
                bound.
            prompt: text or name of a prompt; default is the prompt that :meth:`load` has set.
            batch_size: number of texts in a forward pass if all have the greatest length; if they
                are shorter, a pass holds more. It replaces the ``batch_tokens`` of :meth:`load`.
            show_progress_bar: show progress on stderr.
            normalize_embeddings: the name of ``normalize`` in sentence-transformers.
        """
        check_number("batch_size", batch_size)
        check_number("max_length", max_length, least=3)  # a sub-word between two special tokens
        _check_texts(prompt=prompt)
        check_switches(normalize=normalize, normalize_embeddings=normalize_embeddings)
        if prompt is not None:
            prompt = self._encoder.find_prompt(prompt)
        progress = _PythonWarnings(is_shown=show_progress_bar)
        if max_length is not None:
            self._encoder.warn_beyond(max_length, f"max_length={max_length}", progress)
        batch_tokens = self._batch_tokens
        if batch_size is not None:
            batch_tokens = batch_size * (max_length or self._encoder.model.tokens.max_length)
        return self._encode(
            texts,
            prompt,
            normalize=normalize or normalize_embeddings,
            max_length=max_length,
            batch_tokens=batch_tokens,
            progress=progress,
        )

    def _encode(self, texts: Texts, prompt: str | None, **settings: Any) -> Floats32:
        # The settings of this embedder apply unless the caller gives others.
        settings.setdefault("batch_tokens", self._batch_tokens)
        settings.setdefault("progress", _PythonWarnings())
        with hints_in_python((CLEAN_FILE, "give text.encode(errors='replace').decode()")):
            vectors = self._encoder.encode(_list_of(texts), prompt=prompt, **settings)
        return vectors[0] if isinstance(texts, str) else vectors

    def similarity(self, a: Texts | Vectors, b: Texts | Vectors) -> Floats32:
        """Return cosines, ``(N, M)``: entry i, j compares ``a[i]`` with ``b[j]``.

        Each side is texts, or vectors of any norm. A single text or vector has no axis in the
        result, so two single texts give one number of the shape ``()``.
        """
        left = self._vectors(a)
        right = self._vectors(b)
        if left.shape[-1] != right.shape[-1]:
            what = f"similarity: vectors of {left.shape[-1]} and of {right.shape[-1]} components"
            raise DataError(what, hint="give vectors of one model")
        rows = unit_rows(np.atleast_2d(left), np.float32)
        columns = unit_rows(np.atleast_2d(right), np.float32)
        cosines = rows @ columns.T
        # Rounding may lead beyond 1. The reshape drops the axis of a single text or vector.
        return cosines.clip(-1, 1).reshape(left.shape[:-1] + right.shape[:-1])

    def _vectors(self, side: Texts | Vectors) -> Vectors:
        if not isinstance(side, np.ndarray) or _may_hold_texts(side):
            _require_no_vectors(side)
            return self.encode(side)
        if side.ndim not in (1, 2) or side.dtype.kind not in "fiub":
            raise DataError(
                f"similarity: found an array of {side.dtype} of shape {side.shape}, need texts or "
                "vectors of real numbers",
                hint="give an array of one vector, (D,), or of several, (N, D)",
            )
        return side

    def index(
        self,
        corpus: Iterable[str],
        *,
        backend: SearchBackend | str = "exact",
        prompt: str | None = None,
    ) -> SearchIndex:
        """Return an index over texts, to search several times or to save with ``index.save(path)``.

        Args:
            corpus: the texts.
            backend: ``exact`` or ``faiss``.
            prompt: text or name of a prompt; default is the model's prompt for documents, if any.
        """
        _check_texts(prompt=prompt)
        kind = convert(backend, SearchBackend, "backend")
        encoder = self._encoder
        document_prompt = encoder.document_prompt(prompt)
        texts = _list_of(corpus)
        vectors = self._encode(texts, document_prompt)
        facts = encoder.facts(document_prompt)
        return SearchIndex.build(vectors, texts, backend=kind, info=facts)

    @overload  # a str also fits the second signature, but the first one wins
    def search(  # type: ignore[overload-overlap]
        self, queries: str, corpus: Corpus, k: int = 10, *, keep_identical: bool = False
    ) -> list[Neighbour]: ...

    @overload
    def search(
        self, queries: Iterable[str], corpus: Corpus, k: int = 10, *, keep_identical: bool = False
    ) -> list[list[Neighbour]]: ...

    def search(
        self, queries: Texts, corpus: Corpus, k: int = 10, *, keep_identical: bool = False
    ) -> list[Neighbour] | list[list[Neighbour]]:
        """Return the ``k`` nearest texts of a corpus for each query by cosine, the nearest first.

        Queries get the prompt that :meth:`load` has set, else the model's prompt for queries. Texts
        of a corpus get the model's prompt for documents; an index already has its vectors.

        Args:
            queries: one text, which gives one list of results, or several, which give a list each.
            corpus: texts, or an index that was made with this model.
            k: number of results; there are fewer if the corpus is smaller.
            keep_identical: keep texts equal to the query among the results; by default they are
                left out, as ``simcse analyze search`` does.
        """
        check_number("k", k)
        check_switches(keep_identical=keep_identical)
        if _is_index_file(corpus):
            raise DataError(
                f"{corpus} is the file of an index, need texts or an opened index",
                hint=f"give SearchIndex.load({str(corpus)!r})",
            )
        if not isinstance(corpus, SearchIndex):
            corpus = self.index(corpus)
        encoder = self._encoder
        corpus.require_made_by(encoder)
        texts = _list_of(queries)
        vectors = self._encode(texts, encoder.query_prompt)
        # Texts equal to the query are left out only if the search gets the queries as texts.
        query_texts = None if keep_identical else texts
        neighbours = nearest(corpus, vectors, k, query_texts)
        return neighbours[0] if isinstance(queries, str) else neighbours


class BatchEncoder:
    """Add a column of vectors to a batch of columns; made for ``map_batches`` of Ray Data.

    Each actor of Ray loads the model once. The last bits of a vector depend on the other texts of
    its batch.

    Args:
        model: run folder, model folder, Hub name or alias; a folder must exist on every machine.
        column: name of the column of texts.
        to: name of the column for the vectors, ``(N, D)`` float32.
        normalize: scale vectors to length 1.
        settings: the other arguments of :meth:`Embedder.load`.

    Example:
        >>> texts = ray.data.read_parquet("texts")
        >>> how = {"fn_constructor_args": ("minilm",), "concurrency": 2}
        >>> texts.map_batches(BatchEncoder, **how).write_parquet("vectors")
    """

    def __init__(
        self,
        model: str | Path = "minilm",
        *,
        column: str = "text",
        to: str = "vector",
        normalize: bool = False,
        **settings: Any,
    ) -> None:
        check_switches(normalize=normalize)
        self._column = column
        self._to = to
        self._normalize = normalize
        self._embedder = Embedder.load(model, **settings)

    def __call__(self, batch: Mapping[str, Any]) -> dict[str, Any]:
        if self._column not in batch:
            what = f"a batch has the columns {', '.join(batch)}, need {self._column}"
            raise DataError(what, hint="give column=NAME")
        vectors = self._embedder.encode(batch[self._column], normalize=self._normalize)
        return {**batch, self._to: vectors}


# What to give in Python in place of a name that is no setting of a run: an option of
# ``simcse train``, or a name from other libraries.
_HINT_OF_OPTION = {
    "mode": 'give objective="simcse-unsup" or objective="simcse-sup"',
    "seeds": "call train for each seed: seed=1",
    "set": 'give options={"NAME": VALUE}',
    "learning_rate": "give lr=3e-5, for example",
    "mlm_weight": 'give options={"mlm_weight": X}',
    "dual_encoder": 'give options={"dual_encoder": True}',
}


@dataclass(frozen=True)
class FinishedRun:
    """A run folder and its record; ``metrics`` has what was measured at each logged step.

    ``path`` is absolute, so it stays valid when the program changes its current folder.
    """

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

    The random generators of the caller keep their state.

    Args:
        output: the run folder.
        config: YAML file or name of a shipped recipe.
        resume: continue the run in the folder, if there is one.
        force: replace the run in the folder.
        on_step: called with the number of steps done and the ``StepResult`` of the last one: loss,
            terms and learning rate.
        on_eval: called with the number of steps done (0 before training) and the ``DevScore``.
        settings: by the keys of a recipe, such as ``objective="simcse-sup"`` or
            ``train_file="nli.csv"``; ``objective`` may also be a class derived from
            ``simcse_cli.Objective``.
    """
    from simcse_cli.objectives.registry import register_objective  # takes seconds
    from simcse_cli.settings.recipes import refuse_options, telling_sources
    from simcse_cli.training.run import ready_settings, train_run

    if isinstance(settings.get("objective"), type):
        settings["objective"] = register_objective(settings["objective"])
    if callable(augment := settings.get("augment")):
        name = getattr(augment, "__name__", "NAME")
        raise ConfigError(
            f"train: augment is {_kind_of(augment)} ({name}), need the name of a method or of a "
            "function in a file",
            hint=f'write the function into a file, and augment="FILE.py:{name}"',
        )
    refuse_options(settings, _HINT_OF_OPTION, place="train")
    check_switches(resume=resume, force=force)
    for name, function in (("on_step", on_step), ("on_eval", on_eval)):
        if function is not None and not callable(function):
            problem = f"train: {name} is {_kind_of(function)}, need a function"
            raise ConfigError(problem, hint=f"give {name}=print, for example")
    run_dir = Path(_path_text(output, "output", "runs/mine"))
    folder = run_dir.absolute()
    progress = _PythonWarnings()
    flags = coerce_settings(TrainConfig, settings, place="train")
    with telling_sources(config, flags):
        ready = ready_settings(flags, config, progress, resumed=run_dir if resume else None)
        in_python = hints_in_python(
            (f"`simcse train -o {run_dir} --resume`", "resume=True"), (" with -o", "")
        )
        device = resolve_device(ready.device)
        with in_python, kept_rng_state(device), training_modes(device):
            record = train_run(
                ready,
                run_dir,
                progress,
                resume=resume,
                force=force,
                on_step=on_step,
                on_eval=on_eval,
            )
    # Only the first of several processes has the record, and sends it once the folder is complete.
    records = filter(None, processes.exchange(record))
    return FinishedRun(folder, next(records))


def evaluate(
    model: str | Path, suite: str = "sts", *, force: bool = False, **settings: Any
) -> dict[str, Any]:
    """Score a model and return what ``simcse eval SUITE --format json`` prints.

    Args:
        model: what :meth:`Embedder.load` takes; for a run, the result is also kept in its folder.
        suite: ``sts``, ``transfer`` or ``mteb``.
        force: overwrite the output files that the settings name.
        settings: by the names of the options, such as ``data_dir="senteval"`` or
            ``pair_file="dev.csv"``; ``tasks`` may also be a list of names.
    """
    from simcse_cli.evaluation import eval_sts, mteb, options, transfer  # takes seconds
    from simcse_cli.evaluation.several import evaluate_each_seed

    check_switches(force=force)
    suites: dict[str, tuple[Callable[..., Any], type]] = {
        "sts": (eval_sts.eval_sts, options.StsOptions),
        "transfer": (transfer.eval_transfer, options.TransferOptions),
        "mteb": (mteb.eval_mteb, options.MtebOptions),
    }
    if suite not in suites:
        raise ConfigError(f"evaluate: suite {suite!r}, need one of {', '.join(suites)}")
    score, suite_options = suites[suite]
    progress = _PythonWarnings()
    given = {"model": _name_of(model)} | settings
    if isinstance(given.get("tasks"), list | tuple):
        given["tasks"] = ",".join(map(str, given["tasks"]))
    place = f"evaluate {suite}"
    encoder, suite_settings = build_options(
        given, options.EncoderOptions, suite_options, place=place
    )

    evaluate_one = partial(score, progress=progress, force=force)
    with hints_in_python():
        outcome = evaluate_each_seed(evaluate_one, encoder, suite_settings, progress)
    # There is no result if the settings only ask for the sentences to be written.
    return {} if outcome is None else dict(json.loads(outcome.text(OutputFormat.JSON)))


def mine_hard_negatives(
    inputs: str | Path | Sequence[str | Path], output: str | Path, **settings: Any
) -> dict[str, Any]:
    """Add hard negatives to pairs: the same file as ``simcse prepare hard-negatives`` writes.

    Args:
        inputs: files of pairs.
        output: the file of triplets (.csv, .tsv or .jsonl).
        settings: by the names of the options, such as ``model="minilm"``, ``margin=0.1`` or
            ``per_anchor=3``.

    Returns:
        The manifest of the file: settings, digests, and the counts of rows and of pairs without a
        negative.
    """
    from simcse_cli.prepare.mining import prepare_hard_negatives  # takes seconds
    from simcse_cli.prepare.options import HardNegativeOptions
    from simcse_cli.prepare.rows import RowWriter

    check_switches(force=settings.get("force", False))
    given = {"output": output} | settings
    (options,) = build_options(given, HardNegativeOptions, place="mine_hard_negatives")
    if isinstance(inputs, str | Path):
        inputs = [inputs]
    writer = RowWriter(options, _PythonWarnings())
    with hints_in_python():
        prepare_hard_negatives(list(map(str, inputs)), options, writer)
    return dict(read_json(manifest_path(output), dict[str, Any]))


def _list_of(texts: Texts) -> list[str]:
    """Return the texts as a list; raise DataError if an item is no text."""
    if isinstance(texts, str):
        return [texts]
    kind = _kind_of(texts)
    if isinstance(texts, bytes):
        raise DataError(f"need a text or several, found {kind}", hint=_HINT_FOR_BYTES)
    # Iterating over a mapping or a data frame gives its keys or names of columns, not texts.
    if isinstance(texts, Mapping) or hasattr(texts, "columns"):
        raise DataError(f"need texts, found {kind}", hint=_HINT_FOR_TABLE)
    if isinstance(texts, set | frozenset):
        problem = f"need texts in an order, as row i is of text i, found {kind}"
        raise DataError(problem, hint="give a list, such as sorted(texts)")
    # An array of no dimension cannot be iterated over, although its type can.
    if not isinstance(texts, Iterable) or getattr(texts, "ndim", 1) == 0:
        problem = f"need a text or several, found {kind}"
        raise DataError(problem, hint="give a text, or a list of texts")
    # The items of a column of pyarrow are objects of its own.
    items = texts.to_pylist() if hasattr(texts, "to_pylist") else list(texts)
    for position, item in enumerate(items):
        if not isinstance(item, str):
            raise _not_a_text(f"texts[{position}]", item)
    return items


def _is_index_file(corpus: Any) -> bool:
    """Tell whether a corpus is the path of a search index."""
    if isinstance(corpus, str | PathLike):
        with suppress(OSError):  # a text may be too long for a path
            return is_index(str(corpus))
    return False


def _not_a_text(place: str, value: Any) -> DataError:
    """Return the error for a value that is no text."""
    hint = "leave it out, or give '' for an empty text"
    if isinstance(value, np.ndarray | np.floating):
        hint = "give the texts themselves; only `similarity` takes vectors"
    if isinstance(value, tuple | list) or _may_hold_texts(value):
        hint = "encode both sides of pairs on their own"
    if isinstance(value, Mapping):
        hint = _HINT_FOR_TABLE
    if isinstance(value, bytes):
        hint = _HINT_FOR_BYTES
    return DataError(f"{place} is {_kind_of(value)} ({str(value)[:40]}), need a text", hint=hint)


def _require_no_vectors(side: Any) -> None:
    """Raise DataError for vectors in anything but a NumPy array of numbers."""
    hint = ""
    if hasattr(side, "numpy"):  # a tensor
        hint = "give vectors.numpy()"
    items = side.tolist() if isinstance(side, np.ndarray) else side
    if isinstance(items, list | tuple) and items and _is_vector(items[0]):
        hint = "give np.array(list(vectors), dtype=float)"
    if hint:
        problem = f"similarity: found {_kind_of(side)}, need texts or a NumPy array of vectors"
        raise DataError(problem, hint=hint)


def _may_hold_texts(value: Any) -> bool:
    """Tell whether a value is a NumPy array of texts, of bytes or of objects."""
    return isinstance(value, np.ndarray) and value.dtype.kind in "USO"


def _is_vector(value: Any) -> bool:
    """Tell whether an item of a list is a vector, or a component of one."""
    if isinstance(value, list | tuple) and value:
        value = value[0]
    if isinstance(value, str | bytes):  # those of NumPy have `ndim`, too
        return False
    return hasattr(value, "ndim") or (isinstance(value, Real) and not _is_missing(value))


def _kind_of(value: Any) -> str:
    """Return the type of a value with its article, such as ``an int``."""
    name = type(value).__name__
    if _is_missing(value):
        return "a missing value"
    if isinstance(value, bytes):
        return name  # a plural
    return f"an {name}" if name[0].lower() in "aeiou" else f"a {name}"


def _name_of(model: str | Path) -> str:
    """Return the name or folder of a model as a text; raise ConfigError for anything else."""
    return _path_text(model, "model", "minilm", needed="a folder or a name")


def _path_text(value: Any, name: str, example: str, *, needed: str = "a folder") -> str:
    """Return the argument ``name`` as a text; raise ConfigError unless it is a text or path."""
    if not isinstance(value, str | PathLike):
        raise ConfigError(
            f"{name} is {_kind_of(value)} ({str(value)[:40]}), need {needed}",
            hint=f'give one, such as "{example}"',
        )
    return str(value)


def _is_missing(value: Any) -> bool:
    """Tell whether a value is None, NaN, or the missing value of pandas.

    The missing values of pandas are recognised by the names of their types, since importing pandas
    takes long.
    """
    if value is None or type(value).__name__ in ("NAType", "NaTType"):
        return True
    # NaN is the only number that differs from itself.
    return isinstance(value, Real) and bool(value != value)


def check_number(name: str, value: Any, least: int = 1) -> None:
    """Raise ConfigError if an argument is no whole number, or below ``least``; None is allowed."""
    if value is None:
        return
    if isinstance(value, bool) or not isinstance(value, Integral) or value < least:
        raise ConfigError(f"{name}={value!r}: need a whole number of at least {least}")


def _check_texts(**texts: Any) -> None:
    """Raise ConfigError for an argument that is no text; None is allowed."""
    for name, value in texts.items():
        if not isinstance(value, str | None):
            raise ConfigError(f"{name}={value!r}: need a text")


class _PythonWarnings(SilentProgress):
    """Warns through Python's module ``warnings``; shows progress on the console if ``is_shown``."""

    def __init__(self, *, is_shown: bool = False) -> None:
        super().__init__()
        self._is_shown = is_shown

    @contextmanager
    def task(self, description: str, total: float | None = None) -> Iterator[ProgressTask]:
        open_task = get_console().task if self._is_shown else super().task
        with open_task(description, total) as task:
            yield task

    def warn(self, message: str) -> None:
        # Level 4 is the user's line; levels 1 to 3 are this method, the function that warns, and a
        # public function.
        warnings.warn(message, stacklevel=4)
