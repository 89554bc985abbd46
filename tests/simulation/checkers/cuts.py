"""Judges of a checkpoint: whether each record is in it once, and whether it is reported as what it is."""

from __future__ import annotations

from collections import Counter

import numpy as np

from penstock.protocol.coordinator.state import Mode
from penstock.protocol.manifest import Manifest, Side, SnapshotKind
from tests.simulation.checkers.base import Checker, some
from tests.simulation.checkers.contents import committed, emitted, in_flight


class TakesStock(Checker):
    """I1: what the sources have emitted is in flight, or at the sinks, each record once."""

    def on_manifest(self, manifest: Manifest) -> None:
        cluster = self.cluster
        if cluster.is_rotten or not cluster.topology.is_linear:
            return
        found = np.sort(np.concatenate([in_flight(cluster, manifest), committed(cluster, manifest)]))
        wanted = np.sort(emitted(cluster, manifest))
        if not np.array_equal(found, wanted):
            there, due = Counter(found.tolist()), Counter(wanted.tolist())
            lost, twice = due - there, there - due
            self.violation(
                f"I1 cut: checkpoint {manifest.checkpoint} misses {some(lost)} and has too many of {some(twice)}"
            )


_CUTS = {
    Mode.ALIGNED: {SnapshotKind.ALIGNED},
    Mode.UNALIGNED: {SnapshotKind.ALIGNED, SnapshotKind.FORCED},
    Mode.ALIGNED_WITH_TIMEOUT: {SnapshotKind.ALIGNED, SnapshotKind.TIMED_OUT, SnapshotKind.OVERTAKEN},
}
"""What a cut may be reported as; a subtask that must stay aligned is aligned in every mode."""


class Cuts(Checker):
    """I7: a checkpoint is reported as what it is, and what must stay aligned captures nothing."""

    def on_manifest(self, manifest: Manifest) -> None:
        plan = self.cluster.plan
        mode = Mode.ALIGNED if manifest.is_savepoint else self.cluster.scenario.supervisor.policy.mode
        aligned = {edge.id for edge in plan.edges if plan.chains[edge.downstream].aligned_only}
        for report in manifest.reports:
            what = f"checkpoint {manifest.checkpoint} of {report.subtask} is '{report.cut.value}'"
            if report.cut not in _CUTS[mode]:
                self.violation(f"I7 bounds: {what}, and the mode is '{mode.value}'")
            if report.cut is SnapshotKind.ALIGNED and any(channel.side is Side.RECEIVER for channel in report.channels):
                self.violation(f"I7 bounds: {what}, and its input was captured")
            if report.channels and mode is Mode.ALIGNED:
                self.violation(f"I7 bounds: {what} and captured records, and the mode is '{mode.value}'")
            if any(channel.edge in aligned for channel in report.channels):
                self.violation(f"{what} and captured records on an edge that must stay aligned")


class Drained(Checker):
    """After the last barrier no source emits anything: the last checkpoint holds all that the pipeline has done."""

    def on_manifest(self, manifest: Manifest) -> None:
        noted = {(split.operator, split.split): split.offset for report in manifest.reports for split in report.splits}
        for _, worker in self.cluster.driver.live_workers():
            if not manifest.is_final or worker.generation != manifest.generation:
                continue
            for source in (subtask.chain.source for subtask in worker.subtasks.values()):
                for split in source.positions() if source is not None else ():
                    # A split that has appeared since may be open, at its beginning.
                    if split.offset != noted.get((split.operator, split.split), b"0"):
                        self.violation(f"drain: '{split.operator}' was read on to {split.offset!r}")
