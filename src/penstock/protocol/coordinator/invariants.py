"""What must hold of a coordinator's state between two events, whatever the events were.

For tests and the simulator, after every step: a violation is found where it arises and not where it hurts.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from penstock.errors import ProtocolViolation
from penstock.ids import SubtaskId
from penstock.protocol.coordinator.state import Deciding, PendingCheckpoint, State, Stop, WritingTombstone
from penstock.protocol.manifest import SubtaskReport, committables_of


def check(state: State) -> None:
    """Raise `ProtocolViolation` with every condition that does not hold."""
    broken = [text for holds, text in _conditions(state) if not holds]
    if broken:
        raise ProtocolViolation("the coordinator's state is broken: " + "; ".join(broken))


def _conditions(state: State) -> Iterator[tuple[bool, str]]:
    policy = state.policy
    yield state.ended <= state.members, "somebody ended who is no member"
    yield len(state.queue) <= policy.requests_max, "too many requests wait"
    yield len(state.history) <= policy.history_max, "too much history"
    yield state.publishing is None or not (state.collecting or state.deciding), "begun before the last was published"
    yield state.backoff_until_ms <= state.pause_until_ms, "the interval would not wait for the backoff"
    yield state.failures <= state.failures_in_a_row, "more failures than attempts that did not complete"
    yield state.stop is Stop.FAILED or state.failures <= policy.failures_tolerable, "too many failures borne"
    ids = [record.checkpoint for record in state.history]
    yield all(earlier < later for earlier, later in pairwise(ids)), "I5: an id was used twice, or ids went back"
    if state.stop is None:
        yield from _conditions_while_running(state, max(ids, default=state.restored))
    else:
        yield (
            not (state.collecting or state.deciding or state.publishing or state.queue or state.reserving),
            "something goes on after the end",
        )


def _conditions_while_running(state: State, last_used: int) -> Iterator[tuple[bool, str]]:
    yield (state.reserved is None) != (state.reserving is None), "not exactly one block in hand or being reserved"
    if (reserved := state.reserved) is not None:
        yield reserved.reservation.generation == state.generation, "I6: ids of another generation"
        yield reserved.upcoming in reserved.reservation.ids, "I5: the next id is not of the block in hand"
    upcoming = _upcoming(state)
    yield upcoming > last_used, "I5: the next id was used already"
    yield all(earlier < later for earlier, later in pairwise(state.wake_ups_ms)), "a wake-up call ordered in vain"
    if state.publishing is not None:
        yield state.publishing.permit.checkpoint == state.newest, "I4: what is published is not the newest checkpoint"
        yield state.publishing.permit.generation == state.generation, "I6: a permit of another generation"
    if (collecting := state.collecting) is not None:
        yield from _conditions_on_attempt(state, collecting.pending, collecting.reports, collecting.waiting, upcoming)
        yield collecting.pending.barrier.checkpoint > last_used, "I5: the id of an attempt was used already"
        yield _is_woken_by(state, collecting.pending.expires_at_ms), "an attempt that nobody would end"
        yield bool(collecting.waiting or state.deciding), "everybody acknowledged and nothing was written"
    if (deciding := state.deciding) is not None:
        reports = deciding.manifest.reports
        yield from _conditions_on_attempt(state, deciding.pending, reports, frozenset(), upcoming)
        yield _is_woken_by(state, _ends_at_ms(state, deciding)), "an attempt that nobody would end"
        yield deciding.manifest.checkpoint > state.newest, "I5: a checkpoint behind the newest is still undecided"
        yield all(each.checkpoint != deciding.manifest.checkpoint for each in state.history), "I5: decided twice"
    if collecting is not None and deciding is not None:
        yield collecting.pending.barrier.checkpoint > deciding.manifest.checkpoint, "I5: attempts in the wrong order"
        yield not (deciding.manifest.is_final or committables_of(deciding.manifest)), "begun before the end of the last"


def _conditions_on_attempt(
    state: State,
    pending: PendingCheckpoint,
    reports: tuple[SubtaskReport, ...],
    waiting: frozenset[SubtaskId],
    upcoming: int,
) -> Iterator[tuple[bool, str]]:
    barrier = pending.barrier
    yield state.is_ready, "triggered before everybody was ready"
    yield barrier.checkpoint < upcoming, "I5: the id of an attempt is still to be given out"
    yield barrier.generation == state.generation, "I6: a barrier of another generation"
    acknowledged = [report.subtask for report in reports]
    yield len(set(acknowledged)) == len(acknowledged), "I12: somebody was counted twice"
    yield waiting.isdisjoint(acknowledged), "somebody acknowledged and is still waited for"
    yield waiting.union(acknowledged) == state.members, "I12: the members are not those asked"


def _upcoming(state: State) -> int:
    if state.reserved is not None:
        return state.reserved.upcoming
    return state.reserving.reservation.checkpoint if state.reserving is not None else 0


def _ends_at_ms(state: State, deciding: Deciding) -> int:
    if isinstance(deciding, WritingTombstone):
        return deciding.retry.wake_at_ms(state.policy)
    return deciding.pending.expires_at_ms


def _is_woken_by(state: State, at_ms: int) -> bool:
    return state.wake_at_ms is not None and state.wake_at_ms <= at_ms
