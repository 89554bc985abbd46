"""Files as a source: all formats, from every position, bounded and watched."""

from __future__ import annotations

import io
import os
import pickle
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest

from penstock import END_OF_SPLIT, DataError, FileSource, Pipeline, PipelineError, StorageError
from penstock.connectors.files.formats import lines
from penstock.connectors.files.formats.json_lines import JsonReader
from penstock.connectors.files.formats.parquet import ParquetReader
from penstock.testing import CollectSink, run

FORMATS: list[Any] = ["parquet", "jsonl", "csv"]


def write(path: Path, first: int, count: int, group: int = 7) -> None:
    table = pa.table({"n": range(first, first + count), "t": [f"text {n}" for n in range(first, first + count)]})
    staged = path.parent / f".{path.name}"
    if path.suffix == ".parquet":
        pq.write_table(table, staged, row_group_size=group)
    elif path.suffix == ".csv":
        pyarrow.csv.write_csv(table, staged)
    else:
        staged.write_text("".join(f'{{"n": {n}, "t": "text {n}"}}\n' for n in range(first, first + count)))
    staged.rename(path)


def read(reader: Any, rows_max: int, rows: int | None = None) -> list[int]:
    found: list[int] = []
    while rows is None or len(found) < rows:
        batch = reader.read(rows_max if rows is None else min(rows_max, rows - len(found)))
        if batch is END_OF_SPLIT:
            break
        if batch is not None:
            found += batch.column("n").to_pylist()
    return found


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lines, "BLOCK_BYTES", 64)
    monkeypatch.setattr(ParquetReader, "STRETCH_ROWS", 3)


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("rows_max", [1, 4, 1000])
def test_it_goes_on_at_every_position(tmp_path: Path, format: Any, rows_max: int) -> None:
    write(tmp_path / f"a.{format}", 0, 20)
    source = FileSource(tmp_path, format=format)
    (split,) = source.splits()
    for count in range(21):
        first = source.open(split, None)
        head = read(first, rows_max, count)
        offset = first.offset()
        first.close()
        assert head + read(source.open(split, offset), rows_max) == list(range(20))


@pytest.mark.parametrize("format", FORMATS)
def test_a_file_that_was_read_is_not_opened_again(tmp_path: Path, format: Any) -> None:
    write(tmp_path / f"a.{format}", 0, 5)
    source = FileSource(tmp_path, format=format)
    reader = source.open(source.splits()[0], None)
    assert read(reader, 100) == list(range(5))
    os.remove(tmp_path / f"a.{format}")
    assert source.open("a", reader.offset()).read(1) is END_OF_SPLIT


@pytest.mark.parametrize("format", FORMATS)
def test_files_without_records(tmp_path: Path, format: Any) -> None:
    write(tmp_path / f"a.{format}", 0, 0)
    if format != "parquet":
        (tmp_path / f"b.{format}").write_text("")
        (tmp_path / f"c.{format}").write_text("\n")
    source = FileSource(tmp_path, format=format)
    assert [read(source.open(split, None), 10) for split in source.splits()] == [[]] * len(source.splits())


class Counted(bytes):
    """Bytes that count how many of them are looked at, or copied."""

    touched = 0

    def rfind(self, *arguments: Any) -> int:
        Counted.touched += len(self)
        return super().rfind(*arguments)

    def __add__(self, other: Any) -> Counted:
        Counted.touched += len(self) + len(other)
        return Counted(super().__add__(other))


class CountedFile(io.BytesIO):
    def read(self, size: Any = -1) -> Counted:
        return Counted(super().read(size))


def test_a_long_line_is_read_in_linear_time(monkeypatch: pytest.MonkeyPatch) -> None:
    line = b"x" * 64 * 500 + b"\n"
    monkeypatch.setattr(Counted, "touched", 0)
    reader = JsonReader(FileSource("/nowhere", format="jsonl"), "split", None)
    assert reader.block(CountedFile(line + line), 0) == line
    assert Counted.touched <= 2 * len(line)


def test_a_line_that_is_too_long_names_its_file_its_place_and_the_cure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lines, "LINE_BYTES_MAX", 1_000)
    (tmp_path / "a.jsonl").write_text('{"n": 1}\n' + '{"n": ' + "1" * 2_000 + "}\n")
    reader = FileSource(tmp_path, format="jsonl", schema=pa.schema([("n", pa.int64())])).open("a.jsonl", None)
    with pytest.raises(DataError, match=r"'a.jsonl' .* begins at byte 9 is longer than 1000 bytes: break it"):
        read(reader, 1)


def test_a_last_line_without_its_end_and_one_that_is_longer_than_a_block(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"n": 1, "t": "' + "x" * 500 + '"}\n{"n": 2, "t": "y"}')
    source = FileSource(tmp_path, format="jsonl", schema=pa.schema([("n", pa.int64())]))
    assert read(source.open("a.jsonl", None), 10) == [1, 2]


def test_names_that_begin_with_a_dot_or_an_underscore_are_not_looked_at(tmp_path: Path) -> None:
    for name in ("a.parquet", "b.parquet"):
        write(tmp_path / name, 0, 1)
    (tmp_path / "_SUCCESS").touch()
    (tmp_path / ".b.parquet.crc").touch()
    (tmp_path / "below").mkdir()
    write(tmp_path / "below" / "c.parquet", 0, 1)
    assert FileSource(tmp_path).splits() == ["a.parquet", "b.parquet"]
    assert FileSource(tmp_path / "b*.parquet").splits() == ["b.parquet"]
    assert FileSource(tmp_path / "a.parquet").splits() == ["a.parquet"]
    assert FileSource(f"{tmp_path}/*/?.parquet").splits() == ["below/c.parquet"]
    assert FileSource(f"{tmp_path}/**").splits() == ["a.parquet", "b.parquet", "below/c.parquet"]
    assert FileSource(f"file://{tmp_path}").splits() == ["a.parquet", "b.parquet"]


