"""Functions of whole batches, with the state of all their keys as columns."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from penstock import BatchFunction, DataError, GeneratorSource, KeyedFunction, Pipeline
from penstock.errors import PipelineError, UserCodeError
from penstock.state import KeyedState
from penstock.storage import MemoryStore
from penstock.testing import ABORT, CHECKPOINT, CollectSink, ListSource, run

ROWS = [{"user": f"u{number % 7}", "amount": float(number)} for number in range(60)]
SCHEMA = "n bigint, total double"


class ByBatch(BatchFunction):
    def open(self, context: Any) -> None:
        self.state = context.value("totals", SCHEMA)

    def process_batch(self, batch: pa.RecordBatch, context: Any) -> Any:
        added = pa.table(batch).group_by("user").aggregate([("amount", "sum"), ("amount", "count")])
        before = self.state.get_batch(added["user"])
        n = pc.add(pc.fill_null(before["n"], 0), added["amount_count"].combine_chunks())
        total = pc.add(pc.fill_null(before["total"], 0.0), added["amount_sum"].combine_chunks())
        self.state.update_batch(added["user"], {"n": n, "total": total})
        return pa.table({"user": added["user"], "n": n, "total": total})


class ByKey(KeyedFunction):
    def open(self, context: Any) -> None:
        self.state = context.value("totals", SCHEMA)

    def process(self, key: Any, rows: Any, context: Any) -> Iterator[pa.RecordBatch]:
        n, total = self.state.get() or (0, 0.0)
        n, total = n + rows.num_rows, total + sum(rows.column("amount").to_pylist())
        self.state.update((n, total))
        yield pa.record_batch({"user": [key[0]], "n": [n], "total": [total]})


def newest(output: CollectSink) -> dict[str, tuple[int, float]]:
    return {row["user"]: (row["n"], row["total"]) for row in output.rows()}


def totals(rows: list[dict[str, Any]]) -> dict[str, tuple[int, float]]:
    found: dict[str, tuple[int, float]] = {}
    for row in rows:
        n, total = found.get(row["user"], (0, 0.0))
        found[row["user"]] = n + 1, total + row["amount"]
    return found


def ran(function: Any, items: list[Any], store: Any = None, parallelism: int = 1) -> CollectSink:
    output, pipeline = CollectSink(), Pipeline("totals")
    stream = pipeline.source(ListSource(items, batch_rows=5), name="rows").key_by("user")
    stream.process(function, name="totals").sink(output, name="output")
    run(pipeline, store=store, parallelism=parallelism)
    return output


@pytest.mark.parametrize("function", [ByBatch, ByKey])
@pytest.mark.parametrize("parallelism", [1, 3])
def test_both_ways_give_the_same(function: Any, parallelism: int) -> None:
    assert newest(ran(function(), [*ROWS], parallelism=parallelism)) == totals(ROWS)


def test_after_a_failure_the_state_is_back() -> None:
    assert newest(ran(ByBatch(), [*ROWS[:30], CHECKPOINT, *ROWS[30:40], ABORT(), *ROWS[40:]])) == totals(ROWS)


@pytest.mark.parametrize("functions", [(ByBatch, ByKey), (ByKey, ByBatch)], ids=["to keys", "to batches"])
def test_each_restores_the_checkpoints_of_the_other(functions: Any) -> None:
    store = MemoryStore()
    first, second = functions
    ran(first(), ROWS[:30], store)
    assert newest(ran(second(), ROWS, store, parallelism=2)) == totals(ROWS)


# --- the state itself ---

KEY = pa.schema([("k", pa.int64()), ("s", pa.string())])
KEYS = pa.record_batch({"k": [1, 2, None, 1], "s": ["a", None, "c", "b"]})


def new_state(groups: range = range(16)) -> KeyedState:
    return KeyedState(groups, 16, KEY)


def test_values_of_many_keys_are_columns_with_null_where_there_is_none() -> None:
    keyed = new_state()
    state = keyed.value("v", pa.schema([("n", pa.int64()), ("x", pa.list_(pa.int64()))]))
    assert state.get_batch(KEYS).to_pylist() == [{"n": None, "x": None}] * 4
    state.update_batch(KEYS.slice(1, 2), {"n": [5, 6], "x": [[1], None]})
    assert state.get_batch(KEYS)["n"].to_pylist() == [None, 5, 6, None]
    assert state.get_batch(KEYS)["x"].to_pylist() == [None, [1], None, None]
    (group,) = keyed.groups_of(KEYS.slice(1, 1))
    keyed.set_key(group, (2, None))
    assert state.get() == (5, [1])
    state.clear_batch(KEYS.slice(0, 2))
    assert state.get() is None
    assert state.get_batch(KEYS)["n"].to_pylist() == [None, None, 6, None]


def test_the_last_value_of_a_key_counts() -> None:
    state = new_state().value("v", pa.schema([("n", pa.int64())]))
    twice = pa.concat_batches([KEYS, KEYS])
    state.update_batch(twice, pa.record_batch({"n": range(8)}))
    assert state.get_batch(KEYS)["n"].to_pylist() == [4, 5, 6, 7]


def test_a_snapshot_stands_still_while_batches_are_written() -> None:
    keyed = new_state()
    state = keyed.value("v", pa.schema([("n", pa.int64())]))
    state.update_batch(KEYS, {"n": [1, 2, 3, 4]})
    version = keyed.snapshot().version("v")
    snapshot = keyed.snapshot()
    state.update_batch(KEYS, {"n": [9, 9, 9, 9]})
    state.clear_batch(KEYS.slice(0, 1))
    assert keyed.snapshot().version("v") > version
    restored = new_state()
    again = restored.value("v", pa.schema([("n", pa.int64())]))
    for piece in snapshot.encode(1 << 20):
        restored.restore(piece.name, [piece.batch])
    assert again.get_batch(KEYS)["n"].to_pylist() == [1, 2, 3, 4]


@pytest.mark.parametrize(
    ("keys", "values", "told"),
    [
        (KEYS, {"n": [1]}, "has 1 values for 4 keys"),
        (KEYS, {"n": ["a"] * 4}, "column 'n' cannot become int64"),
        (KEYS, {"m": [1] * 4}, "takes the columns n: int64, not m"),
        (KEYS.select(["k"]), {"n": [1] * 4}, "keys are a batch with the columns k: int64, s: string, not k: int64"),
        (pa.array([1]), {"n": [1]}, "keys are a batch with the columns"),
    ],
)
def test_keys_and_values_that_do_not_fit_are_refused(keys: Any, values: Any, told: str) -> None:
    state = new_state().value("v", pa.schema([("n", pa.int64())]))
    with pytest.raises(DataError, match=told):
        state.update_batch(keys, values)
    assert state.version == 0


def test_keys_of_another_subtask_are_refused() -> None:
    state = new_state(range(0, 1)).value("v", pa.schema([("n", pa.int64())]))
    many = pa.record_batch({"k": range(50), "s": ["a"] * 50})
    with pytest.raises(DataError, match="belongs to another subtask"):
        state.get_batch(many)


class OneKey(ByBatch):
    def process_batch(self, batch: pa.RecordBatch, context: Any) -> Any:
        self.state.update((1, 1.0))


def test_a_state_has_no_current_key_in_a_batch() -> None:
    with pytest.raises(DataError, match="changed where there is no key"):
        ran(OneKey(), ROWS)


class WithTimer(ByKey):
    def process(self, key: Any, rows: Any, context: Any) -> Iterator[pa.RecordBatch]:
        context.set_timer(context.now_ms() + 10**10)
        return super().process(key, rows, context)


def endless(start: int, count: int) -> pa.RecordBatch:
    return pa.record_batch({"user": ["u"] * count, "amount": [1.0] * count})


def test_nor_has_it_one_behind_timers_that_were_restored() -> None:
    store = MemoryStore()
    for function in (WithTimer(), OneKey()):
        output, pipeline = CollectSink(), Pipeline("totals")
        stream = pipeline.source(GeneratorSource(endless), name="rows").key_by("user")
        stream.process(function, name="totals").sink(output, name="output")
        if isinstance(function, WithTimer):
            run(pipeline, store=store, until=lambda sink=output: bool(sink.batches()))  # type: ignore[misc]
        else:
            with pytest.raises(DataError, match="changed where there is no key"):
                run(pipeline, store=store, restarts=0)


def test_a_batch_function_takes_arrow_and_nothing_else() -> None:
    stream = Pipeline("p").source(ListSource(ROWS)).key_by("user")
    with pytest.raises(PipelineError, match="a BatchFunction takes Arrow batches"):
        stream.process(ByBatch(), format="rows")


class Living(ByBatch):
    def open(self, context: Any) -> None:
        self.state = context.value("totals", SCHEMA, ttl="1 s")
        self.now = context


def test_values_with_a_time_to_live_are_null_when_it_is_over() -> None:
    assert newest(ran(Living(), ROWS)) == totals(ROWS)


def test_values_of_many_keys_expire() -> None:
    from penstock.operators.keyed.ttl import ExpiringValueState, with_expiry

    class Clock:
        now = 0

        def now_ms(self) -> int:
            return self.now

        def call_at(self, at_ms: int, call: Any) -> None: ...

    clock = Clock()
    inner = new_state().value("v", with_expiry(pa.schema([("n", pa.int64())])))
    state = ExpiringValueState(inner, 10, clock)  # type: ignore[arg-type]
    state.update_batch(KEYS, {"n": [1, 2, 3, 4]})
    clock.now = 5
    state.update_batch(KEYS.slice(0, 1), pa.record_batch({"n": [9]}))
    clock.now = 10
    assert state.get_batch(KEYS).to_pylist() == [{"n": 9}, {"n": None}, {"n": None}, {"n": None}]
    state.clear_batch(KEYS)
    assert inner.get_batch(KEYS)["n"].null_count == 4


def test_a_function_that_raises_is_named() -> None:
    class Bad(ByBatch):
        def process_batch(self, batch: pa.RecordBatch, context: Any) -> Any:
            raise ValueError("no")

    with pytest.raises(UserCodeError, match=r"operator 'totals'.*ValueError: no"):
        ran(Bad(), ROWS)


class CountedByBatch(BatchFunction):
    """Rows of each key, whatever the type of the key."""

    def open(self, context: Any) -> None:
        self.state = context.value("rows", "n bigint")

    def process_batch(self, batch: pa.RecordBatch, context: Any) -> Any:
        keys = batch.select(["user"])
        for number in range(batch.num_rows):
            key = keys.slice(number, 1)
            n = pc.add(pc.fill_null(self.state.get_batch(key)["n"], 0), 1)
            self.state.update_batch(key, {"n": n})
        return pa.record_batch([batch.column("user"), self.state.get_batch(keys)["n"]], names=["user", "n"])


@pytest.mark.parametrize(
    "kind",
    [
        pa.struct([("name", pa.string_view()), ("n", pa.int64())]),
        pa.struct([("name", pa.struct([("first", pa.string_view()), ("b", pa.binary_view())]))]),
        pa.struct([("name", pa.dictionary(pa.int8(), pa.string()))]),
    ],
    ids=str,
)
def test_keys_may_be_structs_of_views_and_dictionaries(kind: pa.DataType) -> None:
    numbers = range(24)
    if pa.types.is_struct(kind.field(0).type):
        values = [{"name": {"first": f"u{number % 3}" * 9, "b": b"b" * (number % 2)}} for number in numbers]
    elif kind.num_fields == 1:
        values = [{"name": f"u{number % 6}"} for number in numbers]
    else:
        values = [{"name": f"u{number % 3}" * 9, "n": number % 2} for number in numbers]

    def make(start: int, count: int) -> pa.RecordBatch:
        return pa.record_batch([pa.array(values, kind).slice(start, count)], names=["user"])

    output, pipeline = CollectSink(), Pipeline("counted")
    source = GeneratorSource(make, rows=len(values), block_rows=5, splits=2)
    pipeline.source(source, name="rows").key_by("user").process(CountedByBatch()).sink(output)
    run(pipeline, parallelism=2, crash_after_checkpoints=1, store=MemoryStore())
    newest_of = {repr(row["user"]): row["n"] for row in output.rows()}
    assert newest_of == {repr(value): 4 for value in values}
