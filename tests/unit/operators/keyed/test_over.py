"""Aggregates over frames, against a plain model: nulls, ties, batches, crashes, times near the limits."""

from __future__ import annotations

import functools
from collections import Counter
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from penstock import Pipeline, Stream
from penstock.columnar.frames import over_frames
from penstock.columnar.hashing import key_groups
from penstock.errors import DataError, PipelineError
from penstock.metrics import standard as metrics
from penstock.model.aggregates import Aggregate
from penstock.model.event_time import MIN_WATERMARK
from penstock.model.over import RangeFrame, RowsFrame
from penstock.operators.over import by_time, waiting
from penstock.testing import ABORT, CHECKPOINT, CollectSink, ListSource, collect, run
from tests.unit.operators.keyed.bench import GROUPS, Bench, restored

SCHEMA = pa.schema([("k", pa.string()), ("v", pa.int64()), ("at", pa.int64()), ("n", pa.int64())])
FEW = settings(
    max_examples=12,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    phases=[Phase.explicit, Phase.generate],
)
FUNCTIONS = ("sum", "count", "min", "max", "mean", "first", "last")

drawn = st.lists(
    st.tuples(st.sampled_from(["a", "b", None]), st.one_of(st.none(), st.integers(-9, 9)), st.integers(-3_000, 3_000)),
    max_size=40,
)


def rows_of(given: list[Any]) -> list[dict[str, Any]]:
    return [{"k": k, "v": v, "at": at, "n": n} for n, (k, v, at) in enumerate(given)]


def crashing(rows: list[Any]) -> list[Any]:
    third = len(rows) // 3
    return [*rows[:third], CHECKPOINT, *rows[third : 2 * third], ABORT(), *rows[2 * third :]]


def model(values: list[Any]) -> dict[str, Any]:
    valid = [value for value in values if value is not None]
    if not valid:
        return {"sum": None, "count": 0, "min": None, "max": None, "mean": None, "first": None, "last": None}
    extremes = {"min": min(valid), "max": max(valid), "first": valid[0], "last": valid[-1]}
    return {"sum": sum(valid), "count": len(valid), "mean": sum(valid) / len(valid), **extremes}


def aggregated(stream: Stream) -> list[dict[str, Any]]:
    return collect(stream)


OUTPUTS: dict[str, Any] = {function: (function, "v") for function in FUNCTIONS}


@FEW
@given(drawn, st.integers(1, 5), st.integers(1, 9))
def test_each_record_has_the_aggregates_of_the_last_rows_of_its_key(
    given: list[Any], count: int, batch_rows: int
) -> None:
    rows = rows_of(given)
    keyed = Pipeline("over").source(ListSource(crashing(rows), schema=SCHEMA, batch_rows=batch_rows)).key_by("k")
    found = collect(keyed.over(rows=count).aggregate(all="count", **OUTPUTS))
    expected = []
    for row in rows:
        before = [each["v"] for each in rows if each["k"] == row["k"] and each["n"] <= row["n"]][-count:]
        expected.append({**row, "all": len(before), **model(before)})
    assert sorted(found, key=lambda row: row["n"]) == expected


@FEW
@given(drawn, st.integers(0, 2_000), st.integers(1, 9))
def test_each_record_has_the_aggregates_of_a_stretch_of_event_time(
    given: list[Any], range_ms: int, batch_rows: int
) -> None:
    rows = rows_of(given)
    # Nothing is late: the delay is as long as all of it.
    timed = (
        Pipeline("over")
        .source(ListSource(crashing(rows), schema=SCHEMA, batch_rows=batch_rows))
        .with_watermark("at", "6 s")
    )
    found = collect(timed.key_by("k").over(range=range_ms / 1000).aggregate(all="count", **OUTPUTS))
    assert [row["at"] for row in found] == sorted(row["at"] for row in rows)
    by_number = {row["n"]: row for row in found}
    assert len(by_number) == len(found) == len(rows)
    for row in rows:
        frame = [each for each in rows if each["k"] == row["k"] and row["at"] - range_ms <= each["at"] <= row["at"]]
        frame.sort(key=lambda each: (each["at"], each["n"]))
        expected = {**row, "all": len(frame), **model([each["v"] for each in frame])}
        mine = by_number[row["n"]]
        assert {name: mine[name] for name in expected} == expected


