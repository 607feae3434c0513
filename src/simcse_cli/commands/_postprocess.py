"""`--postprocess` and `--fit`: what they ask for, and an encoder with it applied."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from simcse_cli.choices import Postprocess
from simcse_cli.commands._encoders import OpenEncoder
from simcse_cli.console import Console
from simcse_cli.evaluation.options import EncoderOptions
from simcse_cli.files import check_output, require_file

if TYPE_CHECKING:
    from simcse_cli.evaluation.embedding_cache import Encode
    from simcse_cli.evaluation.fitting import Example
    from simcse_cli.models.encoder import SentenceEncoder
    from simcse_cli.postprocess.registry import FittedPostProcessor

NLI, TARGET = "nli", "target"

_NUMBER_SETS = {
    Postprocess.WHITENING: "k",
    Postprocess.FLOW: "epochs",
    Postprocess.ALL_BUT_THE_TOP: "n_directions",
    Postprocess.SIF: "n_directions",
}
"""Which setting the number after the name of a post-processor is."""


@dataclass(frozen=True)
class PostprocessPlan:
    """A saved post-processor to load, or a new one to fit.

    Attributes:
        label: how tables call it.
        saved: its file, or None.
        name: of a new one.
        settings: of a new one.
        source: ``nli``, ``target`` or a file; empty for a saved one.
    """

    label: str
    saved: Path | None = None
    name: Postprocess = Postprocess.WHITENING
    settings: dict[str, Any] | None = None
    source: str = ""

    @property
    def is_per_task(self) -> bool:
        """Whether each task has a post-processor of its own."""
        return self.source == TARGET


def plan_postprocess(options: EncoderOptions, *, force: bool) -> PostprocessPlan | None:
    """Return what is to be done to the vectors, or None; all checks come before anything slow.

    Raises:
        typer.BadParameter: unknown name, or an option missing or too much.
        DataError: the file to fit on does not exist.
        OutputError: the file to save exists already (without ``force``).
    """
    if options.postprocess is None:
        for flag, value in (("--fit", options.fit), ("--save-postprocess", options.save_postprocess)):
            if value is not None:
                raise typer.BadParameter(f"needs --postprocess, for example {_EXAMPLE}", param_hint=flag)
        return None
    name, _, number = options.postprocess.partition(":")
    if name not in list(Postprocess):
        return _plan_saved(Path(options.postprocess), options)
    if options.fit is None:
        raise typer.BadParameter(
            f"{name} needs --fit nli, --fit target or --fit FILE", param_hint="--postprocess"
        )
    if options.save_postprocess is not None:
        check_output(options.save_postprocess, force=force)
    if options.fit not in (NLI, TARGET):
        require_file(options.fit, hint="--fit takes nli, target or a file of sentences or pairs")
    settings: dict[str, Any] = {"seed": options.fit_seed} if name == Postprocess.FLOW else {}
    if number:
        settings[_NUMBER_SETS[Postprocess(name)]] = _whole_number(number, options.postprocess)
    label = f"{options.postprocess} ({Path(options.fit).name})"
    return PostprocessPlan(label, None, Postprocess(name), settings, options.fit)


def with_postprocess(
    encoder: OpenEncoder,
    plan: PostprocessPlan | None,
    options: EncoderOptions,
    data_dir: Path,
    console: Console,
    *,
    force: bool = False,
) -> OpenEncoder:
    """Return the encoder with a post-processor that is the same for all tasks.

    Raises:
        typer.BadParameter: the plan has one for each task.
        DataError: the sentences to fit on cannot be read.
        CheckpointError: the saved one belongs to another encoder.
    """
    if plan is None:
        return encoder
    if plan.is_per_task:
        raise typer.BadParameter(
            "target is for `simcse eval sts`; use --fit nli or --fit FILE here", param_hint="--fit"
        )
    if plan.saved is not None:
        from simcse_cli.postprocess.registry import load

        return encoder.then(load(plan.saved), plan.label)
    from simcse_cli.evaluation.fitting import file_examples, nli_examples

    examples = nli_examples(data_dir, console) if plan.source == NLI else file_examples(plan.source)
    fitted = _fit(encoder, plan, examples, options, console)
    if options.save_postprocess is not None:
        from simcse_cli.postprocess.registry import save

        save(fitted, options.save_postprocess, force=force)
        console.info(f"wrote {options.save_postprocess}")
    return encoder.then(fitted, plan.label)


def with_saved_postprocess(
    encode: Callable[..., Any], encoder: "SentenceEncoder", path: Path, *, normalize: bool
) -> tuple[Callable[..., Any], int]:
    """Return an encode function that applies a saved post-processor, and the dimension of its vectors.

    Args:
        encode: gives the vectors of ``encoder`` as they are.
        encoder: what the post-processor must have been fitted on.
        path: file of the post-processor.
        normalize: scale the processed vectors to length 1; zero vectors stay zero.

    Raises:
        DataError: no such file.
        CheckpointError: not a post-processor, or fitted on another encoder.
    """
    from simcse_cli.postprocess.registry import check_encoder, load

    fitted = load(path)
    check_encoder(fitted, dim=encoder.dim, digest=encoder.digest, place=str(path))

    def encode_and_apply(sentences: Sequence[str], **options: Any) -> Any:
        return fitted.apply(encode(sentences, **options), normalize=normalize)

    return encode_and_apply, fitted.processor.n_features_out


def per_task_postprocess(
    encoder: OpenEncoder, plan: PostprocessPlan, options: EncoderOptions, data_dir: Path, console: Console
) -> Callable[[str], "Encode"]:
    """Return a function from an STS task to an encode function fitted on its pairs.

    Every sentence is encoded once, however many tasks and fits use it.

    Raises:
        typer.BadParameter: a file to save is named, but there is one post-processor for each task.
    """
    if options.save_postprocess is not None:
        raise typer.BadParameter(
            "--fit target fits one for each task, so there is none to save; use --fit nli or --fit FILE",
            param_hint="--save-postprocess",
        )
    from simcse_cli.evaluation.embedding_cache import memoize
    from simcse_cli.evaluation.fitting import target_examples

    shared = replace(encoder, encode=memoize(encoder.encode))

    def for_task(task: str) -> "Encode":
        fitted = _fit(shared, plan, target_examples(data_dir, task), options, console)
        return shared.then(fitted, plan.label).encode

    return for_task


def per_task_name(encoder: OpenEncoder, plan: PostprocessPlan) -> OpenEncoder:
    """Return the encoder as results call it when each task has a post-processor of its own."""
    described = {"name": str(plan.name), "settings": plan.settings, "fit": {"source": plan.source}}
    return replace(encoder, name=f"{encoder.name} + {plan.label}", postprocess=described)


def _fit(
    encoder: OpenEncoder,
    plan: PostprocessPlan,
    examples: "Sequence[Example]",
    options: EncoderOptions,
    console: Console,
) -> "FittedPostProcessor":
    from simcse_cli.evaluation.fitting import fit_postprocessor, sample_examples
    from simcse_cli.postprocess.registry import create

    return fit_postprocessor(
        create(plan.name, **(plan.settings or {})),
        encoder.encode,
        sample_examples(examples, options.fit_sample, options.fit_seed),
        encoder=encoder.name,
        encoder_digest=encoder.digest,
        source=plan.source,
        progress=console,
    )


def _plan_saved(path: Path, options: EncoderOptions) -> PostprocessPlan:
    if not path.exists():
        raise typer.BadParameter(
            f"{path} is neither a file nor one of {', '.join(Postprocess)}", param_hint="--postprocess"
        )
    if options.fit is not None or options.save_postprocess is not None:
        raise typer.BadParameter(
            f"{path} is fitted already; leave out --fit and --save-postprocess", param_hint="--postprocess"
        )
    return PostprocessPlan(path.name, path)


def _whole_number(text: str, place: str) -> int:
    if not text.isdecimal():
        raise typer.BadParameter(f"{place}: {text!r} is not a whole number", param_hint="--postprocess")
    return int(text)


_EXAMPLE = "--postprocess whitening --fit nli"
