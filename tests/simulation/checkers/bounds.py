"""Judges of bounds: queues, credit, captures, and files of the directory."""

from __future__ import annotations

from collections import Counter

from penstock.exchange.items import BatchItem
from penstock.mailbox.frames import AcknowledgeFrame
from penstock.protocol.manifest import Manifest, blobs_of
from penstock.protocol.manifest.codec import decode_manifest_or_tombstone
from penstock.storage import paths
from penstock.worker.worker import Worker
from tests.simulation.checkers.base import Checker


class Bounds(Checker):
    """I7: queues stay within their credit and backpressure, captures within their budget, and are given back."""

    def on_manifest(self, manifest: Manifest) -> None:
        cluster = self.cluster
        has_begun_another = self._has_begun_another(manifest)
        cluster.overlaps += has_begun_another
        for _, worker in cluster.driver.live_workers():
            self._check_queues(worker)
            if worker.generation == manifest.generation and not has_begun_another:
                self._check_released(worker)

    def on_acknowledge(self, frame: AcknowledgeFrame) -> None:
        """Whatever goes beyond the bound is given up before anybody else has his turn."""
        for _, worker in self.cluster.driver.live_workers():
            if worker.captured_bytes > self.cluster.scenario.worker.inflight_bytes_max:
                self.violation(f"I7 bounds: worker {worker.worker} holds {worker.captured_bytes} captured bytes")

    def at_end(self) -> None:
        held = sum(worker.captured_bytes for _, worker in self.cluster.driver.live_workers())
        if held and not self.cluster.has_refused:
            self.violation(f"I7 bounds: {held} captured bytes were never given back")

    def _check_queues(self, worker: Worker) -> None:
        settings = self.cluster.scenario.worker
        for subtask in worker.subtasks.values():
            # A subtask that nothing held up may have filled a queue with what one batch makes: three columns of eight
            # bytes. A batch may be of several that came, but not of more than half of what all receivers have room for.
            batch_bytes_max = max(
                24 * self.cluster.scenario.load.rows, settings.credit_limit_bytes * len(subtask.outputs) // 2
            )
            output_bytes_max = settings.output_bytes_max + batch_bytes_max
            for arriving in subtask.inputs.values():
                waiting = sum(item.cost for item in arriving.queue if isinstance(item, BatchItem))
                if waiting > arriving.credit.outstanding or arriving.credit.outstanding > settings.credit_limit_bytes:
                    self.violation(f"I7 bounds: {arriving.channel} holds {waiting} bytes of credit")
            for leaving in subtask.outputs.values():
                if not 0 <= leaving.credit.available <= settings.credit_limit_bytes:
                    self.violation(f"credit of {leaving.channel} is {leaving.credit.available}")
                if self.cluster.topology.is_linear and leaving.queued_bytes > output_bytes_max:
                    self.violation(f"I7 bounds: {leaving.queued_bytes} bytes wait on {leaving.channel}")

    def _check_released(self, worker: Worker) -> None:
        """Everybody has acknowledged, so nobody holds anything for this checkpoint or for one before it."""
        if worker.captured_bytes:
            self.violation(f"I7 bounds: worker {worker.worker} still holds {worker.captured_bytes} captured bytes")
        for subtask in worker.subtasks.values():
            for arriving in subtask.inputs.values():
                if arriving.capturing is not None:
                    self.violation(f"I7 bounds: {arriving.channel} is still captured, for nobody")

    def _has_begun_another(self, manifest: Manifest) -> bool:
        """Whether a later checkpoint was triggered while this manifest was written: workers may hold data for it."""
        coordinator = self.cluster.driver.supervisor.coordinator
        if coordinator is None:
            return False
        later = [record for record in coordinator.history if record.checkpoint > manifest.checkpoint]
        return coordinator.state.collecting is not None or bool(later)


class Files(Checker):
    """A directory holds the retained checkpoints and a few small files: nothing is left behind by every start.

    After the end of a pipeline what nobody can reach has been removed.
    """

    MARKS_MAX = 12
    """Reservations, void marks and commit markers besides those of the checkpoints that are kept."""

    def at_end(self) -> None:
        cluster = self.cluster
        if cluster.has_refused or cluster.is_rotten or not cluster.manifests:
            return
        if cluster.faults.store_has_failed or cluster.is_hanging:
            # Where a deletion fails or hangs after the end, the next start makes up for it.
            return
        present = cluster.disk.store.list(paths.CHECKPOINTS)
        by_kind = Counter(paths.kind_of(path) for path in present)
        kept = [manifest for manifest in cluster.manifests if self._is_there(manifest)]
        retained = cluster.scenario.supervisor.policy.retained
        completed = [manifest for manifest in kept if not manifest.is_savepoint]
        if len(completed) > retained + 1:
            self.violation(f"files: {len(completed)} checkpoints are left, and {retained} are to be retained")
        orphans = set(cluster.disk.blobs()).difference(*map(blobs_of, kept), self._written_late())
        if orphans:
            self.violation(f"files: {len(orphans)} blobs are named by no checkpoint: {sorted(orphans)[:3]}")
        marks = by_kind.total() - by_kind[paths.PathKind.BLOB]
        if marks > self.MARKS_MAX + 3 * len(kept):
            tombstone = by_kind[paths.PathKind.MANIFEST] - len(kept)
            reserved = by_kind[paths.PathKind.RESERVED]
            self.violation(f"files: {tombstone} void marks and {reserved} reservations for {len(kept)} checkpoints")

    def _written_late(self) -> set[str]:
        """What workers of an older generation have written since the last checkpoint: the next start removes it."""
        history = self.cluster.disk.history
        last = history.index(("create", paths.manifest(self.cluster.manifests[-1].checkpoint)))
        return {path for what, path in history[last:] if what == "write"}

    def _is_there(self, manifest: Manifest) -> bool:
        """Whether the checkpoint is: in the place of one that was removed there may be a void mark."""
        data = self.cluster.disk.store.blobs.get(paths.manifest(manifest.checkpoint))
        return data is not None and isinstance(decode_manifest_or_tombstone(data), Manifest)
