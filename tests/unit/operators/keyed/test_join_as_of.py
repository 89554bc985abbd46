"""Each record finds the version that is valid at its time, judged by a model that forgets nothing, and by DuckDB."""

from __future__ import annotations

import logging
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock import DataError, Pipeline, PipelineError
from penstock.metrics.standard import LATE
from penstock.operators.keyed import join_as_of
from penstock.operators.keyed.join_as_of import JoinAsOfOperator
from penstock.state.index import versions
from penstock.testing import ABORT, CHECKPOINT, CollectSink, ListSource, run
from tests.unit.operators.keyed.bench import Bench, restored

INT64 = np.iinfo(np.int64)
LEFT = pa.schema([("k", pa.int64()), ("at", pa.int64()), ("n", pa.int64())])
RIGHT = pa.schema([("key", pa.int64()), ("at", pa.int64()), ("v", pa.int64())])


def rows_of(schema: pa.Schema, rows: list[tuple[Any, int, int]]) -> pa.RecordBatch:
    columns = zip(*rows, strict=True) if rows else [()] * 3
    return pa.RecordBatch.from_arrays([pa.array(c, pa.int64()) for c in columns], schema=schema)


def make(keeps_unmatched: bool = True) -> JoinAsOfOperator:
    return JoinAsOfOperator(
        (("k",), ("key",)), ("at", "at"), keeps_unmatched=keeps_unmatched, suffix="_right", right_schema=RIGHT
    )


class Model:
    """Every version that ever came, and the rows that wait."""

    def __init__(self, keeps_unmatched: bool) -> None:
        self.keeps_unmatched = keeps_unmatched
        self.versions: list[tuple[Any, int, int]] = []
        self.waiting: list[tuple[Any, int, int]] = []
        self.watermark: int | None = None
        self.late = 0
        self.emitted: list[tuple[Any, ...]] = []

    def left(self, row: tuple[Any, int, int]) -> None:
        if self.watermark is not None and row[1] < self.watermark:
            self.late += 1
        else:
            self.waiting.append(row)

    def advance(self, watermark: int | None) -> None:
        due = [row for row in self.waiting if watermark is None or row[1] < watermark]
        self.waiting = [row for row in self.waiting if row not in due]
        self.watermark = watermark
        for key, at, n in due:
            seen = [(time, order, v) for order, (k, time, v) in enumerate(self.versions) if k == key and time <= at]
            if seen and key is not None:
                time, _, v = max(seen)
                self.emitted.append((key, at, n, time, v))
            elif self.keeps_unmatched:
                self.emitted.append((key, at, n, None, None))


_keys = st.one_of(st.none(), st.integers(0, 4))
_times = st.one_of(st.integers(-20, 20), st.sampled_from([INT64.min, INT64.max, INT64.max - 1]))
_rows = st.lists(st.tuples(_keys, _times), max_size=25)
_turns = st.lists(
    st.one_of(
        st.tuples(st.just(0), _rows),
        st.tuples(st.just(1), _rows),
        st.integers(-22, 22),
        st.sampled_from(["crash", "rescale"]),
    ),
    max_size=14,
)


@pytest.mark.parametrize("keeps_unmatched", [True, False])
@settings(max_examples=80, deadline=None)
@given(_turns)
def test_rows_find_the_version_that_a_model_without_state_limits_finds(keeps_unmatched: bool, turns: list[Any]) -> None:
    def new() -> JoinAsOfOperator:
        return make(keeps_unmatched)

    bench, model = Bench(new(), ("k",)).begin(), Model(keeps_unmatched)
    emitted: list[pa.RecordBatch] = []
    number, late = 0, 0
    for turn in turns:
        if isinstance(turn, tuple):
            side, pairs = turn
            rows = [(key, at, number + place) for place, (key, at) in enumerate(pairs)]
            number += len(rows)
            bench.process(rows_of(RIGHT if side else LEFT, rows), side)
            if side:
                model.versions += rows
            for row in [] if side else rows:
                model.left(row)
        elif isinstance(turn, int) and turn > bench.context.watermark:
            bench.advance(turn)
            assert bench.context.released[-1] == turn
            model.advance(turn)
        elif turn in ("crash", "rescale"):
            emitted += bench.emitted
            late += bench.count(LATE)
            at = bench.context.watermark
            halves = [bench]
            if turn == "rescale":
                halves = [restored([bench], new, groups, at) for groups in (range(8), range(8, 16))]
            bench = restored(halves, new, range(16), at)
    bench.end()
    model.advance(None)
    rows = [tuple(row.values()) for each in [*emitted, *bench.emitted] for row in each.to_pylist()]
    assert sorted(rows, key=str) == sorted(model.emitted, key=str)
    assert late + bench.count(LATE) == model.late
    assert bench.state_rows()["left"] == 0


