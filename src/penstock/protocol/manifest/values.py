"""The manifest: the one file whose existence makes a checkpoint exist (I3).

It names every blob with length and checksum, holds the positions of the sources and the committables
of the sinks, and says for which shape of the pipeline it was taken. Values here are also what a
subtask acknowledges with: a manifest is the reports of all subtasks of one checkpoint, and nothing else.

Its bytes are the business of `protocol.manifest.codec`.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator
from dataclasses import dataclass

from penstock.ids import MAIN_OUTPUT, NO_CHECKPOINT, CheckpointId, EdgeId, Generation, OperatorName, SubtaskId

FORMAT = 1


class StateKind(enum.Enum):
    """How a piece of operator state finds its owner after a restart."""

    KEYED = "keyed"
    """Rows with a key group; each goes to the owner of its group."""
    LIST = "list"
    """Batches that any subtask of the operator may take, each exactly one of them."""
    BROADCAST = "broadcast"
    """Every subtask holds the same; every new one reads one copy."""


class Partitioning(enum.Enum):
    """How the records of an edge choose their receiver."""

    FORWARD = "forward"
    """Sender i to receiver i; equal parallelism."""
    RESCALE = "rescale"
    """Pointwise: each sender has a contiguous group of receivers, or shares one."""
    HASH = "hash"
    REBALANCE = "rebalance"
    SHUFFLE = "shuffle"
    BROADCAST = "broadcast"
    GLOBAL = "global"
    """Everything to receiver 0."""


class Side(enum.Enum):
    """Where a piece of a channel was captured. On one channel, what the receiver held is older."""

    RECEIVER = "receiver"
    SENDER = "sender"


class SnapshotKind(enum.Enum):
    """How a subtask came to its snapshot."""

    ALIGNED = "aligned"
    FORCED = "forced"
    """The checkpoint was unaligned from its trigger on."""
    TIMED_OUT = "timed out"
    """Alignment took longer than its timeout here."""
    OVERTAKEN = "overtaken"
    """A barrier that had turned unaligned further upstream arrived."""


@dataclass(frozen=True, slots=True)
class Segment:
    """Bytes of a blob: `length` bytes at `offset` of `path`, or `inline` where they are few."""

    length: int
    crc32: int
    path: str | None = None
    offset: int = 0
    inline: bytes | None = None


@dataclass(frozen=True, slots=True)
class StateSegment:
    """A piece of one operator's named state, an Arrow IPC stream."""

    operator: OperatorName
    name: str
    kind: StateKind
    segment: Segment
    rows: int
    key_group_first: int = 0
    key_group_end: int = 0
    """Half open, for KEYED."""
    declared: str = ""
    """The operator's declaration of this state, with its schema; empty if it had none, or if an earlier version wrote
    this."""


@dataclass(frozen=True, slots=True)
class ChannelSegment:
    """In-flight data of one channel, an Arrow IPC stream in the channel's order, watermarks included.

    A checkpoint that is taken while a recovery goes on refers to the bytes of the earlier checkpoint instead of
    writing them again: the fields from `age` on say what of them is still to be processed, and by whom.
    """

    edge: EdgeId
    sender: int
    receiver: int
    side: Side
    segment: Segment
    rows: int
    """In these bytes; of some that are not this channel's, or are processed already, see below."""
    age: int = 0
    """How many recoveries the records have waited through. Of one edge, the older ones go first."""
    first_row: int = 0
    """The rows before this one are processed."""
    key_group_first: int = 0
    key_group_end: int = 0
    """Half open; only rows of these key groups are this channel's. All are, if both are 0."""
    has_watermarks: bool = True
    """False if the watermarks among the rows speak for other senders than the channel has now."""


@dataclass(frozen=True, slots=True)
class SplitState:
    """Where one split of a source is to be read on: what lies before `offset` is in this checkpoint."""

    operator: OperatorName
    split: str
    offset: bytes
    """JSON, written and understood by the source alone."""
    reached_ms: int | None = None
    """Its event-time clock; None if it has none, or no record of it was read."""


@dataclass(frozen=True, slots=True)
class Committable:
    """What a sink writer hands over so that the driver can publish it."""

    operator: OperatorName
    subtask: int
    payload: bytes


@dataclass(frozen=True, slots=True)
class CheckpointStats:
    """What users look for when a checkpoint is slow or large."""

    start_delay_ms: int = 0
    """How old the barrier was when the subtask heard of the checkpoint first: 0 if from the coordinator itself."""
    alignment_ms: int = 0
    """From then until its snapshot."""
    synchronous_ms: int = 0
    """How long processing stood still, in milliseconds."""
    asynchronous_ms: int = 0
    """From the snapshot until everything was durable."""
    state_bytes: int = 0
    inflight_bytes: int = 0
    inflight_rows: int = 0


