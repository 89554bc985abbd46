"""What the coordinator knows: its policy, the attempt in hand, the requests that wait, and what became of the rest.

Values only; `protocol.coordinator` decides, `protocol.coordinator_invariants` says what must hold between the fields.
Every time is of the driver's one clock and entered through an event.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, replace
from typing import NewType, TypeAlias

from penstock.errors import OptionError
from penstock.ids import NO_CHECKPOINT, CheckpointId, Generation, SubtaskId
from penstock.protocol.barrier import Barrier
from penstock.protocol.commit import CommitPermit
from penstock.protocol.declines import DeclineReason
from penstock.protocol.history import CheckpointRecord
from penstock.protocol.manifest import Manifest, PipelineShape, SubtaskReport
from penstock.protocol.ownership import Reservation
from penstock.protocol.retention import STOPS_RETAINED

RequestId = NewType("RequestId", int)
"""Given by whoever asks, to recognise the answer."""


class Mode(enum.Enum):
    """Whether barriers may overtake records."""

    ALIGNED = "aligned"
    UNALIGNED = "unaligned"
    ALIGNED_WITH_TIMEOUT = "aligned with timeout"
    """Aligned until the barrier is older than the alignment timeout, unaligned from then on."""


@dataclass(frozen=True, slots=True)
class Policy:
    """When to take checkpoints and how long to wait for what. Raises `OptionError`."""

    interval_ms: int | None = 10_000
    """From trigger to trigger; None for checkpoints on request alone."""
    pause_ms_min: int = 0
    """From the end of one to the next trigger; 0 also lets one begin while the manifest of the last is written.
    Requested ones do not wait for it."""
    checkpoint_timeout_ms: int = 600_000
    """An attempt ends after this; so does the patience with a store or sink that does not answer."""
    commit_timeout_ms: int = 300_000
    """Patience with a sink whose commit fails or does not return."""
    failures_tolerable: int = 3
    """Counted failures in a row that are tolerated; the next one fails the job."""
    mode: Mode = Mode.ALIGNED_WITH_TIMEOUT
    alignment_timeout_ms: int = 500
    retained: int = 3
    stops_retained: int = STOPS_RETAINED
    """Savepoints of stops; those that were asked for are never removed."""
    backoff_ms: int = 100
    """Wait after an attempt that did not complete; doubles each time, up to `backoff_ms_max`."""
    backoff_ms_max: int = 10_000
    history_max: int = 100
    requests_max: int = 16

    def __post_init__(self) -> None:
        if self.interval_ms is not None:
            _at_least("interval_ms", self.interval_ms, 1, "None switches periodic checkpoints off")
        for name in (
            "checkpoint_timeout_ms",
            "commit_timeout_ms",
            "retained",
            "stops_retained",
            "backoff_ms",
            "history_max",
            "requests_max",
        ):
            _at_least(name, getattr(self, name), 1)
        for name in ("pause_ms_min", "failures_tolerable", "alignment_timeout_ms"):
            _at_least(name, getattr(self, name), 0)
        _at_least("backoff_ms_max", self.backoff_ms_max, self.backoff_ms, "it bounds backoff_ms")

    def backoff_after(self, times: int) -> int:
        """How long to wait after `times` (at least 1) failures in a row."""
        # The exponent is bounded as well: a large one would build a number of a million digits first.
        return min(self.backoff_ms << min(times - 1, 30), self.backoff_ms_max)


def _at_least(name: str, value: int, least: int, hint: str = "") -> None:
    if value < least:
        raise OptionError(f"{name} is {value} and must be at least {least}" + (f"; {hint}" if hint else ""))


class RequestKind(enum.Enum):
    CHECKPOINT = "checkpoint"
    SAVEPOINT = "savepoint"
    DRAIN = "drain"
    """Stop with a savepoint."""


@dataclass(frozen=True, slots=True)
class Request:
    """Somebody wants a checkpoint now, and an answer."""

    id: RequestId
    kind: RequestKind = RequestKind.CHECKPOINT


@dataclass(frozen=True, slots=True)
class Retry:
    """Something asked of a store or sink that must succeed in the end: under way, or waiting to be tried again."""

    since_ms: int
    failures: int = 0
    retry_at_ms: int | None = None
    """None while it is under way."""
    error: str = "no answer"
    timeout_ms: int | None = None
    """When it is given up; None for `Policy.checkpoint_timeout_ms`."""

    def failed(self, policy: Policy, error: str, now_ms: int) -> Retry:
        retry_at_ms = now_ms + policy.backoff_after(self.failures + 1)
        return replace(self, failures=self.failures + 1, retry_at_ms=retry_at_ms, error=error)

    def is_due(self, now_ms: int) -> bool:
        return self.retry_at_ms is not None and now_ms >= self.retry_at_ms

    def overdue_at_ms(self, policy: Policy) -> int:
        """When it is given up, whether it is under way or not: a call that never returns must not hang the job."""
        return self.since_ms + self.limit_ms(policy)

    def limit_ms(self, policy: Policy) -> int:
        return policy.checkpoint_timeout_ms if self.timeout_ms is None else self.timeout_ms

    def wake_at_ms(self, policy: Policy) -> int:
        """When somebody must look at it: to try again, or to give up."""
        overdue_at_ms = self.overdue_at_ms(policy)
        return overdue_at_ms if self.retry_at_ms is None else min(self.retry_at_ms, overdue_at_ms)


@dataclass(frozen=True, slots=True)
class Reserved:
    """A block of ids in hand: `upcoming` is for the next trigger, those of the block below it are used."""

    reservation: Reservation
    upcoming: CheckpointId
    since_ms: int
    """When the block was asked for: by this the size of the next one is decided."""


@dataclass(frozen=True, slots=True)
class Reserving:
    """The store was asked for the next block of ids."""

    reservation: Reservation
    retry: Retry


@dataclass(frozen=True, slots=True)
class PendingCheckpoint:
    """What stays the same from the trigger of a checkpoint to its end."""

    barrier: Barrier
    expires_at_ms: int
    requests: tuple[Request, ...] = ()
    """All those that it answers."""


@dataclass(frozen=True, slots=True)
class Collecting:
    """The barrier is out; `waiting` have not acknowledged yet, `reports` are those who have.

    Once nobody is waited for, its manifest is written, or waits for the attempt before it to be decided.
    """

    pending: PendingCheckpoint
    waiting: frozenset[SubtaskId]
    reports: tuple[SubtaskReport, ...] = ()


@dataclass(frozen=True, slots=True)
class Writing:
    """Everybody has acknowledged; the store was asked to create the manifest."""

    pending: PendingCheckpoint
    manifest: Manifest


@dataclass(frozen=True, slots=True)
class WritingTombstone:
    """The attempt is to end for `reason`, but its manifest may have been created, or may yet be.

    So the store was asked for a tombstone in its place. One of the two wins, and that decides (I3).
    """

    pending: PendingCheckpoint
    manifest: Manifest
    reason: DeclineReason
    detail: str
    retry: Retry


Deciding: TypeAlias = Writing | WritingTombstone


@dataclass(frozen=True, slots=True)
class Publishing:
    """The checkpoint is durable and its sinks are committing. It cannot be given up any more (I4)."""

    permit: CommitPermit
    retry: Retry
    requests: tuple[Request, ...] = ()
    is_final: bool = False


class Stop(enum.Enum):
    """Why nothing is decided any more."""

    FINISHED = "the pipeline has finished"
    FAILED = "the attempt has failed"
    FENCED = "a newer generation has taken over"


@dataclass(frozen=True, slots=True)
class State:
    """The coordinator between two events."""

    policy: Policy
    generation: Generation
    shape: PipelineShape
    members: frozenset[SubtaskId]
    """Everybody who must acknowledge (I12)."""
    reserved: Reserved | None
    """The ids in hand; if none is left, the next ones are being reserved."""
    reserving: Reserving | None = None
    restored: CheckpointId = NO_CHECKPOINT
    newest: CheckpointId = NO_CHECKPOINT
    """The newest completed checkpoint, the restored one included."""
    is_ready: bool = False
    collecting: Collecting | None = None
    deciding: Deciding | None = None
    """The attempt before the one that is collecting, if there is one: the store decides what becomes of it."""
    publishing: Publishing | None = None
    queue: tuple[Request, ...] = ()
    ended: frozenset[SubtaskId] = frozenset()
    failures: int = 0
    """Counted ones in a row."""
    failures_in_a_row: int = 0
    """Attempts in a row that did not complete, for whatever reason; for the backoff."""
    due_at_ms: int | None = None
    """When the interval asks for the next trigger."""
    pause_until_ms: int = 0
    """Before this the interval triggers nothing; never earlier than the backoff."""
    backoff_until_ms: int = 0
    """Before this nothing triggers anything."""
    wake_ups_ms: tuple[int, ...] = ()
    """The wake-up calls that were ordered and have not come, the soonest first. None can be withdrawn."""
    history: tuple[CheckpointRecord, ...] = ()
    """Newest last."""
    stop: Stop | None = None
    batch_offset: int = 0
    """See `Manifest`."""
    first: CheckpointId = NO_CHECKPOINT
    """The first id of this generation."""
    older: tuple[CheckpointId, ...] = ()
    """The checkpoints that it found: every manifest of this generation names them."""

    @property
    def wake_at_ms(self) -> int | None:
        """When the next wake-up call comes."""
        return self.wake_ups_ms[0] if self.wake_ups_ms else None

    @property
    def has_ended(self) -> bool:
        """Whether every subtask has processed the end of all its input."""
        return self.ended == self.members
