"""An upsert into an Iceberg table, by copy-on-write: which files are replaced, and by which rows.

Files are looked at one after the other. Of each the columns of the key are read, and only a file that has a row of one
of the keys is read whole: its other rows are written anew. Rows that are left of small files are put together with the
new rows, so that an upsert makes large files of small ones. Files are written and not listed here: the commit lists
them.
"""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from penstock.columnar.grouping import key_codes
from penstock.connectors.iceberg.table import IcebergLocation
from penstock.connectors.tables.changes import are_changes
from penstock.connectors.tables.conform import conformed
from penstock.model.changelog import DELETE, OP

_SMALL_BYTES = 16 * 1024 * 1024
"""Rows that are left of a file wait for others if they are smaller than this."""
_HELD_BYTES_MAX = 128 * 1024 * 1024


@dataclass(slots=True)
class Replacement:
    """Files that the table loses and gets."""

    removed: list[Any] = field(default_factory=list)
    added: list[Any] = field(default_factory=list)


def replacement_of(
    location: IcebergLocation, table: Any, rows: pa.Table, key: Sequence[str], by: str | None
) -> Replacement:
    """Make the files by which `rows`, one for each key, come into the table."""
    return _Merge(location, table, rows, key, by).done()


class _Merge:
    def __init__(
        self, location: IcebergLocation, table: Any, rows: pa.Table, key: Sequence[str], by: str | None
    ) -> None:
        self._arrow = location.package("io.pyarrow")
        self._expressions = location.package("expressions")
        self._table = table
        self._key, self._by = list(key), by
        schema = location.arrow_schema(table.schema())
        are_ops = are_changes(rows, schema)
        self._stays = np.asarray(pc.not_equal(rows.column(OP), DELETE)) if are_ops else np.ones(rows.num_rows, bool)
        data = rows.drop_columns([OP]) if are_ops else rows
        batches = [conformed(batch, schema, location.name) for batch in data.combine_chunks().to_batches()]
        self._rows = pa.Table.from_batches(batches, schema)
        self._writes = uuid.uuid4()
        self._count = itertools.count()
        self._held: list[pa.Table] = []
        self._result = Replacement()

    def done(self) -> Replacement:
        for task in self._tasks():
            is_replaced = self._replaced(task)
            if is_replaced.any():
                self._result.removed.append(task.file)
                self._keep(self._read(task).filter(pa.array(~is_replaced)))
        self._keep(self._rows.filter(pa.array(self._stays)))
        self._flush()
        return self._result

    def _tasks(self) -> Iterable[Any]:
        """Files that may have one of the keys, by their statistics."""
        conditions = self._expressions.AlwaysTrue()
        for name in self._key:
            if _is_ordered(self._kind(name)):
                bounds = pc.min_max(self._rows.column(name)).as_py()
                low = self._expressions.GreaterThanOrEqual(name, bounds["min"])
                high = self._expressions.LessThanOrEqual(name, bounds["max"])
                conditions = self._expressions.And(conditions, self._expressions.And(low, high))
        return list(self._table.scan(row_filter=conditions).plan_files())

    def _replaced(self, task: Any) -> npt.NDArray[np.bool_]:
        """Which rows of a file give way. A row of the table that is newer than the change lets nothing come."""
        found = self._read(task, [*self._key, *([self._by] if self._by else [])])
        new, old = self._rows.num_rows, found.num_rows
        columns = [
            pa.chunked_array([*self._rows.column(name).chunks, *found.column(name).cast(self._kind(name)).chunks])
            for name in self._key
        ]
        codes = key_codes([column.combine_chunks() for column in columns])
        # Codes are dense: the change that each of them has, none for a key that is in the file alone.
        changes = np.full(int(codes.max(initial=-1)) + 1, -1, np.int64)
        changes[codes[:new]] = np.arange(new)
        change = changes[codes[new:]]
        is_met = change >= 0
        if self._by is None or not is_met.any():
            return is_met
        at = np.flatnonzero(is_met)
        ours = self._rows.column(self._by).take(pa.array(change[at]))
        theirs = found.column(self._by).cast(self._kind(self._by)).take(pa.array(at))
        is_newer = np.asarray(pc.fill_null(pc.greater_equal(ours, theirs), True))
        self._stays[change[at[~is_newer]]] = False
        gives_way = np.zeros(old, bool)
        gives_way[at[is_newer]] = True
        return gives_way

    def _kind(self, name: str) -> pa.DataType:
        return self._rows.schema.field(name).type

    def _read(self, task: Any, names: Sequence[str] | None = None) -> pa.Table:
        schema = self._table.schema()
        scan = self._arrow.ArrowScan(
            table_metadata=self._table.metadata,
            io=self._table.io,
            projected_schema=schema if names is None else schema.select(*names),
            row_filter=self._expressions.AlwaysTrue(),
        )
        return scan.to_table([task])

    def _keep(self, rows: pa.Table) -> None:
        if not rows.num_rows:
            return
        if rows.nbytes >= _SMALL_BYTES:
            self._result.added += self._written(rows)
            return
        self._held.append(rows.cast(self._rows.schema))
        if sum(held.nbytes for held in self._held) >= _HELD_BYTES_MAX:
            self._flush()

    def _flush(self) -> None:
        if self._held:
            self._result.added += self._written(pa.concat_tables(self._held))
        self._held = []

    def _written(self, rows: pa.Table) -> Iterator[Any]:
        # Writes as the table itself does: with its partitions, field ids and file sizes.
        files: Iterator[Any] = self._arrow._dataframe_to_data_files(
            table_metadata=self._table.metadata,
            df=rows,
            io=self._table.io,
            write_uuid=self._writes,
            counter=self._count,
        )
        return files


def _is_ordered(kind: pa.DataType) -> bool:
    """Whether files are left out by their least and greatest value of such a column."""
    checks = pa.types.is_integer, pa.types.is_string, pa.types.is_large_string, pa.types.is_date
    return any(check(kind) for check in checks)
