"""Which transactions a snapshot of PostgreSQL has seen, by the numbers that its log has of them."""

from __future__ import annotations

import numpy as np
import pytest

from penstock.connectors.postgres.positions import Snapshot

ERA = 1 << 32


def seen(sees: str, *transactions: int) -> list[int]:
    """Those of the transactions, given by the lower half of their numbers, whose changes are in the snapshot."""
    numbers = np.array(transactions, dtype=np.int64)
    return numbers[Snapshot(sees, 0).has_seen(numbers)].tolist()


def test_transactions_that_ran_when_it_was_taken_are_not_in_it() -> None:
    assert seen("100:110:100,105", *range(98, 113)) == [98, 99, 101, 102, 103, 104, 106, 107, 108, 109]


def test_without_any_that_ran_all_before_the_next_one_are_in_it() -> None:
    assert seen("110:110:", 108, 109, 110, 111) == [108, 109]


@pytest.mark.parametrize("era", [1, 7])
def test_numbers_are_those_next_to_it_where_the_lower_half_begins_anew(era: int) -> None:
    before = era * ERA - 2
    listed = f"{era * ERA - 1}"
    assert seen(f"{era * ERA - 1}:{era * ERA + 2}:{listed}", before % ERA, ERA - 1, 0, 1, 2) == [before % ERA, 0, 1]
