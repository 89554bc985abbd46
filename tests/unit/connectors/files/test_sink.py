"""Parquet and JSON lines: every record in one file, wherever a crash comes."""

from __future__ import annotations

import datetime
import decimal
import json
import secrets
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock import DataError, JsonLinesSink, ParquetSink, Pipeline, PipelineError, StorageError
from penstock.connectors.files.filesystem import Place, place_of
from penstock.connectors.files.sink import FileCommitter, FileSink
from penstock.ids import CheckpointId, Generation
from penstock.testing import ABORT, CHECKPOINT, ListSource, run

SINKS: list[type[FileSink]] = [ParquetSink, JsonLinesSink]
ONE = CheckpointId(1)


def batch(*numbers: int) -> pa.RecordBatch:
    return pa.record_batch({"n": pa.array(numbers, pa.int64())})


def published(directory: str | Path) -> list[int]:
    """All numbers in files that a reader would look at."""
    place, found = place_of(directory), list[int]()
    for name in place.files():
        if name.startswith("_"):
            continue
        with place.open(name) as file:
            data = file.read()
        if name.endswith(".parquet"):
            found += pq.read_table(pa.BufferReader(data))["n"].to_pylist()
        else:
            found += [json.loads(line)["n"] for line in data.splitlines()]
    return sorted(found)


def staged(directory: str | Path) -> list[str]:
    return sorted(name for name in place_of(directory).files() if name.startswith("_staging"))


@pytest.mark.parametrize("sink_type", SINKS)
def test_nothing_is_to_be_seen_before_the_commit(sink_type: type[FileSink], tmp_path: Path) -> None:
    sink = sink_type(tmp_path)
    writer = sink.writer(0, Generation(1))
    writer.write(batch(1, 2))
    committables = list(writer.prepare()())
    writer.write(batch(3))
    assert published(tmp_path) == []
    sink.committer().commit(ONE, committables)
    assert published(tmp_path) == [1, 2]
    sink.committer().commit(ONE, committables)
    assert published(tmp_path) == [1, 2]
    writer.close()
    assert staged(tmp_path) == []


@pytest.mark.parametrize("sink_type", SINKS)
def test_a_checkpoint_without_records_publishes_nothing(sink_type: type[FileSink], tmp_path: Path) -> None:
    assert list(sink_type(tmp_path).writer(0, Generation(1)).prepare()()) == []


@pytest.mark.parametrize("sink_type", SINKS)
def test_files_roll_by_size(sink_type: type[FileSink], tmp_path: Path) -> None:
    sink = sink_type(tmp_path, roll_size=1)
    writer = sink.writer(0, Generation(1))
    for number in range(5):
        writer.write(batch(number))
    committables = list(writer.prepare()())
    sink.committer().commit(ONE, committables)
    assert published(tmp_path) == list(range(5))
    assert len(committables) == 5


def test_small_batches_share_a_row_group(tmp_path: Path) -> None:
    sink = ParquetSink(tmp_path)
    writer = sink.writer(0, Generation(1))
    for number in range(100):
        writer.write(batch(number))
    sink.committer().commit(ONE, list(writer.prepare()()))
    (file,) = tmp_path.glob("*.parquet")
    assert pq.ParquetFile(file).metadata.num_row_groups == 1


def test_the_types_of_json(tmp_path: Path) -> None:
    row = {
        "t": datetime.datetime(2024, 1, 2, 3, 4, 5, tzinfo=datetime.UTC),
        "d": datetime.date(2024, 1, 2),
        "b": b"ab",
        "x": decimal.Decimal("1.50"),
        "f": float("nan"),
        "l": [1, None],
        "s": {"a": "ü"},
        "n": None,
    }
    sink = JsonLinesSink(tmp_path)
    writer = sink.writer(0, Generation(1))
    writer.write(pa.RecordBatch.from_pylist([row]))
    sink.committer().commit(ONE, list(writer.prepare()()))
    (file,) = tmp_path.glob("*.jsonl")
    assert json.loads(file.read_text()) == {
        "t": "2024-01-02T03:04:05Z",
        "d": "2024-01-02",
        "b": "YWI=",
        "x": "1.50",
        "f": None,
        "l": [1, None],
        "s": {"a": "ü"},
        "n": None,
    }


