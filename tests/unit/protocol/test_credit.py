"""Credit: arithmetic at both ends of a channel."""

from __future__ import annotations

import pytest

from penstock.errors import ProtocolViolation
from penstock.protocol.credit import ReceiverCredit, SenderCredit, cost_of

TARGET_US = 20_000


@pytest.mark.parametrize(("batch_bytes", "cost"), [(0, 1), (1, 1), (99, 99), (100, 100), (10**9, 100)])
def test_a_batch_costs_its_bytes_at_least_one_and_at_most_the_window(batch_bytes: int, cost: int) -> None:
    assert cost_of(batch_bytes, credit_limit_bytes=100) == cost


def test_a_batch_larger_than_the_window_travels_alone() -> None:
    credit = SenderCredit(100)
    assert credit.can_send(10**9)
    assert credit.spend(1) == 1
    assert not credit.can_send(10**9)
    credit.grant(1, 100)
    assert credit.spend(10**9) == 100
    assert not credit.can_send(0)


def test_what_a_batch_costs_follows_the_window_that_was_told_last() -> None:
    credit = SenderCredit(100)
    credit.spend(90)
    assert not credit.can_send(50)
    credit.grant(0, 10)
    assert credit.can_send(50)
    assert credit.spend(50) == 10
    assert credit.available == 0


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
        credit.grant(granted, 100)
    assert (credit.available, credit.credit_limit_bytes) == (40, 100)


@pytest.mark.parametrize("window", [0, 101])
def test_a_window_that_cannot_be_is_a_violation_and_changes_nothing(window: int) -> None:
    credit = SenderCredit(100)
    credit.spend(60)
    with pytest.raises(ProtocolViolation, match=f"a window of {window} bytes where 1 to 100 are possible"):
        credit.grant(10, window)
    assert (credit.available, credit.credit_limit_bytes) == (40, 100)


def test_grants_are_gathered_until_half_of_the_window_is_owed() -> None:
    credit = ReceiverCredit(100)
    assert [credit.consumed(20, queue_is_empty=False) for _ in range(3)] == [None, None, 60]
    assert credit.outstanding == 100


def test_a_grant_is_never_held_back_while_nothing_is_queued() -> None:
    credit = ReceiverCredit(100)
    assert credit.consumed(5, queue_is_empty=False) is None
    assert credit.consumed(1, queue_is_empty=True) == 6


class TestTheWindowFollowsTheReceiver:
    def learnt(self, waited_us: int, ahead: int, *, is_standing: bool, least: int = 1) -> ReceiverCredit:
        credit = ReceiverCredit(100_000, 4_000)
        credit.learn(waited_us, ahead, is_standing, TARGET_US, least)
        return credit

    def test_it_shrinks_to_what_is_consumed_in_the_time_that_is_wanted(self) -> None:
        # 50,000 bytes took 100 ms: in 20 ms it is a fifth of them.
        assert self.learnt(100_000, 50_000, is_standing=True).credit_limit_bytes == 10_000

    def test_it_does_not_shrink_as_long_as_nothing_waits_for_too_long(self) -> None:
        assert self.learnt(TARGET_US, 1_000, is_standing=True).credit_limit_bytes == 100_000

    def test_it_does_not_shrink_where_the_queue_ran_empty_at_once(self) -> None:
        assert self.learnt(10**9, 1_000, is_standing=False).credit_limit_bytes == 100_000

    def test_it_never_shrinks_below_its_least(self) -> None:
        assert self.learnt(10**9, 1_000, is_standing=True).credit_limit_bytes == 4_000

    def test_it_never_shrinks_below_what_is_taken_at_once(self) -> None:
        assert self.learnt(10**9, 1_000, is_standing=True, least=9_000).credit_limit_bytes == 9_000

    def test_a_window_that_was_smaller_than_the_least_from_the_beginning_stays(self) -> None:
        credit = ReceiverCredit(100, 4_000)
        credit.learn(10**9, 1, True, TARGET_US, 1)
        assert credit.credit_limit_bytes == 100

    def test_it_never_grows_by_shrinking(self) -> None:
        credit = self.learnt(10**9, 1_000, is_standing=True)
        credit.learn(TARGET_US + 1, 100_000, True, TARGET_US, 1)
        assert credit.credit_limit_bytes == 4_000

    def test_it_grows_to_what_the_receiver_wants_at_once_however_long_records_wait(self) -> None:
        credit = self.learnt(10**9, 1_000, is_standing=True)
        credit.learn(TARGET_US + 1, 100_000, True, TARGET_US, 50_000)
        assert credit.credit_limit_bytes == 50_000
        credit.learn(TARGET_US - 1, 100_000, True, TARGET_US, 10**9)
        assert credit.credit_limit_bytes == credit.credit_limit_bytes_max

    def test_it_grows_when_the_queue_runs_empty_up_to_what_it_was(self) -> None:
        credit = self.learnt(10**9, 1_000, is_standing=True)
        sizes = []
        for _ in range(12):
            credit.learn(0, 1, False, TARGET_US, 1)
            sizes.append(credit.credit_limit_bytes)
        assert sizes == sorted(sizes)
        assert sizes[0] == 6_001
        assert sizes[-1] == 100_000

    def test_it_shrinks_by_granting_less_than_was_consumed(self) -> None:
        credit = ReceiverCredit(100)
        credit.learn(100_000, 50, True, TARGET_US, 1)
        assert credit.credit_limit_bytes == 10
        assert credit.consumed(60, queue_is_empty=False) is None
        assert credit.consumed(35, queue_is_empty=False) == 5
        assert credit.outstanding == 10

    def test_the_sender_is_told_of_a_smaller_window_even_if_it_gets_nothing(self) -> None:
        credit = ReceiverCredit(100)
        credit.learn(100_000, 50, True, TARGET_US, 1)
        # It has 60 left, more than the window, and may be waiting to send a batch that is larger than that.
        assert credit.consumed(40, queue_is_empty=True) == 0
        assert credit.consumed(0, queue_is_empty=True) is None
