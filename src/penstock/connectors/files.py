"""A directory of files as a source: Parquet, JSON lines or CSV; bounded, or watched for new files.

Every file is a split. Nothing is read twice and nothing is skipped, because a position is a place in a file that does
not change. That is the contract with whoever writes the files: a file appears by a rename, complete, and is never
changed again. Names that begin with "." or "_", or end like those of unfinished copies, are not looked at, so a writer
can stage there. A file that is changed all the same is noticed by its size and time, and is an error: to go on would
mean to lose records, or to read some twice.
"""

from __future__ import annotations

import functools
import glob
import io
import itertools
import json
import logging
import os
import re
import time
from abc import abstractmethod
from collections.abc import Generator, Mapping, Sequence
from typing import Any, Literal, TypeAlias

import pyarrow as pa
import pyarrow.csv
import pyarrow.fs
import pyarrow.json

from penstock.connectors.partitions import partition_column, partition_types, partition_values, without
from penstock.connectors.places import Place, Stamp, address_of, place_of
from penstock.connectors.source import END_OF_SPLIT, Source, SplitReader
from penstock.errors import DataError, PipelineError, StorageError

Pieces: TypeAlias = Generator[tuple[Any, pa.RecordBatch], None, None]
Format: TypeAlias = Literal["parquet", "jsonl", "csv"]

_log = logging.getLogger("penstock")

_UNFINISHED = (".tmp", ".temp", ".part", ".partial", ".crdownload", ".swp", "~", "._COPYING_", ".inprogress")
"""Ends of names that programs give to files which they are still writing."""
_CLOCKS_DIFFER_S = 60

BLOCK_BYTES = 1 << 20
LINE_BYTES_MAX = 1 << 30
"""The longest line of a text file. A line is one record, which is in memory as a whole several times over."""