@dataclass(frozen=True, slots=True)
class SubtaskReport:
    """One subtask's part of a checkpoint: the content of its acknowledgement."""

    subtask: SubtaskId
    cut: SnapshotKind = SnapshotKind.ALIGNED
    states: tuple[StateSegment, ...] = ()
    channels: tuple[ChannelSegment, ...] = ()
    splits: tuple[SplitState, ...] = ()
    committables: tuple[Committable, ...] = ()
    watermarks: tuple[tuple[OperatorName, int], ...] = ()
    """Event-time clock of each operator of the chain that has one."""
    figures: CheckpointStats = CheckpointStats()
    totals: tuple[tuple[OperatorName, str, int], ...] = ()
    """Counts of the subtask at its cut: operator, name of the metric, value. Those that are 0 are left out; empty if an
    earlier version wrote this."""


@dataclass(frozen=True, slots=True)
class OperatorShape:
    """An operator as the checkpoint knew it."""

    name: OperatorName
    chain: OperatorName
    parallelism: int
    key: tuple[str, ...] = ()
    """Columns of the first keyed input of its chain; empty if it has no keyed input."""
    kind: str = ""
    """Which source, operator or sink it is; empty if an earlier version wrote this."""
    definition: tuple[tuple[str, str], ...] = ()
    """Settings, by name, that its state, its positions or its committables depend on."""


@dataclass(frozen=True, slots=True)
class RecordShape:
    """The records of an edge, as far as it is known before any of them has come."""

    key: tuple[str, ...] = ()
    """Columns that they are partitioned by, in their order; empty if they are not keyed."""
    columns: tuple[str, ...] | None = None
    """Columns that travel; None for all of them."""
    schema: tuple[str, ...] | None = None
    """Columns and types, if the sending operator declares its output."""
    output: str = MAIN_OUTPUT
    """The output of the sending operator that the edge reads."""


@dataclass(frozen=True, slots=True)
class EdgeShape:
    """An edge as the checkpoint knew it."""

    edge: EdgeId
    partitioning: Partitioning
    senders: int
    receivers: int
    records: RecordShape | None = None
    """None if an earlier version wrote this."""


@dataclass(frozen=True, slots=True)
class PipelineShape:
    """What must be known of a pipeline to restore it at another parallelism."""

    name: str
    max_parallelism: int
    operators: tuple[OperatorShape, ...] = ()
    edges: tuple[EdgeShape, ...] = ()


@dataclass(frozen=True, slots=True)
class Manifest:
    """A checkpoint."""

    checkpoint: CheckpointId
    generation: Generation
    shape: PipelineShape
    reports: tuple[SubtaskReport, ...] = ()
    triggered_at_ms: int = 0
    """Milliseconds since 1970 by the wall clock of the driver, in a manifest that is written; 0 if unknown.

    The trap: the pure coordinator makes it with the monotonic time that it was told, and the driver converts it.
    """
    completed_at_ms: int = 0
    is_savepoint: bool = False
    is_final: bool = False
    """Taken by a pipeline that had read all of its bounded input, or was drained."""
    batch_offset: int = 0
    """The distance from checkpoint ids to batch ids in this directory. 0 unless a checkpoint of another directory was
    imported here: batch ids continue where that directory's ended."""
    published_as: CheckpointId = NO_CHECKPOINT
    """The batch id of the checkpoint that this one is a copy of; `NO_CHECKPOINT` if it is not a copy."""
    first: CheckpointId = NO_CHECKPOINT
    """The first id of its generation; `NO_CHECKPOINT` in a copy, and in a manifest of an earlier version."""
    older: tuple[CheckpointId, ...] = ()
    """The checkpoints that its generation found when it took the directory over: no others have ids below `first`."""

    @property
    def is_stop(self) -> bool:
        """Whether it is the savepoint that a stop with drain took, rather than one that was asked for."""
        return self.is_savepoint and self.is_final

    @property
    def batch(self) -> CheckpointId:
        """The id that sinks commit under. A copy keeps the original's: a sink may know a batch by its id alone (I4)."""
        return self.published_as or CheckpointId(self.checkpoint + self.batch_offset)


def segments_of(manifest: Manifest) -> Iterator[Segment]:
    """Every segment that a manifest names, in its order."""
    for report in manifest.reports:
        yield from (state.segment for state in report.states)
        yield from (channel.segment for channel in report.channels)


def blobs_of(manifest: Manifest) -> frozenset[str]:
    """Every blob that must exist as long as this checkpoint does; blobs of earlier checkpoints included."""
    return frozenset(segment.path for segment in segments_of(manifest) if segment.path is not None)


def committables_of(manifest: Manifest) -> tuple[Committable, ...]:
    """All that the sinks of this checkpoint publish, in the order of its reports."""
    return tuple(committable for report in manifest.reports for committable in report.committables)