def test_a_generation_removes_what_older_ones_left_behind(tmp_path: Path) -> None:
    sink = ParquetSink(tmp_path)
    for generation in (1, 2, 10):
        writer = sink.writer(0, Generation(generation))
        writer.write(batch(generation))
        writer.prepare()()
    (tmp_path / "_staging" / "somebody else's").touch()
    sink.committer().discard_uncommitted(Generation(10))
    left = staged(tmp_path)
    assert len(left) == 2
    assert left[0].startswith("_staging/g10-0-1-")


def test_a_pipeline_that_starts_anew_does_not_write_over_its_old_output(tmp_path: Path) -> None:
    for _ in range(2):
        sink = ParquetSink(tmp_path)
        writer = sink.writer(0, Generation(1))
        writer.write(batch(1))
        sink.committer().commit(ONE, list(writer.prepare()()))
    assert published(tmp_path) == [1, 1]


def test_staged_output_that_is_gone_is_an_error_and_not_a_loss(tmp_path: Path) -> None:
    sink = ParquetSink(tmp_path)
    writer = sink.writer(0, Generation(1))
    writer.write(batch(1))
    committables = list(writer.prepare()())
    (tmp_path / staged(tmp_path)[0]).unlink()
    with pytest.raises(StorageError, match=r"checkpoint 1 is to publish .* the file was removed"):
        sink.committer().commit(ONE, committables)


@pytest.mark.parametrize("name", ["../../etc/passwd", "_staging/../x", "/etc/passwd", "x"])
def test_a_committable_names_nothing_outside_the_directory(tmp_path: Path, name: str) -> None:
    hostile = json.dumps({"staged": name, "final": name, "bytes": 1}).encode()
    with pytest.raises(StorageError, match="which are no names of this sink"):
        ParquetSink(tmp_path).committer().commit(ONE, [hostile])


@pytest.mark.parametrize("sink_type", SINKS)
def test_a_schema_that_drifts_is_an_error(sink_type: type[FileSink], tmp_path: Path) -> None:
    writer = sink_type(tmp_path).writer(0, Generation(1))
    writer.write(batch(1))
    writer.prepare()()
    with pytest.raises(DataError, match=r"'n' was int64 and is string. Cast to one type in front of the sink"):
        writer.write(pa.record_batch({"n": ["x"]}))


def test_a_preparation_that_failed_never_passes_half_a_file_off_as_a_whole_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = ParquetSink(tmp_path).writer(0, Generation(1))
    writer.write(batch(1))
    prepared = writer.prepare()
    with monkeypatch.context() as patch:
        patch.setattr("os.fsync", _full_disk)
        with pytest.raises(StorageError, match="No space left"):
            prepared()
    with pytest.raises(StorageError, match="No space left"):
        prepared()


def _full_disk(descriptor: int) -> None:
    raise OSError(28, "No space left on device")


def test_bad_arguments(tmp_path: Path) -> None:
    with pytest.raises(PipelineError, match="roll_size is 0"):
        ParquetSink(tmp_path, roll_size=0)
    with pytest.raises(PipelineError, match=r"neither by pyarrow.fs nor by fsspec"):
        ParquetSink("nonsense://somewhere")


# --- crashes ---


class Killed(BaseException):
    """The driver dies."""


class Dying:
    """A place whose driver is killed in front of, or behind, one of its operations."""

    def __init__(self, place: Place, operation: int, is_before: bool) -> None:
        self._place = place
        self._left = operation
        self._is_before = is_before

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._place, name)

        def call(*arguments: Any) -> Any:
            self._left -= 1
            if self._left == 0 and self._is_before:
                raise Killed
            result = method(*arguments)
            if self._left == 0:
                raise Killed
            return result

        return call


crash_points = st.lists(st.tuples(st.integers(1, 12), st.booleans()), max_size=3)


