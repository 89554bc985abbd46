"""Latency markers: emitted by each subtask of a source, measured by every subtask that they reach.

A marker has the time at which its source began to read, and takes its place behind the records of that read. So it
waits where they wait: in queues, for credit, behind a barrier. It is no part of a checkpoint, and a restart drops it.
It does not wait where an operator keeps records, in a window or a pending asynchronous call.

The trap: the time is that of the wall clock. Between hosts, latency is as exact as their clocks agree.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from penstock.metrics.instruments import Histogram
from penstock.metrics.registry import SubtaskMetrics
from penstock.metrics.standard import latency_from
from penstock.worker.services import Services

_log = logging.getLogger("penstock")

_CLOCKS_APART_MS = 100
"""A marker from further in the future than this is reported, once in each subtask."""


class LatencyMarkers:
    """The markers of one subtask. `send` hands one to its outputs; `metrics` are those of its last operator."""

    __slots__ = ("_began_ms", "_due_ms", "_has_warned", "_measured", "_metrics", "_send", "_services")

    def __init__(self, services: Services, metrics: SubtaskMetrics, send: Callable[[str, int], None]) -> None:
        self._services = services
        self._metrics = metrics
        self._send = send
        self._measured: dict[str, Histogram] = {}
        self._due_ms = services.clock.now_ms()
        self._began_ms: int | None = None
        """When the read began that the next marker belongs to; None if none is due."""
        self._has_warned = False

    def begin(self) -> None:
        """A source is about to read."""
        clock, interval_ms = self._services.clock, self._services.settings.latency_interval_ms
        if interval_ms and clock.now_ms() >= self._due_ms:
            self._due_ms = clock.now_ms() + interval_ms
            self._began_ms = clock.wall_ms()

    def emit(self, source: str) -> None:
        """The records that were read are on their way: the marker follows them, if one is due."""
        if self._began_ms is not None:
            began_ms, self._began_ms = self._began_ms, None
            self.arrived(source, began_ms)

    def arrived(self, source: str, emitted_ms: int) -> None:
        """Everything in front of the marker has been processed: measure, and pass it on."""
        if source not in self._measured:
            self._measured[source] = self._metrics.histogram(latency_from(source))
        took_ms = self._services.clock.wall_ms() - emitted_ms
        if took_ms < -_CLOCKS_APART_MS and not self._has_warned:
            self._has_warned = True
            _log.warning(
                "latency from source '%s' cannot be measured: by the clock of this worker its marker "
                "arrived %d ms before it was emitted. Synchronise the clocks of the hosts (NTP)",
                source,
                -took_ms,
            )
        self._measured[source].observe(max(0, took_ms) / 1000)
        self._send(source, emitted_ms)
