"""A simulated process: its own clock, a mailbox, background work, and a way to die."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable
from typing import Protocol, TypeVar

from penstock.mailbox.frames import Frame
from tests.simulation.background import SimulatedBackground
from tests.simulation.calls import ProcessKilled
from tests.simulation.scheduler import Scheduler

T = TypeVar("T")


class Mailbox(Protocol):
    """What runs in a process: a worker or a supervisor, seen from outside."""

    def deliver(self, frame: Frame) -> None: ...
    def fire_timers(self) -> None: ...
    def work(self) -> bool: ...
    @property
    def can_work(self) -> bool: ...
    @property
    def next_timer_at_ms(self) -> int | None: ...


class Process:
    """One process. Its clock differs from everybody else's; while it computes, its frames wait."""

    def __init__(self, name: str, scheduler: Scheduler, rng: random.Random, background_us: tuple[int, int]) -> None:
        self.name = name
        self.scheduler = scheduler
        self.rng = rng
        self.is_alive = True
        self.is_frozen = False
        self.mailbox: Mailbox | None = None
        self.on_killed: Callable[[], None] = lambda: None
        self.beat: Callable[[], None] = lambda: None
        """A sign of life while the mailbox is busy, every `beat_us`."""
        self.beat_us = 1_000_000
        self._offset_us = rng.randrange(0, 10**9)
        self._background_us = background_us
        self._background = SimulatedBackground(self, background_us)
        self._inbox: deque[Frame | Callable[[], None]] = deque()
        self._busy_until_us = 0
        self._spent_us = 0
        self._is_scheduled = False
        self._timer_at_us: int | None = None

    # --- the clock port ---

    def now_us(self) -> int:
        return self.scheduler.now_us + self._spent_us + self._offset_us

    def own_us(self) -> int:
        return self.now_us()

    def now_ms(self) -> int:
        return (self.scheduler.now_us + self._spent_us + self._offset_us) // 1000

    def wall_ms(self) -> int:
        return 1_800_000_000_000 + self.elapsed_us // 1000

    def spend(self, us: int) -> None:
        """Let the running code take this long. Meanwhile there are signs of life, as from a separate thread."""
        until_us = self._spent_us + us
        while until_us - self._spent_us > self.beat_us:
            self._spent_us += self.beat_us
            self.beat()
        self._spent_us = until_us

    @property
    def elapsed_us(self) -> int:
        """The scheduler's time as this process has advanced it."""
        return self.scheduler.now_us + self._spent_us

    # --- the background port ---

    def background(self) -> SimulatedBackground:
        """A background of its own, for one attempt."""
        return SimulatedBackground(self, self._background_us)

    def submit(self, work: Callable[[], T], done: Callable[[T | Exception], None]) -> None:
        self._background.submit(work, done)

    # --- the mailbox ---

    def post(self, message: Frame | Callable[[], None]) -> None:
        if self.is_alive:
            self._inbox.append(message)
            self.wake()

    def wake(self) -> None:
        if not self._is_scheduled and self.is_alive and not self.is_frozen:
            self._is_scheduled = True
            self.scheduler.at(self._busy_until_us, self._run)

    def _run(self) -> None:
        self._is_scheduled = False
        mailbox = self.mailbox
        if not self.is_alive or self.is_frozen or mailbox is None:
            return
        self._spent_us = 0
        self._timer_at_us = None
        self.scheduler.spend = self.spend
        try:
            for _ in range(len(self._inbox)):
                message = self._inbox.popleft()
                message() if callable(message) else mailbox.deliver(message)
            mailbox.fire_timers()
            mailbox.work()
        except ProcessKilled:
            self.kill()
            return
        self._busy_until_us = self.scheduler.now_us + self._spent_us + 1
        self._spent_us = 0
        if self._inbox or mailbox.can_work:
            self.wake()
        else:
            self._wake_for_timer(mailbox)

    def _wake_for_timer(self, mailbox: Mailbox) -> None:
        at_ms = mailbox.next_timer_at_ms
        if at_ms is None:
            return
        at_us = max(at_ms * 1000 - self._offset_us, self._busy_until_us)
        if self._timer_at_us is None or at_us < self._timer_at_us:
            self._timer_at_us = at_us
            self.scheduler.at(at_us, self.wake)

    # --- dying ---

    def kill(self) -> None:
        """SIGKILL: nothing of it happens any more."""
        if self.is_alive:
            self.is_alive = False
            self._inbox.clear()
            self._background.close()
            self.on_killed()

    def freeze(self, for_us: int) -> None:
        """SIGSTOP, and SIGCONT later: it wakes up with everything as it was, and the world has moved on."""
        self.is_frozen = True

        def thaw() -> None:
            self.is_frozen = False
            self._is_scheduled = False
            self.wake()

        self.scheduler.after(for_us, thaw)
