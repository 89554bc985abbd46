"""A Delta table as a source: the rows of one version, then the rows that later versions append.

Files are dealt out to a fixed number of splits by a hash of their names. Each split goes through the snapshot and then
through the log, version by version, and passes over the files of others. So a position is small however long the
table lives: a version, a file of it, and a row.
"""

from __future__ import annotations

import json
import logging
import os
import time
import zlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

import pyarrow as pa
import pyarrow.parquet

from penstock.connectors.delta.log import LogFile, Version, check_readable, read_version, snapshot_files
from penstock.connectors.delta.table import DeltaLocation, arrow_schema
from penstock.connectors.source import END_OF_SPLIT, Source, SplitReader
from penstock.connectors.tables.conform import conformed
from penstock.errors import DataError, IncompatibleCheckpoint, PipelineError, StorageError

_POLL_S = 0.5
_MISSES_MAX = 100
"""Looks for a version that is not there, after which the table is asked whether the version is still to come."""

_log = logging.getLogger("penstock")


class DeltaSource(Source):
    """Rows of a Delta table: those of one version, then those that are appended.

        DeltaSource("/data/orders")                           # all rows now, then new ones
        DeltaSource("s3://lake/orders", version=120)          # as of version 120, then what came after it
        DeltaSource("/data/orders", follow=False)             # all rows now, bounded

    Example:

        orders.sink(DeltaSink("orders"))
        run(pipeline)
        again = Pipeline("again")
        again.source(DeltaSource("orders", follow=False)).sink(output)
        run(again)
        assert sorted(row["amount"] for row in output.rows()) == [10, 20, 30]

    A version that deletes or updates rows is a `DataError`, because rows that were read would have to be taken back;
    `on_change="skip"` passes over such versions with a warning, and over all rows that they add. Compactions change no
    data and are passed over in silence. `splits` is the parallelism that it can be read with, and cannot be changed
    later.

    The trap: the log of a table is cleaned after `delta.logRetentionDuration` (30 days). A pipeline that was stopped
    for longer cannot go on, and says so.
    """

    in_order = True

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        version: int | None = None,
        follow: bool = True,
        on_change: Literal["fail", "skip"] = "fail",
        splits: int = 8,
        storage_options: Mapping[str, str] | None = None,
    ) -> None:
        if on_change not in ("fail", "skip"):
            raise PipelineError(f"DeltaSource: on_change is {on_change!r}: it must be 'fail' or 'skip'")
        if splits < 1:
            raise PipelineError(f"DeltaSource: splits is {splits}: it must be at least 1")
        if version is not None and version < 0:
            raise PipelineError(f"DeltaSource: version is {version}: versions begin at 0")
        self.location = DeltaLocation(path, storage_options, "DeltaSource")
        self.version = version
        self.is_endless = follow
        self.on_change = on_change
        self.split_count = splits
        self._start: tuple[int, pa.Schema] | None = None
        self._snapshots: dict[int, list[LogFile]] = {}
        self._versions: dict[int, Version] = {}

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_snapshots": {}, "_versions": {}}

    def identity(self) -> Mapping[str, str]:
        return {**super().identity(), "path": self.location.address, "splits": str(self.split_count)}

    def on_start(self) -> None:
        # All workers must begin with one version, whatever is committed while they start: it travels with the source.
        self.start()

    def splits(self) -> Sequence[str]:
        return [f"{number}/{self.split_count}" for number in range(self.split_count)]

    def open(self, split: str, offset: bytes | None) -> SplitReader:
        number, _, count = split.partition("/")
        if int(count) != self.split_count:
            raise IncompatibleCheckpoint(f"{self!r}: the checkpoint has {count} splits: set splits={count} again")
        return _DeltaReader(self, int(number), json.loads(offset) if offset else None)

    def start(self) -> tuple[int, pa.Schema]:
        """The version to begin with, and the schema of the newest one. Raises `StorageError`."""
        if self._start is None:
            newest = self.location.table()
            if newest is None:
                raise StorageError(f"{self!r}: there is no Delta table: create it first, or check the path")
            check_readable(newest, self.location.address)
            version = newest.version() if self.version is None else self.version
            if version > newest.version():
                raise PipelineError(f"{self!r}: version is {version}, and the newest one is {newest.version()}")
            self._start = version, arrow_schema(newest)
        return self._start

    @property
    def schema(self) -> pa.Schema:
        return self.start()[1]

    def snapshot(self, version: int) -> list[LogFile]:
        if version not in self._snapshots:
            table = self.location.table(version)
            if table is None:
                raise StorageError(f"{self!r}: the table is gone")
            check_readable(table, self.location.address)
            self._snapshots = {version: snapshot_files(table)}
        return self._snapshots[version]

    def entry(self, number: int) -> Version | None:
        """One version of the log, checked; None if it does not exist yet."""
        if number not in self._versions:
            found = read_version(self.location.place(), number, self.location.address)
            if found is None:
                return None
            self._versions = {number: self._checked(found)}
        return self._versions[number]

    def _checked(self, version: Version) -> Version:
        if version.is_change:
            what = f"{self!r}: version {version.number} ({version.operation}) deletes or updates rows"
            if self.on_change == "fail":
                raise DataError(
                    f"{what}, and rows that were read cannot be taken back. Set on_change='skip' to pass over such "
                    f"versions, or start again with version={version.number} and a new checkpoint directory"
                )
            _log.warning("%s: it is passed over, with %d files that it adds", what, len(version.added))
            return Version(version.number, (), True, version.operation, version.schema)
        return version


