"""Columnar aggregates against plain Python: any key, any batches, any moment of a snapshot, any parallelism."""

from __future__ import annotations

import datetime
import decimal
import gc
import math
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.columnar.hashing import key_groups
from penstock.errors import DataError, PipelineError, ProtocolViolation, RestoreError
from penstock.protocol.key_groups import key_groups_of
from penstock.state import Aggregate, AggregateState, Function, KeyedPiece, KeyedState
from penstock.state.index import key_index
from penstock.state.index.key_index import KeySnapshot

GROUPS = 16
FUNCTIONS: list[Function] = ["sum", "count", "min", "max", "mean", "first", "last"]
ALL = [Aggregate(function, "v", function) for function in FUNCTIONS] + [Aggregate("count", None, "rows")]
SUM = [Aggregate("sum", "v", "sum")]
EVERYTHING = range(GROUPS)

Entry = tuple[Any, Any]


def state_of(
    aggregates: list[Aggregate] = ALL, owned: range = EVERYTHING, key: tuple[str, ...] = ("k",)
) -> AggregateState:
    return AggregateState("s", key, aggregates, owned, GROUPS)


def batch_of(rows: list[Entry], key: pa.DataType | None = None, value: pa.DataType | None = None) -> pa.RecordBatch:
    keys, values = [k for k, _ in rows], [v for _, v in rows]
    return pa.record_batch({"k": pa.array(keys, key or pa.int64()), "v": pa.array(values, value or pa.int64())})


def canonical(key: Any) -> Any:
    """A key as a dictionary finds it: one NaN, one zero, and nothing that cannot be hashed."""
    if isinstance(key, float):
        return "nan" if math.isnan(key) else key + 0.0
    return tuple((name, canonical(item)) for name, item in key.items()) if isinstance(key, dict) else key


def expected(rows: list[Entry]) -> dict[Any, tuple[Any, ...]]:
    by_key: dict[Any, list[Any]] = {}
    for key, value in rows:
        by_key.setdefault(canonical(key), []).append(value)
    return {key: _aggregates(values) for key, values in by_key.items()}


def _aggregates(values: list[Any]) -> tuple[Any, ...]:
    known = [value for value in values if value is not None]
    if not known:
        return (None, 0, None, None, None, None, None, len(values))
    order = sorted(known, key=lambda value: (isinstance(value, float) and math.isnan(value), value))
    total = sum(known)
    shown = (total, len(known), order[0], order[-1], total / len(known), known[0], known[-1], len(values))
    return tuple("nan" if isinstance(item, float) and math.isnan(item) else item for item in shown)


def found(batch: pa.RecordBatch | None) -> dict[Any, tuple[Any, ...]]:
    if batch is None:
        return {}
    batch.validate(full=True)
    rows = batch.to_pylist()
    content = {canonical(row.pop("k")): tuple(canonical(item) for item in row.values()) for row in rows}
    assert len(content) == len(rows), "a key comes twice"
    return content


def restored_from(
    pieces: list[KeyedPiece], aggregates: list[Aggregate] = ALL, owned: range = EVERYTHING
) -> AggregateState:
    state = state_of(aggregates, owned)
    for piece in pieces:
        state.restore([through_ipc(piece.batch)])
    return state


def through_ipc(batch: pa.RecordBatch) -> pa.RecordBatch:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    (read,) = pa.ipc.open_stream(sink.getvalue())
    return read