@settings(max_examples=60, deadline=None)
@given(
    checkpoints=st.lists(
        st.tuples(st.lists(st.integers(1, 4), min_size=0, max_size=3), st.booleans(), crash_points), max_size=4
    ),
    sink_type=st.sampled_from(SINKS),
    is_local=st.booleans(),
)
def test_wherever_the_driver_dies_every_record_is_published_once(
    tmp_path_factory: pytest.TempPathFactory,
    checkpoints: list[tuple[list[int], bool, list[tuple[int, bool]]]],
    sink_type: type[FileSink],
    is_local: bool,
) -> None:
    directory = str(tmp_path_factory.mktemp("sink")) if is_local else f"memory://{secrets.token_hex(8)}"
    sink, generation, number = sink_type(directory, roll_size=300), 1, 0
    writer = sink.writer(0, Generation(generation))
    for checkpoint, (sizes, is_durable, crashes) in enumerate(checkpoints, start=1):
        batches = []
        for size in sizes:
            batches.append(batch(*range(number, number + size)))
            number += size
        for one in batches:
            writer.write(one)
        committables = list(writer.prepare()())
        if not is_durable:
            # All workers die before the manifest is written: the next generation writes the records again.
            generation += 1
            sink.committer().discard_uncommitted(Generation(generation))
            writer = sink.writer(0, Generation(generation))
            for one in batches:
                writer.write(one)
            committables = list(writer.prepare()())
        for operation, is_before in crashes:
            dying: Any = Dying(place_of(directory), operation, is_before)
            try:
                FileCommitter(dying, directory).commit(CheckpointId(checkpoint), committables)
                break
            except Killed:
                generation += 1
        sink.committer().commit(CheckpointId(checkpoint), committables)
        if crashes:
            generation += 1
            sink.committer().discard_uncommitted(Generation(generation))
            writer = sink.writer(0, Generation(generation))
        assert published(directory) == list(range(number))
    sink.committer().discard_uncommitted(Generation(generation + 1))
    assert staged(directory) == []
    assert published(directory) == list(range(number))


def fails_once() -> Callable[[pa.RecordBatch], pa.RecordBatch]:
    state = {"left": 1}

    def function(rows: pa.RecordBatch) -> pa.RecordBatch:
        if 250 in rows["n"].to_pylist() and state["left"]:
            state["left"] = 0
            raise RuntimeError("once")
        return rows

    return function


@pytest.mark.parametrize("sink_type", SINKS)
@pytest.mark.parametrize(("parallelism", "workers"), [(1, 1), (3, 2)])
def test_exactly_once_through_crashes(
    sink_type: type[FileSink], parallelism: int, workers: int, tmp_path: Path
) -> None:
    rows: list[Any] = [{"n": n} for n in range(400)]
    items = [*rows[:200], CHECKPOINT, *rows[200:300], CHECKPOINT, *rows[300:350], ABORT(), *rows[350:]]
    pipeline = Pipeline("p")
    source = pipeline.source(ListSource(items, splits=2, batch_rows=20))
    source.map(fails_once()).rebalance().sink(sink_type(tmp_path, roll_size=200), parallelism=2)
    result = run(pipeline, parallelism=parallelism, workers=workers, crash_after_checkpoints=1)
    assert result.restarts == 3
    assert published(tmp_path) == list(range(400))
    assert staged(tmp_path) == []


def test_on_another_file_system() -> None:
    directory = f"memory://{secrets.token_hex(8)}"
    items: list[Any] = [*({"n": n} for n in range(50)), CHECKPOINT, ABORT(), *({"n": n} for n in range(50, 90))]
    pipeline = Pipeline("p")
    pipeline.source(ListSource(items)).sink(ParquetSink(directory))
    run(pipeline)
    assert published(directory) == list(range(90))


def test_two_sinks_do_not_share_a_directory(tmp_path: Path) -> None:
    pipeline = Pipeline("p")
    stream = pipeline.source(ListSource([{"n": 1}]))
    stream.sink(ParquetSink(str(tmp_path / "out")), name="one")
    stream.sink(JsonLinesSink(tmp_path / "out"), name="two")
    with pytest.raises(
        PipelineError, match=r"the sinks 'one' and 'two' both write to .*out: give each its own directory"
    ):
        run(pipeline)
