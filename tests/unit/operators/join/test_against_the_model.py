"""Joins of random rows against a model in plain Python: late, tied, duplicate and null rows, gaps, and failures."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pyarrow as pa
from hypothesis import example, given, settings
from hypothesis import strategies as st

from penstock.model.joins import How, IntervalBounds, JoinBounds, RegularBounds, WindowBounds
from penstock.operators.join.spec import JoinSpec
from tests.unit.join_model import MS, Model, Row
from tests.unit.operators.join.harness import Join

INT64 = np.iinfo(np.int64)
INTEGER = pa.int64()
BOUNDS: list[JoinBounds] = [
    IntervalBounds(0, 0),
    IntervalBounds(-5, 10),
    IntervalBounds(-10, -3),
    IntervalBounds(2, 4),
    WindowBounds(10),
    WindowBounds(7),
    RegularBounds(12, True),
    RegularBounds(None, False),
]
HOWS: list[How] = ["inner", "left", "right", "full"]
KINDS = {
    "ms": (pa.int64(), MS),
    "us": (pa.timestamp("us"), 1000),
    "ns": (pa.timestamp("ns", "UTC"), 1),
}
keys = st.one_of(st.none(), st.integers(0, 2))
times = st.integers(-30, 30)
batches = st.lists(st.tuples(keys, times), max_size=8)
steps = st.lists(
    st.one_of(
        st.tuples(st.just("add"), st.integers(0, 1), batches),
        st.tuples(st.just("watermark"), st.integers(-35, 45)),
        st.tuples(st.just("restart"), st.integers(1, 3)),
    ),
    max_size=14,
)


def spec_of(bounds: JoinBounds, how: How) -> JoinSpec:
    on = ("t", "t") if not isinstance(bounds, RegularBounds) or bounds.in_event_time else (None, None)
    return JoinSpec(bounds, how, (("k",), ("k",)), on, "drop", "_right", (None, None))


def batch_of(
    rows: list[tuple[Any, int]], first: int, side: int, unit: str = "ms", key_type: pa.DataType = INTEGER
) -> pa.RecordBatch:
    kind, per_tick = KINDS[unit]
    ticks = [at * MS // per_tick for _, at in rows]
    names = [None if key is None else str(key) if not pa.types.is_integer(key_type) else key for key, _ in rows]
    columns = [
        pa.array(names, key_type),
        pa.array(ticks, pa.int64()).cast(kind),
        pa.array(range(first, first + len(rows)), pa.int64()),
    ]
    return pa.RecordBatch.from_arrays(columns, names=["k", "t", "nm"[side]])


@settings(max_examples=120, deadline=None)
@given(
    st.sampled_from(BOUNDS),
    st.sampled_from(HOWS),
    steps,
    st.tuples(st.sampled_from(sorted(KINDS)), st.sampled_from(sorted(KINDS))),
    st.sampled_from([(pa.int64(), pa.int32()), (pa.string(), pa.large_string())]),
)
def test_a_join_is_what_the_model_says_whatever_comes_in_which_order(
    bounds: JoinBounds,
    how: How,
    steps: list[tuple[Any, ...]],
    units: tuple[str, str],
    key_types: tuple[pa.DataType, pa.DataType],
) -> None:
    join, model, number = Join(spec_of(bounds, how)), Model(bounds, how), 0
    for step, *arguments in steps:
        if step == "add":
            side, rows = arguments
            join.add(side, batch_of(rows, number, side, units[side], key_types[side]))
            for key, at in rows:
                model.add(Row(side, number, key, at * MS))
                number += 1
        elif step == "watermark":
            if arguments[0] > join.watermark:
                join.advance(arguments[0])
                model.advance(arguments[0])
        else:
            join.restart(*arguments)
    join.end()
    model.end()
    assert join.results() == model.output
    assert join.late == model.late


@settings(max_examples=30, deadline=None)
@given(st.sampled_from(BOUNDS[:-1]), st.sampled_from(HOWS), st.lists(st.tuples(st.integers(0, 1), batches), max_size=8))
def test_state_is_empty_when_the_watermark_has_passed_everything(
    bounds: JoinBounds, how: How, added: list[tuple[int, list[tuple[Any, int]]]]
) -> None:
    join = Join(spec_of(bounds, how))
    for side in (0, 1):
        join.add(side, batch_of([], 0, side))
    for side, rows in added:
        join.add(side, batch_of(rows, 0, side))
    join.advance(1000)
    assert join.rows_kept == 0
    pieces = [piece for task in join.subtasks for piece in task.context.keyed.snapshot().encode(1 << 20)]
    assert {piece.name for piece in pieces if piece.rows} <= {"clock"}
    assert sum(side.state_bytes for task in join.subtasks for side in task.operator._sides) == 0


limits = st.one_of(st.integers(INT64.min, INT64.min + 20), st.integers(INT64.max - 20, INT64.max), st.integers(-20, 20))


@settings(max_examples=40, deadline=None)
@given(st.sampled_from(BOUNDS[:5]), st.lists(st.tuples(st.integers(0, 1), st.integers(0, 1), limits), max_size=12))
@example(IntervalBounds(2, 4), [(0, 1, INT64.min), (1, 1, INT64.min + 1)])
@example(IntervalBounds(2, 4), [(1, 1, INT64.max), (0, 1, INT64.max - 1)])
@example(IntervalBounds(-4, -2), [(0, 1, INT64.min), (1, 1, INT64.min), (0, 1, INT64.max), (1, 1, INT64.max)])
def test_times_near_the_limits_of_int64_do_not_wrap_around(
    bounds: JoinBounds, rows: list[tuple[int, int, int]]
) -> None:
    spec = spec_of(bounds, "inner")
    if isinstance(bounds, WindowBounds):
        # The bounds of a window that are out of range are refused: see below.
        rows = [(side, key, at) for side, key, at in rows if abs(at) < 1000]
    join, model = Join(dataclasses.replace(spec)), Model(bounds, "inner")
    for number, (side, key, at) in enumerate(rows):
        columns = [pa.array([key]), pa.array([at], pa.int64()), pa.array([number])]
        join.add(side, pa.RecordBatch.from_arrays(columns, names=["k", "t", "nm"[side]]))
        model.add(Row(side, number, key, at * MS))
    join.end()
    assert join.results() == model.output
