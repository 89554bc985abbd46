"""The first N of each key and window, against a plain model: ties, nulls, batches, crashes, late records."""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from penstock import Pipeline, Stream
from penstock.errors import DataError, PipelineError
from penstock.operators.windows import window_top
from penstock.state.keyed import KeyedState
from penstock.state.rows import keyed_rows
from penstock.state.rows.keyed_rows import KeyedRowsDescriptor
from penstock.testing import ABORT, CHECKPOINT, CollectSink, ListSource, collect, run

SCHEMA = pa.schema([("k", pa.int64()), ("v", pa.int64()), ("n", pa.int64())])
FEW = settings(
    max_examples=12,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    phases=[Phase.explicit, Phase.generate],
)

drawn = st.lists(
    st.tuples(st.one_of(st.none(), st.integers(0, 3)), st.one_of(st.none(), st.integers(0, 5))), max_size=60
)


def rows_of(pairs: list[Any]) -> list[dict[str, Any]]:
    return [{"k": k, "v": v, "n": n} for n, (k, v) in enumerate(pairs)]


def first(rows: list[dict[str, Any]], count: int, descending: bool) -> list[dict[str, Any]]:
    """Of equal values the earlier one is first, and nulls are last."""
    valued = [row for row in rows if row["v"] is not None]
    valued.sort(key=lambda row: (-row["v"] if descending else row["v"], row["n"]))
    return (valued + [row for row in rows if row["v"] is None])[:count]


def by_key(rows: list[dict[str, Any]]) -> dict[Any, list[dict[str, Any]]]:
    found = defaultdict(list)
    for row in rows:
        found[row["k"]].append(row)
    return found


def applied(changes: list[dict[str, Any]]) -> Counter[Any]:
    """The table that a retracting changelog leaves; no row is deleted that is not there."""
    table: Counter[Any] = Counter()
    for change in changes:
        op = change.pop("op")
        row = tuple(sorted(change.items()))
        assert op in ("insert", "delete")
        table[row] += 1 if op == "insert" else -1
        assert table[row] in (0, 1)
    return +table


def crashing(rows: list[Any]) -> list[Any]:
    third = len(rows) // 3
    return [*rows[:third], CHECKPOINT, *rows[third : 2 * third], ABORT(), *rows[2 * third :]]


@FEW
@given(drawn, st.integers(1, 4), st.booleans(), st.booleans(), st.integers(1, 9))
def test_the_changelog_leaves_the_first_of_each_key(
    pairs: list[Any], count: int, descending: bool, has_rank: bool, batch_rows: int
) -> None:
    rows = rows_of(pairs)
    source = ListSource(crashing(rows), schema=SCHEMA, batch_rows=batch_rows)
    keyed = Pipeline("top").source(source).key_by("k")
    changes = collect(keyed.top(count, by="v", descending=descending, rank="rank" if has_rank else None))
    expected: Counter[Any] = Counter()
    for of_key in by_key(rows).values():
        for rank, row in enumerate(first(of_key, count, descending), 1):
            expected[tuple(sorted({**row, **({"rank": rank} if has_rank else {})}.items()))] += 1
    assert applied(changes) == expected


@FEW
@given(drawn, st.integers(1, 3), st.booleans(), st.integers(1, 9), st.sampled_from([("10 s", None), ("10 s", "5 s")]))
def test_each_window_has_the_first_of_each_key(
    pairs: list[Any], count: int, descending: bool, batch_rows: int, window: Any
) -> None:
    rows = [{**row, "at": row["n"] * 1_700 - 30_000} for row in rows_of(pairs)]
    schema = SCHEMA.append(pa.field("at", pa.int64()))
    source = ListSource(crashing(rows), schema=schema, batch_rows=batch_rows)
    windows = Pipeline("top").source(source).with_watermark("at", 0).key_by("k").window(window[0], every=window[1])
    step = 5_000 if window[1] else 10_000
    expected = []
    for start in range(-60_000, 120_000, step):
        within = [row for row in rows if start <= row["at"] < start + 10_000]
        for of_key in by_key(within).values():
            bounds = {"window_start": start, "window_end": start + 10_000}
            expected += [{**row, **bounds, "rank": i} for i, row in enumerate(first(of_key, count, descending), 1)]
    found = collect(windows.top(count, by="v", descending=descending, rank="rank"))
    order = lambda row: (row["window_start"], row["k"] is not None, row["k"], row["rank"])  # noqa: E731
    assert sorted(found, key=order) == sorted(expected, key=order)


@pytest.mark.parametrize("rank", [None, "rank"])
def test_a_row_that_leaves_the_first_ones_is_deleted(rank: str | None) -> None:
    rows: list[Any] = [{"k": 0, "v": 5}, CHECKPOINT, {"k": 0, "v": 9}, CHECKPOINT, {"k": 0, "v": 7}]
    changes = collect(Pipeline("top").source(ListSource(rows)).key_by("k").top(1, by="v", rank=rank))
    assert [(change["v"], change["op"]) for change in changes] == [(5, "insert"), (5, "delete"), (9, "insert")]


