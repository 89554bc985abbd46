"""Credit: arithmetic at both ends of a channel."""

from __future__ import annotations

import pytest

from penstock.errors import ProtocolViolation
from penstock.protocol.credit import ReceiverCredit, SenderCredit, cost_of


@pytest.mark.parametrize(("batch_bytes", "cost"), [(0, 1), (1, 1), (99, 99), (100, 100), (10**9, 100)])
def test_a_batch_costs_its_bytes_at_least_one_and_at_most_the_window(batch_bytes: int, cost: int) -> None:
    assert cost_of(batch_bytes, window_bytes=100) == cost


def test_a_batch_larger_than_the_window_travels_alone() -> None:
    credit = SenderCredit(100)
    huge = cost_of(10**9, 100)
    assert credit.can_send(huge)
    credit.spend(1)
    assert not credit.can_send(huge)
    credit.grant(1)
    credit.spend(huge)
    assert not credit.can_send(cost_of(0, 100))


def test_spending_more_than_was_granted_is_a_violation_and_changes_nothing() -> None:
    credit = SenderCredit(100)
    credit.spend(60)
    with pytest.raises(ProtocolViolation, match="credit below zero: 41 bytes sent with 40 granted"):
        credit.spend(41)
    assert credit.available == 40


@pytest.mark.parametrize("granted", [-1, 61])
def test_a_grant_beyond_the_window_is_a_violation_and_changes_nothing(granted: int) -> None:
    credit = SenderCredit(100)
    credit.spend(60)
    with pytest.raises(ProtocolViolation, match=f"above the window: {granted} bytes granted with 40 of 100 left"):
        credit.grant(granted)
    assert credit.available == 40


def test_grants_are_gathered_until_half_of_the_window_is_owed() -> None:
    credit = ReceiverCredit(100)
    assert [credit.consumed(20, queue_is_empty=False) for _ in range(3)] == [0, 0, 60]
    assert credit.owed == 0


def test_a_grant_is_never_held_back_while_nothing_is_queued() -> None:
    credit = ReceiverCredit(100)
    assert credit.consumed(5, queue_is_empty=False) == 0
    assert credit.consumed(1, queue_is_empty=True) == 6
