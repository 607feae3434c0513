"""`simcse analyze geometry`, `spectrum` and `density`."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from simcse_cli.choices import Device, OutputFormat, Precision
from simcse_cli.commands import options as opt
from simcse_cli.commands._analyze_output import (
    HtmlOption,
    LabelsOption,
    Outputs,
    PlotOption,
    TerminalPlotOption,
    show,
)
from simcse_cli.commands._analyze_runs import trace_sections
from simcse_cli.commands._analyze_space import MeasuredSpace, measure_spaces
from simcse_cli.commands._analyze_systems import ModelsOption, load_systems
from simcse_cli.commands._analyze_views import DENSITY, GEOMETRY, SPECTRUM, View, view_findings
from simcse_cli.config import LoadOptions
from simcse_cli.console import get_console

if TYPE_CHECKING:
    from simcse_cli.analysis.rated_pairs import RatedPairs

DataDirOption = Annotated[
    Path | None,
    typer.Option(
        "--data-dir",
        envvar="SIMCSE_DATA",
        help="SentEval folder; all of its STS-B is used (train, dev, test).",
    ),
]
PairFileOption = Annotated[
    Path | None,
    typer.Option(
        "--pair-file", help="Your own rated pairs instead: a table with sentence1, sentence2 and score."
    ),
]
EmbeddingsOption = Annotated[
    list[Path] | None,
    typer.Option(
        "--embeddings", help="Vectors computed elsewhere (.npy, .npz, .safetensors); needs --sentences."
    ),
]
SentencesOption = Annotated[
    Path | None,
    typer.Option("--sentences", help="Text file whose line i is the sentence of row i of --embeddings."),
]


def read_pairs(data_dir: Path | None, pair_file: Path | None) -> "RatedPairs":
    """Return the rated pairs that the flags name.

    Raises:
        typer.BadParameter: neither flag is given.
    """
    from simcse_cli.analysis.rated_pairs import read_rated_file, read_whole_stsb

    if pair_file is not None:
        return read_rated_file(pair_file)
    if data_dir is None:
        raise typer.BadParameter("need the SentEval folder, or --pair-file", param_hint="--data-dir")
    return read_whole_stsb(data_dir)


def analyze_space(
    view: View,
    models: Sequence[str],
    pairs: "RatedPairs",
    outputs: Outputs,
    *,
    settings: LoadOptions,
    embeddings: Sequence[Path] = (),
    sentences: Path | None = None,
    labels: Sequence[str] | None = None,
    normalize: bool = True,
    center: bool = False,
) -> list[MeasuredSpace]:
    """Measure the spaces of all systems, show one view of them and return the measurements."""
    console = get_console()
    outputs.check()
    systems = load_systems(models, embeddings, sentences, labels, settings, console)
    spaces = measure_spaces(systems, pairs, console, normalize=normalize, center=center)
    runs = [(space.system.source, space.system.label) for space in spaces]
    show(view_findings(view, spaces, lambda: trace_sections(runs)), outputs, console)
    return spaces


def geometry_command(
    model: ModelsOption = None,
    data_dir: DataDirOption = None,
    pair_file: PairFileOption = None,
    embeddings: EmbeddingsOption = None,
    sentences: SentencesOption = None,
    label: LabelsOption = None,
    pooler: opt.PoolerOption = None,
    force_pooler: opt.ForcePoolerOption = False,
    device: opt.DeviceOption = Device.AUTO,
    precision: opt.PrecisionOption = Precision.FP32,
    batch_tokens: opt.BatchTokensOption = None,
    fmt: opt.FormatOption = OutputFormat.TABLE,
    output: opt.OutputOption = None,
    plot: PlotOption = None,
    html: HtmlOption = None,
    terminal_plot: TerminalPlotOption = None,
    force: opt.ForceOption = False,
) -> None:
    """Alignment, uniformity, effective rank, isotropy and mean cosine on rated pairs (Figure 3)."""
    analyze_space(
        GEOMETRY,
        model or [],
        read_pairs(data_dir, pair_file),
        Outputs(fmt, output, plot, html, terminal_plot, force),
        settings=LoadOptions(pooler, force_pooler, device, precision, batch_tokens),
        embeddings=embeddings or [],
        sentences=sentences,
        labels=label,
    )


def spectrum_command(
    model: ModelsOption = None,
    data_dir: DataDirOption = None,
    pair_file: PairFileOption = None,
    embeddings: EmbeddingsOption = None,
    sentences: SentencesOption = None,
    raw: Annotated[bool, typer.Option("--raw", help="Leave the vectors' lengths as they are.")] = False,
    center: Annotated[bool, typer.Option("--center", help="Subtract the mean vector first.")] = False,
    label: LabelsOption = None,
    pooler: opt.PoolerOption = None,
    force_pooler: opt.ForcePoolerOption = False,
    device: opt.DeviceOption = Device.AUTO,
    precision: opt.PrecisionOption = Precision.FP32,
    batch_tokens: opt.BatchTokensOption = None,
    fmt: opt.FormatOption = OutputFormat.TABLE,
    output: opt.OutputOption = None,
    plot: PlotOption = None,
    html: HtmlOption = None,
    terminal_plot: TerminalPlotOption = None,
    force: opt.ForceOption = False,
) -> None:
    """Singular values of the matrix of sentence vectors (Figure F.1)."""
    analyze_space(
        SPECTRUM,
        model or [],
        read_pairs(data_dir, pair_file),
        Outputs(fmt, output, plot, html, terminal_plot, force),
        settings=LoadOptions(pooler, force_pooler, device, precision, batch_tokens),
        embeddings=embeddings or [],
        sentences=sentences,
        labels=label,
        normalize=not raw,
        center=center,
    )


def density_command(
    model: ModelsOption = None,
    data_dir: DataDirOption = None,
    pair_file: PairFileOption = None,
    embeddings: EmbeddingsOption = None,
    sentences: SentencesOption = None,
    label: LabelsOption = None,
    pooler: opt.PoolerOption = None,
    force_pooler: opt.ForcePoolerOption = False,
    device: opt.DeviceOption = Device.AUTO,
    precision: opt.PrecisionOption = Precision.FP32,
    batch_tokens: opt.BatchTokensOption = None,
    fmt: opt.FormatOption = OutputFormat.TABLE,
    output: opt.OutputOption = None,
    plot: PlotOption = None,
    html: HtmlOption = None,
    terminal_plot: TerminalPlotOption = None,
    force: opt.ForceOption = False,
) -> None:
    """Cosine similarity of rated pairs, by group of gold ratings (Figure G.1)."""
    analyze_space(
        DENSITY,
        model or [],
        read_pairs(data_dir, pair_file),
        Outputs(fmt, output, plot, html, terminal_plot, force),
        settings=LoadOptions(pooler, force_pooler, device, precision, batch_tokens),
        embeddings=embeddings or [],
        sentences=sentences,
        labels=label,
    )
