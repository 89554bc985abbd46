"""The attempts of a job, one after the other: their phases, what each has restored, and what each has failed with.

Written by the driver's mailbox, read from any thread: records are values, and replaced as a whole.
"""

from __future__ import annotations

import traceback
from collections import deque
from dataclasses import dataclass, replace

from penstock.driver.attempts.phases import Phase
from penstock.errors import UserCodeError
from penstock.ids import CheckpointId, Generation, WorkerId
from penstock.mailbox.frames import FailedFrame
from penstock.mailbox.ports import Clock

ATTEMPTS_MAX = 1_000
_ERROR_MAX = 20_000
"""Characters of an error that are kept: the end of it, where a traceback names its cause."""


@dataclass(frozen=True, slots=True)
class AttemptFailure:
    """The failure that an attempt has ended with."""

    summary: str
    error: str
    operator: str | None = None
    """The operator that failed, or the first one of the chain that did; None if neither is known."""
    subtask: int | None = None
    worker: WorkerId | None = None


@dataclass(frozen=True, slots=True)
class AttemptRecord:
    """One attempt. `phases` are those that are over, with their durations in milliseconds, and then the current one."""

    started_at_ms: int
    """In milliseconds since 1970."""
    generation: Generation | None = None
    """None before the directory was taken over."""
    restored: CheckpointId | None = None
    ended_at_ms: int | None = None
    phases: tuple[tuple[Phase, int], ...] = ()
    failure: AttemptFailure | None = None


class Timeline:
    """The last attempts of a job."""

    def __init__(self, clock: Clock, attempts_max: int = ATTEMPTS_MAX) -> None:
        self._clock = clock
        self._over: deque[AttemptRecord] = deque(maxlen=attempts_max)
        self._current: AttemptRecord | None = None
        self._phase = Phase.CLAIMING
        self._since_ms = 0
        self._blamed: FailedFrame | None = None
        """The worker's own word about the failure."""

    def begin(self) -> None:
        """An attempt begins: it takes over the directory."""
        self._current = AttemptRecord(self._clock.wall_ms())
        self._phase, self._since_ms, self._blamed = Phase.CLAIMING, self._clock.now_ms(), None

    def taken_over(self, generation: Generation, restored: CheckpointId | None) -> None:
        """The directory is taken over, and the workers are launched."""
        if self._current is not None:
            self._current = replace(self._current, generation=generation, restored=restored)
            self.in_phase(Phase.STARTING)

    def in_phase(self, phase: Phase) -> None:
        """The current attempt is in this phase, from now on unless it was before."""
        if self._current is not None and phase is not self._phase:
            self._current = replace(self._current, phases=self._phases(self._current))
            self._phase, self._since_ms = phase, self._clock.now_ms()

    def blame(self, frame: FailedFrame) -> None:
        """A worker has said that it cannot go on. The first word counts: the others fail because of it."""
        self._blamed = self._blamed or frame

    def end(self, error: Exception | None) -> None:
        """The current attempt is over, because of `error` if there is one."""
        current, self._current = self._current, None
        if current is None:
            return
        failure = None if error is None else self._failure(error)
        ended_at_ms = self._clock.wall_ms()
        self._over.append(replace(current, phases=self._phases(current), ended_at_ms=ended_at_ms, failure=failure))

    def newest_first(self) -> list[AttemptRecord]:
        """All that are kept; the phase of the current one ends now."""
        current, over = self._current, list(self._over)
        found = [*over, replace(current, phases=self._phases(current))] if current is not None else over
        return found[::-1]

    @property
    def restored(self) -> int:
        """Number of attempts that have begun with a checkpoint."""
        return sum(attempt.restored is not None for attempt in self.newest_first())

    def _phases(self, attempt: AttemptRecord) -> tuple[tuple[Phase, int], ...]:
        return (*attempt.phases, (self._phase, self._clock.now_ms() - self._since_ms))

    def _failure(self, error: Exception) -> AttemptFailure:
        text = str(error) or type(error).__name__
        summary, blamed = text.splitlines()[0], self._blamed
        if blamed is None:
            return AttemptFailure(summary, _whole(error)[-_ERROR_MAX:])
        subtask = blamed.subtask
        chain, index = (None, blamed.index) if subtask is None else (subtask.chain, subtask.index)
        # Outside any call of an operator, the first one stands for its chain.
        operator = blamed.operator or chain
        return AttemptFailure(summary, _whole(error)[-_ERROR_MAX:], operator, index, blamed.worker)


def _whole(error: Exception) -> str:
    """All that is known of an error. Of user code that is its own traceback, as the worker had it."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, UserCodeError) and cause.traceback:
            return f"{error}\n\n{cause.traceback}"
        cause = cause.__cause__
    return "".join(traceback.format_exception(error)).strip() if error.__cause__ is not None else str(error)
