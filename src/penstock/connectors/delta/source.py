"""A Delta table as a source: the rows of one version, then those that later versions append, or all their changes."""

from __future__ import annotations

import datetime
import logging
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import pyarrow as pa
import pyarrow.parquet

from penstock.connectors.delta.log import (
    FEED,
    LogFile,
    Version,
    as_inserts,
    check_readable,
    read_version,
    snapshot_files,
)
from penstock.connectors.delta.rows import VERSION, rows_of_file
from penstock.connectors.delta.table import DeltaLocation, arrow_schema
from penstock.connectors.tables.reader import Poll, TableLog
from penstock.connectors.tables.source import TableSource, check_time
from penstock.errors import DataError, PipelineError, StorageError
from penstock.model.changelog import OP, Changelog

_POLL_S = 0.5
_SPLITS = 8
_MISSES_MAX = 100
"""Looks for a version that is not there, after which the table is asked whether the version is still to come."""

_log = logging.getLogger("penstock")


@dataclass(frozen=True, slots=True)
class _Start:
    """On which all workers agree."""

    version: int
    newest: int
    """The newest version then."""
    schema: pa.Schema


class DeltaSource(TableSource):
    """Rows of a Delta table: those of one version, then those that are appended.

        DeltaSource("/data/orders")                           # all rows now, then new ones
        DeltaSource("s3://lake/orders", version=120)          # as of version 120, then what came after it
        DeltaSource("/data/orders", as_of=datetime(2026, 1, 1, tzinfo=UTC))
        DeltaSource("/data/orders", follow=False)             # all rows now, bounded
        DeltaSource("/data/orders", changes=True)             # all rows now, then inserts, updates and deletes

    Example:

        orders.sink(DeltaSink("orders"))
        run(pipeline)
        again = Pipeline("again")
        again.source(DeltaSource("orders", follow=False)).sink(output)
        run(again)
        assert sorted(row["amount"] for row in output.rows()) == [10, 20, 30]

    A version that deletes or updates rows is a `DataError`, because rows that were read would have to be taken back;
    `on_change="skip"` passes over such versions with a warning, and over all rows that they add. Compactions change no
    data and are passed over in silence. `splits` is the parallelism that it can be read with, 8 unless it is said, and
    cannot be changed later.

    With `changes=True` the stream is a retracting changelog: a row that is deleted comes with `op` "delete", one that
    is updated comes as it was and as it is, and `_commit_version` says in which version. The table must have the
    property `delta.enableChangeDataFeed`. Changes have an order, so there is one split. `follow=False` ends with the
    version that is the newest one when the pipeline starts.

    The trap: the log of a table is cleaned after `delta.logRetentionDuration` (30 days). A pipeline that was stopped
    for longer cannot go on, and says so.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        version: int | None = None,
        as_of: datetime.datetime | None = None,
        follow: bool = True,
        changes: bool = False,
        on_change: Literal["fail", "skip"] = "fail",
        splits: int | None = None,
        storage_options: Mapping[str, str] | None = None,
    ) -> None:
        if on_change not in ("fail", "skip"):
            raise PipelineError(f"DeltaSource: on_change is {on_change!r}: it must be 'fail' or 'skip'")
        if changes and on_change != "fail":
            raise PipelineError("DeltaSource: changes=True reads every version: leave on_change out")
        if changes and splits not in (None, 1):
            raise PipelineError(
                f"DeltaSource: splits is {splits}: changes are ordered, so one split reads them: leave splits out"
            )
        if version is not None and version < 0:
            raise PipelineError(f"DeltaSource: version is {version}: versions begin at 0")
        if version is not None and as_of is not None:
            raise PipelineError("DeltaSource: version and as_of both set the starting point: give only one")
        check_time("DeltaSource", as_of)
        super().__init__(splits if splits is not None else 1 if changes else _SPLITS)
        self.location = DeltaLocation(path, storage_options, "DeltaSource")
        self.version = version
        self.as_of = as_of
        self.is_endless = follow
        self.reads_changes = changes
        self.changelog: Changelog | None = "retracting" if changes else None
        self.on_change = on_change
        self._start: _Start | None = None

    def identity(self) -> Mapping[str, str]:
        changes = {"changes": "true"} if self.reads_changes else {}
        place = {"path": self.location.address, "splits": str(self.split_count)}
        return {**super().identity(), **place, **changes}

    def first_version(self) -> int:
        return self.start().version

    def opened_log(self) -> TableLog:
        return _DeltaLog(self, self.start())

    def start(self) -> _Start:
        """The version to begin with, and the schema of the newest one. Raises `StorageError`."""
        if self._start is None:
            newest = self.location.table()
            if newest is None:
                raise StorageError(f"{self!r}: no Delta table found there: create it first, or check the path")
            check_readable(newest, self.location.address)
            schema = arrow_schema(newest)
            if self.reads_changes:
                self._check_feed(newest, schema)
            self._start = _Start(self._first(newest), newest.version(), schema)
        return self._start

    def _first(self, newest: Any) -> int:
        if self.as_of is not None:
            return self._version_at(newest, self.as_of)
        version: int = newest.version() if self.version is None else self.version
        if version > newest.version():
            raise PipelineError(f"{self!r}: version is {version}, but the newest one is {newest.version()}")
        return version

    def _version_at(self, newest: Any, as_of: datetime.datetime) -> int:
        """The newest version of that time, by the times in the log: those of its files change when they are copied."""
        limit_ms = as_of.timestamp() * 1000
        found = oldest = None
        for entry in reversed(newest.history()):
            oldest = oldest or entry
            # Clocks of writers differ: versions behind one that is later are later too.
            if entry["timestamp"] > limit_ms:
                break
            found = int(entry["version"])
        if found is None:
            at = datetime.datetime.fromtimestamp(oldest["timestamp"] / 1000, datetime.UTC).isoformat() if oldest else ""
            raise PipelineError(
                f"{self!r}: as_of is {as_of.isoformat()}, but the oldest version in the log of the table is of {at}"
            )
        return found

    def _check_feed(self, table: Any, schema: pa.Schema) -> None:
        if table.metadata().configuration.get(FEED, "false").lower() != "true":
            raise PipelineError(
                f"{self!r}: changes=True needs the change data feed, which the table does not have. Set the property: "
                f"ALTER TABLE … SET TBLPROPERTIES ({FEED} = true), or in Python "
                f"DeltaTable(…).alter.set_table_properties({{'{FEED}': 'true'}})"
            )
        taken = [name for name in (OP, VERSION) if name in schema.names]
        if taken:
            raise PipelineError(
                f"{self!r}: changes=True adds a column '{taken[0]}', which the table has already: "
                "rename the column of the table"
            )


class _DeltaLog:
    """The versions of the table, as one worker sees them."""

    def __init__(self, source: DeltaSource, start: _Start) -> None:
        self._source = source
        self._start = start
        self._location = source.location
        self.split_count = source.split_count
        self.is_bounded = not source.is_endless
        self._snapshots: dict[int, list[LogFile]] = {}
        self._versions: dict[int, Version] = {}
        self._polls: dict[int, _Wait] = {}

    def is_end(self, version: int) -> bool:
        # Without changes a bounded read never leaves the version that it began with.
        return self.is_bounded and (not self._source.reads_changes or version >= self._start.newest)

    def files(self, version: int, *, is_snapshot: bool) -> Sequence[LogFile] | None:
        if is_snapshot:
            listed = self._snapshot(version)
            return as_inserts(listed) if self._source.reads_changes else listed
        entry = self._awaited(version)
        if entry is None:
            return None
        return entry.changes if self._source.reads_changes else entry.added

    def after(self, version: int) -> int | None:
        return None if self._awaited(version + 1) is None else version + 1

    def rows_ahead(self, version: int) -> int:
        # The log says it only version by version, when they are read.
        return 0

    def rows_of(self, file: LogFile, version: int, skipped: int) -> Iterator[pa.RecordBatch]:
        try:
            opened = pyarrow.parquet.ParquetFile(self._location.place().open(file.path))
        except FileNotFoundError as error:
            raise DataError(
                f"{self._source!r}: the file {file.path} of version {version} is gone: VACUUM has removed it before it "
                f"was read. Start again with a new checkpoint directory, or retain files for longer"
            ) from error
        return rows_of_file(
            opened, file, self._start.schema, version=version, skipped=skipped, name=self._location.address
        )

    def _snapshot(self, version: int) -> list[LogFile]:
        if version not in self._snapshots:
            table = self._location.table(version)
            if table is None:
                raise StorageError(
                    f"{self._source!r}: the table was removed: restore it, or start "
                    "again with a new checkpoint directory"
                )
            check_readable(table, self._location.address)
            self._snapshots = {version: snapshot_files(table)}
        return self._snapshots[version]

    def _awaited(self, number: int) -> Version | None:
        """A version of the log, checked; None if it does not exist yet. It is looked for now and then."""
        wait = self._polls.setdefault(number, _Wait())
        if not wait.poll.is_due():
            return None
        entry = self._entry(number)
        if entry is not None:
            del self._polls[number]
            return entry
        wait.poll.looked()
        if wait.misses % _MISSES_MAX == 0:
            self._check_to_come(number)
        wait.misses += 1
        return None

    def _entry(self, number: int) -> Version | None:
        if number not in self._versions:
            found = read_version(self._location.place(), number, self._location.address)
            if found is None:
                return None
            self._warn_of_schema(found)
            self._versions = {number: found if self._source.reads_changes else self._checked(found)}
        return self._versions[number]

    def _check_to_come(self, number: int) -> None:
        """Raise if the version that is waited for was there and is gone."""
        table = self._location.table()
        if table is None:
            raise StorageError(
                f"{self._source!r}: the table was removed: restore it, or start again with a new checkpoint directory"
            )
        if table.version() >= number and self._entry(number) is None:
            raise DataError(
                f"{self._source!r}: version {number} is needed next, and the table, at version {table.version()}, has "
                f"removed it from its log. Start again with a new checkpoint directory, and raise "
                f"delta.logRetentionDuration above the longest time that the pipeline may be stopped"
            )

    def _checked(self, version: Version) -> Version:
        if not version.is_change:
            return version
        what = f"{self._source!r}: version {version.number} ({version.operation}) deletes or updates rows"
        if self._source.on_change == "fail":
            raise DataError(
                f"{what}, and rows already read cannot be retracted. Set changes=True to read them as "
                "changes, on_change='skip' to skip such versions, or start again with "
                f"version={version.number} and a new checkpoint directory"
            )
        _log.warning("%s: the version is skipped, and with it %d files that it adds", what, len(version.added))
        return replace(version, added=())

    def _warn_of_schema(self, version: Version) -> None:
        if version.schema is None or version.number <= self._start.newest:
            return
        now = pa.schema(self._location.deltalake.Schema.from_json(version.schema).to_arrow())
        if not now.equals(self._start.schema):
            _log.warning(
                "%r: version %d has a new schema (%s): rows keep the schema of the start until the "
                "pipeline is restarted",
                self._source,
                version.number,
                ", ".join(now.names),
            )


class _Wait:
    """For a version that does not exist yet."""

    def __init__(self) -> None:
        self.poll = Poll(_POLL_S)
        self.misses = 0
