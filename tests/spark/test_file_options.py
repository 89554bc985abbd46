"""Options of files by Spark's names mean the same as for Spark's own reader."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from penstock import END_OF_SPLIT, FileSource

pytestmark = pytest.mark.spark

NT = pa.schema([("n", pa.int64()), ("t", pa.string())])
LATIN = "n,t\n1,Größe\n2,\u00e9\n".encode("latin1")
QUOTED = {"header": True, "escape": '"'}

CASES: list[tuple[str, Any, bytes, dict[str, Any]]] = [
    ("csv", NT, b"n,t\n1,a\n\n2,b\n", {"header": True}),
    ("csv", NT, b"1;a,b\n2;c\n", {"header": False, "sep": ";"}),
    ("csv", NT, b"1|a\n2|c\n", {"header": False, "delimiter": "|"}),
    ("csv", NT, LATIN, {"header": True, "encoding": "iso-8859-1"}),
    ("csv", NT, "n,t\n1,Größe\n".encode("utf-16"), {"header": True, "encoding": "utf-16", "multiLine": True}),
    ("csv", NT, b"n,t\n1,'a,b'\n", {"header": True, "quote": "'"}),
    ("csv", NT, b'n,t\n1,"a ""b"", c"\n', QUOTED),
    ("csv", NT, b'n,t\n1,"a \\"b\\", c"\n', {"header": True, "escape": "\\"}),
    ("csv", NT, b"n,t\nNA,NA\n1,\n2,x\n", {"header": True, "nullValue": "NA"}),
    ("csv", NT, b'n,t\n1,"a\nb"\n2,c\n', {**QUOTED, "multiLine": True}),
    ("csv", pa.schema([("d", pa.date32())]), b"d\n02.01.2026\n", {"header": True, "dateFormat": "dd.MM.yyyy"}),
    (
        "csv",
        pa.schema([("at", pa.timestamp("us"))]),
        b"at\n02/01/2026 03:04:05\n",
        {"header": True, "timestampNTZFormat": "dd/MM/yyyy HH:mm:ss"},
    ),
    ("csv", None, b"1,a\n2,b\n", {"header": False, "inferSchema": False}),
    ("json", NT, b'{"n": 1, "t": "a", "more": 1}\n{"t": "b"}\n\n', {}),
    ("text", None, b"a\n\n b \r\nc", {}),
]


def ours(
    path: Path, name: str, format: Any, schema: pa.Schema | None, options: dict[str, Any]
) -> list[tuple[Any, ...]]:
    reader = FileSource(path, format=format, schema=schema, **options).open(name, None)
    rows: list[tuple[Any, ...]] = []
    while (batch := reader.read(100)) is not END_OF_SPLIT:
        rows += [tuple(row.values()) for row in batch.to_pylist()]  # type: ignore[union-attr]
    return rows


@pytest.mark.parametrize("ending", ["", ".gz"])
def test_files_are_read_as_spark_reads_them(spark: SparkSession, tmp_path: Path, ending: str) -> None:
    from pyspark.sql.pandas.types import from_arrow_schema

    for number, (format, schema, data, options) in enumerate(CASES if not ending else CASES[:1] + CASES[-2:]):
        directory = tmp_path / str(number)
        directory.mkdir()
        (directory / f"a{ending}").write_bytes(gzip.compress(data) if ending else data)
        reader = spark.read.format(format).options(**options)
        if schema is not None:
            reader = reader.schema(from_arrow_schema(schema))
        theirs = [tuple(row) for row in reader.load(str(directory)).collect()]
        assert ours(directory, f"a{ending}", format, schema, options) == theirs, (format, data, options)
