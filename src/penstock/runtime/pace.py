"""How long a worker works before it looks at what has arrived: less while a checkpoint is in progress.

A barrier waits for the slice of work that is under way, at every hop. So slices are short from the moment when a
subtask of the worker hears of a checkpoint until all of them are done with it, and for a little while after that: where
checkpoints follow each other closely, the next trigger finds short slices too.
"""

from __future__ import annotations

from penstock.ids import SubtaskId
from penstock.runtime.ports import Clock
from penstock.runtime.settings import WorkerSettings

_LINGER_MS = 20


class Pace:
    """The pace of one worker."""

    __slots__ = ("_calm_at_ms", "_clock", "_engaged", "_settings")

    def __init__(self, settings: WorkerSettings, clock: Clock) -> None:
        self._settings = settings
        self._clock = clock
        self._engaged: set[SubtaskId] = set()
        self._calm_at_ms = 0

    def hurry(self, subtask: SubtaskId) -> None:
        """A subtask has heard of a checkpoint."""
        self._engaged.add(subtask)

    def calm(self, subtask: SubtaskId) -> None:
        """A subtask is done with its checkpoint, in whatever way."""
        if subtask in self._engaged:
            self._engaged.discard(subtask)
            self._calm_at_ms = self._clock.now_ms() + _LINGER_MS

    @property
    def slice_us(self) -> int:
        """How long one call into the operators of a chain should take now."""
        return self._settings.hurried_slice_us if self.is_hurried else self._settings.slice_us

    @property
    def turn_us(self) -> int:
        """How long to work before looking at what has arrived; 0 for one slice, while a checkpoint is in progress."""
        return 0 if self.is_hurried else self._settings.slice_us

    @property
    def is_hurried(self) -> bool:
        return bool(self._engaged) or self._clock.now_ms() < self._calm_at_ms
