"""Metrics as users see them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias, overload

from penstock.ids import OperatorName
from penstock.metrics.instruments import BUCKETS
from penstock.metrics.metric import Kind, Metric, Over

Number: TypeAlias = int | float


@dataclass(frozen=True, slots=True)
class Sample:
    """One metric of one subtask.

    Example:

        orders.sink(output, name="output")
        sample = run(pipeline).metrics.of("num_records_in", "orders")[0]
        assert (sample.name, sample.operator, sample.subtask, sample.value) == ("num_records_in", "orders", 0, 3)
        assert (sample.unit, sample.kind.value, sample.count) == ("rows", "counter", 0)
    """

    metric: Metric
    operator: OperatorName
    """Empty for a metric of the whole pipeline."""
    subtask: int
    """0 for a metric of the whole pipeline."""
    value: Number
    """Of a histogram, the sum of the observations."""
    buckets: tuple[int, ...] = ()
    """Of a histogram: observations by bucket, see `penstock.metrics.instruments.BUCKETS`."""

    @property
    def name(self) -> str:
        return self.metric.name.partition("[")[0]

    @property
    def source(self) -> str:
        """The source from which a latency was measured; empty for all other metrics.

        Example:

            orders.sink(output, name="output")
            [latency] = run(pipeline).metrics.of("source_latency_s", "output")
            assert (latency.source, latency.unit) == ("orders", "s")
        """
        return self.metric.name.partition("[")[2][:-1]

    @property
    def unit(self) -> str:
        return self.metric.unit

    @property
    def kind(self) -> Kind:
        return self.metric.kind

    @property
    def count(self) -> int:
        """Number of observations of a histogram."""
        return sum(self.buckets)


class Metrics(Sequence[Sample]):
    """The metrics of a pipeline at one moment: a sequence of samples, ordered by name, operator and subtask.

    Example:

        orders.sink(output, name="output")
        metrics = run(pipeline).metrics  # on Spark: job.metrics()
        assert metrics.by_operator("num_records_in") == {"orders": 3, "output": 3}
        assert metrics.value("num_records_in", "output") == 3
        assert metrics.of("num_records_in", "output")[0].value == 3
        assert metrics.quantile("slice_time_s", 0.99) is not None
        assert pa.table(metrics.to_pydict()).num_rows == len(metrics)

    The trap: workers report once a second, so numbers of two workers are of two moments.
    """

    __slots__ = ("_samples",)

    def __init__(self, samples: Iterable[Sample]) -> None:
        self._samples = tuple(sorted(samples, key=lambda each: (each.metric.name, each.operator, each.subtask)))

    def __len__(self) -> int:
        return len(self._samples)

    def __iter__(self) -> Iterator[Sample]:
        return iter(self._samples)

    @overload
    def __getitem__(self, position: int) -> Sample: ...

    @overload
    def __getitem__(self, position: slice) -> Metrics: ...

    def __getitem__(self, position: int | slice) -> Sample | Metrics:
        return Metrics(self._samples[position]) if isinstance(position, slice) else self._samples[position]

    def __repr__(self) -> str:
        names = {each.name for each in self}
        return f"<Metrics: {len(self)} samples of {len(names)} metrics>"

    def of(self, name: str, operator: str | None = None) -> Metrics:
        """The samples of one metric, of all operators or of one."""
        return Metrics(each for each in self if each.name == name and operator in (None, each.operator))

    def value(self, name: str, operator: str | None = None) -> Number | None:
        """One number for a metric, of all operators or of one. None if there is no sample.

        Subtasks are added up, or the least, greatest or mean is taken, as `Metric.over` says.
        """
        return combined(self.of(name, operator))

    def by_operator(self, name: str) -> dict[str, Number]:
        """One number of a metric for each operator that has it."""
        parts: dict[str, list[Sample]] = {}
        for each in self.of(name):
            parts.setdefault(each.operator, []).append(each)
        return {operator: value for operator, found in parts.items() if (value := combined(found)) is not None}

    def quantile(self, name: str, share: float, operator: str | None = None) -> float | None:
        """The time within which `share` of the observations of a histogram lie: the upper bound of a bucket."""
        found = [each.buckets for each in self.of(name, operator) if each.buckets]
        return quantile(added(found), share) if found else None

    def to_pydict(self) -> dict[str, list[object]]:
        """Columns, for `pyarrow.table` or `pandas.DataFrame`."""
        return {
            "name": [each.name for each in self],
            "operator": [each.operator for each in self],
            "subtask": [each.subtask for each in self],
            "value": [float(each.value) for each in self],
            "unit": [each.unit for each in self],
            "kind": [each.kind.value for each in self],
            "source": [each.source for each in self],
        }


def combined(samples: Sequence[Sample]) -> Number | None:
    """One number for the samples of one metric, as its definition says; None without any."""
    if not samples:
        return None
    values = [sample.value for sample in samples]
    match samples[0].metric.over:
        case Over.SUM:
            return sum(values)
        case Over.LEAST:
            return min(values)
        case Over.GREATEST:
            return max(values)
        case Over.MEAN:
            return sum(values) / len(values)


def added(buckets: Iterable[Sequence[int]]) -> tuple[int, ...]:
    """The buckets of several histograms together."""
    return tuple(map(sum, zip(*buckets, strict=True)))


def quantile(buckets: Sequence[int], share: float) -> float | None:
    """The upper bound of the bucket in which `share` of all observations are reached; None without any.

    Infinite if it is the last bucket, which has no bound.
    """
    rank = share * sum(buckets)
    if not rank:
        return None
    seen = 0
    for bound, count in zip((*BUCKETS, math.inf), buckets, strict=True):
        seen += count
        if seen >= rank:
            return bound
    return None
