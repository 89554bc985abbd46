"""`map_async` in processes: batches travel as Arrow, results are those of threads, and nothing is left behind."""

from __future__ import annotations

import datetime
import os
import pickle
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from penstock import DataError, Pipeline
from penstock.columnar.schemas.schema_guard import SchemaGuard
from penstock.errors import UserCodeError
from penstock.operators.async_map.child_process import InProcess
from penstock.operators.formats import format_of
from penstock.testing import CollectSink, ListSource, run

HANG_S = 60
BATCH = pa.record_batch({"n": [1, 2, 3], "text": ["a", None, "c"]})


def doubled(row: dict[str, Any]) -> dict[str, Any]:
    return {"n": 2 * row["n"], "pid": os.getpid()}


class NeverPickled(dict[str, Any]):
    def __reduce__(self) -> Any:
        raise AssertionError("a row was pickled")


def changing(row: dict[str, Any]) -> Any:
    """What a row becomes depends on it: each batch would have other types."""
    if row["n"] == 1:
        return NeverPickled(x=1.5, more=None)
    return {"x": row["n"]} if row["n"] == 2 else {"x": row["n"], "more": "text"}


def zoned(row: dict[str, Any]) -> dict[str, Any]:
    at = datetime.datetime(2026, 1, 1)
    return {"at": at.replace(tzinfo=datetime.UTC) if row["n"] % 2 else at}


def broken(row: dict[str, Any]) -> dict[str, Any]:
    if row["n"] == 2:
        raise ValueError("no luck")
    return row


def stuck(batch: pa.RecordBatch) -> pa.RecordBatch:
    time.sleep(3600)
    return batch


def runner(function: Any, as_: Any, schema: pa.Schema | None = None) -> InProcess:
    return InProcess(function, as_, SchemaGuard("output of operator 'slow'", schema))


def test_rows_come_back_as_one_batch_and_none_is_pickled(monkeypatch: pytest.MonkeyPatch) -> None:
    child = runner(doubled, "rows")
    # From here on neither side of the connection may pickle anything.
    monkeypatch.setattr(pickle, "dumps", None)
    monkeypatch.setattr(pickle, "loads", None)
    monkeypatch.setattr(type(child._connection), "send", None)
    monkeypatch.setattr(type(child._connection), "recv", None)
    made = child.call(BATCH).batch
    child.close()
    assert made is not None
    assert made.column("n").to_pylist() == [2, 4, 6]
    assert set(made.column("pid").to_pylist()) == {child._process.pid}


def test_the_types_are_those_of_the_first_batch_in_whichever_process() -> None:
    guard = SchemaGuard("output of operator 'slow'")
    form = format_of("rows", guard)
    children = [InProcess(changing, "rows", guard) for _ in range(2)]
    # Both were called before the first result was looked at: the second one has guessed its own types.
    results = [child.call(BATCH.slice(n, 1)) for n, child in enumerate(children)]
    results_batches = [form.adopted(result.batch, result.zones) for result in results]
    later = children[1].call(BATCH.slice(1, 1))
    results_batches.append(form.adopted(later.batch, later.zones))
    for child in children:
        child.close()
    assert [batch.to_pylist() for batch in results_batches] == [
        [{"x": 1.5, "more": None}],
        [{"x": 2.0, "more": None}],
        [{"x": 2.0, "more": None}],
    ]
    assert len({str(batch.schema) for batch in results_batches}) == 1


def test_times_with_and_without_a_zone_in_two_processes_are_an_error() -> None:
    schema = pa.schema([("at", pa.timestamp("us", "UTC"))])
    guard = SchemaGuard("output of operator 'slow'", schema)
    form = format_of("rows", guard)
    children = [InProcess(zoned, "rows", guard) for _ in range(2)]
    results = [child.call(BATCH.slice(n, 1)) for n, child in enumerate(children)]
    for child in children:
        child.close()
    form.adopted(results[0].batch, results[0].zones)
    with pytest.raises(DataError, match="the time 'at' has a zone in some rows and none in others"):
        form.adopted(results[1].batch, results[1].zones)


def test_errors_are_those_of_a_thread() -> None:
    child = runner(broken, "rows", pa.schema([("n", pa.int64()), ("text", pa.int64())]))
    with pytest.raises(UserCodeError, match=r"ValueError: no luck \(row 1 of 3 in its batch"):
        child.call(BATCH)
    refused = child.call(BATCH.slice(0, 1))
    assert refused.batch is None
    assert refused.refused is not None
    assert "rows cannot become Arrow" in refused.refused
    assert child.call(BATCH.slice(0, 0)).batch is None
    child.close()


def test_a_process_that_is_stuck_ends_with_its_operator() -> None:
    child = runner(stuck, "arrow")
    child._connection.send_bytes(b"")
    child.close()
    child._process.join(HANG_S)
    assert child._process.exitcode == -9


def test_several_processes_work_at_a_time_and_order_is_kept(tmp_path: Path) -> None:
    def met(row: dict[str, Any]) -> dict[str, Any]:
        # The first batch is done when the second one is under way: one process alone would hang.
        if row["n"] == 10:
            (tmp_path / "second").touch()
        for _ in range(HANG_S * 100):
            if row["n"] > 0 or (tmp_path / "second").exists():
                return {"n": row["n"], "pid": os.getpid()}
            time.sleep(0.01)
        raise TimeoutError("nobody else works")

    output, pipeline = CollectSink(), Pipeline("p")
    stream = pipeline.source(ListSource([{"n": n} for n in range(60)], batch_rows=10))
    stream.map_async(met, format="rows", executor="processes", concurrency=2, batch_rows=10).sink(output)
    run(pipeline, timeout=2 * HANG_S)
    assert [row["n"] for row in output.rows()] == list(range(60))
    assert len({row["pid"] for row in output.rows()} - {os.getpid()}) == 2
