"""Figures of a pipeline over the last hour, in bounded memory: one value of each series every few seconds."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping

from penstock.dashboard.views import HistoryView

STEP_MS = 5_000
SECONDS_MAX = 3_600

NAMES = (
    "rows_in_per_second",
    "rows_out_per_second",
    "busy",
    "backpressured",
    "worker_memory_bytes",
    "state_bytes",
    "checkpoint_duration",
    "watermark_lag_ms",
    "latency_p50_ms",
    "latency_p99_ms",
)


class Series:
    """The last hour. Written by one thread, read by any."""

    def __init__(self, step_ms: int = STEP_MS, seconds_max: int = SECONDS_MAX) -> None:
        self.step_ms = step_ms
        length = 1000 * seconds_max // step_ms
        self._values: dict[str, deque[tuple[int, float]]] = {name: deque(maxlen=length) for name in NAMES}

    def add(self, at_ms: int, values: Mapping[str, float | None]) -> None:
        """The values of now; one that is not known leaves a gap."""
        for name, value in values.items():
            if value is not None and math.isfinite(value):
                self._values[name].append((at_ms, round(value, 4)))

    def view(self, seconds: int, now_ms: int) -> HistoryView:
        """The last `seconds`, at most an hour."""
        since_ms = now_ms - 1000 * seconds
        return HistoryView(
            step_ms=self.step_ms,
            series={
                name: tuple(each for each in list(values) if each[0] >= since_ms)
                for name, values in self._values.items()
            },
        )
