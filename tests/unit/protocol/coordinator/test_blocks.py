"""Ids in blocks: when one is asked for, how large it is, and that its ids are used in turn. And wake-up calls."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import ProtocolViolation
from penstock.ids import CheckpointId, Generation
from penstock.protocol.coordinator.events import ReserveIds, SendBarrier, WakeAt
from penstock.protocol.coordinator.invariants import check
from penstock.protocol.coordinator.state import Policy, Reserved, Reserving, Retry
from penstock.protocol.coordinator.trigger import decide_next_block
from penstock.protocol.ownership import BLOCK_IDS_MAX, Reservation
from tests.unit.protocol.coordinator.kit import ID_11, ID_12, PLAIN, Run, barrier, block, checkpoint_id, request


@pytest.mark.parametrize(
    ("count", "lasted_ms", "following"),
    [(1, 999, 2), (1, 1_000, 1), (1, 60_000, 1), (4, 0, 8), (4, 2_000, 4), (4, 2_001, 2), (16, 0, 16), (16, 5_000, 8)],
)
def test_a_block_lasts_for_a_second_or_two(count: int, lasted_ms: int, following: int) -> None:
    assert decide_next_block(block(33 - count, count), lasted_ms) == block(33, following)


@given(st.lists(st.sampled_from([0, 1_500, 3_000]), max_size=60), st.integers(1, 40))
def test_blocks_follow_each_other_and_one_begins_behind_every_multiple_of_the_largest_size(
    lasted_ms: list[int], first: int
) -> None:
    reservation = block(first)
    for each_ms in lasted_ms:
        following = decide_next_block(reservation, each_ms)
        assert following.checkpoint == reservation.last + 1
        assert (following.checkpoint - 1) // BLOCK_IDS_MAX == (following.last - 1) // BLOCK_IDS_MAX
        reservation = following


def test_without_a_pause_nearly_all_reservations_are_of_the_largest_size() -> None:
    counts, reservation = [], block(7)
    while reservation.last < 1_000:
        reservation = decide_next_block(reservation, 0)
        counts.append(reservation.count)
    assert counts[:6] == [2, 4, 3, 6, 10, 16]
    assert set(counts[6:]) == {16}


def test_ids_in_hand_are_used_one_after_the_other_and_the_next_block_is_asked_for_with_the_last() -> None:
    run = Run(replace(PLAIN, interval_ms=400))
    run.ready()
    assert run.tick(400) == (SendBarrier(barrier(11, 400)), ReserveIds(block(12, 2)), WakeAt(5_400))
    assert run.state.reserving == Reserving(block(12, 2), Retry(400))
    run.reserved(12)
    assert run.state.reserved == Reserved(block(12, 2), ID_12, 400)
    run.collect(11)
    run.written(11)
    assert run.tick(800) == (SendBarrier(barrier(12, 800, completed=11)),)
    assert run.state.reserved == Reserved(block(12, 2), checkpoint_id(13), 400)
    run.collect(12)
    run.written(12)
    assert run.tick(1_200) == (SendBarrier(barrier(13, 1_200, completed=12)), ReserveIds(block(14, 3)))
    assert (run.state.reserved, run.state.reserving) == (None, Reserving(block(14, 3), Retry(1_200)))


def test_with_seconds_between_checkpoints_ids_are_reserved_one_at_a_time() -> None:
    run = Run(replace(PLAIN, interval_ms=10_000))
    run.ready()
    for number in range(11, 20):
        run.tick(run.now_ms + 10_000)
        run.reserved(number + 1)
        run.collect(number)
        run.written(number)
    assert run.of(ReserveIds) == [ReserveIds(block(number)) for number in range(12, 21)]


@pytest.mark.parametrize("interval_ms", [1, 5, 300])
def test_wake_up_calls_do_not_pile_up(interval_ms: int) -> None:
    # 600 s to the expiry: one call for each attempt would be 90,000 at 150 a second.
    run = Run(Policy(interval_ms))
    run.ready()
    outstanding = 0
    for number in range(11, 511):
        outstanding = max(outstanding, len(run.state.wake_ups_ms))
        run.tick(run.now_ms + interval_ms)
        run.reserved(number + 1)
        run.collect(number)
        run.written(number)
    assert len(run.of(SendBarrier)) >= 500
    assert outstanding <= 3


def test_when_a_wake_up_call_comes_the_next_one_is_there_or_is_ordered() -> None:
    run = Run()
    assert run.ready() == (WakeAt(1_000),)
    assert run.ask(request(1))[-1] == ReserveIds(block(12, 2)), "1000 comes before the expiry"
    assert run.tick(999) == ()
    assert run.tick(1_000) == (WakeAt(5_000),)
    assert run.state.wake_ups_ms == (5_000,)


def test_an_id_that_is_not_of_the_block_in_hand_is_found() -> None:
    state = Run().state
    with pytest.raises(ProtocolViolation, match="not of the block in hand"):
        check(replace(state, reserved=Reserved(block(11), ID_12, 0)))
    with pytest.raises(ProtocolViolation, match="ids of another generation"):
        check(replace(state, reserved=Reserved(Reservation(CheckpointId(11), Generation(4)), ID_11, 0)))
    with pytest.raises(ProtocolViolation, match="ordered in vain"):
        check(replace(state, wake_ups_ms=(2, 1)))
