"""Views of pages by minute of event time: records that come out of order, and windows that are emitted once.

    penstock run examples/page_views.py:pipeline --checkpoints /tmp/views --set checkpoint_interval=2

Event time runs sixty times as fast as the clock on the wall, so every second a minute is complete and its counts are
printed with the next checkpoint. Views come up to 20 seconds late; one in a thousand comes a quarter of an hour late,
when its windows have been emitted. Those are left out and counted: "rows too late" in the progress display.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from penstock import ConsoleSink, GeneratorSource, Pipeline

PAGES = np.array(["/", "/docs", "/blog", "/download", "/about"])
VIEWS_PER_MINUTE = 1_000
VERY_LATE_EVERY = 1_000
MAX_DELAY_MS, VERY_LATE_MS = 20_000, 15 * 60_000
BEGIN_MS = 1_750_000_020_000  # a full minute


def views(start: int, count: int) -> pa.RecordBatch:
    """The views of these numbers, by the time at which they come; each has happened some time before."""
    numbers = np.arange(start, start + count)
    delays = numbers * 7919 % MAX_DELAY_MS
    delays[numbers % VERY_LATE_EVERY == VERY_LATE_EVERY - 1] = VERY_LATE_MS
    at = BEGIN_MS + MAX_DELAY_MS + numbers * 60_000 // VIEWS_PER_MINUTE - delays
    return pa.record_batch({"page": PAGES[numbers * 31 % len(PAGES)], "at": pa.array(at, pa.timestamp("ms", "UTC"))})


def by_minute(rows: int | None = None, rows_per_second: float | None = VIEWS_PER_MINUTE) -> Pipeline:
    """The pipeline; with `rows` it ends after so many views."""
    pipeline = Pipeline("page views")
    (
        pipeline.source(GeneratorSource(views, rows=rows, rows_per_second=rows_per_second), name="views")
        .with_watermark("at", "20 s", name="times")
        .key_by("page")
        .window("5 min", every="1 min")
        .count("views", name="by minute")
        .sink(ConsoleSink(rows=5), name="console")
    )
    return pipeline


pipeline = by_minute()
