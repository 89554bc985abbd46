"""The figures of a recovery, put together from many subtasks."""

from __future__ import annotations

from penstock.mailbox.recovery_stats import RecoveryStats, combined


def test_nobody_recovers_nothing() -> None:
    assert combined([]) is None


def test_the_first_record_is_that_of_the_first_and_all_else_is_done_when_the_last_is() -> None:
    quick, slow = RecoveryStats(10, 1, 12, 20, 0), RecoveryStats(30, 5, 31, 90, 0)
    assert combined([quick, slow]) == RecoveryStats(30, 5, 12, 90, 0)


def test_as_long_as_one_is_not_done_all_are_not() -> None:
    done, under_way = RecoveryStats(10, 1, 12, 20, 0), RecoveryStats(30, 0, None, None, 700)
    reading = RecoveryStats()
    assert combined([done, under_way]) == RecoveryStats(30, 1, 12, None, 700)
    assert combined([done, reading]) == RecoveryStats(None, 1, 12, None, 0)
