"""Metrics as values: as they travel with heartbeats, and as users see them.

A sample carries the description of its metric, so that nobody but the one who counts has to know it: adding a metric
touches one file.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum

from penstock.ids import OperatorName
from penstock.metrics.instruments import BUCKETS


class Kind(Enum):
    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


class Over(Enum):
    """How the numbers of several subtasks become one."""

    SUM = "sum"
    LEAST = "least"
    GREATEST = "greatest"
    MEAN = "mean"


@dataclass(frozen=True, slots=True)
class Description:
    """What a metric is."""

    name: str
    help: str
    kind: Kind = Kind.COUNTER
    unit: str = ""
    over: Over = Over.SUM
    is_total: bool = False
    """Whether checkpoints hold it: after a restart it goes on from the restored checkpoint."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One metric of one subtask."""

    description: Description
    operator: OperatorName
    subtask: int
    value: float = 0
    buckets: tuple[int, ...] = ()
    """Of a histogram; `value` is the sum of what was observed."""


def combined(samples: Sequence[Sample]) -> float:
    """One number for the samples of one metric, as its description says. Histograms: the sum of what was observed."""
    values = [sample.value for sample in samples]
    match samples[0].description.over:
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
    for bound, count in zip((*BUCKETS, float("inf")), buckets, strict=True):
        seen += count
        if seen >= rank:
            return bound
    return None
