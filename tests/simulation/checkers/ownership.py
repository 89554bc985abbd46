"""Judges of the directory: ids, generations, the order of files, and pipelines that do not fit."""

from __future__ import annotations

from penstock.errors import IncompatibleCheckpoint
from penstock.ids import Generation, SubtaskId
from penstock.protocol.manifest import Manifest, blobs_of
from penstock.storage import paths
from tests.simulation.checkers.base import Checker
from tests.simulation.driver import Driver
from tests.simulation.scenario import FaultKind


class Identity(Checker):
    """I5: ids grow. I6: generations do not go back. I3: every blob was there before. I12: all members reported."""

    def on_manifest(self, manifest: Manifest) -> None:
        cluster = self.cluster
        if cluster.manifests and manifest.checkpoint <= cluster.manifests[-1].checkpoint:
            before = cluster.manifests[-1].checkpoint
            self.violation(f"I5 identity: checkpoint {manifest.checkpoint} completed after {before}")
        newest = max((earlier.generation for earlier in cluster.manifests), default=0)
        if manifest.generation < newest:
            self.violation(f"I6 fencing: generation {manifest.generation} completed a checkpoint after {newest}")
        missing = blobs_of(manifest) - cluster.disk.store.blobs.keys()
        if missing:
            self.violation(f"I3 manifest last: checkpoint {manifest.checkpoint} names {missing}")
        members = sorted(report.subtask for report in manifest.reports)
        wanted = sorted({operator.chain: operator.parallelism for operator in manifest.shape.operators}.items())
        if members != [SubtaskId(chain, index) for chain, count in wanted for index in range(count)]:
            self.violation(f"I12 members: checkpoint {manifest.checkpoint} has reports of {members}")


class Strays(Checker):
    """I6: a manifest that took effect after its tombstone was gone is neither restored nor kept by a later pruning."""

    def on_launch(self, driver: Driver, generation: Generation, manifest: Manifest | None) -> None:
        if manifest is not None and manifest in self.cluster.strays:
            self.violation(f"I6 fencing: generation {generation} starts from stray {manifest.checkpoint}")

    def at_end(self) -> None:
        cluster = self.cluster
        if cluster.faults.store_has_failed or cluster.is_hanging or cluster.has_refused or cluster.is_rotten:
            return
        history = cluster.disk.history
        for stray in cluster.strays:
            path = paths.manifest(stray.checkpoint)
            created = len(history) - 1 - history[::-1].index(("create", path))
            begun = [
                manifest.checkpoint
                for manifest in cluster.manifests
                if ("create", paths.manifest(manifest.checkpoint)) in history[created:]
            ]
            if begun and path in cluster.disk.store.blobs and not stray.is_savepoint:
                self.violation(f"files: stray {stray.checkpoint} is left, although {begun[-1]} completed after it")


class Deletions(Checker):
    """I3: as long as a manifest exists, so does every blob that it names, at every moment."""

    def at_end(self) -> None:
        named = {paths.manifest(manifest.checkpoint): blobs_of(manifest) for manifest in self.cluster.manifests}
        present: dict[str, frozenset[str]] = {}
        for what, path in self.cluster.disk.history:
            if what == "create" and path in named:
                # Once: what takes the place of a manifest that was retired is a void outcome.
                present[path] = named.pop(path)
            elif what == "delete":
                present.pop(path, None)
                if any(path in blobs for blobs in present.values()):
                    self.violation(f"I3 manifest last: {path} was deleted before the manifest that names it")


class Refusals(Checker):
    """A pipeline that does not fit its checkpoint is refused before anything has started."""

    def on_launch(self, driver: Driver, generation: Generation, manifest: Manifest | None) -> None:
        if driver.misfit is None:
            return
        if not driver.misfit.is_found_by_workers:
            self.violation(f"a pipeline that had changed ({driver.misfit.name}) was started from {manifest!r:.60}")
        if isinstance(driver.supervisor.error, IncompatibleCheckpoint):
            self.violation(f"a pipeline that had changed ({driver.misfit.name}) was refused, and started again")

    def on_manifest(self, manifest: Manifest) -> None:
        misfit = self.cluster.driver.misfit
        if misfit is not None:
            self.violation(f"a pipeline that had changed ({misfit.name}) completed checkpoint {manifest.checkpoint}")


class Patience(Checker):
    """A worker that is busy is not dead: its attempt goes on."""

    HARMLESS = frozenset({FaultKind.BUSY_WORKER, FaultKind.SAVEPOINT, FaultKind.CANCEL})

    def on_launch(self, driver: Driver, generation: Generation, manifest: Manifest | None) -> None:
        happened = self.cluster.faults.happened
        was_only_busy = FaultKind.BUSY_WORKER in happened and happened <= self.HARMLESS
        if was_only_busy and driver.supervisor.restarts:
            self.violation(f"a worker was busy, and the pipeline restarted: {driver.supervisor.error}")
