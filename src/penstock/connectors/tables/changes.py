"""Changes of a checkpoint, for sinks that upsert: the column `op` of a changelog, and the newest change of each key.

In an upsert, the column `op` of the records says what happens to the row of their key: `insert` and `update` put the
record in its place, `delete` removes it. The column is staged and not written to the table. A table that has a column
`op` itself keeps it as data, and none of its rows is deleted; the sink says so when it starts.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc

from penstock.connectors.files.latest import latest_rows
from penstock.errors import DataError
from penstock.model.changelog import DELETE, INSERT, OP, UPDATE

_ROW = "penstock row"
_OPS = pa.array([INSERT, UPDATE, DELETE])

_log = logging.getLogger("penstock")


def data_schema(given: pa.Schema) -> pa.Schema:
    """The columns of records without the operation, for a table that is made for them."""
    return pa.schema([field for field in given if field.name != OP])


def staged_schema(table: pa.Schema, given: pa.Schema) -> pa.Schema:
    """The schema of staged records: that of the table, and `op` if the records have it and the table does not."""
    if OP not in given.names or OP in table.names:
        return table
    # Not null: a later batch without the column would otherwise be staged as changes of no kind.
    return table.append(pa.field(OP, pa.string(), nullable=False))


def warn_of_own_op(sink: object, columns: Sequence[str]) -> None:
    """Say that the table of an upsert has a column `op`, which is data then."""
    if OP in columns:
        _log.warning(
            "%r: the table has a column '%s', so it is written as data, and no row is deleted. To "
            "have rows deleted, remove the column from the table",
            sink,
            OP,
        )


def check_ops(ops: pa.Array, table: str) -> None:
    """Raise `DataError` for a value that is no operation."""
    wrong = pc.invert(pc.is_in(ops, _OPS))
    if pc.any(wrong).as_py():
        count = pc.sum(wrong).as_py()
        raise DataError(
            f"the column '{OP}' of the changes for {table} has {ops.filter(wrong)[0].as_py()!r} ({count} of {len(ops)} "
            f"records): it must be '{INSERT}', '{UPDATE}' or '{DELETE}'. If it is data, rename it in front of the "
            f"sink, or add a column '{OP}' to the table"
        )


def newest_changes(rows: pa.Table, key: Sequence[str], by: str | None, sink: object) -> pa.Table:
    """The newest record of each key: the highest in the column `by`, of equal ones or without `by` the last.

    Raises `DataError` for a null in the key.
    """
    # Two rows that differ in nothing but a null key are two rows to SQL: the next update would add a third.
    nulls = [name for name in key if rows.column(name).null_count]
    if nulls:
        raise DataError(
            f"{sink!r}: the key column '{nulls[0]}' is null in {rows.column(nulls[0]).null_count} of {rows.num_rows} "
            f"rows: filter such rows in front of the sink"
        )
    if by is not None:
        return latest_rows(rows, key, by)
    numbered = rows.append_column(_ROW, pa.array(range(rows.num_rows), pa.int64()))
    return latest_rows(numbered, key, _ROW).drop_columns([_ROW])


def are_changes(rows: pa.Table, table: pa.Schema) -> bool:
    """Whether the column `op` of staged rows says what happens to them."""
    return OP in rows.schema.names and OP not in table.names
