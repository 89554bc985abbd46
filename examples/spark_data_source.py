"""A data source that was written for Spark, unchanged, as source and as sink: visitors at gates, by the hour.

    penstock run examples/spark_data_source.py:pipeline --checkpoints /tmp/visits

`Turnstiles` and `VisitFiles` import nothing of Penstock: `spark.dataSource.register(Turnstiles)` and
`spark.readStream.format("turnstiles")` would do with them as well. It writes JSON lines to out/visits below the current
directory, which git ignores, or to $VISITS_OUTPUT, and finishes by itself.
"""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyspark.sql.datasource import (
    DataSource,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    InputPartition,
    WriterCommitMessage,
)

from penstock import Pipeline, SparkSink, SparkSource

# --- written for Spark ---

GATES = 3


@dataclass
class GateHours(InputPartition):
    """What one gate counts in some hours."""

    gate: int
    first_hour: int
    end_hour: int


class TurnstilesReader(DataSourceStreamReader):
    def __init__(self, hours: int) -> None:
        self.hours = hours

    def initialOffset(self) -> dict[str, int]:
        return {"hour": 0}

    def latestOffset(self, start: dict[str, int], limit: Any) -> dict[str, int]:
        return {"hour": min(start["hour"] + 24, self.hours)}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> list[InputPartition]:
        return [GateHours(gate, start["hour"], end["hour"]) for gate in range(GATES)]

    def read(self, partition: Any) -> Iterator[tuple[int, int, int]]:
        for hour in range(partition.first_hour, partition.end_hour):
            yield partition.gate, hour, visitors(partition.gate, hour)


def visitors(gate: int, hour: int) -> int:
    return (hour * 37 + gate * 11) % 100


class Turnstiles(DataSource):
    @classmethod
    def name(cls) -> str:
        return "turnstiles"

    def schema(self) -> str:
        return "gate int, hour int, visitors int"

    def streamReader(self, schema: Any) -> DataSourceStreamReader:
        return TurnstilesReader(int(self.options.get("hours", "240")))


@dataclass
class Staged(WriterCommitMessage):
    path: str
    rows: int


class VisitFilesWriter(DataSourceStreamWriter):
    """Writes files under names that nobody looks at; a commit gives them their names."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        self.directory.mkdir(parents=True, exist_ok=True)
        path, rows = self.directory / f".{uuid.uuid4().hex}", 0
        with path.open("w", encoding="utf-8") as file:
            for row in iterator:
                file.write(json.dumps(row.asDict()) + "\n")
                rows += 1
        return Staged(str(path), rows)

    def commit(self, messages: list[Any], batchId: int) -> None:
        for number, message in enumerate(messages):
            # After a crash it is called again: then it was renamed before.
            if os.path.exists(message.path):
                os.replace(message.path, self.directory / f"{batchId:06d}-{number}.jsonl")


class VisitFiles(DataSource):
    def streamWriter(self, schema: Any, overwrite: bool) -> DataSourceStreamWriter:
        return VisitFilesWriter(Path(self.options["path"]))


# --- the pipeline ---


def pipeline(hours: int = 240) -> Pipeline:
    counting = Pipeline("visits")
    output = os.path.abspath(os.environ.get("VISITS_OUTPUT", "out/visits"))
    (
        counting.source(SparkSource(Turnstiles, {"hours": hours}, mode="available_now"), name="turnstiles")
        .key_by("gate")
        .aggregate(visitors=("sum", "visitors"), hours="count", name="totals")
        .sink(SparkSink(VisitFiles, {"path": output}), name="files")
    )
    return counting
