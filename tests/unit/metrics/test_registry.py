"""Instruments, and what becomes of them on their way to a user."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import PenstockError
from penstock.ids import OperatorName
from penstock.metrics.instruments import BUCKETS, Histogram
from penstock.metrics.registry import Registry
from penstock.metrics.samples import Over, Sample, added, combined, quantile

COUNT = OperatorName("count")
READ = OperatorName("read")


def test_a_counter_that_is_asked_for_twice_is_the_same_one() -> None:
    registry = Registry()
    registry.of(COUNT, 0).counter("rows_late", "rows").add(3)
    registry.of(COUNT, 0).counter("rows_late", "rows").add(2)
    registry.of(COUNT, 1).counter("rows_late", "rows").add(10)
    assert [(sample.operator, sample.subtask, sample.value) for sample in registry.samples()] == [
        (COUNT, 0, 5),
        (COUNT, 1, 10),
    ]


def test_one_name_has_one_meaning() -> None:
    registry = Registry()
    registry.of(COUNT, 0).counter("rows", "rows in")
    with pytest.raises(PenstockError, match="metric 'rows' is described twice"):
        registry.of(READ, 0).counter("rows", "rows out")


def test_a_gauge_is_read_when_somebody_asks() -> None:
    registry, values = Registry(), [7.0]
    registry.of(COUNT, 0).gauge("state_bytes", "size of the state", lambda: values[0], "bytes")
    assert registry.samples()[0].value == 7
    values[0] = 9
    assert registry.samples()[0].value == 9


@pytest.mark.parametrize(("over", "expected"), [(Over.SUM, 12), (Over.LEAST, 2), (Over.GREATEST, 6), (Over.MEAN, 4)])
def test_subtasks_are_put_together_as_the_metric_says(over: Over, expected: float) -> None:
    registry = Registry()
    for subtask, value in enumerate((2.0, 4.0, 6.0)):
        registry.of(COUNT, subtask).gauge("queue", "queue", lambda value=value: value, over=over)  # type: ignore[misc]
    assert combined(registry.samples()) == expected


def test_only_totals_of_the_asked_subtask_are_in_a_checkpoint() -> None:
    registry = Registry()
    registry.of(READ, 0).counter("rows_out", "rows", is_total=True).add(5)
    registry.of(READ, 1).counter("rows_out", "rows", is_total=True).add(50)
    registry.of(COUNT, 0).counter("rows_out", "rows", is_total=True).add(500)
    registry.of(READ, 0).counter("slices", "slices").add(9)
    assert registry.totals({READ}, 0) == ((READ, "rows_out", 5),)
    assert registry.totals({READ, COUNT}, 0) == ((READ, "rows_out", 5), (COUNT, "rows_out", 500))


def test_samples_travel() -> None:
    registry = Registry()
    registry.of(READ, 0).histogram("pause", "pauses").observe(0.2)
    registry.of(READ, 0).gauge("idle", "idle", lambda: 0.5, over=Over.MEAN)
    samples = registry.samples()
    sent = msgspec.msgpack.encode(samples)
    assert msgspec.msgpack.decode(sent, type=tuple[Sample, ...]) == samples


@given(st.lists(st.floats(0, 1000)), st.lists(st.floats(0, 1000)))
def test_histograms_add_up(first: list[float], second: list[float]) -> None:
    one, other, both = Histogram(), Histogram(), Histogram()
    for value in first:
        one.observe(value)
        both.observe(value)
    for value in second:
        other.observe(value)
        both.observe(value)
    assert added([one.counts, other.counts]) == tuple(both.counts)


@given(st.lists(st.floats(0, 400), min_size=1), st.floats(0.01, 1))
def test_a_quantile_is_the_bound_of_the_bucket_it_falls_into(values: list[float], share: float) -> None:
    histogram = Histogram()
    for value in values:
        histogram.observe(value)
    found = quantile(histogram.counts, share)
    assert found is not None
    below = sum(value <= found for value in values)
    assert below >= share * len(values)
    smaller = [bound for bound in BUCKETS if bound < found]
    if smaller:
        assert sum(value <= smaller[-1] for value in values) < share * len(values)


def test_a_quantile_of_nothing_is_nothing_and_of_the_last_bucket_without_bound() -> None:
    histogram = Histogram()
    assert quantile(histogram.counts, 0.5) is None
    histogram.observe(10_000)
    assert quantile(histogram.counts, 0.5) == float("inf")
