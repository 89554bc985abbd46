"""The coordinator on fake ports: what is not its generation's counts for nothing, and ends it if it must."""

from __future__ import annotations

import pytest

from penstock.ids import CheckpointId, Generation, WorkerId
from penstock.plan.physical import plan
from penstock.protocol.claims import Reservation
from penstock.protocol.coordinator_events import StopFenced
from penstock.protocol.coordinator_state import Policy
from penstock.protocol.manifest_codec import encode_reservation
from penstock.runtime.coordinator import Coordinator, Ending
from penstock.runtime.frames import ReadyFrame, TriggerFrame
from penstock.runtime.takeover import Claimed
from penstock.runtime.timers import Timers
from penstock.storage import paths
from penstock.storage.memory import MemoryStore
from tests.unit.runtime.fake_ports import ListTransport, ManualBackground, ManualClock, Numbers, read


class Desk:
    """A coordinator of generation 4 with one worker, and all that it touches."""

    def __init__(self) -> None:
        self.clock, self.transport, self.background = ManualClock(), ListTransport(), ManualBackground()
        self.store, self.timers = MemoryStore(), Timers(self.clock)
        self.endings: list[Ending] = []
        self.coordinator = Coordinator(
            plan(read(Numbers({"a": [1]})), 1, workers=1),
            Claimed(Generation(4), CheckpointId(7)),
            Policy(interval_ms=10),
            {},
            self.clock,
            self.transport,
            self.background,
            self.store,
            self.timers,
            self.endings.append,
        )


def test_frames_of_another_generation_count_for_nothing() -> None:
    desk = Desk()
    desk.coordinator.deliver(ReadyFrame(Generation(3), WorkerId(0)))
    assert (desk.coordinator.refusals, desk.coordinator.state.is_ready) == (1, False)
    desk.coordinator.deliver(ReadyFrame(Generation(4), WorkerId(0)))
    assert desk.coordinator.state.is_ready


@pytest.mark.parametrize(("owner", "is_fenced"), [(4, False), (5, True)])
def test_an_id_that_another_generation_has_reserved_ends_this_one(owner: int, is_fenced: bool) -> None:
    desk = Desk()
    taken = Reservation(CheckpointId(8), Generation(owner))
    desk.store.create(paths.reserved(taken.checkpoint), encode_reservation(taken))
    desk.coordinator.deliver(ReadyFrame(Generation(4), WorkerId(0)))
    desk.clock.advance(10)
    desk.timers.fire()
    assert desk.transport.of(TriggerFrame)
    desk.background.run()
    assert [isinstance(ending, StopFenced) for ending in desk.endings] == [True] * is_fenced
