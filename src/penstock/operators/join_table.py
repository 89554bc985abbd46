"""The operator behind `Stream.join_table`: rows find the rows of a table that every subtask has in memory.

The table is no state: it comes with the operator, or from a function that is called in the background, once or every so
often. It is indexed in the background too, and no record is read before the first version is there. A newer version
takes the place of the old one between two batches. The rows of a key lie together in the order of the table, so a batch
is one look-up, and its matches are gathered in slices.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.columnar.gather import take, take_rows
from penstock.columnar.grouping import key_columns
from penstock.columnar.plain import plain_type
from penstock.columnar.tables import table_of
from penstock.errors import DataError, PenstockError, PipelineError
from penstock.metrics.metric import counter, gauge
from penstock.operators.contract import Emit
from penstock.operators.joined_columns import JoinedColumns
from penstock.operators.named import NamedOperator
from penstock.state.aggregates.columns import plain_key
from penstock.state.columns import with_nulls
from penstock.state.index.key_index import KeyIndex

_log = logging.getLogger("penstock")

Numbers: TypeAlias = npt.NDArray[np.intp]
TableFunction: TypeAlias = Callable[[], object]

_EMITTED_ROWS = 1 << 14
"""Rows of the result that are made at once, however many matches a key has."""

REFRESHED = counter("num_table_refreshes", "reads", "times that the table of `join_table` was read again")
REFRESH_FAILED = counter(
    "num_table_refreshes_failed", "reads", "reads of the table that failed: the table before stays in use"
)
TABLE_ROWS = gauge("table_rows", "rows", "rows of the table of `join_table`, in all subtasks together")


def as_table(call: str, given: object) -> pa.Table:
    """A table of Arrow, from one, from a batch, or from a DataFrame of pandas or Spark. Raises `PipelineError`."""
    table = table_of(given)
    if table is None:
        raise PipelineError(
            f"{call}: the table is {type(given).__name__}: it must be a pyarrow.Table, a DataFrame of pandas or Spark, "
            f"or a function that returns one"
        )
    return table


def require_table_columns(call: str, table: pa.Table, columns: Sequence[str]) -> None:
    missing = [column for column in columns if table.schema.names.count(column) != 1]
    if missing:
        raise PipelineError(
            f"{call}: the table has no column {', '.join(missing)}, or more than one; its columns are "
            f"{', '.join(table.schema.names)}"
        )


class LookupTable:
    """A table with an index. It does not change."""

    def __init__(self, table: pa.Table, key: Sequence[str]) -> None:
        whole = table.combine_chunks()
        batches = whole.to_batches()
        self.rows = batches[0] if batches else pa.RecordBatch.from_pylist([], schema=table.schema)
        if len(batches) > 1:
            raise DataError("a column of the table has more than 2 GiB: cast it to large_string or large_binary")
        self.kinds = [plain_type(self.rows.column(name).type) for name in key]
        self.key = tuple(key)
        self._index = KeyIndex(self.kinds)
        keys = [plain_key(self.rows.column(name), kind) for name, kind in zip(key, self.kinds, strict=True)]
        slots = self._index.slots_of(keys) if self.rows.num_rows else np.empty(0, dtype=np.intp)
        self._order: Numbers = np.argsort(slots, kind="stable")
        """The numbers of the rows, those of a key together."""
        self._ends: Numbers = np.cumsum(np.bincount(slots, minlength=self._index.size))

    def matches(self, keys: Sequence[pa.Array]) -> tuple[Numbers, Numbers]:
        """For each key, the number of rows that it has here, and the place of the first in the order of the keys."""
        slots = self._index.find(keys)
        if self._index.size == 0:
            return np.zeros(len(slots), dtype=np.intp), np.zeros(len(slots), dtype=np.intp)
        ends = self._ends.take(slots, mode="clip")
        starts = np.where(slots > 0, self._ends.take(slots - 1, mode="clip"), 0)
        return np.where(slots >= 0, ends - starts, 0), starts

    def row_numbers(self, places: Numbers) -> Numbers:
        return self._order.take(places)


class JoinTableOperator(NamedOperator):
    """Joins each batch with a table. `on` is a column of the stream for each column `key` of the table."""

    def __init__(
        self,
        table: pa.Table | TableFunction,
        on: Sequence[str],
        key: Sequence[str],
        *,
        keeps_unmatched: bool,
        suffix: str,
        refresh_ms: int | None,
    ) -> None:
        self.given = table
        self.on = tuple(on)
        self.key = tuple(key)
        self.keeps_unmatched = keeps_unmatched
        self.suffix = suffix
        self.refresh_ms = refresh_ms

    def setup(self) -> None:
        metrics = self.context.metrics
        self._refreshed, self._failed = metrics.counter(REFRESHED), metrics.counter(REFRESH_FAILED)
        self._table: LookupTable | None = None
        self._columns: JoinedColumns | None = None
        self._is_closed = False
        metrics.observe(TABLE_ROWS, lambda: None if self._table is None else self._table.rows.num_rows)

    @property
    def wants_input(self) -> bool:  # type: ignore[override]
        return self._table is not None

    def on_restored(self, emit: Emit) -> None:
        self.context.submit(self._read, self._on_first)

    def close(self) -> None:
        self._is_closed = True

    # --- the table ---

    def _read(self) -> LookupTable:
        """In the background."""
        given = self.given
        table = given if isinstance(given, pa.Table) else as_table("join_table", given())
        require_table_columns("join_table", table, self.key)
        return LookupTable(table, self.key)

    def _on_first(self, read: LookupTable | Exception) -> None:
        if isinstance(read, PenstockError):
            raise read
        if isinstance(read, Exception):
            raise self.failed("reading the table", read) from read
        self._table = read
        self._refresh_later()

    def _refresh_later(self) -> None:
        if self.refresh_ms is not None:
            self.context.call_at(self.context.now_ms() + self.refresh_ms, self._refresh)

    def _refresh(self) -> None:
        if not self._is_closed:
            self.context.submit(self._read, self._on_refreshed)

    def _on_refreshed(self, read: LookupTable | Exception) -> None:
        """On the mailbox thread, so between two batches."""
        assert self._table is not None
        schema = self._table.rows.schema
        if isinstance(read, LookupTable) and read.rows.schema != schema:
            read = DataError(
                f"the columns were {', '.join(schema.names)} with the types {schema.types}, and have changed"
            )
        if isinstance(read, LookupTable):
            self._table = read
            self._refreshed.add(1)
        else:
            self._failed.add(1)
            _log.warning(
                "operator '%s', subtask %d: the table could not be refreshed, so the previous one "
                "stays in use; the next attempt is in %d s: %s: %s",
                self.context.operator,
                self.context.subtask,
                (self.refresh_ms or 0) // 1000,
                type(read).__name__,
                read,
            )
        self._refresh_later()

    # --- records ---

    def work(self, batch: pa.RecordBatch, input_index: int, emit: Emit) -> None:
        table = self._table
        assert table is not None
        counts, starts = table.matches(self._keys_of(batch, table))
        if self._columns is None:
            self._columns = JoinedColumns(
                self.context.operator, batch.schema, table.rows.schema, table.key, self.suffix
            )
        for rows, places, is_match in _pairs(counts, starts, self.keeps_unmatched):
            emit(self._joined(self._columns, batch, table, rows, places, is_match))

    def _keys_of(self, batch: pa.RecordBatch, table: LookupTable) -> list[pa.Array]:
        keys = []
        for column, kind, name in zip(
            key_columns(batch, self.on, self.context.operator), table.kinds, table.key, strict=True
        ):
            if plain_type(column.type) != kind:
                raise DataError(
                    f"operator '{self.context.operator}': a key is {column.type} in the stream, and '{name}' of the "
                    f"table is {kind}: cast one of them"
                )
            keys.append(plain_key(column, kind))
        return keys

    def _joined(
        self,
        columns: JoinedColumns,
        batch: pa.RecordBatch,
        table: LookupTable,
        rows: Numbers,
        places: Numbers,
        is_match: npt.NDArray[np.bool_],
    ) -> pa.RecordBatch:
        nulls = None if is_match.all() else ~is_match
        if table.rows.num_rows == 0:
            right = [pa.nulls(len(rows), kind) for kind in columns.types]
        else:
            numbers = table.row_numbers(places)
            right = [with_nulls(take(table.rows.column(name), numbers), nulls) for name in columns.taken]
        return columns.batch(take_rows(batch, rows), right)


def _pairs(
    counts: Numbers, starts: Numbers, keeps_unmatched: bool
) -> Iterator[tuple[Numbers, Numbers, npt.NDArray[np.bool_]]]:
    """In slices: the row of the batch, the place in the table, and whether there is one."""
    wanted = np.maximum(counts, 1) if keeps_unmatched else counts
    ends = np.cumsum(wanted)
    total = int(ends[-1]) if len(ends) else 0
    for first in range(0, total, _EMITTED_ROWS):
        numbers = np.arange(first, min(first + _EMITTED_ROWS, total))
        rows = np.searchsorted(ends, numbers, side="right")
        is_match = counts[rows] > 0
        places = np.where(is_match, starts[rows] + numbers - (ends[rows] - wanted[rows]), 0)
        yield rows, places, is_match
