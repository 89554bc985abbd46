"""All instruments of one process, and the part of them that a heartbeat carries.

A heartbeat carries numbers that have changed since they were sent last, and no more than `VALUES_MAX` of them: with
more, the next heartbeat goes on where this one has stopped. Each number has the position of its series, which was
announced when its first number was sent; so neither names nor texts travel twice.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from penstock.errors import PenstockError
from penstock.ids import OperatorName
from penstock.metrics.instruments import Counter, Histogram
from penstock.metrics.metric import Metric
from penstock.metrics.samples import Number, Sample

_log = logging.getLogger("penstock")

VALUES_MAX = 4_096
"""Numbers in one heartbeat: about 100 kB."""

Read: TypeAlias = Callable[[], Number | None]
Totals: TypeAlias = tuple[tuple[OperatorName, str, int], ...]
"""Totals of one subtask: operator, name of the metric, value."""


@dataclass(frozen=True, slots=True)
class MetricsUpdate:
    """What has changed since the update before, of the same registry."""

    metrics: tuple[Metric, ...] = ()
    """New ones, in the order of their numbers."""
    series: tuple[tuple[int, OperatorName, int], ...] = ()
    """New ones, in the order of their numbers: number of the metric, operator, subtask."""
    values: tuple[tuple[int, Number], ...] = ()
    """Number of the series, value."""
    distributions: tuple[tuple[int, float, tuple[int, ...]], ...] = ()
    """Number of the series, sum of the observations, observations by bucket."""


NO_CHANGE = MetricsUpdate()


class _Series:
    """One metric of one subtask, and the state in which it was sent last."""

    __slots__ = ("failed", "instrument", "metric", "number", "operator", "sent", "subtask")

    def __init__(
        self, metric: Metric, operator: OperatorName, subtask: int, instrument: Counter | Histogram | Read
    ) -> None:
        self.metric = metric
        self.operator = operator
        self.subtask = subtask
        self.instrument = instrument
        self.number: int | None = None
        self.sent: Number | tuple[int, ...] | None = None
        self.failed = False

    def value(self) -> Number | None:
        """The number of now; of a histogram, the sum of its observations. None if there is nothing to tell."""
        instrument = self.instrument
        if isinstance(instrument, Counter):
            return instrument.value
        if isinstance(instrument, Histogram):
            return instrument.total
        try:
            return instrument()
        except Exception as error:
            # A number that cannot be told must not end a pipeline.
            if not self.failed:
                self.failed = True
                where = f"operator '{self.operator}', subtask {self.subtask}"
                _log.warning("%s: metric '%s' cannot be read: %r", where, self.metric.name, error)
            return None


class Registry:
    """Instruments by name, operator and subtask. It belongs to the mailbox thread."""

    def __init__(self) -> None:
        self._series: dict[tuple[str, OperatorName, int], _Series] = {}
        self._metrics: dict[str, Metric] = {}
        self._totals: dict[tuple[OperatorName, int], dict[str, Counter | int]] = {}
        """The counters that checkpoints hold, and the restored values whose counters are not made yet."""
        self._numbers: dict[str, int] = {}
        self._announced = 0
        self._cursor = 0

    def of(self, operator: OperatorName, subtask: int) -> SubtaskMetrics:
        """The metrics of one subtask of an operator."""
        return SubtaskMetrics(self, operator, subtask)

    # --- instruments ---

    def counter(self, metric: Metric, operator: OperatorName, subtask: int) -> Counter:
        known = self._series.get((metric.name, operator, subtask))
        if known is not None and known.metric == metric:
            assert isinstance(known.instrument, Counter)
            return known.instrument
        made = Counter()
        if metric.is_total:
            totals = self._totals.setdefault((operator, subtask), {})
            restored = totals.get(metric.name, 0)
            assert isinstance(restored, int)
            made.value = restored
            totals[metric.name] = made
        self.add(metric, operator, subtask, made)
        return made

    def add(self, metric: Metric, operator: OperatorName, subtask: int, instrument: Counter | Histogram | Read) -> None:
        """Register an instrument, or a function that the mailbox calls with every heartbeat."""
        known = self._metrics.setdefault(metric.name, metric)
        if known is not metric and known != metric:
            raise PenstockError(f"metric '{metric.name}' has two definitions: {known} and {metric}")
        self._series[metric.name, operator, subtask] = _Series(metric, operator, subtask, instrument)

    def definition(self, name: str) -> Metric | None:
        """The definition of a metric that this process has; None if no instrument has that name."""
        return self._metrics.get(name)

    # --- checkpoints ---

    def restore(self, operator: OperatorName, subtask: int, totals: Mapping[str, int]) -> None:
        """Let the totals of a subtask go on from those of a checkpoint, before anything is counted."""
        self._totals[operator, subtask] = dict(totals)

    def totals(self, operators: Iterable[OperatorName], subtask: int) -> Totals:
        """The totals of one subtask, for a checkpoint; zeros are left out."""
        return tuple(
            (operator, name, value)
            for operator in operators
            for name, counted in self._totals.get((operator, subtask), {}).items()
            if (value := counted if isinstance(counted, int) else counted.value)
        )

    # --- reading ---

    def samples(self) -> tuple[Sample, ...]:
        """All metrics as they are now."""
        found = ((each, each.value()) for each in self._series.values())
        return tuple(
            Sample(each.metric, each.operator, each.subtask, value, _buckets(each))
            for each, value in found
            if value is not None
        )

    def update(self, values_max: int = VALUES_MAX) -> MetricsUpdate:
        """The numbers that have changed since they were in an update last."""
        series = list(self._series.values())
        metrics: list[Metric] = []
        announced: list[tuple[int, OperatorName, int]] = []
        values: list[tuple[int, Number]] = []
        distributions: list[tuple[int, float, tuple[int, ...]]] = []
        start = self._cursor if self._cursor < len(series) else 0
        self._cursor = start
        left = values_max
        for position in (*range(start, len(series)), *range(start)):
            if left <= 0:
                self._cursor = position
                break
            each = series[position]
            instrument = each.instrument
            # Counters are most of what there is, and most of them have not changed.
            told: Number | tuple[int, ...] | None
            if type(instrument) is Counter:
                told = instrument.value
            elif isinstance(instrument, Histogram):
                told = _buckets(each) or instrument.total
            else:
                told = each.value()
            if told is None or told == each.sent:
                continue
            left -= 1
            each.sent = told
            if each.number is None:
                each.number = self._announce(each, metrics, announced)
            if isinstance(told, tuple):
                assert isinstance(instrument, Histogram)
                distributions.append((each.number, float(instrument.total), told))
            else:
                values.append((each.number, told))
        return MetricsUpdate(tuple(metrics), tuple(announced), tuple(values), tuple(distributions))

    def _announce(self, each: _Series, metrics: list[Metric], announced: list[tuple[int, OperatorName, int]]) -> int:
        name = each.metric.name
        if name not in self._numbers:
            self._numbers[name] = len(self._numbers)
            metrics.append(each.metric)
        announced.append((self._numbers[name], each.operator, each.subtask))
        self._announced += 1
        return self._announced - 1


def _buckets(series: _Series) -> tuple[int, ...]:
    return tuple(series.instrument.counts) if isinstance(series.instrument, Histogram) else ()


class SubtaskMetrics:
    """The registry as one subtask of an operator sees it."""

    __slots__ = ("_operator", "_registry", "_subtask")

    def __init__(self, registry: Registry, operator: OperatorName, subtask: int) -> None:
        self._registry = registry
        self._operator = operator
        self._subtask = subtask

    def definition(self, name: str) -> Metric | None:
        return self._registry.definition(name)

    def counter(self, metric: Metric) -> Counter:
        """The counter of `metric`, always the same one."""
        return self._registry.counter(metric, self._operator, self._subtask)

    def histogram(self, metric: Metric) -> Histogram:
        """A new histogram."""
        made = Histogram()
        self._registry.add(metric, self._operator, self._subtask, made)
        return made

    def observe(self, metric: Metric, read: Read) -> None:
        """A number that `read` returns, None for none at the moment.

        The mailbox calls it with every heartbeat, so it must be quick.
        """
        self._registry.add(metric, self._operator, self._subtask, read)
