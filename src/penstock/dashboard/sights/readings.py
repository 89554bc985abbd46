"""Readings of a pipeline's counters, and rates between two of them.

A reading is made at most twice a second, however many clients ask. Rates are counted over some seconds, because workers
report once a second: between two readings that are close together nothing may have come, or twice as much.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from penstock.ids import Generation, OperatorName
from penstock.metrics.samples import Number
from penstock.spark.watched import Watched

FRESH_MS = 500
"""A reading that is younger than this is shared."""
RATE_MS = 5_000
"""Rates are counted over about this time."""

Place: TypeAlias = tuple[OperatorName, int]
"""Operator and subtask."""
Values: TypeAlias = Mapping[Place, Number]

ROWS_IN, ROWS_OUT = "num_records_in", "num_records_out"
BUSY, IDLE, BACK_PRESSURED = "busy_time_ms", "idle_time_ms", "back_pressured_time_ms"
INPUT_WATERMARK, OUTPUT_WATERMARK = "current_input_watermark", "current_output_watermark"
STATE, QUEUED_IN, QUEUED_OUT = "state_size", "input_queue_size", "output_queue_size"
_NAMES = (
    ROWS_IN,
    ROWS_OUT,
    BUSY,
    IDLE,
    BACK_PRESSURED,
    INPUT_WATERMARK,
    OUTPUT_WATERMARK,
    STATE,
    QUEUED_IN,
    QUEUED_OUT,
)
_NONE: Values = {}


@dataclass(frozen=True, slots=True)
class Reading:
    """The counters at one moment, and those of some seconds before in the same attempt."""

    at_ms: int
    """By the monotonic clock of the driver."""
    wall_ms: int
    generation: Generation | None
    values: Mapping[str, Values]
    before: Reading | None = None

    def of(self, name: str) -> Values:
        return self.values.get(name, _NONE)

    def value(self, name: str, place: Place) -> Number | None:
        return self.of(name).get(place)

    def per_second(self, name: str, place: Place) -> float | None:
        """Growth of a counter; None until two readings know it."""
        before, now = self.before, self.value(name, place)
        if before is None or now is None:
            return None
        then = before.value(name, place)
        passed_ms = self.at_ms - before.at_ms
        return None if then is None or passed_ms <= 0 else max(0.0, 1000 * (now - then) / passed_ms)

    def shares(self, place: Place) -> tuple[float, float, float] | None:
        """Busy, idle and back-pressured shares of a subtask's time, which add up to 1; None until they are known."""
        grown = [self._growth(name, place) for name in (BUSY, IDLE, BACK_PRESSURED)]
        total = sum(part or 0 for part in grown)
        if any(part is None for part in grown) or total <= 0:
            return None
        busy, idle, held_up = (max(0.0, (part or 0) / total) for part in grown)
        return busy, idle, held_up

    def _growth(self, name: str, place: Place) -> float | None:
        now, before = self.value(name, place), self.before
        if now is None:
            return None
        then = None if before is None else before.value(name, place)
        # Without an earlier reading: since the worker started.
        return float(now if then is None else max(0, now - then))


class Readings:
    """Makes readings of one pipeline, for any thread. `made` counts them, for tests."""

    def __init__(self, watched: Watched, now_ms: Callable[[], int] | None = None) -> None:
        self._watched = watched
        self._now_ms = now_ms or watched.clock.now_ms
        self._lock = threading.Lock()
        self._past: deque[Reading] = deque()
        self._newest: Reading | None = None
        self.made = 0

    def newest(self) -> Reading:
        """The newest reading; a new one if it is older than half a second."""
        with self._lock:
            now_ms, newest = self._now_ms(), self._newest
            if newest is None or now_ms - newest.at_ms >= FRESH_MS:
                newest = self._newest = self._make(now_ms)
            return newest

    def _make(self, now_ms: int) -> Reading:
        self.made += 1
        supervisor = self._watched.supervisor
        coordinator = supervisor.coordinator
        generation = coordinator.generation if coordinator is not None else None
        metrics = supervisor.observations.metrics
        values = {name: metrics.values(name) for name in _NAMES}
        past = self._past
        if past and past[-1].generation != generation:
            # A restart goes back to the counts of its checkpoint: there is no rate across it.
            past.clear()
        while len(past) > 1 and past[1].at_ms <= now_ms - RATE_MS:
            past.popleft()
        reading = Reading(now_ms, self._watched.clock.wall_ms(), generation, values, past[0] if past else None)
        past.append(Reading(now_ms, reading.wall_ms, generation, values))
        return reading
