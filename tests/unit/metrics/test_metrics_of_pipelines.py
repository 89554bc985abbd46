"""Metrics as a user sees them, through the whole of a pipeline: counts that survive restarts, times, checkpoints."""

from __future__ import annotations

import time
from dataclasses import replace

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from penstock import JobProgress, Metrics, Pipeline
from penstock.graph.logical import Graph, LogicalEdge, Node
from penstock.ids import OperatorName
from penstock.metrics.metric import Kind, counter, gauge, histogram
from penstock.operators.contract import Emit, Operator, OperatorContext
from penstock.protocol.manifest import Manifest, Partitioning
from penstock.protocol.manifest.codec import decode_manifest_or_tombstone, encode_manifest
from penstock.storage import MemoryStore, paths
from penstock.testing import CollectSink, ListSource, Result, Schedule, run
from tests.unit.mailbox.fake_ports import Numbers, Staging

ROWS = [{"k": number % 7, "even": number % 2 == 0} for number in range(2_000)]


def totals() -> tuple[Pipeline, CollectSink]:
    pipeline, sink = Pipeline("totals"), CollectSink()
    source = pipeline.source(ListSource(ROWS, splits=3, batch_rows=20), name="read")
    even = source.filter(pc.field("even"), name="even")
    even.rebalance().map(lambda batch: batch, name="copy").sink(sink, name="write")
    return pipeline, sink


def counts(result: Result) -> dict[str, tuple[object, object]]:
    came, sent = (result.metrics.by_operator(name) for name in ("num_records_in", "num_records_out"))
    return {operator: (came[operator], sent[operator]) for operator in came}


EXPECTED = {"read": (2_000, 2_000), "even": (2_000, 1_000), "copy": (1_000, 1_000), "write": (1_000, 0)}


class TestTotals:
    @pytest.mark.parametrize("seed", range(5))
    @pytest.mark.parametrize("parallelism", [1, 2])
    def test_rows_are_counted_once_however_often_the_pipeline_is_killed(self, seed: int, parallelism: int) -> None:
        pipeline, sink = totals()
        result = run(
            pipeline, parallelism=parallelism, crash_after_checkpoints=(1, 2, 4), schedule=Schedule(seed), workers=2
        )
        assert result.restarts == 3
        assert (result.rows_in, result.rows_out) == (2_000, 1_000) == (len(ROWS), len(sink.rows()))
        assert counts(result) == EXPECTED

    @pytest.mark.parametrize(("first", "then"), [(1, 2), (3, 1), (2, 3)])
    def test_they_go_on_at_another_parallelism(self, first: int, then: int) -> None:
        store = MemoryStore()
        pipeline, sink = totals()
        half = run(pipeline, parallelism=first, store=store, until=lambda: len(sink.rows()) > 100)
        assert 100 < half.rows_out == len(sink.rows())
        result = run(pipeline, parallelism=then, store=store, crash_after_checkpoints=1, workers=2)
        assert counts(result) == EXPECTED
        assert (result.rows_in, result.rows_out) == (2_000, 1_000)
        assert len(sink.rows()) == 1_000
        subtasks = {(sample.operator, sample.subtask) for sample in result.metrics.of("num_records_in")}
        assert {subtask for operator, subtask in subtasks if operator == "copy"} == set(range(then))

    def test_a_pipeline_that_resumes_shows_them_before_it_has_read_anything(self) -> None:
        store, (pipeline, _) = MemoryStore(), totals()
        run(pipeline, store=store)
        again = run(pipeline, store=store)
        assert (again.rows_in, again.rows_out) == (2_000, 1_000)

    def test_late_rows_survive_a_restart_too(self) -> None:
        rows = [{"k": 1, "at": at} for at in (*range(0, 40_000, 400), 5, 6, *range(40_000, 80_000, 400), 7)]
        pipeline = Pipeline("views")
        stream = pipeline.source(ListSource(rows, batch_rows=1)).with_watermark("at", 0)
        stream.key_by("k").window("1 s").count("n").sink(CollectSink())
        result = run(pipeline, crash_after_checkpoints=(2, 4, 6), schedule=Schedule(1))
        assert (result.rows_late, result.restarts) == (3, 3)
        assert result.metrics.value("num_late_records_dropped") == 3

    def test_rows_ahead_of_the_clock_are_counted(self) -> None:
        now_ms = int(time.time() * 1000)
        rows = [{"k": 1, "at": at} for at in (now_ms, now_ms + 10**10, now_ms + 2 * 10**10)]
        pipeline = Pipeline("views")
        stream = pipeline.source(ListSource(rows)).with_watermark("at", 0, max_ahead="1 hour")
        stream.sink(CollectSink())
        assert run(pipeline).rows_ahead == 2

    def test_a_checkpoint_of_a_version_without_totals_starts_at_zero(self) -> None:
        store = MemoryStore()
        pipeline, sink = totals()
        run(pipeline, store=store, until=lambda: len(sink.rows()) > 100)
        done = without_totals(store)
        result = run(pipeline, store=store)
        assert result.rows_in == 2_000 - done and len(sink.rows()) == 1_000


