"""Overtaking, transition by transition: when a barrier leaves the output queues ahead of its records."""

from __future__ import annotations

from dataclasses import replace

import pytest

from penstock.ids import ChannelId, CheckpointId, Generation
from penstock.protocol.barrier import Barrier, BarrierFlag
from penstock.protocol.overtaking import (
    BarrierDeparted,
    BarrierForwarded,
    CheckpointAbandoned,
    Clear,
    CompleteOutputs,
    Departing,
    DepartureTimedOut,
    Event,
    Overtake,
    StartDepartureTimer,
    State,
    step,
)

A, B, C = ChannelId(0), ChannelId(1), ChannelId(2)
ONE, TWO = CheckpointId(1), CheckpointId(2)
PLAIN = Barrier(ONE, Generation(1))
TIMED = replace(PLAIN, alignment_timeout_ms=200)
FORCED = replace(PLAIN, flags=BarrierFlag.UNALIGNED)
NONE: frozenset[ChannelId] = frozenset()


def some(*channels: ChannelId) -> frozenset[ChannelId]:
    return frozenset(channels)


MAY = some(A, B)
"""C leads to a subtask that keeps its inputs aligned."""


@pytest.mark.parametrize("barrier", [PLAIN, TIMED, FORCED], ids=["plain", "timed", "forced"])
def test_a_barrier_that_left_every_queue_at_once_is_done_with(barrier: Barrier) -> None:
    assert step(Clear(MAY), BarrierForwarded(barrier, NONE)) == (Clear(MAY, ONE), (CompleteOutputs(ONE),))


def test_a_barrier_without_a_timeout_waits_for_its_turn_for_ever() -> None:
    assert step(Clear(MAY), BarrierForwarded(PLAIN, some(A, C))) == (Departing(MAY, PLAIN, some(A, C)), ())


@pytest.mark.parametrize(("age_ms", "after_ms"), [(0, 200), (120, 80), (900, 0)])
def test_a_barrier_with_a_timeout_waits_for_what_is_left_of_it(age_ms: int, after_ms: int) -> None:
    old = TIMED.aged(age_ms)
    assert step(Clear(MAY), BarrierForwarded(old, some(A))) == (
        Departing(MAY, old, some(A)),
        (StartDepartureTimer(ONE, after_ms),),
    )


def test_no_timer_is_started_for_queues_that_do_not_allow_overtaking() -> None:
    assert step(Clear(MAY), BarrierForwarded(TIMED, some(C))) == (Departing(MAY, TIMED, some(C)), ())


def test_an_unaligned_barrier_overtakes_at_once() -> None:
    assert step(Clear(MAY), BarrierForwarded(FORCED, some(A, B))) == (
        Clear(MAY, ONE),
        (Overtake(FORCED, some(A, B)), CompleteOutputs(ONE)),
    )


def test_an_unaligned_barrier_waits_where_it_may_not_overtake_and_nowhere_else() -> None:
    assert step(Clear(MAY), BarrierForwarded(FORCED, some(A, C))) == (
        Departing(MAY, FORCED, some(C)),
        (Overtake(FORCED, some(A)),),
    )


def test_on_timeout_it_overtakes_as_an_unaligned_one() -> None:
    assert step(Departing(MAY, TIMED, some(A, B, C)), DepartureTimedOut(ONE)) == (
        Departing(MAY, TIMED, some(C)),
        (Overtake(TIMED.overtaking(), some(A, B)),),
    )
    assert step(Departing(MAY, TIMED, some(A)), DepartureTimedOut(ONE)) == (
        Clear(MAY, ONE),
        (Overtake(TIMED.overtaking(), some(A)), CompleteOutputs(ONE)),
    )


def test_on_timeout_nothing_is_overtaken_where_it_left_in_time() -> None:
    state = Departing(MAY, TIMED, some(C))
    assert step(state, DepartureTimedOut(ONE)) == (state, ())


def test_it_is_complete_when_it_has_left_the_last_queue() -> None:
    state, actions = step(Departing(MAY, PLAIN, some(A, C)), BarrierDeparted(A, ONE))
    assert (state, actions) == (Departing(MAY, PLAIN, some(C)), ())
    assert step(state, BarrierDeparted(C, ONE)) == (Clear(MAY, ONE), (CompleteOutputs(ONE),))


@pytest.mark.parametrize(
    ("state", "event"),
    [
        (Clear(MAY, ONE), BarrierDeparted(A, ONE)),
        (Departing(MAY, replace(PLAIN, checkpoint=TWO), some(A)), BarrierDeparted(A, ONE)),
        (Clear(MAY, ONE), DepartureTimedOut(ONE)),
        (Departing(MAY, replace(TIMED, checkpoint=TWO), some(A)), DepartureTimedOut(ONE)),
        (Departing(MAY, replace(TIMED, checkpoint=TWO), some(A)), CheckpointAbandoned(ONE)),
        (Clear(MAY, TWO), CheckpointAbandoned(ONE)),
    ],
)
def test_what_is_over_changes_nothing(state: State, event: Event) -> None:
    assert step(state, event) == (state, ())


@pytest.mark.parametrize("state", [Clear(MAY), Clear(MAY, ONE), Departing(MAY, PLAIN, some(A))])
def test_an_abandoned_checkpoint_is_never_reported_complete(state: State) -> None:
    after, actions = step(state, CheckpointAbandoned(ONE))
    assert (after, actions) == (Clear(MAY, ONE), ())
    assert step(after, BarrierDeparted(A, ONE)) == (Clear(MAY, ONE), ())
    assert step(after, DepartureTimedOut(ONE)) == (Clear(MAY, ONE), ())


def test_a_newer_barrier_takes_the_place_of_one_that_still_waits() -> None:
    newer = replace(TIMED, checkpoint=TWO)
    assert step(Departing(MAY, TIMED, some(A)), BarrierForwarded(newer, some(A, B))) == (
        Departing(MAY, newer, some(A, B)),
        (StartDepartureTimer(TWO, 200),),
    )
