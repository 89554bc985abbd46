"""Time slices: the number of records follows the measured rate."""

from __future__ import annotations

import itertools
from random import Random
from statistics import median, quantiles

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.worker.scheduling.slices import SlicePolicy


def settled(policy: SlicePolicy, us_per_row: float, calls: int = 60) -> int:
    """Calls of different sizes, of which the last one is large."""
    for number in range(calls):
        rows = max(1, policy.rows_max // (1 + (calls - number) % 2))
        policy.measured(rows, int(rows * us_per_row))
    return policy.rows_max


def test_it_settles_at_what_takes_the_time_of_a_slice() -> None:
    assert settled(SlicePolicy(4_000, 131_072), us_per_row=2) == 2_000
    assert settled(SlicePolicy(4_000, 131_072), us_per_row=1_000) == 4


def test_it_starts_small_and_at_most_doubles_because_nothing_is_known_yet() -> None:
    policy = SlicePolicy(4_000, 131_072)
    assert policy.rows_max == 1_024
    policy.measured(1_024, 1)
    assert policy.rows_max == 2_048
    assert settled(policy, us_per_row=0) == 131_072


def test_the_first_slice_is_not_larger_than_the_bound() -> None:
    assert SlicePolicy(4_000, 100).rows_max == 100


def test_slowing_down_is_learnt_within_a_few_calls() -> None:
    policy = SlicePolicy(4_000, 131_072)
    assert settled(policy, us_per_row=1) == 4_000
    sizes = []
    for _ in range(4):
        policy.measured(policy.rows_max, 100 * policy.rows_max)
        sizes.append(policy.rows_max)
    assert sizes[0] == 500, "by a factor of eight at most: one slow call may be an accident"
    assert 30 <= sizes[-1] <= 50


def test_one_slow_call_among_fast_ones_is_forgotten_within_a_few_calls() -> None:
    policy = SlicePolicy(4_000, 131_072)
    settled(policy, us_per_row=1)
    policy.measured(4_000, 300_000)
    for _ in range(8):
        policy.measured(policy.rows_max, policy.rows_max)
    assert policy.rows_max >= 2_000


def test_one_fast_call_does_not_make_the_next_slice_long() -> None:
    policy = SlicePolicy(4_000, 131_072)
    settled(policy, us_per_row=100)
    policy.measured(40, 40)
    assert policy.rows_max <= 80


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 10**9)), max_size=30))
def test_there_is_always_at_least_one_row_and_never_more_than_the_bound(calls: list[tuple[int, int]]) -> None:
    policy = SlicePolicy(4_000, 1_000)
    for rows, took_us in calls:
        policy.measured(rows, took_us)
        assert 1 <= policy.rows_max <= 1_000


def test_where_the_call_itself_is_slow_slices_do_not_shrink_to_nothing() -> None:
    # 20 ms for a call and 1 us for each record: one record at a time would be 20,000 times slower than need be.
    policy = SlicePolicy(4_000, 131_072)
    policy.measured(1_024, 300_000)
    for _ in range(60):
        policy.measured(policy.rows_max, 20_000 + policy.rows_max)
    assert 20_000 <= policy.rows_max <= 80_000


@pytest.mark.parametrize("call_us", [0, 200, 2_000])
@pytest.mark.parametrize("row_us", [0.05, 1, 30])
def test_however_noisy_the_measurements_a_slice_takes_about_its_time(call_us: int, row_us: float) -> None:
    usual = []
    for seed in range(100):
        noise, policy, took = Random(seed), SlicePolicy(4_000, 131_072), []
        for _ in range(200):
            us = (call_us + policy.rows_max * row_us) * noise.uniform(0.8, 1.3)
            policy.measured(policy.rows_max, int(us))
            took.append(us)
        usual.append(median(took[100:]))
        assert usual[-1] > 4_000 / 3 or policy.rows_max == policy.upper
    assert quantiles(usual, n=20)[-1] < 3 * 4_000, "noise can look like a slow call, but seldom does"


class TestCallsThatShouldTakeLessTimeThanUsual:
    def test_they_get_as_many_records_as_fit_into_it(self) -> None:
        policy = SlicePolicy(4_000, 131_072)
        settled(policy, us_per_row=2)
        assert [policy.rows_within(us) for us in (4_000, 1_000, 100)] == [2_000, 500, 50]

    def test_they_never_get_more_than_usual_however_much_time_there_is(self) -> None:
        policy = SlicePolicy(4_000, 131_072)
        assert policy.rows_within(10**9) == policy.rows_max == 1_024, "nothing is known yet"
        settled(policy, us_per_row=2)
        assert policy.rows_within(10**9) == policy.rows_max == 2_000

    def test_they_get_one_record_at_least(self) -> None:
        policy = SlicePolicy(4_000, 131_072)
        settled(policy, us_per_row=30_000)
        assert policy.rows_within(1) <= 2, "or one more, as a trial"

    def test_where_the_call_itself_takes_longer_the_records_may_take_twice_as_long(self) -> None:
        # 2 ms for a call and 1 us for each record. In 1 ms there is no room for any; but calls cost more than records.
        policy = SlicePolicy(4_000, 131_072)
        for rows in (1_000, 2_000, 500, 1_500, 1_000):
            policy.measured(rows, 2_000 + rows)
        assert 3_800 <= policy.rows_within(1_000) <= 4_000 or policy.rows_within(1_000) == policy.rows_max
        assert policy.rows_within(1_000) == policy.rows_within(1)

    def test_asking_changes_nothing(self) -> None:
        policy = SlicePolicy(4_000, 131_072)
        settled(policy, us_per_row=2)
        policy.rows_within(1)
        assert policy.rows_max == 2_000


