"""Tables that users hand over, whatever they are made of."""

from __future__ import annotations

from typing import Any

import pyarrow as pa


def table_of(given: Any) -> pa.Table | None:
    """A table of Arrow, from one, from a batch, or from a DataFrame of pandas or Spark; None for anything else."""
    if hasattr(given, "toArrow"):
        given = given.toArrow()
    if isinstance(given, pa.RecordBatch):
        given = pa.Table.from_batches([given])
    if not isinstance(given, pa.Table) and hasattr(given, "iloc"):
        given = pa.Table.from_pandas(given, preserve_index=False)
    return given.replace_schema_metadata(None) if isinstance(given, pa.Table) else None
