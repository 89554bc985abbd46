"""`penstock checkpoints` on directories made by hand."""

from __future__ import annotations

import datetime
import json
from pathlib import Path

import pytest

from penstock.ids import CheckpointId
from penstock.storage import LocalStore, paths
from penstock.storage.lease import Lease
from tests.unit.cli.kit import COMPLETED_AT_MS, add_checkpoint, add_void, directory, penstock


def test_the_list_shows_every_checkpoint_and_no_void_one(tmp_path: Path) -> None:
    store = directory(tmp_path, 3, 4)
    add_void(store, 5)
    add_checkpoint(store, 6, is_savepoint=True, is_committed=False)
    result = penstock("checkpoints", "list", tmp_path)
    assert result.exit_code == 0
    rows = [line.split() for line in result.stdout.splitlines() if line.split()[:1] and line.split()[0].isdigit()]
    assert [(row[0], row[1], row[2]) for row in rows] == [
        ("3", "checkpoint", "totals"),
        ("4", "checkpoint", "totals"),
        ("6", "savepoint", "totals"),
    ]
    assert "35ms" in result.stdout
    assert "unaligned" in result.stdout
    assert "10.0 kB" in result.stdout
    assert "not yet" in result.stdout


def test_the_list_for_scripts_is_json(tmp_path: Path) -> None:
    directory(tmp_path, 3)
    (found,) = json.loads(penstock("checkpoints", "list", tmp_path, "--json").stdout)
    completed_at = datetime.datetime.fromisoformat(found.pop("completed_at"))
    assert completed_at.timestamp() * 1000 == COMPLETED_AT_MS
    assert found == {
        "id": 3,
        "kind": "checkpoint",
        "is_committed": True,
        "error": None,
        "pipeline": "totals",
        "generation": 1,
        "duration_ms": 35,
        "cut": "unaligned",
        "state_bytes": 10_000,
        "inflight_bytes": 0,
        "published": "yes",
    }


def test_a_damaged_manifest_is_listed_as_such(tmp_path: Path) -> None:
    store = directory(tmp_path, 3)
    (store.root / paths.manifest(CheckpointId(3))).write_bytes(b"{}")
    assert "damaged" in penstock("checkpoints", "list", tmp_path).stdout
    (found,) = json.loads(penstock("checkpoints", "list", tmp_path, "--json").stdout)
    assert found["kind"] == "damaged"
    assert "damaged one" in found["error"]
    shown = penstock("checkpoints", "show", tmp_path, 3)
    assert shown.exit_code == 1
    assert "checkpoint 3: not a file of a checkpoint" in shown.stderr


def test_a_directory_of_a_pipeline_without_a_checkpoint_is_one(tmp_path: Path) -> None:
    Lease(LocalStore(tmp_path), "totals").beat()
    result = penstock("checkpoints", "list", tmp_path)
    assert (result.exit_code, result.stdout) == (0, f"no checkpoint in {tmp_path} yet\n")


@pytest.mark.parametrize("command", [("list",), ("show", 1), ("verify",), ("delete", 1)])
def test_a_directory_that_is_none_is_told_apart(tmp_path: Path, command: tuple[object, ...]) -> None:
    name, *rest = command
    missing = penstock("checkpoints", name, tmp_path / "missing", *rest)
    assert missing.exit_code == 1
    assert "there is no directory" in missing.stderr
    assert not (tmp_path / "missing").exists()
    (tmp_path / "file.txt").touch()
    foreign = penstock("checkpoints", name, tmp_path, *rest)
    assert foreign.exit_code == 1
    assert "is not a checkpoint directory" in foreign.stderr


def test_one_checkpoint_is_shown_in_detail(tmp_path: Path) -> None:
    directory(tmp_path, 3)
    result = penstock("checkpoints", "show", tmp_path, 3)
    assert result.exit_code == 0
    for part in ("totals, 128 key groups", "counts[0]", "timed out", "n (keyed)", "41", "published: yes"):
        assert part in result.stdout
    value = json.loads(penstock("checkpoints", "show", tmp_path, 3, "--json").stdout)
    assert value["subtasks"][0]["splits"] == {"0/1": "41"}
    assert len(value["blobs"]) == 1


def test_a_checkpoint_that_is_not_there_is_told_with_those_that_are(tmp_path: Path) -> None:
    store = directory(tmp_path, 3, 4)
    add_void(store, 5)
    missing = penstock("checkpoints", "show", tmp_path, 9)
    assert missing.exit_code == 1
    assert "checkpoint 9 does not exist; the existing ones are 3, 4" in missing.stderr
    assert "never completed" in penstock("checkpoints", "show", tmp_path, 5).stderr
    assert penstock("checkpoints", "show", tmp_path, "x").exit_code == 2
    assert penstock("checkpoints", "show", tmp_path, 0).exit_code == 2


