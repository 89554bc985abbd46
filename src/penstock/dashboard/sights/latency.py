"""Latency from source to operator: quantiles of the markers of the last minute.

Histograms of workers grow from the start of an attempt. The difference of two of them is the distribution in between.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Mapping
from typing import TypeAlias

from penstock.dashboard.views import LatenciesView, LatencyView
from penstock.ids import Generation
from penstock.metrics.instruments import BUCKETS
from penstock.metrics.samples import Sample, added, quantile

WINDOW_MS = 60_000

Pair: TypeAlias = tuple[str, str]
"""Source and operator."""
Distributions: TypeAlias = Mapping[Pair, tuple[int, ...]]


class Latencies:
    """Distributions of the last minute. `note` is called by one thread, the rest by any."""

    def __init__(self) -> None:
        self._noted: deque[tuple[int, Generation | None, Distributions]] = deque()

    def note(self, at_ms: int, generation: Generation | None, samples: Iterable[Sample]) -> Distributions:
        """Take the histograms of now; returns the distributions since they were taken last."""
        now = _by_pair(samples)
        noted = self._noted
        if noted and noted[-1][1] != generation:
            # Histograms begin anew with each attempt.
            noted.clear()
        since = _grown(now, noted[-1][2] if noted else {})
        while len(noted) > 1 and noted[1][0] <= at_ms - WINDOW_MS:
            noted.popleft()
        noted.append((at_ms, generation, now))
        return since

    def view(self, generation: Generation | None, samples: Iterable[Sample]) -> LatenciesView:
        """Latencies of the last minute; in the first minute of an attempt, of all of it."""
        noted = list(self._noted)
        is_same = len(noted) > 1 and noted[0][1] == generation
        grown = _grown(_by_pair(samples), noted[0][2] if is_same else {})
        return LatenciesView(latencies=tuple(_view(pair, buckets) for pair, buckets in sorted(grown.items())))


def quantile_ms(found: Distributions, operators: Collection[str], share: float) -> float | None:
    """The latency to these operators from all sources; None if no marker has come."""
    buckets = [counts for (_, operator), counts in found.items() if operator in operators]
    return _ms(added(buckets), share) if buckets else None


def _by_pair(samples: Iterable[Sample]) -> dict[Pair, tuple[int, ...]]:
    found: dict[Pair, list[tuple[int, ...]]] = {}
    for sample in samples:
        if sample.buckets:
            found.setdefault((sample.source, sample.operator), []).append(sample.buckets)
    return {pair: added(buckets) for pair, buckets in found.items()}


def _grown(now: Distributions, before: Distributions) -> dict[Pair, tuple[int, ...]]:
    empty = (0,) * (len(BUCKETS) + 1)
    return {
        pair: tuple(max(0, a - b) for a, b in zip(counts, before.get(pair, empty), strict=True))
        for pair, counts in now.items()
    }


def _view(pair: Pair, buckets: tuple[int, ...]) -> LatencyView:
    source, operator = pair
    p50, p99, most = (_ms(buckets, share) for share in (0.5, 0.99, 1.0))
    return LatencyView(source=source, operator=operator, count=sum(buckets), p50_ms=p50, p99_ms=p99, max_ms=most)


def _ms(buckets: tuple[int, ...], share: float) -> float | None:
    """The upper bound of a bucket; of the last one, which has none, its lower bound."""
    found = quantile(buckets, share)
    return None if found is None else 1000 * min(found, BUCKETS[-1])
