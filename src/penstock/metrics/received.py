"""The metrics of all workers, as the driver has received them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from penstock.ids import OperatorName, WorkerId
from penstock.metrics.metric import Metric
from penstock.metrics.registry import MetricsUpdate, Totals
from penstock.metrics.samples import Metrics, Number, Sample
from penstock.metrics.standard import TOTALS


class _Series:
    __slots__ = ("buckets", "metric", "operator", "subtask", "value")

    def __init__(self, metric: Metric, operator: OperatorName, subtask: int, value: Number = 0) -> None:
        self.metric = metric
        self.operator = operator
        self.subtask = subtask
        self.value: Number = value
        self.buckets: tuple[int, ...] = ()


class _Announced:
    """Metrics and series of one worker, by their numbers."""

    __slots__ = ("metrics", "series")

    def __init__(self) -> None:
        self.metrics: list[Metric] = []
        self.series: list[_Series] = []


class ReceivedMetrics:
    """The newest numbers of one attempt. Written by the driver's mailbox; `sample` and `total` are for any thread."""

    def __init__(self) -> None:
        self._workers: dict[WorkerId, _Announced] = {}
        self._series: dict[str, dict[tuple[OperatorName, int], _Series]] = {}
        """By metric, then by operator and subtask."""

    def begin_attempt(self, restored: Mapping[tuple[OperatorName, int], Mapping[str, int]]) -> None:
        """Forget the attempt before. `restored` are the totals that the workers go on from, by operator and subtask."""
        # Replaced as a whole: other threads read.
        self._workers, self._series = {}, {}
        for (operator, subtask), totals in restored.items():
            for name, value in totals.items():
                if name in TOTALS:
                    self._made(TOTALS[name], operator, subtask).value = value

    def _made(self, metric: Metric, operator: OperatorName, subtask: int) -> _Series:
        series = self._series.setdefault(metric.name, {})
        return series.setdefault((operator, subtask), _Series(metric, operator, subtask))

    def heard(self, worker: WorkerId, update: MetricsUpdate) -> None:
        """Take the update of a worker."""
        announced = self._workers.setdefault(worker, _Announced())
        announced.metrics += update.metrics
        for number, operator, subtask in update.series:
            announced.series.append(self._made(announced.metrics[number], operator, subtask))
        for number, value in update.values:
            announced.series[number].value = value
        for number, total, buckets in update.distributions:
            series = announced.series[number]
            series.value, series.buckets = total, buckets

    def acknowledged(self, subtask: int, totals: Totals) -> None:
        """Take the totals with which a subtask acknowledges a checkpoint: those of the last one are final."""
        for operator, name, value in totals:
            series = self._series.get(name, {}).get((operator, subtask))
            if series is None and name in TOTALS:
                series = self._made(TOTALS[name], operator, subtask)
            if series is not None:
                # A heartbeat may have told of records behind the cut already.
                series.value = max(series.value, value)

    def total(self, metric: Metric, operators: Collection[OperatorName] | None = None) -> int:
        """The sum of a metric over all subtasks, of some operators or of all."""
        found = list(self._series.get(metric.name, {}).values())
        return sum(int(each.value) for each in found if operators is None or each.operator in operators)

    def values(self, name: str) -> dict[tuple[OperatorName, int], Number]:
        """One metric by operator and subtask: for those who need a few of many."""
        return {place: series.value for place, series in list(self._series.get(name, {}).items())}

    def samples_of(self, metric: Metric) -> list[Sample]:
        """The samples of one metric; of a latency, from all sources."""
        found = [series for name, series in list(self._series.items()) if name.partition("[")[0] == metric.name]
        return [
            Sample(each.metric, each.operator, each.subtask, each.value, each.buckets)
            for series in found
            for each in list(series.values())
        ]

    def told(self, metric: Metric, operator: OperatorName) -> int | None:
        """The sum of a gauge over the subtasks of an operator; None if no worker of this attempt has told it."""
        found = [each for each in list(self._series.get(metric.name, {}).values()) if each.operator == operator]
        return sum(int(each.value) for each in found) if found else None

    def sample(self, more: Iterable[Sample] = ()) -> Metrics:
        """All metrics as they were told last, and `more`."""
        found = [each for series in list(self._series.values()) for each in list(series.values())]
        return Metrics([*(Sample(s.metric, s.operator, s.subtask, s.value, s.buckets) for s in found), *more])
