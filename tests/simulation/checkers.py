"""The judges: each looks at one thing that must hold, and knows nothing of how it is brought about."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pyarrow as pa

from penstock.errors import FencedError, NoReadableCheckpoint
from penstock.ids import CheckpointId
from penstock.protocol.manifest import Manifest, StateKind
from penstock.runtime.channel_state import decode_batches
from penstock.runtime.items import BatchItem
from penstock.runtime.supervisor import Phase
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
    cluster.on_manifest.append(lambda manifest: _check_bounds(cluster))


def judge(cluster: Cluster) -> None:
    """Look at what came out in the end."""
    if cluster.world.violations:
        return
    _check_ending(cluster)
    _check_output(cluster)
    _check_commits(cluster)
    _check_counts(cluster)


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
            data = read_segment(cluster.disk.store, channel.segment)
            found += [numbers_of(batch) for batch in decode_batches(data)]
    return found


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
    if members != sorted(cluster.plan.subtasks):
        cluster.world.violation(f"I12 members: checkpoint {manifest.checkpoint} has reports of {members}")


def _check_bounds(cluster: Cluster) -> None:
    """I7: queues stay within their credit, captures within their budget."""
    settings = cluster.scenario.worker
    for _, worker in cluster.driver.live_workers():
        for subtask in worker.subtasks.values():
            for arriving in subtask.inputs.values():
                waiting = sum(item.cost for item in arriving.queue if isinstance(item, BatchItem))
                if waiting + arriving.credit.owed > settings.window_bytes:
                    cluster.world.violation(f"I7 bounds: {arriving.channel} holds {waiting} bytes of credit")
            for leaving in subtask.outputs.values():
                if not 0 <= leaving.credit.available <= settings.window_bytes:
                    cluster.world.violation(f"credit of {leaving.channel} is {leaving.credit.available}")
        if worker.captured_bytes < 0:
            cluster.world.violation(f"I7 bounds: {worker.captured_bytes} bytes captured")


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
    allowed = cluster.is_rotten and not cluster.has_refused
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
    if cluster.has_refused or not cluster.manifests:
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


def _counts_in(batch: pa.RecordBatch) -> dict[int, int]:
    keys, values = batch.column("key").field("k").to_pylist(), batch.column("value").field("count(*)").to_pylist()
    return dict(zip(keys, values, strict=True))


def _some(counter: Counter[int]) -> str:
    shown = ", ".join(
        f"{number}×{count}" if count > 1 else str(number) for number, count in sorted(counter.items())[:5]
    )
    return f"[{shown}{', …' if len(counter) > 5 else ''}]"
