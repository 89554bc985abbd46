"""The loop around a worker's mailbox."""

from __future__ import annotations

from typing import Any

from penstock.mailbox.frames import StopFrame
from penstock.worker.loop import run_worker
from tests.unit.mailbox.fake_ports import ManualClock


class Inbox:
    """A transport that notes whether anybody waits for it."""

    def __init__(self, *frames: Any) -> None:
        self.frames = list(frames)
        self.waits: list[int] = []

    def receive(self) -> list[Any]:
        return [self.frames.pop(0)] if self.frames else []

    def receive_own(self) -> list[Any]:
        return []

    def wait(self, timeout_ms: int) -> None:
        self.waits.append(timeout_ms)


class Stoppable:
    """A worker that has nothing to do and stops when it is told to."""

    def __init__(self) -> None:
        self.has_stopped = self.can_work = False
        self.next_timer_at_ms: int | None = None
        self.turn_us = 1000
        self.delivered: list[Any] = []

    def start(self) -> None: ...

    def fire_timers(self) -> None: ...

    def work(self) -> bool:
        return False

    def deliver(self, frame: Any) -> None:
        self.delivered.append(frame)
        self.has_stopped = isinstance(frame, StopFrame)


class NoMail:
    def deliver(self) -> None: ...

    def __bool__(self) -> bool:
        return False


def test_a_worker_that_was_told_to_stop_waits_for_nothing() -> None:
    # Every end and every restart of a pipeline took a second longer for it.
    worker, inbox = Stoppable(), Inbox("something", StopFrame(1))  # type: ignore[arg-type]
    run_worker(worker, inbox, NoMail(), ManualClock())  # type: ignore[arg-type]
    assert len(worker.delivered) == 2
    assert inbox.waits == [1000], "once for the first frame, and not after the last one"
