"""Aggregate functions beyond sums and extremes, against plain Python: running, in windows of panes, and in sessions."""

from __future__ import annotations

import math
import statistics
import sys
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock import ColumnarAggregate, Pipeline, PipelineError
from penstock.api.arguments import aggregates_of
from penstock.errors import DataError, IncompatibleCheckpoint
from penstock.model.aggregates import FUNCTIONS, Aggregate, kept_for
from penstock.model.event_time import MAX_WATERMARK
from penstock.model.windows import FixedWindows, SessionWindows
from penstock.state import KeyedState
from penstock.state.aggregates.sketches import HASHES_MAX
from penstock.testing import ListSource, collect

GROUPS = 16
SLIDING = FixedWindows(12, 4)
SESSIONS = SessionWindows(5)

Row = tuple[int, float | None, str | None, int]
"""Key, number, text, event time."""


class WeightedMean(ColumnarAggregate):
    """Of a number, with the event time as its weight."""

    state: ClassVar = {"total": "float64", "weight": "int64", "is_there": "bool"}
    initial: ClassVar = {"weight": 100}

    def add_batch(self, state: Any, groups: Any, *columns: Any) -> None:
        value, weight = (column.to_numpy() for column in columns)
        np.add.at(state["total"], groups, value * weight)
        np.add.at(state["weight"], groups, weight)
        state["is_there"][groups] = True

    def merge(self, state: Any, groups: Any, other: Any) -> None:
        np.add.at(state["total"], groups, other["total"])
        np.add.at(state["weight"], groups, other["weight"] - 100)
        state["is_there"][groups] |= other["is_there"]

    def result(self, state: Any) -> Any:
        assert not state["total"][~state["is_there"]].any()
        return state["total"] / (state["weight"] - 100)


ALL = [
    Aggregate("std", "v", "std"),
    Aggregate("var", "v", "var"),
    Aggregate("count_distinct", "s", "distinct"),
    Aggregate("count_distinct", "v", "distinct_numbers"),
    Aggregate("approx_count_distinct", "s", "approx"),
    Aggregate("quantile", "v", "low", fraction=0.0),
    Aggregate("quantile", "v", "high", fraction=1.0),
    Aggregate("collect_list", "s", "listed"),
    Aggregate("arg_max", "t", "at_max", by="v"),
    Aggregate("arg_min", "v", "v_first", by="t"),
    Aggregate("own", "v", "weighted", own=WeightedMean(), more=("t",)),
    Aggregate("mean", "v", "mean"),
]


def plainly(rows: Sequence[Row]) -> dict[str, Any]:
    """Of rows in the order in which they are merged."""
    numbers = [v for _, v, _, _ in rows if v is not None]
    texts = [s for _, _, s, _ in rows if s is not None]
    by_number = [row for row in rows if row[1] is not None]
    weights = [row[3] for row in by_number]
    weighted = None
    if by_number:
        total = float(sum(row[1] * row[3] for row in by_number))  # type: ignore[operator]
        weighted = total / sum(weights) if sum(weights) else math.nan if total == 0 else math.copysign(math.inf, total)
    largest = max((row[1] for row in by_number), default=None)  # type: ignore[type-var]
    earliest = min(row[3] for row in rows)
    return {
        "std": statistics.stdev(numbers) if len(numbers) > 1 else None,
        "var": statistics.variance(numbers) if len(numbers) > 1 else None,
        "distinct": len(set(texts)),
        "distinct_numbers": len(set(numbers)),
        "approx": len(set(texts)),
        "low": min(numbers, default=None),
        "high": max(numbers, default=None),
        "listed": texts or None,
        "at_max": next((row[3] for row in by_number if row[1] == largest), None),
        "v_first": next(row[1] for row in rows if row[3] == earliest),
        "weighted": weighted,
        "mean": statistics.fmean(numbers) if numbers else None,
    }


def batch_of(rows: Sequence[Row]) -> pa.RecordBatch:
    return pa.record_batch(
        {
            "k": pa.array([row[0] for row in rows], pa.int64()),
            "v": pa.array([row[1] for row in rows], pa.float64()),
            "s": pa.array([row[2] for row in rows], pa.string()),
            "t": pa.array([row[3] for row in rows], pa.int64()),
        }
    )


def same(found: dict[str, Any], expected: dict[str, Any]) -> bool:
    def equal(one: Any, other: Any) -> bool:
        if isinstance(one, float) and isinstance(other, float):
            return (math.isnan(one) and math.isnan(other)) or one == pytest.approx(other, rel=1e-9, abs=1e-9)
        return bool(one == other)

    return set(found) == set(expected) and all(equal(found[name], expected[name]) for name in expected)


def new_state() -> KeyedState:
    return KeyedState(range(GROUPS), GROUPS)


