"""The newest row of each key, of a stream of updates: written by file sinks with `upsert=`, read with `read_latest`.

A file cannot be changed once it is published, so a table of current values is made when it is read: of all rows of a
key the one with the highest sequence counts. A sink with `upsert=` writes no more of a key than one row for each
checkpoint and subtask.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from penstock.columnar.schemas.schema_diff import differences
from penstock.connectors.sink import Prepared, SinkWriter
from penstock.errors import DataError, PipelineError

_HELD_ROWS = 1 << 16
"""Rows that wait until the newest ones are looked for among them."""
_PLACE = "place"


def read_latest(
    path: str | os.PathLike[str], *, key: str | Sequence[str], by: str, format: str = "parquet"
) -> pa.Table:
    """The current row of each key in the output of a running aggregate: the one that is highest in the column `by`.

        totals = stream.key_by("customer").aggregate(total=("sum", "amount"), sequence="version")
        totals.sink(ParquetSink("/data/totals", upsert="customer", by="version"))
        …
        read_latest("/data/totals", key="customer", by="version")

    The same in Spark: `SELECT customer, max_by(total, version) AS total FROM parquet.`/data/totals` GROUP BY customer`.

    Example:

        totals = orders.key_by("customer").aggregate(total=("sum", "amount"), sequence="version")
        totals.sink(ParquetSink("totals", upsert="customer", by="version"))
        run(pipeline)
        newest = read_latest("totals", key="customer", by="version")
        assert sorted(newest["total"].to_pylist()) == [20, 40]
    """
    import pyarrow.dataset

    table = pyarrow.dataset.dataset(os.fspath(path), format=format).to_table()
    return latest_rows(table, columns_of(key), by)


def columns_of(key: str | Sequence[str]) -> tuple[str, ...]:
    return (key,) if isinstance(key, str) else tuple(key)


def latest_rows(table: pa.Table, key: Sequence[str], by: str) -> pa.Table:
    """Of each key the row with the highest value in `by`, of equal ones the last; in the order of the table."""
    _check(table, key, by)
    order = np.argsort(table.column(by).to_numpy(), kind="stable")
    places = np.empty(len(order), dtype=np.int64)
    places[order] = np.arange(len(order))
    # Unusual names: a column of the key may be called as the one that is added.
    names = [f"key {number}" for number in range(len(key))]
    columns = [*(table.column(name) for name in key), pa.array(places)]
    groups = pa.table(columns, names=[*names, _PLACE]).group_by(names).aggregate([(_PLACE, "max")])
    rows = np.sort(order[groups.column(f"{_PLACE}_max").to_numpy()])
    return table.take(rows)


def _check(rows: pa.Table | pa.RecordBatch, key: Sequence[str], by: str) -> None:
    missing = [name for name in (*key, by) if rows.schema.names.count(name) != 1]
    if missing:
        known = ", ".join(rows.schema.names) or "none"
        raise DataError(f"upsert: column '{missing[0]}' not found, or ambiguous; the columns are: {known}")
    if rows.column(by).null_count:
        raise DataError(
            f"upsert: the column '{by}' is null in {rows.column(by).null_count} rows, so their order "
            "is unknown: filter them out in front of the sink"
        )


class LatestWriter(SinkWriter):
    """Holds back all but the newest row of each key until the checkpoint, and then writes them with another writer."""

    def __init__(self, writer: SinkWriter, key: Sequence[str], by: str) -> None:
        self._writer = writer
        self._key = tuple(key)
        self._by = by
        self._held: list[pa.RecordBatch] = []
        self._rows = 0
        self._rows_max = _HELD_ROWS

    def write(self, batch: pa.RecordBatch) -> None:
        _check(batch, self._key, self._by)
        said = differences(self._held[0].schema, batch.schema) if self._held else ""
        if said:
            raise DataError(
                f"upsert: the schema changed from one batch to the next: {said}. Cast to one type in front of the sink"
            )
        self._held.append(batch)
        self._rows += batch.num_rows
        if self._rows > self._rows_max:
            self._compact()
            # Twice what is left: so the cost of looking stays in proportion to what comes.
            self._rows_max = max(_HELD_ROWS, 2 * self._rows)

    def prepare(self) -> Prepared:
        self._compact()
        for batch in self._held:
            self._writer.write(batch)
        self._held, self._rows, self._rows_max = [], 0, _HELD_ROWS
        return self._writer.prepare()

    def close(self) -> None:
        self._writer.close()

    def _compact(self) -> None:
        if not self._held:
            return
        schema = self._held[0].schema
        same = [pa.RecordBatch.from_arrays(batch.columns, schema=schema) for batch in self._held]
        self._held = latest_rows(pa.Table.from_batches(same), self._key, self._by).to_batches()
        self._rows = sum(batch.num_rows for batch in self._held)


def check_upsert(sink: str, upsert: str | Sequence[str] | None, by: str | None) -> tuple[str, ...]:
    """The key columns, none if there is no `upsert`. Raises `PipelineError`."""
    if upsert is None:
        if by is not None:
            raise PipelineError(f"{sink}: by={by!r} orders the rows of a key: name its columns with upsert=…")
        return ()
    if not isinstance(by, str) or not by:
        raise PipelineError(
            f'{sink}: upsert needs the column that says which row of a key is newer: by="version", made by '
            f'aggregate(…, sequence="version")'
        )
    key = columns_of(upsert)
    if not key or not all(key):
        raise PipelineError(f"{sink}: upsert takes the key, one column or a list of them, not {upsert!r}")
    return key
