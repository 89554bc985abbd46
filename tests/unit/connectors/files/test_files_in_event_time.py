"""Files in event time: each is sorted, and together they are in no order. Nothing may be late."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from penstock import FileSource, Pipeline, Stream
from penstock.testing import CollectSink, Result, run

HOUR_MS = 3_600_000


def write(path: Path, times: list[int], format: str) -> None:
    rows = [{"user": time % 3, "at": time} for time in times]
    if format == "parquet":
        # Small row groups, so that a file is left and taken up again in the middle.
        table = pa.Table.from_pylist(rows, schema=pa.schema([("user", pa.int64()), ("at", pa.int64())]))
        pa.parquet.write_table(table, path, row_group_size=16)
    else:
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def counted(pipeline: Pipeline, stream: Stream, sink: CollectSink) -> None:
    stream.with_watermark("at", 0).key_by("user").window("30 min").count("n").sink(sink)


def hours_of(directory: Path, format: str, files: int, rows: int, first: int = 0) -> None:
    for file in range(first, files):
        start = file * HOUR_MS
        write(directory / f"{file:04d}.{format}", [start + n * HOUR_MS // rows for n in range(rows)], format)


@pytest.mark.parametrize("format", ["parquet", "jsonl"])
@pytest.mark.parametrize("parallelism", [1, 2, 3])
def test_hourly_files_lose_nothing(tmp_path: Path, format: Any, parallelism: int) -> None:
    hours_of(tmp_path, format, files=24, rows=200)
    pipeline, sink = Pipeline("p"), CollectSink()
    counted(pipeline, pipeline.source(FileSource(tmp_path, format=format)), sink)
    result = run(pipeline, parallelism=parallelism, crash_after_checkpoints=[1])
    assert result.rows_late == 0
    assert sum(row["n"] for row in sink.rows()) == 24 * 200


FILE = st.lists(st.integers(0, 5 * HOUR_MS), min_size=0, max_size=60).map(sorted)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    files=st.lists(FILE, min_size=1, max_size=14),
    parallelism=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    crashes=st.lists(st.integers(1, 4), max_size=2),
    format=st.sampled_from(["parquet", "jsonl"]),
    shuffle=st.randoms(use_true_random=False),
)
def test_sorted_files_are_never_late_whatever_fails(
    tmp_path_factory: pytest.TempPathFactory,
    files: list[list[int]],
    parallelism: tuple[int, int],
    crashes: list[int],
    format: Any,
    shuffle: random.Random,
) -> None:
    directory = tmp_path_factory.mktemp("files")
    names = [f"{number:03d}.{format}" for number in range(len(files))]
    shuffle.shuffle(names)
    for name, times in zip(names, files, strict=True):
        write(directory / name, times, format)
    schema = pa.schema([("user", pa.int64()), ("at", pa.int64())])
    pipeline, sink = Pipeline("p"), CollectSink()
    counted(pipeline, pipeline.source(FileSource(directory, format=format, schema=schema)), sink)
    results = _stopped_and_gone_on(pipeline, parallelism, crashes)
    assert [result.rows_late for result in results] == [0] * len(results)
    assert sum(row["n"] for row in sink.rows()) == sum(map(len, files))


def _stopped_and_gone_on(pipeline: Pipeline, parallelism: tuple[int, int], crashes: list[int]) -> list[Result]:
    """Stopped with a savepoint as soon as it runs, and gone on at another parallelism."""
    turns = iter(range(1_000_000))
    first = run(pipeline, parallelism=parallelism[0], crash_after_checkpoints=crashes, until=lambda: next(turns) > 40)
    return [first, run(pipeline, parallelism=parallelism[1], store=first.store)]


def test_a_catch_up_of_a_watched_directory_loses_nothing(tmp_path: Path) -> None:
    """Stopped, and a day of files later started again: all of them are there at once."""
    pipeline, sink = Pipeline("p"), CollectSink()
    hours_of(tmp_path, "parquet", files=2, rows=60)
    counted(pipeline, pipeline.source(FileSource(tmp_path, watch=True)), sink)

    def total() -> int:
        return sum(row["n"] for row in sink.rows())

    # The last window stays open: nothing says that it is complete.
    first = run(pipeline, parallelism=2, until=lambda: total() >= 60, timeout=120)
    hours_of(tmp_path, "parquet", files=24, rows=60, first=2)
    second = run(pipeline, parallelism=2, until=lambda: total() >= 23 * 60, store=first.store, timeout=120)
    assert (first.rows_late, second.rows_late) == (0, 0)


@pytest.mark.parametrize("splits", [1, 7])
def test_behind_an_exchange_channels_are_told_apart(tmp_path: Path, splits: int) -> None:
    """A subtask of the source that reads the evening does not make the morning late, which another one reads."""
    hours_of(tmp_path, "parquet", files=splits, rows=300)
    pipeline, sink = Pipeline("p"), CollectSink()
    counted(pipeline, pipeline.source(FileSource(tmp_path), parallelism=splits).rebalance(), sink)
    result = run(pipeline, parallelism=2)
    assert result.rows_late == 0
    assert sum(row["n"] for row in sink.rows()) == splits * 300
