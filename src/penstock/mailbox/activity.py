"""What the mailbox of a worker does right now: written by the mailbox thread, read by any other.

Each attribute is replaced as a whole, so that a reader needs no lock. What it reads may be a moment old.
"""

from __future__ import annotations

import sys

from penstock.ids import OperatorName
from penstock.user_code import strangeness


class Activity:
    """The call that a mailbox is in."""

    __slots__ = ("since_ms", "working")

    def __init__(self) -> None:
        self.since_ms: int | None = None
        """When the mailbox began the call that it is in; None between two calls."""
        self.working: tuple[OperatorName, int] | None = None
        """The operator that works, and the number of its subtask; None if it is the mailbox itself."""

    def __str__(self) -> str:
        working = self.working
        return "the mailbox itself" if working is None else f"operator '{working[0]}', subtask {working[1]}"


def line_of(thread: int) -> str:
    """Where a thread is, as `file:line in function`: the innermost line of user code, or else of any code.

    Empty if there is no such thread.
    """
    frame = sys._current_frames().get(thread)
    lines: list[tuple[int, str]] = []
    while frame is not None:
        code = frame.f_code
        lines.append((strangeness(code.co_filename), f"{code.co_filename}:{frame.f_lineno} in {code.co_name}"))
        frame = frame.f_back
    # The first one of the least strange: the innermost.
    return min(lines, key=lambda line: line[0])[1] if lines else ""
