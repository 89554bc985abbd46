"""Filtered aggregates, against a plain model: conditions that are null, every kind of aggregate, crashes, names."""

from __future__ import annotations

import decimal
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from penstock import Pipeline, filtered
from penstock.api.arguments import aggregates_of
from penstock.errors import DataError, PipelineError
from penstock.model.aggregates import kept_for
from penstock.testing import ABORT, CHECKPOINT, CollectSink, ListSource, collect, run

SCHEMA = pa.schema([("k", pa.int64()), ("v", pa.int64()), ("w", pa.int64()), ("at", pa.int64())])
FEW = settings(
    max_examples=12,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    phases=[Phase.explicit, Phase.generate],
)
SMALL, LARGE = pc.field("w") < 3, pc.field("w") >= 3
number = st.one_of(st.none(), st.integers(0, 6))
drawn = st.lists(st.tuples(st.integers(0, 2), number, number), min_size=1, max_size=40)
OUTPUTS: dict[str, Any] = {
    "all": "count",
    "small": filtered("count", where=SMALL),
    "small_v": filtered("count", "v", where=SMALL),
    "large_sum": filtered("sum", "v", where=LARGE),
    "small_distinct": filtered("count_distinct", "v", where=SMALL),
    "large_distinct": filtered("count_distinct", "v", where=LARGE),
    "at_largest": filtered("arg_max", "w", "v", where=SMALL),
}


def rows_of(given: list[Any]) -> list[dict[str, Any]]:
    return [{"k": k, "v": v, "w": w, "at": 100 * n} for n, (k, v, w) in enumerate(given)]


def expected(rows: list[dict[str, Any]]) -> dict[str, Any]:
    small = [row for row in rows if row["w"] is not None and row["w"] < 3]
    large = [row["v"] for row in rows if row["w"] is not None and row["w"] >= 3 and row["v"] is not None]
    values = [row["v"] for row in small if row["v"] is not None]
    largest = next((row["w"] for row in small if values and row["v"] == max(values)), None)
    return {
        "all": len(rows),
        "small": len(small),
        "small_v": len(values),
        "large_sum": sum(large) if large else None,
        "small_distinct": len(set(values)),
        "large_distinct": len(set(large)),
        "at_largest": largest,
    }


