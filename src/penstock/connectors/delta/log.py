"""The log of a Delta table, as a reader of appended rows needs it: files of a snapshot, files that a version added."""

from __future__ import annotations

import json
import urllib.parse
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from penstock.connectors.files.filesystem import Place
from penstock.errors import DataError


@dataclass(frozen=True, slots=True)
class LogFile:
    """A data file and the values of its partition columns: typed scalars, or texts as in the log."""

    path: str
    partition: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Version:
    """What one entry of the log says."""

    number: int
    added: tuple[LogFile, ...]
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
    files = []
    for row, path in enumerate(actions.column("path").to_pylist()):
        values = {name.removeprefix(prefix): actions.column(name)[row] for name in partitions}
        files.append(LogFile(urllib.parse.unquote(path), values))
    return sorted(files, key=lambda file: file.path)


def read_version(place: Place, number: int, table: str) -> Version | None:
    """One entry of the log; None if it does not exist, or not any more."""
    try:
        with place.open(f"_delta_log/{number:020d}.json") as file:
            actions = [json.loads(line) for line in file.read().splitlines() if line.strip()]
    except FileNotFoundError:
        return None
    added, is_change, operation, schema = [], False, "unknown", None
    for action in actions:
        add, remove = action.get("add"), action.get("remove")
        # A compaction rewrites rows without changing data: everybody has read them already.
        if add and add.get("dataChange", True):
            if add.get("deletionVector"):
                raise _unsupported(table, number, "deletion vectors")
            added.append(LogFile(urllib.parse.unquote(add["path"]), dict(add.get("partitionValues") or {})))
        if remove and remove.get("dataChange", True):
            is_change = True
        operation = action.get("commitInfo", {}).get("operation", operation)
        schema = action.get("metaData", {}).get("schemaString", schema)
    return Version(number, tuple(sorted(added, key=lambda file: file.path)), is_change, operation, schema)


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
