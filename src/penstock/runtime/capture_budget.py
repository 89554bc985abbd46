"""The bound on in-flight data that one worker holds for checkpoints (I7)."""

from __future__ import annotations


class CaptureBudget:
    """Counts captured bytes, over all subtasks of a worker."""

    __slots__ = ("bytes_held", "bytes_max")

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self.bytes_held = 0

    def take(self, size: int) -> bool:
        """Count `size` bytes; False if that is beyond the bound. Counted all the same: give them back."""
        self.bytes_held += size
        return self.bytes_held <= self.bytes_max

    def give_back(self, size: int) -> None:
        self.bytes_held -= size