def restored(old: KeyedState, make: Callable[[KeyedState], Any]) -> Any:
    """A copy by way of a checkpoint, in small pieces, of a snapshot that is encoded when more has happened."""
    again = new_state()
    state = make(again)
    for piece in old.snapshot().encode(64):
        again.restore(piece.name, [piece.batch])
    return again, state


rows = st.lists(
    st.tuples(
        st.integers(0, 3),
        st.none() | st.sampled_from([-2.5, -1.0, 0.0, 1.0, 3.25, 1e6]),
        st.none() | st.sampled_from(["a", "b", "cc", ""]),
        st.integers(1, 40),
    ),
    max_size=20,
)


@settings(max_examples=30, deadline=None)
@given(st.lists(rows, min_size=1, max_size=5), st.integers(0, 4))
def test_running_aggregates_are_those_of_plain_python(batches: list[list[Row]], moment: int) -> None:
    def make(keyed: KeyedState) -> Any:
        return keyed.aggregate("a", ["k"], ALL)

    keyed = new_state()
    state, so_far = make(keyed), defaultdict(list)
    for number, batch in enumerate(batches):
        if number == moment:
            keyed, state = restored(keyed, make)
        for row in batch:
            so_far[row[0]].append(row)
        updates = {row.pop("k"): row for row in state.update(batch_of(batch)).to_pylist()}
        assert set(updates) == {row[0] for row in batch}
        for key, found in updates.items():
            assert same(found, plainly(so_far[key])), (key, found, plainly(so_far[key]))


@settings(max_examples=30, deadline=None)
@given(st.lists(rows, min_size=1, max_size=4), st.sampled_from([SLIDING, SESSIONS]), st.integers(0, 3))
def test_windows_and_sessions_merge_every_function(
    batches: list[list[Row]], kind: FixedWindows | SessionWindows, moment: int
) -> None:
    def make(keyed: KeyedState) -> Any:
        if isinstance(kind, SessionWindows):
            return keyed.sessions("w", ["k"], ALL, kind, "t")
        return keyed.windows("w", ["k"], ALL, kind, "t")

    keyed = new_state()
    state, given_rows = make(keyed), []
    for number, batch in enumerate(batches):
        if number == moment:
            keyed, state = restored(keyed, make)
        given_rows += batch
        state.add(batch_of(batch))
    found = {}
    for batch in state.close(MAX_WATERMARK):
        batch.validate(full=True)
        for row in batch.to_pylist():
            found[row.pop("k"), row.pop("window_start"), row.pop("window_end")] = row
    expected = sessions_of(given_rows) if isinstance(kind, SessionWindows) else sliding_of(given_rows)
    assert set(found) == set(expected)
    for place, here in expected.items():
        assert same(found[place], plainly(here)), (place, found[place], plainly(here))


