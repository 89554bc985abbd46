"""The rows of one file of a Delta table: from a row on, with the columns of its partition, and as changes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from penstock.connectors.delta.log import LogFile
from penstock.connectors.tables.conform import conformed
from penstock.model.changelog import DELETE, INSERT, OP

VERSION = "_commit_version"
"""The column of a change that has the version of the table, by Delta's own name for it."""
_KIND = "_change_type"
_KINDS = {
    DELETE: pa.array(["delete", "update_preimage"]),
    INSERT: pa.array(["insert", "update_postimage"]),
}


def rows_of_file(
    opened: Any, file: LogFile, table: pa.Schema, *, version: int, skipped: int, name: str
) -> Iterator[pa.RecordBatch]:
    """The rows of a file from row `skipped` on, in the schema of the table; with `op`, as changes of a version."""
    first, skipped = (0, skipped) if file.is_feed else _first_group(opened, skipped)
    names = [name for name in opened.schema_arrow.names if name in table.names and name not in file.partition]
    groups = list(range(first, opened.num_row_groups))
    for batch in opened.iter_batches(row_groups=groups, columns=[*names, *([_KIND] if file.is_feed else [])]):
        rows = conformed(_with_partition(batch.select(names), file.partition, table), table, name)
        if file.is_feed:
            # Behind the cast: delta-rs writes views of texts, which Arrow cannot filter.
            rows = rows.filter(pc.is_in(batch.column(_KIND).cast(pa.string()), _KINDS[file.op or ""]))
        if skipped >= rows.num_rows:
            skipped -= rows.num_rows
            continue
        rest, skipped = rows.slice(skipped), 0
        yield rest if file.op is None else _as_changes(rest, file.op, version)


def _first_group(opened: Any, skipped: int) -> tuple[int, int]:
    """The row group in which row `skipped` lies, and its number there."""
    first = 0
    while first < opened.num_row_groups and opened.metadata.row_group(first).num_rows <= skipped:
        skipped -= opened.metadata.row_group(first).num_rows
        first += 1
    return first, skipped


def _as_changes(rows: pa.RecordBatch, op: str, version: int) -> pa.RecordBatch:
    ops = pa.repeat(pa.scalar(op, pa.string()), rows.num_rows)
    versions = pa.repeat(pa.scalar(version, pa.int64()), rows.num_rows)
    return rows.append_column(OP, ops).append_column(VERSION, versions)


def _with_partition(batch: pa.RecordBatch, partition: Mapping[str, Any], schema: pa.Schema) -> pa.RecordBatch:
    for name, value in partition.items():
        kind = schema.field(name).type
        scalar = value if isinstance(value, pa.Scalar) else pa.scalar(value or None, pa.string())
        batch = batch.append_column(name, pa.repeat(scalar.cast(kind), batch.num_rows))
    return batch