@FEW
@given(drawn, st.integers(1, 5), st.integers(1, 9), st.sampled_from([1, 3, 1 << 13]))
def test_with_event_time_the_last_rows_of_a_key_are_those_before_it_in_event_time(
    given: list[Any], count: int, batch_rows: int, portion_rows: int
) -> None:
    rows = rows_of(given)
    source = ListSource(crashing(rows), schema=SCHEMA, batch_rows=batch_rows)
    timed = Pipeline("over").source(source).with_watermark("at", "6 s")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(by_time, "_PORTION_ROWS", portion_rows)
        found = collect(timed.key_by("k").over(rows=count).aggregate(all="count", **OUTPUTS))
    in_time = sorted(rows, key=lambda row: (row["at"], row["n"]))
    assert [row["at"] for row in found] == [row["at"] for row in in_time]
    by_number = {row["n"]: row for row in found}
    assert len(by_number) == len(found) == len(rows)
    for place, row in enumerate(in_time):
        before = [each["v"] for each in in_time[: place + 1] if each["k"] == row["k"]][-count:]
        assert by_number[row["n"]] == {**row, "all": len(before), **model(before)}


lateness = st.lists(st.tuples(st.integers(0, 1), st.integers(-50, 50)), min_size=1, max_size=40)


@FEW
@given(lateness, st.integers(0, 30), st.integers(0, 20), st.sampled_from([1, 1 << 13]))
def test_frames_are_those_of_the_records_that_were_not_late(
    given: list[Any], range_ms: int, delay: int, portion_rows: int
) -> None:
    rows = [{"k": k, "v": n, "at": at, "n": n} for n, (k, at) in enumerate(given)]
    for frame in ({"range": range_ms / 1000}, {"rows": 3}):
        bench = Bench(operator_of(frame), ("k",)).begin()
        taken, watermark = [], MIN_WATERMARK
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(by_time, "_PORTION_ROWS", portion_rows)
            for row in rows:
                taken += [row] if row["at"] >= watermark else []
                bench.process(pa.RecordBatch.from_pylist([row], SCHEMA_OF_INTEGERS))
                watermark = max(watermark, row["at"] - delay)
                bench.advance(watermark)
            bench.end()
        found = pa.Table.from_batches(bench.emitted).to_pylist() if bench.emitted else []
        in_time = sorted(taken, key=lambda row: (row["at"], row["n"]))
        assert [row["n"] for row in found] == [row["n"] for row in in_time]
        for place, row in enumerate(found):
            if "rows" in frame:
                expected = [each["v"] for each in in_time[: place + 1] if each["k"] == row["k"]][-3:]
            else:
                expected = [
                    each["v"]
                    for each in taken
                    if each["k"] == row["k"] and row["at"] - range_ms <= each["at"] <= row["at"]
                ]
            assert (row["all"], row["total"]) == (len(expected), sum(expected))
        assert bench.context.released == sorted(bench.context.released)
        left = bench.state_rows()
        assert left["over.waiting"] == 0 and left.get("over.before", 0) == 0


SCHEMA_OF_INTEGERS = pa.schema([(name, pa.int64()) for name in ("k", "v", "at", "n")])


def operator_of(frame: dict[str, Any]) -> by_time.OverTimeOperator:
    aggregates = [Aggregate("count", None, "all"), Aggregate("sum", "v", "total")]
    if "rows" in frame:
        return by_time.OverLastRowsOperator(aggregates, RowsFrame(frame["rows"]), "at", "drop")
    return by_time.OverRangeOperator(aggregates, RangeFrame(round(1000 * frame["range"])), "at", "drop")


