"""Overtaking: decides when a barrier leaves the output queues of one subtask ahead of its records.

A barrier that was forwarded either leaves an output queue in its turn, when the receiver has granted
credit for all that is in front of it, or overtakes: it leaves at once, and what was in front of it is
captured as channel state, by the sender. An unaligned barrier overtakes immediately; one with a timeout
does when it has grown too old; one without a timeout never does.

    Clear --barrier forwarded--> Departing n --departed from the last queue--> Clear
                                    `--timeout--> overtakes in every queue that allows it

Some queues do not allow it: those to a subtask that keeps its inputs aligned. There the barrier waits.
The subtask acknowledges no checkpoint before its barrier has left everywhere, because until then a
queue may still turn into channel state.

Pure: no clock, I/O or logging.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TypeAlias, assert_never

from penstock.ids import NO_CHECKPOINT, ChannelId, CheckpointId
from penstock.protocol.barrier import Barrier


@dataclass(frozen=True, slots=True)
class Clear:
    """No barrier waits in an output queue."""

    may_overtake: frozenset[ChannelId]
    newest: CheckpointId = NO_CHECKPOINT


@dataclass(frozen=True, slots=True)
class Departing:
    """The barrier still waits in the queues of the `waiting` channels."""

    may_overtake: frozenset[ChannelId]
    barrier: Barrier
    waiting: frozenset[ChannelId]

    @property
    def newest(self) -> CheckpointId:
        return self.barrier.checkpoint


State: TypeAlias = Clear | Departing


@dataclass(frozen=True, slots=True)
class BarrierForwarded:
    """The barrier was put at the end of every output queue; in those of `waiting` it could not leave at once."""

    barrier: Barrier
    waiting: frozenset[ChannelId]


@dataclass(frozen=True, slots=True)
class BarrierDeparted:
    """The barrier has left the queue of the channel in its turn."""

    channel: ChannelId
    checkpoint: CheckpointId


@dataclass(frozen=True, slots=True)
class DepartureTimedOut:
    checkpoint: CheckpointId


@dataclass(frozen=True, slots=True)
class CheckpointAbandoned:
    """The subtask has no part in the checkpoint any more; its barriers may leave when they like."""

    checkpoint: CheckpointId


Event: TypeAlias = BarrierForwarded | BarrierDeparted | DepartureTimedOut | CheckpointAbandoned


@dataclass(frozen=True, slots=True)
class StartDepartureTimer:
    checkpoint: CheckpointId
    after_ms: int


@dataclass(frozen=True, slots=True)
class Overtake:
    """Send the barrier ahead of what is queued, and take references to that, in order, as channel state."""

    barrier: Barrier
    channels: frozenset[ChannelId]


@dataclass(frozen=True, slots=True)
class CompleteOutputs:
    """Nothing more of this subtask's outputs belongs to the checkpoint."""

    checkpoint: CheckpointId


Action: TypeAlias = StartDepartureTimer | Overtake | CompleteOutputs
Step: TypeAlias = tuple[State, tuple[Action, ...]]


def step(state: State, event: Event) -> Step:
    """Advance by one event, without mutating `state`."""
    match event:
        case BarrierForwarded(barrier, waiting):
            return _on_forwarded(state, barrier, waiting)
        case BarrierDeparted(channel, checkpoint):
            return _on_departed(state, channel, checkpoint)
        case DepartureTimedOut(checkpoint):
            if isinstance(state, Departing) and state.newest == checkpoint:
                return _overtake(state)
            return state, ()
        case CheckpointAbandoned(checkpoint):
            if checkpoint >= state.newest:
                return Clear(state.may_overtake, checkpoint), ()
            return state, ()
        case _:
            assert_never(event)


def _on_forwarded(state: State, barrier: Barrier, waiting: frozenset[ChannelId]) -> Step:
    departing = Departing(state.may_overtake, barrier, waiting)
    if barrier.is_unaligned:
        return _overtake(departing)
    timer: tuple[Action, ...] = ()
    if waiting & state.may_overtake and barrier.remaining_ms is not None:
        timer = (StartDepartureTimer(barrier.checkpoint, barrier.remaining_ms),)
    return _complete_if_departed(departing, *timer)


def _on_departed(state: State, channel: ChannelId, checkpoint: CheckpointId) -> Step:
    if isinstance(state, Clear) or checkpoint != state.newest:
        return state, ()
    return _complete_if_departed(replace(state, waiting=state.waiting - {channel}))


def _overtake(state: Departing) -> Step:
    channels = state.waiting & state.may_overtake
    remaining = replace(state, waiting=state.waiting - channels)
    if not channels:
        return _complete_if_departed(remaining)
    return _complete_if_departed(remaining, Overtake(state.barrier.overtaking(), channels))


def _complete_if_departed(state: Departing, *actions: Action) -> Step:
    if state.waiting:
        return state, actions
    return Clear(state.may_overtake, state.newest), (*actions, CompleteOutputs(state.newest))
