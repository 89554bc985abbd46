"""Judges of the result: how the pipeline ended, and its output."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pyarrow as pa

from penstock.driver.supervisor import Phase
from penstock.errors import FencedError, RestoreError
from penstock.exchange.codec import decode_batches
from penstock.ids import CheckpointId
from penstock.protocol.manifest import StateKind
from penstock.protocol.recovery import FallBack
from penstock.storage.blob import read_segment
from tests.simulation.checkers.base import Checker, some
from tests.simulation.operators import KEYS
from tests.simulation.world import CommitEvent


class Ending(Checker):
    """It finished, or refused for a good reason; drivers that another one replaced were fenced."""

    def at_end(self) -> None:
        cluster = self.cluster
        supervisor = cluster.driver.supervisor
        if supervisor.phase not in (Phase.FINISHED, Phase.STOPPED) and not (cluster.has_refused and cluster.is_rotten):
            self.violation(f"the pipeline {supervisor.phase.value}: {supervisor.error}")
        for driver in cluster.drivers:
            # One whose pipeline did not fit has been judged when it refused.
            other = driver is not cluster.driver and driver.process.is_alive and driver.misfit is None
            if (
                other
                and driver.supervisor.phase is Phase.FAILED
                and not isinstance(driver.supervisor.error, FencedError | RestoreError)
            ):
                self.violation(f"another driver failed, but not because it was fenced: {driver.supervisor.error}")


class Output(Checker):
    """Lost = duplicated = 0."""

    def at_end(self) -> None:
        cluster = self.cluster
        published = [numbers for part in cluster.world.published.values() for numbers in part]
        found = Counter(np.concatenate([np.empty(0, np.int64), *published]).tolist())
        wanted = Counter(cluster.topology.expected.tolist())
        lost, twice = wanted - found, found - wanted
        if lost and not cluster.has_refused:
            self.violation(f"lost {lost.total()} records: {some(lost)}")
        goes_back = cluster.scenario.supervisor.restore.fall_back is FallBack.ALLOW_DUPLICATES
        allowed = cluster.is_rotten and goes_back and not cluster.has_refused
        if twice and not allowed:
            self.violation(f"duplicated {twice.total()} records: {some(twice)}")


class Commits(Checker):
    """I4: only what a manifest names is published, and everything that one names.

    I6: one driver never makes two calls of a committer at a time, and its commits take effect in the order of
    checkpoints: none of an older generation after one of a newer.
    """

    def __init__(self, cluster: object) -> None:
        super().__init__(cluster)  # type: ignore[arg-type]
        self._under_way: Counter[object] = Counter()
        self._newest: dict[object, CheckpointId] = {}

    def on_commit(self, event: CommitEvent) -> None:
        committer, checkpoint = event.committer, event.checkpoint
        if event.what == "ended":
            self._under_way[committer] -= 1
            return
        if event.what == "began":
            self._under_way[committer] += 1
            if self._under_way[committer] > 1:
                self.violation(f"I6 fencing: commit of {checkpoint} began while another one was under way")
            return
        newest = self._newest.setdefault(committer, checkpoint)
        if checkpoint < newest:
            self.violation(f"I6 fencing: commit of {checkpoint} took effect after that of {newest}")
        self._newest[committer] = max(newest, checkpoint)

    def at_end(self) -> None:
        cluster = self.cluster
        named: dict[CheckpointId, set[str]] = {
            manifest.checkpoint: {
                committable.payload.decode() for report in manifest.reports for committable in report.committables
            }
            for manifest in cluster.manifests
        }
        for checkpoint, names in cluster.world.commits:
            if set(names) - named.get(checkpoint, set()):
                self.violation(f"I4 decision: {names} committed for {checkpoint}, whose manifest does not name it")
        missing = set().union(*named.values()) - set(cluster.world.published)
        if missing and not cluster.has_refused and not cluster.is_rotten:
            self.violation(f"I4 decision: {sorted(missing)[:3]} are in a manifest and were never published")


class Counts(Checker):
    """What the counting operators hold in the end is what they were given, restored or not."""

    def at_end(self) -> None:
        cluster = self.cluster
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
                much, little = some(counts - wanted), some(wanted - counts)
                self.violation(f"'{operator}' counted {much} too much, {little} too little")


def _counts_in(batch: pa.RecordBatch) -> dict[int, int]:
    keys, values = batch.column("key").field("k").to_pylist(), batch.column("value").field("count(*)").to_pylist()
    return dict(zip(keys, values, strict=True))
