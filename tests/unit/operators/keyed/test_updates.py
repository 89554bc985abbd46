"""Updates that a reader can order, values that are emitted once at the end, and the current table of an output."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from penstock import (
    DataError,
    FileSource,
    GeneratorSource,
    IncompatibleCheckpoint,
    JsonLinesSink,
    ParquetSink,
    Pipeline,
    PipelineError,
    read_latest,
)
from penstock.model.aggregates import Aggregate
from penstock.model.triggers import Trigger
from penstock.operators.keyed.aggregate import AggregateOperator
from penstock.protocol.coordinator.state import Policy
from penstock.testing import ABORT, CHECKPOINT, CollectSink, ListSource, Schedule, run
from tests.unit.operators.keyed.bench import Bench


def orders(count: int, first: int = 0) -> list[dict[str, Any]]:
    return [{"customer": n % 5, "amount": n % 7 - 3} for n in range(first, first + count)]


def with_failures(count: int) -> list[Any]:
    """Orders with crashes in between."""
    half = count // 2
    return [*orders(half), CHECKPOINT, *orders(10, half), ABORT(), *orders(count - half - 10, half + 10)]


def later(row: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    assert row.keys() == other.keys()
    return {**other, "amount": row["amount"] + other["amount"]}


AGGREGATES = {
    "aggregate": lambda s, **more: s.aggregate(amount=("sum", "amount"), **more),
    "sum": lambda s, **more: s.sum("amount", **more),
    "reduce": lambda s, **more: s.reduce(later, **more),
}


def totals(count: int) -> dict[int, tuple[int, int]]:
    """By customer: the sum of all amounts, and how many there are."""
    found: dict[int, tuple[int, int]] = defaultdict(lambda: (0, 0))
    for row in orders(count):
        total, number = found[row["customer"]]
        found[row["customer"]] = total + row["amount"], number + 1
    return dict(found)


def running(how: str, sink: Any, rows: list[Any], **more: Any) -> Pipeline:
    pipeline = Pipeline("p")
    keyed = pipeline.source(ListSource(rows, batch_rows=7)).key_by("customer")
    AGGREGATES[how](keyed, name="totals", **more).sink(sink, name="output")
    return pipeline


class TestSequence:
    @pytest.mark.parametrize("how", AGGREGATES)
    @pytest.mark.parametrize("seed", range(5))
    def test_orders_the_updates_of_a_key_through_failures_and_a_rescale(self, how: str, seed: int) -> None:
        sink, schedule = CollectSink(), Schedule(seed)
        pipeline = running(how, sink, with_failures(150), sequence="version")
        store = run(pipeline, parallelism=2, workers=2, crash_after_checkpoints=2, schedule=schedule).store
        run(running(how, sink, [*with_failures(150), *orders(50, 150)], sequence="version"), parallelism=3, store=store)
        versions = defaultdict(list)
        for row in sink.rows():
            versions[row["customer"]].append((row["version"], row["amount"]))
        for customer, found in versions.items():
            numbers = [version for version, _ in found]
            assert len(set(numbers)) == len(numbers)
            assert max(found) == totals(200)[customer][::-1]
        assert sink.table().schema.field("version").type == pa.int64()

    def test_is_the_same_for_the_same_row_whatever_the_size_of_batches(self) -> None:
        found = []
        for batch_rows in (1, 7, 100):
            pipeline, sink = Pipeline("p"), CollectSink()
            source = pipeline.source(ListSource(orders(100), batch_rows=batch_rows))
            source.key_by("customer").sum("amount", sequence="version").sink(sink)
            run(pipeline)
            found.append({(row["customer"], row["version"]): row["amount"] for row in sink.rows()})
        assert found[1].items() <= found[0].items()
        assert found[2].items() <= found[0].items()

    @pytest.mark.parametrize(
        ("more", "message"),
        [
            ({"sequence": ("max", "v")}, "no output can be named 'sequence'"),
            ({"sequence": "amount"}, "'amount' names both the sequence column and an output"),
            ({"sequence": "customer"}, "an output has the name of a key column"),
            (
                {"emit": "count"},
                "emit is 'count': it must be 'updates', 'changelog', 'final', a duration such as '5 s'",
            ),
            ({"emit": "0 rows"}, "or a number of records of a key such as '1000 rows'"),
            ({"emit": "0 s"}, "emit is '0 s': it must be"),
        ],
    )
    def test_a_mistake_is_found_at_once(self, more: dict[str, Any], message: str) -> None:
        with pytest.raises(PipelineError, match=message):
            running("aggregate", CollectSink(), orders(1), **more)

    def test_of_reduce_needs_a_name_of_its_own(self) -> None:
        with pytest.raises(DataError, match="already have a column 'amount': give the sequence another name"):
            run(running("reduce", CollectSink(), orders(1), sequence="amount"), restarts=0)

    def test_of_reduce_is_compared_with_the_checkpoint(self) -> None:
        store = run(running("reduce", CollectSink(), orders(10))).store
        with pytest.raises(IncompatibleCheckpoint, match="whose sequence was not set and is version here"):
            run(running("reduce", CollectSink(), orders(20), sequence="version"), store=store)


class TestFinal:
    @pytest.mark.parametrize("how", AGGREGATES)
    @pytest.mark.parametrize("seed", range(5))
    def test_is_emitted_once_and_after_more_input_for_the_keys_that_had_some(self, how: str, seed: int) -> None:
        sink = CollectSink()
        first = running(how, sink, with_failures(100), emit="final", sequence="version")
        result = run(first, parallelism=2, workers=2, crash_after_checkpoints=1, schedule=Schedule(seed))
        assert values(sink) == sorted((k, total, n) for k, (total, n) in totals(100).items())
        # Nothing has come: nothing is emitted.
        run(running(how, sink, with_failures(100), emit="final", sequence="version"), store=result.store)
        assert len(sink.rows()) == 5
        more = [*with_failures(100), *({"customer": 3, "amount": 1},) * 4]
        run(running(how, sink, more, emit="final", sequence="version"), parallelism=3, store=result.store)
        total, number = totals(100)[3]
        assert len(sink.rows()) == 6
        assert (3, total + 4, number + 4) in values(sink)

    @pytest.mark.parametrize(
        "source", [GeneratorSource(lambda start, count: None, splits=1), FileSource("/data/in", watch=True)]
    )
    def test_is_refused_where_the_input_never_ends(self, source: Any) -> None:
        pipeline = Pipeline("p")
        stream = pipeline.source(source, name="read").map(lambda batch: batch)
        stream.key_by("customer").count(emit="final", name="count").sink(CollectSink())
        with pytest.raises(PipelineError, match=r"'count' emits at the end .* source 'read' never ends: leave out"):
            pipeline.graph()


class TestTriggers:
    """An aggregate without a window is one of a window without an end, and `emit` is its trigger."""

    @pytest.mark.parametrize("how", AGGREGATES)
    @pytest.mark.parametrize("emit", ["1 ms", "7 rows"])
    @pytest.mark.parametrize("seed", range(3))
    def test_the_last_row_of_a_key_is_its_value_through_failures_and_a_rescale(
        self, how: str, emit: str, seed: int
    ) -> None:
        sink = CollectSink()
        options = {"emit": emit, "sequence": "version"}
        first = running(how, sink, with_failures(150), **options)
        store = run(first, parallelism=2, workers=2, crash_after_checkpoints=2, schedule=Schedule(seed)).store
        run(running(how, sink, [*with_failures(150), *orders(50, 150)], **options), parallelism=3, store=store)
        versions = defaultdict(list)
        for customer, amount, version in values(sink):
            versions[customer].append((version, amount))
        assert {customer: max(found)[::-1] for customer, found in versions.items()} == totals(200)

    @pytest.mark.parametrize("how", ["aggregate", "reduce"])
    def test_a_key_is_emitted_when_it_has_had_that_many_records_and_the_rest_at_the_end(self, how: str) -> None:
        sink = CollectSink()
        rows = [{"customer": customer, "amount": 1} for customer in [1, 1, 2, 1, 1, 2, 1, 1, 1, 1, 1]]
        pipeline = Pipeline("p")
        keyed = pipeline.source(ListSource(rows, batch_rows=1)).key_by("customer")
        AGGREGATES[how](keyed, emit="4 rows").sink(sink)
        store = run(pipeline).store
        assert [(row["customer"], row["amount"]) for row in sink.rows()] == [(1, 4), (1, 8), (1, 9), (2, 2)]
        # None is pending after the end.
        pipeline = Pipeline("p")
        keyed = pipeline.source(ListSource([*rows, *rows[:3]], batch_rows=1)).key_by("customer")
        AGGREGATES[how](keyed, emit="4 rows").sink(sink)
        run(pipeline, store=store)
        assert [(row["customer"], row["amount"]) for row in sink.rows()][4:] == [(1, 11), (2, 3)]

    def test_a_batch_with_more_records_than_that_emits_a_key_once(self) -> None:
        bench = by_trigger(Trigger(rows=2))
        bench.process(pa.record_batch({"k": [1, 1, 1, 1, 1, 2], "v": [1] * 6}))
        assert totals_of(bench) == [(1, 5)]
        bench.process(pa.record_batch({"k": [1, 2], "v": [1, 1]}))
        assert totals_of(bench) == [(1, 5), (2, 2)]

    def test_the_clock_emits_keys_that_have_changed_and_no_others(self) -> None:
        bench = by_trigger(Trigger(every_ms=100))
        bench.process(pa.record_batch({"k": [1, 2, 1], "v": [1, 2, 3]}))
        assert totals_of(bench) == []
        tick(bench)
        assert totals_of(bench) == [(2, 2), (1, 4)]
        tick(bench)
        bench.process(pa.record_batch({"k": [2], "v": [5]}))
        tick(bench)
        assert totals_of(bench) == [(2, 2), (1, 4), (2, 7)]

    def test_many_keys_are_emitted_in_steps_and_a_checkpoint_in_between_holds_the_others(self) -> None:
        bench = by_trigger(Trigger(every_ms=100))
        keys = list(range(10_000))
        bench.process(pa.record_batch({"k": keys, "v": keys}))
        [(_, call)] = bench.context.timers
        bench.context.timers.clear()
        call()
        (steps,) = [each for each in bench.context.owed if next(each, 0) is None]
        first = totals_of(bench)
        assert 0 < len(first) < len(keys)
        again = bench.restored(lambda: summing(Trigger(every_ms=100)))
        tick(again)
        assert sorted(first + totals_of(again)) == [(key, key) for key in keys]
        # Its time comes again before it is done: no key is emitted by two rounds.
        call()
        for _ in steps:
            pass
        assert sorted(totals_of(bench)) == [(key, key) for key in keys]


def summing(trigger: Trigger) -> AggregateOperator:
    return AggregateOperator([Aggregate("sum", "v", "total")], trigger)


def by_trigger(trigger: Trigger) -> Bench:
    return Bench(summing(trigger), ("k",)).begin()


def tick(bench: Bench) -> None:
    """The next timer is due, and what it begins is done."""
    at_ms, call = bench.context.timers.pop(0)
    bench.context.clock_ms = at_ms
    call()
    while bench.context.owed:
        for _ in bench.context.owed.pop(0):
            pass


def totals_of(bench: Bench) -> list[tuple[int, int]]:
    return [(row["k"], row["total"]) for batch in bench.emitted for row in batch.to_pylist()]


def values(sink: CollectSink) -> list[tuple[int, int, int]]:
    return sorted((row["customer"], row["amount"], row["version"]) for row in sink.rows())


class TestUpsert:
    @pytest.mark.parametrize(("made", "form"), [(ParquetSink, "parquet"), (JsonLinesSink, "json")])
    def test_the_current_table_is_read_from_the_output(self, tmp_path: Path, made: Any, form: str) -> None:
        sink = made(tmp_path / "out", upsert="customer", by="version")
        run(running("sum", sink, with_failures(300), sequence="version"), parallelism=2, crash_after_checkpoints=2)
        table = read_latest(tmp_path / "out", key="customer", by="version", format=form)
        found = {row["customer"]: (row["amount"], row["version"]) for row in table.to_pylist()}
        assert found == totals(300)

    def test_one_row_of_a_key_is_written_in_a_checkpoint(self, tmp_path: Path) -> None:
        # There are updates in every batch, and one checkpoint at the end.
        plain, upsert = tmp_path / "plain", tmp_path / "upsert"
        policy = Policy(interval_ms=None)
        run(running("sum", ParquetSink(plain), orders(100), sequence="version"), policy=policy)
        sink = ParquetSink(upsert, upsert=["customer"], by="version")
        run(running("sum", sink, orders(100), sequence="version"), policy=policy)
        assert pq.read_table(upsert).num_rows == 5
        latest = [read_latest(each, key="customer", by="version") for each in (plain, upsert)]
        assert sorted(latest[0].to_pylist(), key=str) == sorted(latest[1].to_pylist(), key=str)

    def test_null_is_a_key(self, tmp_path: Path) -> None:
        pq.write_table(pa.table({"k": ["a", None, None], "n": [1, 1, 2], "place": [7, 8, 9]}), tmp_path / "a.parquet")
        table = read_latest(tmp_path, key=["k"], by="n")
        assert table.to_pylist() == [{"k": "a", "n": 1, "place": 7}, {"k": None, "n": 2, "place": 9}]

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"upsert": "k"}, "upsert needs the column that says which row of a key is newer"),
            ({"by": "n"}, "name its columns with upsert="),
            ({"upsert": [], "by": "n"}, "upsert takes the key"),
        ],
    )
    def test_a_mistake_is_found_at_once(self, options: dict[str, Any], message: str) -> None:
        with pytest.raises(PipelineError, match=message):
            ParquetSink("/data/out", **options)

    def test_rows_without_the_column_are_an_error(self, tmp_path: Path) -> None:
        sink = ParquetSink(tmp_path, upsert="customer", by="nope")
        with pytest.raises(DataError, match="upsert: column 'nope' not found"):
            run(running("sum", sink, orders(10)), restarts=0)
