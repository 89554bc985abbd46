"""A pipeline is compared with its checkpoint whole before anything starts: each change, on the real engine.

Every test takes a checkpoint with one version of a pipeline, kills it, and starts another version on the same store.
"""

from __future__ import annotations

import time
from typing import Any

import pyarrow as pa

from penstock.api.functions import KeyedFunction, TwoInputFunction
from penstock.api.stream import Pipeline
from penstock.connectors.collect import CollectSink
from penstock.connectors.generator import GeneratorSource
from penstock.connectors.memory import ListSource
from penstock.protocol.manifest import Manifest, committables_of
from penstock.storage import MemoryStore
from tests.unit.runtime.changed_pipelines import (
    UnmarkedStore,
    again,
    killed_when,
    refusal,
    rows_in_flight,
)


def numbers(start: int, count: int) -> pa.RecordBatch:
    values = list(range(start, start + count))
    return pa.record_batch({"a": values, "b": [value * 7919 % 1000 for value in values]})


ENDLESS = GeneratorSource(numbers, splits=2)


def slow(batch: Any, _: Any = None) -> Any:
    time.sleep(0.0005 * batch.num_rows)
    return batch


def in_flight(manifest: Manifest) -> bool:
    return rows_in_flight(manifest) > 0


def has_state(manifest: Manifest) -> bool:
    return any(report.states for report in manifest.reports)


class Counts(KeyedFunction):
    """Counts rows by key, or not yet."""

    def __init__(self, is_counting: bool = True) -> None:
        self.is_counting = is_counting

    def open(self, context: Any) -> None:
        self.count = context.value("count", "n bigint")

    def process(self, key: Any, rows: Any, context: Any) -> Any:
        slow(rows)
        if self.is_counting:
            (n,) = self.count.get() or (0,)
            self.count.update((n + rows.num_rows,))


class Remembers(TwoInputFunction):
    """Keeps the last value of each side by key."""

    def open(self, context: Any) -> None:
        self.last = context.value("last", "n bigint")

    def process_left(self, batch: Any, context: Any) -> Any:
        for _, rows in context.each_key(batch):
            self.last.update((rows.num_rows,))

    process_right = process_left


# --- keys ---


def mapped(key: str) -> Pipeline:
    pipeline = Pipeline("p")
    pipeline.source(ENDLESS, name="read").key_by(key).map(slow, name="slow").sink(CollectSink(), name="out")
    return pipeline


def counted(*key: str, is_counting: bool = True) -> Pipeline:
    pipeline = Pipeline("p")
    keyed = pipeline.source(ENDLESS, name="read").key_by(*key)
    keyed.process(Counts(is_counting), name="count").sink(CollectSink(), name="out")
    return pipeline


def connected(left: str, right: str, function: Any = slow, *, is_swapped: bool = False) -> Pipeline:
    pipeline = Pipeline("p")
    streams = [pipeline.source(ENDLESS, name="one"), pipeline.source(ENDLESS, name="two")]
    one, two = reversed(streams) if is_swapped else streams
    one.key_by(left).connect(two.key_by(right)).process(function, name="both").sink(CollectSink(), name="out")
    return pipeline


class TestAnotherKey:
    def test_is_refused_with_records_in_flight(self) -> None:
        store = killed_when(mapped("a"), in_flight)
        error = refusal(mapped("b"), store)
        assert "in flight on the edge read->slow, whose key was (a) and is (b) here: put it back, or start" in str(
            error
        )

    def test_is_refused_in_flight_even_if_the_state_behind_is_empty(self) -> None:
        store = killed_when(counted("a", is_counting=False), in_flight)
        assert "whose key was (a) and is (b, a) here" in str(refusal(counted("b", "a"), store))

    def test_is_refused_in_flight_on_the_right_side_of_a_connection(self) -> None:
        def is_right_in_flight(manifest: Manifest) -> bool:
            return any(channel.edge.input == 1 for report in manifest.reports for channel in report.channels)

        store = killed_when(connected("a", "a"), is_right_in_flight)
        assert "two->both#1, whose key was (a) and is (b) here" in str(refusal(connected("a", "b"), store))

    def test_is_refused_with_keyed_state_on_either_side_of_a_connection(self) -> None:
        store = killed_when(connected("a", "a", Remembers()), has_state)
        assert "keyed by (a) on input 1, but here it is keyed by (b)" in str(
            refusal(connected("a", "b", Remembers()), store)
        )
        assert "keyed by (a), but here it is keyed by (b)" in str(refusal(connected("b", "a", Remembers()), store))

    def test_of_another_order_is_another_key(self) -> None:
        store = killed_when(counted("a", "b"), has_state)
        assert "keyed by (a, b), but here it is keyed by (b, a)" in str(refusal(counted("b", "a"), store))

    def test_is_allowed_if_nothing_is_in_flight_and_there_is_no_state(self) -> None:
        rows = [{"a": n, "b": n % 3} for n in range(100)]

        def pipeline(key: str, out: CollectSink, more: int = 0) -> Pipeline:
            described = Pipeline("p")
            source = described.source(ListSource(rows[: 50 + more]), name="read")
            source.key_by(key).map(lambda batch: batch, name="map").sink(out, name="out")
            return described

        store, first, second = MemoryStore(), CollectSink(), CollectSink()
        again(pipeline("a", first), store)
        again(pipeline("b", second, 50), store)
        assert sorted(row["a"] for row in [*first.rows(), *second.rows()]) == list(range(100))


def test_inputs_that_are_swapped_are_refused_with_state() -> None:
    store = killed_when(connected("a", "a", Remembers()), has_state)
    error = str(refusal(connected("a", "a", Remembers(), is_swapped=True), store))
    # Records may be in flight as well: either reason is one.
    assert "whose input 0 was 'one', which is input 1 here: connect the streams in the old order" in error


# --- output ---


def written(name: str, sink: CollectSink, more: int = 0) -> Pipeline:
    pipeline = Pipeline("p")
    rows = [{"k": n % 5, "n": n} for n in range(200 + more)]
    pipeline.source(ListSource(rows, batch_rows=10), name="read").sink(sink, name=name)
    return pipeline


class TestOutputOfASinkThatIsGone:
    def killed(self) -> MemoryStore:
        unmarked = killed_when(written("out", CollectSink()), lambda m: bool(committables_of(m)), store=UnmarkedStore())
        store = MemoryStore()
        for path in unmarked.list(""):
            store.create(path, unmarked.read(path))
        return store

    def test_is_refused_at_the_start_if_it_is_not_published(self) -> None:
        error = str(refusal(written("output", CollectSink()), self.killed()))
        assert "has output of sink 'out' that is not published yet, and this pipeline has no such sink" in error
        assert "put it back under that name" in error

    def test_is_published_with_the_old_name_and_then_the_sink_may_be_renamed(self) -> None:
        store, old, new = self.killed(), CollectSink(), CollectSink()
        again(written("out", old), store)
        again(written("output", new, more=50), store)
        assert sorted(row["n"] for row in [*old.rows(), *new.rows()]) == list(range(250))