KEYS: dict[str, tuple[pa.DataType, list[Any]]] = {
    "int64": (pa.int64(), [0, 1, -1, 2**63 - 1, -(2**63), 7_919, None]),
    "int8": (pa.int8(), [0, 1, -128, 127, None]),
    "uint64": (pa.uint64(), [0, 2**64 - 1, 2**63, None]),
    "bool": (pa.bool_(), [True, False, None]),
    "double": (pa.float64(), [0.0, -0.0, math.nan, -math.nan, 1.5, math.inf, None]),
    "float": (pa.float32(), [0.0, -0.0, math.nan, 1.5, None]),
    "string": (pa.string(), ["", "a", "b", "a" * 300, "ä", None]),
    "string_view": (pa.string_view(), ["", "a", "b" * 50, None]),
    "binary": (pa.binary(), [b"", b"\0", b"\0\0", None]),
    "fixed": (pa.binary(3), [b"abc", b"abd", None]),
    "decimal": (pa.decimal128(38, 2), [decimal.Decimal("1.25"), decimal.Decimal(10**30), None]),
    "date": (pa.date32(), [datetime.date(2024, 2, 29), datetime.date(1960, 1, 1), None]),
    "timestamp": (pa.timestamp("us"), [datetime.datetime(2024, 2, 29, 1, 2, 3, 4), None]),
    "struct": (
        pa.struct([("a", pa.int64()), ("b", pa.string())]),
        [None, {"a": None, "b": None}, {"a": 1, "b": None}, {"a": 1, "b": "x"}, {"a": 2, "b": "x"}],
    ),
    "null": (pa.null(), [None]),
}


def batches(values: st.SearchStrategy[Any]) -> st.SearchStrategy[list[list[tuple[int, Any]]]]:
    """Batches of (number of a key, value)."""
    return st.lists(st.lists(st.tuples(st.integers(0, 6), st.none() | values), max_size=30), max_size=5)


@pytest.mark.parametrize("kind", KEYS)
@pytest.mark.parametrize("is_encoded", [False, True])
@given(content=batches(st.integers(-100, 100)))
@settings(max_examples=25)
def test_each_batch_returns_the_current_aggregates_of_its_keys(
    kind: str, is_encoded: bool, content: list[list[tuple[int, Any]]]
) -> None:
    key_type, keys = KEYS[kind]
    if is_encoded and kind in ("struct", "null"):
        return
    state = state_of()
    rows: list[Entry] = []
    for part in content:
        new = [(keys[number % len(keys)], value) for number, value in part]
        rows += new
        batch = batch_of(new, key_type)
        if is_encoded:
            batch = batch.set_column(0, "k", batch.column("k").dictionary_encode())
        touched = {canonical(key) for key, _ in new}
        result = state.update(batch)
        assert found(result) == {key: value for key, value in expected(rows).items() if key in touched}
        assert result.schema.field("k").type == (pa.large_string() if kind == "string_view" else key_type)
    assert found(state.current()) == expected(rows)
    assert len(state) == len(expected(rows))
    assert found(restored_from(state.snapshot().encode(100)).current()) == expected(rows)


@given(batches(st.sampled_from([0.0, 1.5, -2.25, 1024.0, math.nan, math.inf])))
def test_floats_are_aggregated_with_nan_as_the_largest(content: list[list[tuple[int, Any]]]) -> None:
    state = state_of()
    rows: list[Entry] = []
    for part in content:
        rows += part
        state.fold(batch_of(list(part), value=pa.float64()))
    assert found(state.current()) == expected(rows)
    assert found(restored_from(state.snapshot().encode(100)).current()) == expected(rows)


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        (pa.uint64(), [2**64 - 1, 0, 5]),
        (pa.int8(), [-128, 127]),
        (pa.float32(), [0.5, -0.25]),
        (pa.bool_(), [True, False]),
        (pa.date32(), [datetime.date(2024, 1, 1), datetime.date(1950, 1, 1)]),
        (pa.timestamp("ms", "UTC"), [datetime.datetime(2024, 1, 1, tzinfo=datetime.UTC)]),
        (pa.decimal64(10, 2), [decimal.Decimal("-1.25"), decimal.Decimal("99.00")]),
    ],
)
def test_extremes_and_ends_keep_the_type_of_their_column(kind: pa.DataType, values: list[Any]) -> None:
    aggregates = [Aggregate(function, "v", function) for function in FUNCTIONS if function not in ("sum", "mean")]
    state = state_of(aggregates)
    state.update(batch_of([(1, None), (2, values[0])], value=kind))
    result = state.update(batch_of([(1, value) for value in values], value=kind)).to_pylist()
    model = {"count": len(values), "min": min(values), "max": max(values), "first": values[0], "last": values[-1]}
    assert result == [{"k": 1, **{aggregate.output: model[aggregate.function] for aggregate in aggregates}}]
    again = restored_from(state.snapshot().encode(1 << 20), aggregates)
    assert found(again.current()) == found(state.current())
    again.update(batch_of([(3, None)], value=kind))
    assert found(again.current())[3] == (0, None, None, None, None)


