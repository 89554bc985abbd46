"""Changelogs: aggregates behind them take records back, aggregates are one, and tables are made of them."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from penstock import Pipeline, Stream
from penstock.columnar.grouping import key_codes
from penstock.errors import PipelineError
from penstock.operators.keyed.retract import upserts
from penstock.testing import ABORT, CHECKPOINT, ListSource, collect

SCHEMA = pa.schema([("k", pa.int64()), ("g", pa.int64()), ("v", pa.int64())])
FEW = settings(
    max_examples=12,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    phases=[Phase.explicit, Phase.generate],
)
drawn = st.lists(
    st.tuples(st.integers(0, 3), st.integers(0, 2), st.one_of(st.none(), st.integers(-5, 5))), min_size=1, max_size=40
)


def source(given: list[Any], batch_rows: int) -> Stream:
    rows: list[Any] = [{"k": k, "g": g, "v": v} for k, g, v in given]
    third = len(rows) // 3
    items = [*rows[:third], CHECKPOINT, *rows[third : 2 * third], ABORT(), *rows[2 * third :]]
    return Pipeline("changes").source(ListSource(items, schema=SCHEMA, batch_rows=batch_rows))


def largest(given: list[Any], count: int) -> list[Any]:
    """The first `count` rows of each k by v, descending, nulls last, ties by arrival."""
    by_key = defaultdict(list)
    for row in given:
        by_key[row[0]].append(row)
    ordered = [sorted(rows, key=lambda row: (row[2] is None, -(row[2] or 0))) for rows in by_key.values()]
    return [row for rows in ordered for row in rows[:count]]


@FEW
@given(drawn, st.integers(1, 3), st.integers(1, 9))
def test_an_aggregate_behind_a_changelog_takes_records_back(given: list[Any], count: int, batch_rows: int) -> None:
    changes = source(given, batch_rows).key_by("k").top(count, by="v")
    totals = changes.key_by("g").aggregate(
        all="count", values=("count", "v"), total=("sum", "v"), mean=("avg", "v"), emit="final"
    )
    held = defaultdict(list)
    for _, g, v in largest(given, count):
        held[g].append(v)
    for row in collect(totals):
        values = [v for v in held[row["g"]] if v is not None]
        assert (row["all"], row["values"]) == (len(held[row["g"]]), len(values))
        assert row["total"] == (sum(values) if values else None)
        assert row["mean"] == (pytest.approx(sum(values) / len(values)) if values else None)


@FEW
@given(drawn, st.integers(1, 9))
def test_an_aggregate_as_a_changelog_leaves_the_current_rows(given: list[Any], batch_rows: int) -> None:
    counts = source(given, batch_rows).key_by("k").aggregate(n="count", least=("min", "v"), emit="changelog")
    # How many keys have each count: a key leaves its former count when it gets another one.
    spread = counts.key_by("n").aggregate(keys="count", emit="changelog")
    table: dict[int, int] = {}
    for change in collect(spread):
        if change["op"] == "insert":
            assert change["n"] not in table
            table[change["n"]] = change["keys"]
        else:
            assert table.pop(change["n"]) == change["keys"]
    expected: dict[int, int] = defaultdict(int)
    for k in {row[0] for row in given}:
        expected[sum(row[0] == k for row in given)] += 1
    assert table == expected


@FEW
@given(drawn, st.integers(1, 3), st.integers(1, 9))
def test_a_table_by_key_and_rank_is_that_of_the_first_records(given: list[Any], count: int, batch_rows: int) -> None:
    ranked = source(given, batch_rows).key_by("k").top(count, by="v", rank="rank").to_upsert("k", "rank")
    table: dict[Any, Any] = {}
    for change in collect(ranked):
        at = change["k"], change["rank"]
        assert change["op"] == ("update" if at in table else "insert")
        table[at] = change["g"], change["v"]
    places: dict[int, int] = defaultdict(int)
    expected = {}
    for k, g, v in largest(given, count):
        places[k] += 1
        expected[k, places[k]] = (g, v)
    assert table == expected


def test_changes_of_a_key_come_to_one() -> None:
    ops = ["delete", "insert", "insert", "delete", "insert", "delete", "insert", "delete"]
    batch = pa.record_batch({"k": [1, 1, 2, 2, 3, 4, 5, 5], "n": range(8), "op": ops})
    assert len(key_codes([batch["k"]])) == 8
    is_insert = pa.array([op == "insert" for op in ops]).to_numpy(zero_copy_only=False)
    assert [tuple(row.values()) for row in upserts(batch, [batch["k"]], is_insert).to_pylist()] == [
        (1, 1, "update"),
        (3, 4, "insert"),
        (4, 5, "delete"),
    ]


@pytest.mark.parametrize("function", ["min", "max", "first", "last"])
def test_aggregates_that_cannot_take_back_are_refused_when_the_pipeline_is_built(function: str) -> None:
    changes = source([(0, 0, 0)], 1).key_by("k").top(1, by="v")
    with pytest.raises(PipelineError, match=f"x is {function} of a changelog.*Use count, mean, sum; or top"):
        changes.key_by("g").aggregate(x=(function, "v"))


def test_what_cannot_work_on_a_changelog_says_so() -> None:
    changes = source([(0, 0, 0)], 1).key_by("k").top(1, by="v", rank="rank")
    plain = changes.pipeline.source(ListSource([], schema=SCHEMA), name="plain").key_by("g")
    for call in (
        lambda: changes.key_by("g").window("1 s", on="v"),
        lambda: changes.key_by("g").session("1 s", on="v"),
        lambda: changes.key_by("g").count_window(2),
        lambda: changes.key_by("g").over(rows=2),
        lambda: changes.key_by("g").join(plain),
        lambda: plain.join(changes.key_by("g")),
        lambda: changes.key_by("g").join_as_of(plain),
        lambda: changes.drop_duplicates("g"),
    ):
        with pytest.raises(PipelineError, match="its input is a changelog, whose column 'op' retracts records"):
            call()
    with pytest.raises(PipelineError, match=r"an update does not say what the row was; aggregate before to_upsert\(\)"):
        changes.to_upsert("k", "rank").key_by("g").count()
    with pytest.raises(PipelineError, match="union: the streams are not all changelogs of the same kind"):
        changes.union(changes.drop("op"))
    with pytest.raises(PipelineError, match="to_upsert: the stream is not a changelog"):
        changes.drop("op").to_upsert("k")
    # Without its operations it is a stream of records.
    changes.drop("op").key_by("g").aggregate(x=("min", "v"))


def test_a_regular_outer_join_is_a_changelog_and_others_are_not() -> None:
    left = source([(0, 0, 0)], 1).key_by("k")
    right = left.pipeline.source(ListSource([], schema=SCHEMA), name="right").key_by("k")
    left.join(right, how="left").to_upsert("k", "v")
    with pytest.raises(PipelineError, match="its input is a changelog"):
        left.join(right, how="full").key_by("k").reduce(lambda one, _: one)
    left.join(right).key_by("k").reduce(lambda one, _: one)
    left.join(right, how="left", between=("0 s", "1 s"), on="v").key_by("k").reduce(lambda one, _: one)
