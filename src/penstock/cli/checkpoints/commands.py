"""`penstock checkpoints`: looking at what a pipeline has saved, and clearing it away."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import typer

from penstock.checkpoints import CheckpointInfo, Verdict
from penstock.checkpoints import open as open_directory
from penstock.cli.checkpoints.asking import ask
from penstock.cli.checkpoints.removal import Removal, plan_removal
from penstock.cli.checkpoints.removal import remove as carry_out
from penstock.cli.checkpoints.tables import (
    detail_of,
    detail_value,
    list_table,
    print_json,
    print_table,
    summary_value,
    table_of,
)
from penstock.cli.failures import FAILED, reported
from penstock.cli.progress.stats import shown_bytes
from penstock.errors import OptionError

checkpoints = typer.Typer(
    help="Look at checkpoints, verify and delete them. Example: penstock checkpoints list /tmp/totals",
    no_args_is_help=True,
)

Directory = Annotated[
    str,
    typer.Argument(
        metavar="DIR",
        help="Directory passed to run --checkpoints, or to savepoint --to. Example: /tmp/totals",
        show_default=False,
    ),
]
Id = Annotated[int, typer.Argument(metavar="ID", min=1, help="Id of a checkpoint. Example: 17", show_default=False)]
Json = Annotated[bool, typer.Option("--json", help="Print JSON, for scripts. Example: --json")]


@checkpoints.command("list", short_help="List checkpoints and savepoints.")
def list_(directory: Directory, as_json: Json = False) -> None:
    """List the checkpoints and savepoints of a directory, oldest first.

    Example: penstock checkpoints list /tmp/totals
    """
    with reported():
        found = open_directory(directory).list()
        if as_json:
            print_json([summary_value(summary) for summary in found])
        elif found:
            print_table(list_table(found))
        else:
            typer.echo(f"no checkpoint in {directory} yet")


@checkpoints.command(short_help="Show one checkpoint in detail.")
def show(
    directory: Directory,
    checkpoint: Annotated[
        int | None,
        typer.Argument(
            metavar="[ID]", min=1, help="Checkpoint to show; without it, the newest. Example: 17", show_default=False
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Show one checkpoint: operators with their state, subtasks with their figures, positions, records in flight.

    Example: penstock checkpoints show /tmp/totals
    """
    with reported():
        found = open_directory(directory).read(checkpoint)
        if as_json:
            print_json(detail_value(found.info, found.manifest))
        else:
            print_table(detail_of(found.info, found.manifest))


@checkpoints.command(short_help="Read all files of the checkpoints and compare checksums.")
def verify(
    directory: Directory,
    checkpoint: Annotated[
        int | None,
        typer.Argument(metavar="[ID]", min=1, help="Verify this checkpoint only. Example: 17", show_default=False),
    ] = None,
    as_json: Json = False,
) -> None:
    """Read all that the checkpoints refer to, and compare it with its checksums. Exit code 1 if anything is damaged.

    Example: penstock checkpoints verify /tmp/totals
    """
    with reported():
        verdicts = open_directory(directory).verify(checkpoint)
        _print_verdicts(verdicts, as_json)
        if not all(verdict.is_whole for verdict in verdicts):
            raise typer.Exit(FAILED)


def _print_verdicts(verdicts: Sequence[Verdict], as_json: bool) -> None:
    if as_json:
        print_json([{"id": each.checkpoint.id, "is_whole": each.is_whole, "error": each.damage} for each in verdicts])
        return
    table = table_of(("id", "kind", "verdict"))
    for each in verdicts:
        style = None if each.is_whole else "red"
        table.add_row(str(each.checkpoint.id), each.checkpoint.kind, each.damage or "whole", style=style)
    print_table(table)


@checkpoints.command(short_help="Delete one checkpoint with its files.")
def delete(
    directory: Directory,
    checkpoint: Id,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Skip the confirmation. Example: --yes")] = False,
    force: Annotated[
        bool, typer.Option("--force", help="Delete even the newest checkpoint, or one in use. Example: --force")
    ] = False,
    as_json: Json = False,
) -> None:
    """Delete a checkpoint or savepoint, with the files that no other one needs.

    The newest one and one in use are refused unless you insist with --force.

    Example: penstock checkpoints delete /tmp/totals 12 --yes
    """
    with reported():
        opened = open_directory(directory)
        info = opened.info(checkpoint)
        removal = plan_removal(opened.store, info.id)
        if removal.objections and not force:
            reasons = "; ".join(removal.objections)
            raise OptionError(
                f"checkpoint {checkpoint} was not deleted: {reasons}. To delete it all the same, pass --force."
            )
        if not yes:
            _ask(info, removal)
        carry_out(opened.store, removal)
        _print_removal(removal, as_json)


def _ask(info: CheckpointInfo, removal: Removal) -> None:
    size = "" if info.manifest is None else f", {shown_bytes(info.state_bytes + info.inflight_bytes)}"
    ask(f"Delete {info.kind} {info.id}{size}?", *removal.objections)


def _print_removal(removal: Removal, as_json: bool) -> None:
    if as_json:
        print_json({"id": removal.checkpoint, "blobs": list(removal.blobs), "blobs_left_to_driver": removal.is_driven})
        return
    files = f"{len(removal.blobs)} files with it"
    if removal.is_driven:
        files = "the running pipeline removes its files after its next checkpoint"
    typer.echo(f"deleted checkpoint {removal.checkpoint}; {files}")
