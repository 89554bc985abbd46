"""One side of a join as state: runs, merges, expiry, and its layout in a checkpoint."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from penstock.columnar.hashing import hash_rows
from penstock.errors import RestoreError
from penstock.state.joins import side as side_module
from penstock.state.joins.side import Clock, JoinSide, JoinSideDescriptor
from penstock.state.keyed import KeyedState
from penstock.state.pieces import KeyedPiece

GROUPS = 16


def descriptor(clock: Clock = "event", keeps_matched: bool = True) -> JoinSideDescriptor:
    return JoinSideDescriptor("left", ("k",), clock, "t" if clock == "event" else None, keeps_matched)


def side_of(asked: JoinSideDescriptor | None = None, owned: range = range(GROUPS)) -> JoinSide:
    return KeyedState(owned, GROUPS).register(asked or descriptor())


def batch_of(rows: list[tuple[Any, int]]) -> pa.RecordBatch:
    return pa.record_batch({"k": [key for key, _ in rows], "t": pa.array([at for _, at in rows], pa.int64())})


def add(side: JoinSide, rows: list[tuple[Any, int]], matched: list[bool] | None = None, now_ms: int = 0) -> None:
    batch = batch_of(rows)
    side.schema = batch.schema
    marks = np.array(matched or [False] * len(rows))
    keeps = side._descriptor.keeps_matched
    side.add(hash_rows(batch, ("k",)), side.times_of(batch, now_ms), batch, marks if keeps else None)


def stored(pieces: list[KeyedPiece]) -> list[dict[str, Any]]:
    return [row for piece in pieces for row in piece.batch.to_pylist()]


def held(side: JoinSide) -> list[tuple[Any, int, Any]]:
    rows = stored(side.snapshot().encode(1 << 20))
    return sorted((row["value"]["k"], row["value"]["t"], row.get("matched")) for row in rows)


def find(side: JoinSide, key: Any, first: int, last: int) -> list[int]:
    hashes = hash_rows(pa.record_batch({"k": [key]}), ("k",))
    bounds = np.array([first]), np.array([last])
    found = []
    for run in side.runs_with(*bounds):
        starts, counts = run.find(hashes, *bounds)
        found += run.times[starts[0] : starts[0] + counts[0]].tolist()
    return sorted(found)


def test_the_layout_in_a_checkpoint_is_fixed() -> None:
    """A known answer: older checkpoints must stay readable."""
    side = side_of()
    add(side, [(1, 10), (3, 20), (1, 5)], [True, False, False])
    shown, piece = side.snapshot().encode(1 << 20)
    assert (shown.first, shown.end, shown.rows) == (0, GROUPS, 0)
    assert shown.batch.schema == piece.batch.schema
    assert piece.batch.schema == pa.schema(
        [
            ("key_group", pa.int32()),
            ("key", pa.struct([("k", pa.int64())])),
            ("value", pa.struct([("k", pa.int64()), ("t", pa.int64())])),
            ("matched", pa.bool_()),
        ]
    )
    assert stored([piece]) == [
        {"key_group": 1, "key": {"k": 3}, "value": {"k": 3, "t": 20}, "matched": False},
        {"key_group": 9, "key": {"k": 1}, "value": {"k": 1, "t": 5}, "matched": False},
        {"key_group": 9, "key": {"k": 1}, "value": {"k": 1, "t": 10}, "matched": True},
    ]
    assert side.declared == "joined rows by (k) and event time t, matched or not"


def test_rows_that_are_kept_by_their_arrival_have_its_time_in_a_checkpoint() -> None:
    asked = descriptor("processing", keeps_matched=False)
    side, again = side_of(asked), side_of(asked)
    add(side, [(1, 10)], now_ms=77)
    _, piece = side.snapshot().encode(1 << 20)
    assert stored([piece]) == [{"key_group": 9, "key": {"k": 1}, "value": {"k": 1, "t": 10}, "at_ms": 77}]
    again.restore([piece.batch])
    again.drop_before(77)
    assert again.row_count == 1
    again.drop_before(78)
    assert again.row_count == 0


def test_a_checkpoint_of_another_kind_of_state_is_refused() -> None:
    side = side_of(descriptor(keeps_matched=False))
    add(side, [(1, 10)])
    _, piece = side.snapshot().encode(1 << 20)
    with pytest.raises(RestoreError, match=r"state 'left' has rows of a join with the columns .*, matched, and the"):
        side_of().restore([piece.batch])


def test_a_side_without_rows_knows_its_columns_after_a_restore() -> None:
    side, again = side_of(), side_of(owned=range(3, 5))
    add(side, [(1, 1)])
    list(side.expire(None, 10))
    again.restore([piece.batch for piece in side.snapshot().encode(1 << 20)])
    assert again.schema == side.schema
    assert again.row_count == 0


def test_rows_move_with_their_keys() -> None:
    side = side_of()
    rows = [(key, at) for key in range(40) for at in (3, 1)]
    add(side, rows, [key % 2 == 0 for key, _ in rows])
    pieces = side.snapshot().encode(100)
    assert len(pieces) > 3
    halves = [side_of(owned=owned) for owned in (range(7), range(7, GROUPS))]
    assert sum(half.restore([piece.batch for piece in pieces]) for half in halves) == len(rows)
    assert sorted(held(halves[0]) + held(halves[1])) == held(side)
    assert all(half.row_count for half in halves)


def test_a_snapshot_stays_what_it_was() -> None:
    side = side_of()
    add(side, [(1, 1), (1, 2), (2, 9)])
    before, snapshot = held(side), side.snapshot()
    (run,) = side.runs_with(np.array([0]), np.array([10]))
    side.mark(run, np.array([0, 1, 2]))
    add(side, [(3, 3)])
    side.merge_small()
    list(side.expire(9, 1))
    rows = stored(snapshot.encode(1 << 20))
    assert sorted((row["value"]["k"], row["value"]["t"], row["matched"]) for row in rows) == before
    assert held(side) == [(2, 9, True)]


def test_a_snapshot_between_two_portions_holds_the_rows_that_were_not_handed_over() -> None:
    """I1: a row is emitted or in the state, never both, whatever the ties."""
    side = side_of()
    add(side, [(key, 5) for key in range(10)], [key == 3 for key in range(10)])
    emitted: list[int] = []
    for rows in side.expire(6, 2):
        emitted += rows.column("k").to_pylist()
        unmatched = [key for key, _, matched in held(side) if not matched]
        assert sorted(emitted + unmatched) == [0, 1, 2, 4, 5, 6, 7, 8, 9]
    assert held(side) == []
    assert side.state_bytes == 0


def test_there_are_few_runs_and_each_row_is_found_in_them() -> None:
    side = side_of(descriptor(keeps_matched=False))
    for number in range(300):
        add(side, [(number % 7, number), (99, number)])
        side.merge_small()
    assert side.run_count <= 12
    assert find(side, 3, 100, 140) == [at for at in range(100, 141) if at % 7 == 3]
    assert find(side, 99, 290, 400) == list(range(290, 300))
    assert find(side, 4711, 0, 400) == []


@pytest.fixture
def small_merges(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(side_module, "_INLINE_ROWS_MAX", 0)


def begun(side: JoinSide) -> Callable[[], Callable[[], None]]:
    merge = side.large_merge()
    assert merge is not None
    assert side.large_merge() is None, "one at a time"
    return merge


@pytest.mark.usefixtures("small_merges")
def test_marks_and_expiry_during_a_merge_in_the_background_are_not_lost() -> None:
    side = side_of()
    add(side, [(1, 1), (2, 2), (3, 3)])
    add(side, [(1, 11), (2, 12), (3, 13)])
    merge = begun(side)
    _, second = side.runs_with(np.array([0]), np.array([20]))
    install = merge()
    # While the merge is under way: rows are added, one has a partner, and three are not needed any more.
    add(side, [(9, 20)])
    side.mark(second, np.flatnonzero(second.times == 12))
    assert sorted(key for rows in side.expire(4, 10) for key in rows.column("k").to_pylist()) == [1, 2, 3]
    install()
    assert held(side) == [(1, 11, False), (2, 12, True), (3, 13, False), (9, 20, False)]
    assert list(side.expire(4, 10)) == [], "rows that were handed over come back"
    assert side.run_count == 2


@pytest.mark.usefixtures("small_merges")
def test_a_merge_that_is_done_between_two_portions_waits_for_the_last_one() -> None:
    side = side_of()
    add(side, [(key, key) for key in range(6)])
    add(side, [(key, 100 + key) for key in range(6)])
    install = begun(side)()
    emitted: list[int] = []
    for rows in side.expire(4, 1):
        emitted += rows.column("t").to_pylist()
        if len(emitted) == 2:
            install()
        assert not set(emitted) & {at for _, at, _ in held(side)}, "I1: a row is emitted, and in the state"
    assert emitted == [0, 1, 2, 3]
    assert [at for _, at, _ in held(side)] == [100, 101, 102, 103, 4, 104, 5, 105]
    assert side.run_count == 1


@pytest.mark.usefixtures("small_merges")
def test_a_run_whose_rows_are_mostly_gone_is_written_anew() -> None:
    side = side_of(descriptor(keeps_matched=False))
    add(side, [(key, key) for key in range(100)])
    side.drop_before(80)
    assert side.row_count == 100
    begun(side)()()
    assert side.row_count == 20


def test_large_runs_find_what_small_ones_find() -> None:
    """With a directory of buckets: keys that are there, and others beyond its first and last hash."""
    draw = np.random.default_rng(7)
    keys = np.concatenate([draw.integers(0, 30_000, 20_000), np.full(5_000, 77)])
    side = side_of(descriptor(keeps_matched=False))
    add(side, [(int(key), int(number)) for number, key in enumerate(keys)])
    assert side.run_count == 1
    asked = np.arange(-500, 30_500)
    (run,) = side.runs_with(np.array([0]), np.array([30_000]))
    hashes = hash_rows(pa.record_batch({"k": asked}), ("k",))
    _, counts = run.find(hashes, np.zeros(len(asked), np.int64), np.full(len(asked), 30_000))
    assert counts.tolist() == [int(count) for count in np.bincount(keys + 500, minlength=len(asked))]


def test_a_row_of_a_hot_key_is_found_by_its_time_without_looking_at_the_others() -> None:
    side = side_of(descriptor(keeps_matched=False))
    add(side, [(7, at) for at in range(50_000)])
    assert find(side, 7, 31_000, 31_004) == list(range(31_000, 31_005))
    hashes = hash_rows(pa.record_batch({"k": [7]}), ("k",))
    (run,) = side.runs_with(np.array([31_000]), np.array([31_004]))
    assert run.find(hashes, np.array([31_000]), np.array([31_004]))[1].tolist() == [5]
