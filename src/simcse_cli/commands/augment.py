"""The `augment` command: sentences to ``anchor,positive`` rows."""

from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from simcse_cli.choices import Augmentation, Device, Sides, TextUnit
from simcse_cli.commands.options import DeviceOption, ForceOption, SeedOption
from simcse_cli.console import get_console
from simcse_cli.errors import ConfigError, DataError
from simcse_cli.files import STDIO, check_output
from simcse_cli.report import DiffRow

if TYPE_CHECKING:
    from simcse_cli.augment.augment_file import AugmentCounts, AugmentJob, Rewriter


_UNSPACED_SHARE = 0.01  # above this share of the lines, text without spaces is worth a warning


def register(app: typer.Typer) -> None:
    """Add `augment` to the application."""
    app.command("augment", no_args_is_help=True)(augment_command)


def augment_command(
    source: Annotated[
        str, typer.Argument(metavar="INPUT", help="Sentences: text, CSV, TSV, JSONL or parquet; - is stdin.")
    ],
    method: Annotated[Augmentation, typer.Option("--method", help="What is done to a sentence.")],
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Pairs: .csv, .tsv or .jsonl (.gz); - is stdout.")
    ] = None,
    rate: Annotated[
        float | None,
        typer.Option(
            "--rate", help="Fraction of the words, above 0; default 0.1, mlm 0.15, synonym one word."
        ),
    ] = None,
    sides: Annotated[
        Sides, typer.Option("--sides", help="Augment the positive, or the anchor too.")
    ] = Sides.ONE,
    copies: Annotated[int, typer.Option("--copies", min=1, help="Rows per sentence.")] = 1,
    unit: Annotated[
        TextUnit, typer.Option("--unit", help="What is dropped or moved; char for text without spaces.")
    ] = TextUnit.WORD,
    column: Annotated[
        str | None, typer.Option("--column", help="Column of a table that holds the sentences.")
    ] = None,
    wordnet_dir: Annotated[
        Path | None,
        typer.Option("--wordnet-dir", envvar="SIMCSE_WORDNET", help="WordNet files for synonym and eda."),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(
            "--model", "-m", help="mlm: masked-LM to fill with. shuffle: move its sub-words, not words."
        ),
    ] = None,
    device: DeviceOption = Device.AUTO,
    workers: Annotated[
        int | None, typer.Option("--workers", min=1, help="Processes; default: all cores.")
    ] = None,
    preview: Annotated[
        int, typer.Option("--preview", min=0, help="Show what changes in the first N sentences.")
    ] = 0,
    seed: SeedOption = 42,
    force: ForceOption = False,
) -> None:
    """Write `anchor,positive` rows for `simcse train`, the positive being the changed sentence.

    A sentence's change follows from the seed, its line number and the copy alone, so the file is the same for
    any number of workers. `--preview` without `-o` only looks.
    """
    if output is None and not preview:
        raise typer.BadParameter("give a file with -o, or --preview N to only look", param_hint="--output")
    augment(
        source,
        output,
        method=method,
        rate=rate,
        sides=sides,
        copies=copies,
        unit=unit,
        column=column,
        wordnet_dir=wordnet_dir,
        model=model,
        device=device,
        workers=workers,
        preview=preview,
        seed=seed,
        force=force,
    )


def augment(
    source: str,
    output: Path | None = None,
    *,
    method: Augmentation,
    rate: float | None = None,
    sides: Sides = Sides.ONE,
    copies: int = 1,
    unit: TextUnit = TextUnit.WORD,
    column: str | None = None,
    wordnet_dir: Path | None = None,
    model: str | None = None,
    device: Device = Device.AUTO,
    workers: int | None = None,
    preview: int = 0,
    seed: int = 42,
    force: bool = False,
) -> "AugmentCounts | None":
    """Write the pairs of all sentences in ``source``; return the counts, or None without an output.

    Raises:
        ConfigError: method, rate, unit and model do not go together.
        DataError: the input is unreadable or blank, or WordNet is missing.
        OutputError: ``output`` exists (without ``force``) or cannot be written.
    """
    from simcse_cli.augment.augment_file import COLUMNS, AugmentJob, available_cores, write_pairs
    from simcse_cli.augment.augmentations import check_rate
    from simcse_cli.data.readers import iter_sentences, source_name
    from simcse_cli.data.writers import open_rows, output_format

    console = get_console()
    rate = check_rate(method, rate)
    if output is not None:
        output_format(output, COLUMNS)
        if str(output) != STDIO:
            check_output(output, force=force)
    rewriter = _make_rewriter(method, rate, unit=unit, wordnet_dir=wordnet_dir, model=model, device=device)
    job = AugmentJob(rewriter, seed=seed, copies=copies, both_sides=sides is Sides.BOTH)
    sentences = iter_sentences(source, column=column)
    if preview:
        head = _take_sentences(sentences, preview)
        console.show_diffs(_preview_rows(head, job, unit), to_stderr=str(output) == STDIO)
        sentences = chain(head, sentences)
    if output is None:
        return None
    if method is Augmentation.MLM:
        workers = 1  # the model computes on all cores already
    with open_rows(output, COLUMNS, force=force) as write:
        n_workers = workers or available_cores()
        counts = write_pairs(sentences, write, job, workers=n_workers, progress=console.progress)
        if not counts.n_rows:
            raise DataError(f"{source_name(source)} has no sentences, only {counts.n_blank:,} blank lines")
    _report(counts, source_name(source), output, unit)
    if str(output) != STDIO:
        settings = {
            "method": method,
            "rate": rate,
            "sides": sides,
            "copies": copies,
            "unit": unit,
            "model": model,
        }
        _write_record(source, output, counts, settings, seed)
    return counts


