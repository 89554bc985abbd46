"""Latencies of the last minute, from histograms that only grow."""

from __future__ import annotations

from penstock.dashboard.sights.latency import WINDOW_MS, Latencies, quantile_ms
from penstock.ids import Generation, OperatorName
from penstock.metrics.instruments import Histogram
from penstock.metrics.samples import Sample
from penstock.metrics.standard import latency_from

ONE, TWO = Generation(1), Generation(2)


class Markers:
    """Histograms of one attempt, by source, operator and subtask."""

    def __init__(self) -> None:
        self.made: dict[tuple[str, str, int], Histogram] = {}

    def came(self, seconds: float, source: str = "orders", operator: str = "out", subtask: int = 0) -> Markers:
        self.made.setdefault((source, operator, subtask), Histogram()).observe(seconds)
        return self

    def samples(self) -> list[Sample]:
        return [
            Sample(latency_from(source), OperatorName(operator), subtask, each.total, tuple(each.counts))
            for (source, operator, subtask), each in self.made.items()
        ]


def test_subtasks_are_added_up_and_sources_are_not() -> None:
    markers = Markers().came(0.01).came(0.2, subtask=1).came(1.0, source="clicks")
    found = Latencies().view(ONE, markers.samples()).latencies
    assert [(each.source, each.operator, each.count, each.p50_ms, each.max_ms) for each in found] == [
        ("clicks", "out", 1, 1000.0, 1000.0),
        ("orders", "out", 2, 10.0, 250.0),
    ]


def test_markers_that_are_older_than_a_minute_do_not_count() -> None:
    latencies, markers = Latencies(), Markers().came(100.0)
    for turn in range(14):
        latencies.note(turn * 5_000, ONE, markers.samples())
        markers.came(0.01)
    [found] = latencies.view(ONE, markers.samples()).latencies
    assert (found.max_ms, found.count) == (10.0, 13)
    assert WINDOW_MS == 60_000


def test_the_figure_of_a_moment_is_of_markers_since_the_last_one_and_of_sinks_alone() -> None:
    latencies, markers = Latencies(), Markers().came(100.0)
    latencies.note(0, ONE, markers.samples())
    since = latencies.note(5_000, ONE, markers.came(0.01).came(5.0, operator="map").samples())
    assert quantile_ms(since, ("out",), 0.99) == 10.0
    nothing = latencies.note(10_000, ONE, markers.samples())
    assert quantile_ms(nothing, ("out",), 0.99) is None and quantile_ms({}, ("out",), 0.99) is None


def test_a_restart_begins_anew() -> None:
    latencies = Latencies()
    latencies.note(0, ONE, Markers().came(0.01).came(0.01).samples())
    latencies.note(5_000, ONE, Markers().came(0.01).came(0.01).samples())
    again = Markers().came(0.05)
    assert [each.count for each in latencies.view(TWO, again.samples()).latencies] == [1]
    assert quantile_ms(latencies.note(10_000, TWO, again.samples()), ("out",), 0.5) == 50.0


def test_a_latency_beyond_all_buckets_is_shown_as_the_last_bound() -> None:
    [found] = Latencies().view(ONE, Markers().came(9_000.0).samples()).latencies
    assert found.p50_ms == 500_000