@pytest.mark.parametrize("kind", [pa.float32(), pa.float64()])
def test_a_negative_zero_stays_one_as_a_value_and_not_as_a_key(kind: pa.DataType) -> None:
    state = state_of([Aggregate("first", "v", "first"), Aggregate("last", "v", "last")])
    (row,) = state.update(batch_of([(0.0, -0.0), (-0.0, -0.0)], kind, kind)).to_pylist()
    assert [math.copysign(1, row[name]) for name in ("k", "first", "last")] == [1, -1, -1]


def test_several_key_columns_are_told_apart() -> None:
    state = state_of(SUM, key=("k", "w"))
    batch = pa.record_batch({"k": ["a", "b", "a", None, "a"], "w": [1, 1, 2, 1, 1], "v": [1, 2, 4, 8, 16]})
    assert state.update(batch).to_pylist() == [
        {"k": "b", "w": 1, "sum": 2},
        {"k": "a", "w": 2, "sum": 4},
        {"k": None, "w": 1, "sum": 8},
        {"k": "a", "w": 1, "sum": 17},
    ]


def test_the_result_is_in_the_order_of_the_last_appearance() -> None:
    result = state_of(SUM).update(batch_of([(5, 1), (3, 1), (5, 1), (9, 1), (3, 1)]))
    assert result.to_pylist() == [{"k": 5, "sum": 2}, {"k": 9, "sum": 1}, {"k": 3, "sum": 2}]


def test_a_sliced_batch_counts_only_its_slice() -> None:
    batch = batch_of([(1, 1), (2, None), (2, 20), (1, 300), (1, 4_000)])
    assert found(state_of(SUM).update(batch.slice(1, 3))) == {2: (20,), 1: (300,)}


def test_an_empty_batch_returns_an_empty_one_and_changes_nothing() -> None:
    state = state_of()
    result = state.update(batch_of([]))
    assert (result.num_rows, state.version) == (0, 0)
    assert result.schema.names == ["k", *FUNCTIONS, "rows"]
    assert state.snapshot().encode(100) == []


