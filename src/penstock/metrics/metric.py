"""Definitions of metrics: values, which travel together with the numbers that they describe."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Kind(Enum):
    """How a metric is read."""

    COUNTER = "counter"
    """A number that only grows."""
    GAUGE = "gauge"
    """A number of this moment."""
    HISTOGRAM = "histogram"
    """A distribution."""


class Over(Enum):
    """How the numbers of several subtasks become one."""

    SUM = "sum"
    LEAST = "least"
    GREATEST = "greatest"
    MEAN = "mean"


@dataclass(frozen=True, slots=True)
class Metric:
    """The definition of a metric. Two metrics of one name are the same metric."""

    name: str
    kind: Kind
    unit: str
    """`rows`, `bytes`, `ms` or the like; empty for a plain number."""
    help: str
    over: Over = Over.SUM
    is_total: bool = False
    """Whether checkpoints hold it: after a restart it goes on from the count of the restored checkpoint."""


def counter(name: str, unit: str, help: str, *, is_total: bool = False) -> Metric:
    """A number that only grows: from the start of the worker, or with `is_total` over all restarts."""
    return Metric(name, Kind.COUNTER, unit, help, is_total=is_total)


def gauge(name: str, unit: str, help: str, over: Over = Over.SUM) -> Metric:
    """A number of this moment."""
    return Metric(name, Kind.GAUGE, unit, help, over)


def histogram(name: str, help: str) -> Metric:
    """A distribution of durations in seconds."""
    return Metric(name, Kind.HISTOGRAM, "s", help)