def sliding_of(rows: Sequence[Row]) -> dict[tuple[int, int, int], list[Row]]:
    windows: dict[tuple[int, int, int], list[Row]] = defaultdict(list)
    for row in sorted(rows, key=lambda row: row[3] // 4):
        for start in range(-12, 44, 4):
            if start <= row[3] < start + 12:
                windows[row[0], start, start + 12].append(row)
    return windows


def sessions_of(rows: Sequence[Row]) -> dict[tuple[int, int, int], list[Row]]:
    sessions = {}
    for key in {row[0] for row in rows}:
        mine = sorted((row for row in rows if row[0] == key), key=lambda row: row[3])
        parts: list[list[Row]] = []
        for row in mine:
            if not parts or row[3] - parts[-1][-1][3] > 5:
                parts.append([])
            parts[-1].append(row)
        for part in parts:
            times = {row[3] for row in part}
            in_order = sorted((row for row in rows if row[0] == key and row[3] in times), key=lambda row: row[3] // 5)
            sessions[key, part[0][3], part[-1][3] + 5] = in_order
    return sessions


# --- single cases ---


def test_a_variance_is_right_where_sums_of_squares_cancel() -> None:
    state = new_state().aggregate("a", ["k"], [Aggregate("var", "v", "var")])
    for number in range(50):
        state.fold(pa.record_batch({"k": [1, 1], "v": [1e9 + 2 * number % 3, 1e9 + number % 5]}))
    values = [each for number in range(50) for each in (1e9 + 2 * number % 3, 1e9 + number % 5)]
    assert state.current()["var"].to_pylist() == [pytest.approx(statistics.variance(values), rel=1e-6)]


def test_equal_values_have_no_variance_however_they_are_cut() -> None:
    state = new_state().aggregate("a", ["k"], [Aggregate("std", "v", "std")])
    for size in (1, 7, 3, 100):
        state.fold(pa.record_batch({"k": [1] * size, "v": [0.1] * size}))
    assert state.current()["std"].to_pylist() == [pytest.approx(0.0, abs=1e-15)]


def test_an_approximate_count_is_exact_for_few_values_and_near_for_many() -> None:
    many = 300_000
    state = new_state().aggregate("a", ["k"], [Aggregate("approx_count_distinct", "v", "n")])
    for start in range(0, many, 50_000):
        state.fold(pa.record_batch({"k": np.zeros(50_000, np.int64), "v": np.arange(start, start + 50_000)}))
    state.fold(pa.record_batch({"k": np.ones(HASHES_MAX - 1, np.int64), "v": np.arange(HASHES_MAX - 1)}))
    estimated, exact = state.current()["n"].to_pylist()
    assert exact == HASHES_MAX - 1
    assert estimated == pytest.approx(many, rel=0.08), "the standard error is 2.2 %"
    assert state.state_bytes < 1 << 20


def test_a_quantile_is_near_the_true_one_after_merges_and_a_restore() -> None:
    aggregates = [Aggregate("quantile", "v", "p99", fraction=0.99), Aggregate("quantile", "v", "p50", fraction=0.5)]
    keyed = new_state()
    state = keyed.windows("w", ["k"], aggregates, FixedWindows(100, 10), "t")
    values = np.random.default_rng(5).permutation(100_000).astype(np.float64)
    for start in range(0, 100_000, 10_000):
        part = values[start : start + 10_000]
        state.add(pa.record_batch({"k": np.zeros(10_000, np.int64), "v": part, "t": np.full(10_000, start // 1000)}))
    _, again = restored(keyed, lambda other: other.windows("w", ["k"], aggregates, FixedWindows(100, 10), "t"))
    (whole,) = [row for b in again.close(MAX_WATERMARK) for row in b.to_pylist() if row["window_start"] == 0]
    assert whole["p99"] == pytest.approx(99_000, rel=0.003)
    assert whole["p50"] == pytest.approx(50_000, rel=0.02)


def test_nan_is_left_out_of_quantiles_and_one_value_of_distinct_ones() -> None:
    aggregates = [Aggregate("quantile", "v", "q", fraction=0.5), Aggregate("count_distinct", "v", "n")]
    state = new_state().aggregate("a", ["k"], aggregates)
    made = state.update(pa.record_batch({"k": [1, 1, 1, 2], "v": [math.nan, 4.0, -math.nan, math.nan]}))
    assert made.to_pylist() == [{"k": 1, "q": 4.0, "n": 2}, {"k": 2, "q": None, "n": 1}]


def test_a_snapshot_of_lists_and_sketches_does_not_see_later_rows() -> None:
    keyed = new_state()
    state = keyed.aggregate("a", ["k"], ALL)
    first: list[Row] = [(1, 1.0, "a", 3), (2, 2.0, "b", 4)]
    state.fold(batch_of(first))
    taken = keyed.snapshot()
    state.fold(batch_of([(1, 9.0, "z", 1), (3, 9.0, "z", 1)]))
    again = new_state()
    state = again.aggregate("a", ["k"], ALL)
    for piece in taken.encode(64):
        again.restore(piece.name, [piece.batch])
    found = {row.pop("k"): row for row in state.current().to_pylist()}
    assert set(found) == {1, 2}
    assert all(same(found[row[0]], plainly([row])) for row in first)


def test_values_of_sessions_that_were_emitted_leave_memory() -> None:
    aggregates = [Aggregate("collect_list", "s", "l"), Aggregate("count_distinct", "t", "n")]
    state = new_state().sessions("w", ["k"], aggregates, SessionWindows(1_000_000), "t")
    sizes = []
    for number in range(40):
        rows = [(number, 1.0, "x" * 50, number * 10 + each % 10) for each in range(1_000)]
        state.add(batch_of(rows))
        assert len(state.close(number * 10 + 10 + 1_000_000)) == 1
        sizes.append(state.state_bytes)
    assert state.open_panes == 1
    assert max(sizes[10:]) < 3 * max(sizes[:10]), "values of sessions that are gone stay"


def test_the_first_of_equal_rows_counts_for_arg_max_and_null_may_be_its_value() -> None:
    state = new_state().aggregate("a", ["k"], [Aggregate("arg_max", "v", "best", by="t")])
    rows: list[Row] = [(1, 5.0, None, 7), (1, 6.0, None, 7), (2, None, None, 9), (2, 1.0, None, 3)]
    assert state.update(batch_of(rows)).to_pylist() == [{"k": 1, "best": 5.0}, {"k": 2, "best": None}]
    later: list[Row] = [(1, 8.0, None, 7), (2, 3.0, None, 10)]
    assert state.update(batch_of(later)).to_pylist() == [{"k": 1, "best": 5.0}, {"k": 2, "best": 3.0}]


def test_the_layout_of_every_function_in_a_checkpoint() -> None:
    keyed = new_state()
    keyed.aggregate("a", ["k"], ALL).fold(batch_of([(1, 1.5, "a", 3), (1, 2.5, "b", 4), (1, 2.5, "b", 4)]))
    (piece,) = keyed.snapshot().encode(1 << 20)
    value = piece.batch.column("value")
    assert {field.name: str(field.type) for field in value.type} == {
        "moments(v)": "struct<count: int64, mean: double, m2: double>",
        "distinct(s)": "list<item: string>",
        "distinct(v)": "list<item: double>",
        "hashes(s)": "list<item: uint64>",
        "digest(v)": "binary",
        "list(s)": "list<item: string>",
        "arg_max(t, v)": "struct<value: int64, is_null: bool, by: double>",
        "arg_min(v, t)": "struct<value: double, is_null: bool, by: int64>",
        "own WeightedMean(v, t)": "struct<total: double, weight: int64, is_there: bool>",
        "sum(v)": "double",
        "count(v)": "int64",
    }
    (row,) = value.to_pylist()
    assert row["moments(v)"] == {"count": 3, "mean": pytest.approx(6.5 / 3), "m2": pytest.approx(2 / 3)}
    assert (row["distinct(s)"], row["list(s)"], row["distinct(v)"]) == (["a", "b"], ["a", "b", "b"], [1.5, 2.5])
    assert row["own WeightedMean(v, t)"] == {"total": 24.5, "weight": 111, "is_there": True}
    assert row["hashes(s)"] == sorted(row["hashes(s)"])
    assert len(row["hashes(s)"]) == 2


def test_other_functions_over_the_same_column_do_not_take_over_the_state() -> None:
    keyed = new_state()
    keyed.aggregate("a", ["k"], ALL[:1]).fold(batch_of([(1, 1.0, "a", 1)]))
    (piece,) = keyed.snapshot().encode(1 << 20)
    again = new_state()
    again.aggregate("a", ["k"], [Aggregate("quantile", "v", "q", fraction=0.5)])
    with pytest.raises(IncompatibleCheckpoint, match=r"has moments\(v\) by k, and the pipeline wants digest\(v\) by k"):
        again.restore("a", [piece.batch])


def test_std_and_var_share_what_they_keep() -> None:
    assert kept_for(ALL[:2]) == "moments(v)"


@pytest.mark.parametrize(
    ("output", "error"),
    [
        (("quantile", "v"), r'quantile needs a column and a fraction from 0 to 1, not None: x=\("quantile"'),
        (("quantile", "v", 99), "a fraction from 0 to 1, not 99"),
        (("arg_max", "v"), r'needs the column to return and the column to compare: x=\("arg_max", "v", "…"\)'),
        (("sum", "v", "w"), "sum takes one column"),
        (("std",), r'std needs a column: x=\("std", "…"\)'),
        (("median", "v"), "functions are .*quantile"),
        ((WeightedMean(),), "takes at least one column name"),
        ((WeightedMean(), "v", 3), "takes at least one column name"),
    ],
)
def test_an_aggregate_that_is_described_wrongly_is_refused_with_what_to_write(output: Any, error: str) -> None:
    with pytest.raises(PipelineError, match=error):
        aggregates_of(("k",), {"x": output})


def test_quantiles_without_their_library_are_refused_where_the_pipeline_is_described(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "datasketches", None)
    with pytest.raises(PipelineError, match=r"install penstock\[sketches\]"):
        aggregates_of(("k",), {"x": ("quantile", "v", 0.5)})


def test_a_result_of_another_length_is_an_error_that_names_the_aggregate() -> None:
    class Short(WeightedMean):
        def result(self, state: Any) -> Any:
            return np.zeros(1)

    state = new_state().aggregate("a", ["k"], [Aggregate("own", "v", "x", own=Short(), more=("t",))])
    with pytest.raises(DataError, match=r"Short.result has returned 1 values for 2 groups"):
        state.update(batch_of([(1, 1.0, "a", 1), (2, 1.0, "a", 1)]))


def test_every_function_runs_in_a_pipeline_with_failures() -> None:
    rows = [{"k": n % 3, "v": float(n % 11), "s": f"s{n % 5}", "t": n} for n in range(200)]
    outputs: dict[str, Any] = {
        each.output: (each.own or each.function, *each.columns, *([each.fraction] if each.fraction is not None else []))
        for each in ALL
    }
    assert {each.function for each in ALL} | {"sum", "count", "min", "max", "first", "last"} == {*FUNCTIONS, "own"}
    stream = Pipeline("p").source(ListSource(rows, batch_rows=30)).key_by("k").aggregate(emit="final", **outputs)
    for row in collect(stream):
        mine: list[Row] = [(r["k"], r["v"], r["s"], r["t"]) for r in rows if r["k"] == row["k"]]  # type: ignore[misc]
        key = row.pop("k")
        assert same(row, plainly(mine)), key
