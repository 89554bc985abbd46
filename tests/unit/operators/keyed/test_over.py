"""Aggregates over frames, against a plain model: nulls, ties, batches, crashes, times near the limits."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from penstock import Pipeline, Stream
from penstock.columnar.frames import over_frames
from penstock.errors import DataError, PipelineError
from penstock.operators.keyed import over
from penstock.testing import ABORT, CHECKPOINT, CollectSink, ListSource, collect, run

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


def test_records_leave_memory_when_no_frame_can_reach_them(monkeypatch: Any) -> None:
    held: list[int] = []
    on_watermark = over.OverRangeOperator.on_watermark

    def watched(self: Any, watermark: int, emit: Any) -> Any:
        made = on_watermark(self, watermark, emit)
        held.append(sum(batch.num_rows for batch in self._state.get()))
        return made

    monkeypatch.setattr(over.OverRangeOperator, "on_watermark", watched)
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


EDGES = [-(2**63) + 2, -(2**62), -1, 0, 2**62, 2**63 - 2_000]


def test_times_near_the_limits_of_64_bits_are_times_like_others() -> None:
    batch = pa.record_batch({"k": [0] * len(EDGES), "at": EDGES})
    times = np.array(EDGES)
    since = np.where(times < np.iinfo(np.int64).min + 5_000, np.iinfo(np.int64).min, times - 5_000)
    firsts = over._rows_before(np.zeros(len(times), np.int64), times, since, np.zeros(len(times), np.int64))
    assert firsts.tolist() == [0, 1, 2, 2, 4, 5]
    assert over._rows_up_to(np.zeros(len(times), np.int64), times).tolist() == [1, 2, 3, 4, 5, 6]
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
    with pytest.raises(PipelineError, match="over takes one of rows=, such as rows=10, and range="):
        keyed.over()
    with pytest.raises(PipelineError, match=r"over\(range=…\) needs event time: call with_watermark"):
        keyed.over(range="1 s")
    with pytest.raises(DataError, match="total: a sum or mean is made of numbers, not of string: cast"):
        collect(keyed.over(rows=2).aggregate(total=("sum", "v")))
    with pytest.raises(DataError, match="the input has a column 'v' already: give the output another name"):
        collect(keyed.over(rows=2).aggregate(v="count"))
