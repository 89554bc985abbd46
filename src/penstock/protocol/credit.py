"""Credit: how many bytes a sender may have on the wire of one channel.

The receiver grants a window when the channel opens and gives back what it has consumed. A batch larger
than the whole window is charged the whole window: it travels alone. So credit never falls below zero
and never rises above the window, and a batch of any size gets through.

Both ends keep plain counters, because this runs for every batch; there is nothing here but arithmetic.
"""

from __future__ import annotations

from penstock.errors import ProtocolViolation


def cost_of(batch_bytes: int, window_bytes: int) -> int:
    """What sending a batch takes from a channel's credit; at least one, so that empty batches count too."""
    return max(1, min(batch_bytes, window_bytes))


class SenderCredit:
    """The sender's end: what it may still put on the wire."""

    __slots__ = ("available", "window_bytes")

    def __init__(self, window_bytes: int) -> None:
        self.window_bytes = window_bytes
        self.available = window_bytes

    def can_send(self, cost: int) -> bool:
        return self.available >= cost

    def spend(self, cost: int) -> None:
        if cost > self.available:
            raise ProtocolViolation(f"credit below zero: {cost} bytes sent with {self.available} granted")
        self.available -= cost

    def grant(self, granted: int) -> None:
        if granted < 0 or self.available + granted > self.window_bytes:
            raise ProtocolViolation(
                f"credit above the window: {granted} bytes granted with {self.available} of {self.window_bytes} left"
            )
        self.available += granted


class ReceiverCredit:
    """The receiver's end: what it has consumed and not yet given back.

    Grants are gathered, so that many small batches do not cost a frame each; but never held back while
    nothing is queued, because then the sender may be waiting for just this.
    """

    __slots__ = ("owed", "window_bytes")

    def __init__(self, window_bytes: int) -> None:
        self.window_bytes = window_bytes
        self.owed = 0

    def consumed(self, cost: int, queue_is_empty: bool) -> int:
        """Note that `cost` was consumed; returns the grant to send now, 0 for none."""
        self.owed += cost
        if queue_is_empty or 2 * self.owed >= self.window_bytes:
            granted, self.owed = self.owed, 0
            return granted
        return 0
