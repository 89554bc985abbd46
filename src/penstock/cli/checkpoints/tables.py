"""Checkpoints as tables for people, and as plain values for scripts."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

from rich import box
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from penstock.checkpoints import CheckpointInfo
from penstock.cli.progress.stats import shown_bytes, shown_count, shown_ms
from penstock.protocol.manifest import Manifest, SubtaskReport, blobs_of, committables_of

_RIGHT = {"id", "generation", "took", "state", "in flight", "rows", "parallelism", "start", "align", "sync", "async"}


def table_of(columns: Iterable[str], title: str | None = None) -> Table:
    """A table in the one style that all commands have."""
    table = Table(box=box.SIMPLE_HEAD, title=title, title_justify="left", title_style="bold", pad_edge=False)
    for column in columns:
        table.add_column(column, justify="right" if column in _RIGHT else "left", overflow="fold")
    return table


def print_json(value: Any) -> None:
    # Without rich, which would wrap and colour what a script reads.
    print(json.dumps(value, indent=2))


def print_table(table: RenderableType) -> None:
    console = Console()
    # A pipe has no width: what reads it must not find a line cut in two.
    console.print(table) if console.is_terminal else Console(width=max(console.width, 160)).print(table)


# --- a list ---


def list_table(found: Sequence[CheckpointInfo]) -> Table:
    table = table_of(
        ("id", "kind", "pipeline", "generation", "took", "cut", "state", "in flight", "published", "completed")
    )
    for summary in found:
        manifest = summary.manifest
        if manifest is None:
            table.add_row(str(summary.id), "damaged", *["-"] * 8, style="red")
            continue
        table.add_row(
            str(summary.id),
            summary.kind,
            Text(manifest.shape.name),
            str(manifest.generation),
            shown_ms(manifest.completed_at_ms - manifest.triggered_at_ms),
            "unaligned" if summary.is_unaligned else "aligned",
            shown_bytes(summary.state_bytes),
            shown_bytes(summary.inflight_bytes),
            summary.published,
            _time(summary),
        )
    return table


def _time(summary: CheckpointInfo) -> str:
    return summary.completed_at.strftime("%Y-%m-%d %H:%M:%S") if summary.completed_at else "-"


def summary_value(summary: CheckpointInfo) -> dict[str, Any]:
    """A line of the list, for scripts: these names stay as they are."""
    value: dict[str, Any] = {
        "id": summary.id,
        "kind": summary.kind,
        "is_committed": summary.is_committed,
        "completed_at": summary.completed_at.isoformat() if summary.completed_at else None,
        "error": summary.damage,
    }
    manifest = summary.manifest
    if manifest is None:
        return value
    return value | {
        "pipeline": manifest.shape.name,
        "generation": manifest.generation,
        "duration_ms": manifest.completed_at_ms - manifest.triggered_at_ms,
        "cut": "unaligned" if summary.is_unaligned else "aligned",
        "state_bytes": summary.state_bytes,
        "inflight_bytes": summary.inflight_bytes,
        "published": summary.published,
    }


# --- one of them ---


def detail_of(summary: CheckpointInfo, manifest: Manifest) -> RenderableType:
    """Everything that a person wants to know of one checkpoint."""
    parts: list[RenderableType] = [_head(summary, manifest), _operators(manifest), _subtasks(manifest)]
    if any(report.splits for report in manifest.reports):
        parts.append(_positions(manifest))
    if any(report.channels for report in manifest.reports):
        parts.append(_channels(manifest))
    return Group(*parts)


def _head(summary: CheckpointInfo, manifest: Manifest) -> RenderableType:
    table = Table.grid(padding=(0, 2))
    for label, text in (
        (summary.kind, f"{manifest.checkpoint}, of generation {manifest.generation}"),
        ("pipeline", f"{manifest.shape.name}, {manifest.shape.max_parallelism} key groups"),
        ("took", shown_ms(manifest.completed_at_ms - manifest.triggered_at_ms)),
        ("completed", _time(summary)),
        ("files", f"{len(blobs_of(manifest))} beside the manifest"),
        ("output", f"{len(committables_of(manifest))} parts, published: {summary.published}"),
    ):
        table.add_row(Text(label, style="dim"), Text(text))
    return Group(table, "")


def _operators(manifest: Manifest) -> Table:
    rows: dict[str, int] = defaultdict(int)
    size: dict[str, int] = defaultdict(int)
    names: dict[str, set[str]] = defaultdict(set)
    for state in (state for report in manifest.reports for state in report.states):
        rows[state.operator] += state.rows
        size[state.operator] += state.segment.length
        names[state.operator].add(f"{state.name} ({state.kind.value})")
    table = table_of(("operator", "chain", "parallelism", "key", "states", "rows", "state"), "Operators")
    for operator in manifest.shape.operators:
        table.add_row(
            Text(operator.name),
            Text(operator.chain),
            str(operator.parallelism),
            Text(", ".join(operator.key) or "-"),
            Text(", ".join(sorted(names[operator.name])) or "-"),
            shown_count(rows[operator.name]),
            shown_bytes(size[operator.name]),
        )
    return table


def _subtasks(manifest: Manifest) -> Table:
    table = table_of(("subtask", "cut", "start", "align", "sync", "async", "state", "in flight"), "Subtasks")
    for report in manifest.reports:
        figures = report.figures
        times = (figures.start_delay_ms, figures.alignment_ms, figures.synchronous_ms, figures.asynchronous_ms)
        sizes = (figures.state_bytes, figures.inflight_bytes)
        table.add_row(Text(str(report.subtask)), report.cut.value, *map(shown_ms, times), *map(shown_bytes, sizes))
    return table


def _positions(manifest: Manifest) -> Table:
    table = table_of(("source", "split", "read on at"), "Positions of the sources")
    for split in (split for report in manifest.reports for split in report.splits):
        offset = split.offset.decode(errors="replace")
        table.add_row(Text(split.operator), Text(split.split), Text(offset if len(offset) < 80 else offset[:79] + "…"))
    return table


def _channels(manifest: Manifest) -> Table:
    table = table_of(("edge", "channel", "side", "rows", "in flight"), "Records in flight")
    for channel in (channel for report in manifest.reports for channel in report.channels):
        table.add_row(
            Text(str(channel.edge)),
            f"{channel.sender} to {channel.receiver}",
            channel.side.value,
            shown_count(channel.rows),
            shown_bytes(channel.segment.length),
        )
    return table


def detail_value(summary: CheckpointInfo, manifest: Manifest) -> dict[str, Any]:
    """One checkpoint for scripts."""
    return summary_value(summary) | {
        "max_parallelism": manifest.shape.max_parallelism,
        "blobs": sorted(blobs_of(manifest)),
        "operators": [
            {"name": each.name, "chain": each.chain, "parallelism": each.parallelism, "key": list(each.key)}
            for each in manifest.shape.operators
        ],
        "subtasks": [_subtask_value(report) for report in manifest.reports],
    }


def _subtask_value(report: SubtaskReport) -> dict[str, Any]:
    figures = report.figures
    return {
        "subtask": str(report.subtask),
        "cut": report.cut.value,
        "start_delay_ms": figures.start_delay_ms,
        "alignment_ms": figures.alignment_ms,
        "synchronous_ms": figures.synchronous_ms,
        "asynchronous_ms": figures.asynchronous_ms,
        "state_bytes": figures.state_bytes,
        "inflight_bytes": figures.inflight_bytes,
        "splits": {split.split: split.offset.decode(errors="replace") for split in report.splits},
        "committables": len(report.committables),
    }
