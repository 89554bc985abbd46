"""What users may write for a schema, and what is kept out by one."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from penstock import DataError, PipelineError
from penstock.columnar.schemas.schema_guard import SchemaGuard, as_schema


@pytest.mark.parametrize(
    ("ddl", "schema"),
    [
        ("n bigint", pa.schema([("n", pa.int64())])),
        ("`a b` STRING NOT NULL, d decimal(10, 2)", None),
        ("struct<a:int,b:array<string>>", pa.schema([("a", pa.int32()), ("b", pa.list_(pa.string()))])),
        (
            "m map<string, struct<x: double>>",
            pa.schema([("m", pa.map_(pa.string(), pa.struct([("x", pa.float64())])))]),
        ),
        ("t timestamp, z timestamp_ntz", pa.schema([("t", pa.timestamp("us", "UTC")), ("z", pa.timestamp("us"))])),
    ],
)
def test_ddl(ddl: str, schema: pa.Schema | None) -> None:
    if schema is None:
        schema = pa.schema([pa.field("a b", pa.string(), False), pa.field("d", pa.decimal128(10, 2))])
    assert as_schema(ddl) == schema


@pytest.mark.parametrize("bad", ["n", "n strange", "n array<int", "n int int", "n int, ; m int", "n set<int>"])
def test_bad_ddl(bad: str) -> None:
    with pytest.raises(PipelineError, match="cannot be parsed"):
        as_schema(bad)


def test_a_struct_type_of_pyspark() -> None:
    from pyspark.sql.types import ArrayType, DecimalType, LongType, MapType, StringType, StructField, StructType

    spark = StructType(
        [
            StructField("a", LongType(), False),
            StructField("b", ArrayType(DecimalType(5, 1))),
            StructField("c", MapType(StringType(), StructType([StructField("x", StringType())]))),
        ]
    )
    assert as_schema(spark) == pa.schema(
        [
            pa.field("a", pa.int64(), False),
            pa.field("b", pa.list_(pa.decimal128(5, 1))),
            pa.field("c", pa.map_(pa.string(), pa.struct([("x", pa.string())]))),
        ]
    )


@pytest.mark.parametrize("bad", [7, None, [("a", "b")]])
def test_what_is_no_schema(bad: Any) -> None:
    with pytest.raises(PipelineError, match="is not a schema"):
        as_schema(bad)


def test_a_declared_schema_puts_columns_into_its_order_and_types() -> None:
    guard = SchemaGuard("here", as_schema("a bigint, b string"))
    batch = guard.check(pa.record_batch({"b": ["x"], "a": pa.array([1], pa.int8())}))
    assert batch.schema == as_schema("a bigint, b string")


def test_a_cast_that_would_lose_something_is_refused() -> None:
    guard = SchemaGuard("here", as_schema("a int"))
    with pytest.raises(DataError, match="here: column 'a' is double and cannot become int32"):
        guard.check(pa.record_batch({"a": [1.5]}))
    with pytest.raises(DataError, match=r"here: .*'a' is missing; 'b' is new"):
        guard.check(pa.record_batch({"b": [1]}))
