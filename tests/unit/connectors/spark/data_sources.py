"""PySpark data sources as their users write them: nothing here knows of Penstock."""

from __future__ import annotations

import itertools
import json
import os
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa
from pyspark.sql import Row
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamArrowWriter,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    InputPartition,
    SimpleDataSourceStreamReader,
    WriterCommitMessage,
)
from pyspark.sql.streaming.datasource import ReadLimit
from pyspark.sql.types import StructType


@dataclass
class Span(InputPartition):
    first: int
    end: int


class NumbersReader(DataSourceReader):
    def __init__(self, options: Any) -> None:
        self.count = int(options["count"])
        self.partition_count = int(options.get("partitions", "3"))

    def partitions(self) -> list[InputPartition]:
        ends = [self.count * number // self.partition_count for number in range(self.partition_count + 1)]
        return [Span(first, end) for first, end in itertools.pairwise(ends)]

    def read(self, partition: Any) -> Iterator[tuple[Any, ...]]:
        for number in range(partition.first, partition.end):
            yield number, f"number {number}"


class NumbersStream(DataSourceStreamReader):
    """Numbers in ranges of `step`, each in two partitions, of which the second may be empty."""

    committed: ClassVar[list[dict[str, Any]]] = []
    stopped: ClassVar[list[int]] = []

    def __init__(self, options: Any) -> None:
        self.count = int(options["count"])
        self.step = int(options.get("step", "10"))
        self.form = options.get("form", "tuple")

    def initialOffset(self) -> dict[str, Any]:
        return {"at": {"n": 0}}

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        return {"at": {"n": min(self.count, start["at"]["n"] + self.step)}}

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        first, last = start["at"]["n"], end["at"]["n"]
        middle = first + self.step // 2
        return [Span(first, min(middle, last)), Span(min(middle, last), last)]

    def read(self, partition: Any) -> Iterator[Any]:
        numbers = range(partition.first, partition.end)
        if self.form == "batch":
            for first in range(partition.first, partition.end, 3):
                chunk = [number for number in numbers if first <= number < first + 3]
                names = [f"number {number}" for number in chunk]
                yield pa.record_batch({"n": pa.array(chunk, pa.int64()), "name": pa.array(names)})
            return
        for number in numbers:
            values = number, f"number {number}"
            yield {"tuple": values, "list": list(values), "row": Row(name=values[1], n=values[0])}[self.form]

    def commit(self, end: dict[str, Any]) -> None:
        NumbersStream.committed.append(end)

    def stop(self) -> None:
        NumbersStream.stopped.append(1)


class Numbers(DataSource):
    """Numbers from 0 up to `count`, in every way in which a data source can be read."""

    @classmethod
    def name(cls) -> str:
        return "numbers"

    def schema(self) -> str:
        return "n bigint, name string"

    def reader(self, schema: StructType) -> DataSourceReader:
        return NumbersReader(self.options)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        return NumbersStream(self.options)


class OldStream(NumbersStream):
    def latestOffset(self) -> dict[str, Any]:  # type: ignore[override]
        return {"at": {"n": self.count}}


class OldNumbers(Numbers):
    """Its `latestOffset` is as it was before Spark 4.2."""

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        return OldStream(self.options)


class SimpleStream(SimpleDataSourceStreamReader):
    committed: ClassVar[list[dict[str, Any]]] = []

    def __init__(self, options: Any) -> None:
        self.count = int(options["count"])
        self.step = int(options.get("step", "10"))

    def initialOffset(self) -> dict[str, Any]:
        return {"n": 0}

    def read(self, start: dict[str, Any]) -> tuple[Iterator[tuple[Any, ...]], dict[str, Any]]:
        end = min(self.count, start["n"] + self.step)
        return iter([(number,) for number in range(start["n"], end)]), {"n": end}

    def readBetweenOffsets(self, start: dict[str, Any], end: dict[str, Any]) -> Iterator[tuple[Any, ...]]:
        return iter([(number,) for number in range(start["n"], end["n"])])

    def commit(self, end: dict[str, Any]) -> None:
        SimpleStream.committed.append(end)


class SimpleNumbers(DataSource):
    def schema(self) -> StructType:
        return StructType().add("n", "long")

    def simpleStreamReader(self, schema: StructType) -> SimpleDataSourceStreamReader:
        return SimpleStream(self.options)


# --- writing ---


@dataclass
class Part:
    path: str
    digest: bytes


@dataclass
class Written(WriterCommitMessage):
    rows: int
    part: Part | None = None
    figures: dict[int, tuple[float, ...]] = field(default_factory=dict)


class FilesWriter(DataSourceStreamWriter):
    """Writes a file that nobody looks at, and renames it when it is committed."""

    def __init__(self, options: Any, schema: StructType) -> None:
        self.path = Path(options["path"])
        self.names = schema.names
        self.delay = float(options.get("delay", "0"))

    def write(self, iterator: Iterator[Row]) -> WriterCommitMessage:
        path, rows = self.path / f".{uuid.uuid4().hex}", 0
        with path.open("w", encoding="utf-8") as file:
            for row in iterator:
                file.write(json.dumps(row.asDict()) + "\n")
                rows += 1
                time.sleep(self.delay)
        return Written(rows, Part(str(path), b"\x00\xff"), {1: (1.5, 2.5)})

    def commit(self, messages: list[Any], batchId: int) -> None:
        for number, message in enumerate(messages):
            assert message.figures == {1: (1.5, 2.5)} and message.part.digest == b"\x00\xff"
            if os.path.exists(message.part.path):
                os.rename(message.part.path, self.path / f"{batchId}-{number}.jsonl")


class BatchesWriter(DataSourceStreamArrowWriter):
    written: ClassVar[list[pa.RecordBatch]] = []

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        for batch in iterator:
            BatchesWriter.written.append(batch)
        return WriterCommitMessage()


class Files(DataSource):
    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        return FilesWriter(self.options, schema)


class Batches(DataSource):
    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        return BatchesWriter()
