"""One subtask's part in one checkpoint, from its cut to its acknowledgement.

At the cut, references are taken, nothing else (the synchronous part). State is then written in the background
at once. In-flight data follow when both sides of the subtask are complete: every late input barrier has come,
and the barrier has left every output queue. When all is durable the subtask acknowledges.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

from penstock.exchange.codec import encode_batches, encode_items
from penstock.exchange.items import BatchItem, Captured, captured_bytes
from penstock.graph.physical import Channel
from penstock.ids import ChannelId, CheckpointId, Generation, OperatorName, SubtaskId
from penstock.metrics.registry import Totals
from penstock.protocol.barrier import Barrier
from penstock.protocol.manifest import (
    ChannelSegment,
    CheckpointStats,
    Committable,
    Segment,
    Side,
    SnapshotKind,
    SplitState,
    StateSegment,
    SubtaskReport,
)
from penstock.storage import paths
from penstock.storage.blob import inline_segments, write_segments
from penstock.storage.port import Data, Store
from penstock.worker.context import Piece

_ITEM_BYTES, _COLUMN_BYTES = 256, 96
"""What a batch and each of its columns take at most, besides the records themselves, when they are encoded."""


@dataclass(slots=True)
class CapturedChannel:
    """In-flight data of one channel, held by reference."""

    channel: Channel
    side: Side
    items: list[Captured]
    recovered: list[ChannelSegment] = field(default_factory=list)
    """What was recovered and is still to be processed: in an earlier checkpoint, so it is not written again."""


@dataclass(slots=True)
class PendingSnapshot:
    """What a subtask has gathered for a checkpoint so far."""

    barrier: Barrier
    cut: SnapshotKind
    heard_after_ms: int
    alignment_ms: int
    taken_at_ms: int
    synchronous_ms: int = 0
    splits: tuple[SplitState, ...] = ()
    watermarks: tuple[tuple[OperatorName, int], ...] = ()
    totals: Totals = ()
    inputs: dict[ChannelId, CapturedChannel] = field(default_factory=dict)
    outputs: dict[ChannelId, CapturedChannel] = field(default_factory=dict)
    counted_bytes: int = 0
    """What was taken of the budget for in-flight data."""
    inputs_complete: bool = False
    outputs_complete: bool = False
    states: tuple[StateSegment, ...] | None = None
    committables: tuple[Committable, ...] = ()
    channels: tuple[ChannelSegment, ...] | None = None

    @property
    def checkpoint(self) -> CheckpointId:
        return self.barrier.checkpoint

    @property
    def inflight_bytes(self) -> int:
        return sum(captured_bytes(held.items) for held in self.captured())

    @property
    def encoded_bytes(self) -> int:
        """What a manifest would hold of it, about. Where batches are tiny it is many times their records."""
        return self.inflight_bytes + sum(_frame_bytes(item) for held in self.captured() for item in held.items)

    def captured(self) -> Iterable[CapturedChannel]:
        yield from self.inputs.values()
        yield from self.outputs.values()

    def report(self, subtask: SubtaskId, now_ms: int) -> SubtaskReport:
        assert self.states is not None and self.channels is not None
        figures = CheckpointStats(
            start_delay_ms=self.heard_after_ms,
            alignment_ms=self.alignment_ms,
            synchronous_ms=self.synchronous_ms,
            asynchronous_ms=now_ms - self.taken_at_ms,
            state_bytes=sum(state.segment.length for state in self.states),
            inflight_bytes=sum(channel.segment.length for channel in self.channels),
            inflight_rows=sum(channel.rows for channel in self.channels),
        )
        return SubtaskReport(
            subtask,
            self.cut,
            self.states,
            self.channels,
            self.splits,
            self.committables,
            self.watermarks,
            figures,
            self.totals,
        )


def _frame_bytes(item: Captured) -> int:
    return _ITEM_BYTES + (_COLUMN_BYTES * item.batch.num_columns if isinstance(item, BatchItem) else 0)


def write_state(
    store: Store,
    checkpoint: CheckpointId,
    generation: Generation,
    subtask: SubtaskId,
    encode: Callable[[], list[Piece]],
    inline_bytes_max: int,
) -> tuple[StateSegment, ...]:
    """Encode and write the state of a subtask: one blob, or none if it is small. Runs in the background."""
    pieces = encode()
    path = paths.blob(checkpoint, generation, subtask, paths.BlobContent.STATE)
    parts = [[memoryview(encode_batches(piece.batches))] for piece in pieces]
    segments = write_segments(store, path, parts, inline_bytes_max)
    return tuple(
        StateSegment(
            piece.operator,
            piece.name,
            piece.kind,
            segment,
            sum(batch.num_rows for batch in piece.batches),
            piece.key_group_first,
            piece.key_group_end,
            piece.declared,
        )
        for piece, segment in zip(pieces, segments, strict=True)
    )


def write_channels(
    store: Store,
    checkpoint: CheckpointId,
    generation: Generation,
    subtask: SubtaskId,
    captured: list[CapturedChannel],
    segment_bytes: int,
) -> list[ChannelSegment]:
    """Encode and write the in-flight data of a subtask. Runs in the background.

    In segments of a bounded size, so that a recovery needs only a few of them in memory at a time.
    """
    path = paths.blob(checkpoint, generation, subtask, paths.BlobContent.CHANNELS)
    return _encode_channels(captured, segment_bytes, lambda parts: write_segments(store, path, parts, 0))


def inline_channels(captured: list[CapturedChannel], segment_bytes: int) -> list[ChannelSegment]:
    """Encode the in-flight data of a subtask for the manifest itself."""
    return _encode_channels(captured, segment_bytes, inline_segments)


def _encode_channels(
    captured: list[CapturedChannel], segment_bytes: int, store: Callable[[list[list[Data]]], list[Segment]]
) -> list[ChannelSegment]:
    cut = [(held, items) for held in captured for items in _cut(held.items, segment_bytes)]
    segments = store([[memoryview(encode_items(items))] for _, items in cut])
    return [_channel_segment(held, items, segment) for (held, items), segment in zip(cut, segments, strict=True)]


def _cut(items: list[Captured], target_bytes: int) -> Iterator[list[Captured]]:
    """Runs of `items` of about `target_bytes` each, one item at least."""
    run: list[Captured] = []
    size = 0
    for item in items:
        if run and size >= target_bytes:
            yield run
            run, size = [], 0
        run.append(item)
        size += item.size if isinstance(item, BatchItem) else 0
    if run:
        yield run


def _channel_segment(held: CapturedChannel, items: list[Captured], segment: Segment) -> ChannelSegment:
    rows = sum(item.batch.num_rows for item in items if isinstance(item, BatchItem))
    ends = held.channel.sender.index, held.channel.receiver.index
    return ChannelSegment(held.channel.edge.id, *ends, held.side, segment, rows)
