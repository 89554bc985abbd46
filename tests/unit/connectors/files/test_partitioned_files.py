"""Directories such as `dt=2026-01-01`: their files are read, and they are columns."""

from __future__ import annotations

import datetime
import json
import pickle
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet
import pytest

from penstock import DataError, FileSource, Pipeline
from penstock.connectors.files.partitions import partition_types, partition_values
from penstock.testing import CollectSink, run


def write(path: Path, **columns: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".parquet":
        pa.parquet.write_table(pa.table(columns), path)
    else:
        rows = [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def rows_of(source: FileSource) -> list[dict[str, Any]]:
    pipeline, sink = Pipeline("p"), CollectSink()
    pipeline.source(pickle.loads(pickle.dumps(source))).sink(sink)
    run(pipeline)
    return sorted(sink.rows(), key=str)


@pytest.mark.parametrize("format", ["parquet", "jsonl"])
def test_partitions_are_columns_with_the_types_of_their_values(tmp_path: Path, format: Any) -> None:
    write(tmp_path / f"dt=2026-01-01/hour=3/a.{format}", n=[1, 2])
    write(tmp_path / f"dt=2026-01-02/hour=14/a.{format}", n=[3])
    january = [datetime.date(2026, 1, day) for day in (1, 2)]
    assert rows_of(FileSource(tmp_path, format=format)) == [
        {"n": 1, "dt": january[0], "hour": 3},
        {"n": 2, "dt": january[0], "hour": 3},
        {"n": 3, "dt": january[1], "hour": 14},
    ]


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        (["1", "-2"], pa.int32()),
        (["1", "3000000000"], pa.int64()),
        (["1", "2.5"], pa.float64()),
        (["2026-01-01", "2026-02-30"], pa.string()),
        (["1", "NL"], pa.string()),
        (["__HIVE_DEFAULT_PARTITION__", "7"], pa.int32()),
        (["__HIVE_DEFAULT_PARTITION__"], pa.string()),
    ],
)
def test_one_type_for_all_values(values: list[str], kind: pa.DataType) -> None:
    assert partition_types(f"k={value}/a" for value in values) == {"k": kind}


def test_names_and_values_are_unquoted_and_nulls_are_null() -> None:
    assert partition_values("a%20b=c%3Dd/k=__HIVE_DEFAULT_PARTITION__/plain/x=1.parquet") == {"a b": "c=d", "k": None}


def test_a_declared_type_counts(tmp_path: Path) -> None:
    write(tmp_path / "code=007/a.parquet", n=[1])
    schema = pa.schema([("code", pa.string()), ("n", pa.int64())])
    assert rows_of(FileSource(tmp_path, schema=schema)) == [{"code": "007", "n": 1}]


@pytest.mark.parametrize("format", ["parquet", "jsonl"])
def test_a_declared_schema_may_leave_columns_out(tmp_path: Path, format: Any) -> None:
    write(tmp_path / f"k=1/a.{format}", n=[1], m=[2])
    assert rows_of(FileSource(tmp_path, format=format, schema=pa.schema([("n", pa.int64())]))) == [{"n": 1}]


def test_a_value_that_came_later_and_does_not_fit_is_an_error_with_the_cure(tmp_path: Path) -> None:
    write(tmp_path / "k=1/a.parquet", n=[1])
    source = pickle.loads(pickle.dumps(FileSource(tmp_path, watch=True)))
    write(tmp_path / "k=NL/a.parquet", n=[1])
    with pytest.raises(DataError, match="the value 'NL' of the partition column 'k' is no int32: declare the column"):
        source.open("k=NL/a.parquet", None).read(10)


def test_hidden_directories_are_left_out(tmp_path: Path) -> None:
    write(tmp_path / "_temporary/k=1/a.parquet", n=[1])
    write(tmp_path / "k=1/.staged/a.parquet", n=[1])
    write(tmp_path / "k=2/a.parquet", n=[2])
    assert rows_of(FileSource(tmp_path)) == [{"n": 2, "k": 2}]


def test_a_directory_without_files_to_read_is_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    write(tmp_path / "january/a.parquet", n=[1])
    (tmp_path / "january/b.csv").touch()
    source = FileSource(tmp_path)
    assert source.splits() == []
    # The pattern has the ending of a file that is there.
    [told] = caplog.messages
    assert "2 other files, such as 'january/a.parquet', did not match" in told
    assert told.endswith("for subdirectories use a pattern such as '*/*.parquet'")
    assert FileSource(tmp_path / "*" / "*.parquet").splits() == ["january/a.parquet"]


def test_a_watched_directory_that_is_not_there_is_said_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    source = FileSource(tmp_path / "later", watch=True)
    assert source.splits() == source.splits() == []
    assert len(caplog.messages) == 1


def test_a_declared_schema_may_have_the_columns_of_the_path_first(tmp_path: Path) -> None:
    (tmp_path / "dt=7").mkdir()
    pyarrow.parquet.write_table(pa.table({"n": [1, 2], "m": [3, 4]}), tmp_path / "dt=7" / "a.parquet")
    schema = pa.schema([("dt", pa.int64()), ("m", pa.int64()), ("n", pa.int64())])
    batch = FileSource(tmp_path, schema=schema).open("dt=7/a.parquet", None).read(10)
    assert isinstance(batch, pa.RecordBatch)
    assert batch.to_pydict() == {"dt": [7, 7], "m": [3, 4], "n": [1, 2]}
