"""What all processes of a simulation touch from outside: published output, and the failures of user code."""

from __future__ import annotations

import random
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass

from penstock.connectors.sink import Sink
from penstock.ids import CheckpointId
from tests.simulation.records import Numbers
from tests.simulation.scheduler import Scheduler


class InjectedFailure(Exception):
    """An exception of user code, planned by the seed."""


@dataclass(frozen=True, slots=True)
class CommitEvent:
    """Something that happened in a committer: a call began, took effect, or came to its end."""

    committer: object
    sink: str
    what: str
    """"began", "took effect" or "ended"."""
    checkpoint: CheckpointId


class World:
    """The outside world of a simulation."""

    def __init__(self, rng: random.Random, scheduler: Scheduler) -> None:
        self.rng = rng
        self.scheduler = scheduler
        self.staged: dict[str, list[Numbers]] = {}
        self.published: dict[str, list[Numbers]] = {}
        self.visible: set[int] = set()
        """Every number that was ever published."""
        self.commits: list[tuple[CheckpointId, tuple[str, ...]]] = []
        self.on_commit: list[Callable[[CommitEvent], None]] = []
        self.failures: Counter[str] = Counter()
        """How often user code is still to fail at each place."""
        self.is_rotten = False
        self.busy_us: deque[int] = deque()
        """The next calls of user code that take this long."""
        self.violations: list[str] = []
        self.is_pumping = True
        self.slow_us = 0
        self.call_us = (100, 3000)
        """How long a call of map_async takes."""
        self.stuck_until: Callable[[], bool] | None = None
        """The next call of map_async does not return before this is True."""

    def __deepcopy__(self, memo: object) -> World:
        # Each subtask has a copy of the user's function; the world outside is one and the same.
        return self

    def spend(self, us: int) -> None:
        self.scheduler.spend(us)

    def fail_here(self, place: str) -> None:
        if place == "map" and self.busy_us:
            self.spend(self.busy_us.popleft())
        if self.failures[place] > 0:
            self.failures[place] -= 1
            raise InjectedFailure(f"planned failure in {place}")

    def violation(self, text: str) -> None:
        self.violations.append(text)

    def publish(self, name: str) -> None:
        self.published[name] = self.staged[name]
        for numbers in self.staged[name]:
            self.visible.update(numbers.tolist())

    def sink(self, name: str) -> Sink:
        from tests.simulation.sinks import ListSink

        return ListSink(self, name)