def test_verify_finds_what_is_damaged_and_what_is_gone(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    segments = [add_checkpoint(store, number) for number in (3, 4, 5)]
    assert penstock("checkpoints", "verify", tmp_path).exit_code == 0
    blobs = [store.root / str(segment.path) for segment in segments]
    blobs[0].write_bytes(b"x" + blobs[0].read_bytes()[1:])
    blobs[1].unlink()
    result = penstock("checkpoints", "verify", tmp_path, "--json")
    assert result.exit_code == 1
    verdicts = {each["id"]: each["error"] for each in json.loads(result.stdout)}
    assert "expected checksum" in verdicts[3]
    assert "cannot read" in verdicts[4]
    assert verdicts[5] is None
    assert penstock("checkpoints", "verify", tmp_path, 5).exit_code == 0
    assert "expected checksum" in " ".join(penstock("checkpoints", "verify", tmp_path, 3).stdout.split())


def test_delete_removes_a_checkpoint_and_what_only_it_refers_to(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    shared = add_checkpoint(store, 3)
    own = add_checkpoint(store, 4, refers_to=(shared,))
    add_checkpoint(store, 5, refers_to=(shared,))
    result = penstock("checkpoints", "delete", tmp_path, 4, "--yes")
    assert (result.exit_code, result.stdout) == (0, "deleted checkpoint 4; 1 files with it\n")
    left = store.list("")
    assert paths.manifest(CheckpointId(4)) not in left
    assert paths.committed(CheckpointId(4)) not in left
    assert own.path not in left
    assert shared.path in left
    # Reservations fence, and ids only grow.
    assert paths.reserved(CheckpointId(4)) in left
    assert penstock("checkpoints", "verify", tmp_path).exit_code == 0


def test_delete_asks_first_and_not_where_nobody_can_answer(tmp_path: Path) -> None:
    store = directory(tmp_path, 3, 4)
    result = penstock("checkpoints", "delete", tmp_path, 3)
    assert result.exit_code == 1
    assert "pass --yes" in result.stderr
    assert paths.manifest(CheckpointId(3)) in store.list("")


def test_the_newest_is_deleted_only_if_one_insists(tmp_path: Path) -> None:
    store = directory(tmp_path, 3, 4)
    refused = penstock("checkpoints", "delete", tmp_path, 4, "--yes")
    assert refused.exit_code == 1
    assert "it is the newest one: the pipeline would go on from checkpoint 3" in refused.stderr
    insisted = penstock("checkpoints", "delete", tmp_path, 4, "--yes", "--force", "--json")
    assert insisted.exit_code == 0
    assert json.loads(insisted.stdout)["id"] == 4
    assert paths.manifest(CheckpointId(4)) not in store.list("")


def test_while_a_pipeline_runs_what_it_was_started_from_stays_and_blobs_are_left_to_it(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    for number, generation in ((3, 1), (4, 1), (5, 2), (6, 2)):
        add_checkpoint(store, number, generation=generation)
    Lease(store, "totals").beat()
    in_use = penstock("checkpoints", "delete", tmp_path, 4, "--yes")
    assert in_use.exit_code == 1
    assert "it is in use" in in_use.stderr
    result = penstock("checkpoints", "delete", tmp_path, 5, "--yes")
    assert result.exit_code == 0
    assert "the running pipeline removes its files" in result.stdout
    left = [path for path in store.list("") if paths.checkpoint_of(path) == 5]
    assert paths.manifest(CheckpointId(5)) not in left
    assert any(paths.kind_of(path) is paths.PathKind.BLOB for path in left)
    Lease(store, "totals").release()
    assert penstock("checkpoints", "delete", tmp_path, 4, "--yes").exit_code == 0


def test_blobs_stay_where_another_manifest_cannot_be_read(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    own = add_checkpoint(store, 3)
    add_checkpoint(store, 4)
    add_checkpoint(store, 5)
    (store.root / paths.manifest(CheckpointId(4))).write_bytes(b"{}")
    assert penstock("checkpoints", "delete", tmp_path, 3, "--yes").exit_code == 0
    assert own.path in store.list("")
    # The damaged one itself can be cleared away, with what was written for it.
    assert penstock("checkpoints", "delete", tmp_path, 4, "--yes").exit_code == 0
    assert not [path for path in store.list(paths.blob_prefix(CheckpointId(4)))]


def test_the_newest_one_is_shown_if_none_is_named(tmp_path: Path) -> None:
    directory(tmp_path, 3, 14)
    assert json.loads(penstock("checkpoints", "show", tmp_path, "--json").stdout)["id"] == 14
