"""The pulse: a process whose mailbox is in one call for long gives signs of life, and one that is frozen does not."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from penstock.exchange.zmq_transport import ZmqTransport, make_secrets
from penstock.ids import COORDINATOR, Generation, WorkerId
from penstock.mailbox.activity import line_of
from penstock.mailbox.frames import BusyFrame, EndedFrame, Frame, HeartbeatFrame, HelloFrame, StopFrame, WelcomeFrame
from penstock.worker.pulse import DriverBeat, Pulse
from tests.unit.mailbox.fake_ports import ManualClock
from tests.unit.spark.busy_worker import GENERATION, main

WORKER = WorkerId(0)
HANG_S = 120.0


class Driver:
    """The driver of one worker in another process."""

    def __init__(self, directory: Path) -> None:
        secrets = make_secrets()
        self.transport = ZmqTransport(COORDINATOR, secrets)
        arguments = self.transport.endpoint, secrets, str(directory)
        self.process = multiprocessing.get_context("spawn").Process(target=main, args=arguments, daemon=True)
        self.process.start()
        self.frames: list[Frame] = []
        hello = self.until(lambda frame: isinstance(frame, HelloFrame))
        assert isinstance(hello, HelloFrame)
        self.transport.connect(WORKER, hello.endpoint)
        self.transport.send(WORKER, WelcomeFrame(GENERATION, (hello.endpoint,)))

    def until(self, wanted: Callable[[Frame], bool]) -> Frame:
        """Receive frames until one is `wanted`."""
        until = time.monotonic() + HANG_S
        while time.monotonic() < until:
            self.transport.wait(50)
            self.transport.send(WORKER, HeartbeatFrame(GENERATION, COORDINATOR))
            for frame in self.transport.receive():
                self.frames.append(frame)
                if wanted(frame):
                    return frame
        raise AssertionError(f"it did not come; {self.frames[-3:]}")

    def close(self) -> None:
        if self.process.is_alive():
            assert self.process.pid is not None
            os.kill(self.process.pid, signal.SIGKILL)
        self.process.join()
        self.transport.close()


@pytest.fixture
def driver(tmp_path: Path) -> Iterator[Driver]:
    made = Driver(tmp_path)
    yield made
    made.close()


def is_busy(ms: int) -> Callable[[Frame], bool]:
    return lambda frame: isinstance(frame, BusyFrame) and frame.busy_ms >= ms


def test_a_worker_in_a_long_call_says_where_it_is_and_one_that_is_frozen_says_nothing(
    driver: Driver, tmp_path: Path
) -> None:
    busy = driver.until(is_busy(500))
    assert isinstance(busy, BusyFrame)
    assert (busy.generation, busy.worker, busy.doing) == (GENERATION, WORKER, "operator 'slow', subtask 0")
    assert "busy_worker.py:" in busy.line and busy.line.endswith(" in score")
    assert driver.process.pid is not None
    os.kill(driver.process.pid, signal.SIGSTOP)
    time.sleep(0.2)
    list(driver.transport.receive())
    driver.transport.wait(1_000)
    assert list(driver.transport.receive()) == []
    os.kill(driver.process.pid, signal.SIGCONT)
    driver.until(is_busy(500))
    # It has not heard of the driver for longer than it may: but it was asleep, and busy, and words are waiting.
    (tmp_path / "go").touch()
    driver.until(lambda frame: isinstance(frame, EndedFrame))
    driver.until(lambda frame: isinstance(frame, HeartbeatFrame))
    driver.transport.send(WORKER, StopFrame(GENERATION))
    driver.process.join(HANG_S)
    assert driver.process.exitcode == 0


class Sent:
    """A connection that keeps what was sent."""

    def __init__(self) -> None:
        self.frames: list[Frame] = []
        self.is_closed = False

    def send(self, frame: Frame) -> None:
        self.frames.append(frame)

    def close(self, linger_ms: int | None = None) -> None:
        self.is_closed = True


def test_a_driver_that_is_held_up_beats_in_time_and_not_without_an_end() -> None:
    clock, worker = ManualClock(), Sent()
    beat = DriverBeat(Generation(3), clock, 100, 10_000, [lambda: worker])
    beat.on_sent(HeartbeatFrame(Generation(3), COORDINATOR))
    clock.advance(100)
    beat.beat()
    assert worker.frames == [], "its mailbox is in time"
    clock.advance(1)
    beat.on_sent(StopFrame(Generation(3)))
    beat.beat()
    assert worker.frames == [HeartbeatFrame(Generation(3), COORDINATOR)]
    clock.advance(10_000)
    beat.beat()
    assert len(worker.frames) == 1, "a mailbox that never comes back keeps nobody alive"
    beat.on_sent(HeartbeatFrame(Generation(3), COORDINATOR))
    beat.beat()
    beat.close()
    assert (len(worker.frames), worker.is_closed) == (1, True)


def test_the_line_is_that_of_user_code_and_not_of_the_libraries_it_calls() -> None:
    go, places = threading.Event(), []

    def user_code() -> None:
        go.wait(HANG_S)

    thread = threading.Thread(target=user_code)
    thread.start()
    try:
        until = time.monotonic() + HANG_S
        while "user_code" not in "".join(places[-1:]) and time.monotonic() < until:
            places.append(line_of(thread.ident or 0))
    finally:
        go.set()
        thread.join()
    assert places[-1].startswith(__file__) and places[-1].endswith(" in user_code")
    assert line_of(thread.ident or 0) == ""


def test_the_thread_has_ended_when_the_pulse_is_closed() -> None:
    calls: list[str] = []

    class Noted:
        def beat(self) -> None:
            calls.append("beat")

        def close(self) -> None:
            calls.append("close")

    with Pulse(Noted(), 1):
        until = time.monotonic() + HANG_S
        while not calls and time.monotonic() < until:
            time.sleep(0.001)
    assert (calls[0], calls[-1], calls.count("close")) == ("beat", "close", 1)
