"""Metrics that a user's function defines: by name, for its operator and subtask."""

from __future__ import annotations

import re
from typing import Literal, TypeVar

from penstock.errors import OptionError
from penstock.metrics import metric
from penstock.metrics.instruments import Counter, Gauge, Histogram
from penstock.metrics.metric import Metric, Over
from penstock.metrics.registry import SubtaskMetrics

T = TypeVar("T", Counter, Gauge, Histogram)

_NAME = re.compile(r"[a-z][a-z0-9_]*")


class MetricGroup:
    """Metrics of a function, in the `metrics` of its context. `job.metrics()` has them by operator and subtask.

    Ask for them in `open`. A counter is part of each checkpoint: after a restart it goes on from the restored count, so
    that each record is counted once. Gauges and histograms begin anew with each restart.

    Example:

        class Large(KeyedFunction):
            def open(self, context):
                self.large = context.metrics.counter("large_orders", unit="rows", help="orders of 20 or more")
                self.largest = context.metrics.gauge("largest_amount", over="greatest")
                self.lookup = context.metrics.histogram("lookup_time_s", help="duration of a look-up")

            def process(self, key, rows, context):
                amounts = rows["amount"].to_pylist()
                self.large.add(sum(amount >= 20 for amount in amounts))
                self.largest.set(max(self.largest.value or 0, *amounts))
                self.lookup.observe(0.003)

        orders.key_by("customer").process(Large(), name="large").sink(output)
        metrics = run(pipeline).metrics  # on Spark: job.metrics()
        assert metrics.value("large_orders", "large") == 2
        assert metrics.value("largest_amount") == 30
        assert metrics.quantile("lookup_time_s", 0.5) == 0.005

    The trap: a name means the same in the whole pipeline. Two definitions of one name are an error.
    """

    __slots__ = ("_made", "_metrics", "_where")

    def __init__(self, metrics: SubtaskMetrics, where: str) -> None:
        self._metrics = metrics
        self._where = where
        self._made: dict[str, Counter | Gauge | Histogram] = {}

    def counter(self, name: str, *, unit: str = "", help: str = "") -> Counter:
        """A number that only grows: `add`."""
        definition = self._checked(metric.counter(name, unit, help, is_total=True))
        found = self._known(definition) or self._metrics.counter(definition)
        assert isinstance(found, Counter)
        return self._kept(definition, found)

    def gauge(
        self, name: str, *, unit: str = "", help: str = "", over: Literal["sum", "least", "greatest", "mean"] = "sum"
    ) -> Gauge:
        """A number of this moment: `set`. `over` says how the numbers of several subtasks become one."""
        definition = self._checked(metric.gauge(name, unit, help, Over(over)))
        found = self._known(definition)
        if found is None:
            found = Gauge()
            self._metrics.observe(definition, found.read)
        assert isinstance(found, Gauge)
        return self._kept(definition, found)

    def histogram(self, name: str, *, help: str = "") -> Histogram:
        """A distribution of durations in seconds: `observe`. Its buckets reach from 0.1 ms to 500 s."""
        definition = self._checked(metric.histogram(name, help))
        found = self._known(definition) or self._metrics.histogram(definition)
        assert isinstance(found, Histogram)
        return self._kept(definition, found)

    def _known(self, definition: Metric) -> Counter | Gauge | Histogram | None:
        return self._made.get(definition.name)

    def _checked(self, definition: Metric) -> Metric:
        name = definition.name
        if not _NAME.fullmatch(name):
            raise OptionError(
                f"{self._where}: metric {name!r}: a name consists of lower-case letters, digits and "
                "'_', and begins with a letter"
            )
        known = self._metrics.definition(name)
        if known is not None and known != definition:
            raise OptionError(
                f"{self._where}: metric '{name}' is already defined differently, as a "
                f"{known.kind.value} with unit '{known.unit}' and help '{known.help}': choose another "
                "name, or define both identically"
            )
        return definition

    def _kept(self, definition: Metric, instrument: T) -> T:
        self._made[definition.name] = instrument
        return instrument
