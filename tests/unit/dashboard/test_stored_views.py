"""A checkpoint directory as the page shows it, and the commands that reach a pipeline of another process."""

from __future__ import annotations

import json
import shutil
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from penstock import checkpoints
from penstock.cli.page_commands import live_page, serve
from penstock.dashboard import views
from penstock.dashboard.app import application
from penstock.dashboard.guard import Guard
from penstock.dashboard.server import Server
from penstock.dashboard.sights.last_words import leave
from penstock.dashboard.sights.live import LiveSight
from penstock.dashboard.sights.stored import StoredSight
from penstock.driver.observation.kept_log import KeptLog
from penstock.driver.observation.log_ring import LogRing
from penstock.mailbox.notes import LogLine
from penstock.storage import LocalStore, paths
from penstock.storage.lease import Lease
from tests.unit.cli.kit import penstock
from tests.unit.dashboard.kit import HOSTILE, TOKEN, Client, Running, counting, wait_for

ROWS = 3_000


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, Running, int]]:
    """The directory of a pipeline that has ended after a failure, and the rows that its sink has taken, each once."""
    place = tmp_path_factory.mktemp("ended")
    pipeline, _ = counting("left", rows=ROWS, bad_row=100)
    ran = Running(pipeline, LocalStore(place)).start()
    wait_for(lambda: ran.supervisor.has_ended)
    ran.stop()
    leave(LiveSight(ran.watched()), LocalStore(place))
    yield place, ran, ran.supervisor.observations.totals.rows_out


def get(place: Path, path: str, kind: type[Any]) -> Any:
    answer = Client(application(StoredSight(checkpoints.open(place)), Guard(None))).get(f"/api/v1/{path}")
    assert answer.status_code == 200, answer.text
    return msgspec.json.decode(answer.content, type=kind)


def test_an_ended_pipeline_has_the_rows_of_its_last_checkpoint(ended: tuple[Path, Running, int]) -> None:
    place, _, rows = ended
    found = get(place, "overview", views.Overview)
    assert (found.pipeline, found.phase, found.is_live) == ("left", "finished", False)
    assert (found.rows_in, found.rows_out, found.restarts) == (ROWS, rows, 1)


def test_the_graph_and_the_state_are_those_of_the_manifest(ended: tuple[Path, Running, int]) -> None:
    place, _, _ = ended
    found = get(place, "graph", views.GraphView)
    assert [[each.name for each in vertex.operators] for vertex in found.vertices] == [
        ["numbers", HOSTILE, "times"],
        ["sums", "out"],
    ]
    assert [(edge.upstream, edge.downstream, edge.exchange) for edge in found.edges] == [("numbers", "sums", "hash")]
    assert found.vertices[0].rows_in == ROWS
    assert len(get(place, "vertices/sums", views.VertexDetail).subtasks) == 2
    assert get(place, "state", views.StateView).operators
    assert len(get(place, "state/sums", views.StateRows).rows) == 7
    assert get(place, "watermarks", views.WatermarksView).operators


def test_checkpoints_attempts_and_errors_that_the_driver_has_left_are_shown(ended: tuple[Path, Running, int]) -> None:
    place, ran, _ = ended
    found = get(place, "checkpoints?limit=1000", views.CheckpointsView)
    assert {each.id for each in found.history} >= {each.checkpoint for each in ran.supervisor.history}
    newest = get(place, f"checkpoints/{found.history[0].id}", views.CheckpointDetail)
    assert len(newest.subtasks) == newest.num_subtasks == 4
    last, first = get(place, "recoveries", views.RecoveriesView).generations
    assert last.failure is None and "row 100 is bad" in first.failure.summary


def test_last_words_that_cannot_be_read_are_as_good_as_none(ended: tuple[Path, Running, int], tmp_path: Path) -> None:
    shutil.copytree(ended[0] / "checkpoints", tmp_path / "checkpoints")
    for words in (b"{", b'{"overview": 1}', b"\xff"):
        (tmp_path / paths.HISTORY).write_bytes(words)
        assert get(tmp_path, "recoveries", views.RecoveriesView).generations == ()
        assert get(tmp_path, "overview", views.Overview).rows_in == ROWS


def test_orders_and_profiles_of_an_ended_pipeline_are_refused_with_the_reason(ended: tuple[Path, Running, int]) -> None:
    client = Client(application(StoredSight(checkpoints.open(ended[0])), Guard(TOKEN)))
    answer = client.post("/api/v1/drain", headers={"Authorization": f"Bearer {TOKEN}"})
    assert answer.status_code == 409 and "no pipeline is running" in answer.json()["error"]
    assert client.post("/api/v1/workers/0/profile").status_code == 409


def test_the_commands_reach_a_pipeline_that_runs_and_one_that_has_ended(
    ended: tuple[Path, Running, int], tmp_path: Path
) -> None:
    pipeline, _ = counting("reached")
    store = LocalStore(tmp_path)
    ran = Running(pipeline, store).start()
    server = Server(LiveSight(ran.watched()), Guard(TOKEN), port=0).start()
    lease = Lease(store, "reached")
    try:
        lease.note_page(server.address)
        lease.beat()
        wait_for(lambda: ran.supervisor.observations.completed)
        assert live_page(checkpoints.open(tmp_path)) == server.address
        assert server.address in penstock("ui", tmp_path).stdout
        shown = penstock("top", tmp_path, "--turns", 1).stdout
        assert "reached: running" in shown and "sums → out" in shown
        assert json.loads(penstock("logs", tmp_path, "--json").stdout)["dropped"] == 0
    finally:
        server.close()
        ran.stop()
    refused = penstock("top", tmp_path)
    assert refused.exit_code == 1 and "ssh -L" in refused.stderr
    lease.release()
    assert "no pipeline is running" in penstock("top", ended[0]).stderr
    assert penstock("logs", ended[0]).exit_code == 0


def test_a_directory_is_served_without_its_driver(ended: tuple[Path, Running, int]) -> None:
    server = serve(checkpoints.open(ended[0]), 0, "127.0.0.1")
    try:
        with urllib.request.urlopen(f"{server.address}/api/v1/overview", timeout=60) as answer:
            assert json.loads(answer.read())["pipeline"] == "left"
    finally:
        server.close()
    wait_for(lambda: not server._thread.is_alive())


def test_the_log_that_a_killed_driver_has_left_is_shown(ended: tuple[Path, Running, int], tmp_path: Path) -> None:
    shutil.copytree(ended[0] / "checkpoints", tmp_path / "checkpoints")
    ring = LogRing("left")
    ring.add(LogLine(1_700_000_000_000, "WARNING", "worker 1 is silent", worker=1, operator="sums"))
    KeptLog(ring, LocalStore(tmp_path), 1).start().close()
    assert "WARNING worker 1 sums: worker 1 is silent" in penstock("logs", tmp_path).stdout
    [line] = get(tmp_path, "logs", views.LogsView).lines
    assert (line.worker, line.operator, line.text) == (1, "sums", "worker 1 is silent")
