"""Which stretches of time make up a window: arithmetic on whole numbers, nothing else.

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
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from penstock.model.event_time import Ticks
from penstock.model.windows import Windows


@dataclass(frozen=True, slots=True)
class Grid:
    """Windows over event times of one unit."""

    pane_ticks: int
    offset_ticks: int
    panes_per_window: int
    panes_per_step: int

    @property
    def panes_per_block(self) -> int:
        """So many panes that follow each other are merged once, for all windows that have them all.

        With the root of the panes in a window it is made of at most as many blocks, and twice as many single panes.
        """
        return math.isqrt(self.panes_per_window)

    def pane_at(self, tick: int) -> int:
        """Rounded down also before the offset: a division that truncates would make pane 0 twice as long."""
        return (tick - self.offset_ticks) // self.pane_ticks

    def start_of(self, pane: int) -> int:
        return pane * self.pane_ticks + self.offset_ticks

    def window_bounds(self, window: int) -> tuple[int, int]:
        """Its first tick, and the first one behind it."""
        first = window * self.panes_per_step
        return self.start_of(first), self.start_of(first + self.panes_per_window)

    def panes_in(self, window: int) -> range:
        first = window * self.panes_per_step
        return range(first, first + self.panes_per_window)

    def last_complete(self, watermark: int) -> int:
        """The last window that ends at the watermark (in ticks) or before it: nothing more is expected for it."""
        return (self.pane_at(watermark) - self.panes_per_window) // self.panes_per_step

    def first_pane_after(self, window: int) -> int:
        """The first pane that is part of a later window. Windows begin in order, so all panes behind it are too."""
        return (window + 1) * self.panes_per_step

    def windows_with(self, panes: Sequence[int], after: int, to: int) -> Iterator[int]:
        """The windows with at least one of `panes`, which are sorted, in order: from `after` + 1 to `to`."""
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


def grid_of(windows: Windows, ticks: Ticks) -> Grid | None:
    """The grid in this unit, or None if the windows cannot be had in it: half seconds in a column of seconds."""
    pane_ms = math.gcd(windows.size_ms, windows.every_ms)
    spans = [ticks.exactly(ms) for ms in (windows.size_ms, windows.every_ms, windows.offset_ms)]
    if None in spans:
        return None
    pane, offset = ticks.exactly(pane_ms), spans[2]
    assert pane is not None and offset is not None
    return Grid(pane, offset, windows.size_ms // pane_ms, windows.every_ms // pane_ms)
