"""Readings of counters, and rates between them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from penstock.dashboard.sights.readings import BACK_PRESSURED, BUSY, FRESH_MS, IDLE, ROWS_IN, Readings
from penstock.dashboard.sights.series import NAMES, Series
from penstock.ids import OperatorName

PLACE = OperatorName("numbers"), 0


class Counters:
    """A pipeline whose counters are set by hand."""

    def __init__(self) -> None:
        self.now = 10_000
        self.counts: dict[str, dict[Any, float]] = {}
        self.generation = 1
        metrics = SimpleNamespace(values=lambda name: dict(self.counts.get(name, {})))
        self.supervisor = SimpleNamespace(observations=SimpleNamespace(metrics=metrics))
        clock = SimpleNamespace(now_ms=lambda: self.now, wall_ms=lambda: 1_700_000_000_000 + self.now)
        self.readings = Readings(SimpleNamespace(supervisor=self.supervisor, clock=clock))  # type: ignore[arg-type]

    def at(self, now: int, **counts: float) -> Any:
        self.now = now
        self.counts = {name: {PLACE: value} for name, value in counts.items()}
        self.supervisor.coordinator = SimpleNamespace(generation=self.generation)
        return self.readings.newest()


def test_a_reading_is_shared_until_it_is_old() -> None:
    counters = Counters()
    first = counters.at(10_000, num_records_in=5)
    assert counters.at(10_000 + FRESH_MS - 1, num_records_in=9) is first
    assert counters.at(10_000 + FRESH_MS, num_records_in=9).value(ROWS_IN, PLACE) == 9
    assert counters.readings.made == 2


def test_a_rate_is_counted_over_some_seconds() -> None:
    counters = Counters()
    assert counters.at(10_000, num_records_in=0).per_second(ROWS_IN, PLACE) is None
    for second in range(1, 12):
        reading = counters.at(10_000 + 1000 * second, num_records_in=100 * second)
    assert reading.per_second(ROWS_IN, PLACE) == pytest.approx(100)
    assert reading.before is not None and 5_000 <= reading.at_ms - reading.before.at_ms <= 6_000


def test_there_is_no_rate_across_a_restart() -> None:
    counters = Counters()
    counters.at(10_000, num_records_in=1_000)
    counters.generation = 2
    assert counters.at(11_000, num_records_in=5_000).per_second(ROWS_IN, PLACE) is None
    assert counters.at(12_000, num_records_in=5_100).per_second(ROWS_IN, PLACE) == pytest.approx(100)


def test_shares_add_up_to_one_and_are_known_from_the_first_reading_on() -> None:
    counters = Counters()
    first = counters.at(10_000, **{BUSY: 250, IDLE: 750, BACK_PRESSURED: 0})
    assert first.shares(PLACE) == (0.25, 0.75, 0)
    then = counters.at(11_000, **{BUSY: 350, IDLE: 750, BACK_PRESSURED: 900})
    assert then.shares(PLACE) == (pytest.approx(0.1), 0, pytest.approx(0.9))
    assert counters.at(12_000).shares(PLACE) is None


def test_an_hour_of_figures_takes_no_more_memory_than_an_hour() -> None:
    series = Series(step_ms=5_000)
    for step in range(2_000):
        series.add(5_000 * step, {"busy": step / 2_000, "state_bytes": None})
    kept = series.view(10_000_000, 0).series
    assert kept.keys() == set(NAMES) and len(kept["busy"]) == 720 and not kept["state_bytes"]
    assert len(series.view(60, 5_000 * 2_000).series["busy"]) == 12
