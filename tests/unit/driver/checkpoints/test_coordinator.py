"""The coordinator on fake ports: what is not its generation's counts for nothing, and ends it if it must."""

from __future__ import annotations

import logging
from collections.abc import Sequence

import pytest

from penstock.connectors.sink import Committer
from penstock.driver.attempts.takeover import Ownership
from penstock.driver.checkpoints.committers import Committers
from penstock.driver.checkpoints.coordinator import Coordinator, Ending
from penstock.errors import PenstockError, StorageError
from penstock.graph.physical import plan
from penstock.ids import CheckpointId, Generation, OperatorName, SubtaskId, WorkerId
from penstock.mailbox.frames import (
    AcknowledgeFrame,
    CompletedFrame,
    DeclineFrame,
    EndedFrame,
    ReadyFrame,
    TriggerFrame,
)
from penstock.mailbox.timers import Timers
from penstock.protocol.commit import CommitPermit, decide_recommit
from penstock.protocol.coordinator.events import Finish, StopFenced
from penstock.protocol.coordinator.state import Policy
from penstock.protocol.declines import DeclineReason
from penstock.protocol.manifest import Committable, Manifest, PipelineShape, SubtaskReport
from penstock.protocol.manifest.codec import encode_reservation
from penstock.protocol.ownership import Reservation, Tombstone
from penstock.storage import paths
from penstock.storage.directory import Directory
from penstock.storage.memory import MemoryStore
from penstock.storage.port import Data
from tests.unit.mailbox.fake_ports import ListTransport, ManualBackground, ManualClock, Numbers, read


class Recording(MemoryStore):
    """Notes what is read."""

    def __init__(self) -> None:
        super().__init__()
        self.reads: list[str] = []

    def read(self, path: str, offset: int = 0, length: int | None = None) -> bytes:
        self.reads.append(path)
        return super().read(path, offset, length)


class Desk:
    """A coordinator of generation 4 with one worker, and all that it touches. One checkpoint is retained."""

    def __init__(self, history_max: int = 100, recommit: CommitPermit | None = None) -> None:
        self.clock, self.transport, self.background = ManualClock(), ListTransport(), ManualBackground()
        self.store, self.timers = Recording(), Timers(self.clock)
        self.endings: list[Ending] = []
        self.store.create(
            paths.reserved(CheckpointId(7)), encode_reservation(Reservation(CheckpointId(7), Generation(4)))
        )
        self.coordinator = Coordinator(
            plan(read(Numbers({"a": [1]})), 1, workers=1),
            Ownership(Generation(4), CheckpointId(8 if recommit else 7), recommit=recommit),
            Policy(interval_ms=10, retained=1, history_max=history_max),
            Committers({}, self.clock),
            self.clock,
            self.transport,
            self.background,
            self.store,
            self.timers,
            self.endings.append,
        )

    def triggered(self) -> Desk:
        """The worker is ready, and the first checkpoint has been triggered."""
        self.coordinator.deliver(ReadyFrame(Generation(4), WorkerId(0)))
        self.clock.advance(10)
        self.timers.fire()
        return self

    def lose_licence_at_next_creation(self) -> None:
        """As if the driver fell asleep before it, and another one took over and cleared everything away meanwhile."""
        create = self.store.create

        def asleep(path: str, data: Data) -> bool:
            self.store.delete(paths.reserved(CheckpointId(7)))
            return create(path, data)

        self.store.create = asleep  # type: ignore[method-assign]

    def complete(self, checkpoint: int) -> None:
        """Let every subtask acknowledge a checkpoint, and the background do what follows."""
        for subtask in sorted(self.coordinator.state.members):
            self.coordinator.deliver(AcknowledgeFrame(Generation(4), CheckpointId(checkpoint), SubtaskReport(subtask)))
        self.background.run()

    @property
    def manifests(self) -> list[CheckpointId]:
        return Directory(self.store).ids(paths.PathKind.MANIFEST)


def test_frames_of_another_generation_count_for_nothing() -> None:
    desk = Desk()
    desk.coordinator.deliver(ReadyFrame(Generation(3), WorkerId(0)))
    assert (desk.coordinator.refusals, desk.coordinator.state.is_ready) == (1, False)
    desk.coordinator.deliver(ReadyFrame(Generation(4), WorkerId(0)))
    assert desk.coordinator.state.is_ready


@pytest.mark.parametrize(("owner", "is_fenced"), [(4, False), (5, True)])
def test_an_id_that_another_generation_has_reserved_ends_this_one(owner: int, is_fenced: bool) -> None:
    desk = Desk()
    taken = Reservation(CheckpointId(8), Generation(owner), 2)
    desk.store.create(paths.reserved(taken.checkpoint), encode_reservation(taken))
    desk.coordinator.deliver(ReadyFrame(Generation(4), WorkerId(0)))
    desk.clock.advance(10)
    desk.timers.fire()
    assert desk.transport.of(TriggerFrame)
    desk.background.run()
    assert [isinstance(ending, StopFenced) for ending in desk.endings] == [True] * is_fenced


@pytest.mark.parametrize("is_anew", [False, True])
def test_a_generation_whose_licence_is_gone_acts_on_nothing_that_it_creates(is_anew: bool) -> None:
    # Somebody has taken over, completed a checkpoint, and cleared away all that would have stopped this driver.
    desk = Desk()
    desk.coordinator.deliver(ReadyFrame(Generation(4), WorkerId(0)))
    desk.clock.advance(10)
    desk.timers.fire()
    desk.background.run()
    desk.store.delete(paths.reserved(CheckpointId(7)))
    if is_anew:
        # By a driver that was asleep in the middle of a takeover.
        desk.store.create(
            paths.reserved(CheckpointId(7)), encode_reservation(Reservation(CheckpointId(7), Generation(3)))
        )
    desk.complete(7)
    assert desk.manifests == []
    assert desk.transport.of(CompletedFrame) == []
    assert [isinstance(ending, StopFenced) for ending in desk.endings] == [True]


