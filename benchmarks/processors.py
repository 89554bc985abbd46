"""The processors that Penstock and Spark both run as they are: for `transformWithState`, with value and map state.

Imports nothing of Penstock: the process of a peer reads this file too.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pandas as pd
from pyspark.sql import Row
from pyspark.sql.streaming import StatefulProcessor, StatefulProcessorHandle

OUTPUT = "k bigint, rows bigint, total double"
BUCKETS = 8


class _Totals(StatefulProcessor):
    """Rows and their sum as a value, and rows by bucket as a map, of which one entry is written by each call."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self.total = handle.getValueState("total", "rows bigint, total double")
        self.buckets = handle.getMapState("buckets", "bucket bigint", "rows bigint")

    def add(self, rows: int, total: float, bucket: int) -> tuple[int, float]:
        before = self.total.get() if self.total.exists() else (0, 0.0)
        after = (before[0] + rows, before[1] + total)
        self.total.update(after)
        counted = self.buckets.getValue((bucket,))[0] if self.buckets.containsKey((bucket,)) else 0
        self.buckets.updateValue((bucket,), (counted + rows,))
        return after

    def close(self) -> None:
        pass


class PandasTotals(_Totals):
    def handleInputRows(self, key: Any, rows: Iterator[pd.DataFrame], timerValues: Any) -> Iterator[pd.DataFrame]:
        count, total, bucket = 0, 0.0, 0
        for frame in rows:
            count += len(frame)
            total += float(frame["v"].sum())
            bucket = int(frame["n"].iloc[-1]) % BUCKETS
        after = self.add(count, total, bucket)
        yield pd.DataFrame({"k": [key[0]], "rows": [after[0]], "total": [after[1]]})


class RowTotals(_Totals):
    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        count, total, bucket = 0, 0.0, 0
        for row in rows:
            count += 1
            total += row["v"]
            bucket = row["n"] % BUCKETS
        after = self.add(count, total, bucket)
        yield Row(k=key[0], rows=after[0], total=after[1])
