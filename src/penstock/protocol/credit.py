"""Credit: how many bytes a sender may have on the wire of one channel.

The receiver grants a window when the channel opens and gives back what it has consumed. A batch larger
than the whole window is charged the whole window: it travels alone. So credit never falls below zero
and never rises above the largest window, and a batch of any size gets through.

The window follows the receiver: what waits in front of a slow one makes every checkpoint larger and every record
later, and none of it faster. So it shrinks to what is consumed in a given time, as long as something is always left
waiting, and grows again when the queue runs empty. Every grant tells the sender the window. It shrinks by granting
less than was consumed: nothing is ever taken back.

Both ends keep plain counters, because this runs for every batch; there is nothing here but arithmetic.
"""

from __future__ import annotations

from penstock.errors import ProtocolViolation


def cost_of(batch_bytes: int, credit_limit_bytes: int) -> int:
    """What sending a batch takes from a channel's credit; at least one, so that empty batches count too."""
    return max(1, min(batch_bytes, credit_limit_bytes))


class SenderCredit:
    """The sender's end: what it may still put on the wire."""

    __slots__ = ("available", "credit_limit_bytes", "credit_limit_bytes_max")

    def __init__(self, credit_limit_bytes: int) -> None:
        self.credit_limit_bytes_max = credit_limit_bytes
        self.credit_limit_bytes = credit_limit_bytes
        """The receiver's window, as far as it has told."""
        self.available = credit_limit_bytes

    def can_send(self, batch_bytes: int) -> bool:
        return self.available >= cost_of(batch_bytes, self.credit_limit_bytes)

    def spend(self, batch_bytes: int) -> int:
        """Pay for a batch; returns what it cost."""
        cost = cost_of(batch_bytes, self.credit_limit_bytes)
        if cost > self.available:
            raise ProtocolViolation(f"credit below zero: {cost} bytes sent with {self.available} granted")
        self.available -= cost
        return cost

    def grant(self, granted: int, credit_limit_bytes: int) -> None:
        most = self.credit_limit_bytes_max
        if granted < 0 or self.available + granted > most:
            raise ProtocolViolation(
                f"credit above the window: {granted} bytes granted with {self.available} of {most} left"
            )
        if not 1 <= credit_limit_bytes <= most:
            raise ProtocolViolation(f"a window of {credit_limit_bytes} bytes where 1 to {most} are possible")
        self.available += granted
        self.credit_limit_bytes = credit_limit_bytes


class ReceiverCredit:
    """The receiver's end: what it has granted and not yet consumed.

    Grants are gathered, so that many small batches do not cost a frame each; but never held back while
    nothing is queued, because then the sender may be waiting for just this.
    """

    __slots__ = ("_told_bytes", "credit_limit_bytes", "credit_limit_bytes_max", "credit_limit_bytes_min", "outstanding")

    def __init__(self, credit_limit_bytes: int, credit_limit_bytes_min: int = 1) -> None:
        self.credit_limit_bytes_max = credit_limit_bytes
        self.credit_limit_bytes_min = min(credit_limit_bytes_min, credit_limit_bytes)
        self.credit_limit_bytes = credit_limit_bytes
        self.outstanding = credit_limit_bytes
        """What the sender may still send, and what it has sent and was not consumed; as it was charged."""
        self._told_bytes = credit_limit_bytes

    def learn(self, waited_us: int, bytes_ahead: int, is_standing: bool, target_us: int, bytes_least: int) -> None:
        """Fit the window to a batch that was consumed `waited_us` after it had come as the last of `bytes_ahead`.

        A queue that runs empty at once may hold too little, however long its batches had to wait: maybe the
        receiver was busy elsewhere. Only one that stands holds more than is needed. `bytes_least` are what the
        receiver wants to take at once: with less it would have to be called more often. So the window grows to that,
        however long records wait.
        """
        if not is_standing:
            self.credit_limit_bytes = min(
                self.credit_limit_bytes_max, self.credit_limit_bytes + self.credit_limit_bytes // 2 + 1
            )
            return
        if waited_us > target_us:
            wanted = max(self.credit_limit_bytes_min, bytes_ahead * target_us // waited_us)
            self.credit_limit_bytes = min(self.credit_limit_bytes, wanted)
        self.credit_limit_bytes = max(self.credit_limit_bytes, min(bytes_least, self.credit_limit_bytes_max))

    def consumed(self, cost: int, queue_is_empty: bool) -> int | None:
        """Note that `cost` was consumed; returns the grant to send now with the window, None for nothing to send."""
        self.outstanding -= cost
        room = max(0, self.credit_limit_bytes - self.outstanding)
        if 2 * room < self.credit_limit_bytes and not queue_is_empty:
            return None
        if room == 0 and self.credit_limit_bytes == self._told_bytes:
            return None
        self.outstanding += room
        self._told_bytes = self.credit_limit_bytes
        return room
