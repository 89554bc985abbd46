"""The driver tells each worker how far the slowest source of all others is."""

from __future__ import annotations

from penstock.driver.attempts.slowest_sources import SlowestSources
from penstock.ids import Generation, OperatorName, WorkerId
from penstock.mailbox.frames import ClocksFrame, ReadyFrame, SlowestFrame
from penstock.mailbox.timers import Timers
from penstock.model.event_time import MIN_WATERMARK
from tests.unit.mailbox.fake_ports import ListTransport, ManualClock

G = Generation(3)
READ, OTHER = OperatorName("read"), OperatorName("other")


class Driver:
    def __init__(self, workers: int) -> None:
        self.clock, self.transport = ManualClock(), ListTransport()
        self.timers = Timers(self.clock)
        self.slowest = SlowestSources(workers, 100, self.timers, self.transport)

    def ready(self, *workers: int) -> None:
        for worker in workers:
            self.slowest.heard(ReadyFrame(G, WorkerId(worker)))

    def hears(self, worker: int, clock: int | None, group: OperatorName = READ) -> None:
        self.slowest.heard(ClocksFrame(G, WorkerId(worker), {group: clock}))

    def told(self, ms: int = 100) -> dict[int, int | None]:
        """What each worker is told about the group of `READ` after a while."""
        self.clock.advance(ms)
        self.timers.fire()
        frames = [(to, frame) for to, frame in self.transport.sent if isinstance(frame, SlowestFrame)]
        self.transport.sent.clear()
        return {int(to): frame.slowest[READ] for to, frame in frames if READ in frame.slowest}


def test_each_worker_is_told_of_the_slowest_of_all_others() -> None:
    driver = Driver(3)
    for worker, clock in enumerate((30, 10, 20)):
        driver.hears(worker, clock)
    driver.ready(0, 1, 2)
    assert driver.told() == {0: 10, 1: 20, 2: 10}


def test_nobody_is_told_anything_before_all_workers_are_ready() -> None:
    driver = Driver(2)
    driver.hears(0, 10)
    driver.ready(0)
    assert driver.told() == {}
    driver.ready(1)
    assert driver.told() == {0: None}, "the other one has no such source"


def test_a_worker_that_has_not_begun_is_the_slowest_and_one_that_has_nothing_to_read_is_left_out() -> None:
    driver = Driver(2)
    driver.ready(0, 1)
    driver.hears(0, 10)
    driver.hears(1, MIN_WATERMARK)
    assert driver.told() == {0: MIN_WATERMARK, 1: 10}
    driver.hears(1, None)
    assert driver.told() == {0: None}
    driver.hears(1, 4)
    assert driver.told() == {0: 4}


def test_answers_are_collected_for_an_interval_and_only_changes_are_told() -> None:
    driver = Driver(2)
    driver.ready(0, 1)
    for clock in range(10):
        driver.hears(0, clock)
        driver.hears(1, 100)
    assert driver.told(99) == {}
    assert driver.told(1) == {0: 100, 1: 9}
    driver.hears(0, 50)
    driver.hears(1, 100)
    assert driver.told() == {1: 50}
    driver.hears(0, 50)
    assert driver.told() == {}


def test_sources_that_never_meet_do_not_wait_for_each_other() -> None:
    driver = Driver(2)
    driver.ready(0, 1)
    driver.hears(0, 1, OTHER)
    driver.hears(1, 1_000)
    assert driver.told() == {1: None}


def test_nothing_is_told_after_the_end_of_the_attempt() -> None:
    driver = Driver(2)
    driver.ready(0, 1)
    driver.hears(0, 1)
    driver.hears(1, 5)
    driver.slowest.close()
    assert driver.told() == {}