def _make_rewriter(
    method: Augmentation,
    rate: float | None,
    *,
    unit: TextUnit,
    wordnet_dir: Path | None,
    model: str | None,
    device: Device,
) -> "Rewriter":
    from simcse_cli.augment.augmentations import DEFAULT_MLM, DEFAULT_RATES, check_unit, make_augmenter

    check_unit(method, unit)
    share = rate or DEFAULT_RATES.get(method, 0.0)
    if method is Augmentation.MLM:
        return _make_filler(share, model or DEFAULT_MLM, device)
    if model is None:
        return make_augmenter(method, rate, unit=unit, wordnet_dir=wordnet_dir)
    if method is not Augmentation.SHUFFLE or unit is not TextUnit.WORD:
        raise ConfigError(
            f"--model is for mlm and for shuffle by sub-words, found --method {method} --unit {unit}",
            hint="leave --model out",
        )
    from simcse_cli.augment.subwords import make_subword_shuffler
    from simcse_cli.models.resolve import resolve_model

    return make_subword_shuffler(resolve_model(model), share)


def _make_filler(rate: float, model: str, device: Device) -> "Rewriter":
    from simcse_cli.augment.mlm_fill import load_mlm_filler
    from simcse_cli.devices import resolve_device
    from simcse_cli.models.resolve import resolve_model

    return load_mlm_filler(resolve_model(model), rate=rate, device=resolve_device(device))


def _take_sentences(sentences: Iterator[str], count: int) -> list[str]:
    """Return the lines up to the ``count``-th that is not blank, blank ones included: they count as lines."""
    taken: list[str] = []
    n_left = count
    while n_left and (sentence := next(sentences, None)) is not None:
        taken.append(sentence)
        n_left -= bool(sentence.strip())
    return taken


def _preview_rows(sentences: Sequence[str], job: "AugmentJob", unit: TextUnit) -> list[DiffRow]:
    from simcse_cli.augment.augment_file import number_lines

    rows = []
    for number, text in number_lines(sentences):
        for copy, (anchor, positive) in enumerate(job.rows([(number, text)])):
            name = f"line {number + 1}" + (f", copy {copy + 1}" if job.copies > 1 else "")
            if job.both_sides:
                rows.append(_diff_row(f"{name}, anchor", text, anchor, unit))
                name += ", positive"
            rows.append(_diff_row(name, text, positive, unit))
    return rows


def _diff_row(name: str, before: str, after: str, unit: TextUnit) -> DiffRow:
    from simcse_cli.augment.text_diff import word_changes
    from simcse_cli.augment.text_units import join_units, split_units

    units = split_units(before, unit)
    distance, changes = word_changes(units, split_units(after, unit))
    return DiffRow(
        f"{name}: distance {distance}, {len(units)} {unit}s",
        [(join_units(change.before, unit), not change.is_equal) for change in changes if change.before],
        [(join_units(change.after, unit), not change.is_equal) for change in changes if change.after],
        separator=" " if unit is TextUnit.WORD else "",
    )


def _report(counts: "AugmentCounts", name: str, output: Path, unit: TextUnit) -> None:
    console = get_console()
    blank = f", {counts.n_blank:,} blank lines skipped" if counts.n_blank else ""
    target = "standard output" if str(output) == STDIO else output
    console.info(
        f"{target}: {counts.n_rows:,} pairs of {counts.n_lines:,} sentences, "
        f"{counts.n_unchanged:,} of them unchanged{blank}"
    )
    if counts.n_unspaced > _UNSPACED_SHARE * counts.n_lines and unit is TextUnit.WORD:
        console.warn(
            f"{name}: {counts.n_unspaced:,} sentences hold text without spaces, where a phrase counts as "
            "one word; --unit char works on characters"
        )
    if 2 * counts.n_unchanged > counts.n_rows:
        console.warn("more than half of the positives equal their anchor: too short for this method and rate")


def _write_record(
    source: str, output: Path, counts: "AugmentCounts", settings: dict[str, Any], seed: int
) -> None:
    from simcse_cli.data.manifest import build_manifest, write_manifest

    manifest = build_manifest(
        "augment",
        inputs=[source],
        folder=output.parent,
        outputs=[(output, counts.n_rows)],
        settings=settings,
        seed=seed,
        counts={"sentences": counts.n_lines, "blank": counts.n_blank, "unchanged": counts.n_unchanged},
    )
    get_console().detail(f"wrote {write_manifest(output, manifest)}")
