"""`penstock.checkpoints` on the directory that an earlier version left behind."""

from __future__ import annotations

import json
import zipfile
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from penstock import Pipeline, TwoInputFunction, checkpoints
from penstock.errors import OptionError, RestoreError, StorageError
from penstock.ids import CheckpointId, Generation
from penstock.protocol.coordinator.state import Policy
from penstock.protocol.manifest import Manifest, PipelineShape
from penstock.protocol.manifest.codec import encode_manifest
from penstock.storage import LocalStore, MemoryStore, paths
from penstock.storage.copies import export_checkpoint, import_checkpoint, read_manifest
from penstock.testing import CHECKPOINT, CollectSink, ListSource, run
from tests.fixtures.orders import rows_of

ARCHIVE = Path(__file__).parent.parent / "fixtures" / "checkpoint_0_1_0.zip"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("old")
    with zipfile.ZipFile(ARCHIVE) as opened:
        opened.extractall(root)
    return root


@pytest.fixture(scope="module")
def directory(made: Path) -> checkpoints.CheckpointDirectory:
    return checkpoints.open(made / "checkpoints")


def test_the_list_says_what_there_is(directory: checkpoints.CheckpointDirectory) -> None:
    (info,) = directory.list()
    assert (info.id, info.kind, info.published, info.is_unaligned) == (11, "checkpoint", "not yet", True)
    assert info.state_bytes > 0
    assert info.inflight_bytes > 0
    assert info == directory.info() == directory.info(11)


def test_operators_have_their_states(directory: checkpoints.CheckpointDirectory) -> None:
    found = {each.name: each for each in directory.read().operators()}
    assert found["ledger"].key == ("user",)
    assert {state.name for state in found["ledger"].states} == {
        "penstock.event_timers", "count", "amounts", "buckets", "fresh",
    }  # fmt: skip
    assert {state.kind for state in found["ledger"].states} == {"keyed"}
    assert [state.kind for state in found["labelled"].states] == ["list"]
    assert all(state.rows > 0 and state.bytes > 0 for each in found.values() for state in each.states)


def test_keyed_state_is_one_table_by_key(made: Path, directory: checkpoints.CheckpointDirectory) -> None:
    checkpoint = directory.read(11)
    counts = checkpoint.state("ledger", "count")
    assert counts.column_names == ["key_group", "key.user", "value.n"]
    by_user = dict(zip(counts["key.user"].to_pylist(), counts["value.n"].to_pylist(), strict=True))
    amounts = checkpoint.state("ledger", "amounts")
    assert Counter(amounts["key.user"].to_pylist()) == by_user
    # What a key has counted is a part of the input, and no more than there is of it.
    whole = Counter(row["user"] for row in rows_of(made / "input"))
    assert all(0 < by_user[user] < whole[user] for user in by_user)


def test_one_key_can_be_looked_up(directory: checkpoints.CheckpointDirectory) -> None:
    checkpoint = directory.read()
    buckets = checkpoint.state("ledger", "buckets", key=("ada",))
    assert buckets.column_names == ["key_group", "key.user", "user_key.bucket", "value.n"]
    assert set(buckets["key.user"].to_pylist()) == {"ada"}
    everybody = checkpoint.state("ledger", "buckets")
    assert 0 < buckets.num_rows < everybody.num_rows
    assert checkpoint.state("ledger", "buckets", key=("nobody",)).num_rows == 0


def test_a_large_state_is_read_piece_by_piece(directory: checkpoints.CheckpointDirectory) -> None:
    checkpoint = directory.read()
    pieces = list(checkpoint.batches("totals", "aggregates"))
    assert len(pieces) > 1
    assert pa.Table.from_batches(pieces).equals(checkpoint.state("totals", "aggregates").combine_chunks())


def test_state_without_keys_has_the_columns_of_its_records(directory: checkpoints.CheckpointDirectory) -> None:
    assert {"user", "amount", "at_ms"} <= set(directory.read().state("labelled").column_names)
    with pytest.raises(OptionError, match="state 'in hand' of operator 'labelled' has no keys: leave key= out"):
        directory.read().state("labelled", key=("ada",))


def test_positions_and_records_in_flight_are_tables(directory: checkpoints.CheckpointDirectory) -> None:
    checkpoint = directory.read()
    positions = checkpoint.positions().to_pylist()
    assert sorted(each["split"] for each in positions) == ["a.jsonl", "b.jsonl", "c.jsonl"]
    assert {each["source"] for each in positions} == {"orders"}
    assert all(0 < json.loads(each["offset"])["row"] <= 120 for each in positions)
    in_flight = checkpoint.in_flight()
    assert {"clock->ledger", "clock->labelled"} <= set(in_flight["edge"].to_pylist())
    assert sum(in_flight["rows"].to_pylist()) > 0


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda d: d.read(7), "checkpoint 7 does not exist; the existing ones are 11"),
        (
            lambda d: d.read().state("gone"),
            "checkpoint 11 has no operator 'gone'; its operators are orders, clock, ledger",
        ),
        (lambda d: d.read().state("ledger"), r"'ledger' has several states, or none in checkpoint 11: .* count"),
        (lambda d: d.read().state("ledger", "gone"), "'ledger' has no state 'gone' in checkpoint 11: name one of"),
        (lambda d: d.read().state("clock"), r"'clock' has several states, or none .*\(none\)"),
        (lambda d: d.read().state("ledger", "count", key="ada"), "key is 'ada': it must have a value for each key col"),
        (lambda d: d.read().state("ledger", "count", key=(1, 2)), r"a value for each key column of 'ledger' \(user\)"),
        (lambda d: d.read().state("ledger", "count", key=(object(),)), "user is of type string"),
    ],
)
def test_an_error_says_what_there_is(directory: checkpoints.CheckpointDirectory, call: Any, message: str) -> None:
    with pytest.raises(OptionError, match=message):
        call(directory)