def without_totals(store: MemoryStore) -> int:
    """Write the newest manifest as an earlier version did. Returns the number of rows that it counted."""
    found = [
        decode_manifest_or_tombstone(bytes(store.read(path)))
        for path in store.list("")
        if path.endswith("manifest.json")
    ]
    newest = max((each for each in found if isinstance(each, Manifest)), key=lambda each: each.checkpoint)
    read = sum(
        value
        for report in newest.reports
        for name, metric, value in report.totals
        if (name, metric) == ("read", "num_records_in")
    )
    old = replace(newest, reports=tuple(replace(report, totals=()) for report in newest.reports))
    path = paths.manifest(newest.checkpoint)
    store.delete(path)
    store.create(path, encode_manifest(old))
    return read


BATCHES = counter("my_batches", "batches", "batches that came", is_total=True)
LARGEST = gauge("my_largest", "rows", "rows of the largest batch")
WEIGHTS = histogram("my_weights_s", "weights")


class Counting(Operator):
    """An operator of this test alone, with metrics of its own."""

    def open(self, context: OperatorContext) -> None:
        self._batches = context.metrics.counter(BATCHES)
        self._weights = context.metrics.histogram(WEIGHTS)
        self._largest = 0
        context.metrics.observe(LARGEST, lambda: self._largest)

    def process(self, batch: pa.RecordBatch, source: int, emit: Emit) -> None:
        self._batches.add()
        self._weights.observe(0.2)
        self._largest = max(self._largest, batch.num_rows)
        emit(batch)


def test_a_metric_that_is_defined_where_it_is_counted_is_among_those_of_the_pipeline() -> None:
    read, mine, write = (OperatorName(name) for name in ("read", "mine", "write"))
    graph = Graph(
        "counted",
        (
            Node(read, source=Numbers({"a": range(10), "b": range(10)}), parallelism=2),
            Node(mine, operator=Counting, parallelism=2),
            Node(write, sink=Staging(), parallelism=1),
        ),
        (LogicalEdge(read, mine, Partitioning.REBALANCE), LogicalEdge(mine, write, Partitioning.REBALANCE)),
    )
    metrics = run(graph, workers=2).metrics
    batches = metrics.of("my_batches")
    assert [(sample.operator, sample.subtask, sample.unit, sample.kind) for sample in batches] == [
        ("mine", 0, "batches", Kind.COUNTER),
        ("mine", 1, "batches", Kind.COUNTER),
    ]
    assert 0 < (metrics.value("my_batches") or 0) <= 10
    assert metrics.value("my_largest") is not None
    assert metrics.quantile("my_weights_s", 0.5) == 0.25


def test_the_times_of_each_subtask_add_up_to_the_time_that_has_passed() -> None:
    pipeline, _ = totals()
    metrics = run(pipeline, parallelism=2, workers=2, schedule=Schedule(3)).metrics
    names = "busy_time_ms", "idle_time_ms", "back_pressured_time_ms"
    sums: dict[tuple[str, int], float] = {}
    for name in names:
        for sample in metrics.of(name):
            key = sample.operator, sample.subtask
            sums[key] = sums.get(key, 0) + sample.value
    assert {operator for operator, _ in sums} == {"read", "copy"}
    assert max(sums.values()) - min(sums.values()) <= 3 and min(sums.values()) > 0
    slices = metrics.of("slice_time_s")
    assert all(sample.count > 0 for sample in slices)
    busy_s = sum(sample.value for sample in slices)
    assert abs(1000 * busy_s - (metrics.value("busy_time_ms") or 0)) <= len(slices)


def test_checkpoints_queues_bytes_and_watermarks_are_told_by_subtask() -> None:
    rows = [{"k": number % 3, "at": number * 100} for number in range(500)]
    pipeline = Pipeline("views")
    stream = pipeline.source(ListSource(rows, batch_rows=50), name="read").with_watermark("at", 0, name="at")
    stream.key_by("k").window("1 s").count("n", name="counts").sink(CollectSink(), name="write")
    result = run(pipeline, parallelism=2, schedule=Schedule(1))
    metrics = result.metrics
    for name in ("checkpoint_start_delay_ms", "checkpoint_alignment_time_ms", "checkpoint_sync_time_ms"):
        assert {(sample.operator, sample.subtask) for sample in metrics.of(name)} >= {("counts", 0), ("counts", 1)}
    assert (metrics.value("num_bytes_in", "counts") or 0) == (metrics.value("num_bytes_out", "at") or 0) > 0
    assert metrics.value("input_queue_size") == 0 == metrics.value("output_queue_size")
    assert metrics.value("current_output_watermark", "at") == 49_900
    assert metrics.value("number_of_completed_checkpoints") == result.checkpoints
    assert "is_back_pressured" in {sample.name for sample in metrics}
    assert isinstance(metrics, Metrics)


def test_progress_counts_rows_exactly_from_checkpoint_to_checkpoint() -> None:
    pipeline, _ = totals()
    result = run(pipeline, parallelism=2, crash_after_checkpoints=2, schedule=Schedule(2))
    last = result.progress[-1]
    assert isinstance(last, JobProgress)
    assert (last.rows_in, last.rows_out) == (2_000, 1_000)
    assert sum(each.num_input_rows for each in result.progress) == 2_000, "each row in one of them"
    assert [each.rows_in for each in result.progress] == sorted(each.rows_in for each in result.progress)
    (source,) = last.sources
    assert (source.name, source.rows, source.splits) == ("read", 2_000, 3) and len(source.positions) == 3
    assert {each.generation for each in result.progress} == {1, 2}
    assert any(each.input_rows_per_second > 0 for each in result.progress)
