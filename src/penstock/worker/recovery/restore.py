"""Restoring one subtask: reading its share of a checkpoint.

Runs in the background: reads, verifies, decodes, and puts state in place, one piece after the other, so that neither
the mailbox nor memory has to hold all of it at once. The subtask has no state but this until it is told that all is
back: no record comes to it, and it declines every checkpoint.
Which pieces are whose is decided in `protocol.redistribution`; here they are fetched. In-flight data are only
named here: they are read while the subtask works already.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import pyarrow as pa

from penstock.errors import PenstockError, RestoreError
from penstock.exchange.codec import decode_batches
from penstock.graph.physical import PhysicalPlan
from penstock.ids import ChannelId, OperatorName, SubtaskId
from penstock.model.event_time import MAX_WATERMARK, MIN_WATERMARK
from penstock.protocol.manifest import ChannelSegment, EdgeShape, Manifest, SplitState, StateKind
from penstock.protocol.redistribution import channels_of, splits_of, states_of, watermark_of
from penstock.storage.blob import read_segment
from penstock.storage.port import Store


@dataclass(slots=True)
class Restored:
    """A subtask's share of a checkpoint, apart from its state, which is in place: where to go on reading."""

    splits: Mapping[str, SplitState] = field(default_factory=dict)
    split_names: Sequence[str] = ()
    """What the source says there is to read now."""
    channels: dict[ChannelId, list[ChannelSegment]] = field(default_factory=dict)
    """Not read yet: see `recovered`."""
    watermark: int | None = None
    """The event time that was reached; None if none was."""
    clocks: dict[OperatorName, int] = field(default_factory=dict)
    """The event time that operators of the chain had seen, when all recovered records are done."""


@dataclass(slots=True)
class Reading:
    """How far a subtask has come with reading its state. Written by one thread, read by others."""

    bytes_total: int = 0
    bytes_read: int = 0


Put: TypeAlias = Callable[[OperatorName, str, StateKind, list[pa.RecordBatch]], None]
"""Adds a piece to the state of an operator."""


def restore(
    store: Store,
    manifest: Manifest | None,
    plan: PhysicalPlan,
    subtask: SubtaskId,
    put: Put,
    reading: Reading | None = None,
) -> Restored:
    """Read the share of `subtask`, all of it empty without a manifest. Its state is handed to `put`.

    `reading` is told how far that has come.

    Whatever cannot be read is an error, never an empty state (I8).
    """
    source = plan.chains[subtask.chain].nodes[0].source
    restored = Restored(split_names=source.splits() if source is not None else ())
    if manifest is None:
        return restored
    try:
        _restore(store, manifest, plan, subtask, put, restored, reading or Reading())
    except PenstockError as error:
        raise RestoreError(f"{subtask} cannot be restored from checkpoint {manifest.checkpoint}: {error}") from error
    return restored


def _reached(watermark: int | None) -> int | None:
    """The watermark, if it is a time. An old manifest may hold the end of input as if it were one."""
    return watermark if watermark is not None and MIN_WATERMARK < watermark < MAX_WATERMARK else None


def _restore(
    store: Store,
    manifest: Manifest,
    plan: PhysicalPlan,
    subtask: SubtaskId,
    put: Put,
    restored: Restored,
    reading: Reading,
) -> None:
    chain = plan.chains[subtask.chain]
    clocks = {
        name: _reached(watermark_of(manifest, name, subtask.index, chain.parallelism))
        for name in (chain.name, *(node.name for node in chain.nodes))
    }
    restored.watermark = clocks.pop(chain.name)
    restored.clocks = {name: clock for name, clock in clocks.items() if clock is not None}
    key_groups = plan.key_groups(subtask)
    pieces = {
        node.name: states_of(manifest, node.name, subtask.index, chain.parallelism, key_groups) for node in chain.nodes
    }
    reading.bytes_total = sum(piece.segment.length for found in pieces.values() for piece in found)
    for node in chain.nodes:
        if node.source is not None:
            restored.splits = splits_of(manifest, node.name)
        for piece in pieces[node.name]:
            put(node.name, piece.name, piece.kind, decode_batches(read_segment(store, piece.segment)))
            reading.bytes_read += piece.segment.length
    for edge in (edge for edge in plan.edges if edge.downstream == subtask.chain):
        arriving = {c.sender.index: c.id for c in plan.inputs[subtask] if c.edge.id == edge.id}
        shape = EdgeShape(edge.id, edge.partitioning, plan.chains[edge.upstream].parallelism, chain.parallelism)
        for segment in channels_of(manifest, shape, subtask.index, sorted(arriving), plan.max_parallelism):
            restored.channels.setdefault(arriving[segment.sender], []).append(segment)
