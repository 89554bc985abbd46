"""Export of metrics to an OpenTelemetry collector by OTLP over HTTP, with the names that Prometheus sees.

A thread of the driver sends all metrics periodically; the mailbox has no part in it. The variables of OpenTelemetry
hold: OTEL_EXPORTER_OTLP_ENDPOINT and its like, OTEL_METRIC_EXPORT_INTERVAL, OTEL_SERVICE_NAME,
OTEL_RESOURCE_ATTRIBUTES, OTEL_METRICS_EXPORTER, OTEL_SDK_DISABLED. Whatever goes wrong is one warning, and the next
export tries again.
"""

from __future__ import annotations

import importlib.util
import logging
import os
import threading
import urllib.parse
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from penstock.dashboard.prometheus import SCALES, UNITS, exported_name
from penstock.driver.observation.job_metrics import job_samples
from penstock.errors import OptionError
from penstock.metrics.instruments import BUCKETS
from penstock.metrics.metric import Kind
from penstock.metrics.samples import Metrics, Sample
from penstock.version import __version__

if TYPE_CHECKING:
    from opentelemetry.sdk.metrics.export import MetricsData

    from penstock.spark.job import Job

_log = logging.getLogger("penstock")

INTERVAL_S = 60.0
_ENDPOINTS = ("OTEL_EXPORTER_OTLP_METRICS_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
_PACKAGE = "opentelemetry.exporter.otlp.proto.http.metric_exporter"
_INSTALL = "pip install 'penstock[otel]'"
_CLOSE_S = 2.0
_UNITS = {"seconds": "s", "bytes": "By"}


def check_endpoint(endpoint: object) -> None:
    """Raise `OptionError` for an endpoint that cannot be meant, or without the package."""
    if endpoint is None:
        return
    parts = urllib.parse.urlsplit(endpoint) if isinstance(endpoint, str) else None
    if parts is None or parts.scheme not in ("http", "https") or not parts.netloc:
        raise OptionError(
            f"otel_endpoint is {endpoint!r}: it must be the address of a collector, such as 'http://localhost:4318', "
            f"or None for that of OTEL_EXPORTER_OTLP_ENDPOINT"
        )
    if not is_installed():
        raise OptionError(f"otel_endpoint needs the packages of OpenTelemetry: {_INSTALL}")


def is_installed() -> bool:
    try:
        return importlib.util.find_spec(_PACKAGE) is not None
    except ModuleNotFoundError:
        return False


def export_metrics(job: Job, endpoint: str | None, environment: Mapping[str, str] = os.environ) -> Exporting | None:
    """Begin to export the metrics of a job, which ends with it; None if there is no endpoint. Never raises."""
    is_off = environment.get("OTEL_SDK_DISABLED", "").lower() == "true"
    if endpoint is None:
        is_off = is_off or environment.get("OTEL_METRICS_EXPORTER", "otlp") != "otlp"
        if is_off or not any(environment.get(name) for name in _ENDPOINTS):
            return None
    if not is_installed():
        _log.info("metrics of pipeline %s are not exported to OpenTelemetry: %s", job.name, _INSTALL)
        return None
    try:
        watched = job._watched()
        supervisor = watched.supervisor
        exporting = Exporting(
            job.name,
            lambda: supervisor.observations.metrics.sample(job_samples(supervisor)),
            endpoint=endpoint,
            interval_s=_interval_s(environment),
            started_ms=watched.clock.wall_ms(),
            now_ms=watched.clock.wall_ms,
        ).start()
    except Exception as error:
        _log.warning("metrics of pipeline %s are not exported to OpenTelemetry: %s", job.name, error)
        return None
    job._attach(exporting.close)
    return exporting


def _interval_s(environment: Mapping[str, str]) -> float:
    text = environment.get("OTEL_METRIC_EXPORT_INTERVAL", "")
    try:
        return max(0.1, float(text) / 1000) if text else INTERVAL_S
    except ValueError:
        _log.warning("OTEL_METRIC_EXPORT_INTERVAL is %r: it must be a number of milliseconds", text)
        return INTERVAL_S


class Exporting:
    """The thread that exports the metrics of one pipeline. `read` returns all of them."""

    def __init__(
        self,
        pipeline: str,
        read: Callable[[], Metrics],
        *,
        endpoint: str | None,
        interval_s: float,
        started_ms: int,
        now_ms: Callable[[], int],
    ) -> None:
        from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter

        self._pipeline = pipeline
        self._read = read
        self._interval_s = interval_s
        self._started_ms = started_ms
        self._now_ms = now_ms
        self._exporter = OTLPMetricExporter(endpoint=None if endpoint is None else _with_path(endpoint))
        self._is_over = threading.Event()
        self._has_failed = False
        self._thread = threading.Thread(target=self._run, name=f"penstock-otel-{pipeline}", daemon=True)

    def start(self) -> Exporting:
        self._thread.start()
        return self

    def close(self) -> None:
        """Export once more, if the collector answers in time."""
        self._is_over.set()
        self._thread.join(_CLOSE_S)

    def _run(self) -> None:
        # The exporter logs every failure itself. We say it once.
        quiet = _NotFrom(threading.get_ident())
        own = logging.getLogger(_PACKAGE)
        own.addFilter(quiet)
        try:
            while not self._is_over.wait(self._interval_s):
                self._export()
            self._export()
        finally:
            own.removeFilter(quiet)
            self._exporter.shutdown()

    def _export(self) -> None:
        from opentelemetry.sdk.metrics.export import MetricExportResult

        reason = "the collector does not take them"
        try:
            data = metrics_data(self._pipeline, self._read(), self._started_ms, self._now_ms())
            is_done = self._exporter.export(data) is MetricExportResult.SUCCESS
        except Exception as error:
            is_done, reason = False, repr(error)
        if is_done:
            if self._has_failed:
                _log.info("metrics of pipeline %s are exported to OpenTelemetry again", self._pipeline)
            self._has_failed = False
        elif not self._has_failed:
            self._has_failed = True
            _log.warning(
                "pipeline %s: its metrics cannot be exported to %s: %s. The export is tried again "
                "every %g s, without another warning; the pipeline continues",
                self._pipeline,
                self._exporter._endpoint,
                reason,
                self._interval_s,
            )


class _NotFrom(logging.Filter):
    """Lets everything pass but the records of one thread."""

    def __init__(self, thread: int) -> None:
        super().__init__()
        self._thread = thread

    def filter(self, record: logging.LogRecord) -> bool:
        return record.thread != self._thread


def _with_path(endpoint: str) -> str:
    """The path that OTLP has for metrics, if the address names none."""
    parts = urllib.parse.urlsplit(endpoint)
    return endpoint if parts.path.strip("/") else f"{endpoint.rstrip('/')}/v1/metrics"


def metrics_data(pipeline: str, metrics: Metrics, started_ms: int, now_ms: int) -> MetricsData:
    """All metrics of one moment, as values of OpenTelemetry's SDK."""
    from opentelemetry.sdk.metrics.export import Metric, MetricsData, ResourceMetrics, ScopeMetrics
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.util.instrumentation import InstrumentationScope

    by_name: dict[str, list[Sample]] = {}
    for sample in metrics:
        by_name.setdefault(sample.name, []).append(sample)
    found = []
    for samples in by_name.values():
        metric = samples[0].metric
        unit = _UNITS.get(UNITS.get(metric.unit, ""), "")
        data = _data(pipeline, samples, 1_000_000 * started_ms, 1_000_000 * now_ms)
        found.append(Metric(exported_name(metric), metric.help, unit, data))
    named = {} if "OTEL_SERVICE_NAME" in os.environ else {"service.name": pipeline}
    resource = Resource.create(named)
    scope = ScopeMetrics(InstrumentationScope("penstock", __version__), found, "")
    return MetricsData([ResourceMetrics(resource, [scope], "")])


def _data(pipeline: str, samples: list[Sample], started_ns: int, now_ns: int) -> Any:
    from opentelemetry.sdk.metrics.export import (
        AggregationTemporality,
        Gauge,
        Histogram,
        HistogramDataPoint,
        NumberDataPoint,
        Sum,
    )

    metric = samples[0].metric
    cumulative = AggregationTemporality.CUMULATIVE
    if metric.kind is Kind.HISTOGRAM:
        # None: the least and the greatest observation are not known.
        unknown: Any = None
        return Histogram(
            [
                HistogramDataPoint(
                    _attributes(pipeline, each),
                    started_ns,
                    now_ns,
                    each.count,
                    each.value,
                    each.buckets,
                    BUCKETS,
                    unknown,
                    unknown,
                )
                for each in samples
            ],
            cumulative,
        )
    scale = SCALES.get(metric.unit, 1)
    points = [NumberDataPoint(_attributes(pipeline, each), started_ns, now_ns, each.value * scale) for each in samples]
    return Sum(points, cumulative, is_monotonic=True) if metric.kind is Kind.COUNTER else Gauge(points)


def _attributes(pipeline: str, sample: Sample) -> dict[str, str | int]:
    found: dict[str, str | int] = {"pipeline": pipeline}
    if sample.operator:
        found |= {"operator": sample.operator, "subtask": sample.subtask}
    return {**found, "source": sample.source} if sample.source else found
