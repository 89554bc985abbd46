"""Metrics that more than one room names: the driver makes the status of a pipeline from them.

All others are defined in the module that counts them.
"""

from __future__ import annotations

from dataclasses import replace

from penstock.metrics.metric import Metric, Over, counter, gauge, histogram

RECORDS_IN = counter(
    "num_records_in", "rows", "rows that the operator was given; of a source, rows that it has read", is_total=True
)
RECORDS_OUT = counter(
    "num_records_out", "rows", "rows that the operator has emitted, side outputs included", is_total=True
)
LATE = counter(
    "num_late_records_dropped",
    "rows",
    "rows that were dropped because their windows had been emitted when they came",
    is_total=True,
)
SKIPPED = counter(
    "num_records_skipped", "rows", 'rows that a source could not read and left out: `on_error="skip"`', is_total=True
)
FILES_SKIPPED = counter(
    "num_files_skipped",
    "files",
    "files that a source left out, from the place on where they could not be read",
    is_total=True,
)
DEAD_LETTERS = counter(
    "num_dead_letters", "rows", "rows that a source or a function has emitted to `dead_letters()`", is_total=True
)
DROPPED = counter(
    "num_records_dropped",
    "rows",
    'rows that were dropped because a function raised for them: `on_error="drop"`',
    is_total=True,
)
AHEAD = counter(
    "num_records_ahead",
    "rows",
    "rows whose event time was further ahead of the clock than `max_ahead` (a day by default)",
    is_total=True,
)
IS_BACK_PRESSURED = gauge(
    "is_back_pressured", "", "1 while a full output holds the subtask up, else 0; mean over subtasks", Over.MEAN
)

BACKLOG_ROWS = gauge(
    "source_backlog_rows", "rows", "rows of its splits that a source has not read, where it knows them"
)
BACKLOG_BYTES = gauge("source_backlog_bytes", "bytes", "bytes of its splits that a source has not read, likewise")
BACKLOG_SPLITS = gauge(
    "source_backlog_splits", "splits", "splits with an end, such as files, that a source has not read to it"
)

LATENCY = histogram(
    "source_latency_s",
    "time from a read of the source to the end of the operator's chain, by latency markers; `Sample.source` names the "
    "source",
)


def latency_from(source: str) -> Metric:
    """The latency from one source: a metric for itself, because a series has a name, an operator and a subtask."""
    return replace(LATENCY, name=f"{LATENCY.name}[{source}]")


TOTALS = {
    each.name: each for each in (RECORDS_IN, RECORDS_OUT, LATE, SKIPPED, FILES_SKIPPED, DEAD_LETTERS, AHEAD, DROPPED)
}
"""Those that a driver can show of a checkpoint before any worker has come up."""
