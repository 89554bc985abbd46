"""The generator: every number once, from any position, at the rate that was asked for."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock import END_OF_SPLIT, DataError, GeneratorSource, Pipeline, PipelineError, RestoreError
from penstock.storage import MemoryStore
from penstock.testing import CollectSink, run


def make(start: int, count: int) -> pa.RecordBatch:
    return pa.record_batch({"n": np.arange(start, start + count)})


def read_all(reader: Any, rows_max: int = 1000) -> list[int]:
    found: list[int] = []
    while (batch := reader.read(rows_max)) is not END_OF_SPLIT:
        found += batch.column("n").to_pylist()
    return found


@given(rows=st.integers(0, 200), splits=st.integers(1, 7), rows_max=st.integers(1, 50), cut=st.integers(0, 10))
def test_every_number_comes_once_through_a_restore(rows: int, splits: int, rows_max: int, cut: int) -> None:
    source = GeneratorSource(make, rows=rows, splits=splits)
    found: list[int] = []
    for split in source.splits():
        reader = source.open(split, None)
        for _ in range(cut):
            batch = reader.read(rows_max)
            if batch is END_OF_SPLIT:
                break
            found += batch.column("n").to_pylist()  # type: ignore[union-attr]
        found += read_all(source.open(split, reader.offset()), rows_max)
    assert sorted(found) == list(range(rows))


def some_of(source: GeneratorSource, offsets: dict[str, bytes], calls: int, rows_max: int) -> list[int]:
    """What some calls of each split bring, or all until the end; the offsets go on."""
    found: list[int] = []
    for split in source.splits():
        reader = source.open(split, offsets.get(split))
        for _ in range(calls):
            batch: Any = reader.read(rows_max)
            if batch is END_OF_SPLIT:
                break
            found += batch.column("n").to_pylist()
        offsets[split] = reader.offset()
    return found


changes = st.lists(st.tuples(st.integers(0, 300) | st.none(), st.integers(0, 5)), max_size=5)


@given(changes, st.integers(0, 300), st.integers(1, 5), st.integers(1, 50))
def test_every_number_comes_once_however_often_rows_changes(
    runs: list[tuple[int | None, int]], rows: int, splits: int, rows_max: int
) -> None:
    offsets: dict[str, bytes] = {}
    found: list[int] = []
    for some, calls in runs:
        now = some_of(GeneratorSource(make, rows=some, splits=splits), offsets, calls, rows_max)
        assert some is None or all(number < some for number in now)
        found += now
    # Without an end the blocks are large: only a source that had one can be read to its end.
    has_end = all(some is not None for some, _ in runs)
    found += some_of(GeneratorSource(make, rows=rows, splits=splits), offsets, 1_000, rows_max)
    assert len(found) == len(set(found))
    if has_end:
        assert set(range(rows)) <= set(found)


def test_more_rows_go_on_where_fewer_have_ended() -> None:
    store, sink = MemoryStore(), CollectSink()
    for rows in (100, 60, 200):
        pipeline = Pipeline("p")
        pipeline.source(GeneratorSource(make, rows=rows, splits=2), name="src").sink(sink, name="out")
        run(pipeline, store=store)
        assert sorted(sink.table()["n"].to_pylist()) == list(range(max(rows, 100)))


def test_an_offset_of_an_older_checkpoint_is_a_position() -> None:
    reader = GeneratorSource(make, rows=100, splits=2).open("1/2", b"30")
    assert read_all(reader) == list(range(80, 100))


def test_a_position_of_version_0_1_0_keeps_its_stretch_and_new_rows_are_dealt_out_in_blocks() -> None:
    source = GeneratorSource(make, rows=300, splits=2, block_rows=10)
    first, second = (
        read_all(source.open(split, b'{"position": %d, "extents": [100]}' % position))
        for split, position in (("0/2", 48), ("1/2", 50))
    )
    assert first == [48, 49, *(n for n in range(100, 300) if n // 10 % 2 == 0)]
    assert second == [n for n in range(100, 300) if n // 10 % 2 == 1]


def test_an_offset_is_written_as_it_always_was_with_the_blocks_beside_it() -> None:
    reader = GeneratorSource(make, rows=6_400, splits=2).open("1/2", None)
    reader.read(30)
    assert reader.offset() == b'{"position": 30, "extents": [6400], "blocks": [100]}'


def test_the_splits_of_a_bounded_source_advance_together() -> None:
    rows, splits = 100_000, 4
    source = GeneratorSource(make, rows=rows, splits=splits)
    readers: list[Any] = [source.open(split, None) for split in source.splits()]
    while all(batches := [reader.read(1 << 20) for reader in readers]):
        if END_OF_SPLIT in batches:
            break
        newest = [batch.column("n")[-1].as_py() for batch in batches]
        assert max(newest) - min(newest) <= rows // 32


@pytest.mark.parametrize("rows", [1, 5, 100, 6_401, 200_001])
def test_no_split_has_much_more_than_another(rows: int) -> None:
    source = GeneratorSource(make, rows=rows, splits=3)
    shares = [len(read_all(source.open(split, None), 1 << 20)) for split in source.splits()]
    assert sum(shares) == rows
    assert max(shares) - min(shares) <= max(1, rows // 3 // 32)


def test_without_an_end_the_numbers_are_dealt_out_in_blocks() -> None:
    source = GeneratorSource(make, splits=2)
    blocks = []
    for split in source.splits():
        reader = source.open(split, None)
        blocks += [reader.read(1 << 20), reader.read(1 << 20)]
    found = np.concatenate([block.column("n").to_numpy() for block in blocks])  # type: ignore[union-attr]
    assert sorted(found.tolist()) == list(range(4 << 16))


def test_the_rate_is_kept() -> None:
    source = GeneratorSource(make, splits=2, rows_per_second=2000)
    readers = [source.open(split, None) for split in source.splits()]
    started, count = time.monotonic(), 0
    while time.monotonic() < started + 0.2:
        for reader in readers:
            batch = reader.read(100)
            count += 0 if batch is None else batch.num_rows  # type: ignore[union-attr]
        time.sleep(0.001)
    assert 0 < count <= 2000 * (time.monotonic() - started) + 2


def test_a_schema_does_for_a_function() -> None:
    schema = pa.schema(
        [("i", pa.int32()), ("b", pa.bool_()), ("f", pa.float32()), ("s", pa.string()), ("t", pa.timestamp("us"))]
    )
    source = GeneratorSource(schema, rows=100)
    whole = source.make(0, 100)
    assert whole.schema == schema
    assert whole.slice(40, 10).equals(source.make(40, 10))
    assert len(set(whole.column("i").to_pylist())) > 50


def test_bad_arguments() -> None:
    with pytest.raises(PipelineError, match="block_rows is 0: it must be at least 1"):
        GeneratorSource(make, block_rows=0)
    for arguments in ({"splits": 0}, {"rows": -1}, {"rows_per_second": 0}):
        with pytest.raises(PipelineError, match="must not be negative"):
            GeneratorSource(make, **arguments)  # type: ignore[arg-type]
    with pytest.raises(PipelineError, match="cannot make the column 'l' of type list"):
        GeneratorSource(pa.schema([("l", pa.list_(pa.int32()))]))


def test_a_function_that_returns_something_else() -> None:
    reader = GeneratorSource(lambda start, count: make(start, count + 1), rows=10).open("0/1", None)
    with pytest.raises(DataError, match="must return a batch of 5 rows, not 6 rows"):
        reader.read(5)


def test_other_splits_than_the_checkpoint_has() -> None:
    with pytest.raises(RestoreError, match="set splits=4 again"):
        GeneratorSource(make, rows=10, splits=2).open("0/4", b"3")


def test_exactly_once_through_crashes() -> None:
    pipeline, sink = Pipeline("p"), CollectSink()
    pipeline.source(GeneratorSource(make, rows=5000, splits=3, rows_per_second=40_000)).sink(sink)
    result = run(pipeline, parallelism=2, workers=2, crash_after_checkpoints=[1, 3])
    assert result.restarts == 2
    assert sorted(sink.table()["n"].to_pylist()) == list(range(5000))
