"""Metrics for Prometheus: the registry's own, under names in its convention, or under those of Flink's dashboards.

A name is derived by rule, so that a metric that is added anywhere is exported: `num_` goes, units are seconds and bytes
and come last, counters end in `_total`. The metrics of the whole pipeline have the label `pipeline` alone, and
latencies the label `source` besides.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Literal, TypeAlias

from penstock.dashboard.sights.readings import BACK_PRESSURED, BUSY, IDLE
from penstock.dashboard.views import CheckpointCounts, GraphView, Overview, WatermarksView
from penstock.metrics.instruments import BUCKETS
from penstock.metrics.metric import Kind, Metric
from penstock.metrics.samples import Metrics, Sample

if TYPE_CHECKING:
    from prometheus_client.core import Metric as Family

MetricsNames: TypeAlias = Literal["penstock", "flink"]

SCALES = {"ms": 0.001}
UNITS = {"ms": "seconds", "s": "seconds", "bytes": "bytes"}


def exported_name(metric: Metric) -> str:
    """The name of a metric, without the `_total` that Prometheus adds to counters."""
    name = metric.name.partition("[")[0].removeprefix("num_").removeprefix("number_of_")
    name = name.removesuffix("_ms").removesuffix("_s")
    unit = UNITS.get(metric.unit)
    if unit == "bytes":
        name = name.removesuffix("_size")
    return f"penstock_{name}" if unit is None or unit in name.split("_") else f"penstock_{name}_{unit}"


def families(
    pipeline: str,
    metrics: Metrics,
    overview: Overview,
    watermarks: WatermarksView,
    counts: CheckpointCounts,
    graph: GraphView,
    names: MetricsNames = "penstock",
) -> Iterator[Family]:
    """All families of one scrape."""
    if names == "flink":
        yield from _flink(pipeline, metrics, overview, counts, graph)
        return
    by_name: dict[str, list[Sample]] = {}
    for sample in metrics:
        by_name.setdefault(sample.name, []).append(sample)
    for found in by_name.values():
        yield _family(pipeline, found)
    yield from _of_pipeline(pipeline, overview, watermarks, counts)


def _family(pipeline: str, samples: list[Sample]) -> Family:
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

    metric = samples[0].metric
    scale = SCALES.get(metric.unit, 1)
    is_whole = not samples[0].operator
    labels = ["pipeline"] if is_whole else ["pipeline", "operator", "subtask"]
    if samples[0].source:
        labels.append("source")
    name = exported_name(metric)
    if metric.kind is Kind.HISTOGRAM:
        histogram = HistogramMetricFamily(name, metric.help, labels=labels)
        for sample in samples:
            histogram.add_metric(_labels(pipeline, sample, is_whole), _buckets(sample.buckets), sum_value=sample.value)
        return histogram
    family: CounterMetricFamily | GaugeMetricFamily
    kind = CounterMetricFamily if metric.kind is Kind.COUNTER else GaugeMetricFamily
    family = kind(name, metric.help, labels=labels)
    for sample in samples:
        family.add_metric(_labels(pipeline, sample, is_whole), sample.value * scale)
    return family


def _labels(pipeline: str, sample: Sample, is_whole: bool) -> list[str]:
    if is_whole:
        return [pipeline]
    place = [pipeline, sample.operator, str(sample.subtask)]
    return [*place, sample.source] if sample.source else place


def _buckets(counts: Iterable[int]) -> list[tuple[str, float]]:
    """Prometheus adds up from bucket to bucket."""
    found, seen = [], 0
    for bound, count in zip((*map(str, BUCKETS), "+Inf"), counts, strict=True):
        seen += count
        found.append((bound, float(seen)))
    return found


def _of_pipeline(
    pipeline: str, overview: Overview, watermarks: WatermarksView, counts: CheckpointCounts
) -> Iterator[Family]:
    """Metrics that the registry does not have, because they are made of several."""
    from prometheus_client.core import GaugeMetricFamily, InfoMetricFamily

    def gauge(name: str, text: str, value: float | None) -> Iterator[Family]:
        if value is not None:
            family = GaugeMetricFamily(f"penstock_{name}", text, labels=["pipeline"])
            family.add_metric([pipeline], value)
            yield family

    info = InfoMetricFamily("penstock_pipeline", "versions and phase of the pipeline", labels=["pipeline"])
    info.add_metric([pipeline], {"phase": overview.phase, "version": overview.versions.penstock})
    yield info
    yield from gauge("running", "1 while the pipeline runs, else 0", float(overview.phase == "running"))
    interval_ms, last_ms, started_ms = (
        overview.checkpoint_interval_ms,
        overview.last_checkpoint_at_ms,
        overview.started_at_ms,
    )
    yield from gauge("checkpoint_interval_seconds", "interval of checkpoints", _seconds(interval_ms))
    yield from gauge("start_time_seconds", "start of the pipeline, in seconds since 1970", _seconds(started_ms))
    yield from gauge(
        "last_checkpoint_time_seconds",
        "completion of the newest checkpoint, in seconds since 1970; before the first, the start of the pipeline",
        _seconds(last_ms if last_ms is not None else started_ms),
    )
    yield from gauge("checkpoints_in_progress", "checkpoints that have no outcome yet", float(counts.in_progress))
    lag = GaugeMetricFamily(
        "penstock_watermark_lag_seconds", "distance of the watermark from the clock", labels=["pipeline", "operator"]
    )
    for each in watermarks.operators:
        if each.lag_ms is not None:
            lag.add_metric([pipeline, each.operator], each.lag_ms / 1000)
    yield lag


def _seconds(ms: int | None) -> float | None:
    return None if ms is None else ms / 1000


# --- the names of Flink ---

_JOB = {
    "num_restarts": "numRestarts",
    "last_checkpoint_duration_ms": "lastCheckpointDuration",
    "last_checkpoint_size": "lastCheckpointSize",
    "last_completed_checkpoint_id": "lastCompletedCheckpointId",
    "number_of_completed_checkpoints": "numberOfCompletedCheckpoints",
    "number_of_failed_checkpoints": "numberOfFailedCheckpoints",
}
_TASK = {
    "num_bytes_in": "numBytesIn",
    "num_bytes_out": "numBytesOut",
    "is_back_pressured": "isBackPressured",
    "checkpoint_alignment_time_ms": "checkpointAlignmentTime",
    "checkpoint_start_delay_ms": "checkpointStartDelayNanos",
    "input_queue_size": "buffers_inputQueueLength",
}
_OPERATOR = {
    "num_records_in": "numRecordsIn",
    "num_records_out": "numRecordsOut",
    "current_input_watermark": "currentInputWatermark",
    "current_output_watermark": "currentOutputWatermark",
    "num_late_records_dropped": "numLateRecordsDropped",
    "source_backlog_rows": "pendingRecords",
    "source_backlog_bytes": "pendingBytes",
}
_FACTORS = {"checkpointAlignmentTime": 1_000_000, "checkpointStartDelayNanos": 1_000_000}
"""Flink has both in nanoseconds."""
_SHARES = {BUSY: "busyTimeMsPerSecond", IDLE: "idleTimeMsPerSecond", BACK_PRESSURED: "backPressuredTimeMsPerSecond"}

FLINK_NAMES: Mapping[str, str] = {
    **{own: f"flink_jobmanager_job_{name}" for own, name in _JOB.items()},
    **{own: f"flink_taskmanager_job_task_{name}" for own, name in {**_TASK, **_SHARES}.items()},
    **{own: f"flink_taskmanager_job_task_operator_{name}" for own, name in _OPERATOR.items()},
}
"""By our names; records are exported for tasks too."""


def _flink(
    pipeline: str, metrics: Metrics, overview: Overview, counts: CheckpointCounts, graph: GraphView
) -> Iterator[Family]:
    from prometheus_client.core import GaugeMetricFamily

    def job(name: str, value: float | None) -> Iterator[Family]:
        if value is not None:
            family = GaugeMetricFamily(f"flink_jobmanager_job_{name}", name, labels=["job_name"])
            family.add_metric([pipeline], value)
            yield family

    for own, name in _JOB.items():
        yield from job(name, metrics.value(own))
    yield from job("lastCheckpointFullSize", metrics.value("last_checkpoint_size"))
    yield from job("numberOfInProgressCheckpoints", float(counts.in_progress))
    if overview.started_at_ms is not None:
        until_ms = overview.ended_at_ms or time.time_ns() // 1_000_000
        yield from job("uptime", float(until_ms - overview.started_at_ms))
    heads = {vertex.id: vertex for vertex in graph.vertices}
    last = {vertex.operators[-1].name: vertex.id for vertex in graph.vertices}
    labels = ["job_name", "task_name", "subtask_index"]
    for own, name in _TASK.items():
        family = GaugeMetricFamily(f"flink_taskmanager_job_task_{name}", name, labels=labels)
        for sample in metrics.of(own):
            task = [pipeline, sample.operator, str(sample.subtask)]
            family.add_metric(task, sample.value * _FACTORS.get(name, 1))
        yield family
    for own, field in (("num_records_in", "numRecordsIn"), ("num_records_out", "numRecordsOut")):
        family = GaugeMetricFamily(f"flink_taskmanager_job_task_{field}", field, labels=labels)
        for sample in metrics.of(own):
            vertex = sample.operator if own.endswith("in") else last.get(sample.operator)
            if vertex in heads:
                family.add_metric([pipeline, str(vertex), str(sample.subtask)], sample.value)
        yield family
    for share, name in (("busy", _SHARES[BUSY]), ("idle", _SHARES[IDLE]), ("backpressured", _SHARES[BACK_PRESSURED])):
        family = GaugeMetricFamily(f"flink_taskmanager_job_task_{name}", name, labels=["job_name", "task_name"])
        for each in graph.vertices:
            value = getattr(each, share)
            if value is not None:
                family.add_metric([pipeline, each.id], 1000 * value)
        yield family
    for own, name in _OPERATOR.items():
        family = GaugeMetricFamily(
            f"flink_taskmanager_job_task_operator_{name}", name, labels=["job_name", "operator_name", "subtask_index"]
        )
        for sample in metrics.of(own):
            family.add_metric([pipeline, sample.operator, str(sample.subtask)], sample.value)
        yield family
