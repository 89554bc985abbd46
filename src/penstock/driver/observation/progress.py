"""The progress of a pipeline from checkpoint to checkpoint, as `StreamingQueryProgress` has it from batch to batch.

It is made from the manifest of a checkpoint, so that its counts are exact: they count rows up to the cut, each once,
over all restarts.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

from penstock.ids import CheckpointId, Generation, OperatorName
from penstock.metrics.metric import Metric
from penstock.metrics.standard import BACKLOG_BYTES, BACKLOG_ROWS, BACKLOG_SPLITS, RECORDS_IN
from penstock.model.event_time import IDLE_WATERMARK, MAX_WATERMARK
from penstock.protocol.manifest import Manifest

POSITIONS_MAX = 100
"""Splits of a source whose positions a progress names."""


@dataclass(frozen=True, slots=True)
class SourceProgress:
    """One source at a checkpoint."""

    name: OperatorName
    rows: int
    """Rows that it has read, over all restarts."""
    splits: int
    """Number of its splits that have been opened."""
    positions: Mapping[str, str]
    """Where each split is read on, in the source's own words; of the first 100 splits."""
    backlog_rows: int | None = None
    """Rows that it has not read, when its workers told last; None if the source does not know them. So the next two."""
    backlog_bytes: int | None = None
    backlog_splits: int | None = None
    """Splits with an end, such as files, that were not read to it."""


@dataclass(frozen=True, slots=True)
class JobProgress:
    """A pipeline at a completed checkpoint."""

    name: str
    generation: Generation
    """Number of the attempt; grows with every start and restart."""
    checkpoint: CheckpointId
    timestamp_ms: int
    """When the checkpoint was triggered, in milliseconds since 1970."""
    duration_ms: int
    """From the trigger until the checkpoint was durable."""
    rows_in: int
    """Rows that the sources have read, over all restarts."""
    rows_out: int
    """Rows that the sinks have taken, over all restarts."""
    num_input_rows: int
    """Rows that the sources have read since the checkpoint before."""
    input_rows_per_second: float
    """Rate at which the sources have read since the checkpoint before, or since the start of the attempt."""
    processed_rows_per_second: float
    """The same, less rows that the checkpoint holds as in flight: read, and not processed yet."""
    sources: tuple[SourceProgress, ...]
    state_rows: int
    """Rows of state, of all operators."""
    state_bytes: int
    inflight_rows: int
    """Rows that the checkpoint holds as in flight; 0 unless it is unaligned."""
    watermark_ms: int | None
    """The slowest event time of any subtask, in milliseconds since 1970; None before the first watermark."""


@dataclass(frozen=True, slots=True)
class Mark:
    """Counts at a moment, from which rates are counted."""

    at_ms: int
    rows_in: int
    inflight_rows: int


def mark_of(manifest: Manifest | None, sources: Collection[OperatorName], at_ms: int) -> Mark:
    """The counts of a checkpoint, or of a pipeline that begins without one."""
    if manifest is None:
        return Mark(at_ms, 0, 0)
    return Mark(at_ms, counted(manifest, RECORDS_IN, sources), _inflight_rows(manifest))


def progress_of(
    manifest: Manifest,
    duration_ms: int,
    sources: Collection[OperatorName],
    sinks: Collection[OperatorName],
    before: Mark,
    told: Callable[[Metric, OperatorName], int | None] = lambda metric, source: None,
) -> JobProgress:
    """The progress at a checkpoint, which took `duration_ms`. Rates are counted from `before` on.

    `told` are gauges of the workers, which no checkpoint holds.
    """
    now = mark_of(manifest, sources, manifest.triggered_at_ms)
    seconds = max(1, now.at_ms - before.at_ms) / 1000
    read = max(0, now.rows_in - before.rows_in)
    states = [state for report in manifest.reports for state in report.states]
    return JobProgress(
        name=manifest.shape.name,
        generation=manifest.generation,
        checkpoint=manifest.checkpoint,
        timestamp_ms=manifest.triggered_at_ms,
        duration_ms=duration_ms,
        rows_in=now.rows_in,
        rows_out=counted(manifest, RECORDS_IN, sinks),
        num_input_rows=read,
        input_rows_per_second=read / seconds,
        processed_rows_per_second=max(0, read - (now.inflight_rows - before.inflight_rows)) / seconds,
        sources=tuple(_source(manifest, source, told) for source in sources),
        state_rows=sum(state.rows for state in states),
        state_bytes=sum(state.segment.length for state in states),
        inflight_rows=now.inflight_rows,
        watermark_ms=_watermark(manifest),
    )


def counted(manifest: Manifest, metric: Metric, operators: Collection[OperatorName]) -> int:
    """The sum of a total at a checkpoint."""
    return sum(
        value
        for report in manifest.reports
        for operator, name, value in report.totals
        if name == metric.name and operator in operators
    )


def _inflight_rows(manifest: Manifest) -> int:
    return sum(report.figures.inflight_rows for report in manifest.reports)


def _source(
    manifest: Manifest, source: OperatorName, told: Callable[[Metric, OperatorName], int | None]
) -> SourceProgress:
    splits = [split for report in manifest.reports for split in report.splits if split.operator == source]
    shown = sorted(splits, key=lambda split: split.split)[:POSITIONS_MAX]
    positions = {split.split: split.offset.decode(errors="replace") for split in shown}
    return SourceProgress(
        source,
        counted(manifest, RECORDS_IN, (source,)),
        len(splits),
        positions,
        *(told(metric, source) for metric in (BACKLOG_ROWS, BACKLOG_BYTES, BACKLOG_SPLITS)),
    )


def _watermark(manifest: Manifest) -> int | None:
    clocks = (clock for report in manifest.reports for _, clock in report.watermarks)
    return min((clock for clock in clocks if IDLE_WATERMARK < clock < MAX_WATERMARK), default=None)