def test_a_version_that_no_row_can_see_any_more_is_dropped() -> None:
    bench = Bench(make(), ("k",)).begin()
    for time in range(0, 2_000, 10):
        bench.process(rows_of(RIGHT, [(key, time, time) for key in range(50)]), 1)
        bench.advance(time)
    bench.advance(5_000)
    # One for each key, and less than as much again that is still to be written anew.
    assert 50 <= bench.state_rows()["right"] <= 2 * 50
    bench.process(rows_of(LEFT, [(7, 6_000, 1)]))
    bench.advance(7_000)
    assert bench.rows() == [{"k": 7, "at": 6_000, "n": 1, "at_right": 1_990, "v": 1_990}]


def test_current_versions_are_written_again_a_few_chunks_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(versions, "_CHUNK_ROWS", 64)
    bench = Bench(make(), ("k",)).begin()
    rng = np.random.default_rng(5)
    newest: dict[int, int] = {}
    for time in range(300):
        keys = rng.integers(0, 2_000, 40).tolist()
        bench.process(rows_of(RIGHT, [(key, time, number) for number, key in enumerate(keys)]), 1)
        newest |= {key: 1_000 * time + number for number, key in enumerate(keys)}
        bench.advance(time + 1)
    assert bench.state_rows()["right"] <= 2 * len(newest) + 300
    bench.process(rows_of(LEFT, [(key, 1_000, key) for key in newest]))
    bench.advance(2_000)
    assert {row["k"]: 1_000 * row["at_right"] + row["v"] for row in bench.rows()} == newest


def test_a_checkpoint_between_two_slices_has_the_rows_that_are_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(join_as_of, "_EMITTED_ROWS", 3)
    bench = Bench(make(), ("k",)).begin()
    bench.process(rows_of(RIGHT, [(1, 5, 50), (1, 15, 150)]), 1)
    bench.process(rows_of(LEFT, [(1, at, at) for at in range(20)]))
    bench.context.watermark = 10
    assert bench.operator.on_watermark(10, bench.emitted.append)
    (steps,) = bench.context.owed
    next(steps), next(steps)
    # The watermark is held: downstream, the rows that are left would be late (decision 34).
    assert (bench.context.released, len(bench.rows())) == ([], 6)
    again = bench.restored(make)
    again.advance(10)
    again.advance(30)
    assert [row["n"] for row in [*bench.rows(), *again.rows()]] == list(range(20))
    assert [row["v"] for row in [*bench.rows(), *again.rows()]] == [None] * 5 + [50] * 10 + [150] * 5


def test_rows_wait_for_the_columns_of_a_side_without_rows(caplog: pytest.LogCaptureFixture) -> None:
    operator = JoinAsOfOperator(
        (("k",), ("key",)), ("at", "at"), keeps_unmatched=True, suffix="_right", right_schema=None
    )
    bench = Bench(operator, ("k",)).begin()
    bench.process(rows_of(LEFT, [(1, 1, 1)]))
    with caplog.at_level(logging.WARNING, "penstock"):
        bench.advance(10)
        bench.advance(11)
    assert (bench.rows(), bench.context.released) == ([], [])
    assert sum("right_schema" in record.getMessage() for record in caplog.records) == 1
    bench.process(rows_of(RIGHT, [(2, 20, 7)]), 1)
    bench.advance(12)
    assert bench.rows() == [{"k": 1, "at": 1, "n": 1, "at_right": None, "v": None}]
    assert bench.context.released == [12]