def test_rows_that_cannot_be_among_the_first_are_dropped_before_the_window_ends(monkeypatch: Any) -> None:
    monkeypatch.setattr(window_top, "_PRUNED_ROWS_MIN", 8)
    held: list[int] = []
    append = window_top.WindowTopOperator.work

    def work(self: Any, *arguments: Any) -> None:
        append(self, *arguments)
        held.append(sum(batch.num_rows for batch in self._state.get()))

    monkeypatch.setattr(window_top.WindowTopOperator, "work", work)
    rows = [{"k": n % 2, "v": n, "n": n, "at": n} for n in range(400)]
    timed = Pipeline("top").source(ListSource(rows, batch_rows=4)).with_watermark("at", 0)
    found = collect(timed.key_by("k").window("10 s").top(2, by="v"))
    assert sorted(row["v"] for row in found) == [396, 397, 398, 399]
    assert max(held) <= 8


def test_late_records_are_a_stream() -> None:
    rows = [{"k": 0, "v": 1, "at": 0}, {"k": 0, "v": 2, "at": 50_000}, {"k": 0, "v": 9, "at": 5}]
    timed = Pipeline("top").source(ListSource(rows, batch_rows=1)).with_watermark("at", 0)
    stream = timed.key_by("k").window("10 s", late="stream").top(1, by="v")
    found, late = CollectSink(), CollectSink()
    stream.sink(found)
    stream.late().sink(late)
    run(stream.pipeline)
    assert [row["v"] for row in found.rows()] == [1, 2]
    assert [row["v"] for row in late.rows()] == [9]


def numbers() -> Stream:
    return Pipeline("top").source(ListSource([{"k": 0, "v": 1, "op": "x"}]))


def test_a_column_that_top_adds_must_not_be_there() -> None:
    with pytest.raises(DataError, match="has a column 'op' already, which top\\(\\) adds: drop or rename it"):
        collect(numbers().key_by("k").top(1, by="v"))


def test_a_column_that_is_not_there_is_named() -> None:
    with pytest.raises(DataError, match="column 'price' not found, or ambiguous; the columns are: k, v"):
        collect(numbers().drop("op").key_by("k").top(1, by="price"))


def test_a_changelog_has_no_first_records() -> None:
    changes = numbers().drop("op").key_by("k").top(1, by="v")
    with pytest.raises(PipelineError, match="top: its input is a changelog, whose column 'op' retracts records"):
        changes.key_by("k").top(1, by="v")


# --- the state ---


def state_of(groups: range = range(8)) -> tuple[KeyedState, keyed_rows.KeyedRows]:
    keyed = KeyedState(groups, 8)
    return keyed, keyed.register(KeyedRowsDescriptor("top", ("k",)))


def test_the_layout_in_a_checkpoint_is_that_of_rows() -> None:
    keyed, state = state_of()
    state.append(pa.record_batch({"k": [1, 2, 1], "v": ["a", "b", "c"]}))
    (piece,) = keyed.snapshot().encode(1 << 20)
    assert piece.batch.schema.names == ["key_group", "key", "value"]
    assert sorted(piece.batch.column("value").to_pylist(), key=str) == [
        {"k": 1, "v": "a"},
        {"k": 1, "v": "c"},
        {"k": 2, "v": "b"},
    ]
    assert keyed.declared == {"top": "rows of each key by (k)"}


@pytest.mark.parametrize("dead_rows_min", [16, 4096])
def test_dropped_rows_leave_memory_and_checkpoint(monkeypatch: Any, dead_rows_min: int) -> None:
    monkeypatch.setattr(keyed_rows, "_DEAD_ROWS_MIN", dead_rows_min)
    keyed, state = state_of()
    for round in range(50):
        batch = pa.record_batch({"k": list(range(10)), "v": [f"{round}"] * 10})
        slots = state.slots_of(batch)
        held, _ = state.of_slots(slots)
        snapshot, before = keyed.snapshot(), sorted(state.take(held)["v"].to_pylist()) if len(held) else []
        state.replace(slots, held[:0], slots, held, batch)
        # A snapshot is that of its moment, whatever moves meanwhile.
        pieces = snapshot.encode(1 << 20)
        assert sorted(row["v"] for piece in pieces for row in piece.batch["value"].to_pylist()) == before
    assert state.rows == 10
    assert sum(batch.num_rows for batch in state.get()) <= 10 + dead_rows_min + 10
    (piece,) = keyed.snapshot().encode(1 << 20)
    assert {row["v"] for row in piece.batch["value"].to_pylist()} == {"49"}


def test_a_restored_state_goes_on_with_the_rows_of_its_key_groups() -> None:
    keyed, state = state_of()
    state.append(pa.record_batch({"k": list(range(20)), "v": list(range(20))}))
    pieces = [piece.batch for piece in keyed.snapshot().encode(1 << 20)]
    found = []
    for groups in (range(3), range(3, 8)):
        part, mine = state_of(groups)
        part.restore("top", pieces)
        slots = mine.slots_of(pa.record_batch({"k": list(range(20))}))
        ids, places = mine.of_slots(slots)
        assert mine.take(ids)["k"].to_pylist() == places.tolist()
        found += places.tolist()
    assert sorted(found) == list(range(20))
