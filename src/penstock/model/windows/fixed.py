"""Fixed windows: of one size, beginning at one interval, aligned to 1970 or shifted by an offset from there.

Time is cut into *panes*: the longest stretches of which every window is made up whole. Pane 0 begins at the offset,
panes before it have negative numbers. Windows that do not overlap have one pane each.

    panes      | -1 |  0 |  1 |  2 |  3 |  4 |
    window 0        [---------)                  panes_per_window = 2
    window 1             [---------)             panes_per_step = 1
    window 2                  [---------)
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from penstock.model.event_time import Ticks


@dataclass(frozen=True, slots=True)
class FixedWindows:
    """A window of `size_ms` begins every `every_ms`: less than the size if they overlap, and never more."""

    size_ms: int
    every_ms: int
    offset_ms: int = 0
    lateness_ms: int = 0
    """The time in which records still change a window that was emitted. Its state is kept that long."""

    def __str__(self) -> str:
        # Names of operators are derived from it, and checkpoints contain it: it stays as it is.
        kept = f" with an allowed lateness of {self.lateness_ms} ms" if self.lateness_ms else ""
        return f"windows of {self.size_ms} ms every {self.every_ms} ms from {self.offset_ms} ms{kept}"

    @property
    def parameters(self) -> Mapping[str, int]:
        spans = {"size_ms": self.size_ms, "every_ms": self.every_ms, "offset_ms": self.offset_ms}
        # Windows that were dropped earlier than this lateness says would be emitted again, without their first records.
        return spans | ({"allowed_lateness_ms": self.lateness_ms} if self.lateness_ms else {})

    def on(self, ticks: Ticks) -> Grid | None:
        """None for half seconds in a column of seconds."""
        pane_ms = math.gcd(self.size_ms, self.every_ms)
        spans = [ticks.exactly(ms) for ms in (self.size_ms, self.every_ms, self.offset_ms)]
        if None in spans:
            return None
        pane, offset = ticks.exactly(pane_ms), spans[2]
        assert pane is not None and offset is not None
        return Grid(pane, offset, self.size_ms // pane_ms, self.every_ms // pane_ms)


@dataclass(frozen=True, slots=True)
class Grid:
    """Fixed windows over event times of one unit."""

    pane_ticks: int
    offset_ticks: int
    panes_per_window: int
    panes_per_step: int

    @property
    def panes_per_block(self) -> int:
        """With the root of the panes in a window it is made of at most as many blocks, and twice as many panes."""
        return math.isqrt(self.panes_per_window)

    @property
    def reach_ticks(self) -> int:
        return self.pane_ticks * self.panes_per_window

    def pane_at(self, tick: int) -> int:
        """Rounded down also before the offset: a division that truncates would make pane 0 twice as long."""
        return (tick - self.offset_ticks) // self.pane_ticks

    def panes_of(self, times: npt.NDArray[np.int64], first: int) -> npt.NDArray[np.uint64]:
        # Differences of 64-bit numbers without a sign are right even where those with one would overflow.
        since = times.view(np.uint64) - np.uint64(self.start_of(first) % 2**64)
        return since // np.uint64(self.pane_ticks)

    def start_of(self, pane: int) -> int:
        return pane * self.pane_ticks + self.offset_ticks

    def window_bounds(self, window: int) -> tuple[int, int]:
        first = window * self.panes_per_step
        return self.start_of(first), self.start_of(first + self.panes_per_window)

    def panes_in(self, window: int) -> range:
        first = window * self.panes_per_step
        return range(first, first + self.panes_per_window)

    def last_complete(self, watermark: int) -> int:
        return (self.pane_at(watermark) - self.panes_per_window) // self.panes_per_step

    def last_window_of(self, pane: int) -> int:
        return pane // self.panes_per_step

    def first_pane_after(self, window: int) -> int:
        """Windows begin in order, so all panes behind it belong to later windows too."""
        return (window + 1) * self.panes_per_step

    def windows_with(self, panes: Sequence[int], after: int, to: int) -> Iterator[int]:
        window = after + 1
        while panes and window <= to:
            place = bisect.bisect_left(panes, window * self.panes_per_step)
            if place == len(panes):
                return
            # The first window that reaches as far as the next pane; those before it are empty.
            window = max(window, -((self.panes_per_window - 1 - panes[place]) // self.panes_per_step))
            if window > to:
                return
            yield window
            window += 1