@pytest.mark.parametrize("kind", ["int64", "string"])
def test_keys_stay_apart_when_all_their_hashes_collide(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(key_index, "_hash_words", lambda words: np.full(len(words[0]), 6, dtype=np.uint64))
    monkeypatch.setattr(key_index, "hash_array", lambda array: np.full(len(array), 6, dtype=np.uint64))
    key_type = KEYS[kind][0]
    rows = [(key if kind == "int64" else str(key), key) for key in range(600)] * 2
    state = state_of(SUM)
    for start in range(0, len(rows), 100):
        state.update(batch_of(rows[start : start + 100], key_type))
    assert {key: total for key, (total,) in found(state.current()).items()} == {key: 2 * value for key, value in rows}


def test_many_keys_are_found_again_after_the_table_has_grown() -> None:
    state = state_of(SUM)
    keys = np.random.default_rng(3).permutation(50_000) * 1_000_003
    for part in (*np.array_split(keys, 7), *np.array_split(keys, 3)):
        state.fold(pa.record_batch({"k": part, "v": part}))
    assert {key: total for key, (total,) in found(state.current()).items()} == {key: 2 * key for key in keys.tolist()}


def test_the_first_null_key_comes_late() -> None:
    state = state_of(SUM)
    state.update(batch_of([(key, key) for key in range(2_000)]))
    state.update(batch_of([(None, 5), (0, 7), (None, 1)]))
    assert len(state) == 2_001
    assert found(state.update(batch_of([(None, 0), (0, 0), (1_999, 0)]))) == {None: (6,), 0: (7,), 1_999: (1_999,)}


# --- overflow ---

LARGEST = 2**63 - 1


def test_a_sum_that_leaves_64_bits_is_an_error_by_the_name_of_its_state() -> None:
    state = state_of(SUM)
    state.update(batch_of([(1, LARGEST), (2, -LARGEST)]))
    with pytest.raises(DataError, match=r"state 's': sum\(v\) has left the range"):
        state.update(batch_of([(2, 5), (1, 1)]))


@pytest.mark.parametrize("sign", [1, -1])
def test_a_sum_may_reach_the_end_of_the_range_by_any_way(sign: int) -> None:
    state = state_of(SUM)
    state.update(batch_of([(1, sign * LARGEST), (2, 1)]))
    # On the way the sum is out of range, at the end of the batch it is not.
    state.update(batch_of([(1, sign), (1, sign), (1, -sign), (1, -sign), (2, 1)]))
    assert found(state.current()) == {1: (sign * LARGEST,), 2: (2,)}


def test_a_sum_is_watched_after_a_restore_too() -> None:
    state = state_of(SUM)
    state.update(batch_of([(1, LARGEST)]))
    with pytest.raises(DataError, match="left the range"):
        restored_from(state.snapshot().encode(100), SUM).update(batch_of([(1, 1)]))


def test_a_sum_that_leaves_64_bits_by_small_steps_is_an_error() -> None:
    state = state_of(SUM)
    for step in (2**61, 2**61, 2**61, 2**61 - 1):
        state.update(batch_of([(1, step)]))
    assert found(state.current()) == {1: (LARGEST,)}
    with pytest.raises(DataError, match="left the range"):
        state.update(batch_of([(1, 1)]))


def test_a_sum_is_watched_after_a_restore_into_a_state_in_use() -> None:
    large, state = state_of(SUM), state_of(SUM)
    large.update(batch_of([(1, LARGEST)]))
    state.update(batch_of([(2, 1)]))
    state.restore([piece.batch for piece in large.snapshot().encode(100)])
    with pytest.raises(DataError, match="left the range"):
        state.update(batch_of([(1, 1)]))


def test_an_unsigned_value_beyond_the_range_is_an_error() -> None:
    with pytest.raises(DataError, match="left the range"):
        state_of(SUM).update(batch_of([(1, 2**63)], value=pa.uint64()))


# --- snapshots ---


def numbers(first: int, end: int, value: int) -> pa.RecordBatch:
    keys = np.arange(first, end)
    return pa.record_batch({"k": keys, "v": np.full(len(keys), value)})


AFTER: dict[str, Callable[[AggregateState], object]] = {
    "nothing": lambda state: None,
    "the same keys change": lambda state: state.update(numbers(0, 900, 5)),
    "they change twice": lambda state: (state.update(numbers(100, 700, 5)), state.update(numbers(0, 800, 7))),
    "keys are added": lambda state: state.update(numbers(850, 1_000, 5)),
    "the columns grow": lambda state: (state.update(numbers(0, 500, 5)), state.update(numbers(300, 9_000, 7))),
    "the first null comes": lambda state: state.update(batch_of([(None, 1), (5, 1)])),
    "another snapshot is taken": lambda state: (state.snapshot(), state.update(numbers(0, 900, 5))),
}


@pytest.mark.parametrize("after", AFTER)
def test_a_snapshot_stands_still_whatever_happens_after(after: str) -> None:
    state = state_of()
    state.update(numbers(0, 900, 3))
    state.update(numbers(200, 400, 4))
    then = found(state.current())
    snapshot = state.snapshot()
    AFTER[after](state)
    assert found(restored_from(snapshot.encode(1 << 20)).current()) == then
    state.update(numbers(0, 900, 11))
    assert found(restored_from(snapshot.encode(1 << 20)).current()) == then, "it is encoded twice"


@given(st.lists(st.tuples(st.booleans(), st.lists(st.integers(0, 40), max_size=20)), max_size=12), st.booleans())
def test_every_one_of_several_snapshots_has_its_own_moment(
    steps: list[tuple[bool, list[int]]], is_reversed: bool
) -> None:
    state = state_of()
    taken = []
    for is_snapshot, keys in steps:
        state.update(batch_of([(key, key + 1) for key in keys]))
        if is_snapshot:
            taken.append((state.snapshot(), found(state.current())))
    for snapshot, then in reversed(taken) if is_reversed else taken:
        assert found(restored_from(snapshot.encode(1 << 20)).current()) == then


def test_a_snapshot_holds_references_until_it_is_encoded() -> None:
    state = state_of(SUM)
    state.update(numbers(0, 1_000, 3))
    columns = state.snapshot()._columns
    assert columns is not None
    live = state._bound
    assert live is not None
    assert columns._live[0] is live.numbers["sum(v)"]
    assert columns.keys.words[0] is live.index._words[0].values


def test_a_dropped_or_encoded_snapshot_is_no_longer_fed() -> None:
    state = state_of(SUM)
    state.update(numbers(0, 100, 3))
    live = state._bound
    assert live is not None
    dropped, encoded = state.snapshot(), state.snapshot()
    assert len(live._open) == 2
    del dropped
    gc.collect()
    encoded.encode(100)
    state.update(numbers(0, 100, 3))
    assert live._open == []


def test_snapshots_are_encoded_in_a_thread_while_the_mailbox_writes() -> None:
    state = state_of()
    size = 60_000
    wrong: list[int] = []

    def check(snapshot: Any, round_: int) -> None:
        pieces = snapshot.encode(1 << 20)
        sums = np.concatenate([piece.batch.column("value").field("sum(v)").to_numpy() for piece in pieces])
        counts = np.concatenate([piece.batch.column("value").field("count(*)").to_numpy() for piece in pieces])
        if len(sums) != size or (sums != 3 * round_).any() or (counts != round_).any():
            wrong.append(round_)

    threads = []
    for round_ in range(1, 13):
        state.fold(numbers(0, size, 3))
        threads.append(threading.Thread(target=check, args=(state.snapshot(), round_)))
        threads[-1].start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_the_version_changes_with_the_state_and_only_then() -> None:
    state = state_of(SUM)
    state.update(numbers(0, 10, 3))
    version = state.snapshot().version
    state.current()
    state.update(numbers(0, 0, 3))
    assert state.snapshot().version == version
    state.fold(numbers(0, 1, 0))
    assert state.snapshot().version > version


# --- restoring ---


@given(st.lists(st.integers(0, 200), max_size=200), st.integers(1, 6), st.integers(1, 9), st.integers(1, 3_000))
def test_restored_at_any_parallelism_each_key_has_one_owner(keys: list[int], old: int, new: int, target: int) -> None:
    batch = batch_of([(key, key) for key in keys])
    groups = key_groups(batch, ["k"], GROUPS)
    pieces: list[KeyedPiece] = []
    for index in range(old):
        owned = key_groups_of(index, old, GROUPS)
        state = state_of(owned=owned)
        state.fold(batch.filter(pa.array((groups >= owned.start) & (groups < owned.stop))))
        pieces += state.snapshot().encode(target)
    for piece in pieces:
        stored = piece.batch.column("key_group").to_pylist()
        assert stored == sorted(stored)
        assert (piece.first, piece.end, piece.rows) == (stored[0], stored[-1] + 1, len(stored))

    union: dict[Any, Any] = {}
    for index in range(new):
        owned = key_groups_of(index, new, GROUPS)
        overlapping = [piece for piece in pieces if piece.first < owned.stop and owned.start < piece.end]
        mine = found(restored_from(overlapping, owned=owned).current())
        assert not mine.keys() & union.keys()
        union |= mine
    assert union == expected([(key, key) for key in keys])


def test_a_state_goes_on_where_it_was_restored() -> None:
    state = state_of()
    state.update(batch_of([(1, 5), (2, None)]))
    again = restored_from(state.snapshot().encode(100))
    rows = [(1, None), (2, 8), (3, 1), (2, 9)]
    assert found(again.update(batch_of(rows))) == found(state.update(batch_of(rows)))


def test_a_key_wider_than_the_partitioning_stays_with_its_partition() -> None:
    keyed = KeyedState(EVERYTHING, GROUPS)
    state = keyed.aggregate("s", ["k", "w"], SUM, partitioned_by=["k"])
    batch = pa.record_batch({"k": np.repeat(np.arange(50), 4), "w": np.tile(np.arange(4), 50), "v": np.ones(200)})
    state.fold(batch)
    for piece in keyed.snapshot().encode(1):
        key = pa.RecordBatch.from_struct_array(piece.batch.column("key"))
        assert key_groups(key, ["k"], GROUPS).tolist() == piece.batch.column("key_group").to_pylist()
    again = KeyedState(range(3, 9), GROUPS)
    restored = again.aggregate("s", ["k", "w"], SUM, partitioned_by=["k"])
    rows = again.restore("s", [piece.batch for piece in keyed.snapshot().encode(1)])
    assert rows == len(restored) > 0
    assert rows % 4 == 0


def test_a_key_that_comes_twice_cannot_be_restored() -> None:
    state = state_of(SUM)
    state.update(numbers(0, 10, 3))
    (piece,) = state.snapshot().encode(1 << 20)
    with pytest.raises(RestoreError, match="a key twice"):
        restored_from([piece, piece], SUM)


OTHERS: list[Callable[[], AggregateState]] = [
    lambda: state_of(ALL),
    lambda: state_of([Aggregate("max", "v", "sum")]),
    lambda: state_of([Aggregate("sum", "other", "sum")]),
    lambda: state_of(SUM, key=("other",)),
    lambda: state_of(SUM, key=("k", "w")),
]


@pytest.mark.parametrize("other", OTHERS)
def test_other_aggregates_cannot_be_restored(other: Callable[[], AggregateState]) -> None:
    state = state_of(SUM)
    state.update(numbers(0, 10, 3))
    with pytest.raises((RestoreError, DataError), match=r"s'|key column"):
        other().restore([piece.batch for piece in state.snapshot().encode(100)])


def test_a_row_state_cannot_be_restored_as_aggregates() -> None:
    keyed = KeyedState(EVERYTHING, GROUPS, pa.schema([("k", pa.int64())]))
    keyed.map("s", pa.schema([("v", pa.int64())]), pa.schema([("v", pa.int64())]))
    keyed.set_key(int(key_groups(pa.record_batch({"k": [1]}), ["k"], GROUPS)[0]), (1,))
    keyed.map("s", pa.schema([("v", pa.int64())]), pa.schema([("v", pa.int64())])).update_value((1,), (1,))
    with pytest.raises(RestoreError, match="state 's'"):
        state_of(SUM).restore([piece.batch for piece in keyed.snapshot().encode(100)])


def test_keys_of_another_subtask_are_not_written_into_a_checkpoint() -> None:
    state = state_of(SUM, owned=range(3, 5))
    state.update(numbers(0, 100, 1))
    with pytest.raises(ProtocolViolation, match="owns 3 … 4"):
        state.snapshot().encode(100)


# --- what does not fit ---


@pytest.mark.parametrize(
    ("batch", "message"),
    [
        (pa.record_batch({"k": [1]}), "needs the column 'v'"),
        (pa.record_batch({"v": [1]}), "needs the column 'k'"),
        (pa.record_batch({"k": [1], "v": ["x"]}), "needs integers or floats"),
        (pa.record_batch({"k": [1], "v": [True]}), "needs integers or floats"),
        (pa.record_batch({"k": ["x"], "v": [1]}), "columns of other types"),
        (pa.record_batch({"k": [1], "v": [1.5]}), "columns of other types"),
    ],
)
def test_a_batch_that_does_not_fit_is_refused_by_the_name_of_the_state(batch: pa.RecordBatch, message: str) -> None:
    state = state_of()
    state.update(batch_of([(1, 1)]))
    with pytest.raises(DataError, match=f"state 's'.*{message}"):
        state.update(batch)
    assert found(state.current()) == expected([(1, 1)])


def test_a_batch_of_other_types_than_the_restored_state_is_refused() -> None:
    state = state_of(SUM)
    state.update(numbers(0, 10, 3))
    again = restored_from(state.snapshot().encode(100), SUM)
    with pytest.raises(DataError, match="columns of other types"):
        again.update(batch_of([(1, 1.5)], value=pa.float64()))


@pytest.mark.parametrize("function", ["min", "max", "first", "last"])
def test_an_aggregate_over_strings_is_refused(function: Function) -> None:
    with pytest.raises(DataError, match="at most 64 bits, not string"):
        state_of([Aggregate(function, "v", "out")]).update(batch_of([(1, "x")], value=pa.string()))


@pytest.mark.parametrize(
    ("key", "aggregates", "partitioned_by"),
    [
        ((), SUM, None),
        (("k",), [*SUM, *SUM], None),
        (("k",), [Aggregate("sum", "v", "k")], None),
        (("k",), [Aggregate("sum", None, "x")], None),
        (("w", "k"), SUM, ("k",)),
    ],
)
def test_a_definition_that_cannot_work_is_refused_at_once(
    key: tuple[str, ...], aggregates: list[Aggregate], partitioned_by: tuple[str, ...] | None
) -> None:
    with pytest.raises(PipelineError, match="state 's'"):
        AggregateState("s", key, aggregates, EVERYTHING, GROUPS, partitioned_by)


def test_asking_twice_for_aggregates_returns_the_same_ones() -> None:
    keyed = KeyedState(EVERYTHING, GROUPS)
    assert keyed.aggregate("s", ["k"], SUM) is keyed.aggregate("s", ["k"], SUM)
    with pytest.raises(PipelineError, match="used twice"):
        keyed.aggregate("s", ["k"], ALL)
    with pytest.raises(PipelineError, match="used twice"):
        keyed.value("s", pa.schema([("v", pa.int64())]))


@pytest.mark.parametrize("kind", [pa.string(), pa.large_binary(), pa.dictionary(pa.int32(), pa.string())])
def test_more_keys_than_fit_into_one_string_column_are_written_in_several(
    kind: pa.DataType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.state.pieces.PIECE_BYTES_MAX", 2_000)
    largest = 0
    whole = KeySnapshot.arrays

    def arrays(self: KeySnapshot, slots: Any = None) -> list[pa.Array]:
        nonlocal largest
        found = whole(self, slots)
        largest = max(largest, *(array.nbytes for array in found))
        return found

    keyed = KeyedState(range(0, 4), 4)
    counts = keyed.aggregate("s", ["k"], SUM)
    for start in range(0, 300, 30):
        texts = [f"{n:04}" + "x" * (n % 100) for n in range(start, start + 30)]
        keys = pa.array(texts).dictionary_encode() if pa.types.is_dictionary(kind) else pa.array(texts).cast(kind)
        counts.fold(pa.record_batch({"k": keys, "v": range(start, start + 30)}))
    monkeypatch.setattr(KeySnapshot, "arrays", arrays)
    pieces = keyed.snapshot().encode(1 << 20)
    assert 0 < largest < 3_000
    assert len(pieces) > 4, "a single key group is in several pieces"
    again = KeyedState(range(0, 4), 4)
    sums = again.aggregate("s", ["k"], SUM)
    for piece in pieces:
        again.restore("s", [through_ipc(piece.batch)])
    assert len(sums) == 300
    monkeypatch.undo()
    current = sums.current()
    assert current is not None
    assert sorted(current.column(1).to_pylist()) == list(range(300))
