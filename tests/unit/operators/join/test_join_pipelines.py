"""Joins in whole pipelines: failures, rescaling, windows behind them, hot keys, and what is refused."""

from __future__ import annotations

import logging
from collections import Counter
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pytest

from penstock import DataError, KeyedStream, Pipeline, PipelineError, Stream
from penstock.model.joins import How
from penstock.operators.join.portion import PAIRS_MAX
from penstock.testing import ABORT, CHECKPOINT, CollectSink, ListSource, Result, Schedule, collect, run
from penstock.worker.settings import WorkerSettings

Row = dict[str, Any]


def rows_of(seed: int, count: int, keys: int = 40) -> list[Row]:
    """In the order of time, give or take 20 ms; with ties, null keys, and a long gap."""
    draw = np.random.default_rng(seed)
    times = np.sort(draw.integers(-400, 400, count)) + np.where(np.arange(count) > count // 2, 5_000, 0)
    keyed = draw.integers(0, keys, count)
    return [
        {"id": None if n % 19 == 0 else int(keyed[n]), "at": int(times[n]) + int(draw.integers(0, 20)), "n": n}
        for n in range(count)
    ]


def sides(pipeline: Pipeline, left: list[Any], right: list[Any], splits: int = 2) -> tuple[KeyedStream, KeyedStream]:
    made = [
        pipeline.source(ListSource(rows, splits=splits, batch_rows=25), name=name)
        .with_watermark("at", "25 ms")
        .key_by("id")
        for name, rows in (("left", left), ("right", right))
    ]
    return made[0], made[1]


def joined(left: list[Any], right: list[Any], options: Row | None = None, **join: Any) -> tuple[list[Row], Result]:
    pipeline, sink = Pipeline("joined"), CollectSink()
    ours, theirs = sides(pipeline, left, right)
    ours.join(theirs, **join, name="join").sink(sink)
    result = run(pipeline, **(options or {}))
    return sink.rows(), result


def counted(rows: list[Row]) -> Counter[tuple[Any, ...]]:
    return Counter((row["id"], row["n"], row["n_right"]) for row in rows)


def by_duckdb(left: list[Row], right: list[Row], how: str, condition: str) -> Counter[tuple[Any, ...]]:
    tables = {"l": pa.Table.from_pylist(left), "r": pa.Table.from_pylist(right)}
    with duckdb.connect() as connection:
        for name, table in tables.items():
            connection.register(name, table)
        rows = connection.sql(
            f"SELECT coalesce(l.id, r.id), l.n, r.n FROM l {how} JOIN r ON l.id = r.id AND {condition}"
        ).fetchall()
    return Counter(rows)


@pytest.mark.parametrize("how", ["inner", "left", "right", "full"])
def test_an_interval_join_with_failures_is_that_of_duckdb(how: How) -> None:
    left, right = rows_of(1, 900), rows_of(2, 700)
    rows, result = joined(
        left,
        right,
        {"parallelism": 3, "workers": 2, "crash_after_checkpoints": [1, 2], "schedule": Schedule(5)},
        between=("-30 ms", "50 ms"),
        how=how,
    )
    assert counted(rows) == by_duckdb(left, right, how, "r.at - l.at BETWEEN -30 AND 50")
    assert result.restarts == 2
    assert result.rows_late == 0


@pytest.mark.parametrize("how", ["inner", "full"])
def test_a_window_join_with_failures_is_that_of_duckdb(how: How) -> None:
    left, right = rows_of(3, 500), rows_of(4, 500)
    rows, _ = joined(left, right, {"parallelism": 2, "crash_after_checkpoints": 1}, window="40 ms", how=how)
    condition = "floor(l.at / 40.0) = floor(r.at / 40.0)"
    assert counted(rows) == by_duckdb(left, right, how, condition)
    for row in rows:
        for at in (row["at"], row["at_right"]):
            assert at is None or row["window_start"] <= at < row["window_end"]


@pytest.mark.parametrize("how", ["inner", "left", "full"])
def test_a_regular_join_with_failures_is_that_of_duckdb_when_its_changes_are_added_up(how: How) -> None:
    left, right = rows_of(5, 400, keys=60), rows_of(6, 300, keys=60)
    rows, _ = joined(left, right, {"parallelism": 2, "crash_after_checkpoints": [1, 2]}, how=how)
    added: Counter[tuple[Any, ...]] = counted([row for row in rows if row.get("op", "insert") == "insert"])
    added.subtract(counted([row for row in rows if row.get("op") == "delete"]))
    assert +added == by_duckdb(left, right, how, "true")
    assert min(added.values()) == 0 or how == "inner", "nothing was taken back"


def test_a_join_goes_on_at_another_parallelism() -> None:
    """Three runs on one store: the state of both sides, and rows that had a partner, move with their keys (I9)."""
    left, right = rows_of(7, 600), rows_of(8, 600)
    sink = CollectSink()
    stops = [15, 45]
    result = None
    for parallelism in (2, 3, 1):
        pipeline = Pipeline("joined")
        ours, theirs = sides(pipeline, left, right)
        ours.join(theirs, between=("-30 ms", "50 ms"), how="full", name="join").sink(sink, name="out")
        turns = iter(range(10**9))
        stop = stops.pop(0) if stops else None
        result = run(
            pipeline,
            parallelism=parallelism,
            store=None if result is None else result.store,
            schedule=Schedule(parallelism),
            until=None if stop is None else lambda stop=stop, turns=turns: next(turns) > stop,
        )
    assert counted(sink.rows()) == by_duckdb(left, right, "full", "r.at - l.at BETWEEN -30 AND 50")


@pytest.mark.parametrize("seed", range(3))
def test_no_row_of_a_join_is_late_for_a_window_behind_it(seed: int) -> None:
    """The watermark waits for rows that the join may still emit."""
    left, right = rows_of(9, 500), rows_of(10, 500)
    pipeline, sink = Pipeline("windows"), CollectSink()
    ours, theirs = sides(pipeline, left, right)
    pairs = ours.join(theirs, between=("-60 ms", "80 ms"), how="left", name="join")
    pairs.key_by("n").window("10 ms", late="error").count(name="windows").sink(sink)
    run(pipeline, parallelism=2, schedule=Schedule(seed), crash_after_checkpoints=1)
    expected = by_duckdb(left, right, "left", "r.at - l.at BETWEEN -60 AND 80")
    assert sum(row["count"] for row in sink.rows()) == sum(expected.values())


def test_windows_behind_a_join_close_before_the_end() -> None:
    left = [{"id": 1, "at": at, "n": at} for at in range(0, 1000, 10)]
    pipeline, sink = Pipeline("windows"), CollectSink()
    ours, theirs = sides(pipeline, [*left, CHECKPOINT, *[{"id": 1, "at": 2000, "n": 0}] * 20], left, splits=1)
    windows = ours.join(theirs, between=("-10 ms", "10 ms")).key_by("id").window("100 ms").count()
    windows.sink(sink)
    run(pipeline)
    assert len({row["window_start"] for row in sink.rows()}) == 10


@pytest.mark.parametrize("how", ["inner", "full"])
@pytest.mark.parametrize("join", [{"between": (0, 0)}, {"window": "10 ms"}, {"state_ttl": "10 ms"}])
def test_late_rows_of_both_sides_are_streams_with_their_own_columns(join: Row, how: How) -> None:
    on_time = [{"id": 1, "at": at, "n": at} for at in (0, 100, 200, 300)]
    more = [{"id": 1, "at": 300 + at, "n": 0} for at in range(99)]
    late = [{"id": 1, "at": 5, "n": 9}, {"id": None, "at": 6, "n": 10}]
    pipeline, pairs, left, right = Pipeline("late"), CollectSink(), CollectSink(), CollectSink()
    left_rows = [*on_time, CHECKPOINT, *more, *late, ABORT()]
    right_rows = [{**row, "m": row["n"]} for row in (*on_time, *more, {"id": 1, "at": 7, "n": 11})]
    ours, theirs = sides(pipeline, left_rows, [*right_rows[:4], CHECKPOINT, *right_rows[4:]], splits=1)
    result = ours.join(theirs, **join, how=how, late="stream", name="join")
    result.sink(pairs, name="pairs")
    result.late("left").sink(left, name="left late")
    result.late("right").sink(right, name="right late")
    ended = run(pipeline)
    assert ended.rows_late == 0
    assert sorted(left.rows(), key=lambda row: row["n"]) == late
    assert right.rows() == [{"id": 1, "at": 7, "n": 11, "m": 11}]
    assert not {9, 10, 11} & {row[name] for row in pairs.rows() for name in ("n", "n_right")}


def test_late_rows_of_a_join_are_read_by_side() -> None:
    ours, theirs = sides(Pipeline("late"), [], [])
    result = ours.join(theirs, between=(0, 0), late="stream", name="join")
    with pytest.raises(PipelineError, match=r'of a join, read late\("left"\) and late\("right"\)'):
        result.late()
    with pytest.raises(PipelineError, match="late: side is 'middle': it must be 'left' or 'right'"):
        result.late("middle")  # type: ignore[arg-type]
    result.sink(CollectSink(), name="pairs")
    result.late("left").sink(CollectSink(), name="late")
    with pytest.raises(PipelineError, match=r'the output .* is not read, .* with \.late\("right"\)\.sink'):
        result.pipeline.graph()
    with pytest.raises(PipelineError, match="no row of this join is late, since it has no event time"):
        ours.join(theirs, state_ttl=None, late="stream")


def test_late_rows_are_counted_or_refused() -> None:
    on_time = [{"id": 1, "at": at, "n": at} for at in (0, 100, 200, 300)]
    late = [*on_time, CHECKPOINT, *({"id": 1, "at": 300 + at, "n": 0} for at in range(99)), {"id": 1, "at": 5, "n": 9}]
    rows, result = joined(late, [*on_time, CHECKPOINT, {"id": 2, "at": 1000, "n": 0}], between=(0, 0))
    assert result.rows_late == 1
    assert 9 not in {row["n"] for row in rows}
    with pytest.raises(DataError, match=r"operator 'join', subtask 0 of 1: 1 rows of the left side .*late=\"drop\""):
        joined(late, [*on_time, CHECKPOINT, {"id": 2, "at": 1000, "n": 0}], between=(0, 0), late="error")


def test_a_hot_key_is_worked_off_in_steps_and_a_checkpoint_comes_in_between() -> None:
    """A million pairs of one key: no batch of output is larger than the bound, and checkpoints go on."""
    count = 1000
    hot = [{"id": 7, "at": 0, "n": n} for n in range(count)]
    pipeline, sizes = Pipeline("hot"), []

    def seen(batch: pa.RecordBatch) -> pa.RecordBatch:
        sizes.append(batch.num_rows)
        return batch.slice(0, 1)

    ours, theirs = (
        pipeline.source(ListSource(hot, batch_rows=200), name=name).key_by("id") for name in ("left", "right")
    )
    ours.join(theirs, state_ttl="1 day").map(seen).sink(CollectSink())
    settings = WorkerSettings(slice_us=1000, driver_silence_ms=3_600_000)
    result = run(pipeline, worker_settings=settings)
    assert sum(sizes) >= count * count
    assert max(sizes) <= PAIRS_MAX
    assert result.checkpoints >= 2


@pytest.mark.parametrize("parallelism", [1, 3])
def test_an_outer_join_with_nothing_on_the_other_side_emits_its_own_columns(parallelism: int) -> None:
    left = [{"id": n, "at": n, "n": n} for n in range(20)]
    rows, _ = joined(left, [], {"parallelism": parallelism}, between=(0, 0), how="left")
    assert sorted(row["n"] for row in rows) == list(range(20))
    assert all(set(row) == {"id", "at", "n"} for row in rows)


def test_every_subtask_knows_the_columns_of_a_side_that_has_a_single_record() -> None:
    left = [{"id": n, "at": n, "n": n} for n in range(40)]
    rows, _ = joined(left, [{"id": 3, "at": 3, "n": 0}], {"parallelism": 4}, between=(0, 0), how="left")
    assert len(rows) == 40
    assert all(set(row) == {"id", "at", "n", "at_right", "n_right"} for row in rows)


def test_declared_columns_need_no_record_of_the_other_side() -> None:
    pipeline = Pipeline("declared")
    left = pipeline.source(ListSource([{"id": 1, "a": 5}]), name="left").key_by("id")
    right = pipeline.source(ListSource([]), name="right").map(lambda batch: batch, schema="id bigint, b string")
    assert collect(left.join(right.key_by("id"), how="left", state_ttl="1 min")) == [
        {"id": 1, "a": 5, "b": None, "op": "insert"}
    ]


# --- keys and names ---


def two(left: pa.RecordBatch, right: pa.RecordBatch, **join: Any) -> list[Row]:
    pipeline = Pipeline("two")
    keyed = [
        pipeline.source(ListSource([{"x": 0}]), name=name)
        .map(lambda batch, rows=rows: rows, name=f"{name} rows")
        .key_by(*[column for column in rows.schema.names if column.startswith("k")])
        for name, rows in (("left", left), ("right", right))
    ]
    return collect(keyed[0].join(keyed[1], **{"state_ttl": "1 h", **join}))


@pytest.mark.parametrize(
    ("left", "right"),
    [
        (pa.array([1, 2], pa.int32()), pa.array([2, 3], pa.int64())),
        (pa.array([1, 2], pa.int8()), pa.array([2, 3], pa.uint32())),
        (pa.array(["a", "b"]), pa.array(["b", "c"], pa.large_string())),
        (pa.array(["a", "b"]).dictionary_encode(), pa.array(["b", "c"], pa.string_view())),
        (pa.array([0.5, -0.0], pa.float32()), pa.array([0.0, 3.0], pa.float64())),
        (pa.array([{"x": 1}, {"x": 2}]), pa.array([{"x": 2}, {"x": None}])),
        (pa.array([b"a", b"b"], pa.binary()), pa.array([b"b", b"c"], pa.large_binary())),
    ],
)
def test_keys_of_like_types_and_other_names_meet(left: pa.Array, right: pa.Array) -> None:
    rows = two(
        pa.RecordBatch.from_arrays([left, pa.array([0, 1])], names=["k_left", "a"]),
        pa.RecordBatch.from_arrays([right, pa.array([0, 1])], names=["k_right", "b"]),
    )
    assert [(row["a"], row["b"]) for row in rows] == [(1, 0)]


@pytest.mark.parametrize("kind", [pa.string(), pa.float64(), pa.uint64(), pa.timestamp("ms")])
def test_keys_that_are_never_equal_are_refused_with_both_names(kind: pa.DataType) -> None:
    left = pa.RecordBatch.from_arrays([pa.array([1], pa.int64())], names=["k_one"])
    right = pa.RecordBatch.from_arrays([pa.array([1]).cast(kind)], names=["k_two"])
    with pytest.raises(DataError, match=r"key 'k_one' of the left side is int64 and the key 'k_two' of the right side"):
        two(left, right)


def test_keys_that_are_declared_are_refused_before_the_start() -> None:
    pipeline = Pipeline("declared")
    left, right = (
        pipeline.source(ListSource([{"x": 1}]), name=name).map(lambda batch: batch, schema=schema, name=f"{name} rows")
        for name, schema in (("left", "id bigint"), ("right", "key string"))
    )
    with pytest.raises(
        PipelineError, match="key 'id' of the left side is int64 and the key 'key' of the right side is"
    ):
        left.key_by("id").join(right.key_by("key"), state_ttl="1 h")


def test_a_key_of_several_columns_meets_only_whole() -> None:
    left = pa.record_batch({"k1": [1, 1, 2], "k2": ["a", "b", None], "a": [0, 1, 2]})
    right = pa.record_batch({"k1": [1, 2, 1], "k2": ["b", None, "c"], "b": [0, 1, 2]})
    assert two(left, right) == [{"k1": 1, "k2": "b", "a": 1, "b": 0}]


def test_columns_of_one_name_get_a_suffix_and_those_that_clash_are_refused() -> None:
    left = pa.record_batch({"k": [1], "v": [1], "v_right": [2]})
    right = pa.record_batch({"k": [1], "v": [3]})
    with pytest.raises(DataError, match="the column 'v_right' twice: choose another suffix"):
        two(left, right)
    assert two(left, right, suffix="_2") == [{"k": 1, "v": 1, "v_right": 2, "v_2": 3}]


# --- what is refused ---


def streams(has_time: tuple[bool, bool]) -> tuple[KeyedStream, KeyedStream]:
    pipeline = Pipeline("refused")

    def side(name: str, timed: bool) -> KeyedStream:
        stream: Stream = pipeline.source(ListSource([{"id": 1, "at": 0}]), name=name)
        return (stream.with_watermark("at", 0) if timed else stream).key_by("id")

    return side("left", has_time[0]), side("right", has_time[1])


@pytest.mark.parametrize(
    ("has_time", "sides"),
    [((True, False), "the right side has"), ((False, False), "the left side and the right side have")],
)
def test_the_side_without_event_time_is_named(has_time: tuple[bool, bool], sides: str) -> None:
    left, right = streams(has_time)
    with pytest.raises(PipelineError, match=f"needs event time, and {sides} none: call"):
        left.join(right, between=(0, "1 s"))


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"between": ("1 s", "-1 s")}, "the interval is empty. Swap the two bounds"),
        ({"between": "1 s"}, "it must be two durations"),
        ({"between": ("x", 1)}, "join: between is 'x'"),
        ({"between": (0, 1), "window": 1}, "between and window are given"),
        ({"window": 0}, "join: window is 0"),
        ({"state_ttl": "-1 s"}, "join: state_ttl is '-1 s'"),
        ({"how": "outer"}, "join: how is 'outer'"),
        ({"late": "keep", "between": (0, 1)}, "join: late is 'keep'"),
        ({"suffix": ""}, "join: suffix is ''"),
    ],
)
def test_arguments_that_cannot_be_meant_are_refused(arguments: Row, text: str) -> None:
    left, right = streams((True, True))
    with pytest.raises(PipelineError, match=text):
        left.join(right, **arguments)


def test_streams_that_are_not_keyed_alike_are_refused() -> None:
    left, right = streams((True, True))
    with pytest.raises(PipelineError, match=r"call key_by\(.*on the right side"):
        left.join(right.map(lambda batch: batch), window=1)  # type: ignore[arg-type]
    with pytest.raises(PipelineError, match="both need a key of as many columns"):
        left.join(right.key_by("id", "at"), window=1)


def test_a_regular_join_says_that_its_state_has_no_end(caplog: pytest.LogCaptureFixture) -> None:
    left, right = streams((True, True))
    with caplog.at_level(logging.WARNING, logger="penstock"):
        left.join(right, state_ttl="1 day")
        assert not caplog.records
        left.join(right)
    assert "keeps every row of both sides, so its state grows without bound. Set state_ttl=" in caplog.text


def test_a_plan_shows_the_join(capsys: pytest.CaptureFixture[str]) -> None:
    left, right = streams((True, True))
    left.join(right, between=("-5 min", "10 min"), how="left").sink(CollectSink())
    left.pipeline.explain()  # type: ignore[attr-defined]
    shown = "join left; rows between -5 min and 10 min; right key id; event times at, at; keeps state by key (id)"
    assert shown in capsys.readouterr().out
