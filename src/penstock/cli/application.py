"""The application `penstock`: its commands, and what all of them have in common.

Exit codes: 0 done, 1 failed, 2 wrong usage. Results go to standard output, errors to standard error. Nothing here
imports Spark until a pipeline is run: looking at checkpoints must not take seconds.
"""

from __future__ import annotations

from typing import Annotated

import typer

from penstock import __version__
from penstock.cli.checkpoints.commands import checkpoints
from penstock.cli.checkpoints.drop_command import drop_split
from penstock.cli.control_commands import savepoint, stop
from penstock.cli.explain_command import explain
from penstock.cli.failures import reported
from penstock.cli.new_command import new
from penstock.cli.options import settings_help
from penstock.cli.page_commands import logs, top, ui
from penstock.cli.run_command import run
from penstock.cli.status_command import status

app = typer.Typer(
    name="penstock",
    no_args_is_help=True,
    add_completion=False,
    # Plain help: in the tables of rich, long texts end up in columns of a few letters.
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command(short_help="Write a small project to start from.")(new)
app.command(short_help="Run a pipeline, or resume it.", epilog=settings_help())(run)
app.command(short_help="Print the plan of a pipeline.")(explain)
app.command(short_help="Show whether a pipeline is running, and how to resume it.")(status)
app.command(short_help="Show the page of a running or ended pipeline.")(ui)
app.command(short_help="Print the last warnings and errors of a pipeline.")(logs)
app.command(short_help="Show the operators of a running pipeline, live.")(top)
checkpoints.command("drop-split", short_help="Mark a file as read, in a new checkpoint.")(drop_split)
app.add_typer(checkpoints, name="checkpoints")
app.command(short_help="Take a savepoint of a running pipeline.")(savepoint)
app.command(short_help="Stop a running pipeline.")(stop)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"penstock {__version__}")
        raise typer.Exit


@app.callback()
def penstock(
    version: Annotated[
        bool,
        typer.Option(
            "--version",
            callback=_print_version,
            is_eager=True,
            help="Print the version and exit. Example: penstock --version",
        ),
    ] = False,
) -> None:
    """Continuous, stateful, exactly-once Python pipelines on Spark.

    Example: penstock run examples/running_totals.py:pipeline --checkpoints /tmp/totals --master 'local[2]'
    """


def main() -> None:
    """The console script."""
    with reported():
        app()
