"""The pulse of a process: signs of life from a separate thread, while the mailbox does not come to give any.

A mailbox that is in one call for long, in user code or elsewhere, does not mean that the process is dead, and a restart
would make the same call again. So this thread looks now and then whether the mailbox has given a sign of life in time,
and gives one in its place if it has not. It has its own connection, because sockets belong to one thread. A process
that is gone, or frozen, has no pulse.

The trap: a call into compiled code that does not let go of the interpreter stops this thread too.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Protocol

from penstock.ids import COORDINATOR, Generation
from penstock.mailbox.activity import line_of
from penstock.mailbox.frames import Frame, HeartbeatFrame
from penstock.mailbox.ports import Clock
from penstock.worker.worker import Worker


class Connection(Protocol):
    """A way to another process, for one thread."""

    def send(self, frame: Frame) -> None: ...

    def close(self, linger_ms: int | None = None) -> None: ...


class Beat(Protocol):
    """What the thread does: now and then, and when it ends."""

    def beat(self) -> None: ...

    def close(self) -> None: ...


class Pulse:
    """The thread. It runs while the context is open."""

    def __init__(self, beat: Beat, interval_ms: int, name: str = "penstock-pulse") -> None:
        self._beat = beat
        self._interval_s = interval_ms / 1000
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def _run(self) -> None:
        try:
            while not self._is_over.wait(self._interval_s):
                self._beat.beat()
        finally:
            self._beat.close()

    def start(self) -> None:
        self._thread.start()

    def __enter__(self) -> Pulse:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End it; the thread has closed its connections then."""
        self._is_over.set()
        self._thread.join()


class WorkerBeat:
    """Says for a worker how long its mailbox has been busy, and where. `mailbox` is the number of that thread."""

    def __init__(self, worker: Worker, mailbox: int, connect: Callable[[], Connection]) -> None:
        self._worker = worker
        self._mailbox = mailbox
        self._connect = connect
        self._driver: Connection | None = None

    def beat(self) -> None:
        busy_ms = self._worker.overdue_ms
        if busy_ms is None:
            return
        if self._driver is None:
            self._driver = self._connect()
        self._driver.send(self._worker.busy_frame(busy_ms, line_of(self._mailbox)))

    def close(self) -> None:
        if self._driver is not None:
            self._driver.close(0)


class DriverBeat:
    """Gives the signs of life of a driver that its mailbox owes: to all workers of one attempt."""

    def __init__(
        self,
        generation: Generation,
        clock: Clock,
        overdue_ms: int,
        busy_ms_max: int,
        connect: Sequence[Callable[[], Connection]],
    ) -> None:
        self._frame = HeartbeatFrame(generation, COORDINATOR)
        self._clock = clock
        self._overdue_ms = overdue_ms
        self._busy_ms_max = busy_ms_max
        self._connect = connect
        self._workers: list[Connection] | None = None
        self._beat_at_ms = clock.now_ms()

    def on_sent(self, frame: Frame) -> None:
        """The mailbox has sent a frame to a worker."""
        if isinstance(frame, HeartbeatFrame):
            self._beat_at_ms = self._clock.now_ms()

    def beat(self) -> None:
        silent_ms = self._clock.now_ms() - self._beat_at_ms
        # A mailbox that never comes back must not keep workers whose output nobody would publish.
        if not self._overdue_ms < silent_ms < self._busy_ms_max:
            return
        if self._workers is None:
            self._workers = [connect() for connect in self._connect]
        for worker in self._workers:
            worker.send(self._frame)

    def close(self) -> None:
        for worker in self._workers or ():
            worker.close(0)
