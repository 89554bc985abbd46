"""DataFrames that are cut out of one and joined to one are those that pandas makes."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from penstock.columnar.schemas.schema_guard import SchemaGuard
from penstock.operators.spark.frames import (
    arrow_columns,
    cut_by_blocks,
    cut_by_position,
    frame_cut,
    joined_frames,
)
from penstock.operators.spark.values import SparkPandasFormat

FRAME = pd.DataFrame(
    {
        "n": [1, 2, 3, 4],
        "x": [0.5, np.nan, 1.5, 2.5],
        "text": ["a", None, "c", "d"],
        "at": pd.to_datetime(["2026-01-01", None, "2026-01-03", "2026-01-04"]),
        "zone": pd.to_datetime(["2026-01-01", None, "2026-01-03", "2026-01-04"]).tz_localize("Europe/Berlin"),
        "nullable": pd.array([1, None, 3, 4], dtype="Int64"),
        "kind": pd.Categorical(["a", "b", "a", "b"]),
        "flag": [True, False, True, False],
    }
)


@pytest.mark.parametrize("cut", [cut_by_position, frame_cut(pd.DataFrame, pd.RangeIndex)])
@pytest.mark.parametrize(("start", "end"), [(0, 4), (1, 3), (3, 4), (2, 2)])
def test_a_cut_is_that_of_pandas(start: int, end: int, cut: Any) -> None:
    expected = FRAME.iloc[start:end].reset_index(drop=True)
    frame = cut(FRAME.copy(), start, end, pd.RangeIndex)
    pd.testing.assert_frame_equal(frame, expected)
    assert frame.attrs == {} and frame.describe(include="all").equals(expected.describe(include="all"))


def test_a_pandas_without_the_parts_that_are_not_public_is_cut_by_position() -> None:
    def absent(*_: object) -> None:
        raise AttributeError("_from_mgr")

    class Frame(pd.DataFrame):
        _from_mgr = absent

    assert frame_cut(pd.DataFrame, pd.RangeIndex) is cut_by_blocks
    assert frame_cut(Frame, pd.RangeIndex) is cut_by_position


def test_a_function_may_change_its_cut_and_no_other_one_sees_it() -> None:
    batch = pa.record_batch({"n": [1, 2, 3, 4], "x": [0.5, 1.5, 2.5, 3.5]})
    form = SparkPandasFormat(SchemaGuard("here"), "UTC")
    whole = form.of(batch)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        first = form.cut(whole, 0, 2)
        first["more"] = 7
        first.loc[0, "x"] = -1.0
        first["n"] += 100
        first["x"].to_numpy()[1] = -2.0
    assert first["x"].tolist() == [-1.0, -2.0]
    pd.testing.assert_frame_equal(form.cut(whole, 2, 4), pd.DataFrame({"n": [3, 4], "x": [2.5, 3.5]}))
    assert batch.column("x").to_pylist() == [0.5, 1.5, 2.5, 3.5]


def test_frames_of_the_same_columns_and_types_become_one() -> None:
    parts = [FRAME.iloc[:1], FRAME.iloc[1:2], FRAME.iloc[2:]]
    (joined,) = joined_frames(parts)
    pd.testing.assert_frame_equal(joined, FRAME)


@pytest.mark.parametrize(
    "other",
    [FRAME.rename(columns={"n": "m"}), FRAME.astype({"n": "float64"}), FRAME[["x", "n"]], FRAME.drop(columns="x")],
    ids=["another name", "another type", "another order", "a column less"],
)
def test_frames_that_differ_stay_apart(other: Any) -> None:
    assert len(joined_frames([FRAME, other])) == 2


def test_columns_without_names_are_joined_by_their_place() -> None:
    (joined,) = joined_frames([pd.DataFrame([[1, "a"]]), pd.DataFrame([[2, "b"]])])
    pd.testing.assert_frame_equal(joined, pd.DataFrame([[1, "a"], [2, "b"]]))


NUMBERS = pa.schema(
    [("k", pa.int64()), ("x", pa.float64()), ("small", pa.int16()), ("half", pa.float32()), ("flag", pa.bool_())]
)


def numbers(first: int, count: int, names: list[str] | None = None) -> pd.DataFrame:
    frame = pd.DataFrame(
        {
            "k": np.arange(first, first + count),
            "x": np.where(np.arange(count) % 2, np.nan, 0.5),
            "small": np.arange(count, dtype=np.int16),
            "half": np.arange(count, dtype=np.float32),
            "flag": np.arange(count) % 3 == 0,
        }
    )
    return frame if names is None else frame[names]


@pytest.mark.parametrize("names", [NUMBERS.names, NUMBERS.names[::-1]], ids=["in order", "in another order"])
def test_numbers_become_the_columns_that_pyspark_makes_of_them(names: list[str]) -> None:
    form = SparkPandasFormat(SchemaGuard("here", NUMBERS), "UTC")
    frames = [numbers(0, 3, names), numbers(3, 1, names), numbers(4, 5, names)]
    columns = arrow_columns(frames, NUMBERS)
    assert columns is not None
    expected = [form._to_arrow(frame) for frame in joined_frames(frames)]
    made = pa.RecordBatch.from_arrays(columns, schema=NUMBERS)
    assert pa.Table.from_batches([made]).equals(pa.Table.from_batches(expected).combine_chunks())
    assert made.column("x").null_count == 3
    assert form.batch(frames) == made


@pytest.mark.parametrize(
    "other",
    [
        numbers(0, 1).astype({"k": "float64"}),
        numbers(0, 1).astype({"k": "Int64"}),
        numbers(0, 1).astype({"k": "int32"}),
        numbers(0, 1).astype({"x": "object"}),
        numbers(0, 1).rename(columns={"k": "other"}),
        numbers(0, 1).drop(columns="k"),
        numbers(0, 1, NUMBERS.names[::-1]),
    ],
    ids=["a float", "nullable", "narrower", "objects", "another name", "a column less", "another order"],
)
def test_frames_of_other_types_are_left_to_pyspark(other: pd.DataFrame) -> None:
    assert arrow_columns([numbers(0, 2), other], NUMBERS) is None


def test_types_that_need_a_look_at_each_value_are_left_to_pyspark() -> None:
    assert arrow_columns([pd.DataFrame({"text": ["a"]})], pa.schema([("text", pa.string())])) is None
    assert arrow_columns([pd.DataFrame(index=range(3))], pa.schema([])) is None


def test_a_function_may_change_a_frame_that_it_has_returned() -> None:
    frame = numbers(0, 2)
    made = SparkPandasFormat(SchemaGuard("here", NUMBERS), "UTC").batch([frame])
    assert made is not None
    frame["k"].to_numpy()[:] = -1
    assert made.column("k").to_pylist() == [0, 1]
