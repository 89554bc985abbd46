"""Metrics of checkpoints, by subtask: those of the newest one that the subtask has acknowledged.

They have the name of the first operator of the subtask. `Job.checkpoints` has the same numbers of the last checkpoints.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from operator import attrgetter

from penstock.metrics.metric import Over, gauge
from penstock.metrics.registry import SubtaskMetrics
from penstock.protocol.manifest import CheckpointStats

START_DELAY = gauge(
    "checkpoint_start_delay_ms",
    "ms",
    "newest checkpoint: age of its barrier when the subtask first heard of it; greatest over subtasks",
    Over.GREATEST,
)
ALIGNMENT = gauge(
    "checkpoint_alignment_time_ms",
    "ms",
    "newest checkpoint: from then until the snapshot; greatest over subtasks",
    Over.GREATEST,
)
SYNCHRONOUS = gauge(
    "checkpoint_sync_time_ms",
    "ms",
    "newest checkpoint: time for which processing stood still; greatest over subtasks",
    Over.GREATEST,
)
ASYNCHRONOUS = gauge(
    "checkpoint_async_time_ms",
    "ms",
    "newest checkpoint: from the snapshot until it was durable; greatest over subtasks",
    Over.GREATEST,
)
STATE_BYTES = gauge(
    "state_size",
    "bytes",
    "state of the subtask, encoded, in the newest checkpoint; until the first one, in the checkpoint that was restored",
)
INFLIGHT_BYTES = gauge(
    "checkpoint_inflight_size", "bytes", "records in flight that the newest checkpoint has captured, encoded"
)

_FIELDS = (
    (START_DELAY, attrgetter("start_delay_ms")),
    (ALIGNMENT, attrgetter("alignment_ms")),
    (SYNCHRONOUS, attrgetter("synchronous_ms")),
    (ASYNCHRONOUS, attrgetter("asynchronous_ms")),
    (INFLIGHT_BYTES, attrgetter("inflight_bytes")),
)
_STATE = attrgetter("state_bytes")


def observe_checkpoints(
    metrics: SubtaskMetrics, newest: Callable[[], CheckpointStats | None], restored_bytes: Callable[[], int | None]
) -> None:
    """Report the numbers of the checkpoint that `newest` returns; None before the first.

    The state is known before that: `restored_bytes` returns its size once it is restored, and 0 without a checkpoint.
    """
    for metric, field in _FIELDS:
        metrics.observe(metric, partial(_read, newest, field))

    def state_bytes() -> int | None:
        found = _read(newest, _STATE)
        return restored_bytes() if found is None else found

    metrics.observe(STATE_BYTES, state_bytes)


def _read(newest: Callable[[], CheckpointStats | None], field: Callable[[CheckpointStats], int]) -> int | None:
    figures = newest()
    return None if figures is None else field(figures)
