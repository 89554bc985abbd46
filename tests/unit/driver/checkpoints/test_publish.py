"""Publishing a checkpoint: every sink in one call, and no marker while any output has nobody to publish it (I4)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest

from penstock.connectors.sink import Committer
from penstock.driver.attempts.takeover import Ownership
from penstock.driver.checkpoints.committers import Committers
from penstock.driver.checkpoints.coordinator import Coordinator
from penstock.errors import PenstockError
from penstock.graph.physical import plan
from penstock.ids import CheckpointId, Generation, OperatorName, SubtaskId, WorkerId
from penstock.mailbox.frames import ReadyFrame
from penstock.mailbox.timers import Timers
from penstock.protocol.commit import CommitPermit, decide_recommit
from penstock.protocol.coordinator.state import Policy
from penstock.protocol.manifest import Committable, Manifest, PipelineShape, SubtaskReport
from penstock.protocol.manifest.codec import encode_manifest
from penstock.storage import paths
from penstock.storage.memory import MemoryStore
from tests.unit.mailbox.fake_ports import ListTransport, ManualBackground, ManualClock, Numbers, read

SEVEN = CheckpointId(7)
NEW = Generation(4)
FILES, TABLE = OperatorName("files"), OperatorName("table")


class Noting(Committer):
    """Notes what it is to publish; it fails as often as it is told to."""

    def __init__(self, failures: Sequence[Exception] = ()) -> None:
        self.calls: list[tuple[CheckpointId, list[bytes]]] = []
        self._failures = list(failures)

    def commit(self, checkpoint: CheckpointId, committables: Sequence[bytes]) -> None:
        self.calls.append((checkpoint, list(committables)))
        if self._failures:
            raise self._failures.pop(0)


def manifest() -> Manifest:
    """Output of two subtasks of one sink, and of one subtask of another one."""
    reports = tuple(
        SubtaskReport(SubtaskId(operator, index), committables=(Committable(operator, index, payload),))
        for operator, index, payload in [(FILES, 0, b"a"), (TABLE, 0, b"t"), (FILES, 1, b"b")]
    )
    return Manifest(SEVEN, Generation(3), PipelineShape("orders", 128), reports)


def permit() -> CommitPermit:
    found = decide_recommit(manifest(), NEW, is_committed=False)
    assert found is not None
    return found


def test_a_sink_gets_the_output_of_all_its_subtasks_in_one_call() -> None:
    files, table = Noting(), Noting()
    Committers({FILES: files, TABLE: table}, ManualClock()).publish(permit())
    assert files.calls == [(SEVEN, [b"a", b"b"])]
    assert table.calls == [(SEVEN, [b"t"])]


def test_output_of_a_sink_that_the_pipeline_does_not_have_is_an_error_with_the_way_out() -> None:
    with pytest.raises(PenstockError, match=r"checkpoint 7 has output of sink 'table' to publish.*put it back"):
        Committers({FILES: Noting()}, ManualClock()).publish(permit())


class Desk:
    """A coordinator that has restored checkpoint 7, whose output was never published."""

    def __init__(self, committers: Mapping[OperatorName, Committer]) -> None:
        self.store, self.background, self.clock = MemoryStore(), ManualBackground(), ManualClock()
        self.timers = Timers(self.clock)
        self.store.create(paths.manifest(SEVEN), encode_manifest(manifest()))
        coordinator = Coordinator(
            plan(read(Numbers({"a": [1]})), 1, workers=1),
            Ownership(NEW, CheckpointId(8), manifest(), permit()),
            Policy(interval_ms=10),
            Committers(committers, self.clock),
            self.clock,
            ListTransport(),
            self.background,
            self.store,
            self.timers,
            lambda ending: None,
        )
        coordinator.deliver(ReadyFrame(NEW, WorkerId(0)))
        self.background.run()

    @property
    def is_committed(self) -> bool:
        return paths.committed(SEVEN) in self.store.list("")


def test_the_marker_is_written_when_every_sink_has_published() -> None:
    assert Desk({FILES: Noting(), TABLE: Noting()}).is_committed


@pytest.mark.parametrize("failure", [ValueError("no"), TimeoutError("no answer"), PenstockError("not now")])
def test_no_marker_is_written_while_a_sink_fails_and_the_commit_is_repeated(failure: Exception) -> None:
    table = Noting([failure])
    desk = Desk({FILES: Noting(), TABLE: table})
    assert not desk.is_committed
    for _ in range(20):
        desk.clock.advance(1_000)
        desk.timers.fire()
        desk.background.run()
    assert desk.is_committed
    assert table.calls == [(SEVEN, [b"t"])] * 2


def test_no_marker_is_written_while_output_has_no_sink() -> None:
    assert not Desk({FILES: Noting()}).is_committed
