"""What workers and the coordinator say to each other.

Every frame carries the generation; whoever gets one of another generation drops it (I6). Frames on a
channel keep their order. Data frames need credit; all others need none, so that a barrier, a grant or
a trigger reaches its receiver however backed up the records are (I11).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import pyarrow as pa

from penstock.ids import ChannelId, CheckpointId, Generation, OperatorName, SubtaskId, WorkerId
from penstock.mailbox.notes import NO_NOTES, Stack, WorkerNotes
from penstock.mailbox.recovery_stats import RecoveryStats
from penstock.metrics.registry import NO_CHANGE, MetricsUpdate
from penstock.protocol.barrier import Barrier
from penstock.protocol.declines import DeclineReason
from penstock.protocol.manifest import SubtaskReport


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where a process listens: on its own host through a socket file, from elsewhere through an address."""

    host: str
    local: str
    remote: str


# --- from worker to worker, on a channel ---


@dataclass(frozen=True, slots=True)
class BatchFrame:
    """Records. `cost` is what the sender paid for it in credit, and what the receiver gives back."""

    generation: Generation
    channel: ChannelId
    batch: pa.RecordBatch
    cost: int


@dataclass(frozen=True, slots=True)
class WatermarkFrame:
    generation: Generation
    channel: ChannelId
    watermark: int


@dataclass(frozen=True, slots=True)
class BarrierFrame:
    """A barrier in its place among the records, or ahead of them if it is unaligned."""

    generation: Generation
    channel: ChannelId
    barrier: Barrier


@dataclass(frozen=True, slots=True)
class MarkerFrame:
    """A latency marker in its place among the records: the source that emitted it, and when."""

    generation: Generation
    channel: ChannelId
    source: str
    emitted_ms: int
    """By the wall clock of the source's worker, in milliseconds since 1970."""


@dataclass(frozen=True, slots=True)
class EndFrame:
    """End of input: nothing follows on this channel."""

    generation: Generation
    channel: ChannelId


@dataclass(frozen=True, slots=True)
class CreditFrame:
    """From receiver to sender: how many more bytes may be on the wire, and the new limit."""

    generation: Generation
    channel: ChannelId
    grant: int
    window: int


# --- from coordinator to worker ---


@dataclass(frozen=True, slots=True)
class TriggerFrame:
    """A checkpoint begins, or ends early if the barrier says cancel."""

    generation: Generation
    barrier: Barrier


@dataclass(frozen=True, slots=True)
class CompletedFrame:
    """The checkpoint is durable: its blobs may be referred to by later ones, its input is not needed again."""

    generation: Generation
    checkpoint: CheckpointId


@dataclass(frozen=True, slots=True)
class StopFrame:
    """The attempt is over; leave."""

    generation: Generation


@dataclass(frozen=True, slots=True)
class WelcomeFrame:
    """All workers have come: where each worker can be reached, in the order of their ids."""

    generation: Generation
    endpoints: tuple[Endpoint, ...]


# --- from worker to coordinator ---


@dataclass(frozen=True, slots=True)
class HelloFrame:
    """A worker has come up; this is where it listens."""

    generation: Generation
    worker: WorkerId
    endpoint: Endpoint
    process: int = 0


@dataclass(frozen=True, slots=True)
class ReadyFrame:
    """All state of this worker's subtasks is back."""

    generation: Generation
    worker: WorkerId


@dataclass(frozen=True, slots=True)
class AcknowledgeFrame:
    generation: Generation
    checkpoint: CheckpointId
    report: SubtaskReport


@dataclass(frozen=True, slots=True)
class DeclineFrame:
    generation: Generation
    checkpoint: CheckpointId
    subtask: SubtaskId
    reason: DeclineReason
    detail: str = ""


@dataclass(frozen=True, slots=True)
class EndedFrame:
    """The subtask has processed the end of all its input."""

    generation: Generation
    subtask: SubtaskId


@dataclass(frozen=True, slots=True)
class FailedFrame:
    """The worker cannot go on: the attempt has failed."""

    generation: Generation
    worker: WorkerId
    error: str
    subtask: SubtaskId | None = None
    kind: str = ""
    """Name of the error's class in `penstock.errors`; empty for any other exception."""
    traceback: str = ""
    """Of the exception that user code has raised, or of an error of data."""
    may_pass: bool = False
    """Whether user code has failed for a reason outside the program."""
    story: str = ""
    """The last steps of the checkpoint protocol in the worker, one a line."""
    signature: str = ""
    """`UserCodeError.signature`, or that of a `DataError`."""
    operator: OperatorName | None = None
    """The operator that worked when it failed; None if it was the mailbox itself."""
    index: int | None = None
    """The number of that operator's subtask."""


@dataclass(frozen=True, slots=True)
class HeartbeatFrame:
    """Sign of life, with the metrics that have changed since the last one."""

    generation: Generation
    worker: WorkerId
    metrics: MetricsUpdate = NO_CHANGE
    recovery: RecoveryStats | None = None
    """None if the attempt began without a checkpoint."""
    first_skipped: str = ""
    """The first input that a source has skipped: its place, and the reason."""
    notes: WorkerNotes = NO_NOTES
    """For those who look at the pipeline."""


@dataclass(frozen=True, slots=True)
class BusyFrame:
    """Sign of life of a worker whose mailbox is in one call for long, and cannot give one itself."""

    generation: Generation
    worker: WorkerId
    busy_ms: int
    """For how long it has been in that call."""
    doing: str = ""
    """The operator whose call that is."""
    line: str = ""
    """Where in the code it is: `file:line in function`."""


# --- sources that wait for each other ---


@dataclass(frozen=True, slots=True)
class ClocksFrame:
    """From worker to driver: the slowest clock of its sources with `max_drift`, by group of sources."""

    generation: Generation
    worker: WorkerId
    slowest: dict[OperatorName, int | None]
    """None: nobody has to wait for this worker. `MIN_WATERMARK`: it has not begun to read, and will."""


@dataclass(frozen=True, slots=True)
class SlowestFrame:
    """From driver to worker: the slowest clock of all other workers, by group of sources."""

    generation: Generation
    slowest: dict[OperatorName, int | None]
    """As in `ClocksFrame`."""


# --- profiles ---


@dataclass(frozen=True, slots=True)
class ProfileFrame:
    """From driver to worker: look for some seconds what the mailbox thread does."""

    generation: Generation
    number: int
    seconds: float


@dataclass(frozen=True, slots=True)
class ProfiledFrame:
    """The answer: the stacks that were met, the most frequent first."""

    generation: Generation
    worker: WorkerId
    number: int
    samples: int
    seconds: float
    stacks: tuple[Stack, ...] = ()


Frame: TypeAlias = (
    BatchFrame
    | WatermarkFrame
    | BarrierFrame
    | EndFrame
    | CreditFrame
    | TriggerFrame
    | CompletedFrame
    | StopFrame
    | ReadyFrame
    | AcknowledgeFrame
    | DeclineFrame
    | EndedFrame
    | FailedFrame
    | HeartbeatFrame
    | HelloFrame
    | WelcomeFrame
    | BusyFrame
    | ProfileFrame
    | ProfiledFrame
    | MarkerFrame
    | ClocksFrame
    | SlowestFrame
)
