"""Bounds on the memory of one worker: what it captures for checkpoints (I7), and what it reads back."""

from __future__ import annotations


class Budget:
    """Counts bytes, over all subtasks of a worker."""

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
