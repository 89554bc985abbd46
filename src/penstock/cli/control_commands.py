"""`penstock savepoint` and `penstock stop`: orders to a pipeline that runs, through its checkpoint directory."""

from __future__ import annotations

import os
from typing import Annotated

import typer

from penstock.checkpoints import open as open_directory
from penstock.cli.checkpoints.tables import print_json
from penstock.cli.failures import reported
from penstock.cli.options import duration_of
from penstock.driver.control import Command, give_order

Directory = Annotated[
    str,
    typer.Argument(
        metavar="DIR", help="Checkpoint directory of the running pipeline. Example: /tmp/totals", show_default=False
    ),
]
Timeout = Annotated[
    str, typer.Option("--timeout", metavar="DURATION", help="Maximum time to wait. Example: --timeout 5min")
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON, for scripts. Example: --json")]


def savepoint(
    directory: Directory,
    to: Annotated[
        str | None,
        typer.Option(
            metavar="PATH",
            help="Copy the savepoint there too, to start other pipelines from; the driver writes it. "
            "Example: --to /backup/v1",
        ),
    ] = None,
    timeout: Timeout = "60s",
    as_json: Json = False,
) -> None:
    """Take a savepoint of a running pipeline: self-contained, and never removed by retention.

    Example: penstock savepoint /tmp/totals --to /backup/totals-before-upgrade
    """
    with reported():
        path = None if to is None else to if "://" in to else os.path.abspath(os.path.expanduser(to))
        arguments = {} if path is None else {"path": path}
        store = open_directory(directory).store
        checkpoint = give_order(
            store, directory, Command.SAVEPOINT, arguments, timeout_s=duration_of(timeout, "--timeout")
        )
        if as_json:
            print_json({"savepoint": checkpoint, "path": path})
        elif path is None:
            typer.echo(f"savepoint {checkpoint} is complete: start from it with --restore {checkpoint}")
        else:
            typer.echo(
                f"savepoint {checkpoint} is complete, with a copy in {path}: start from it with --restore {path}"
            )


def stop(
    directory: Directory,
    drain: Annotated[bool, typer.Option("--drain", help="Take a final savepoint first. Example: --drain")] = False,
    timeout: Timeout = "60s",
    as_json: Json = False,
) -> None:
    """Stop a running pipeline: at once, or with --drain after a final savepoint. It can be resumed either way.

    Example: penstock stop /tmp/totals --drain
    """
    with reported():
        store = open_directory(directory).store
        command = Command.DRAIN if drain else Command.STOP
        checkpoint = give_order(store, directory, command, timeout_s=duration_of(timeout, "--timeout"))
        if as_json:
            print_json({"savepoint": checkpoint})
        else:
            typer.echo(f"stopped with savepoint {checkpoint}" if checkpoint is not None else "stopped")
