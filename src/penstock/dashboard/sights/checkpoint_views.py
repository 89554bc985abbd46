"""Checkpoints as clients see them, and the cure of each reason for which one can fail."""

from __future__ import annotations

from penstock.dashboard.views import CheckpointDetail, CheckpointSubtask, CheckpointView, Phases
from penstock.driver.observation.checkpoint_history import EndedCheckpoint, ended_checkpoint
from penstock.graph.physical import PhysicalPlan
from penstock.protocol.declines import DeclineReason
from penstock.protocol.history import CheckpointRecord, SubtaskStats

_CURES = {
    DeclineReason.SUBTASK_NOT_READY: "None needed: the next checkpoint comes when all state is restored.",
    DeclineReason.SUPERSEDED: "None needed: a newer checkpoint has taken its place.",
    DeclineReason.CANCELLED: "None needed: it was called off, or its attempt has ended. Recoveries say why.",
    DeclineReason.DRAINED: "None needed: the pipeline stops.",
    DeclineReason.EXPIRED: (
        "Look for the subtask that has not acknowledged. If it is held up by backpressure, lower alignment_timeout or "
        "set checkpoint_mode to unaligned; if its state is large or the store slow, raise checkpoint_timeout."
    ),
    DeclineReason.CAPTURE_OVERFLOW: "Raise inflight_size_max, or lower channel_size, so that less is in flight.",
    DeclineReason.LATE_BARRIER_TIMEOUT: (
        "A sender has been silent for a minute: look for a call of user code that takes long, in the profile of its "
        "worker."
    ),
    DeclineReason.SNAPSHOT_FAILED: "Mend the error in the operator that the message names.",
    DeclineReason.STORAGE_FAILED: "Look at the store: free space, permissions, network. Checkpoints are tried again.",
    DeclineReason.MANIFEST_FAILED: "Look at the store: free space, permissions, network. Checkpoints are tried again.",
}


def cure_of(reason: str | None) -> str | None:
    """The cure for a declined checkpoint, by the name of the reason."""
    return None if reason is None else _CURES.get(DeclineReason[reason])


def ended_view(ended: EndedCheckpoint, num_subtasks: int) -> CheckpointView:
    return _view(ended, "completed" if ended.is_completed else "failed", num_subtasks)


def under_way_view(record: CheckpointRecord, num_subtasks: int) -> CheckpointView:
    return _view(ended_checkpoint(record), "in_progress", num_subtasks)


def _view(ended: EndedCheckpoint, status: str, num_subtasks: int) -> CheckpointView:
    kind = "savepoint" if ended.is_savepoint else "unaligned" if ended.is_unaligned else "aligned"
    reason = None if ended.reason is None else DeclineReason[ended.reason].value
    message = ended.detail if reason is None else f"{reason} ({ended.detail})" if ended.detail else reason
    return CheckpointView(
        id=ended.checkpoint,
        status=status,
        kind=kind,
        trigger_timestamp=ended.triggered_at_ms,
        end_to_end_duration=ended.duration_ms,
        checkpointed_size=ended.state_bytes + ended.inflight_bytes,
        inflight_bytes=ended.inflight_bytes,
        num_subtasks=num_subtasks,
        num_acknowledged_subtasks=ended.acknowledged,
        phases=Phases(
            start_delay=ended.start_delay_ms,
            alignment=ended.alignment_ms,
            sync=ended.synchronous_ms,
            asynchronous=ended.asynchronous_ms,
            manifest=ended.manifest_ms,
            commit=ended.commit_ms,
        ),
        failure_message=message or None,
        cure=cure_of(ended.reason),
    )


def detail_of(view: CheckpointView, subtasks: tuple[SubtaskStats, ...], plan: PhysicalPlan | None) -> CheckpointDetail:
    """A checkpoint with its subtasks. `plan` says on which workers they run."""
    figures = {field: getattr(view, field) for field in view.__struct_fields__}
    return CheckpointDetail(**figures, subtasks=tuple(_subtask(each, plan) for each in subtasks))


def _subtask(each: SubtaskStats, plan: PhysicalPlan | None) -> CheckpointSubtask:
    figures = each.figures
    return CheckpointSubtask(
        operator=each.subtask.chain,
        subtask=each.subtask.index,
        worker=None if plan is None else plan.worker_of(each.subtask),
        start_delay=figures.start_delay_ms,
        alignment=figures.alignment_ms,
        sync=figures.synchronous_ms,
        asynchronous=figures.asynchronous_ms,
        state_bytes=figures.state_bytes,
        inflight_bytes=figures.inflight_bytes,
    )