class FileSource(Source):
    """Files of a directory, or of a pattern such as `/data/orders/*.jsonl`, on a path or a URL of pyarrow.fs.

        FileSource("/data/orders", format="parquet")
        FileSource("s3://bucket/clicks/*.jsonl", format="jsonl", schema=schema, watch=True)

    Without `watch` it reads the files that are there when the pipeline is started. With it, the source never ends and
    takes up files as they appear. Without a `schema`, Parquet files have their
    own, and that of text files is taken from the first megabyte of each: declare it if they may differ.

    Directories such as `dt=2026-01-01` below it are read too, and are columns, as for Spark: numbers and dates if all
    values that there are at the start are such, else strings, or whatever the `schema` says.

    The writer of a file should give it its name when it is complete: write it under a name that begins with "." and
    rename it. A watched source takes a file up when it has not changed for `stable_for`. A file that changes later is a
    `DataError`, because what was added would never be read; `on_change="ignore"` leaves it at that.

    Positions are kept by the names of files below the directory, so a checkpoint is refused by a source of another
    directory. Say `moved_from="/old/directory"`, from then on, if the same files lie elsewhere now.

    The traps: a file that is removed while checkpoints point into it fails the restore. CSV fields must not hold line
    breaks. A watched source keeps a position for every file it has ever read.
    """

    in_order = True

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        format: Format = "parquet",
        schema: pa.Schema | None = None,
        watch: bool = False,
        stable_for: float = 1.0,
        on_change: Literal["fail", "ignore"] = "fail",
        moved_from: str | os.PathLike[str] | None = None,
    ) -> None:
        if on_change not in ("fail", "ignore"):
            raise PipelineError(f"FileSource: on_change is {on_change!r}: it must be 'fail' or 'ignore'")
        if not stable_for >= 0:
            raise PipelineError(f"FileSource: stable_for is {stable_for!r}: it must be a number of seconds")
        if format not in _READERS:
            raise PipelineError(f"FileSource: format is {format!r}: it must be one of {', '.join(_READERS)}")
        self.path = _absolute(path)
        self.moved_from = None if moved_from is None else _absolute(moved_from)
        self.format = format
        self.schema = schema
        self.splits_may_appear = self.is_endless = watch
        self.stable_for = stable_for
        self.on_change = on_change
        self._listing: list[str] | None = None
        self._partition_types: dict[str, pa.DataType] | None = None
        self._changes = _Changes()

    def __getstate__(self) -> dict[str, Any]:
        if not self.splits_may_appear:
            # The workers must agree on the files, whatever is added while they start: the list travels with the source.
            self._listing = list(self.splits())
        # Settled once, for all workers.
        self.partition_types()
        return {**vars(self), "_changes": _Changes()}

    def identity(self) -> Mapping[str, str]:
        return {
            **super().identity(),
            "directory": address_of(_fixed_part(self.moved_from or self.path)),
            "format": self.format,
        }

    def splits(self) -> Sequence[str]:
        if self._listing is None or self.splits_may_appear:
            self._listing = self._list()
        return self._listing

    def _list(self) -> list[str]:
        place, pattern = _directory_and_pattern(self.path)
        if not self.splits_may_appear and not place.exists():
            raise StorageError(f"FileSource: there is no {self.path}: create it, or say watch=True to wait for it")
        stamps = {name: stamp for name, stamp in place.stamps().items() if pattern.fullmatch(name)}
        names = sorted(name for name in stamps if not _is_hidden(name))
        if not names:
            self._changes.say_once(f"FileSource: no file of {self.path} fits{_elsewhere(place, pattern)}")
        if self.on_change == "fail":
            self._changes.check(stamps, self.path)
        return self._changes.stable(names, stamps, self.stable_for) if self.splits_may_appear else names

    def partition_types(self) -> Mapping[str, pa.DataType]:
        """The columns in the names of directories, with the types that they have without a declared one."""
        if self._partition_types is None:
            place, pattern = _directory_and_pattern(self.path)
            self._partition_types = partition_types(name for name in place.files() if pattern.fullmatch(name))
        return self._partition_types

    def stamp(self, split: str) -> Stamp | None:
        place, _ = _directory_and_pattern(self.path)
        return place.stamp(split)

    def was_read(self, split: str, stamp: Stamp) -> None:
        """What is read of a file is that of this time: a change from now on is noticed."""
        self._changes.read[split] = stamp

    def open(self, split: str, offset: bytes | None) -> SplitReader:
        return _READERS[self.format](self, split, json.loads(offset) if offset else None)

    def file(self, split: str) -> Any:
        """The open file of a split."""
        place, _ = _directory_and_pattern(self.path)
        return place.open(split)


class _Changes:
    """What is known in this process of files that change: those that are waited for, and those that were read."""

    def __init__(self) -> None:
        self.read: dict[str, Stamp] = {}
        self._seen: dict[str, tuple[Stamp, float]] = {}
        """The last stamp of each file that is not stable yet, and since when it has that."""
        self._said: set[str] = set()

    def check(self, stamps: Mapping[str, Stamp], path: str) -> None:
        """Raise `DataError` if a file is not what was read. One that is gone has been read, and nobody needs it."""
        for name, before in list(self.read.items()):
            now = stamps.get(name)
            if now is not None and now != before:
                raise DataError(changed(name, path, before, now))

    def stable(self, names: Sequence[str], stamps: Mapping[str, Stamp], stable_for: float) -> list[str]:
        """Those of `names` that have not changed for a while."""
        now, wall_ns = time.monotonic(), time.time_ns()
        found = []
        for name in names:
            stamp = stamps[name]
            known, since = self._seen.get(name, (stamp, now))
            since = since if known == stamp else now
            self._seen[name] = stamp, since
            # The clock of the file system may be another one: only a time that is well past counts by itself.
            is_old = bool(stamp.modified_ns) and wall_ns - stamp.modified_ns > 1e9 * (stable_for + _CLOCKS_DIFFER_S)
            if now - since >= stable_for or is_old or name in self.read:
                found.append(name)
        return found

    def say_once(self, text: str) -> None:
        if text not in self._said:
            self._said.add(text)
            _log.warning("%s", text)


