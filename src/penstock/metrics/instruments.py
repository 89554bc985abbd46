"""Instruments: they count on the mailbox thread, without locks and without allocating.

Each attribute is replaced as a whole, so that another thread may read it. It may see a number that is a moment old.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import Final

BUCKETS: Final = tuple(float(f"{step}e{exponent}") for exponent in range(-4, 3) for step in (1, 2.5, 5))
"""Upper bounds of a histogram's buckets in seconds, from 0.1 ms to 500 s; one bucket more takes the rest."""


class Counter:
    """A number that only grows. In an inner loop write `counter.value += rows`: that is all it takes."""

    __slots__ = ("value",)

    def __init__(self, value: int = 0) -> None:
        self.value = value

    def add(self, amount: int = 1) -> None:
        self.value += amount


class Gauge:
    """A number of this moment, which somebody sets. None: nothing to tell."""

    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value: int | float | None = None

    def set(self, value: int | float | None) -> None:
        self.value = value

    def read(self) -> int | float | None:
        return self.value


class Histogram:
    """The distribution of durations in seconds. Bounds are fixed, so that histograms of many subtasks add up."""

    __slots__ = ("counts", "total")

    def __init__(self) -> None:
        self.counts = [0] * (len(BUCKETS) + 1)
        self.total = 0.0
        """Sum of the observations."""

    def observe(self, seconds: float) -> None:
        self.counts[bisect_left(BUCKETS, seconds)] += 1
        self.total += seconds
