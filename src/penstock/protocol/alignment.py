"""Barrier alignment: decides when one subtask takes its snapshot, and what of its inputs is captured.

Every subtask hears of a checkpoint from the coordinator directly, and again from the barrier on each of
its input channels. Aligned, it blocks each channel whose barrier it has reached until all have come.
Unaligned, it takes its snapshot at once: what its channels hold in front of their barriers is captured,
and so is all that still arrives on a *late* channel, one whose barrier has not come, until it does.

    Restoring --SubtaskRestored--> Idle
    Idle --trigger or barrier n--> Aligning n --every channel cut--> Idle                  (aligned)
                                       |--timeout, or an overtaking barrier--> Capturing n  (unaligned)
    Idle --unaligned trigger or barrier n--> Capturing n --last late barrier--> Idle
    Aligning n, Capturing n --cancel n--> Idle
    Aligning n, Capturing n --anything of m > n--> n is declined, and m begins

A channel that has ended counts as cut by every checkpoint: nothing can follow its end. A subtask without
inputs (a source), or with all of them finished, is therefore cut by the trigger alone.

`aligned_only` subtasks never capture: they treat every barrier as one to be aligned.

Pure: no clock, I/O or logging. The runtime executes the returned actions in order, before it looks at
any further record.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TypeAlias, assert_never

from penstock.ids import NO_CHECKPOINT, ChannelId, CheckpointId
from penstock.protocol.barrier import Barrier
from penstock.protocol.declines import DeclineReason
from penstock.protocol.manifest import SnapshotKind

Channels: TypeAlias = frozenset[ChannelId]
_NONE: Channels = frozenset()

# --- states ---


@dataclass(frozen=True, slots=True)
class Inputs:
    """The input channels of a subtask, and how far each has come to its end."""

    channels: Channels
    aligned_only: bool = False
    ended: Channels = _NONE
    """Their end has arrived, perhaps behind records that wait. Includes the finished ones."""
    finished: Channels = _NONE
    """Their end has been reached: nothing of them waits."""


@dataclass(frozen=True, slots=True)
class Restoring:
    """The subtask's own state is not back yet: it declines every checkpoint."""

    inputs: Inputs
    newest: CheckpointId = NO_CHECKPOINT


@dataclass(frozen=True, slots=True)
class Idle:
    """No checkpoint in progress here; every barrier up to and including `newest` is stale."""

    inputs: Inputs
    newest: CheckpointId = NO_CHECKPOINT


@dataclass(frozen=True, slots=True)
class Aligning:
    """The checkpoint of `barrier` is in progress; no snapshot has been taken."""

    inputs: Inputs
    barrier: Barrier
    announced: Channels = _NONE
    """Their barrier has arrived and waits behind records."""
    blocked: Channels = _NONE
    """Their barrier has been reached; what follows it must not be read before the snapshot."""

    @property
    def newest(self) -> CheckpointId:
        return self.barrier.checkpoint


@dataclass(frozen=True, slots=True)
class Capturing:
    """The snapshot is taken; what arrives on the `late` channels before their barrier belongs to it."""

    inputs: Inputs
    barrier: Barrier
    late: Channels

    @property
    def newest(self) -> CheckpointId:
        return self.barrier.checkpoint


State: TypeAlias = Restoring | Idle | Aligning | Capturing

# --- events ---


@dataclass(frozen=True, slots=True)
class SubtaskRestored:
    """The subtask's own state is back."""


@dataclass(frozen=True, slots=True)
class CheckpointTriggered:
    """The coordinator's own word: a checkpoint begins, or is cancelled."""

    barrier: Barrier


@dataclass(frozen=True, slots=True)
class BarrierAnnounced:
    """A barrier has arrived on a channel and waits there behind records."""

    channel: ChannelId
    barrier: Barrier


@dataclass(frozen=True, slots=True)
class BarrierReached:
    """All records in front of a barrier have been read; or, if it is unaligned, it has overtaken them."""

    channel: ChannelId
    barrier: Barrier