def changed(name: str, path: str, before: Stamp, now: Stamp) -> str:
    """What to say of a file that is not what was read."""
    sizes = f"it had {before.size} bytes and has {now.size}"
    if before.size == now.size:
        sizes = "it was written again"
    return (
        f"the file '{name}' of {path} has changed since it was read: {sizes}. "
        f"What was added or replaced would never be read. Let writers give a file its name when it is complete: write "
        f"it under a name that begins with '.', and rename it. To read this one as it is now, give it another name and "
        f"put the old one back; or say on_change='ignore' to leave it"
    )


def _is_hidden(name: str) -> bool:
    """Whether a file, or a directory above it, is not meant to be read: staged, temporary or somebody's own."""
    *directories, base = name.split("/")
    if base.startswith((".", "_")) or base.endswith(_UNFINISHED):
        return True
    return any(part.startswith((".", "_")) and "=" not in part for part in directories)


def _elsewhere(place: Place, pattern: re.Pattern[str]) -> str:
    others = sum(1 for name in place.files() if not pattern.fullmatch(name) and not _is_hidden(name))
    return (
        f"; {others} others lie there or below: for subdirectories use a pattern such as '*/*.parquet'"
        if others
        else ""
    )


def _absolute(path: str | os.PathLike[str]) -> str:
    """A relative path would be another directory in another process."""
    text = os.fspath(path)
    return text if "://" in text else os.path.abspath(os.path.expanduser(text))


def _fixed_part(path: str) -> str:
    """The path up to the first part that is a pattern: names of files are relative to it."""
    return "/".join(itertools.takewhile(lambda part: not glob.has_magic(part), path.split("/"))) or "/"


def _directory_and_pattern(path: str) -> tuple[Place, re.Pattern[str]]:
    """The directory in which all files lie, and what their names must look like."""
    if not glob.has_magic(path):
        place = place_of(path)
        if place.is_file():
            directory, _, name = path.rstrip("/").rpartition("/")
            return place_of(directory or "/" if path.startswith("/") else directory or "."), re.compile(re.escape(name))
        return place, re.compile(r"(?:[^/=]+=[^/]*/)*[^/]+")
    parts = path.split("/")
    fixed = next(number for number, part in enumerate(parts) if glob.has_magic(part))
    translated = "/".join(_translated(part) for part in parts[fixed:])
    return place_of("/".join(parts[:fixed]) or ("/" if path.startswith("/") else ".")), re.compile(translated)


def _translated(part: str) -> str:
    if part == "**":
        return r"(?:[^/]+/)*[^/]+|[^/]+"
    return "".join({"*": "[^/]*", "?": "[^/]"}.get(char, re.escape(char)) for char in part)


