"""What the coordinator hears (past tense) and what it orders (imperative).

The runtime feeds events in the order in which things happened and executes actions in the order in which they were
returned. Every event carries the driver's time: the coordinator has no clock.

What the runtime owes for the actions that touch the store or a sink:

    ReserveIds       IdsReserved, ReservationLost, OwnershipLost or ReservationFailed
    WriteManifest    ManifestWritten, OutcomeFound, OwnershipLost or ManifestFailed
    WriteTombstone   TombstoneWritten, OutcomeFound, OwnershipLost or TombstoneFailed
    Commit           Committed, once the committed marker is durable too, or CommitFailed

A failure says "not that I know of", never "certainly not": a write that timed out may still arrive.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from penstock.ids import CheckpointId, Generation, SubtaskId
from penstock.protocol.barrier import Barrier
from penstock.protocol.commit import CommitPermit
from penstock.protocol.coordinator.state import Request, RequestId, State
from penstock.protocol.declines import DeclineReason
from penstock.protocol.manifest import Manifest, SubtaskReport
from penstock.protocol.ownership import Outcome, Reservation, Tombstone
from penstock.protocol.retention import RetentionBound

# --- events ---


@dataclass(frozen=True, slots=True)
class AllReady:
    """Every worker has its state back; before this nothing is triggered."""

    now_ms: int


@dataclass(frozen=True, slots=True)
class Ticked:
    """The wake-up call that was ordered, or any other; too early or too often does no harm."""

    now_ms: int


@dataclass(frozen=True, slots=True)
class IdsReserved:
    """The reservation was created, or found to be this generation's own."""

    reservation: Reservation
    now_ms: int


@dataclass(frozen=True, slots=True)
class ReservationLost:
    """There is a reservation of the first of these ids, and it is another generation's."""

    reservation: Reservation
    now_ms: int


@dataclass(frozen=True, slots=True)
class ReservationFailed:
    reservation: Reservation
    error: str
    now_ms: int


@dataclass(frozen=True, slots=True)
class CheckpointRequested:
    request: Request
    now_ms: int


@dataclass(frozen=True, slots=True)
class CancelRequested:
    """Give up the checkpoint in progress: this one, or whichever it is."""

    checkpoint: CheckpointId | None
    now_ms: int


@dataclass(frozen=True, slots=True)
class Acknowledged:
    checkpoint: CheckpointId
    generation: Generation
    report: SubtaskReport
    now_ms: int


@dataclass(frozen=True, slots=True)
class Declined:
    checkpoint: CheckpointId
    generation: Generation
    subtask: SubtaskId
    reason: DeclineReason
    detail: str
    now_ms: int


@dataclass(frozen=True, slots=True)
class InputEnded:
    """The subtask has processed the end of all its bounded input."""

    subtask: SubtaskId
    now_ms: int


@dataclass(frozen=True, slots=True)
class ManifestWritten:
    """The store created the manifest: the checkpoint exists (I3)."""

    checkpoint: CheckpointId
    now_ms: int


@dataclass(frozen=True, slots=True)
class ManifestFailed:
    checkpoint: CheckpointId
    error: str
    now_ms: int


@dataclass(frozen=True, slots=True)
class TombstoneWritten:
    """The store created the tombstone: the checkpoint will never exist."""

    checkpoint: CheckpointId
    now_ms: int


@dataclass(frozen=True, slots=True)
class TombstoneFailed:
    checkpoint: CheckpointId
    error: str
    now_ms: int


@dataclass(frozen=True, slots=True)
class OutcomeFound:
    """A manifest or tombstone was not created because this one was there. Read it before reporting it.

    It may be our own, of a write that was reported as failed.
    """

    outcome: Outcome
    now_ms: int


@dataclass(frozen=True, slots=True)
class OwnershipLost:
    """The licence of this generation is gone: whatever it was to create does not count, created or not."""

    now_ms: int


@dataclass(frozen=True, slots=True)
class Committed:
    """All committables are published, and the marker that says so is durable."""

    checkpoint: CheckpointId
    now_ms: int


@dataclass(frozen=True, slots=True)
class CommitFailed:
    checkpoint: CheckpointId
    error: str
    now_ms: int
    is_permanent: bool = False
    """Whether the error is one that does not pass: a defect of the sink, data that do not fit, a missing right."""


Event: TypeAlias = (
    AllReady
    | Ticked
    | IdsReserved
    | ReservationLost
    | ReservationFailed
    | CheckpointRequested
    | CancelRequested
    | Acknowledged
    | Declined
    | InputEnded
    | ManifestWritten
    | ManifestFailed
    | TombstoneWritten
    | TombstoneFailed
    | OutcomeFound
    | OwnershipLost
    | Committed
    | CommitFailed
)


# --- answers to a request ---


@dataclass(frozen=True, slots=True)
class RequestCompleted:
    """The checkpoint is durable and its output published."""

    checkpoint: CheckpointId


@dataclass(frozen=True, slots=True)
class RequestDeclined:
    reason: DeclineReason
    detail: str = ""


RequestResult: TypeAlias = RequestCompleted | RequestDeclined


# --- actions ---


@dataclass(frozen=True, slots=True)
class ReserveIds:
    reservation: Reservation


@dataclass(frozen=True, slots=True)
class SendBarrier:
    """To every worker: every subtask hears of a checkpoint, and of its cancellation, directly."""

    barrier: Barrier


@dataclass(frozen=True, slots=True)
class WriteManifest:
    manifest: Manifest


@dataclass(frozen=True, slots=True)
class WriteTombstone:
    tombstone: Tombstone


@dataclass(frozen=True, slots=True)
class Commit:
    permit: CommitPermit


@dataclass(frozen=True, slots=True)
class AnnounceCompleted:
    """To every worker, for its sources. The barrier of the next checkpoint may be on its way already."""

    checkpoint: CheckpointId


@dataclass(frozen=True, slots=True)
class Prune:
    """Read the contents of the store, ask `decide_retention`, delete."""

    bound: RetentionBound


@dataclass(frozen=True, slots=True)
class AnswerRequest:
    request: RequestId
    result: RequestResult


@dataclass(frozen=True, slots=True)
class Refused:
    """Something was not accepted and changed nothing; to be logged (I12)."""

    what: str
    why: str


@dataclass(frozen=True, slots=True)
class WakeAt:
    """Send `Ticked` at this time, at once if it is past. What was ordered before for later comes as well."""

    at_ms: int


@dataclass(frozen=True, slots=True)
class FailJob:
    """Restart from the newest checkpoint. What is pending is left to the takeover to settle."""

    reason: str
    is_of_commit: bool = False
    """Whether a sink is the cause: it has failed, or has not answered."""


@dataclass(frozen=True, slots=True)
class StopFenced:
    """Stop at once and touch nothing more: the directory belongs to somebody else (I6)."""

    reason: str


@dataclass(frozen=True, slots=True)
class Finish:
    """The final checkpoint is durable and committed: nothing is left to do."""

    checkpoint: CheckpointId


Action: TypeAlias = (
    ReserveIds
    | SendBarrier
    | WriteManifest
    | WriteTombstone
    | Commit
    | AnnounceCompleted
    | Prune
    | AnswerRequest
    | Refused
    | WakeAt
    | FailJob
    | StopFenced
    | Finish
)

Step: TypeAlias = tuple[State, tuple[Action, ...]]
