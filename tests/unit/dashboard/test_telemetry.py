"""OpenTelemetry: a real receiver gets every metric by its name for Prometheus, and one that is down harms nobody."""

from __future__ import annotations

import gzip
import http.server
import logging
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest

from penstock.dashboard import telemetry
from penstock.dashboard.prometheus import exported_name
from penstock.dashboard.telemetry import Exporting, check_endpoint, export_metrics
from penstock.errors import OptionError
from penstock.metrics.instruments import BUCKETS
from penstock.metrics.metric import counter, gauge, histogram
from penstock.metrics.registry import Registry
from penstock.metrics.samples import Metrics
from penstock.metrics.standard import RECORDS_IN, latency_from
from tests.unit.dashboard.kit import Running, counting, wait_for

NOW_MS = 1_700_000_060_000


class Receiver:
    """A collector: decodes what it is sent."""

    def __init__(self) -> None:
        self.requests: list[ExportMetricsServiceRequest] = []
        self.paths: list[str] = []
        self.status = 200
        receiver = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                if self.headers.get("Content-Encoding") == "gzip":
                    body = gzip.decompress(body)
                receiver.paths.append(self.path)
                if receiver.status == 200:
                    receiver.requests.append(ExportMetricsServiceRequest.FromString(body))
                self.send_response(receiver.status)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *arguments: object) -> None:
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.address = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def metrics(self) -> dict[str, Any]:
        [resource] = self.requests[-1].resource_metrics
        [scope] = resource.scope_metrics
        assert scope.scope.name == "penstock"
        return {each.name: each for each in scope.metrics}


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    made = Receiver()
    yield made
    made.server.shutdown()
    made.server.server_close()


def exporting(read: Any, endpoint: str | None, interval_s: float = 0.01) -> Exporting:
    return Exporting(
        "orders", read, endpoint=endpoint, interval_s=interval_s, started_ms=NOW_MS - 60_000, now_ms=lambda: NOW_MS
    ).start()


def sampled() -> Metrics:
    registry = Registry()
    metrics = registry.of("out", 1)  # type: ignore[arg-type]
    metrics.counter(RECORDS_IN).add(42)
    metrics.counter(counter("busy_time_ms", "ms", "busy")).add(1_500)
    metrics.observe(gauge("state_size", "bytes", "state"), lambda: 7)
    latency = metrics.histogram(latency_from("read"))
    for seconds in (0.002, 0.003, 1_000.0):
        latency.observe(seconds)
    metrics.histogram(histogram("slice_time_s", "slices"))
    return Metrics(registry.samples())


def attributes(point: Any) -> dict[str, Any]:
    return {each.key: each.value.string_value or each.value.int_value for each in point.attributes}


def test_counters_gauges_and_histograms_arrive_with_their_units_and_attributes(receiver: Receiver) -> None:
    exporting(sampled, receiver.address, 60.0).close()
    wait_for(lambda: receiver.requests)
    found = receiver.metrics()
    assert receiver.paths == ["/v1/metrics"]
    [rows] = found["penstock_records_in"].sum.data_points
    assert found["penstock_records_in"].sum.is_monotonic and rows.as_int == 42
    assert attributes(rows) == {"pipeline": "orders", "operator": "out", "subtask": 1}
    assert (rows.start_time_unix_nano, rows.time_unix_nano) == (1_000_000 * (NOW_MS - 60_000), 1_000_000 * NOW_MS)
    busy = found["penstock_busy_time_seconds"]
    assert (busy.unit, busy.sum.data_points[0].as_double) == ("s", 1.5)
    assert (found["penstock_state_bytes"].unit, found["penstock_state_bytes"].gauge.data_points[0].as_int) == ("By", 7)
    [latency] = found["penstock_source_latency_seconds"].histogram.data_points
    assert attributes(latency)["source"] == "read"
    assert (latency.count, list(latency.explicit_bounds)) == (3, list(BUCKETS))
    assert latency.sum == pytest.approx(1000.005)
    assert latency.bucket_counts[-1] == 1 and sum(latency.bucket_counts) == 3
    assert not latency.HasField("min") and not latency.HasField("max")
    [resource] = receiver.requests[-1].resource_metrics
    named = {each.key: each.value.string_value for each in resource.resource.attributes}
    assert named["service.name"] == "orders"


