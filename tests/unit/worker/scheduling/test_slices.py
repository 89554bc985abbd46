"""Time slices: the number of records follows the measured rate."""

from __future__ import annotations

from random import Random
from statistics import median

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


def test_slowing_down_is_learnt_at_once() -> None:
    policy = SlicePolicy(4_000, 131_072)
    assert settled(policy, us_per_row=1) == 4_000
    policy.measured(4_000, 400_000)
    assert policy.rows_max == 40


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
    assert 10_000 <= policy.rows_max <= 40_000


@settings(deadline=None)
@given(st.randoms(use_true_random=False), st.sampled_from([0, 200, 2_000]), st.sampled_from([0.05, 1, 30]))
def test_however_noisy_the_measurements_a_slice_takes_about_its_time(
    noise: Random, call_us: int, row_us: float
) -> None:
    policy = SlicePolicy(4_000, 131_072)
    took = []
    for _ in range(200):
        us = (call_us + policy.rows_max * row_us) * noise.uniform(0.8, 1.3)
        policy.measured(policy.rows_max, int(us))
        took.append(us)
    assert median(took[100:]) < 3 * 4_000
    assert median(took[100:]) > 4_000 / 3 or policy.rows_max == policy.upper


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
        assert policy.rows_within(1) == 1

    def test_where_the_call_itself_takes_longer_they_take_as_long_again(self) -> None:
        # 2 ms for a call and 1 us for each record. In 1 ms there is no room for any; but calls cost more than records.
        policy = SlicePolicy(4_000, 131_072)
        for rows in (1_000, 2_000, 500, 1_500, 1_000):
            policy.measured(rows, 2_000 + rows)
        assert 1_900 <= policy.rows_within(1_000) <= 2_000
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

    def test_none_has_two_if_records_are_so_slow_that_barriers_would_notice(self) -> None:
        assert set(self.sizes(call_us=0, row_us=25_000, calls=100)) == {1}

    def test_none_has_two_if_one_is_the_most_that_is_allowed(self) -> None:
        assert set(self.sizes(call_us=5_000, row_us=5, calls=40, upper=1)) == {1}

    def test_one_of_several_has_half_as_many(self) -> None:
        halves = [rows < 30 for rows in self.sizes(call_us=0, row_us=20, calls=200)[100:]]
        assert 2 <= sum(halves) <= 10

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