def test_both_states_in_a_checkpoint_have_this_layout() -> None:
    bench = Bench(make(), ("k",)).begin()
    bench.process(rows_of(LEFT, [(1, 5, 6)]))
    bench.process(rows_of(RIGHT, [(1, 4, 7)]), 1)
    assert bench.context.keyed.declared == {"left": "rows by (k)", "right": "rows by (key)"}
    pieces = {piece.name: piece.batch.to_pylist() for piece in bench.context.keyed.snapshot().encode(1 << 20)}
    assert pieces == {
        "left": [{"key_group": 9, "key": {"k": 1}, "value": {"k": 1, "at": 5, "n": 6}}],
        "right": [{"key_group": 9, "key": {"key": 1}, "value": {"key": 1, "at": 4, "v": 7}}],
    }


def test_keys_or_times_of_other_types_are_an_error_that_names_both() -> None:
    bench = Bench(make(), ("k",)).begin()
    with pytest.raises(DataError, match=r"int32 and int64.*cast one side"):
        bench.process(pa.record_batch({"k": pa.array([1], pa.int32()), "at": [1], "n": [1]}))


def events(seed: int, count: int) -> tuple[list[dict[str, int]], list[dict[str, int]]]:
    rng = np.random.default_rng(seed)
    times = rng.permutation(4 * count).tolist()
    left = [{"k": int(rng.integers(9)), "at": time // 2, "n": n} for n, time in enumerate(times[: 2 * count])]
    # No two versions of a key have one time: DuckDB does not say which of them it takes.
    right = [{"key": n % 7, "at": time, "v": n} for n, time in enumerate(times[2 * count :])]
    return left, right


@pytest.mark.parametrize(("how", "parallelism"), [("inner", 2), ("left", 1)])
def test_duckdb_agrees_in_spite_of_crashes(how: Any, parallelism: int) -> None:
    left, right = events(3, 300)
    pipeline, output = Pipeline("p"), CollectSink()
    marked = [*left[:200], CHECKPOINT, *left[200:300], ABORT(), *left[300:]]
    rows = pipeline.source(ListSource(marked, batch_rows=50), name="left").with_watermark("at", "2 s")
    rates = pipeline.source(ListSource(right, batch_rows=50), name="right").with_watermark("at", "2 s")
    joined = rows.key_by("k").join_as_of(rates.key_by("key"), how=how, right_schema="key bigint, at bigint, v bigint")
    joined.select("k", "at", "n", "v").sink(output)
    assert run(pipeline, parallelism=parallelism).restarts == 1
    l, r = pa.Table.from_pylist(left), pa.Table.from_pylist(right)  # noqa: E741, F841  # DuckDB finds them by name
    judge = duckdb.sql(f"SELECT l.k, l.at, l.n, r.v FROM l ASOF {how} JOIN r ON l.k = r.key AND l.at >= r.at")
    expected = judge.fetchall()
    assert sorted((tuple(row.values()) for row in output.rows()), key=str) == sorted(expected, key=str)


def test_the_call_says_what_is_missing() -> None:
    pipeline = Pipeline("p")
    plain = pipeline.source(ListSource([{"k": 1, "at": 1}]), name="a")
    timed = pipeline.source(ListSource([{"k": 1, "at": 1}]), name="b").with_watermark("at", 0)
    with pytest.raises(PipelineError, match="the right side has no event time"):
        timed.key_by("k").join_as_of(plain.key_by("k"))
    with pytest.raises(PipelineError, match="takes a keyed stream"):
        timed.key_by("k").join_as_of(timed)  # type: ignore[arg-type]
    with pytest.raises(PipelineError, match="how is 'full'"):
        timed.key_by("k").join_as_of(timed.key_by("k"), how="full")  # type: ignore[arg-type]
    with pytest.raises(PipelineError, match="both need as many columns"):
        timed.key_by("k").join_as_of(timed.key_by("k", "at"))
