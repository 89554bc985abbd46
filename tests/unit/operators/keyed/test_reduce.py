"""How `reduce` keeps its rows: no call converts more of them because there are many."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from penstock import Pipeline
from penstock.operators.formats import RowsFormat
from penstock.protocol.coordinator.state import Policy
from penstock.protocol.manifest import Manifest
from penstock.protocol.manifest.codec import decode_manifest_or_tombstone
from penstock.storage import MemoryStore
from penstock.testing import CHECKPOINT, CollectSink, ListSource, run
from penstock.worker.settings import WorkerSettings

KEYS, ROUNDS, BATCH = 2_000, 6, 50


def added(one: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    return {"k": one["k"], "n": one["n"] + other["n"]}


def items() -> list[Any]:
    # Each round in another order, so that outdated rows lie everywhere.
    return [{"k": (7 * n + 11 * round_) % KEYS, "n": 1} for round_ in range(ROUNDS) for n in range(KEYS)]


def pipeline(source: ListSource, sink: CollectSink) -> Pipeline:
    made = Pipeline("p")
    made.source(source, name="source").key_by("k").reduce(added, name="reduce").sink(sink, name="sink")
    return made


def rows_stored(store: MemoryStore) -> list[int]:
    outcomes = [decode_manifest_or_tombstone(store.blobs[path]) for path in sorted(store.blobs) if "manifest" in path]
    manifests = [outcome for outcome in outcomes if isinstance(outcome, Manifest)]
    return [sum(state.rows for report in each.reports for state in report.states) for each in manifests]


def test_a_call_converts_rows_in_proportion_to_those_it_was_given(monkeypatch: pytest.MonkeyPatch) -> None:
    converted: list[int] = []
    batch_of = RowsFormat.batch

    def batch(self: RowsFormat, outputs: Any) -> pa.RecordBatch | None:
        converted.append(len(outputs))
        return batch_of(self, outputs)

    monkeypatch.setattr(RowsFormat, "batch", batch)
    sink, store = CollectSink(), MemoryStore()
    settings = WorkerSettings(slice_rows_max=BATCH, driver_silence_ms=10**9)
    source = ListSource(items(), batch_rows=BATCH)
    run(pipeline(source, sink), store=store, policy=Policy(interval_ms=None), worker_settings=settings)
    newest = {row["k"]: row["n"] for row in sink.rows()}
    assert newest == dict.fromkeys(range(KEYS), ROUNDS)
    assert max(converted) <= 2 * BATCH
    assert KEYS <= rows_stored(store)[-1] <= 2 * KEYS + 1024 + 2 * BATCH


def test_rows_come_back_after_crashes_and_a_rescale_while_the_log_is_being_cleaned() -> None:
    def marked(rows: list[Any]) -> list[Any]:
        return [item for n, row in enumerate(rows) for item in ([row, CHECKPOINT] if n % 997 == 0 else [row])]

    sink, store, half = CollectSink(), MemoryStore(), ROUNDS // 2 * KEYS
    run(pipeline(ListSource(marked(items()[:half]), batch_rows=BATCH), sink), store=store, parallelism=2)
    more = ListSource(marked(items()), batch_rows=BATCH)
    result = run(pipeline(more, sink), store=store, parallelism=3, crash_after_checkpoints=2)
    assert result.restarts == 1
    newest = {row["k"]: row["n"] for row in sorted(sink.rows(), key=lambda row: row["n"])}
    assert newest == dict.fromkeys(range(KEYS), ROUNDS)
