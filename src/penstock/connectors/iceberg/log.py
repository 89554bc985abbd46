"""The snapshots of an Iceberg table, as a reader of appended rows needs them: files of one, files that one has added.

A version is the id of a snapshot; 0 is the table before its first one. Snapshots follow each other by their parents,
from the current one back. A snapshot that has expired is not needed as long as its successor names it, which it does
unless pyiceberg has removed it.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import pyarrow as pa

from penstock.connectors.iceberg.table import IcebergLocation
from penstock.connectors.tables.conform import conformed
from penstock.connectors.tables.reader import Answers, Poll
from penstock.errors import DataError, StorageError

EMPTY = 0
"""The version of a table that has no snapshot."""
_POLL_S = 0.5
_REPLACE = "replace"
"""The operation of a compaction, which changes no rows."""

_log = logging.getLogger("penstock")


@dataclass(frozen=True, slots=True)
class IcebergFile:
    """A data file, and what pyiceberg needs to read it."""

    path: str
    rows: int
    size: int
    table: Any
    task: Any


@dataclass(frozen=True, slots=True)
class _State:
    """The table at one moment."""

    table: Any
    current: int
    next_of: dict[int, int]
    """The successor of each snapshot, among the ancestors of the current one."""
    added: dict[int, int]
    """Rows that each of them has added."""


class IcebergLog:
    """One per worker and source. Everything that asks the catalog or reads manifests runs beside the mailbox."""

    def __init__(
        self,
        location: IcebergLocation,
        *,
        schema: pa.Schema,
        schema_id: int,
        is_bounded: bool,
        split_count: int,
        on_change: Literal["fail", "skip"],
    ) -> None:
        self.is_bounded = is_bounded
        self.split_count = split_count
        self._location = location
        self._schema = schema
        self._schema_id = schema_id
        self._on_change = on_change
        # Apart, because an answer about the whole table must not be older than the last one.
        self._lists, self._states = Answers(), Answers()
        self._poll = Poll(_POLL_S)
        self._state: _State | None = None
        self._files: tuple[tuple[int, bool], list[IcebergFile]] | None = None

    # --- versions ---

    def is_end(self, version: int) -> bool:
        # A bounded read never leaves the snapshot that it began with.
        return self.is_bounded

    def files(self, version: int, *, is_snapshot: bool) -> Sequence[IcebergFile] | None:
        question = version, is_snapshot
        if self._files is None or self._files[0] != question:
            answer = self._lists.ask(question, lambda: self._listed(version, is_snapshot=is_snapshot))
            if answer is None:
                return None
            self._files = question, answer
        return self._files[1]

    def after(self, version: int) -> int | None:
        state = self._state
        if state is not None and version in state.next_of:
            return state.next_of[version]
        if self._poll.is_due():
            found = self._states.ask("state", self._read_state)
            if found is not None:
                self._poll.looked()
                self._state = found
                if version not in found.next_of and version != found.current:
                    raise self._lost(found, version)
        return None

    def rows_ahead(self, version: int) -> int:
        state, rows = self._state, 0
        while state is not None and version in state.next_of:
            version = state.next_of[version]
            rows += state.added[version]
        return rows

    def _lost(self, state: _State, version: int) -> DataError:
        if version == EMPTY:
            reason = "when the table was empty, and its first snapshot has expired since"
        elif state.table.metadata.snapshot_by_id(version) is not None:
            reason = f"at snapshot {version}, and the table was rolled back to an older one, or to another branch"
        else:
            reason = f"at snapshot {version}, and the table has lost what followed it: snapshots have expired"
        return DataError(
            f"{self._told} was last read {reason}. Unread rows cannot be distinguished from rows "
            "already read. Start again with a new checkpoint directory, and keep snapshots "
            "(history.expire.max-snapshot-age-ms) for longer than the pipeline may be stopped"
        )

    @property
    def _told(self) -> str:
        return f"IcebergSource: the table {self._location.name}"

    # --- beside the mailbox ---

    def _table(self) -> Any:
        return self._location.table("it was there when the pipeline started, and is gone")

    def _read_state(self) -> _State:
        table = self._table()
        known = {snapshot.snapshot_id: snapshot for snapshot in table.metadata.snapshots}
        current = table.metadata.current_snapshot_id
        next_of: dict[int, int] = {}
        added: dict[int, int] = {}
        snapshot = known.get(current)
        while snapshot is not None:
            parent = snapshot.parent_snapshot_id
            if parent is not None:
                next_of[parent] = snapshot.snapshot_id
            elif _is_first(snapshot, table.metadata.format_version):
                next_of[EMPTY] = snapshot.snapshot_id
            added[snapshot.snapshot_id] = _added_rows(snapshot)
            snapshot = known.get(parent)
        if table.metadata.current_schema_id != self._schema_id:
            # Once for each schema.
            self._warn_of_schema(table.metadata.current_schema_id)
        return _State(table, EMPTY if current is None else current, next_of, added)

    def _warn_of_schema(self, schema_id: int) -> None:
        if self._state is None or self._state.table.metadata.current_schema_id != schema_id:
            _log.warning(
                "%s has a new schema (%d): rows keep the schema of the start (%d) until the pipeline is restarted",
                self._told,
                schema_id,
                self._schema_id,
            )

    def _listed(self, version: int, *, is_snapshot: bool) -> list[IcebergFile]:
        if version == EMPTY:
            return []
        table = self._table()
        snapshot = table.metadata.snapshot_by_id(version)
        if snapshot is None:
            raise DataError(
                f"{self._told}: snapshot {version} has expired before it was read to its end. Start again with a new "
                f"checkpoint directory, and keep snapshots for longer (history.expire.max-snapshot-age-ms)"
            )
        try:
            if is_snapshot:
                tasks = list(table.scan(snapshot_id=version).plan_files())
            else:
                tasks = self._added_by(table, snapshot)
        except DataError:
            raise
        except Exception as error:
            raise self._location.failure(f"cannot list the files of snapshot {version}", error) from error
        listed = [
            IcebergFile(task.file.file_path, task.file.record_count, task.file.file_size_in_bytes, table, task)
            for task in tasks
        ]
        return sorted(listed, key=lambda file: file.path)

    def _added_by(self, table: Any, snapshot: Any) -> list[Any]:
        operation = "unknown" if snapshot.summary is None else snapshot.summary.operation.value
        # A compaction rewrites rows without changing data: everybody has read them already.
        if operation == _REPLACE:
            return []
        manifests = self._location.package("manifest")
        task = self._location.package("table").FileScanTask
        added, is_change = [], False
        for manifest in snapshot.manifests(table.io):
            if manifest.added_snapshot_id != snapshot.snapshot_id:
                continue
            is_change = is_change or manifest.content != manifests.ManifestContent.DATA
            for entry in manifest.fetch_manifest_entry(table.io, discard_deleted=False):
                if entry.snapshot_id != snapshot.snapshot_id:
                    continue
                if entry.status == manifests.ManifestEntryStatus.ADDED:
                    added.append(task(entry.data_file))
                elif entry.status == manifests.ManifestEntryStatus.DELETED:
                    is_change = True
        return self._checked(snapshot.snapshot_id, operation, added) if is_change else added

    def _checked(self, snapshot: int, operation: str, added: list[Any]) -> list[Any]:
        what = f"{self._told}: snapshot {snapshot} ({operation}) deletes or updates rows"
        if self._on_change == "fail":
            raise DataError(
                f"{what}, and rows already read cannot be retracted. Set on_change='skip' to skip "
                f"such snapshots, or start again with snapshot={snapshot} and a new checkpoint "
                "directory"
            )
        _log.warning("%s: the snapshot is skipped, and with it %d files that it adds", what, len(added))
        return []

    # --- rows ---

    def rows_of(self, file: IcebergFile, version: int, skipped: int) -> Iterator[pa.RecordBatch]:
        arrow = self._location.package("io.pyarrow")
        table = file.table
        # By field id: columns that were renamed, promoted, reordered, added or removed since the file was written.
        scan = arrow.ArrowScan(
            table_metadata=table.metadata,
            io=table.io,
            projected_schema=table.schemas()[self._schema_id],
            row_filter=self._location.package("expressions").AlwaysTrue(),
        )
        try:
            # As its own `to_record_batches` does, without having the whole file in memory at once.
            deletes = arrow._read_all_delete_files(table.io, [file.task])
            for batch in scan._record_batches_from_scan_tasks_and_deletes([file.task], deletes):
                if skipped >= batch.num_rows:
                    skipped -= batch.num_rows
                    continue
                rest, skipped = batch.slice(skipped), 0
                yield conformed(rest, self._schema, self._location.name)
        except FileNotFoundError as error:
            raise DataError(
                f"{self._told}: the file {file.path} of snapshot {version} was removed: its snapshot "
                "expired before it was read. Start again with a new checkpoint directory, and keep "
                "snapshots for longer"
            ) from error
        except (OSError, ValueError) as error:
            raise StorageError(f"{self._told}: the file {file.path} cannot be read: {error}") from error


def _is_first(snapshot: Any, format_version: int) -> bool:
    """Whether nothing came before a snapshot without a parent: pyiceberg also takes the name of a parent away when it
    expires."""
    if format_version > 1:
        return bool(snapshot.sequence_number == 1)
    summary = snapshot.summary
    return summary is not None and summary["total-data-files"] == summary["added-data-files"]


def _added_rows(snapshot: Any) -> int:
    summary = snapshot.summary
    if summary is None or summary.operation.value == _REPLACE:
        return 0
    return int(summary["added-records"] or 0)