class _FileReader(SplitReader):
    """Reads one file in pieces; a position is the piece and the row in it."""

    is_bounded = True

    def __init__(self, source: FileSource, split: str, position: Any) -> None:
        self.source = source
        self.split = split
        self._at: dict[str, Any] = position or {"piece": None, "row": 0}
        self._rest: pa.RecordBatch | None = None
        self._pieces: Pieces | None = None
        self._partition = partition_values(split)
        schema = source.schema
        self.file_schema = schema if schema is None else without(schema, self._partition)
        """That of the file itself, if it is declared."""
        if "of" in self._at:
            source.was_read(split, Stamp(*self._at["of"]))

    @abstractmethod
    def pieces(self, first: Any) -> Pieces:
        """The file from the piece named `first` on (None: from the beginning), each with its name."""

    def read(self, rows_max: int) -> Any:
        if self._at.get("end"):
            return END_OF_SPLIT
        if self._rest is None and not self._next():
            return END_OF_SPLIT
        assert self._rest is not None
        batch = self._rest.slice(0, rows_max)
        self._at["row"] += batch.num_rows
        rest = self._rest.slice(batch.num_rows)
        self._rest = rest if rest.num_rows else None
        return batch

    def _next(self) -> bool:
        """Go on to the next piece that has rows; False if the file has ended."""
        try:
            if self._pieces is None:
                self._check()
                self._pieces = self.pieces(self._at["piece"])
            for name, batch in self._pieces:
                if name != self._at["piece"]:
                    self._at = {**self._at, "piece": name, "row": 0}
                rest = self.fitted(batch.slice(self._at["row"]))
                if rest.num_rows:
                    self._rest = rest
                    return True
        except (pa.ArrowException, OSError, KeyError, ValueError) as error:
            hint = ". Its schema was taken from its beginning: declare one" if self.source.schema is None else ""
            raise DataError(f"the file '{self.split}' of {self.source.path} cannot be read: {error}{hint}") from error
        self._check()
        self._at = {"end": True} | {key: value for key, value in self._at.items() if key == "of"}
        self.close()
        return False

    def _check(self) -> None:
        """The file is the one that the position is a place of."""
        stamp = self.source.stamp(self.split)
        if stamp is None:
            return
        if "of" not in self._at:
            self._at["of"] = [stamp.size, stamp.modified_ns]
            self.source.was_read(self.split, stamp)
        before = Stamp(*self._at["of"])
        # A copy of the file elsewhere has another time.
        is_same = stamp == before or (self.source.moved_from is not None and stamp.size == before.size)
        if not is_same and self.source.on_change == "fail":
            raise DataError(changed(self.split, self.source.path, before, stamp))

    def offset(self) -> bytes:
        return json.dumps(self._at).encode()

    @property
    def may_leave(self) -> bool:  # type: ignore[override]
        return self._rest is None

    def pause(self) -> None:
        # The position is that of the next row, so what is let go of here is read again.
        self._rest = None
        self.close()

    def close(self) -> None:
        pieces, self._pieces = self._pieces, None
        if pieces is not None:
            pieces.close()

    def fitted(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The batch with the columns of its path, in the declared schema: its columns, in their order and types."""
        schema = self.source.schema
        for column, value in self._partition.items():
            kind = self.source.partition_types().get(column, pa.string())
            if schema is not None and schema.get_field_index(column) >= 0:
                kind = schema.field(column).type
            where = f"the file '{self.split}' of {self.source.path}"
            values = partition_column(column, value, kind, batch.num_rows, where)
            position = batch.schema.get_field_index(column)
            added = batch.append_column if position < 0 else functools.partial(batch.set_column, position)
            batch = added(column, values)
        if schema is None or batch.schema.equals(schema):
            return batch
        return pa.RecordBatch.from_arrays([batch.column(f.name).cast(f.type) for f in schema], schema=schema)


class _ParquetReader(_FileReader):
    """A piece is a stretch of a row group, named after both their numbers."""

    _STRETCH_ROWS = 1 << 16  # part of what a position means: do not change
    _is_last = True
    """Whether the stretch at hand is the last one of its row group: another one would have to be decoded again."""

    @property
    def may_leave(self) -> bool:  # type: ignore[override]
        return self._rest is None and self._is_last

    def pieces(self, first: Any) -> Pieces:
        import pyarrow.parquet

        group_first, stretch_first = first or (0, 0)
        with self.source.file(self.split) as opened, pyarrow.parquet.ParquetFile(opened) as file:
            columns = self.file_schema.names if self.file_schema is not None else None
            for group in range(group_first, file.metadata.num_row_groups):
                batches = file.iter_batches(self._STRETCH_ROWS, row_groups=[group], columns=columns)
                last = (file.metadata.row_group(group).num_rows - 1) // self._STRETCH_ROWS
                for stretch, batch in enumerate(batches):
                    self._is_last = stretch >= last
                    if group > group_first or stretch >= stretch_first:
                        yield [group, stretch], batch


class _TextReader(_FileReader):
    """A piece is a block of whole lines, named after its first byte."""

    def pieces(self, first: Any) -> Pieces:
        with self.source.file(self.split) as file:
            schema, start = self._begin(file)
            place = first if first is not None else start
            while block := self._block(file, place):
                yield place, self.parse(block, schema)
                place += len(block)

    @abstractmethod
    def _begin(self, file: Any) -> tuple[pa.Schema | None, int]:
        """The schema of this file's records, and where they begin."""

    @abstractmethod
    def parse(self, block: bytes, schema: pa.Schema | None) -> pa.RecordBatch: ...

    def _block(self, file: Any, place: int) -> bytes:
        """About a megabyte of whole lines, or one longer line; the same bytes whenever it is asked for."""
        file.seek(place)
        parts: list[bytes] = []
        length = 0
        while part := file.read(BLOCK_BYTES):
            end = part.rfind(b"\n") + 1
            parts.append(part[:end] if end else part)
            length += len(parts[-1])
            if end:
                break
            if length > LINE_BYTES_MAX:
                raise ValueError(
                    f"the line that begins at byte {place} is longer than {LINE_BYTES_MAX} bytes: break it into "
                    f"several records, or keep such large values in files of their own and their names in the records"
                )
        return b"".join(parts)


class _JsonReader(_TextReader):
    def _begin(self, file: Any) -> tuple[pa.Schema | None, int]:
        if self.file_schema is not None:
            return self.file_schema, 0
        block = self._block(file, 0)
        return (self.parse(block, None).schema if block.strip() else None), 0

    def parse(self, block: bytes, schema: pa.Schema | None) -> pa.RecordBatch:
        if not block.strip():
            return pa.RecordBatch.from_pylist([], schema=schema or pa.schema([]))
        options = pa.json.ParseOptions(explicit_schema=schema, unexpected_field_behavior=self._unexpected(schema))
        read = pa.json.ReadOptions(block_size=max(len(block), 1), use_threads=False)
        return _one(pa.json.read_json(io.BytesIO(block), read, options))

    def _unexpected(self, schema: pa.Schema | None) -> str:
        if schema is None:
            return "infer"
        # What the user left out of a schema is not wanted; what the first block did not have would be lost.
        return "ignore" if self.source.schema is not None else "error"


class _CsvReader(_TextReader):
    _names: list[str]

    def _begin(self, file: Any) -> tuple[pa.Schema | None, int]:
        block = self._block(file, 0)
        header = block[: block.find(b"\n") + 1] or block
        if not header.strip():
            self._names = []
            return self.file_schema, len(header)
        self._names = pa.csv.read_csv(io.BytesIO(header.rstrip(b"\r\n") + b"\n")).schema.names
        if self.file_schema is not None:
            return self.file_schema, len(header)
        rows = block[len(header) :]
        return (self.parse(rows, None).schema if rows.strip() else None), len(header)

    def parse(self, block: bytes, schema: pa.Schema | None) -> pa.RecordBatch:
        if not block.strip():
            return pa.RecordBatch.from_pylist([], schema=schema or pa.schema([]))
        types = None if schema is None else {field.name: field.type for field in schema}
        read = pa.csv.ReadOptions(column_names=self._names, block_size=len(block) + 1, use_threads=False)
        convert = pa.csv.ConvertOptions(column_types=types)
        return _one(pa.csv.read_csv(io.BytesIO(block), read, convert_options=convert))


def _one(table: pa.Table) -> pa.RecordBatch:
    batches = table.combine_chunks().to_batches()
    return batches[0] if batches else pa.RecordBatch.from_pylist([], schema=table.schema)


_READERS: dict[str, type[_FileReader]] = {"parquet": _ParquetReader, "jsonl": _JsonReader, "csv": _CsvReader}
