"""Metrics of a pipeline as a whole, which the driver knows itself. Their operator is empty."""

from __future__ import annotations

from penstock.driver.supervisor import Supervisor
from penstock.ids import OperatorName
from penstock.metrics.metric import counter, gauge
from penstock.metrics.samples import Sample

_RESTARTS = counter("num_restarts", "", "restarts of this job")
_COMPLETED = counter("number_of_completed_checkpoints", "", "checkpoints that this job has completed")
_FAILED = counter("number_of_failed_checkpoints", "", "checkpoints of this job that were declined")
_NEWEST = gauge("last_completed_checkpoint_id", "", "id of the newest completed checkpoint of this job")
_DURATION = gauge(
    "last_checkpoint_duration_ms", "ms", "newest completed checkpoint: from its trigger until it was durable"
)
_SIZE = gauge(
    "last_checkpoint_size", "bytes", "newest completed checkpoint: its state and its records in flight, encoded"
)


def job_samples(supervisor: Supervisor) -> list[Sample]:
    """The metrics of the whole pipeline as they are now. For any thread."""
    seen = supervisor.observations
    completed = [record for record in supervisor.history if record.is_completed]
    found = [
        (_RESTARTS, supervisor.restarts),
        (_COMPLETED, seen.completed),
        (_FAILED, seen.declined),
    ]
    if completed:
        newest = completed[-1]
        found += [
            (_NEWEST, int(newest.checkpoint)),
            (_DURATION, newest.duration_ms),
            (_SIZE, newest.state_bytes + newest.inflight_bytes),
        ]
    return [Sample(metric, OperatorName(""), 0, value) for metric, value in found]
