"""What a function of frames or rows gets, and returns, is what was sent."""

from __future__ import annotations

from typing import Any

import pandas as pd
import pyarrow as pa
import pytest

from penstock import DataError, Pipeline
from penstock.testing import CollectSink, ListSource, run

LARGE = 2**53 + 1
"""The first integer that is no float."""


def passed_on(batch: pa.RecordBatch, format: Any, operator: str = "map") -> pa.Table:
    pipeline, output = Pipeline("p"), CollectSink()
    getattr(pipeline.source(ListSource([batch])), operator)(lambda records: records, format=format).sink(output)
    run(pipeline, restarts=0)
    return output.table()


@pytest.mark.parametrize("format", ["pandas", "rows"])
@pytest.mark.parametrize(
    "values",
    [
        [[LARGE, None], None, [1]],
        [{"x": LARGE}, {"x": None}, None],
        [[{"x": LARGE, "y": [LARGE, None]}], [{"x": None, "y": []}]],
        [LARGE, None],
    ],
)
def test_integers_beside_a_null_stay_integers(format: str, values: list[Any]) -> None:
    batch = pa.record_batch({"v": values})
    assert passed_on(batch, format).to_pydict() == batch.to_pydict()
    assert passed_on(batch, format).schema == batch.schema


@pytest.mark.parametrize("operator", ["map", "filter", "flat_map"])
def test_two_columns_of_one_name_are_no_row(operator: str) -> None:
    batch = pa.RecordBatch.from_arrays([pa.array([1]), pa.array([2])], names=["a", "a"])
    with pytest.raises(DataError, match="two columns have the name 'a', and a row can have one"):
        passed_on(batch, "rows", operator)


@pytest.mark.parametrize("column", [[1], [None, 1]])
def test_two_columns_of_one_name_are_two_in_a_frame(column: list[Any]) -> None:
    batch = pa.RecordBatch.from_arrays([pa.array(column), pa.array(column)], names=["a", "a"])
    pipeline, output = Pipeline("p"), CollectSink()
    stream = pipeline.source(ListSource([batch]))
    stream.map(lambda frame: pd.DataFrame({"names": [list(frame.columns)]}), format="pandas").sink(output)
    run(pipeline)
    assert output.rows() == [{"names": ["a", "a"]}]
