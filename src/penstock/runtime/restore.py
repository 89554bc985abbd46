"""Restoring one subtask: reading its share of a checkpoint.

Runs in the background: reads, verifies, decodes and filters. What it returns is put in place by the mailbox.
Which pieces are whose is decided in `protocol.redistribution`; here they are fetched.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from penstock.errors import PenstockError, RestoreError
from penstock.ids import ChannelId, OperatorName, SubtaskId
from penstock.plan.physical import Channel, PhysicalPlan
from penstock.protocol.manifest import EdgeShape, Manifest, SplitState, StateKind
from penstock.protocol.redistribution import ChannelShare, channels_of, splits_of, states_of, watermark_of
from penstock.runtime.channel_state import decode_batches, decode_items
from penstock.runtime.items import BatchItem, Captured
from penstock.runtime.keys import key_groups
from penstock.storage.blob import read_segment
from penstock.storage.port import Store


@dataclass(slots=True)
class Restored:
    """A subtask's share of a checkpoint, in memory."""

    states: list[tuple[OperatorName, str, StateKind, list[pa.RecordBatch]]] = field(default_factory=list)
    splits: Mapping[str, SplitState] = field(default_factory=dict)
    split_names: Sequence[str] = ()
    """What the source says there is to read now."""
    channels: dict[ChannelId, list[Captured]] = field(default_factory=dict)
    watermark: int | None = None
    bytes_read: int = 0


def restore(store: Store, manifest: Manifest | None, plan: PhysicalPlan, subtask: SubtaskId) -> Restored:
    """Read the share of `subtask`, all of it empty without a manifest.

    Whatever cannot be read is an error, never an empty state (I8).
    """
    source = plan.chains[subtask.chain].nodes[0].source
    restored = Restored(split_names=source.splits() if source is not None else ())
    if manifest is None:
        return restored
    try:
        _restore(store, manifest, plan, subtask, restored)
    except PenstockError as error:
        raise RestoreError(f"{subtask} cannot be restored from checkpoint {manifest.checkpoint}: {error}") from error
    return restored


def _restore(store: Store, manifest: Manifest, plan: PhysicalPlan, subtask: SubtaskId, restored: Restored) -> None:
    chain = plan.chains[subtask.chain]
    restored.watermark = watermark_of(manifest, chain.name, subtask.index, chain.parallelism)
    for node in chain.nodes:
        if node.source is not None:
            restored.splits = splits_of(manifest, node.name)
        for piece in states_of(manifest, node.name, subtask.index, chain.parallelism, plan.key_groups(subtask)):
            restored.bytes_read += piece.segment.length
            batches = decode_batches(read_segment(store, piece.segment))
            restored.states.append((node.name, piece.name, piece.kind, batches))
    for edge in (edge for edge in plan.edges if edge.downstream == subtask.chain):
        arriving = {c.sender.index: c for c in plan.inputs[subtask] if c.edge.id == edge.id}
        shape = EdgeShape(edge.id, edge.partitioning, plan.chains[edge.upstream].parallelism, chain.parallelism)
        for share in channels_of(manifest, shape, subtask.index, sorted(arriving), plan.max_parallelism):
            channel = arriving[share.sender]
            restored.channels.setdefault(channel.id, []).extend(_recover(store, share, channel, plan, restored))


def _recover(
    store: Store, share: ChannelShare, channel: Channel, plan: PhysicalPlan, restored: Restored
) -> list[Captured]:
    own = plan.key_groups(channel.receiver)
    recovered: list[Captured] = []
    for segment in share.segments:
        restored.bytes_read += segment.segment.length
        for item in decode_items(read_segment(store, segment.segment)):
            if isinstance(item, BatchItem):
                kept = _own_rows(item, channel, own, plan.max_parallelism) if share.is_filtered else item
                if kept.batch.num_rows:
                    recovered.append(kept)
            elif share.keeps_watermarks:
                recovered.append(item)
    return recovered


def _own_rows(item: BatchItem, channel: Channel, own: range, max_parallelism: int) -> BatchItem:
    """The rows whose key group this receiver owns now (I9); columnar, in their order."""
    groups = key_groups(item.batch, channel.edge.key, max_parallelism)
    mine = (groups >= own.start) & (groups < own.stop)
    if mine.all():
        return item
    batch = item.batch.take(pa.array(np.flatnonzero(mine)))
    return BatchItem(batch, 0, batch.nbytes)
