"""The figures of a recovery, put together from many subtasks."""

from __future__ import annotations

from penstock.mailbox.recovery_stats import RecoveryFigures, combined


def test_nobody_recovers_nothing() -> None:
    assert combined([]) is None


def test_the_first_record_is_that_of_the_first_and_all_else_is_done_when_the_last_is() -> None:
    quick, slow = RecoveryFigures(10, 1, 12, 20, 0), RecoveryFigures(30, 5, 31, 90, 0)
    assert combined([quick, slow]) == RecoveryFigures(30, 5, 12, 90, 0)


def test_as_long_as_one_is_not_done_all_are_not() -> None:
    done, under_way = RecoveryFigures(10, 1, 12, 20, 0), RecoveryFigures(30, 0, None, None, 700)
    reading = RecoveryFigures()
    assert combined([done, under_way]) == RecoveryFigures(30, 1, 12, None, 700)
    assert combined([done, reading]) == RecoveryFigures(None, 1, 12, None, 0)
