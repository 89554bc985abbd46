"""`penstock status`: whether a pipeline runs, how far it has come, and how to go on with it. Changes nothing."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rich.table import Table
from rich.text import Text

from penstock.checkpoints import CheckpointInfo
from penstock.checkpoints import open as open_directory
from penstock.cli.checkpoints.commands import Directory, Json
from penstock.cli.checkpoints.tables import print_json, print_table, summary_value
from penstock.cli.failures import reported
from penstock.cli.progress.stats import shown_bytes, shown_count, shown_seconds
from penstock.protocol.manifest import Manifest
from penstock.storage.lease import Owner, owner_of


@dataclass(frozen=True, slots=True)
class DirectoryStatus:
    """All that a checkpoint directory says of its pipeline."""

    place: str
    owner: Owner | None
    found: Sequence[CheckpointInfo]
    now_ms: int

    @property
    def newest(self) -> CheckpointInfo | None:
        return self.found[-1] if self.found else None

    @property
    def is_running(self) -> bool:
        return self.owner is not None and self.owner.is_alive

    @property
    def pipeline(self) -> str | None:
        if self.owner is not None:
            return self.owner.pipeline
        named = [summary.manifest.shape.name for summary in self.found if summary.manifest is not None]
        return named[-1] if named else None

    @property
    def state(self) -> str:
        if self.owner is None:
            ended = self.newest is not None and self.newest.manifest is not None and self.newest.manifest.is_final
            is_stop = ended and self.newest is not None and self.newest.kind == "savepoint"
            return "stopped with a savepoint" if is_stop else "finished: all input is read" if ended else "stopped"
        where = f"process {self.owner.process} on {self.owner.host}"
        beat = f"last sign of life {shown_age(self.now_ms - self.owner.beat_ms)} ago"
        return f"running: {where}, {beat}" if self.is_running else f"not running: {where} ended unexpectedly, {beat}"

    @property
    def resume(self) -> str:
        if self.is_running:
            return f"it runs; stop it with: penstock stop {self.place} --drain"
        return f"penstock run TARGET --checkpoints {self.place}"


def status(directory: Directory, as_json: Json = False) -> None:
    """Show whether and where a pipeline runs, what its newest checkpoint is, and how to resume it.

    Example: penstock status /tmp/totals
    """
    with reported():
        opened = open_directory(directory)
        found = DirectoryStatus(directory, owner_of(opened.store), opened.list(), time.time_ns() // 1_000_000)
        if as_json:
            print_json(status_value(found))
        else:
            _print(found)


def shown_age(ms: int) -> str:
    """Clocks of hosts differ: what lies in the future is now."""
    return shown_seconds(max(0, ms) / 1000)


def _print(found: DirectoryStatus) -> None:
    table = Table.grid(padding=(0, 2))
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    for label, text in _lines(found):
        table.add_row(label, Text(text))
    print_table(table)


def _lines(found: DirectoryStatus) -> list[tuple[str, str]]:
    lines = [("pipeline", found.pipeline or "unknown"), ("state", found.state)]
    newest = found.newest
    if newest is None:
        lines.append(("newest", "no checkpoint yet"))
    elif newest.manifest is None:
        lines.append(("newest", f"checkpoint {newest.id}, which cannot be read: {newest.damage}"))
    else:
        lines += _newest_lines(newest, newest.manifest, found.now_ms)
    kept = [_noun(summary) for summary in found.found]
    counts = [f"{kept.count(kind)} {kind}" + "s" * (kept.count(kind) != 1) for kind in dict.fromkeys(kept)]
    lines += [("kept", ", ".join(counts) or "nothing"), ("resume", found.resume)]
    return lines


def _newest_lines(newest: CheckpointInfo, manifest: Manifest, now_ms: int) -> list[tuple[str, str]]:
    age = shown_age(now_ms - manifest.completed_at_ms)
    at = newest.completed_at.strftime("%Y-%m-%d %H:%M:%S") if newest.completed_at else "?"
    size = f"{shown_bytes(newest.state_bytes)} of state in {shown_count(state_rows(manifest))} rows"
    return [
        ("newest", f"{_noun(newest)} {newest.id}, {age} ago ({at})"),
        ("size", f"{size}, {shown_bytes(newest.inflight_bytes)} in flight"),
        ("published", newest.published),
    ]


def _noun(summary: CheckpointInfo) -> str:
    return f"{summary.kind} checkpoint" if summary.kind in ("final", "damaged") else summary.kind


def state_rows(manifest: Manifest) -> int:
    return sum(state.rows for report in manifest.reports for state in report.states)


def status_value(found: DirectoryStatus) -> dict[str, Any]:
    """For scripts: these names stay as they are."""
    owner, newest = found.owner, found.newest
    return {
        "pipeline": found.pipeline,
        "is_running": found.is_running,
        "state": found.state,
        "owner": None
        if owner is None
        else {"host": owner.host, "process": owner.process, "beat_age_ms": max(0, found.now_ms - owner.beat_ms)},
        "newest": None if newest is None else _newest_value(newest, found.now_ms),
        "checkpoints": len(found.found),
        "resume": found.resume,
    }


def _newest_value(newest: CheckpointInfo, now_ms: int) -> dict[str, Any]:
    value = summary_value(newest)
    if newest.manifest is not None:
        age_ms = max(0, now_ms - newest.manifest.completed_at_ms)
        value |= {"age_ms": age_ms, "state_rows": state_rows(newest.manifest)}
    return value
