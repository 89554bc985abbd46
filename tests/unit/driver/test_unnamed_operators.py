"""Operators without names through changes of their pipeline, on the real engine, and checkpoints of version 0.1.0."""

from __future__ import annotations

import time
from collections import Counter
from typing import Any

import pyarrow as pa
import pytest

from penstock.connectors.collect import CollectSink
from penstock.connectors.memory import ListSource
from penstock.errors import IncompatibleCheckpoint, PipelineError
from penstock.graph.logical import renamed
from penstock.graph.physical import plan
from penstock.pipeline import Pipeline
from penstock.protocol.manifest import Manifest, StateKind
from penstock.storage import MemoryStore
from penstock.testing import run
from tests.unit.driver.changed_pipelines import again, killed_when, newest, refusal, rows_in_flight

FIRST = [{"k": n % 3, "j": n % 2, "v": 1} for n in range(60)]
ROWS = [*FIRST, *({"k": n % 3, "j": n % 2, "v": 1} for n in range(60))]


def slow(batch: Any) -> Any:
    time.sleep(0.0002 * batch.num_rows)
    return batch


def counting(rows: Any, *, before: tuple[str, ...] = (), by: str = "k", output: str = "count") -> Any:
    """A count without a name by `by`, and others that the program names first, each by another key."""
    pipeline, sink = Pipeline("p"), CollectSink()
    stream = pipeline.source(ListSource(rows, batch_rows=7))
    for key in before:
        stream.key_by(key).count(output).sink(CollectSink())
    stream.key_by(by).count(output).sink(sink)
    return pipeline, sink


def highest(sink: CollectSink, key: str = "k") -> dict[int, int]:
    counts: Counter[int] = Counter()
    for row in sink.rows():
        counts[row[key]] = max(counts[row[key]], row["count"])
    return dict(counts)


class TestState:
    def test_stays_with_its_operator_when_another_is_put_in_front(self) -> None:
        store = run(counting(FIRST)[0]).store
        pipeline, sink = counting(ROWS, before=("j",))
        run(pipeline, store=store)
        assert highest(sink) == {0: 40, 1: 40, 2: 40}

    def test_is_kept_when_the_one_in_front_goes_away(self) -> None:
        store = run(counting(FIRST, before=("j",))[0]).store
        pipeline, sink = counting(ROWS)
        with pytest.raises(IncompatibleCheckpoint, match=r"'aggregate-j-\w+', .*allow_dropped_state=True"):
            run(pipeline, store=store)
        pipeline, sink = counting(ROWS, by="j", before=("k",))
        run(pipeline, store=store)
        assert highest(sink, "j") == {0: 60, 1: 60}

    def test_goes_to_no_operator_with_another_key_or_output(self) -> None:
        store = run(counting(FIRST)[0]).store
        error = refusal(counting(ROWS, by="j")[0], store)
        assert "(it has 'aggregate-j-" in str(error) and "whose key is (j) and was (k)" in str(error)
        assert "give the operator that continues it name='aggregate-k-" in str(error)
        refusal(counting(ROWS, output="clicks")[0], store)

    def test_is_found_again_under_the_name_of_the_error(self) -> None:
        store = run(counting(FIRST)[0]).store
        (name,) = {piece.operator for report in newest(store).reports for piece in report.states}  # type: ignore
        pipeline, sink = Pipeline("p"), CollectSink()
        pipeline.source(ListSource(ROWS, batch_rows=7)).key_by("k").count("clicks", name=name).sink(sink)
        run(pipeline, store=store)
        assert max(row["clicks"] for row in sink.rows()) == 40

    def test_is_not_dealt_out_where_two_cannot_be_told_apart(self) -> None:
        store = run(counting(FIRST)[0]).store
        with pytest.raises(PipelineError, match="so each needs a distinct name"):
            run(counting(ROWS, before=("k",))[0], store=store)


def numbered(pipeline: Pipeline) -> Any:
    """The graph of a pipeline with the names that version 0.1.0 would have given it."""
    graph = pipeline.graph()
    return renamed(graph, {node.name: node.former_name or node.name for node in graph.nodes})


def working(rows: Any, *, is_changed: bool = False) -> tuple[Pipeline, CollectSink]:
    pipeline, sink = Pipeline("p"), CollectSink()
    stream = pipeline.source(ListSource(rows, splits=2, batch_rows=5)).rebalance().map(slow)
    if is_changed:
        stream.key_by("j").count().sink(CollectSink())
    stream.key_by("k").count().map(lambda batch: batch).sink(sink)
    return pipeline, sink


def is_busy(manifest: Manifest) -> bool:
    kinds = {piece.kind for report in manifest.reports for piece in report.states}
    return rows_in_flight(manifest) > 0 and StateKind.KEYED in kinds


class TestCheckpointsOfVersion010:
    def killed(self) -> tuple[MemoryStore, CollectSink]:
        pipeline, sink = working(ROWS * 5)
        return killed_when(numbered(pipeline), is_busy), sink

    def test_are_restored_if_the_pipeline_is_the_same(self) -> None:
        store, before = self.killed()
        assert {"source_1", "aggregate_1", "sink_1"} <= {each.name for each in newest(store).shape.operators}  # type: ignore
        pipeline, after = working(ROWS * 5)
        again(pipeline, store)
        assert highest_of(before, after) == {0: 200, 1: 200, 2: 200}
        names = {each.name for each in newest(store).shape.operators}  # type: ignore
        assert names == {each.name for each in plan(pipeline.graph(), 1).shape().operators}

    def test_are_refused_if_an_operator_was_added(self) -> None:
        store, _ = self.killed()
        error = refusal(working(ROWS * 5, is_changed=True)[0], store)
        assert "has positions of source 'source_1', which this pipeline does not have" in str(error)
        assert "give the operator that continues it name='source_1'" in str(error)


def highest_of(*sinks: CollectSink) -> dict[int, int]:
    table = pa.concat_tables([sink.table() for sink in sinks if sink.batches()])
    found = table.group_by("k").aggregate([("count", "max")]).to_pylist()
    return {row["k"]: row["count_max"] for row in found}
