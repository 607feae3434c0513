"""`simcse analyze`: geometry, spectrum, density, retrieval, overlap and trace."""

import typer

from simcse_cli.commands._analyze_retrieval_command import retrieval_command
from simcse_cli.commands._analyze_run_commands import overlap_command, trace_command
from simcse_cli.commands._analyze_space_commands import density_command, geometry_command, spectrum_command

app = typer.Typer(
    no_args_is_help=True, help="See why: the shape of embedding spaces, neighbours, training paths."
)
app.command("geometry")(geometry_command)
app.command("spectrum")(spectrum_command)
app.command("density")(density_command)
app.command("retrieval")(retrieval_command)
app.command("overlap")(overlap_command)
app.command("trace")(trace_command)


def register(root: typer.Typer) -> None:
    """Add `analyze` to the application."""
    root.add_typer(app, name="analyze")
