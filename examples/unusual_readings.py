"""Sensors whose reading jumps: a keyed function with state of its own, called with one sensor at a time.

    penstock run examples/unusual_readings.py:pipeline --checkpoints /tmp/readings

The state of a sensor is the mean of its readings so far and their number. A reading far off that mean is printed.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from penstock import ConsoleSink, GeneratorSource, KeyedContext, KeyedFunction, Pipeline

SENSORS = 20
JUMP_EVERY = 1_999


def readings(start: int, count: int) -> pa.RecordBatch:
    numbers = np.arange(start, start + count)
    level = 20.0 + numbers % SENSORS + np.sin(numbers / 50)
    is_jump = numbers % JUMP_EVERY == JUMP_EVERY - 1
    return pa.record_batch({"sensor": numbers % SENSORS, "value": np.where(is_jump, level + 30, level)})


class Jumps(KeyedFunction):
    """Emits readings that are more than ten off the mean of their sensor."""

    def open(self, context: KeyedContext) -> None:
        self.mean = context.value("mean", "mean double, count bigint")

    def process(self, key: tuple[Any, ...], rows: list[dict[str, Any]], context: KeyedContext) -> Any:
        mean, count = self.mean.get() or (rows[0]["value"], 0)
        for row in rows:
            if count and abs(row["value"] - mean) > 10:
                yield {"sensor": key[0], "value": round(row["value"], 2), "mean": round(mean, 2)}
            else:
                count += 1
                mean += (row["value"] - mean) / count
        self.mean.update((mean, count))


def jumps(rows: int | None = None, rows_per_second: float | None = 500) -> Pipeline:
    """The pipeline; with `rows` it ends after so many readings."""
    pipeline = Pipeline("unusual readings")
    (
        pipeline.source(GeneratorSource(readings, rows=rows, rows_per_second=rows_per_second), name="readings")
        .key_by("sensor")
        .process(Jumps(), format="rows", schema="sensor bigint, value double, mean double", name="jumps")
        .sink(ConsoleSink(), name="console")
    )
    return pipeline


pipeline = jumps()
