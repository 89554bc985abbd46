"""`penstock checkpoints drop-split`: going on without a file that a checkpoint points into."""

from __future__ import annotations

from typing import Annotated

import typer

from penstock.checkpoints import open as open_directory
from penstock.cli.checkpoints.asking import ask
from penstock.cli.checkpoints.commands import Directory, Json
from penstock.cli.checkpoints.tables import print_json
from penstock.cli.failures import reported
from penstock.driver.checkpoints.drop_split import Drop, plan_drop
from penstock.driver.checkpoints.drop_split import drop_split as carry_out


def drop_split(
    directory: Directory,
    split: Annotated[
        str,
        typer.Argument(
            metavar="SPLIT", help="File below the directory of the source. Example: a.jsonl", show_default=False
        ),
    ],
    source: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Source of the split, if several have it. Example: --source orders"),
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Skip the confirmation. Example: --yes")] = False,
    as_json: Json = False,
) -> None:
    """Mark a file as read in a new checkpoint, made of the newest one: for a file that is damaged or gone.

    Records of it that were not read yet are never read. The pipeline must be stopped.

    Example: penstock checkpoints drop-split /tmp/totals dt=2026-01-01/orders.parquet
    """
    with reported():
        store = open_directory(directory).store
        drop = plan_drop(store, split, source)
        if drop.is_read:
            _print(drop, None, as_json)
            return
        if not yes:
            position = drop.split.offset.decode()
            ask(f"Never read the rest of '{drop.split.split}' (it was read up to {position})?")
        _print(drop, carry_out(store, drop), as_json)


def _print(drop: Drop, made: int | None, as_json: bool) -> None:
    if as_json:
        print_json({"checkpoint": made, "split": drop.split.split, "source": drop.split.operator})
    elif made is None:
        typer.echo(
            f"'{drop.split.split}' was read to its end in checkpoint {drop.checkpoint}: there is nothing to drop"
        )
    else:
        typer.echo(
            f"checkpoint {made} has '{drop.split.split}' as read: the pipeline resumes from it when it is started"
        )
