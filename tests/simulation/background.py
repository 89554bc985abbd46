"""Background work in virtual time: done after a delay, by a few threads, one of which a call that hangs may hold."""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from tests.simulation.calls import Call, ProcessKilled
from tests.simulation.scheduler import Scheduler

if TYPE_CHECKING:
    from tests.simulation.process import Process

T = TypeVar("T")

THREADS = 4
"""As in `ThreadBackground`."""


class VirtualCondition:
    """A `threading.Condition` in virtual time, for work that waits for other work in the background of one process.

    Work waits only for work that hangs, and while any does, all that begins has a thread.
    """

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._waiting: list[Call] = []
        self.waits = 0
        """How many waits have come to a good end."""

    def __enter__(self) -> None:
        """Only one call runs at a time."""

    def __exit__(self, *error: object) -> None:
        pass

    def wait_for(self, predicate: Callable[[], bool], timeout: float) -> bool:
        if predicate():
            return True
        call = self._scheduler.hangs.current
        until_us = self._scheduler.now_us + int(1e6 * timeout)
        while call is not None and not predicate() and self._scheduler.now_us < until_us:
            self._waiting.append(call)
            call.hang(until_us - self._scheduler.now_us)
            if call in self._waiting:
                self._waiting.remove(call)
        self.waits += predicate()
        return predicate()

    def notify_all(self) -> None:
        waiting, self._waiting = self._waiting, []
        for call in waiting:
            # As it is now: it may have gone on by itself when its turn comes.
            self._scheduler.after(1, call.resume)


class SimulatedBackground:
    """The background port of one process."""

    def __init__(self, process: Process, delay_us: tuple[int, int]) -> None:
        self._process = process
        self._delay_us = delay_us
        self._waiting: deque[Callable[[], None]] = deque()
        """Work for which no thread is free."""
        self._working = 0
        self._is_closed = False

    def submit(self, work: Callable[[], T], done: Callable[[T | Exception], None]) -> None:
        if not self._is_closed:
            self._waiting.append(lambda: self._run(work, done))
            self._begin()

    def close(self) -> None:
        """Drop what has not begun; what is under way is told to nobody."""
        self._is_closed = True
        self._waiting.clear()

    def _begin(self) -> None:
        process = self._process
        while self._waiting and self._working < THREADS:
            self._working += 1
            delay = process.rng.randint(*self._delay_us)
            process.scheduler.at(process.elapsed_us + delay, self._waiting.popleft())

    def _run(self, work: Callable[[], T], done: Callable[[T | Exception], None]) -> None:
        process = self._process
        if not process.is_alive:
            # The write had left the process when it died, or had not: both happen.
            if process.rng.random() < 0.5:
                with contextlib.suppress(Exception, ProcessKilled):
                    work()
            return
        outcomes: list[T | Exception] = []

        def run() -> None:
            # Without an outcome the process was killed in the middle of it.
            with contextlib.suppress(ProcessKilled):
                try:
                    outcomes.append(work())
                except Exception as error:
                    outcomes.append(error)

        def over() -> None:
            if not outcomes:
                process.kill()
                return
            self._working -= 1
            self._begin()
            if not self._is_closed:
                process.post(lambda: done(outcomes[0]))

        if process.scheduler.hangs.need_threads:
            self._go_on(Call(run), over)
        else:
            run()
            over()

    def _go_on(self, call: Call, over: Callable[[], None]) -> None:
        process = self._process
        if not process.is_alive:
            process.scheduler.hangs.abandon(call)
        elif process.scheduler.hangs.run(call):
            over()
        else:
            pause = call.pauses

            def resume() -> None:
                # Once: its time may come after somebody has woken it, or the other way round.
                if call.pauses == pause and not call.is_over:
                    self._go_on(call, over)

            call.resume = resume
            if call.hangs_us is not None:
                process.scheduler.after(call.hangs_us, resume)