class _DeltaReader(SplitReader):
    """Reads the files of one split."""

    is_bounded = False

    def __init__(self, source: DeltaSource, number: int, position: dict[str, Any] | None) -> None:
        self._source = source
        self._number = number
        self.is_bounded = not source.is_endless
        start = position or {"version": source.start()[0], "snapshot": True, "file": 0, "row": 0}
        self._version: int = start["version"]
        self._is_snapshot: bool = start["snapshot"]
        self._file: int = start["file"]
        self._row: int = start["row"]
        self._batches: Iterator[pa.RecordBatch] | None = None
        self._files: list[LogFile] | None = None
        self._looked_at = 0.0
        self._misses = 0

    def read(self, rows_max: int) -> Any:
        files = self._current_files()
        if files is None:
            return None
        if self._file >= len(files):
            if self._is_snapshot and not self._source.is_endless:
                return END_OF_SPLIT
            return self._next_version()
        if self._batches is None:
            self._batches = self._opened(files[self._file])
        batch = next(self._batches, None)
        if batch is None:
            self._file, self._row, self._batches = self._file + 1, 0, None
            return self.read(rows_max)
        if batch.num_rows > rows_max:
            self._batches = _with_rest(batch.slice(rows_max), self._batches)
            batch = batch.slice(0, rows_max)
        self._row += batch.num_rows
        return batch

    def _current_files(self) -> list[LogFile] | None:
        if self._files is None:
            if self._is_snapshot:
                listed: Sequence[LogFile] = self._source.snapshot(self._version)
            else:
                entry = self._entry(self._version)
                if entry is None:
                    return None
                listed = entry.added
            count = self._source.split_count
            self._files = [file for file in listed if zlib.crc32(file.path.encode()) % count == self._number]
        return self._files

    def _next_version(self) -> None:
        """Go on to the next version, if there is one."""
        if self._entry(self._version + 1) is not None:
            self._version += 1
            self._is_snapshot, self._file, self._row, self._files = False, 0, 0, None

    def _entry(self, number: int) -> Version | None:
        now = time.monotonic()
        if self._misses and now - self._looked_at < _POLL_S:
            return None
        entry = self._source.entry(number)
        if entry is None:
            self._looked_at = now
            if self._misses % _MISSES_MAX == 0:
                self._check_to_come(number)
            self._misses += 1
        else:
            self._misses = 0
        return entry

    def _check_to_come(self, number: int) -> None:
        """Raise if the version that is waited for was there and is gone."""
        table = self._source.location.table()
        if table is None:
            raise StorageError(f"{self._source!r}: the table is gone")
        if table.version() >= number and self._source.entry(number) is None:
            raise DataError(
                f"{self._source!r}: version {number} is needed next, and the table, at version {table.version()}, has "
                f"removed it from its log. Start again with a new checkpoint directory, and raise "
                f"delta.logRetentionDuration above the longest time that the pipeline may be stopped"
            )

    def _opened(self, file: LogFile) -> Iterator[pa.RecordBatch]:
        source = self._source
        place = source.location.place()
        try:
            opened = pyarrow.parquet.ParquetFile(place.open(file.path))
        except FileNotFoundError as error:
            raise DataError(
                f"{source!r}: the file {file.path} of version {self._version} is gone: VACUUM has removed it before it "
                f"was read. Start again with a new checkpoint directory, or retain files for longer"
            ) from error
        return _rows_of(opened, file, source.schema, self._row, source.location.address)

    def offset(self) -> bytes:
        position = {"version": self._version, "snapshot": self._is_snapshot, "file": self._file, "row": self._row}
        return json.dumps(position).encode()

    def pause(self) -> None:
        self._batches = None

    def close(self) -> None:
        self._batches = None


def _with_rest(rest: pa.RecordBatch, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield rest
    yield from batches


def _rows_of(opened: Any, file: LogFile, schema: pa.Schema, skipped: int, table: str) -> Iterator[pa.RecordBatch]:
    """The rows of a file from row `skipped` on, in the schema of the table."""
    first = 0
    while first < opened.num_row_groups and opened.metadata.row_group(first).num_rows <= skipped:
        skipped -= opened.metadata.row_group(first).num_rows
        first += 1
    names = [name for name in opened.schema_arrow.names if name in schema.names and name not in file.partition]
    for batch in opened.iter_batches(row_groups=list(range(first, opened.num_row_groups)), columns=names):
        if skipped >= batch.num_rows:
            skipped -= batch.num_rows
            continue
        rest, skipped = batch.slice(skipped), 0
        yield conformed(_with_partition(rest, file.partition, schema), schema, table)


def _with_partition(batch: pa.RecordBatch, partition: Mapping[str, Any], schema: pa.Schema) -> pa.RecordBatch:
    for name, value in partition.items():
        kind = schema.field(name).type
        scalar = value if isinstance(value, pa.Scalar) else pa.scalar(value or None, pa.string())
        batch = batch.append_column(name, pa.repeat(scalar.cast(kind), batch.num_rows))
    return batch
