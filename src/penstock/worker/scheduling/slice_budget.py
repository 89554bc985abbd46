"""How long a worker works before it looks at what has arrived: less while a checkpoint is in progress.

A barrier waits for the slice of work that is under way, at every hop. So slices are short from the moment when a
subtask of the worker hears of a checkpoint until all of them are done with it. Where checkpoints follow each other
closely they stay short for a little while after that, so that the next trigger finds short slices too; where they do
not, records need not pay for it: short slices mean more calls.
"""

from __future__ import annotations

from collections.abc import Callable

from penstock.ids import NO_CHECKPOINT, CheckpointId, SubtaskId
from penstock.mailbox.ports import Clock
from penstock.worker.settings import WorkerSettings

_LINGER_MS = 20
_CLOSE_MS = 100
"""A checkpoint that begins within this time of the one before follows it closely; the next one may too."""


class SliceBudget:
    """The slice budget of one worker."""

    __slots__ = ("_clock", "_done_at_ms", "_engaged", "_follows_closely", "_newest", "_relaxes_at_ms", "_settings")

    def __init__(self, settings: WorkerSettings, clock: Clock) -> None:
        self._settings = settings
        self._clock = clock
        self._engaged: set[SubtaskId] = set()
        self._relaxes_at_ms = 0
        self._done_at_ms: int | None = None
        """When the last checkpoint was over here."""
        self._newest = NO_CHECKPOINT
        self._follows_closely = False

    def checkpoint_started(self, subtask: SubtaskId, checkpoint: CheckpointId) -> None:
        """A subtask has heard of a checkpoint."""
        # By its id: one subtask can be done with a checkpoint before another one of the worker hears of it.
        if checkpoint > self._newest:
            self._newest = checkpoint
            done_at_ms = self._done_at_ms
            self._follows_closely = done_at_ms is not None and self._clock.now_ms() - done_at_ms <= _CLOSE_MS
        self._engaged.add(subtask)

    def checkpoint_finished(self, subtask: SubtaskId) -> None:
        """A subtask is done with its checkpoint, in whatever way."""
        if subtask in self._engaged:
            self._engaged.discard(subtask)
            self._done_at_ms = self._clock.now_ms()
            if self._follows_closely:
                self._relaxes_at_ms = self._done_at_ms + _LINGER_MS

    @property
    def slice_us(self) -> int:
        """How long one call into the operators of a chain should take now."""
        return self._settings.checkpoint_slice_us if self.is_checkpointing else self._settings.slice_us

    def begin_slice(self) -> Callable[[], bool]:
        """Begin a slice of work: the function says whether its time is up."""
        clock, until_us = self._clock, self._clock.now_us() + self.slice_us
        return lambda: clock.now_us() >= until_us

    @property
    def turn_us(self) -> int:
        """How long to work before looking at what has arrived; 0 for one slice, while a checkpoint is in progress."""
        return 0 if self.is_checkpointing else self._settings.slice_us

    @property
    def is_checkpointing(self) -> bool:
        return bool(self._engaged) or self._clock.now_ms() < self._relaxes_at_ms