@dataclass(frozen=True, slots=True)
class EndArrived:
    """The end of a channel's input has arrived, perhaps behind records that wait."""

    channel: ChannelId


@dataclass(frozen=True, slots=True)
class EndReached:
    """All records of a channel have been read, and its end too."""

    channel: ChannelId


@dataclass(frozen=True, slots=True)
class AlignmentTimedOut:
    checkpoint: CheckpointId


@dataclass(frozen=True, slots=True)
class LateBarrierTimedOut:
    checkpoint: CheckpointId


@dataclass(frozen=True, slots=True)
class CaptureOverflowed:
    """More in-flight data than the bound (I7), on either side of this subtask."""

    checkpoint: CheckpointId


Event: TypeAlias = (
    SubtaskRestored
    | CheckpointTriggered
    | BarrierAnnounced
    | BarrierReached
    | EndArrived
    | EndReached
    | AlignmentTimedOut
    | LateBarrierTimedOut
    | CaptureOverflowed
)

# --- actions ---


@dataclass(frozen=True, slots=True)
class StartAlignmentTimer:
    """Report `AlignmentTimedOut` when the barrier is `after_ms` older than now."""

    checkpoint: CheckpointId
    after_ms: int


@dataclass(frozen=True, slots=True)
class StartLateTimer:
    """Report `LateBarrierTimedOut` if the late barriers take too long."""

    checkpoint: CheckpointId


@dataclass(frozen=True, slots=True)
class BlockChannel:
    """Read nothing more of the channel."""

    channel: ChannelId


@dataclass(frozen=True, slots=True)
class UnblockChannels:
    channels: Channels


@dataclass(frozen=True, slots=True)
class ForwardBarrier:
    """Put the barrier into every output channel."""

    barrier: Barrier


@dataclass(frozen=True, slots=True)
class TakeSnapshot:
    """Take references to the state of all operators of the subtask, as it is now."""

    barrier: Barrier
    cut: SnapshotKind


@dataclass(frozen=True, slots=True)
class Capture:
    """Take references to what waits on `queued`, each up to its barrier if that waits too, which is removed.

    Then go on taking all that arrives on `late`, a subset, until `EndCapture`.
    """

    checkpoint: CheckpointId
    queued: Channels
    late: Channels


@dataclass(frozen=True, slots=True)
class EndCapture:
    """The late barrier of the channel, or its end, has come; remove that barrier if it waits in the queue."""

    checkpoint: CheckpointId
    channel: ChannelId


@dataclass(frozen=True, slots=True)
class CompleteInputs:
    """Nothing more of this subtask's inputs belongs to the checkpoint."""

    checkpoint: CheckpointId


@dataclass(frozen=True, slots=True)
class Abandon:
    """Drop everything that was taken for the checkpoint, and take no more."""

    checkpoint: CheckpointId


@dataclass(frozen=True, slots=True)
class Decline:
    """Tell the coordinator that this subtask has no part in the checkpoint, and why."""

    checkpoint: CheckpointId
    reason: DeclineReason


Action: TypeAlias = (
    StartAlignmentTimer
    | StartLateTimer
    | BlockChannel
    | UnblockChannels
    | ForwardBarrier
    | TakeSnapshot
    | Capture
    | EndCapture
    | CompleteInputs
    | Abandon
    | Decline
)
Step: TypeAlias = tuple[State, tuple[Action, ...]]


def step(state: State, event: Event) -> Step:
    """Advance by one event, without mutating `state`."""
    match event:
        case SubtaskRestored():
            return Idle(state.inputs, state.newest), ()
        case CheckpointTriggered(barrier):
            return _on_trigger(state, barrier)
        case BarrierAnnounced(channel, barrier):
            return _on_announced(state, channel, barrier)
        case BarrierReached(channel, barrier):
            return _on_reached(state, channel, barrier)
        case EndArrived(channel):
            return _on_end_arrived(state, channel)
        case EndReached(channel):
            return _on_end_reached(state, channel)
        case AlignmentTimedOut(checkpoint):
            return _on_alignment_timed_out(state, checkpoint)
        case LateBarrierTimedOut(checkpoint):
            return _on_late_timed_out(state, checkpoint)
        case CaptureOverflowed(checkpoint):
            return _on_overflow(state, checkpoint)
        case _:
            assert_never(event)


