"""What must hold of a coordinator's state between two events, whatever the events were.

For tests and the simulator, after every step: a violation is found where it arises and not where it hurts.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from penstock.errors import ProtocolViolation
from penstock.protocol.coordinator_state import Collecting, Pending, Settling, State, Stop


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
    yield state.pending is None or state.publishing is None, "two checkpoints at a time"
    yield state.backoff_until_ms <= state.pause_until_ms, "the interval would not wait for the backoff"
    yield state.failures <= state.setbacks, "more failures than attempts that did not complete"
    yield state.stop is Stop.FAILED or state.failures <= policy.failures_tolerable, "too many failures borne"
    ids = [record.checkpoint for record in state.history]
    yield all(earlier < later for earlier, later in pairwise(ids)), "I5: an id was used twice, or ids went back"
    if state.stop is None:
        yield from _conditions_while_running(state, max(ids, default=state.restored))
    else:
        yield (
            not (state.pending or state.publishing or state.queue or state.reserving),
            "something goes on after the end",
        )


def _conditions_while_running(state: State, last_used: int) -> Iterator[tuple[bool, str]]:
    yield (state.reserved is None) != (state.reserving is None), "not exactly one id in hand or being reserved"
    upcoming = state.reserved or (state.reserving.checkpoint if state.reserving else 0)
    yield upcoming > last_used, "I5: the next id was used already"
    if state.publishing is not None:
        yield state.publishing.permit.checkpoint == state.newest, "I4: what is published is not the newest checkpoint"
        yield state.publishing.permit.generation == state.generation, "I6: a permit of another generation"
    if state.pending is not None:
        yield from _conditions_on_pending(state, state.pending, upcoming)
        yield state.pending.attempt.barrier.checkpoint > last_used, "I5: the pending id was used already"
        yield _is_woken_in_time(state, state.pending), "an attempt that nobody would end"


def _conditions_on_pending(state: State, pending: Pending, upcoming: int) -> Iterator[tuple[bool, str]]:
    barrier = pending.attempt.barrier
    yield state.is_ready, "triggered before everybody was ready"
    yield barrier.checkpoint < upcoming, "I5: the pending id is still to be given out"
    yield barrier.generation == state.generation, "I6: the pending barrier is of another generation"
    reports = pending.reports if isinstance(pending, Collecting) else pending.manifest.reports
    acknowledged = [report.subtask for report in reports]
    yield len(set(acknowledged)) == len(acknowledged), "I12: somebody was counted twice"
    waiting = pending.waiting if isinstance(pending, Collecting) else frozenset()
    yield waiting.isdisjoint(acknowledged), "somebody acknowledged and is still waited for"
    yield waiting.union(acknowledged) == state.members, "I12: the members are not those asked"
    yield bool(waiting) == isinstance(pending, Collecting), "everybody acknowledged and nothing was written"


def _is_woken_in_time(state: State, pending: Pending) -> bool:
    if isinstance(pending, Settling):
        ends_at_ms = pending.errand.wake_at_ms(state.policy)
    else:
        ends_at_ms = pending.attempt.expires_at_ms
    return state.wake_at_ms is not None and state.wake_at_ms <= ends_at_ms
