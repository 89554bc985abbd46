"""The judges: each looks at one thing that must hold, and knows nothing of how it is brought about."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pyarrow as pa

from penstock.api.operator import MAX_WATERMARK
from penstock.errors import FencedError, NoReadableCheckpoint
from penstock.ids import CheckpointId, EdgeId, SubtaskId
from penstock.plan.physical import Channel
from penstock.protocol.coordinator_state import Mode
from penstock.protocol.manifest import ChannelSegment, Cut, Manifest, Side, StateKind, blobs_of
from penstock.protocol.recovery import FallBack
from penstock.runtime.channel_state import decode_batches, decode_items
from penstock.runtime.frames import AcknowledgeFrame, Frame
from penstock.runtime.items import BatchItem, Captured, WatermarkItem
from penstock.runtime.keys import key_groups
from penstock.runtime.supervisor import Phase
from penstock.runtime.worker import Worker
from penstock.storage import paths
from penstock.storage.blob import read_segment
from tests.simulation.cluster import Cluster
from tests.simulation.operators import KEYS, kept
from tests.simulation.records import Numbers, numbers_of
from tests.simulation.world import NumberSource


def attach(cluster: Cluster) -> None:
    """Let the judges that look at every checkpoint look at every checkpoint."""
    if cluster.topology.is_linear:
        cluster.on_manifest.append(lambda manifest: _take_stock(cluster, manifest))
    cluster.on_manifest.append(lambda manifest: _check_identity(cluster, manifest))
    cluster.on_manifest.append(lambda manifest: _check_cuts(cluster, manifest))
    cluster.on_manifest.append(lambda manifest: _check_event_time(cluster, manifest))
    cluster.on_manifest.append(lambda manifest: _check_bounds(cluster, manifest))
    cluster.on_manifest.append(lambda manifest: _check_drained(cluster, manifest))
    note = cluster.network.on_frame

    def look_at(frame: Frame) -> None:
        if note is not None:
            note(frame)
        if isinstance(frame, AcknowledgeFrame):
            _check_captured(cluster)

    cluster.network.on_frame = look_at


def judge(cluster: Cluster) -> None:
    """Look at what came out in the end."""
    if cluster.world.violations:
        return
    _check_ending(cluster)
    _check_output(cluster)
    _check_commits(cluster)
    _check_counts(cluster)
    _check_deletions(cluster)


# --- at every checkpoint ---


def _take_stock(cluster: Cluster, manifest: Manifest) -> None:
    """I1: what the sources have emitted is in flight, or at the sinks, each record once."""
    if cluster.is_rotten:
        return
    emitted = [_emitted(cluster, manifest)]
    held = [*_in_flight(cluster, manifest)]
    for earlier in (*cluster.manifests, manifest):
        for report in earlier.reports:
            for committable in report.committables:
                held += cluster.world.staged[committable.payload.decode()]
    found = np.sort(np.concatenate([np.empty(0, np.int64), *held]))
    wanted = np.sort(np.concatenate([np.empty(0, np.int64), *emitted]))
    if not np.array_equal(found, wanted):
        there, due = Counter(found.tolist()), Counter(wanted.tolist())
        lost, twice = due - there, there - due
        cluster.world.violation(
            f"I1 cut: checkpoint {manifest.checkpoint} misses {_some(lost)} and has too many of {_some(twice)}"
        )


def _emitted(cluster: Cluster, manifest: Manifest) -> Numbers:
    parts: list[Numbers] = []
    sources = {node.name: node.source for node in cluster.topology.graph.nodes if node.source is not None}
    for report in manifest.reports:
        for split in report.splits:
            source = sources[split.operator]
            assert isinstance(source, NumberSource)
            numbers = np.arange(int(split.offset)) * source.split_count + int(split.split)
            parts.append(kept(numbers) if cluster.scenario.topology == "pipeline" else numbers)
    return np.concatenate(parts)


def _in_flight(cluster: Cluster, manifest: Manifest) -> list[Numbers]:
    found = []
    for report in manifest.reports:
        for channel in report.channels:
            items = _items_of(cluster, channel)
            found += [numbers_of(item.batch) for item in items if isinstance(item, BatchItem)]
    return found


def _items_of(cluster: Cluster, channel: ChannelSegment) -> list[Captured]:
    """What a segment holds of its channel: by what its fields say, not by the code that restores it."""
    (key,) = {edge.key for edge in cluster.plan.edges if edge.id == channel.edge}
    own = range(channel.key_group_first, channel.key_group_end)
    items: list[Captured] = []
    row = 0
    stored = decode_items(read_segment(cluster.disk.store, channel.segment))
    if not (own or channel.first_row) and channel.has_watermarks:
        return stored
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


def _check_identity(cluster: Cluster, manifest: Manifest) -> None:
    """I5: ids grow. I3: no two manifests for one id, and every blob was there before."""
    if cluster.manifests and manifest.checkpoint <= cluster.manifests[-1].checkpoint:
        before = cluster.manifests[-1].checkpoint
        cluster.world.violation(f"I5 identity: checkpoint {manifest.checkpoint} completed after {before}")
    newest = max((earlier.generation for earlier in cluster.manifests), default=0)
    if manifest.generation < newest:
        cluster.world.violation(f"I6 fencing: generation {manifest.generation} completed a checkpoint after {newest}")
    present = set(cluster.disk.store.list(paths.CHECKPOINTS))
    named = {
        piece.segment.path
        for report in manifest.reports
        for piece in (*report.states, *report.channels)
        if piece.segment.path is not None
    }
    if named - present:
        cluster.world.violation(f"I3 manifest last: checkpoint {manifest.checkpoint} names {named - present}")
    members = sorted(report.subtask for report in manifest.reports)
    wanted = sorted({operator.chain: operator.parallelism for operator in manifest.shape.operators}.items())
    if members != [SubtaskId(chain, index) for chain, count in wanted for index in range(count)]:
        cluster.world.violation(f"I12 members: checkpoint {manifest.checkpoint} has reports of {members}")


_CUTS = {
    Mode.ALIGNED: {Cut.ALIGNED},
    Mode.UNALIGNED: {Cut.ALIGNED, Cut.FORCED},
    Mode.ALIGNED_WITH_TIMEOUT: {Cut.ALIGNED, Cut.TIMED_OUT, Cut.OVERTAKEN},
}
"""What a cut may be reported as; a subtask that must stay aligned is aligned in every mode."""


def _check_cuts(cluster: Cluster, manifest: Manifest) -> None:
    """I7: a checkpoint is reported as what it is, and what must stay aligned captures nothing."""
    mode = Mode.ALIGNED if manifest.is_savepoint else cluster.scenario.supervisor.policy.mode
    aligned = {edge.id for edge in cluster.plan.edges if cluster.plan.chains[edge.downstream].aligned_only}
    for report in manifest.reports:
        what = f"checkpoint {manifest.checkpoint} of {report.subtask} is '{report.cut.value}'"
        if report.cut not in _CUTS[mode]:
            cluster.world.violation(f"I7 bounds: {what}, and the mode is '{mode.value}'")
        if report.cut is Cut.ALIGNED and any(channel.side is Side.RECEIVER for channel in report.channels):
            cluster.world.violation(f"I7 bounds: {what}, and its input was captured")
        if report.channels and mode is Mode.ALIGNED:
            cluster.world.violation(f"I7 bounds: {what} and captured records, and the mode is '{mode.value}'")
        if any(channel.edge in aligned for channel in report.channels):
            cluster.world.violation(f"{what} and captured records on an edge that must stay aligned")


def _check_event_time(cluster: Cluster, manifest: Manifest) -> None:
    """Watermarks are captured in their places: none is lost, and none is ahead of the records it speaks for."""
    if cluster.is_rotten or manifest.shape != cluster.plan.shape():
        # A driver that was replaced by one at another parallelism has completed its last one.
        return
    clocks = _clocks_of(manifest)
    before = cluster.manifests[-1] if cluster.manifests and not cluster.is_rotten else manifest
    for subtask, clock in _clocks_of(before).items() if before.shape == manifest.shape else ():
        if clocks[subtask] < clock:
            cluster.world.violation(f"event time: {subtask} was at {clock} and went back to {clocks[subtask]}")
    held = _items_of_channels(cluster, manifest)
    for receiver, channels in cluster.plan.inputs.items():
        sent = [clocks[channel.sender] for channel in channels]
        marks = []
        for channel, clock in zip(channels, sent, strict=True):
            items = held.get((channel.edge.id, channel.sender.index, channel.receiver.index), [])
            newest = [item.watermark for item in items if isinstance(item, WatermarkItem)][-1:]
            if newest and newest[0] != clock:
                cluster.world.violation(f"event time: {channel} holds {newest[0]}, and its sender is at {clock}")
            marks += newest
            if cluster.topology.is_linear:
                _check_lateness(cluster, manifest, channel, clocks[receiver], items)
        # A sender at its end holds nobody back, and a checkpoint does not say which ones are.
        if sent and not marks and not min(sent) <= clocks[receiver] <= max(sent):
            cluster.world.violation(
                f"event time: in checkpoint {manifest.checkpoint} {receiver} is at {clocks[receiver]} and its senders "
                f"at {min(sent)} to {max(sent)}, and no watermark is in flight"
            )
        if MAX_WATERMARK in (*sent, clocks[receiver]):
            cluster.world.violation(f"event time: checkpoint {manifest.checkpoint} holds the end of input as a clock")


def _clocks_of(manifest: Manifest) -> dict[SubtaskId, int]:
    return {report.subtask: clock for report in manifest.reports for _, clock in report.watermarks}


def _items_of_channels(cluster: Cluster, manifest: Manifest) -> dict[tuple[EdgeId, int, int], list[Captured]]:
    """What each channel holds, in its order: what was recovered is older, then what the receiver held."""
    held: dict[tuple[EdgeId, int, int], list[Captured]] = {}
    segments = [channel for report in manifest.reports for channel in report.channels]
    for segment in sorted(segments, key=lambda segment: (-segment.age, segment.side is Side.SENDER)):
        items = _items_of(cluster, segment)
        held.setdefault((segment.edge, segment.sender, segment.receiver), []).extend(items)
    return held


def _check_lateness(cluster: Cluster, manifest: Manifest, channel: Channel, clock: int, items: list[Captured]) -> None:
    """No record in flight is older than what its receiver believes, or than a watermark in front of it."""
    sources = [node.source for node in cluster.topology.graph.nodes if isinstance(node.source, NumberSource)]
    (split_count,) = {source.split_count for source in sources}
    for item in items:
        if isinstance(item, WatermarkItem):
            clock = max(clock, item.watermark)
        elif (numbers_of(item.batch) // split_count < clock).any():
            cluster.world.violation(
                f"event time: checkpoint {manifest.checkpoint} holds records on {channel} that are older than {clock}"
            )


def _check_bounds(cluster: Cluster, manifest: Manifest) -> None:
    """I7: queues stay within their credit and backpressure, captures within their budget."""
    has_begun_another = _has_begun_another(cluster, manifest)
    cluster.overlaps += has_begun_another
    settings = cluster.scenario.worker
    for _, worker in cluster.driver.live_workers():
        for subtask in worker.subtasks.values():
            # A subtask that nothing held up may have filled a queue with what one batch makes: two columns of eight
            # bytes. A batch may be of several that came, but not of more than half of what all receivers have room for.
            batch_bytes_max = max(16 * cluster.scenario.load.rows, settings.window_bytes * len(subtask.outputs) // 2)
            output_bytes_max = settings.output_bytes_max + batch_bytes_max
            for arriving in subtask.inputs.values():
                waiting = sum(item.cost for item in arriving.queue if isinstance(item, BatchItem))
                if waiting > arriving.credit.outstanding or arriving.credit.outstanding > settings.window_bytes:
                    cluster.world.violation(f"I7 bounds: {arriving.channel} holds {waiting} bytes of credit")
            for leaving in subtask.outputs.values():
                if not 0 <= leaving.credit.available <= settings.window_bytes:
                    cluster.world.violation(f"credit of {leaving.channel} is {leaving.credit.available}")
                if cluster.topology.is_linear and leaving.queued_bytes > output_bytes_max:
                    cluster.world.violation(f"I7 bounds: {leaving.queued_bytes} bytes wait on {leaving.channel}")
        if worker.generation == manifest.generation and not has_begun_another:
            _check_released(cluster, worker)


def _has_begun_another(cluster: Cluster, manifest: Manifest) -> bool:
    """Whether a later checkpoint was triggered while this manifest was written: workers may hold something for it."""
    coordinator = cluster.driver.supervisor.coordinator
    if coordinator is None:
        return False
    later = [record for record in coordinator.history if record.checkpoint > manifest.checkpoint]
    return coordinator.state.collecting is not None or bool(later)


def _check_captured(cluster: Cluster) -> None:
    """I7: whatever goes beyond the bound is given up before anybody else has his turn."""
    for _, worker in cluster.driver.live_workers():
        if worker.captured_bytes > cluster.scenario.worker.capture_bytes_max:
            cluster.world.violation(f"I7 bounds: worker {worker.worker} holds {worker.captured_bytes} captured bytes")


def _check_released(cluster: Cluster, worker: Worker) -> None:
    """Everybody has acknowledged, so nobody holds anything for this checkpoint or for one before it."""
    if worker.captured_bytes:
        cluster.world.violation(f"I7 bounds: worker {worker.worker} still holds {worker.captured_bytes} captured bytes")
    for subtask in worker.subtasks.values():
        for arriving in subtask.inputs.values():
            if arriving.capturing is not None:
                cluster.world.violation(f"I7 bounds: {arriving.channel} is still captured, for nobody")


def _check_drained(cluster: Cluster, manifest: Manifest) -> None:
    """After the last barrier no source emits anything: the last checkpoint holds all that the pipeline has done."""
    noted = {(split.operator, split.split): split.offset for report in manifest.reports for split in report.splits}
    for _, worker in cluster.driver.live_workers():
        if not manifest.is_final or worker.generation != manifest.generation:
            continue
        for source in (subtask.chain.source for subtask in worker.subtasks.values()):
            for split in source.positions() if source is not None else ():
                if split.offset != noted[split.operator, split.split]:
                    cluster.world.violation(f"drain: '{split.operator}' was read on to {split.offset!r}")


# --- in the end ---


def _check_ending(cluster: Cluster) -> None:
    supervisor = cluster.driver.supervisor
    if supervisor.phase is not Phase.FINISHED and not (cluster.has_refused and cluster.is_rotten):
        cluster.world.violation(f"the pipeline {supervisor.phase.value}: {supervisor.error}")
    for driver in cluster.drivers:
        other = driver is not cluster.driver and driver.process.is_alive and driver.supervisor.phase is Phase.FAILED
        if other and not isinstance(driver.supervisor.error, FencedError | NoReadableCheckpoint):
            cluster.world.violation(f"another driver failed, but not because it was fenced: {driver.supervisor.error}")
    if not cluster.has_refused and worker_budget(cluster):
        cluster.world.violation(f"I7 bounds: {worker_budget(cluster)} captured bytes were never given back")


def worker_budget(cluster: Cluster) -> int:
    return sum(worker.captured_bytes for _, worker in cluster.driver.live_workers())


def _check_output(cluster: Cluster) -> None:
    """Lost = duplicated = 0."""
    published = [numbers for part in cluster.world.published.values() for numbers in part]
    found = Counter(np.concatenate([np.empty(0, np.int64), *published]).tolist())
    wanted = Counter(cluster.topology.expected.tolist())
    lost, twice = wanted - found, found - wanted
    if lost and not cluster.has_refused:
        cluster.world.violation(f"lost {lost.total()} records: {_some(lost)}")
    goes_back = cluster.scenario.supervisor.restore.fall_back is FallBack.ALLOW_DUPLICATES
    allowed = cluster.is_rotten and goes_back and not cluster.has_refused
    if twice and not allowed:
        cluster.world.violation(f"duplicated {twice.total()} records: {_some(twice)}")


def _check_commits(cluster: Cluster) -> None:
    """I4: only what a manifest names is published, and everything that one names."""
    named: dict[CheckpointId, set[str]] = {
        manifest.checkpoint: {
            committable.payload.decode() for report in manifest.reports for committable in report.committables
        }
        for manifest in cluster.manifests
    }
    for checkpoint, names in cluster.world.commits:
        if set(names) - named.get(checkpoint, set()):
            cluster.world.violation(f"I4 decision: {names} committed for {checkpoint}, whose manifest does not name it")
    everything = set().union(*named.values()) if named else set()
    missing = everything - set(cluster.world.published)
    if missing and not cluster.has_refused and not cluster.is_rotten:
        cluster.world.violation(f"I4 decision: {sorted(missing)[:3]} are in a manifest and were never published")


def _check_counts(cluster: Cluster) -> None:
    """What the counting operators hold in the end is what they were given, restored or not."""
    if cluster.has_refused or cluster.is_rotten or not cluster.manifests:
        return
    final = cluster.manifests[-1]
    for operator, numbers in cluster.topology.counted.items():
        counts: Counter[int] = Counter()
        for report in final.reports:
            for piece in report.states:
                if piece.operator == operator and piece.kind is StateKind.KEYED:
                    for batch in decode_batches(read_segment(cluster.disk.store, piece.segment)):
                        counts.update(_counts_in(batch))
        wanted = Counter((numbers % KEYS).tolist())
        if counts != wanted:
            much, little = _some(counts - wanted), _some(wanted - counts)
            cluster.world.violation(f"'{operator}' counted {much} too much, {little} too little")


def _check_deletions(cluster: Cluster) -> None:
    """I3: as long as a manifest exists, so does every blob that it names, at every moment."""
    named = {paths.manifest(manifest.checkpoint): blobs_of(manifest) for manifest in cluster.manifests}
    present: dict[str, frozenset[str]] = {}
    for what, path in cluster.disk.history:
        if what == "create" and path in named:
            # Once: what takes the place of a manifest that was retired is a void outcome.
            present[path] = named.pop(path)
        elif what == "delete":
            present.pop(path, None)
            if any(path in blobs for blobs in present.values()):
                cluster.world.violation(f"I3 manifest last: {path} was deleted before the manifest that names it")


def _counts_in(batch: pa.RecordBatch) -> dict[int, int]:
    keys, values = batch.column("key").field("k").to_pylist(), batch.column("value").field("count(*)").to_pylist()
    return dict(zip(keys, values, strict=True))


def _some(counter: Counter[int]) -> str:
    shown = ", ".join(
        f"{number}×{count}" if count > 1 else str(number) for number, count in sorted(counter.items())[:5]
    )
    return f"[{shown}{', …' if len(counter) > 5 else ''}]"
