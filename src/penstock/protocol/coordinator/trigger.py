"""When the next attempt begins, what its barrier says, and when the coordinator wants to be woken.

Asked after every event, so that it does not matter which one made a trigger possible: a tick, an id that came back
from the store, the end of the attempt before. The reasons, in this order: a request, the end of all input, and the
interval. Requests and the final checkpoint wait for neither interval nor pause; the backoff holds for all of them.

The trigger that takes the last id of a block asks for the next block. Its size follows the rate of checkpoints, so that
a block lasts for a second or two: a pipeline with seconds between its checkpoints reserves one id at a time.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from penstock.ids import CheckpointId
from penstock.protocol.barrier import Barrier, BarrierFlag
from penstock.protocol.coordinator.events import Action, ReserveIds, SendBarrier, Step, WakeAt
from penstock.protocol.coordinator.state import (
    Collecting,
    Deciding,
    Mode,
    PendingCheckpoint,
    Policy,
    Request,
    RequestKind,
    Reserved,
    Reserving,
    Retry,
    State,
    Writing,
    WritingTombstone,
)
from penstock.protocol.declines import DeclineReason
from penstock.protocol.manifest import committables_of
from penstock.protocol.ownership import Reservation, block_ids_max

_BLOCK_MS_MIN = 1_000
"""The block after one that was used up faster than this is twice as large."""
_BLOCK_MS_MAX = 2_000
"""The block after one that lasted longer than this is half as large."""


def trigger_if_due(state: State, now_ms: int) -> Step:
    at_ms = _trigger_at_ms(state)
    if state.reserved is None or at_ms is None or now_ms < at_ms:
        return state, ()
    return _trigger(state, state.reserved, now_ms)


def _trigger_at_ms(state: State) -> int | None:
    """When the next attempt may begin if nothing else happens; None if something else must happen first."""
    is_busy = state.collecting is not None or state.publishing is not None or state.reserved is None
    if state.stop is not None or is_busy or not state.is_ready or not _may_follow(state.deciding):
        return None
    if state.queue or state.has_ended:
        return state.backoff_until_ms
    is_pausing = state.deciding is not None and state.policy.pause_ms_min > 0
    return None if state.due_at_ms is None or is_pausing else max(state.due_at_ms, state.pause_until_ms)


def _may_follow(deciding: Deciding | None) -> bool:
    """Whether an attempt may begin although the one before is not decided.

    Not if there will be output to publish: the new one could not complete before that is done, which can take long,
    and all that time what it holds would grow older.
    """
    if deciding is None:
        return True
    manifest = deciding.manifest
    return isinstance(deciding, Writing) and not manifest.is_final and not committables_of(manifest)


def _trigger(state: State, reserved: Reserved, now_ms: int) -> Step:
    requests = _served_together(state.queue)
    barrier = _barrier(state, reserved.upcoming, requests, now_ms)
    pending = PendingCheckpoint(barrier, now_ms + state.policy.checkpoint_timeout_ms, requests)
    state = replace(
        state,
        collecting=Collecting(pending, state.members),
        queue=tuple(request for request in state.queue if request not in requests),
        due_at_ms=after_interval(state.policy, now_ms),
    )
    state, actions = _take_id(state, reserved, now_ms)
    return state, (SendBarrier(barrier), *actions)


def _take_id(state: State, reserved: Reserved, now_ms: int) -> Step:
    """The upcoming id is used (I5); if it was the last in hand, the next block is asked for."""
    if reserved.upcoming < reserved.reservation.last:
        upcoming = CheckpointId(reserved.upcoming + 1)
        return replace(state, reserved=replace(reserved, upcoming=upcoming)), ()
    following = decide_next_block(reserved.reservation, now_ms - reserved.since_ms)
    return replace(state, reserved=None, reserving=Reserving(following, Retry(now_ms))), (ReserveIds(following),)


def decide_next_block(used_up: Reservation, lasted_ms: int) -> Reservation:
    """The block after one that lasted this long, from when it was asked for to its last id."""
    count = used_up.count
    if lasted_ms < _BLOCK_MS_MIN:
        count *= 2
    elif lasted_ms > _BLOCK_MS_MAX:
        count = max(1, count // 2)
    first = CheckpointId(used_up.last + 1)
    return Reservation(first, used_up.generation, min(count, block_ids_max(first)), used_up.token)


def _served_together(queue: tuple[Request, ...]) -> tuple[Request, ...]:
    """The requests that the next attempt answers: one savepoint, or all that just want a checkpoint."""
    if not queue or queue[0].kind is not RequestKind.CHECKPOINT:
        return queue[:1]
    return tuple(request for request in queue if request.kind is RequestKind.CHECKPOINT)


def _barrier(state: State, checkpoint: CheckpointId, requests: tuple[Request, ...], now_ms: int) -> Barrier:
    kind = requests[0].kind if requests else RequestKind.CHECKPOINT
    if kind is not RequestKind.CHECKPOINT:
        drain = BarrierFlag.DRAIN if kind is RequestKind.DRAIN else BarrierFlag.NONE
        flags = BarrierFlag.SAVEPOINT | drain
        return Barrier(checkpoint, state.generation, now_ms, flags, completed=state.newest)
    flags = BarrierFlag.DRAIN if state.has_ended else BarrierFlag.NONE
    mode = Mode.ALIGNED if _has_overflowed(state) else state.policy.mode
    if mode is Mode.UNALIGNED:
        flags |= BarrierFlag.UNALIGNED
    timeout_ms = state.policy.alignment_timeout_ms if mode is Mode.ALIGNED_WITH_TIMEOUT else None
    return Barrier(checkpoint, state.generation, now_ms, flags, timeout_ms, completed=state.newest)


def _has_overflowed(state: State) -> bool:
    """Whether the last attempt captured more than it may: then the next one captures nothing, so that one completes."""
    return bool(state.history) and state.history[-1].reason is DeclineReason.CAPTURE_OVERFLOW


def after_interval(policy: Policy, now_ms: int) -> int | None:
    return None if policy.interval_ms is None else now_ms + policy.interval_ms


def order_wake_up(state: State, actions: tuple[Action, ...]) -> Step:
    """Ask for the tick at which something must be decided although nothing was heard; last of all actions.

    Not if one comes before that anyway: after it this is asked again. Timers cannot be withdrawn, and with one for
    the expiry of every checkpoint, tens of thousands would pile up.
    """
    at_ms = _wake_at_ms(state)
    if at_ms is None or (state.wake_at_ms is not None and state.wake_at_ms <= at_ms):
        return state, actions
    return replace(state, wake_ups_ms=(at_ms, *state.wake_ups_ms)), (*actions, WakeAt(at_ms))


def _wake_at_ms(state: State) -> int | None:
    times_ms = [retry.wake_at_ms(state.policy) for retry in _retries(state)]
    if state.collecting is not None:
        times_ms.append(state.collecting.pending.expires_at_ms)
    if isinstance(state.deciding, Writing):
        times_ms.append(state.deciding.pending.expires_at_ms)
    if (trigger_at_ms := _trigger_at_ms(state)) is not None:
        times_ms.append(trigger_at_ms)
    return min(times_ms, default=None)


def _retries(state: State) -> Iterable[Retry]:
    if state.reserving is not None:
        yield state.reserving.retry
    if isinstance(state.deciding, WritingTombstone):
        yield state.deciding.retry
    if state.publishing is not None:
        yield state.publishing.retry
