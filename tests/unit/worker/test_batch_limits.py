"""`batch_rows` and `batch_time`: how many records a call gets, and how long they wait for each other."""

from __future__ import annotations

import functools
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from penstock import KeyedFunction, Pipeline, PipelineError
from penstock.graph.logical import Graph, LogicalEdge, Node
from penstock.operators.contract import BatchLimits, with_limits
from penstock.operators.flat_map import FlatMapOperator
from penstock.operators.keyed.process import ProcessOperator
from penstock.operators.stateless import FilterOperator, MapOperator
from penstock.protocol.manifest import Partitioning
from penstock.testing import CollectSink, ListSource, run
from tests.unit.mailbox.fake_ports import (
    LEFT,
    MAP,
    REBALANCE,
    RIGHT,
    WRITE,
    Bench,
    Numbers,
    Staging,
    barrier,
    unaligned,
)

Calls = list[list[int]]


class Watched(KeyedFunction):
    def __init__(self, calls: Calls) -> None:
        self.calls = calls

    def __deepcopy__(self, memo: object) -> Watched:
        return self

    def process(self, key: Any, rows: pa.RecordBatch, context: Any) -> None:
        self.calls.append(rows["v"].to_pylist())


def operator(kind: str, calls: Calls) -> Any:
    def function(batch: pa.RecordBatch) -> Any:
        calls.append(batch["v"].to_pylist())
        return pc.greater(batch["v"], 0) if kind == "filter" else batch

    if kind == "process":
        return functools.partial(ProcessOperator, Watched(calls), ("v",), "arrow", None, True, "none")
    made = {"map": MapOperator, "filter": FilterOperator, "flat_map": FlatMapOperator}[kind]
    return functools.partial(made, function, "arrow")


def started(kind: str, rows: int | None, time_ms: int, **settings: int) -> tuple[Bench, Calls]:
    """left, right -> one input of the operator -> write."""
    calls: Calls = []
    made = functools.partial(with_limits, operator(kind, calls), BatchLimits(rows, time_ms))
    how = Partitioning.HASH if kind == "process" else REBALANCE
    key = ("v",) if kind == "process" else ()
    graph = Graph(
        "limits",
        (
            *(Node(name, source=Numbers({}), parallelism=1) for name in (LEFT, RIGHT)),
            Node(MAP, operator=made, parallelism=2),
            Node(WRITE, sink=Staging(), parallelism=1),
        ),
        (*(LogicalEdge(name, MAP, how, 0, key) for name in (LEFT, RIGHT)), LogicalEdge(MAP, WRITE, REBALANCE)),
    )
    return Bench(graph, **settings).started(), calls


KINDS = "map", "filter", "flat_map", "process"


@pytest.mark.parametrize("kind", ["map", "filter", "flat_map"])
def test_no_call_gets_more_rows_than_the_bound(kind: str) -> None:
    bench, calls = started(kind, 2, 0)
    bench.batch(LEFT, 1, 2, 3, 4, 5)
    bench.work()
    assert calls == [[1, 2], [3, 4], [5]]


def test_no_call_of_a_keyed_function_gets_more_rows_than_the_bound() -> None:
    bench, calls = started("process", 2, 0)
    bench.batch(LEFT, 1, 1, 2, 1, 1, 1)
    bench.work()
    assert calls == [[1, 1], [1, 1], [1], [2]]


