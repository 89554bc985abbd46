"""Prometheus: names by rule, values of the registry, and dashboards that ask for nothing that is not there."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from penstock.dashboard.app import application
from penstock.dashboard.guard import Guard
from penstock.dashboard.prometheus import FLINK_NAMES, exported_name
from penstock.dashboard.sights.live import LiveSight
from penstock.metrics.metric import counter, gauge, histogram
from tests.unit.dashboard.kit import HOSTILE, TOKEN, Client, counting, running, wait_for
from tests.unit.metrics.test_documents import defined

ROOT = Path(__file__).parents[3]
MONITORING = ROOT / "examples" / "monitoring"

FLINK_WANTED = {
    *("uptime", "numRestarts", "lastCheckpointDuration", "lastCheckpointSize", "lastCheckpointFullSize"),
    *("lastCompletedCheckpointId", "numberOfCompletedCheckpoints", "numberOfFailedCheckpoints"),
    *("numberOfInProgressCheckpoints", "numRecordsIn", "numRecordsOut", "numBytesIn", "numBytesOut"),
    *("busyTimeMsPerSecond", "idleTimeMsPerSecond", "backPressuredTimeMsPerSecond", "isBackPressured"),
    *("checkpointAlignmentTime", "checkpointStartDelayNanos", "buffers_inputQueueLength"),
    *("currentInputWatermark", "currentOutputWatermark", "numLateRecordsDropped"),
}


def scraped(client: Client) -> dict[str, list[Any]]:
    """The samples of one scrape, by the names that Prometheus knows them by."""
    answer = client.get("/metrics")
    assert answer.status_code == 200 and answer.headers["content-type"].startswith("text/plain")
    found: dict[str, list[Any]] = {}
    for family in text_string_to_metric_families(answer.text):
        for sample in family.samples:
            found.setdefault(sample.name, []).append(sample)
    return found


@pytest.fixture(scope="module")
def scrapes() -> Iterator[tuple[dict[str, list[Any]], dict[str, list[Any]], int]]:
    """One pipeline that has ended, scraped under both kinds of names, and the rows that its sink has counted."""
    pipeline, counted = counting("scraped", rows=4_000, windows=True)
    with running(pipeline) as (ran, _, client):
        wait_for(lambda: ran.supervisor.has_ended)
        ran.stop()
        flink = Client(application(LiveSight(ran.watched()), Guard(TOKEN), "flink"))
        yield scraped(client), scraped(flink), counted.rows


@pytest.mark.parametrize(
    ("metric", "name"),
    [
        (counter("num_records_in", "rows", ""), "penstock_records_in"),
        (counter("busy_time_ms", "ms", ""), "penstock_busy_time_seconds"),
        (gauge("state_size", "bytes", ""), "penstock_state_bytes"),
        (counter("num_bytes_in", "bytes", ""), "penstock_bytes_in"),
        (gauge("current_output_watermark", "ms", ""), "penstock_current_output_watermark_seconds"),
        (histogram("slice_time_s", ""), "penstock_slice_time_seconds"),
        (counter("number_of_failed_checkpoints", "", ""), "penstock_failed_checkpoints"),
    ],
)
def test_names_follow_the_convention(metric: Any, name: str) -> None:
    assert exported_name(metric) == name


def test_no_two_metrics_have_one_name() -> None:
    names = [exported_name(metric) for metric in defined().values()]
    assert len(names) == len(set(names))


def test_rows_are_those_that_the_sink_has_counted(scrapes: Any) -> None:
    own, flink, rows = scrapes
    assert sum(each.value for each in own["penstock_records_in_total"] if each.labels["operator"] == "out") == rows
    assert sum(each.value for each in own["penstock_records_in_total"] if each.labels["operator"] == "numbers") == 4_000
    tasks = [each for each in flink["flink_taskmanager_job_task_numRecordsIn"] if each.labels["task_name"] == "numbers"]
    assert sum(each.value for each in tasks) == 4_000
    assert {each.labels["operator"] for each in own["penstock_records_in_total"]} >= {HOSTILE, "numbers", "out"}
    assert {each.labels["pipeline"] for each in own["penstock_records_in_total"]} == {"scraped"}


def test_histograms_add_up_from_bucket_to_bucket(scrapes: Any) -> None:
    own, _, _ = scrapes
    one = [each for each in own["penstock_slice_time_seconds_bucket"] if each.labels["operator"] == "sums"]
    values = [each.value for each in one if each.labels["subtask"] == "0"]
    assert values == sorted(values) and values[-1] > 0
    assert one[-1].labels["le"] == "+Inf"


def test_latencies_have_their_source_as_a_label(scrapes: Any) -> None:
    own, _, _ = scrapes
    found = own["penstock_source_latency_seconds_count"]
    to = {(each.labels["source"], each.labels["operator"]) for each in found}
    assert to == {("numbers", "times"), ("numbers", "windowed"), ("numbers", "out")}
    assert all(each.value > 0 for each in found)


def test_the_names_of_flink_are_exported_if_they_are_wanted(scrapes: Any) -> None:
    _, flink, _ = scrapes
    prefixes = r"flink_(?:jobmanager_job|taskmanager_job_task(?:_operator)?)_"
    found = {re.sub(prefixes, "", name) for name in flink}
    assert found >= FLINK_WANTED, FLINK_WANTED - found
    assert set(FLINK_NAMES) <= set(defined())


def asked_for(text: str) -> set[str]:
    return set(re.findall(r"\bpenstock_[a-z_]+", text))


def test_the_dashboard_and_the_alerts_ask_for_metrics_that_are_exported(scrapes: Any) -> None:
    own, _, _ = scrapes
    dashboard = json.loads((MONITORING / "grafana-dashboard.json").read_text(encoding="utf-8"))
    targets = [target["expr"] for panel in dashboard["panels"] for target in panel.get("targets", ())]
    alerts = (MONITORING / "alerts.yml").read_text(encoding="utf-8")
    assert len(targets) >= 10 and alerts.count("- alert:") == 5
    wanted = asked_for(" ".join(targets)) | asked_for("\n".join(re.findall(r"expr: (.+)", alerts)))
    # A gauge of what this pipeline has not had yet is exported as soon as it has.
    assert wanted <= set(own), wanted - set(own)


def test_the_table_of_the_documents_has_every_exported_name() -> None:
    text = (ROOT / "docs" / "monitoring.md").read_text(encoding="utf-8")
    for metric in defined().values():
        suffix = "_total" if metric.kind.value == "counter" else ""
        assert f"`{exported_name(metric)}{suffix}`" in text, exported_name(metric)
    for own, name in FLINK_NAMES.items():
        assert f"`{name}`" in text, own
