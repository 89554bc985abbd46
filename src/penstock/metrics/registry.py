"""All instruments of one process."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import TypeVar

from penstock.errors import PenstockError
from penstock.ids import OperatorName
from penstock.metrics.instruments import Counter, Gauge, Histogram
from penstock.metrics.samples import Description, Kind, Over, Sample

Instrument = TypeVar("Instrument", Counter, Gauge, Histogram)


class Registry:
    """Instruments by name, operator and subtask."""

    def __init__(self) -> None:
        self._instruments: dict[tuple[str, OperatorName, int], Counter | Gauge | Histogram] = {}
        self._descriptions: dict[str, Description] = {}

    def of(self, operator: OperatorName, subtask: int) -> SubtaskMetrics:
        """The metrics of one subtask of an operator."""
        return SubtaskMetrics(self, operator, subtask)

    def add(self, description: Description, operator: OperatorName, subtask: int, instrument: Instrument) -> Instrument:
        """Register an instrument. One that is there already is returned in its place."""
        known = self._descriptions.setdefault(description.name, description)
        if known != description:
            raise PenstockError(f"metric '{description.name}' is described twice: {known} and {description}")
        found = self._instruments.setdefault((description.name, operator, subtask), instrument)
        assert isinstance(found, type(instrument))
        return found

    def samples(self) -> tuple[Sample, ...]:
        """All metrics as they are now."""
        return tuple(
            _sample(self._descriptions[name], operator, subtask, instrument)
            for (name, operator, subtask), instrument in self._instruments.items()
        )

    def totals(self, operators: Collection[OperatorName], subtask: int) -> tuple[tuple[OperatorName, str, int], ...]:
        """The counters that checkpoints hold, of one subtask of some operators: operator, name, value."""
        return tuple(
            (operator, name, int(instrument.value))
            for (name, operator, index), instrument in self._instruments.items()
            if index == subtask and operator in operators and self._descriptions[name].is_total
            if isinstance(instrument, Counter)
        )


def _sample(
    description: Description, operator: OperatorName, subtask: int, instrument: Counter | Gauge | Histogram
) -> Sample:
    if isinstance(instrument, Histogram):
        return Sample(description, operator, subtask, instrument.total, tuple(instrument.counts))
    return Sample(description, operator, subtask, instrument.value)


class SubtaskMetrics:
    """The registry as one subtask of an operator sees it."""

    __slots__ = ("_operator", "_registry", "_subtask")

    def __init__(self, registry: Registry, operator: OperatorName, subtask: int) -> None:
        self._registry = registry
        self._operator = operator
        self._subtask = subtask

    def counter(self, name: str, help: str, unit: str = "", *, is_total: bool = False) -> Counter:
        """A number that only grows. With `is_total` it goes on from the restored checkpoint after a restart."""
        description = Description(name, help, Kind.COUNTER, unit, Over.SUM, is_total)
        return self._registry.add(description, self._operator, self._subtask, Counter())

    def gauge(self, name: str, help: str, read: Callable[[], float], unit: str = "", *, over: Over = Over.SUM) -> None:
        """A number that `read` returns. It is called by the mailbox with every heartbeat."""
        self._registry.add(Description(name, help, Kind.GAUGE, unit, over), self._operator, self._subtask, Gauge(read))

    def histogram(self, name: str, help: str) -> Histogram:
        """A distribution of durations in seconds."""
        description = Description(name, help, Kind.HISTOGRAM, "seconds")
        return self._registry.add(description, self._operator, self._subtask, Histogram())