def test_damage_is_found_and_told(tmp_path: Path) -> None:
    with zipfile.ZipFile(ARCHIVE) as opened:
        opened.extractall(tmp_path)
    directory = checkpoints.open(str(tmp_path / "checkpoints"))
    assert [(each.checkpoint.id, each.is_whole) for each in directory.verify()] == [(11, True)]
    blob = next((tmp_path / "checkpoints").glob("*/*/blobs/*ledger-0-state"))
    blob.write_bytes(bytes(byte ^ 1 for byte in blob.read_bytes()))
    (verdict,) = directory.verify(11)
    assert not verdict.is_whole
    assert "expected checksum" in (verdict.damage or "")
    with pytest.raises(StorageError, match="expected checksum"):
        directory.read().state("ledger", "count")
    manifest = next((tmp_path / "checkpoints").glob("*/*/manifest.json"))
    manifest.write_bytes(b"{}")
    assert directory.info().kind == "damaged"
    with pytest.raises(RestoreError, match="checkpoint 11: "):
        directory.read()


def test_a_checkpoint_names_those_that_its_generation_has_found(tmp_path: Path) -> None:
    for _ in range(3):
        pipeline = Pipeline("p")
        pipeline.source(ListSource([{"n": 1}]), name="read").sink(CollectSink(), name="out")
        run(pipeline, parallelism=1, store=tmp_path, policy=Policy(interval_ms=10, retained=20))
    found = [info.manifest for info in checkpoints.open(tmp_path).list() if info.manifest is not None]
    for manifest in found:
        older = [each.checkpoint for each in found if each.generation < manifest.generation]
        assert list(manifest.older) == older
        assert max(older, default=0) < manifest.first <= manifest.checkpoint
    assert len({manifest.generation for manifest in found}) == 3


def test_a_stray_is_told_as_what_it_is(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    shape = PipelineShape("p", 8)
    newest = Manifest(CheckpointId(9), Generation(2), shape, first=CheckpointId(8), older=(CheckpointId(3),))
    for manifest in (
        Manifest(CheckpointId(3), Generation(1), shape),
        Manifest(CheckpointId(5), Generation(1), shape, is_savepoint=True),
        newest,
    ):
        store.create(paths.manifest(manifest.checkpoint), encode_manifest(manifest))
    directory = checkpoints.open(tmp_path)
    assert [(info.id, info.kind) for info in directory.list()] == [(3, "checkpoint"), (5, "stray"), (9, "checkpoint")]
    assert directory.info(5).is_stray and not directory.info(3).is_stray
    (verdict,) = [verdict for verdict in directory.verify() if not verdict.is_whole]
    assert verdict.checkpoint.id == 5 and "given up" in str(verdict.damage)
    with pytest.raises(RestoreError, match=r"checkpoint 5 .* cannot be restored: it was given up"):
        import_checkpoint(store, 5)
    copy = MemoryStore()
    export_checkpoint(store, CheckpointId(9), copy)
    assert read_manifest(copy, CheckpointId(9)) == replace(newest, first=CheckpointId(0), older=())


def test_a_directory_without_checkpoints_is_told_apart_from_one_of_a_pipeline(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="is not a checkpoint directory"):
        checkpoints.open(tmp_path)
    assert repr(checkpoints.CheckpointDirectory(LocalStore(tmp_path), "here")) == "<CheckpointDirectory here>"


class Rules(TwoInputFunction):
    def open(self, context: Any) -> None:
        self.rules = context.broadcast_state("rules")

    def process_left(self, batch: Any, context: Any) -> Any:
        return batch

    def process_right(self, batch: Any, context: Any) -> None:
        self.rules.put([batch])


def test_broadcast_state_is_there_once_however_many_subtasks_have_it(tmp_path: Path) -> None:
    pipeline = Pipeline("p")
    events = pipeline.source(ListSource([{"n": 1}, CHECKPOINT, {"n": 2}]), name="events")
    rules = pipeline.source(ListSource([{"limit": 5}, CHECKPOINT]), name="rules")
    events.connect(rules.broadcast()).process(Rules(), name="both", parallelism=3).sink(CollectSink(), name="out")
    run(pipeline, parallelism=1, store=tmp_path, policy=Policy(interval_ms=10, backoff_ms=5, retained=20))
    checkpoint = checkpoints.open(tmp_path).read()
    assert checkpoint.state("both", "rules").to_pylist() == [{"limit": 5}]
    assert repr(checkpoint).startswith(f"<Checkpoint {checkpoint.info.id} of pipeline 'p': events, ")
    assert paths.manifest(checkpoint.info.id)
