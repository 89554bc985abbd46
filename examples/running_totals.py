"""Running totals of an endless stream of orders, by customer: state that survives whatever happens to its workers.

    penstock run examples/running_totals.py:pipeline --checkpoints /tmp/totals --set checkpoint_interval=2

With every checkpoint a few of the new totals are printed. Stop it with Ctrl-C and start it again: the totals go on
where they were. Kill it with `kill -9`: the same.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from penstock import ConsoleSink, GeneratorSource, Pipeline

CUSTOMERS = 100


def orders(start: int, count: int) -> pa.RecordBatch:
    """The orders of these numbers. A function of the numbers alone, so that they can be had again after a failure."""
    numbers = np.arange(start, start + count)
    return pa.record_batch({"customer": numbers * 7919 % CUSTOMERS, "amount": numbers % 50 + 1})


def totals(rows: int | None = None, rows_per_second: float | None = 1_000) -> Pipeline:
    """The pipeline; with `rows` it ends after so many orders."""
    pipeline = Pipeline("running totals")
    (
        pipeline.source(GeneratorSource(orders, rows=rows, splits=2, rows_per_second=rows_per_second), name="orders")
        .key_by("customer")
        .aggregate(total=("sum", "amount"), orders="count", name="totals")
        .sink(ConsoleSink(rows=3), name="console")
    )
    return pipeline


pipeline = totals()
