"""Judges of bounds: queues, credit, captures, and files of the directory."""

from __future__ import annotations

from collections import Counter

from penstock.protocol.manifest import Manifest, blobs_of
from penstock.runtime.frames import AcknowledgeFrame, Frame
from penstock.runtime.items import BatchItem
from penstock.runtime.worker import Worker
from penstock.storage import paths
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

    def on_frame(self, frame: Frame) -> None:
        """Whatever goes beyond the bound is given up before anybody else has his turn."""
        if not isinstance(frame, AcknowledgeFrame):
            return
        for _, worker in self.cluster.driver.live_workers():
            if worker.captured_bytes > self.cluster.scenario.worker.capture_bytes_max:
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
                24 * self.cluster.scenario.load.rows, settings.window_bytes * len(subtask.outputs) // 2
            )
            output_bytes_max = settings.output_bytes_max + batch_bytes_max
            for arriving in subtask.inputs.values():
                waiting = sum(item.cost for item in arriving.queue if isinstance(item, BatchItem))
                if waiting > arriving.credit.outstanding or arriving.credit.outstanding > settings.window_bytes:
                    self.violation(f"I7 bounds: {arriving.channel} holds {waiting} bytes of credit")
            for leaving in subtask.outputs.values():
                if not 0 <= leaving.credit.available <= settings.window_bytes:
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
        present = cluster.disk.store.list(paths.CHECKPOINTS)
        kept = [manifest for manifest in cluster.manifests if paths.manifest(manifest.checkpoint) in present]
        blobs = set(cluster.disk.blobs())
        reachable = set().union(*map(blobs_of, kept))
        policy = cluster.scenario.supervisor.policy
        completed = [manifest for manifest in kept if not manifest.is_savepoint]
        if cluster.faults.store_has_failed:
            # Nothing is deleted after the end where a deletion fails: the next start makes up for it.
            return
        if len(completed) > policy.retained + 1:
            self.violation(f"files: {len(completed)} checkpoints are left, and {policy.retained} are to be retained")
        if blobs - reachable:
            self.violation(f"files: {sorted(blobs - reachable)[:3]} of {len(blobs)} blobs are named by no checkpoint")
        marks = Counter(paths.kind_of(path).value for path in present if path not in blobs)
        if marks.total() > self.MARKS_MAX + 3 * len(kept):
            self.violation(f"files: {dict(marks)} are left of {len(kept)} checkpoints")