def test_a_checkpoint_between_two_portions_holds_the_rows_that_are_left(monkeypatch: Any) -> None:
    monkeypatch.setattr(by_time, "_PORTION_ROWS", 1)
    rows = [{"k": n // 4, "v": n, "at": 10 * (n // 2), "n": n} for n in range(12)]
    bench = Bench(operator_of({"range": 1}), ("k",)).begin()
    bench.process(pa.RecordBatch.from_pylist(rows, SCHEMA_OF_INTEGERS))
    assert bench.operator.on_watermark(1_000, bench.emitted.append) is True
    steps = bench.context.owed.pop()
    next(steps)
    next(steps)
    assert not bench.operator.is_idle and bench.context.released == []
    left = bench.restored(lambda: operator_of({"range": 1}))
    left.advance(2_000)
    found = [row for each in (*bench.emitted, *left.emitted) for row in each.to_pylist()]
    assert sorted(row["n"] for row in found) == list(range(12))
    assert [row["at"] for row in found] == [row["at"] for row in rows]
    for row in found:
        assert row["all"] == sum(each["k"] == row["k"] and each["at"] <= row["at"] for each in rows)


def test_keys_that_a_rescale_has_brought_keep_their_frames_and_their_clock() -> None:
    for frame in ({"range": 1}, {"rows": 3}):
        benches = [Bench(operator_of(frame), ("k",), groups).begin() for groups in (range(8), range(8, GROUPS))]
        rows = [
            {"k": k, "v": 1, "at": at, "n": n}
            for n, (k, at) in enumerate((k, at) for at in (10, 90) for k in range(40))
        ]
        whole = pa.RecordBatch.from_pylist(rows, SCHEMA_OF_INTEGERS)
        groups = key_groups(whole, ("k",), GROUPS)
        for number, bench in enumerate(benches):
            bench.process(whole.filter(pa.array((groups >= 8) == bool(number))))
        # One of them has emitted its first rows, the other has not.
        benches[0].advance(50)
        one = restored(benches, functools.partial(operator_of, frame), range(GROUPS), MIN_WATERMARK)
        late = pa.RecordBatch.from_pylist([{**row, "at": 20} for row in rows[:40]], SCHEMA_OF_INTEGERS)
        one.process(late)
        assert one.count(metrics.LATE) == np.count_nonzero(groups[:40] < 8)
        one.end()
        found = [*benches[0].rows(), *one.rows()]
        behind = Counter(row["all"] for row in found if row["at"] == 90)
        slow = int(np.count_nonzero(groups[:40] >= 8))
        assert behind == {2: 40 - slow, 3: slow}
        assert {name: rows for name, rows in one.state_rows().items() if name != "over.clock"}["over.waiting"] == 0


def test_a_watermark_looks_at_no_row_that_it_does_not_let_go(monkeypatch: Any) -> None:
    looked_at: list[int] = []
    in_order = waiting._in_order
    monkeypatch.setattr(waiting, "_in_order", lambda rows, times: looked_at.append(len(times)) or in_order(rows, times))
    bench = Bench(operator_of({"range": 1}), ("k",)).begin()
    for n in range(50):
        rows = [{"k": 0, "v": 1, "at": 100 * n + more, "n": n} for more in (90, 10)]
        bench.process(pa.RecordBatch.from_pylist(rows, SCHEMA_OF_INTEGERS))
    looked_at.clear()
    for n in range(25):
        bench.advance(100 * n + 50)
    # The second row of a batch and the first one of the next are let go together.
    assert looked_at == [1, *[2] * 24]


def test_rows_that_wait_hold_no_memory_of_rows_that_are_gone() -> None:
    rows = pa.record_batch({"at": np.arange(1_000)})
    held = waiting._in_order(rows, np.arange(1_000))
    assert held.behind(100).whole == 1_000
    assert held.behind(100).behind(600).whole == 300


def test_records_leave_memory_when_no_frame_can_reach_them(monkeypatch: Any) -> None:
    held: list[int] = []
    passed = by_time.OverRangeOperator.passed

    def watched(self: Any, watermark: int) -> None:
        passed(self, watermark)
        held.append(self._before.row_count + sum(len(each.times) for each in self._waiting._held))

    monkeypatch.setattr(by_time.OverRangeOperator, "passed", watched)
    rows = [{"k": "a", "v": 1, "at": 100 * n, "n": n} for n in range(200)]
    timed = Pipeline("over").source(ListSource(rows, batch_rows=5)).with_watermark("at", 0)
    found = collect(timed.key_by("k").over(range="1 s").aggregate(all="count"))
    assert [row["all"] for row in found] == [min(n + 1, 11) for n in range(200)]
    # After the last watermark there are the stretch of the frame and the record at the watermark itself.
    assert min(held[-3:]) <= 11 and len(held) > 1


def test_late_records_are_counted_or_a_stream() -> None:
    rows = [{"k": 0, "v": 1, "at": 0}, {"k": 0, "v": 2, "at": 50_000}, {"k": 0, "v": 9, "at": 5}]
    for late in ("drop", "stream"):
        timed = Pipeline("over").source(ListSource(rows, batch_rows=1)).with_watermark("at", 0)
        stream = timed.key_by("k").over(range="10 s", late=late).aggregate(all="count")  # type: ignore[arg-type]
        found, left = CollectSink(), CollectSink()
        stream.sink(found)
        if late == "stream":
            stream.late().sink(left)
        result = run(stream.pipeline)
        assert [row["v"] for row in found.rows()] == [1, 2]
        assert [row["v"] for row in left.rows()] == ([9] if late == "stream" else [])
        assert result.rows_late == (late == "drop")


def test_without_event_time_no_record_is_late() -> None:
    with pytest.raises(PipelineError, match="without event time no record is late; call with_watermark"):
        Pipeline("over").source(ListSource([{"k": 0}])).key_by("k").over(rows=2, late="stream")


def test_late_records_of_frames_of_rows_are_counted_or_a_stream() -> None:
    rows = [{"k": 0, "v": 1, "at": 0}, {"k": 0, "v": 2, "at": 50_000}, {"k": 0, "v": 9, "at": 5}]
    for late in ("drop", "stream"):
        timed = Pipeline("over").source(ListSource(rows, batch_rows=1)).with_watermark("at", 0)
        stream = timed.key_by("k").over(rows=2, late=late).aggregate(total=("sum", "v"))  # type: ignore[arg-type]
        found, left = CollectSink(), CollectSink()
        stream.sink(found)
        if late == "stream":
            stream.late().sink(left)
        result = run(stream.pipeline)
        assert [row["total"] for row in found.rows()] == [1, 3]
        assert [row["v"] for row in left.rows()] == ([9] if late == "stream" else [])
        assert result.rows_late == (late == "drop")


def test_frames_near_the_limits_of_64_bits_are_whole() -> None:
    for frame in ({"range": 5}, {"rows": 9}):
        bench = Bench(operator_of(frame), ("k",)).begin()
        rows = [{"k": 0, "v": 1, "at": at, "n": 0} for at in reversed(EDGES)]
        bench.process(pa.RecordBatch.from_pylist(rows, SCHEMA_OF_INTEGERS))
        bench.advance(0)
        bench.end()
        found = pa.Table.from_batches(bench.emitted).to_pylist()
        assert [row["at"] for row in found] == EDGES
        assert [row["all"] for row in found] == ([1, 1, 1, 2, 1, 1] if "range" in frame else [1, 2, 3, 4, 5, 6])


EDGES = [-(2**63) + 2, -(2**62), -1, 0, 2**62, 2**63 - 2_000]


def test_times_near_the_limits_of_64_bits_are_times_like_others() -> None:
    batch = pa.record_batch({"k": [0] * len(EDGES), "at": EDGES})
    times = np.array(EDGES)
    since = np.where(times < np.iinfo(np.int64).min + 5_000, np.iinfo(np.int64).min, times - 5_000)
    firsts = by_time.rows_from(np.zeros(len(times), np.int64), times, since, np.arange(len(times)))
    assert firsts.tolist() == [0, 1, 2, 2, 4, 5]
    assert by_time.rows_up_to(np.zeros(len(times), np.int64), times).tolist() == [1, 2, 3, 4, 5, 6]
    assert batch.num_rows == len(EDGES)


def test_a_sum_that_exceeds_64_bits_is_told() -> None:
    first, end = np.array([0]), np.array([2])
    with pytest.raises(DataError, match="exceeds 64 bits"):
        over_frames("sum", pa.array([2**62, 2**62]), first, end)
    assert over_frames("sum", pa.array([2**62, 2**62 - 1]), first, end).to_pylist() == [2**63 - 1]


@pytest.mark.parametrize("function", ["min", "max", "first", "last"])
def test_values_of_any_type_are_compared(function: str) -> None:
    column = pa.array(["b", None, "a", "c"])
    made = over_frames(function, column, np.array([0, 1, 1]), np.array([4, 2, 4]))
    assert (
        made.to_pylist()
        == {
            "min": ["a", None, "a"],
            "max": ["c", None, "c"],
            "first": ["b", None, "a"],
            "last": ["c", None, "c"],
        }[function]
    )


def numbers() -> Stream:
    return Pipeline("over").source(ListSource([{"k": 0, "v": "x"}]))


def test_mistakes_are_told_with_a_way_out() -> None:
    keyed = numbers().key_by("k")
    with pytest.raises(PipelineError, match="over takes either rows=, such as rows=10, or range="):
        keyed.over()
    with pytest.raises(PipelineError, match=r"over\(range=…\) needs event time: call with_watermark"):
        keyed.over(range="1 s")
    with pytest.raises(DataError, match="total: sum and mean need numbers, not string: cast"):
        collect(keyed.over(rows=2).aggregate(total=("sum", "v")))
    with pytest.raises(DataError, match="the input has a column 'v' already: give the output another name"):
        collect(keyed.over(rows=2).aggregate(v="count"))
