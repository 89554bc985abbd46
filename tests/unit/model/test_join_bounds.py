"""Bounds of joins: the edges, exactly."""

from __future__ import annotations

import numpy as np
import pytest

from penstock.model.event_time import Ticks
from penstock.model.joins import (
    LEFT,
    RIGHT,
    IntervalBounds,
    JoinBounds,
    RegularBounds,
    WindowBounds,
    first_tick_at,
    partner_ticks,
    scaled,
    shifted,
)

INT64 = np.iinfo(np.int64)
MS, US, SECONDS = Ticks(1000), Ticks(1_000_000), Ticks(1)


def partners(bounds: JoinBounds, side: int, at: int, own: Ticks = MS, other: Ticks = MS) -> tuple[int, int]:
    first, last = partner_ticks(bounds, side, np.array([at]), own, other, 0)
    return int(first[0]), int(last[0])


def test_an_interval_includes_both_bounds_and_is_turned_round_for_the_other_side() -> None:
    bounds = IntervalBounds(-5, 10)
    assert partners(bounds, LEFT, 100) == (95, 110)
    assert partners(bounds, RIGHT, 100) == (90, 105)


def test_a_row_of_an_interval_is_needed_while_a_partner_may_come_at_the_watermark_itself() -> None:
    bounds = IntervalBounds(-5, 10)
    # At 100 a right row of 100 may come, whose left row is of 90 to 105; and a left one, whose right row is of 95 on.
    assert bounds.needed_from_ms(LEFT, 100) == 90
    assert bounds.needed_from_ms(RIGHT, 100) == 95
    assert bounds.late_before_ms(100) == 100


@pytest.mark.parametrize(
    ("lower", "upper", "held"), [(-5, 10, 10), (-20, 10, 20), (5, 10, 10), (-10, -3, 10), (0, 0, 0)]
)
def test_the_watermark_is_passed_on_behind_the_oldest_time_of_a_pair_to_come(lower: int, upper: int, held: int) -> None:
    assert IntervalBounds(lower, upper).passes_on_ms(1000) == 1000 - held


def test_windows_are_half_open_also_before_1970_and_in_a_finer_unit() -> None:
    bounds = WindowBounds(10)
    assert partners(bounds, LEFT, 0) == (0, 9)
    assert partners(bounds, LEFT, -1) == (-10, -1)
    assert partners(bounds, LEFT, 9, MS, US) == (0, 9_999)
    assert partners(bounds, LEFT, 9_999, US, MS) == (0, 9)
    assert bounds.needed_from_ms(LEFT, 19) == bounds.late_before_ms(19) == bounds.passes_on_ms(19) == 10
    assert bounds.needed_from_ms(RIGHT, 20) == 20


def test_bounds_are_rounded_into_the_interval_for_a_coarser_unit() -> None:
    assert partners(IntervalBounds(0, 1500), LEFT, 700, MS, SECONDS) == (1, 2)
    assert partners(IntervalBounds(0, 200), LEFT, 700, MS, SECONDS) == (1, 0), "no second is in there"
    assert partners(IntervalBounds(-500, 500), RIGHT, 2, SECONDS, MS) == (1500, 2500)


def test_rows_of_a_regular_join_are_kept_as_long_as_was_asked() -> None:
    bounds = RegularBounds(50, True)
    assert bounds.needed_from_ms(LEFT, 100) == bounds.late_before_ms(100) == bounds.passes_on_ms(100) == 50
    assert partners(RegularBounds(None, False), LEFT, 0) == (INT64.min, INT64.max)


@pytest.mark.parametrize("by", [5, -5, 2**70, -(2**70), 2**63 - 1, -(2**63)])
def test_shifted_times_saturate(by: int) -> None:
    times = [INT64.min, INT64.min + 3, -1, 0, 7, INT64.max - 3, INT64.max]
    expected = [min(max(at + by, INT64.min), INT64.max) for at in times]
    assert shifted(np.array(times), by).tolist() == expected


def test_scaled_times_saturate() -> None:
    times = [INT64.min, -3, 0, 3, INT64.max, INT64.max // 1000, INT64.max // 1000 + 1]
    expected = [min(max(at * 1000, INT64.min), INT64.max) for at in times]
    assert scaled(np.array(times), 1000).tolist() == expected


def test_the_first_tick_of_a_coarse_unit_is_not_before_the_time() -> None:
    assert first_tick_at(SECONDS, 1500) == 2
    assert first_tick_at(SECONDS, -1500) == -1
    assert first_tick_at(US, 3) == 3000
    assert first_tick_at(Ticks(10**9), -(2**63)) == INT64.min
