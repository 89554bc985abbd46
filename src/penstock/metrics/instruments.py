"""The three kinds of instruments. Each belongs to one thread; reading a number from another one is harmless."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable

BUCKETS = tuple(10.0**exponent * step for exponent in range(-4, 3) for step in (1.0, 2.5, 5.0))
"""Upper bounds of a histogram's buckets in seconds, from 0.1 ms to 500 s; one bucket more takes the rest."""


class Counter:
    """A number that only grows."""

    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value = 0

    def add(self, amount: int = 1) -> None:
        self.value += amount


class Gauge:
    """A number that is read when somebody asks."""

    __slots__ = ("_read",)

    def __init__(self, read: Callable[[], float]) -> None:
        self._read = read

    @property
    def value(self) -> float:
        return self._read()


class Histogram:
    """The distribution of durations in seconds, in buckets of fixed bounds, so that those of many subtasks add up."""

    __slots__ = ("counts", "total")

    def __init__(self) -> None:
        self.counts = [0] * (len(BUCKETS) + 1)
        self.total = 0.0
        """Sum of all that was observed."""

    def observe(self, seconds: float) -> None:
        self.counts[bisect_left(BUCKETS, seconds)] += 1
        self.total += seconds