def by_key(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    keys = sorted({row["k"] for row in rows})
    return [{"k": key, **expected([row for row in rows if row["k"] == key])} for key in keys]


def crashing(rows: list[Any]) -> list[Any]:
    half = len(rows) // 2
    return [*rows[:half], CHECKPOINT, *rows[half:], ABORT()]


@FEW
@given(drawn, st.integers(1, 9))
def test_a_filtered_aggregate_is_that_of_the_records_for_which_its_condition_holds(
    given: list[Any], batch_rows: int
) -> None:
    rows = rows_of(given)
    keyed = Pipeline("filtered").source(ListSource(crashing(rows), schema=SCHEMA, batch_rows=batch_rows)).key_by("k")
    assert collect(keyed.aggregate(emit="final", **OUTPUTS), by="k") == by_key(rows)


@FEW
@given(drawn, st.integers(1, 9))
def test_windows_have_filtered_aggregates_too(given: list[Any], batch_rows: int) -> None:
    rows = rows_of(given)
    source = ListSource(crashing(rows), schema=SCHEMA, batch_rows=batch_rows)
    timed = Pipeline("filtered").source(source).with_watermark("at", 0).key_by("k")
    found = collect(timed.window("1 s").aggregate(**OUTPUTS))
    wanted = [
        {**each, "window_start": start, "window_end": start + 1_000}
        for start in sorted({row["at"] // 1_000 * 1_000 for row in rows})
        for each in by_key([row for row in rows if row["at"] // 1_000 * 1_000 == start])
    ]
    assert sorted(found, key=lambda row: (row["window_start"], row["k"])) == wanted


def test_count_windows_and_changelogs_have_filtered_aggregates_too() -> None:
    rows = rows_of([(0, 1, 1), (0, 2, 5), (0, 4, None), (0, 8, 2)])
    keyed = Pipeline("filtered").source(ListSource(rows, schema=SCHEMA, batch_rows=1)).key_by("k")
    small = {"small": filtered("sum", "v", where=SMALL)}
    assert [row["small"] for row in collect(keyed.count_window(2).aggregate(**small))] == [1, 8]
    counts = keyed.aggregate(n="count", emit="changelog")
    odd = {"odd": filtered("count", where=pc.field("n") == 3), "last": filtered("sum", "n", where=pc.field("n") == 4)}
    # Three records were counted for a while, and then taken back.
    assert collect(counts.key_by("k").aggregate(emit="final", **odd)) == [{"k": 0, "odd": 0, "last": 4}]


def test_a_late_record_leaves_without_masked_columns() -> None:
    rows = [{"k": 0, "v": 1, "w": 1, "at": at} for at in (0, 50_000, 5)]
    timed = Pipeline("filtered").source(ListSource(rows, batch_rows=1)).with_watermark("at", 0).key_by("k")
    stream = timed.window("1 s", late="stream").aggregate(small=filtered("count", where=SMALL))
    late = CollectSink()
    stream.sink(CollectSink(), name="windows")
    stream.late().sink(late, name="late")
    run(stream.pipeline)
    assert late.rows() == [rows[2]]


def test_conditions_that_look_alike_are_kept_apart() -> None:
    values = list(range(40))
    # Arrow shows the first and the last ten values of a list.
    one, other = pc.field("w").isin(values), pc.field("w").isin([*values[:20], 99, *values[21:]])
    assert str(one) == str(other)
    rows = [{"k": 0, "w": 20}, {"k": 0, "w": 20}, {"k": 0, "w": 99}]
    outputs = {"one": filtered("count", where=one), "other": filtered("count", where=other)}
    keyed = Pipeline("filtered").source(ListSource(rows)).key_by("k")
    assert collect(keyed.aggregate(emit="final", **outputs)) == [{"k": 0, "one": 2, "other": 1}]


def test_a_checkpoint_says_the_condition() -> None:
    kept = kept_for(aggregates_of(("k",), {"small": filtered("sum", "v", where=SMALL)}))
    assert kept == "sum(v where (w < 3))"


def test_a_condition_that_has_changed_is_not_continued() -> None:
    from penstock.errors import PenstockError
    from penstock.storage.memory import MemoryStore

    def pipeline(condition: pc.Expression) -> Pipeline:
        made = Pipeline("filtered")
        keyed = made.source(ListSource([{"k": 0, "v": 1, "w": 1}]), name="rows").key_by("k")
        keyed.aggregate(n=filtered("count", where=condition), name="n").sink(CollectSink(), name="out")
        return made

    store = MemoryStore()
    run(pipeline(SMALL), store=store)
    with pytest.raises(PenstockError, match="where"):
        run(pipeline(LARGE), store=store)


def test_mistakes_are_told_with_a_way_out() -> None:
    keyed = Pipeline("filtered").source(ListSource([{"k": 0, "v": 1, "w": 1}])).key_by("k")
    with pytest.raises(PipelineError, match="n is filtered, and where is True: it must be an Arrow expression"):
        keyed.aggregate(n=filtered("count", where=True))
    with pytest.raises(PipelineError, match="filtered twice: combine the conditions with &"):
        keyed.aggregate(n=filtered(filtered("count", where=SMALL), where=LARGE))
    with pytest.raises(PipelineError, match="sum needs a column"):
        keyed.aggregate(n=filtered("sum", where=SMALL))
    with pytest.raises(PipelineError, match="an aggregate of a frame cannot be filtered: aggregate a column"):
        keyed.over(rows=2).aggregate(n=filtered("count", where=SMALL))
    with pytest.raises(DataError, match=r"a condition of a filtered aggregate is int64: where=… must be true or false"):
        collect(keyed.aggregate(n=filtered("count", where=pc.field("w") + 1)))
    with pytest.raises(DataError, match=r"cannot be evaluated.*the columns are"):
        collect(keyed.aggregate(n=filtered("count", where=pc.field("nothing") > 1)))


@pytest.mark.parametrize("kind", [pa.decimal32(5, 2), pa.decimal64(15, 2)])
def test_a_filtered_aggregate_of_small_decimals_keeps_their_type(kind: pa.DataType) -> None:
    schema = pa.schema({"k": pa.int64(), "w": pa.int64(), "x": kind})
    rows = [{"k": 0, "w": w, "x": decimal.Decimal(10 + w)} for w in (7, 2, 1)]
    keyed = Pipeline("filtered").source(ListSource(rows, schema=schema)).key_by("k")
    found = collect(keyed.aggregate(emit="final", small=filtered("max", "x", where=SMALL)))
    assert [row["small"] for row in found] == [decimal.Decimal(12)]