# --- a checkpoint begins ---


def _on_trigger(state: State, barrier: Barrier) -> Step:
    if barrier.is_cancel:
        return _cancel(state, barrier.checkpoint)
    if barrier.checkpoint <= state.newest:
        # Not news: the barriers were faster than the coordinator's own word, or it is stale.
        return state, ()
    return _begin(state, barrier)


def _on_announced(state: State, channel: ChannelId, barrier: Barrier) -> Step:
    if barrier.is_cancel:
        return _cancel(state, barrier.checkpoint)
    if barrier.checkpoint > state.newest:
        return _begin(state, barrier, announced=frozenset({channel}))
    if barrier.checkpoint < state.newest:
        return state, ()
    match state:
        case Aligning():
            return replace(state, announced=state.announced | {channel}), ()
        case Capturing():
            return _end_late(state, channel)
        case Idle() | Restoring():
            return state, ()
        case _:
            assert_never(state)


def _on_reached(state: State, channel: ChannelId, barrier: Barrier) -> Step:
    if barrier.is_cancel:
        return _cancel(state, barrier.checkpoint)
    if barrier.checkpoint > state.newest:
        return _begin(state, barrier, reached=channel)
    if barrier.checkpoint < state.newest:
        return state, ()
    match state:
        case Aligning() if barrier.is_unaligned and not state.inputs.aligned_only:
            return _cut(state, _cause(barrier), overtaken=frozenset({channel}))
        case Aligning():
            blocked = replace(state, announced=state.announced - {channel}, blocked=state.blocked | {channel})
            return _snapshot_if_aligned(blocked, BlockChannel(channel))
        case Capturing():
            return _end_late(state, channel)
        case Idle() | Restoring():
            return state, ()
        case _:
            assert_never(state)


def _begin(state: State, barrier: Barrier, announced: Channels = _NONE, reached: ChannelId | None = None) -> Step:
    """Start the checkpoint of `barrier`, which is newer than any before; what was in progress is superseded."""
    if isinstance(state, Restoring):
        declined = Decline(barrier.checkpoint, DeclineReason.SUBTASK_NOT_READY)
        return replace(state, newest=barrier.checkpoint), (declined,)
    before = _superseded(state)
    fresh = Aligning(state.inputs, barrier, announced)
    may_capture = not state.inputs.aligned_only
    if may_capture and barrier.is_unaligned:
        overtaken = _NONE if reached is None else frozenset({reached})
        return _cut(fresh, _cause(barrier), *before, overtaken=overtaken)
    block: tuple[Action, ...] = ()
    if reached is not None:
        fresh, block = replace(fresh, blocked=frozenset({reached})), (BlockChannel(reached),)
    if may_capture and barrier.remaining_ms is not None and not _is_cut(fresh):
        block = (*block, StartAlignmentTimer(barrier.checkpoint, barrier.remaining_ms))
    return _snapshot_if_aligned(fresh, *before, *block)


def _cause(barrier: Barrier) -> SnapshotKind:
    return SnapshotKind.FORCED if barrier.alignment_timeout_ms is None else SnapshotKind.OVERTAKEN


def _superseded(state: Idle | Aligning | Capturing) -> tuple[Action, ...]:
    """Give up what is in progress for the sake of something newer."""
    if isinstance(state, Idle):
        return ()
    return (*_release(state), Decline(state.newest, DeclineReason.SUPERSEDED))


def _release(state: Aligning | Capturing) -> tuple[Action, ...]:
    abandon = Abandon(state.newest)
    if isinstance(state, Aligning) and state.blocked:
        return abandon, UnblockChannels(state.blocked)
    return (abandon,)


# --- a checkpoint's cut ---


