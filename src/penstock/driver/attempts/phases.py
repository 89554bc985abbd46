"""Phases of a pipeline, and how far the workers of an attempt have come on their way to `running`.

A pipeline is running when every subtask of it runs, and not before: until then the phase names the step that it is
at, and the detail how far that is. Nothing is decided here but the words.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable
from dataclasses import dataclass

from penstock.ids import WorkerId
from penstock.mailbox.frames import Frame, HeartbeatFrame, HelloFrame, ReadyFrame
from penstock.mailbox.recovery_stats import RecoveryStats


class Phase(enum.Enum):
    """Where a pipeline is in its life."""

    CLAIMING = "claiming"
    """It takes over the checkpoint directory."""
    WAITING_FOR_SLOTS = "waiting for slots"
    STARTING = "starting workers"
    RESTORING = "restoring"
    """The workers read their state from the checkpoint."""
    RUNNING = "running"
    STOPPING = "stopping"
    """It takes its last savepoint."""
    WAITING = "waiting to restart"
    FINISHED = "finished"
    """All input is read and published."""
    STOPPED = "stopped"
    """Somebody has stopped it, with a savepoint or at once: it can go on."""
    FAILED = "failed"

    @property
    def is_end(self) -> bool:
        return self in (Phase.FINISHED, Phase.STOPPED, Phase.FAILED)


@dataclass(frozen=True, slots=True)
class Progress:
    """A phase, and how far it has come."""

    phase: Phase
    detail: str = ""

    def __str__(self) -> str:
        return f"{self.phase.value} ({self.detail})" if self.detail else self.phase.value


@dataclass(frozen=True, slots=True)
class HoldUp:
    """The reason why workers do not start: there is no room for them."""

    detail: str
    """In a few words, for a display: `1 of 2 free`."""
    text: str
    """In a sentence, with the way out."""


class Startup:
    """The workers of one attempt, from the launch until all of them are ready."""

    def __init__(self, workers: int, *, restores: bool) -> None:
        self._workers = workers
        self._restores = restores
        self._came: set[WorkerId] = set()
        self._ready: set[WorkerId] = set()
        self._recovery: dict[WorkerId, RecoveryStats] = {}
        self.hold_up: HoldUp | None = None

    def heard(self, frame: Frame) -> None:
        match frame:
            case HelloFrame(_, worker):
                self._came.add(worker)
            case ReadyFrame(_, worker):
                self._came.add(worker)
                self._ready.add(worker)
            case HeartbeatFrame(_, worker):
                self._came.add(worker)
                if frame.recovery is not None:
                    self._recovery[worker] = frame.recovery
            case _:
                pass

    @property
    def is_complete(self) -> bool:
        """Whether every subtask runs."""
        return len(self._ready) == self._workers

    def missing(self, among: Iterable[WorkerId]) -> list[WorkerId]:
        """Those of `among` that have not been heard of at all."""
        return [worker for worker in among if worker not in self._came]

    @property
    def progress(self) -> Progress:
        if self.is_complete:
            return Progress(Phase.RUNNING)
        if self.hold_up is not None and not self._came:
            return Progress(Phase.WAITING_FOR_SLOTS, self.hold_up.detail)
        if len(self._came) < self._workers or not self._restores:
            return Progress(Phase.STARTING, f"{len(self._came)} of {self._workers}")
        return Progress(Phase.RESTORING, f"{self._percent} %")

    @property
    def _percent(self) -> int:
        """The share of the state that is back; a worker that has said nothing yet has read nothing."""
        shares = (self._recovery[worker].share_read for worker in self._recovery if worker not in self._ready)
        return int(100 * (len(self._ready) + sum(shares)) / self._workers)