def test_nor_on_a_manifest_that_was_created_while_the_licence_went() -> None:
    desk = Desk().triggered()
    desk.background.run()
    desk.lose_licence_at_next_creation()
    desk.complete(7)
    assert desk.manifests == [7]
    assert desk.transport.of(CompletedFrame) == []
    assert [isinstance(ending, StopFenced) for ending in desk.endings] == [True]


def test_nor_on_a_void_marker_that_was_created_while_the_licence_went() -> None:
    desk = Desk().triggered()
    desk.background.run()
    create = desk.store.create

    def failing(path: str, data: Data) -> bool:
        desk.store.create = create  # type: ignore[method-assign]
        desk.lose_licence_at_next_creation()
        raise StorageError("no route")

    # Nobody knows whether the manifest was written: the checkpoint is declared void before it is given up.
    desk.store.create = failing  # type: ignore[method-assign]
    desk.complete(7)
    assert isinstance(Directory(desk.store).manifest_or_tombstone(CheckpointId(7)), Tombstone)
    assert [isinstance(ending, StopFenced) for ending in desk.endings] == [True]


def test_nor_on_a_reservation_that_was_created_while_the_licence_went() -> None:
    desk = Desk().triggered()
    desk.lose_licence_at_next_creation()
    desk.background.run()
    assert Directory(desk.store).ids(paths.PathKind.RESERVED) == [8]
    assert [isinstance(ending, StopFenced) for ending in desk.endings] == [True]


def test_a_generation_whose_licence_is_gone_reserves_nothing() -> None:
    desk = Desk()
    desk.store.delete(paths.reserved(CheckpointId(7)))
    desk.coordinator.deliver(ReadyFrame(Generation(4), WorkerId(0)))
    desk.clock.advance(10)
    desk.timers.fire()
    desk.background.run()
    assert [isinstance(ending, StopFenced) for ending in desk.endings] == [True]
    assert Directory(desk.store).ids(paths.PathKind.RESERVED) == []


def test_older_checkpoints_go_without_being_read_and_at_the_end_nobody_waits_for_the_pause() -> None:
    desk = Desk()
    desk.coordinator.deliver(ReadyFrame(Generation(4), WorkerId(0)))
    desk.clock.advance(10)
    desk.timers.fire()
    desk.background.run()
    desk.complete(7)
    assert desk.manifests == [7]
    # The retirement after checkpoint 7 is over, and the next one would have to wait for a while.
    for subtask in sorted(desk.coordinator.state.members):
        desk.coordinator.deliver(EndedFrame(Generation(4), subtask))
    desk.complete(8)
    assert [isinstance(ending, Finish) for ending in desk.endings] == [True]
    assert desk.manifests == [8]
    assert not [path for path in desk.store.reads if path.endswith("manifest.json")]


@pytest.mark.parametrize(("history_max", "told"), [(100, ["8 declined", "7 completed"]), (1, ["8 declined"])])
def test_every_attempt_that_the_history_keeps_is_told_of_once_whichever_ends_first(
    history_max: int, told: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "penstock")
    desk = Desk(history_max)
    desk.coordinator.deliver(ReadyFrame(Generation(4), WorkerId(0)))
    desk.clock.advance(10)
    desk.timers.fire()
    desk.background.run()
    for subtask in sorted(desk.coordinator.state.members):
        desk.coordinator.deliver(AcknowledgeFrame(Generation(4), CheckpointId(7), SubtaskReport(subtask)))
    desk.clock.advance(10)
    desk.timers.fire()
    (one, *_) = sorted(desk.coordinator.state.members)
    declined = DeclineFrame(Generation(4), CheckpointId(8), one, DeclineReason.STORAGE_FAILED, "no space")
    desk.coordinator.deliver(declined)
    desk.background.run()
    assert desk.manifests == [7]
    attempts = [record.getMessage().partition(": checkpoint ")[2] for record in caplog.records]
    assert [" ".join(text.split()[:2]) for text in attempts] == told


class TestOutputOfASinkThatThePipelineDoesNotHave:
    """Second line of defence: the takeover refuses such a checkpoint already."""

    @staticmethod
    def permit() -> CommitPermit:
        files = (Committable(OperatorName("out"), 0, b"one"), Committable(OperatorName("gone"), 0, b"two"))
        report = SubtaskReport(SubtaskId(OperatorName("read"), 0), committables=files)
        manifest = Manifest(CheckpointId(7), Generation(3), PipelineShape("numbers", 128), (report,))
        permit = decide_recommit(manifest, Generation(4), is_committed=False)
        assert permit is not None
        return permit

    def test_is_an_error_that_names_the_sink_and_the_cure(self) -> None:
        cure = (
            "checkpoint 7 has output of sink 'gone' to publish, but this pipeline has no such sink: "
            "put it back, or give the sink its old name"
        )
        with pytest.raises(PenstockError, match=cure):
            Committers({OperatorName("out"): Published()}, ManualClock()).publish(self.permit())

    def test_leaves_the_checkpoint_without_its_marker(self) -> None:
        desk = Desk(recommit=self.permit())
        desk.background.run()
        assert paths.committed(CheckpointId(7)) not in desk.store.list("")


class Published(Committer):
    def commit(self, checkpoint: CheckpointId, committables: Sequence[bytes]) -> None:
        assert (checkpoint, list(committables)) == (7, [b"one"])