def test_a_declared_schema_chooses_and_casts(tmp_path: Path) -> None:
    schema = pa.schema([("t", pa.large_string()), ("n", pa.int32())])
    for format in FORMATS:
        write(tmp_path / f"a.{format}", 0, 20)
        source = FileSource(tmp_path / f"*.{format}", format=format, schema=schema)
        batch = source.open(f"a.{format}", None).read(5)
        assert batch.schema == schema  # type: ignore[union-attr]
        assert batch["n"].to_pylist()[0] == 0  # type: ignore[index]


@pytest.mark.parametrize("format", ["jsonl", "csv"])
def test_what_does_not_fit_the_beginning_is_an_error_with_the_cure(tmp_path: Path, format: Any) -> None:
    write(tmp_path / f"a.{format}", 0, 20)
    with open(tmp_path / f"a.{format}", "a") as file:
        file.write('{"n": 1.5, "t": "", "new": 1}\n' if format == "jsonl" else "1.5,text\n")
    source = FileSource(tmp_path, format=format)
    with pytest.raises(DataError, match=rf"the file 'a.{format}' .* cannot be read: .*: declare one"):
        read(source.open(f"a.{format}", None), 10)


def test_a_field_that_comes_late_is_not_lost_in_silence(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"n": 1}\n' * 20 + '{"n": 2, "m": 3}\n')
    with pytest.raises(DataError, match="declare one"):
        read(FileSource(tmp_path, format="jsonl").open("a.jsonl", None), 10)


def test_a_file_that_is_none(tmp_path: Path) -> None:
    (tmp_path / "a.parquet").write_text("nothing of the kind")
    with pytest.raises(DataError, match=r"the file 'a.parquet' of .* cannot be read"):
        read(FileSource(tmp_path).open("a.parquet", None), 10)


def test_a_directory_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="create it, or set watch=True"):
        FileSource(tmp_path / "no").splits()
    assert FileSource(tmp_path / "no", watch=True).splits() == []


def test_a_bounded_source_reads_what_was_there_at_the_start(tmp_path: Path) -> None:
    write(tmp_path / "b.parquet", 0, 1)
    source = FileSource(tmp_path)
    copies = [pickle.loads(pickle.dumps(source))]
    write(tmp_path / "a.parquet", 0, 1)
    copies.append(pickle.loads(pickle.dumps(source)))
    assert [copy.splits() for copy in [source, *copies]] == [["b.parquet"]] * 3


def test_a_missing_directory_is_found_when_the_graph_is_checked(tmp_path: Path) -> None:
    pipeline = Pipeline("p")
    pipeline.source(FileSource(tmp_path / "no")).sink(CollectSink())
    with pytest.raises(StorageError, match="create it, or set watch=True"):
        pipeline.graph()


def test_an_unknown_format() -> None:
    with pytest.raises(PipelineError, match="it must be one of parquet, jsonl, csv, text"):
        FileSource("/tmp", format="xml")  # type: ignore[arg-type]


def test_a_reader_that_is_paused_holds_no_file_and_goes_on_where_it_was(tmp_path: Path) -> None:
    write(tmp_path / "a.parquet", 0, 10)
    source = FileSource(tmp_path)
    reader = source.open("a.parquet", None)
    assert read(reader, 4, 4) == [0, 1, 2, 3]
    reader.pause()
    assert reader._pieces is None and reader._piece is None  # type: ignore[attr-defined]
    assert read(reader, 100) == [4, 5, 6, 7, 8, 9]


@pytest.mark.parametrize("format", FORMATS)
def test_exactly_once_through_crashes(tmp_path: Path, format: Any) -> None:
    for number in range(20):
        write(tmp_path / f"{number:02}.{format}", 100 * number, 100)
    pipeline, sink = Pipeline("p"), CollectSink()
    pipeline.source(FileSource(tmp_path, format=format)).sink(sink)
    result = run(pipeline, parallelism=3, workers=2, crash_after_checkpoints=[1, 2])
    assert result.restarts == 2
    assert sorted(sink.table()["n"].to_pylist()) == list(range(2000))


def test_a_watched_directory(tmp_path: Path) -> None:
    from penstock.worker.settings import WorkerSettings

    pipeline, sink = Pipeline("p"), CollectSink()
    pipeline.source(FileSource(tmp_path, watch=True)).sink(sink)
    written = 0

    def until() -> bool:
        nonlocal written
        if sink.table().num_rows == 10 * written and written < 5:
            write(tmp_path / f"{written}.parquet", 10 * written, 10)
            written += 1
        return written == 5 and sink.table().num_rows >= 50

    result = run(
        pipeline,
        parallelism=2,
        until=until,
        crash_after_checkpoints=[3],
        worker_settings=WorkerSettings(source_discovery_ms=5, driver_silence_ms=10**6),
    )
    assert result.restarts == 1
    assert sorted(sink.table()["n"].to_pylist()) == list(range(50))


def test_another_file_system() -> None:
    import fsspec

    memory = fsspec.filesystem("memory")
    memory.pipe("/penstock-files/a.jsonl", b'{"n": 1}\n{"n": 2}\n')
    source = FileSource("memory://penstock-files/*.jsonl", format="jsonl")
    assert source.splits() == ["a.jsonl"]
    assert read(source.open("a.jsonl", None), 10) == [1, 2]