@pytest.mark.parametrize("kind", KINDS)
class TestRecordsWaitForOthers:
    def test_until_their_time_is_over(self, kind: str) -> None:
        bench, calls = started(kind, 100, 50)
        bench.batch(LEFT, 1)
        bench.work()
        bench.pass_time(30)
        bench.batch(RIGHT, 1)
        bench.work()
        assert calls == []
        bench.pass_time(20)
        bench.work()
        assert calls == [[1, 1]]

    def test_until_there_are_enough(self, kind: str) -> None:
        bench, calls = started(kind, 4, 50)
        bench.batch(LEFT, 1, 1)
        bench.work()
        bench.batch(RIGHT, 1, 1, 1)
        bench.work()
        assert [1] * 4 in calls
        rest = sum(len(call) for call in calls[1:])
        bench.pass_time(50)
        bench.work()
        assert sum(len(call) for call in calls) == 5 and rest <= 1

    def test_and_those_that_come_later_wait_anew(self, kind: str) -> None:
        bench, calls = started(kind, 100, 50)
        bench.batch(LEFT, 1)
        bench.work()
        bench.pass_time(50)
        bench.work()
        bench.batch(LEFT, 2)
        bench.work()
        bench.pass_time(49)
        bench.work()
        assert calls == [[1]]
        bench.pass_time(1)
        bench.work()
        assert calls == [[1], [2]]

    def test_but_not_in_front_of_an_aligned_barrier(self, kind: str) -> None:
        bench, calls = started(kind, 100, 50)
        bench.batch(LEFT, 1)
        bench.work()
        bench.barrier(LEFT, barrier(1))
        bench.work()
        assert calls == [[1]]

    def test_and_are_data_in_flight_for_an_unaligned_one(self, kind: str) -> None:
        bench, calls = started(kind, 100, 50)
        bench.batch(LEFT, 1)
        bench.work()
        bench.barrier(LEFT, unaligned(1))
        bench.barrier(RIGHT, unaligned(1))
        (frame,) = bench.acknowledged()
        assert sum(segment.rows for segment in frame.report.channels) == 1
        assert calls == []
        bench.pass_time(50)
        bench.work()
        assert calls == [[1]]

    def test_but_not_in_front_of_a_watermark_or_an_end(self, kind: str) -> None:
        bench, calls = started(kind, 100, 50)
        bench.batch(LEFT, 1)
        bench.work()
        bench.watermark(LEFT, 10)
        bench.work()
        bench.batch(RIGHT, 2)
        bench.work()
        bench.end(RIGHT)
        bench.work()
        assert calls == [[1], [2]]

    def test_but_not_where_their_sender_has_little_credit_left(self, kind: str) -> None:
        bench, calls = started(kind, 100, 50, credit_limit_bytes=32)
        bench.batch(LEFT, 1)
        bench.work()
        assert calls == []
        bench.batch(LEFT, 1)
        bench.work()
        assert calls == [[1, 1]]


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"batch_rows": 0}, "batch_rows is 0"),
        ({"batch_rows": "many"}, "batch_rows is 'many'"),
        ({"batch_time": "soon"}, "batch_time"),
        ({"batch_time": -1}, "batch_time"),
    ],
)
def test_limits_are_checked_at_the_call(options: Any, reason: str) -> None:
    stream = Pipeline("p").source(ListSource([{"v": 1}]), name="read")
    for call in (stream.map, stream.filter, stream.flat_map):
        with pytest.raises(PipelineError, match=reason):
            call(lambda batch: batch, **options)
    with pytest.raises(PipelineError, match=reason):
        stream.key_by("v").process(Watched([]), **options)


def test_limits_are_not_for_functions_of_rows_nor_for_expressions() -> None:
    stream = Pipeline("p").source(ListSource([{"v": 1}]), name="read")
    for call in (stream.map, stream.filter, stream.flat_map):
        with pytest.raises(PipelineError, match="once per row"):
            call(lambda row: row, format="rows", batch_rows=2)
    with pytest.raises(PipelineError, match="apply to functions"):
        stream.filter(pc.field("v") > 0, batch_rows=2)


def test_a_function_behind_a_source_gathers_in_a_chain_of_its_own() -> None:
    seen: list[int] = []

    def watched(batch: pa.RecordBatch) -> pa.RecordBatch:
        seen.append(batch.num_rows)
        return batch

    pipeline, output = Pipeline("p"), CollectSink()
    read = pipeline.source(ListSource([{"v": number} for number in range(10)]), name="read")
    read.map(watched, batch_rows=4, batch_time="10 s").sink(output)
    run(pipeline)
    assert sorted(row["v"] for row in output.rows()) == list(range(10))
    assert max(seen) <= 4