def _is_cut(state: Aligning) -> bool:
    return state.blocked | state.inputs.finished == state.inputs.channels


def _snapshot_if_aligned(state: Aligning, *actions: Action) -> Step:
    if not _is_cut(state):
        return state, actions
    # Unblocking comes last: no record past the cut may reach the state before the snapshot.
    taken: tuple[Action, ...] = (
        ForwardBarrier(state.barrier),
        TakeSnapshot(state.barrier, SnapshotKind.ALIGNED),
        CompleteInputs(state.newest),
        UnblockChannels(state.blocked),
    )
    return Idle(state.inputs, state.newest), (*actions, *taken)


def _cut(state: Aligning, cut: SnapshotKind, *actions: Action, overtaken: Channels = _NONE) -> Step:
    """Take the snapshot now; what the channels hold in front of their barriers is captured (I1)."""
    inputs, checkpoint = state.inputs, state.newest
    barrier = state.barrier.overtaking()
    queued = inputs.channels - inputs.finished - state.blocked
    late = queued - inputs.ended - state.announced - overtaken
    taken: tuple[Action, ...] = (
        ForwardBarrier(barrier),
        TakeSnapshot(barrier, cut),
        Capture(checkpoint, queued, late),
        UnblockChannels(state.blocked),
    )
    if late:
        return Capturing(inputs, barrier, late), (*actions, *taken, StartLateTimer(checkpoint))
    return Idle(inputs, checkpoint), (*actions, *taken, CompleteInputs(checkpoint))


def _end_late(state: Capturing, channel: ChannelId) -> Step:
    if channel not in state.late:
        return state, ()
    late = state.late - {channel}
    ended = EndCapture(state.newest, channel)
    if late:
        return replace(state, late=late), (ended,)
    return Idle(state.inputs, state.newest), (ended, CompleteInputs(state.newest))


# --- inputs end ---


def _on_end_arrived(state: State, channel: ChannelId) -> Step:
    inputs = replace(state.inputs, ended=state.inputs.ended | {channel})
    ended = replace(state, inputs=inputs)
    return _end_late(ended, channel) if isinstance(ended, Capturing) else (ended, ())


def _on_end_reached(state: State, channel: ChannelId) -> Step:
    inputs = replace(state.inputs, ended=state.inputs.ended | {channel}, finished=state.inputs.finished | {channel})
    finished = replace(state, inputs=inputs)
    return _snapshot_if_aligned(finished) if isinstance(finished, Aligning) else (finished, ())


# --- a checkpoint ends early ---


def _cancel(state: State, checkpoint: CheckpointId) -> Step:
    """Forget `checkpoint` and everything older; its barriers that are still on their way are stale."""
    if checkpoint < state.newest:
        return state, ()
    match state:
        case Restoring() | Idle():
            return replace(state, newest=checkpoint), (Abandon(checkpoint),)
        case Aligning() | Capturing():
            return Idle(state.inputs, checkpoint), _release(state)
        case _:
            assert_never(state)


def _on_alignment_timed_out(state: State, checkpoint: CheckpointId) -> Step:
    if isinstance(state, Aligning) and state.newest == checkpoint:
        return _cut(state, SnapshotKind.TIMED_OUT)
    return state, ()


def _on_late_timed_out(state: State, checkpoint: CheckpointId) -> Step:
    if isinstance(state, Capturing) and state.newest == checkpoint:
        return _give_up(state, DeclineReason.LATE_BARRIER_TIMEOUT)
    return state, ()


def _on_overflow(state: State, checkpoint: CheckpointId) -> Step:
    # The bound can be passed by the very capture that completed the inputs, so Idle counts too.
    if isinstance(state, Capturing | Idle) and state.newest == checkpoint:
        return _give_up(state, DeclineReason.CAPTURE_OVERFLOW)
    return state, ()


def _give_up(state: Idle | Capturing, reason: DeclineReason) -> Step:
    return Idle(state.inputs, state.newest), (Abandon(state.newest), Decline(state.newest, reason))