class TestCallsOfOneSize:
    """All that is known is how long they take: because of the records, or because of the call."""

    def sizes(self, call_us: int, row_us: int, calls: int, upper: int = 131_072) -> list[int]:
        """What calls get that should take 1 ms, after a first one that was slow."""
        policy = SlicePolicy(4_000, upper)
        policy.measured(1_000, 10_000_000)
        sizes = []
        for _ in range(calls):
            sizes.append(policy.rows_within(1_000))
            policy.measured(sizes[-1], call_us + row_us * sizes[-1])
        return sizes

    def test_single_records_become_more_if_it_is_the_call_that_is_slow(self) -> None:
        sizes = self.sizes(call_us=5_000, row_us=5, calls=30)
        assert set(sizes[:8]) == {1}
        assert sizes[-1] >= 500

    def test_one_of_several_has_two_records_if_these_are_slow(self) -> None:
        sizes = self.sizes(call_us=0, row_us=5_000, calls=200)
        assert set(sizes) == {1, 2}
        assert sizes.count(2) <= 20

    def test_the_slower_the_records_turn_out_the_less_often_more_are_tried(self) -> None:
        sizes = self.sizes(call_us=0, row_us=25_000, calls=400)
        assert set(sizes[20:]) <= {1, 2, 3}
        assert 1 <= sum(size > 1 for size in sizes[100:]) <= 16

    def test_however_slow_the_call_is_more_records_are_tried_with_it(self) -> None:
        assert self.sizes(call_us=100_000, row_us=5, calls=60)[-1] >= 10_000

    def test_none_has_two_if_one_is_the_most_that_is_allowed(self) -> None:
        assert set(self.sizes(call_us=5_000, row_us=5, calls=40, upper=1)) == {1}

    def test_one_of_several_has_half_as_many(self) -> None:
        halves = [rows < 30 for rows in self.sizes(call_us=0, row_us=20, calls=200)[100:]]
        assert 1 <= sum(halves) <= 10

    def test_none_has_fewer_if_more_are_not_allowed_anyway(self) -> None:
        assert set(self.sizes(call_us=0, row_us=20, calls=200, upper=40)[100:]) == {40}

    def test_what_half_as_many_cost_tells_what_the_call_costs(self) -> None:
        # Ten records take 1 ms, and they always have: what a call costs can only be found out with another size.
        policy = SlicePolicy(4_000, 131_072)
        for _ in range(3):
            policy.measured(10, 1_000)
        assert policy.rows_within(1_000) in (9, 10)
        sizes = []
        for _ in range(40):
            sizes.append(policy.rows_within(1_000))
            policy.measured(sizes[-1], 950 + 5 * sizes[-1])
        assert median(sizes[20:]) >= 150


def test_one_slow_large_call_does_not_outweigh_the_small_ones_after_it() -> None:
    policy = SlicePolicy(4_000, 131_072)
    policy.measured(1_000, 10_000_000)
    for rows in (1, 2, 1, 2, 1, 2):
        policy.measured(rows, 500 + 5 * rows)
    # The most that a slice can have grown to: it doubles at most with every call.
    assert policy.rows_max >= 32


class Modelled:
    """A function with a fixed cost and a cost for each record, noise, accidents, and a slow first call."""

    def __init__(self, call_us: float, row_us: float, seed: int) -> None:
        self.call_us = call_us
        self.row_us = row_us
        self.noise = Random(seed)
        self.took_us = self.noise.choice([0.0, 300_000.0])

    def rows_per_us(self, policy: SlicePolicy, calls: int = 600, counted_from: int = 60) -> float:
        """What it makes, once the policy has learnt."""
        rows_done = us_spent = 0.0
        for number in range(calls):
            rows = policy.rows_within(4_000)
            us = (self.call_us + self.row_us * rows) * self.noise.uniform(0.8, 1.3) + self.took_us
            self.took_us = self.noise.choice([10_000, 50_000]) if self.noise.random() < 0.01 else 0.0
            policy.measured(rows, int(us))
            if number >= counted_from:
                rows_done += rows
                us_spent += us
        return rows_done / us_spent


@pytest.mark.parametrize("row_us", [0.01, 1, 10, 100, 1_000, 10_000, 100_000])
@pytest.mark.parametrize("call_us", [0, 50, 500, 5_000, 15_000, 20_000, 50_000, 100_000])
def test_throughput_is_within_a_factor_of_two_of_the_best_batching(call_us: int, row_us: float) -> None:
    upper = 131_072
    best = upper / (call_us + row_us * upper) / 1.05  # the mean of the noise
    for seed in range(3):
        made = Modelled(call_us, row_us, seed).rows_per_us(SlicePolicy(4_000, upper))
        assert made >= best / 2


def test_throughput_has_no_cliff_as_the_call_gets_slower() -> None:
    made = [Modelled(1_000 * ms, 1, 0).rows_per_us(SlicePolicy(4_000, 131_072)) for ms in range(0, 101, 5)]
    for slower, faster in itertools.pairwise(reversed(made)):
        assert slower <= 1.6 * faster, "never much faster with a slower call"
        assert faster <= 1.6 * slower, "and never much slower"
