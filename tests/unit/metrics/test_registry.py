"""Instruments, their totals in checkpoints, and the updates that travel."""

from __future__ import annotations

import logging

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import PenstockError
from penstock.ids import OperatorName, WorkerId
from penstock.metrics.instruments import BUCKETS, Histogram
from penstock.metrics.metric import Over, counter, gauge, histogram
from penstock.metrics.received import ReceivedMetrics
from penstock.metrics.registry import MetricsUpdate, Registry
from penstock.metrics.samples import Metrics, Sample, added, combined, quantile
from penstock.metrics.standard import LATE, RECORDS_IN

COUNT = OperatorName("count")
READ = OperatorName("read")
WORKER = WorkerId(0)
SLICES = counter("slices", "", "slices")
PAUSES = histogram("pause_s", "pauses")


class TestInstruments:
    def test_a_counter_that_is_asked_for_twice_is_the_same_one(self) -> None:
        registry = Registry()
        registry.of(COUNT, 0).counter(LATE).add(3)
        registry.of(COUNT, 0).counter(LATE).add(2)
        registry.of(COUNT, 1).counter(LATE).add(10)
        found = [(sample.operator, sample.subtask, sample.value) for sample in registry.samples()]
        assert found == [(COUNT, 0, 5), (COUNT, 1, 10)]

    def test_one_name_has_one_meaning(self) -> None:
        registry = Registry()
        registry.of(COUNT, 0).counter(counter("rows", "rows", "rows in"))
        with pytest.raises(PenstockError, match="metric 'rows' has two definitions"):
            registry.of(COUNT, 0).counter(counter("rows", "rows", "rows out"))

    def test_a_gauge_is_read_when_somebody_asks_and_may_have_nothing_to_tell(self) -> None:
        registry = Registry()
        values: list[int | None] = [7]
        registry.of(COUNT, 0).observe(gauge("state", "bytes", "size"), lambda: values[0])
        assert registry.samples()[0].value == 7
        values[0] = None
        assert registry.samples() == ()

    def test_a_gauge_that_raises_is_left_out_and_said_once(self, caplog: pytest.LogCaptureFixture) -> None:
        registry = Registry()
        registry.of(COUNT, 3).observe(gauge("state", "bytes", "size"), lambda: 1 // 0)
        with caplog.at_level(logging.WARNING, "penstock"):
            assert registry.samples() == () and registry.update() == MetricsUpdate()
        (message,) = caplog.messages
        assert message.startswith("operator 'count', subtask 3: metric 'state' cannot be read: ZeroDivisionError")


class TestTotals:
    def test_only_totals_of_the_asked_subtask_are_in_a_checkpoint_and_no_zeros(self) -> None:
        registry = Registry()
        registry.of(READ, 0).counter(RECORDS_IN).add(5)
        registry.of(READ, 0).counter(LATE)
        registry.of(READ, 1).counter(RECORDS_IN).add(50)
        registry.of(COUNT, 0).counter(RECORDS_IN).add(500)
        registry.of(READ, 0).counter(SLICES).add(9)
        assert registry.totals([READ], 0) == ((READ, "num_records_in", 5),)
        assert registry.totals([READ, COUNT], 0) == ((READ, "num_records_in", 5), (COUNT, "num_records_in", 500))

    def test_a_total_goes_on_from_the_checkpoint_and_another_counter_from_zero(self) -> None:
        registry = Registry()
        registry.restore(READ, 0, {"num_records_in": 100, "slices": 7})
        registry.of(READ, 0).counter(RECORDS_IN).add(5)
        registry.of(READ, 0).counter(SLICES).add(1)
        assert [sample.value for sample in registry.samples()] == [105, 1]

    def test_a_total_that_nobody_has_counted_yet_is_in_the_next_checkpoint_too(self) -> None:
        registry = Registry()
        registry.restore(READ, 0, {"num_late_records_dropped": 4})
        assert registry.totals([READ], 0) == ((READ, "num_late_records_dropped", 4),)
        registry.of(READ, 0).counter(LATE).add(1)
        assert registry.totals([READ], 0) == ((READ, "num_late_records_dropped", 5),)


class TestUpdates:
    def test_names_travel_once_and_numbers_when_they_change(self) -> None:
        registry = Registry()
        late, slices = registry.of(COUNT, 2).counter(LATE), registry.of(COUNT, 2).counter(SLICES)
        late.add(3)
        first = registry.update()
        assert first == MetricsUpdate((LATE, SLICES), ((0, COUNT, 2), (1, COUNT, 2)), ((0, 3), (1, 0)))
        assert registry.update() == MetricsUpdate()
        slices.add(1)
        assert registry.update() == MetricsUpdate(values=((1, 1),))

    def test_an_update_on_the_wire_is_pinned(self) -> None:
        update = MetricsUpdate(
            (gauge("a", "ms", "b", Over.LEAST),), ((0, COUNT, 2),), ((0, 3), (1, 0.5)), ((2, 0.25, (1, 0)),)
        )
        sent = msgspec.json.encode(update)
        assert sent == (
            b'{"metrics":[{"name":"a","kind":"gauge","unit":"ms","help":"b","over":"least","is_total":false}],'
            b'"series":[[0,"count",2]],"values":[[0,3],[1,0.5]],"distributions":[[2,0.25,[1,0]]]}'
        )
        assert msgspec.msgpack.decode(msgspec.msgpack.encode(update), type=MetricsUpdate) == update

    def test_a_histogram_travels_when_something_was_observed_that_took_no_time(self) -> None:
        registry, received = Registry(), ReceivedMetrics()
        pauses = registry.of(READ, 0).histogram(PAUSES)
        received.heard(WORKER, registry.update())
        pauses.observe(0.0)
        pauses.observe(0.2)
        received.heard(WORKER, registry.update())
        (sample,) = received.sample()
        assert (sample.count, sample.value) == (2, 0.2)
        pauses.observe(0.0)
        received.heard(WORKER, registry.update())
        assert received.sample()[0].count == 3

    def test_a_thousand_subtasks_are_told_in_bounded_updates_that_go_on_where_the_last_one_stopped(self) -> None:
        registry, received = Registry(), ReceivedMetrics()
        metrics = [counter(f"m{number}", "", "a number with some text that says what it means") for number in range(25)]
        counters = [registry.of(COUNT, subtask).counter(metric) for subtask in range(1000) for metric in metrics]
        for round_number in (1, 2):
            for each in counters:
                each.add(1)
            updates = [registry.update() for _ in range(7)]
            assert registry.update() == MetricsUpdate(), "all was told"
            assert max(len(msgspec.msgpack.encode(update)) for update in updates) < 200_000
            for update in updates:
                received.heard(WORKER, update)
            assert {sample.value for sample in received.sample()} == {round_number}
            assert len(received.sample()) == 25_000

    def test_a_number_that_always_changes_keeps_no_other_from_being_told(self) -> None:
        registry, received = Registry(), ReceivedMetrics()
        counters = [registry.of(COUNT, subtask).counter(SLICES) for subtask in range(10)]
        for _ in range(10):
            for each in counters:
                each.add(1)
            received.heard(WORKER, registry.update(values_max=3))
        assert len(received.sample()) == 10 and all(sample.value >= 6 for sample in received.sample())


class TestReceived:
    def test_totals_of_the_checkpoint_are_shown_before_any_worker_has_come_up(self) -> None:
        received = ReceivedMetrics()
        received.begin_attempt({(READ, 0): {"num_records_in": 70, "of an earlier version": 3}})
        assert received.total(RECORDS_IN, [READ]) == 70
        assert [sample.name for sample in received.sample()] == ["num_records_in"]

    def test_the_next_attempt_goes_back_to_its_checkpoint(self) -> None:
        received, registry = ReceivedMetrics(), Registry()
        registry.of(READ, 0).counter(RECORDS_IN).add(100)
        received.heard(WORKER, registry.update())
        received.begin_attempt({(READ, 0): {"num_records_in": 70}})
        assert received.total(RECORDS_IN) == 70
        again = Registry()
        again.restore(READ, 0, {"num_records_in": 70})
        again.of(READ, 0).counter(RECORDS_IN).add(5)
        received.heard(WORKER, again.update())
        assert received.total(RECORDS_IN) == 75

    def test_an_acknowledgement_is_newer_than_the_last_heartbeat_or_older(self) -> None:
        received, registry = ReceivedMetrics(), Registry()
        registry.of(READ, 0).counter(RECORDS_IN).add(100)
        received.heard(WORKER, registry.update())
        received.acknowledged(0, ((READ, "num_records_in", 90), (READ, "unknown", 1)))
        assert received.total(RECORDS_IN) == 100
        received.acknowledged(0, ((READ, "num_records_in", 130),))
        assert received.total(RECORDS_IN) == 130


class TestMetrics:
    @pytest.mark.parametrize(
        ("over", "expected"), [(Over.SUM, 12), (Over.LEAST, 2), (Over.GREATEST, 6), (Over.MEAN, 4)]
    )
    def test_subtasks_are_put_together_as_the_metric_says(self, over: Over, expected: float) -> None:
        queue = gauge("queue", "bytes", "queue", over)
        samples = [Sample(queue, COUNT, subtask, value) for subtask, value in enumerate((2, 4, 6))]
        assert combined(samples) == expected
        assert Metrics(samples).by_operator("queue") == {"count": expected}

    def test_a_user_asks_by_name_and_operator_and_makes_a_table(self) -> None:
        metrics = Metrics([Sample(LATE, READ, 1, 5), Sample(LATE, READ, 0, 2), Sample(RECORDS_IN, COUNT, 0, 7)])
        assert metrics.value("num_late_records_dropped") == 7
        assert metrics.value("num_late_records_dropped", "count") is None
        assert metrics.value("no such metric") is None
        assert [sample.subtask for sample in metrics.of("num_late_records_dropped", "read")] == [0, 1]
        assert repr(metrics) == "<Metrics: 3 samples of 2 metrics>"
        assert metrics.to_pydict() == {
            "name": ["num_late_records_dropped", "num_late_records_dropped", "num_records_in"],
            "operator": ["read", "read", "count"],
            "subtask": [0, 1, 0],
            "value": [2, 5, 7],
            "unit": ["rows"] * 3,
            "kind": ["counter"] * 3,
            "source": [""] * 3,
        }

    def test_the_quantiles_of_several_subtasks_are_those_of_all_observations(self) -> None:
        registry = Registry()
        for subtask, seconds in enumerate((0.0002, 0.2)):
            registry.of(COUNT, subtask).histogram(PAUSES).observe(seconds)
        metrics = Metrics(registry.samples())
        assert metrics.quantile("pause_s", 0.5) == 0.00025
        assert metrics.quantile("pause_s", 1) == 0.25
        assert metrics.quantile("no such metric", 0.5) is None


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
