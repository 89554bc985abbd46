"""A changelog: a stream whose records change a result, and say so in the column `op`.

There are two kinds. A *retracting* changelog has `insert` and `delete` alone: a row that changes is deleted as it was,
and inserted as it is. Everything that Penstock computes is of this kind, so that an aggregate behind it can take back
every value. An *upserting* changelog, which `to_upsert` makes, has one record for each key: `insert`, `update` or
`delete`.
"""

from __future__ import annotations

from typing import Final, Literal, TypeAlias

import pyarrow as pa

OP: Final = "op"
"""The column of the operation."""

INSERT: Final = "insert"
UPDATE: Final = "update"
DELETE: Final = "delete"

Changelog: TypeAlias = Literal["retracting", "upserting"]

RETRACTABLE: Final = frozenset({"sum", "count", "mean"})
"""The aggregates from which a value can be taken back without knowing all others."""


def changelog_of(deleted: pa.RecordBatch, inserted: pa.RecordBatch) -> pa.RecordBatch | None:
    """Rows with the column `op`; None if there are none."""
    parts = [
        rows.append_column(OP, pa.repeat(pa.scalar(op, pa.string()), rows.num_rows))
        for op, rows in ((DELETE, deleted), (INSERT, inserted))
        if rows.num_rows
    ]
    return pa.concat_batches(parts) if parts else None
