"""What a kind of windows decides: how event times become panes, which windows panes belong to, when one is complete.

A kind is a value that a user describes and a checkpoint names. It makes a *grid* once the unit of the event times is
known; the state asks the grid and knows nothing of sizes, steps or calendars. So a new kind is a new file beside
`fixed`, and neither the state nor the operator changes.

The rules that every grid keeps:

- Panes and windows have whole numbers, in the order of their starts. Each event time is in one pane, and a pane
  belongs to each of its windows whole. Windows are half open: a record at the end of one belongs to the next.
- Windows are the same for every key. Kinds whose windows depend on the records of a key have a state that merges by
  key: sessions keep panes of this grid, and `state/windows/sessions.py` chains them.
- Nothing here is done row by row: `panes_of` takes all event times of a batch.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from penstock.model.event_time import Ticks

Late: TypeAlias = Literal["drop", "error", "stream"]
"""What happens to a record all of whose windows have been emitted. Dropped ones are counted."""

WINDOW_START = "window_start"
WINDOW_END = "window_end"


@dataclass(frozen=True, slots=True)
class Emission:
    """When results of windows are emitted. A late record that is allowed changes its result with every batch."""

    is_early: bool = False
    """Whether results are emitted before their windows are complete, whenever they have changed."""
    every_ms: int | None = None
    """With early results: as often as this, by the clock of the worker. None: with every batch."""


ON_CLOSE = Emission()


class WindowGrid(Protocol):
    """The windows of one kind over event times of one unit: equal for equal kinds and units. Times are in ticks."""

    @property
    def panes_per_block(self) -> int:
        """Consecutive panes that are merged once, for all windows that have them all; 1 for windows of one pane."""
        ...

    @property
    def reach_ticks(self) -> int:
        """No bound of a window is further than this from a time within it."""
        ...

    def pane_at(self, tick: int) -> int:
        """The pane of one event time."""
        ...

    def panes_of(self, times: npt.NDArray[np.int64], first: int) -> npt.NDArray[np.uint64]:
        """The pane of each event time, less `first`, which is the pane of the earliest of them."""
        ...

    def start_of(self, pane: int) -> int:
        """The first tick of a pane, by which a checkpoint names it."""
        ...

    def window_bounds(self, window: int) -> tuple[int, int]:
        """The first tick of a window, and the first one behind it."""
        ...

    def panes_in(self, window: int) -> range:
        """The panes that are merged into a window."""
        ...

    def last_complete(self, watermark: int) -> int:
        """The last window that ends at the watermark or before it: no more records are expected for it."""
        ...

    def last_window_of(self, pane: int) -> int:
        """The last window that a pane belongs to."""
        ...

    def first_pane_after(self, window: int) -> int:
        """The first pane that belongs to a later window: records of earlier panes are late once `window` is emitted."""
        ...

    def windows_with(self, panes: Sequence[int], after: int, to: int) -> Iterator[int]:
        """The windows with at least one of `panes`, which are sorted, in order: from `after` + 1 to `to`."""
        ...


class WindowKind(Protocol):
    """One kind of windows with its parameters. `str()` of it is recorded in checkpoints, and shown in errors."""

    @property
    def parameters(self) -> Mapping[str, int]:
        """The numbers that a checkpoint records for these windows, by name. Others are other windows."""
        ...

    def on(self, ticks: Ticks) -> WindowGrid | None:
        """The windows over event times of this unit, or None if their bounds are not whole numbers of it."""
        ...
