"""Work that can be interrupted: records that an operator works off in an order of its own, call by call.

A keyed function costs by key and call, not by row: so it gets many records at once, sorted by key, and the mailbox gets
control between two calls. After each step, the first `rows_done` records in the order of the operator are in its state
and their output was emitted; the others have left no trace. So the others can go back to the channels that they came
from whenever a checkpoint looks at the state (I1).

A call whose output comes from a generator may be interrupted in the middle. Nobody can save a generator, and a part of
its output has left: so a checkpoint waits until the call is over, while the mailbox has its turns (`is_mid_call`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

RowNumbers: TypeAlias = npt.NDArray[np.int64]

CALL_ROWS_FIRST = 1024
"""Rows that a call gets at most before anything is known about it."""


class Steps:
    """The work on one batch. `steps` does it: the mailbox may get control wherever it yields.

    The trap: whatever was called before a yield must be emitted before it, too. State and output of a record belong
    together (I1).
    """

    __slots__ = ("_steps", "call_rows_max", "calls", "is_mid_call", "keys", "order", "rows_done")

    def __init__(self, order: RowNumbers, steps: Callable[[Steps], Iterator[None]]) -> None:
        self.order = order
        """The numbers of the rows in the batch, in the order in which they are worked off."""
        self.rows_done = 0
        """Number of them that are in the state, with their output emitted. Kept up to date by `steps`."""
        self.calls = 0
        """Calls of the user's function so far. Kept up to date by `steps`."""
        self.keys = 0
        """Keys in these calls, one after the other; 0 where each call has one. Kept up to date by `steps`."""
        self.is_mid_call = False
        """Whether a part of the output of a call has left: no checkpoint may be taken. Kept up to date by `steps`."""
        self.call_rows_max = CALL_ROWS_FIRST
        """The most rows for one call. May change between two steps."""
        self._steps = steps(self)

    def step(self) -> bool:
        """Work for about a slice; False if that was the last of it."""
        for _ in self._steps:
            return True
        self.rows_done = len(self.order)
        self.is_mid_call = False
        return False
