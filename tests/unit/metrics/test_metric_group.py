"""Metrics that users define: typed once, shown by operator, exact over restarts."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from penstock import KeyedFunction, OptionError, Pipeline, TwoInputFunction
from penstock.ids import OperatorName
from penstock.metrics.group import MetricGroup
from penstock.metrics.registry import Registry
from penstock.storage import MemoryStore
from penstock.testing import CollectSink, ListSource, Result, run


class Counting(KeyedFunction):
    def open(self, context: Any) -> None:
        self.rows = context.metrics.counter("rows_seen", unit="rows")

    def process(self, key: Any, rows: Any, context: Any) -> None:
        self.rows.add(rows.num_rows)


def counted(rows: int, store: MemoryStore | None = None, function: Any = None, **options: Any) -> Result:
    pipeline = Pipeline("p")
    source = pipeline.source(ListSource([{"k": n % 7} for n in range(rows)], batch_rows=5), name="read")
    counting = source.key_by("k").process(function or Counting(), schema="k long", name="count")
    counting.sink(CollectSink(), name="out")
    return run(pipeline, store=store, **options)


def group(registry: Registry) -> MetricGroup:
    return MetricGroup(registry.of(OperatorName("enrich"), 0), "operator 'enrich'")


def test_a_counter_is_exact_through_crashes_and_at_another_parallelism() -> None:
    store = MemoryStore()
    first = counted(200, store, parallelism=2, crash_after_checkpoints=[1, 2])
    assert first.restarts == 2 and first.metrics.value("rows_seen", "count") == 200
    again = counted(300, store, parallelism=3, crash_after_checkpoints=1)
    assert again.metrics.value("rows_seen", "count") == 300


def test_a_function_of_two_inputs_has_metrics_too() -> None:
    class Both(TwoInputFunction):
        def open(self, context: Any) -> None:
            self.left = context.metrics.counter("left_rows")

        def process_left(self, batch: pa.RecordBatch, context: Any) -> None:
            self.left.add(batch.num_rows)

        def process_right(self, batch: pa.RecordBatch, context: Any) -> None:
            pass

    pipeline = Pipeline("p")
    left, right = (pipeline.source(ListSource([{"k": 1}] * 4), name=name) for name in ("left", "right"))
    both = left.key_by("k").connect(right.key_by("k")).process(Both(), schema="k long", name="both")
    both.sink(CollectSink(), name="out")
    assert run(pipeline).metrics.value("left_rows", "both") == 4


def test_the_same_name_is_the_same_instrument() -> None:
    registry = Registry()
    metrics = group(registry)
    assert metrics.counter("a") is metrics.counter("a")
    assert metrics.gauge("b", over="least") is metrics.gauge("b", over="least")
    assert metrics.histogram("c") is metrics.histogram("c")
    metrics.gauge("b", over="least").set(3)
    assert {sample.name: sample.value for sample in registry.samples()} == {"a": 0, "b": 3, "c": 0}


@pytest.mark.parametrize(
    ("define", "message"),
    [
        (lambda metrics: metrics.counter("Rows seen"), "a name consists of lower-case letters"),
        (lambda metrics: (metrics.counter("n"), metrics.gauge("n")), "metric 'n' is already defined differently"),
        (lambda metrics: (metrics.counter("n"), metrics.counter("n", unit="rows")), "choose another name"),
    ],
)
def test_a_wrong_definition_is_refused_with_the_way_out(define: Any, message: str) -> None:
    with pytest.raises(OptionError, match=message):
        define(group(Registry()))


def test_a_name_of_penstock_ends_the_pipeline_at_once() -> None:
    class Taken(Counting):
        def open(self, context: Any) -> None:
            self.rows = context.metrics.counter("num_records_in")

    with pytest.raises(OptionError, match="operator 'count': metric 'num_records_in' is already defined differently"):
        counted(10, function=Taken())
