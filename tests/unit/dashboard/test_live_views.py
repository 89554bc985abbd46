"""The REST interface of a pipeline that runs: its figures are the truth, and agree with each other."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
import pyarrow as pa
import pytest

from penstock.columnar.hashing import key_groups
from penstock.dashboard import views
from penstock.dashboard.sights.live import LiveSight
from penstock.dashboard.sights.series import NAMES
from tests.unit.dashboard.kit import HOSTILE, Client, CountedRows, Running, counting, running, wait_for

Live = tuple[Running, LiveSight, Client, CountedRows]


@pytest.fixture(scope="module")
def live() -> Iterator[Live]:
    """One pipeline for all tests of this module, with two checkpoints behind it."""
    pipeline, counted = counting(bad_row=300)
    with running(pipeline) as (ran, sight, client):
        wait_for(lambda: ran.supervisor.restarts == 1 and ran.supervisor.observations.completed >= 2)
        wait_for(lambda: sight.overview().rows_in_per_second)
        yield ran, sight, client, counted


def get(live: Live, path: str, kind: type[Any], status: int = 200) -> Any:
    answer = live[2].get(f"/api/v1/{path}")
    assert answer.status_code == status, answer.text
    return msgspec.json.decode(answer.content, type=kind, strict=True)


def test_the_overview_says_what_runs_and_how_fast(live: Live) -> None:
    found = get(live, "overview", views.Overview)
    assert (found.pipeline, found.phase, found.is_live, found.restarts) == ("counting", "running", True, 1)
    assert found.rows_in > 300 and found.rows_in_per_second > 0 and found.rows_out_per_second > 0
    assert found.last_checkpoint is not None and found.last_checkpoint_at_ms > found.started_at_ms
    assert found.versions.pyarrow and found.failure is None and not found.orders_allowed


def test_the_graph_has_every_chain_and_exchange_with_shares_that_add_up(live: Live) -> None:
    found = get(live, "graph", views.GraphView)
    assert [[each.name for each in vertex.operators] for vertex in found.vertices] == [
        ["numbers", HOSTILE, "times"],
        ["sums", "out"],
    ]
    [edge] = found.edges
    assert (edge.upstream, edge.downstream, edge.exchange, edge.can_be_overtaken) == ("numbers", "sums", "hash", True)
    for vertex in found.vertices:
        assert vertex.busy + vertex.idle + vertex.backpressured == pytest.approx(1, abs=0.01)
        assert vertex.queue_bytes is not None and vertex.parallelism == 2
    assert all(vertex.watermark_ms > 1_700_000_000_000 - 2_000 for vertex in found.vertices)
    assert found.vertices[1].state_bytes > 0 and found.vertices[1].skew >= 1
    raw = live[2].get("/api/v1/graph").json()["edges"][0]
    assert raw["from"] == "numbers" and raw["to"] == "sums"


def test_latencies_are_those_of_the_last_minute_from_each_source_to_each_chain(live: Live) -> None:
    wait_for(lambda: len(get(live, "latency", views.LatenciesView).latencies) == 2)
    found = {each.operator: each for each in get(live, "latency", views.LatenciesView).latencies}
    assert set(found) == {"times", "out"} and {each.source for each in found.values()} == {"numbers"}
    out = found["out"]
    assert out.count > 0 and 0 < out.p50_ms <= out.p99_ms <= out.max_ms
    live[1].sample()
    series = get(live, "history", views.HistoryView).series
    assert series["latency_p50_ms"] and series["latency_p99_ms"][-1][1] > 0


def test_a_vertex_has_its_subtasks_and_they_add_up_to_it(live: Live) -> None:
    found = get(live, "vertices/sums", views.VertexDetail)
    assert [each.index for each in found.subtasks] == [0, 1]
    assert sum(each.rows_in for each in found.subtasks) == found.rows_in
    assert get(live, "vertices/nothing", views.ErrorView, 404).cure


def test_checkpoints_are_told_newest_first_with_their_phases(live: Live) -> None:
    found = get(live, "checkpoints", views.CheckpointsView)
    done = [each for each in found.history if each.status == "completed"]
    assert [each.id for each in found.history] == sorted((each.id for each in found.history), reverse=True)
    assert found.counts.completed >= len(done) >= 2 and found.counts.restored >= 0
    newest = done[-1]
    assert newest.num_subtasks == newest.num_acknowledged_subtasks == 4 and newest.checkpointed_size > 0
    phases = newest.phases
    assert None not in (phases.alignment, phases.sync, phases.asynchronous, phases.manifest)
    detail = get(live, f"checkpoints/{newest.id}", views.CheckpointDetail)
    assert {(each.operator, each.subtask) for each in detail.subtasks} == {
        (chain, index) for chain in ("numbers", "sums") for index in (0, 1)
    }
    assert sum(each.state_bytes + each.inflight_bytes for each in detail.subtasks) == detail.checkpointed_size
    assert get(live, "checkpoints/999999", views.ErrorView, 404).cure


def test_checkpoints_come_in_pages(live: Live) -> None:
    first = get(live, "checkpoints?limit=1", views.CheckpointsView)
    assert len(first.history) == 1 and first.has_more
    rest = get(live, f"checkpoints?limit=1000&before={first.history[0].id}", views.CheckpointsView)
    assert not rest.has_more and all(each.id < first.history[0].id for each in rest.history)


def test_watermarks_name_the_split_that_holds_them_back(live: Live) -> None:
    found = {each.operator: each for each in get(live, "watermarks", views.WatermarksView).operators}
    assert found.keys() == {"numbers", HOSTILE, "times", "sums", "out"}
    assert len(found["numbers"].splits) == 2 and all(not each.is_idle for each in found["numbers"].splits)
    assert found["sums"].held_by.startswith("source 'numbers', split ")
    assert found["sums"].lag_ms > 0 and len(found["sums"].subtasks) == 2


def test_the_state_of_the_last_checkpoint_can_be_read(live: Live) -> None:
    [sums] = [each for each in get(live, "state", views.StateView).operators if each.operator == "sums"]
    assert sums.rows == 7 and sums.state_bytes > 0 and 0.5 <= sums.largest_subtask_share <= 1
    used = len(set(key_groups(pa.record_batch({"key": range(7)}), ("key",), sums.key_groups).tolist()))
    assert sums.key_groups_used == used > 1
    rows = get(live, "state/sums?limit=3", views.StateRows)
    assert len(rows.rows) == 3 and rows.truncated and "key.key" in rows.columns
    assert {each.key for each in rows.largest_keys} == {str(n) for n in range(7)}
    assert get(live, "state/nothing", views.ErrorView, 404).error


def test_a_recovery_is_told_with_the_users_traceback_and_its_phases(live: Live) -> None:
    now, before = get(live, "recoveries", views.RecoveriesView).generations
    assert now.ended_at_ms is None and now.failure is None and now.phases[-1].name == "running"
    assert before.failure is not None and "row 300 is bad" in before.failure.summary
    assert "kit.py" in before.failure.error and "raise ValueError" in before.failure.error
    assert (before.failure.operator, before.failure.worker) == (HOSTILE, 0)
    assert before.ended_at_ms >= before.started_at_ms and before.phases[0].name == "claiming"


def test_history_has_every_series_and_no_more_than_was_asked_for(live: Live) -> None:
    live[1].sample()
    found = get(live, "history?seconds=60", views.HistoryView)
    assert found.series.keys() == set(NAMES) and found.step_ms > 0
    assert found.series["rows_in_per_second"][-1][1] > 0 and found.series["state_bytes"]


STACK = views.StackView(
    operator="sums", frames=(views.CodeLine(function="f", file="a.py", line=1, owner="user"),), samples=3
)


def test_configuration_and_workers_are_told(live: Live) -> None:
    found = get(live, "configuration", views.ConfigurationView)
    assert found.settings == {"checkpoint_interval": "50 ms"} and "sums" in found.plan
    assert get(live, "workers", views.WorkersView).workers == ()
    profile = live[2].post("/api/v1/workers/0/profile", json={"seconds": 0.5})
    found = msgspec.json.decode(profile.content, type=views.ProfileView)
    assert found.stacks == (STACK,)
    # The worker has met more stacks than it tells of.
    assert (found.samples, found.left_out) == (5, 2)


@pytest.mark.parametrize(
    "path", ["checkpoints?limit=0", "checkpoints?limit=x", "history?seconds=99999", "logs?limit=²"]
)
def test_a_number_that_makes_no_sense_is_refused_with_the_range(live: Live, path: str) -> None:
    assert "must be a whole number from" in get(live, path, views.ErrorView, 400).cure


def test_figures_are_read_once_for_all_who_ask_within_half_a_second(live: Live) -> None:
    sight = live[1]
    before = sight.readings_made
    moments = {sight.moment for _ in range(5) if [live[2].get("/api/v1/graph") for _ in range(5)]}
    assert sight.readings_made - before <= len(moments) + 1


def test_rows_agree_with_those_that_a_sink_has_counted() -> None:
    pipeline, counted = counting("bounded", rows=5_000)
    with running(pipeline) as (ran, _, client):
        wait_for(lambda: ran.supervisor.has_ended)
        found = msgspec.json.decode(client.get("/api/v1/overview").content, type=views.Overview)
        assert (found.rows_in, found.rows_out, found.phase) == (5_000, counted.rows, "finished")
        assert found.ended_at_ms is not None
        exported = client.get("/metrics").text
        assert 'penstock_records_in_total{operator="out",pipeline="bounded",subtask="0"}' in exported
