"""`penstock status` on directories made by hand."""

from __future__ import annotations

import json
import socket
import time
from pathlib import Path

from penstock.storage import paths
from penstock.storage.lease import Lease
from tests.unit.cli.kit import add_checkpoint, directory, penstock


def lines(place: Path) -> dict[str, str]:
    result = penstock("status", place)
    assert result.exit_code == 0, result.output
    return {line.split()[0]: " ".join(line.split()[1:]) for line in result.stdout.splitlines() if line.strip()}


def test_a_pipeline_that_has_stopped_says_how_to_go_on(tmp_path: Path) -> None:
    store = directory(tmp_path, 3, 4)
    add_checkpoint(store, 6, is_savepoint=True, is_committed=False)
    shown = lines(tmp_path)
    assert shown["pipeline"] == "totals"
    assert shown["state"] == "stopped"
    assert shown["newest"].startswith("savepoint 6, ")
    assert shown["size"] == "10.0 kB of state in 7 rows, 0 B in flight"
    assert shown["published"] == "not yet"
    assert shown["kept"] == "2 checkpoints, 1 savepoint"
    assert shown["resume"].replace(" ", "") == f"penstockrunTARGET--checkpoints{tmp_path}"


def test_a_pipeline_that_runs_says_where(tmp_path: Path) -> None:
    store = directory(tmp_path, 3)
    Lease(store, "totals").beat()
    shown = lines(tmp_path)
    assert shown["state"].startswith("running: process ")
    assert f"on {socket.gethostname()}, last sign of life 0s ago" in shown["state"]
    assert "penstock stop" in shown["resume"]
    value = json.loads(penstock("status", tmp_path, "--json").stdout)
    assert value["is_running"] is True
    assert value["owner"]["host"] == socket.gethostname()
    assert (value["newest"]["id"], value["newest"]["state_rows"], value["checkpoints"]) == (3, 7, 1)
    assert value["newest"]["age_ms"] > 0


def test_a_driver_that_was_killed_left_its_note(tmp_path: Path) -> None:
    store = directory(tmp_path, 3)
    note = {"pipeline": "totals", "host": "elsewhere", "pid": 7, "beat_ms": time.time_ns() // 1_000_000 - 60_000}
    store.write(paths.OWNER, [json.dumps(note).encode()])
    assert lines(tmp_path)["state"] == (
        "not running: process 7 on elsewhere ended unexpectedly, last sign of life 1m00s ago"
    )


def test_a_pipeline_without_a_checkpoint_and_a_directory_that_is_none(tmp_path: Path) -> None:
    store = directory(tmp_path)
    Lease(store, "totals").beat()
    shown = lines(tmp_path)
    assert (shown["newest"], shown["kept"]) == ("no checkpoint yet", "nothing")
    assert "there is no checkpoint in" in penstock("checkpoints", "show", tmp_path).stderr
    store.delete(paths.OWNER)
    refused = penstock("status", tmp_path)
    assert refused.exit_code == 1
    assert "is not a checkpoint directory" in refused.stderr


def test_a_pipeline_that_has_read_all_its_input_has_finished(tmp_path: Path) -> None:
    store = directory(tmp_path, 3)
    add_checkpoint(store, 4, is_final=True)
    shown = lines(tmp_path)
    assert shown["state"] == "finished: all input is read"
    assert shown["newest"].startswith("final checkpoint 4, ")
    assert shown["kept"] == "1 checkpoint, 1 final checkpoint"
    add_checkpoint(store, 5, is_final=True, is_savepoint=True)
    assert lines(tmp_path)["state"] == "stopped with a savepoint"
