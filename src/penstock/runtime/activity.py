"""What the mailbox of a worker does right now: written by the mailbox thread, read by any other.

Each attribute is replaced as a whole, so that a reader needs no lock. What it reads may be a moment old.
"""

from __future__ import annotations

import os
import sys
import sysconfig
from types import FrameType

from penstock.ids import OperatorName

_OURS = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
_LIBRARIES = tuple({os.path.join(path, "") for path in (sysconfig.get_path("stdlib"), sysconfig.get_path("purelib"))})


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
        lines.append((_strangeness(frame), f"{frame.f_code.co_filename}:{frame.f_lineno} in {frame.f_code.co_name}"))
        frame = frame.f_back
    # The first one of the least strange: the innermost.
    return min(lines, key=lambda line: line[0])[1] if lines else ""


def _strangeness(frame: FrameType) -> int:
    """0 for user code, 1 for a library, 2 for Penstock."""
    name = frame.f_code.co_filename
    if name.startswith(_OURS):
        return 2
    return 1 if name.startswith(("<", *_LIBRARIES)) else 0
