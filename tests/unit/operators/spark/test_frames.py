"""DataFrames that are cut out of one and joined to one are those that pandas makes."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from penstock.columnar.schema_guard import SchemaGuard
from penstock.operators.spark.frames import cut_frame, joined_frames
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


@pytest.mark.parametrize(("start", "end"), [(0, 4), (1, 3), (3, 4), (2, 2)])
def test_a_cut_is_that_of_pandas(start: int, end: int) -> None:
    expected = FRAME.iloc[start:end].reset_index(drop=True)
    pd.testing.assert_frame_equal(cut_frame(FRAME.copy(), start, end, pd.RangeIndex), expected)


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
