"""What a checkpoint holds, by what its fields say and not by the code that restores it."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from penstock.columnar.hashing import key_groups
from penstock.exchange.codec import decode_batches, decode_items
from penstock.exchange.items import BatchItem, Captured, WatermarkItem
from penstock.ids import EdgeId
from penstock.protocol.manifest import ChannelSegment, Manifest, Side
from penstock.storage.blob import read_segment
from tests.simulation.cluster import Cluster
from tests.simulation.operators import kept
from tests.simulation.records import Numbers, numbers_of
from tests.simulation.sources import NumberSource

_NOTHING = np.empty(0, np.int64)


def emitted(cluster: Cluster, manifest: Manifest) -> Numbers:
    """What the sources have emitted, and no filter has dropped."""
    parts: list[Numbers] = [_NOTHING]
    sources = {node.name: node.source for node in cluster.topology.graph.nodes if node.source is not None}
    for report in manifest.reports:
        for split in report.splits:
            source = sources[split.operator]
            assert isinstance(source, NumberSource)
            numbers = np.arange(int(split.offset)) * source.split_count + int(split.split)
            parts.append(kept(numbers) if cluster.scenario.topology == "pipeline" else numbers)
    return np.concatenate(parts)


def in_flight(cluster: Cluster, manifest: Manifest) -> Numbers:
    """What is in channels, and in operators that hold records on their way."""
    found = [_NOTHING]
    for report in manifest.reports:
        for channel in report.channels:
            items = items_of(cluster, channel)
            found += [numbers_of(item.batch) for item in items if isinstance(item, BatchItem)]
        for piece in report.states:
            if piece.operator in cluster.topology.holding:
                batches = decode_batches(read_segment(cluster.disk.store, piece.segment))
                found += [numbers_of(_records_of(batch)) for batch in batches]
    return np.concatenate(found)


def _records_of(state: pa.RecordBatch) -> pa.RecordBatch:
    """Keyed state has its rows in a column; any other state is the rows themselves."""
    if "value" in state.schema.names:
        return pa.RecordBatch.from_struct_array(state.column("value"))
    return state


def committed(cluster: Cluster, manifest: Manifest) -> Numbers:
    """What is at the sinks by this checkpoint: its committables, and those of all before it."""
    names = [
        committable.payload.decode()
        for earlier in (*cluster.manifests, manifest)
        for report in earlier.reports
        for committable in report.committables
    ]
    return np.concatenate([_NOTHING, *(numbers for name in names for numbers in cluster.world.staged[name])])


def items_of(cluster: Cluster, channel: ChannelSegment) -> list[Captured]:
    """What a segment holds of its channel."""
    known = cluster.decoded.get(id(channel))
    if known is None:
        known = cluster.decoded[id(channel)] = _items_of(cluster, channel)
    return known


def _items_of(cluster: Cluster, channel: ChannelSegment) -> list[Captured]:
    stored = decode_items(read_segment(cluster.disk.store, channel.segment))
    own = range(channel.key_group_first, channel.key_group_end)
    if not (own or channel.first_row) and channel.has_watermarks:
        return stored
    (key,) = {edge.key for edge in cluster.plan.edges if edge.id == channel.edge}
    items: list[Captured] = []
    row = 0
    for item in stored:
        if isinstance(item, WatermarkItem):
            items += [item] if channel.has_watermarks else []
            continue
        counts = np.arange(row, row + item.batch.num_rows) >= channel.first_row
        if own:
            counts &= np.isin(key_groups(item.batch, key, cluster.plan.max_parallelism), own)
        items.append(BatchItem(item.batch.filter(pa.array(counts)), 0, 0))
        row += item.batch.num_rows
    return items


def items_of_channels(cluster: Cluster, manifest: Manifest) -> dict[tuple[EdgeId, int, int], list[Captured]]:
    """What each channel holds, in its order: what was recovered is older, then what the receiver held."""
    held: dict[tuple[EdgeId, int, int], list[Captured]] = {}
    segments = [channel for report in manifest.reports for channel in report.channels]
    for segment in sorted(segments, key=lambda segment: (-segment.age, segment.side is Side.SENDER)):
        items = items_of(cluster, segment)
        held.setdefault((segment.edge, segment.sender, segment.receiver), []).extend(items)
    return held
