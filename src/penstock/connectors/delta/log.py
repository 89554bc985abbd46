"""The entries of a Delta table's log, as a reader needs them: files of a snapshot, files and changes of a version.

A version that changes rows is told by its change files (`cdc`), if it has any: they hold each row as it was and as it
is. A version without them has changed whole files: rows of files that were removed are gone, rows of files that were
added have come.
"""

from __future__ import annotations

import json
import urllib.parse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa

from penstock.connectors.files.filesystem import Place
from penstock.errors import DataError
from penstock.model.changelog import DELETE, INSERT

FEED = "delta.enableChangeDataFeed"
"""The property of a table by which its versions have change files."""


@dataclass(frozen=True, slots=True)
class LogFile:
    """A data file and the values of its partition columns: typed scalars, or texts as in the log."""

    path: str
    partition: Mapping[str, Any]
    rows: int | None = None
    """None if the log does not say."""
    size: int = 0
    op: str | None = None
    """The operation of its rows, if they are read as changes."""
    is_feed: bool = False
    """Whether it is a change file, of which only the rows of `op` are read."""


@dataclass(frozen=True, slots=True)
class Version:
    """What one entry of the log says."""

    number: int
    added: tuple[LogFile, ...]
    changes: tuple[LogFile, ...]
    """The same as a changelog: everything that goes, then everything that comes."""
    is_change: bool
    """Whether it removes rows: a delete, an update, a merge or an overwrite."""
    operation: str
    schema: str | None
    """The schema from this version on, if it has changed it."""


def snapshot_files(table: Any) -> list[LogFile]:
    """The files of one version of a table, by name."""
    actions = pa.table(table.get_add_actions(flatten=True))
    prefix = "partition."
    partitions = [name for name in actions.column_names if name.startswith(prefix)]
    rows = actions.column("num_records").to_pylist() if "num_records" in actions.column_names else None
    sizes = actions.column("size_bytes").to_pylist()
    files = []
    for place, path in enumerate(actions.column("path").to_pylist()):
        values = {name.removeprefix(prefix): actions.column(name)[place] for name in partitions}
        count = None if rows is None else rows[place]
        files.append(LogFile(urllib.parse.unquote(path), values, count, sizes[place]))
    return sorted(files, key=lambda file: file.path)


def read_version(place: Place, number: int, table: str) -> Version | None:
    """One entry of the log; None if it does not exist, or not any more."""
    try:
        with place.open(f"_delta_log/{number:020d}.json") as file:
            actions = [json.loads(line) for line in file.read().splitlines() if line.strip()]
    except FileNotFoundError:
        return None
    added, removed, feed, operation, schema = [], [], [], "unknown", None
    for action in actions:
        add, remove, change = action.get("add"), action.get("remove"), action.get("cdc")
        # A compaction rewrites rows without changing data: everybody has read them already.
        if add and add.get("dataChange", True):
            added.append(_file(add, number, table))
        if remove and remove.get("dataChange", True):
            removed.append(_file(remove, number, table))
        if change:
            feed.append(_file(change, number, table))
        operation = action.get("commitInfo", {}).get("operation", operation)
        schema = action.get("metaData", {}).get("schemaString", schema)
    gone, come = (feed, feed) if feed else (removed, added)
    changes = [*_as_changes(gone, DELETE, is_feed=bool(feed)), *_as_changes(come, INSERT, is_feed=bool(feed))]
    return Version(number, tuple(_by_name(added)), tuple(changes), bool(removed), operation, schema)


def _file(action: Mapping[str, Any], number: int, table: str) -> LogFile:
    if action.get("deletionVector"):
        raise _unsupported(table, number, "deletion vectors")
    stats = json.loads(action.get("stats") or "{}")
    partition = dict(action.get("partitionValues") or {})
    return LogFile(urllib.parse.unquote(action["path"]), partition, stats.get("numRecords"), action.get("size") or 0)


def _by_name(files: Sequence[LogFile]) -> list[LogFile]:
    return sorted(files, key=lambda file: file.path)


def _as_changes(files: Sequence[LogFile], op: str, *, is_feed: bool) -> list[LogFile]:
    # The rows of a change file are of two operations: how many are of one is not known.
    return [replace(file, op=op, is_feed=is_feed, rows=None if is_feed else file.rows) for file in _by_name(files)]


def as_inserts(files: Sequence[LogFile]) -> list[LogFile]:
    """The files of a snapshot, read as changes."""
    return _as_changes(files, INSERT, is_feed=False)


def check_readable(table: Any, name: str) -> None:
    """Raise `DataError` if the table uses a feature by which its files do not hold its rows as they are."""
    features = set(table.protocol().reader_features or ())
    if "deletionVectors" in features and _has_deletion_vectors(table):
        raise _unsupported(name, table.version(), "deletion vectors")
    if table.metadata().configuration.get("delta.columnMapping.mode", "none") != "none":
        raise _unsupported(name, table.version(), "column mapping")


def _has_deletion_vectors(table: Any) -> bool:
    return bool(pa.table(table.deletion_vectors()).num_rows)


def _unsupported(table: str, version: int, feature: str) -> DataError:
    return DataError(
        f"DeltaSource: the table {table} has {feature} (version {version}), which DeltaSource does not read: rewrite "
        f"the table without them (REORG TABLE … APPLY (PURGE)), or read it with Spark and DataFrameSource"
    )