def test_every_metric_of_a_pipeline_is_exported_under_its_name_for_prometheus(receiver: Receiver) -> None:
    pipeline, counted = counting("told", rows=2_000)
    ran = Running(pipeline).start()
    wait_for(lambda: ran.supervisor.has_ended)
    ran.stop()

    class Job:
        name = "told"
        closing: list[Any] = []  # noqa: RUF012

        def _watched(self) -> Any:
            return ran.watched()

        def _attach(self, close: Any) -> None:
            self.closing.append(close)

    job: Any = Job()
    environment = {"OTEL_METRIC_EXPORT_INTERVAL": "100"}
    assert export_metrics(job, receiver.address, environment) is not None
    wait_for(lambda: receiver.requests)
    job.closing[0]()
    found = receiver.metrics()
    metrics = ran.supervisor.observations.metrics.sample()
    assert set(found) >= {exported_name(each.metric) for each in metrics}
    out = [each for each in found["penstock_records_in"].sum.data_points if attributes(each)["operator"] == "out"]
    assert sum(each.as_int for each in out) == counted.rows
    assert attributes(found["penstock_restarts"].sum.data_points[0]) == {"pipeline": "told"}


def test_a_collector_that_is_down_is_one_warning_and_gets_the_metrics_once_it_is_back(
    receiver: Receiver, caplog: pytest.LogCaptureFixture
) -> None:
    receiver.status = 400
    with caplog.at_level(logging.INFO):
        running = exporting(sampled, receiver.address)
        wait_for(lambda: len(receiver.paths) >= 4)
        receiver.status = 200
        wait_for(lambda: receiver.requests)
        running.close()
    warnings = [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert [record.name for record in warnings] == ["penstock"]
    assert receiver.address in warnings[0].getMessage() and "the pipeline continues" in warnings[0].getMessage()


def test_a_collector_that_hangs_holds_up_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(telemetry, "_CLOSE_S", 0.05)
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "60")
    came, go_on = threading.Event(), threading.Event()

    class Hanging(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            came.set()
            go_on.wait(60)

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Hanging)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    running = exporting(sampled, f"http://127.0.0.1:{server.server_port}")
    assert came.wait(60)
    began = time.monotonic()
    running.close()
    assert running._thread.is_alive(), f"closed after {time.monotonic() - began} s, and left the thread behind"
    go_on.set()
    server.shutdown()
    server.server_close()


class Named:
    name = "orders"


@pytest.mark.parametrize(
    "environment",
    [
        {},
        {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://localhost:1", "OTEL_SDK_DISABLED": "true"},
        {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://localhost:1", "OTEL_METRICS_EXPORTER": "none"},
    ],
)
def test_without_an_endpoint_nothing_is_exported(environment: dict[str, str]) -> None:
    assert export_metrics(Named(), None, environment) is None  # type: ignore[arg-type]


def test_the_variables_of_opentelemetry_name_the_collector_and_its_headers(
    receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", receiver.address)
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_COMPRESSION", "gzip")
    monkeypatch.setenv("OTEL_SERVICE_NAME", "shop")
    exporting(sampled, None, 60.0).close()
    wait_for(lambda: receiver.requests)
    [resource] = receiver.requests[-1].resource_metrics
    assert {each.key: each.value.string_value for each in resource.resource.attributes}["service.name"] == "shop"


@pytest.mark.parametrize("endpoint", ["collector:4318", "ftp://a", "http://", 4318, ""])
def test_an_endpoint_that_is_no_address_is_an_error(endpoint: object) -> None:
    with pytest.raises(OptionError, match="otel_endpoint"):
        check_endpoint(endpoint)


def test_an_endpoint_without_the_package_names_the_cure(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(telemetry, "_PACKAGE", "no_such_package.exporter")
    with pytest.raises(OptionError, match=r"pip install 'penstock\[otel\]'"):
        check_endpoint("http://localhost:4318")
    with caplog.at_level(logging.INFO, "penstock"):
        assert export_metrics(Named(), None, {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://a"}) is None  # type: ignore[arg-type]
    assert "penstock[otel]" in caplog.text
