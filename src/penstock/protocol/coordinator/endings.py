"""The ends that an attempt, or the coordinator itself, can come to, and what each of them brings with it.

An attempt is declined, or completed and then concluded once its output is published. While its manifest may or may
not exist only the store can decide. The coordinator stops for good in three ways: finished, failed or fenced.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from penstock.ids import NO_CHECKPOINT
from penstock.protocol.commit import ManifestDurable, decide_commit
from penstock.protocol.coordinator.events import (
    Action,
    AnnounceCompleted,
    AnswerRequest,
    Commit,
    FailJob,
    Finish,
    Prune,
    RequestCompleted,
    RequestDeclined,
    RequestResult,
    SendBarrier,
    Step,
    StopFenced,
    WriteTombstone,
)
from penstock.protocol.coordinator.state import (
    PendingCheckpoint,
    Publishing,
    Request,
    Retry,
    State,
    Stop,
    Writing,
    WritingTombstone,
)
from penstock.protocol.declines import DeclineReason
from penstock.protocol.history import CheckpointRecord, Status, stats_of
from penstock.protocol.manifest import Manifest, SubtaskReport
from penstock.protocol.ownership import Tombstone
from penstock.protocol.retention import RetentionBound


def give_up_manifest(state: State, writing: Writing, reason: DeclineReason, detail: str, now_ms: int) -> Step:
    """Give up an attempt whose manifest may exist: the store decides, by what it creates first."""
    writing_tombstone = WritingTombstone(writing.pending, writing.manifest, reason, detail, Retry(now_ms))
    return replace(state, deciding=writing_tombstone), (tombstone(writing.manifest),)


def tombstone(manifest: Manifest) -> WriteTombstone:
    return WriteTombstone(Tombstone(manifest.checkpoint, manifest.generation))


def complete(state: State, pending: PendingCheckpoint, manifest: Manifest, now_ms: int) -> Step:
    """The manifest is durable: the checkpoint exists, whatever anybody had wanted (I3)."""
    checkpoint = manifest.checkpoint
    record = _record(pending, Status.COMPLETED, manifest.reports, now_ms)
    state = replace(_remember(state, record), deciding=None, newest=checkpoint, failures=0, failures_in_a_row=0)
    permit = decide_commit(manifest, ManifestDurable(checkpoint, manifest.generation), state.generation)
    announce = AnnounceCompleted(checkpoint)
    if permit is None:
        state, actions = conclude(state, pending.requests, now_ms, is_final=manifest.is_final)
        return state, (announce, *actions)
    retry = Retry(now_ms, timeout_ms=state.policy.commit_timeout_ms)
    publishing = Publishing(permit, retry, pending.requests, manifest.is_final)
    return replace(state, publishing=publishing), (announce, Commit(permit))


def conclude(state: State, requests: tuple[Request, ...], now_ms: int, *, is_final: bool) -> Step:
    """The newest checkpoint is durable and published: what follows from that."""
    replies = answers(requests, RequestCompleted(state.newest))
    in_use = frozenset({state.restored} - {NO_CHECKPOINT})
    policy = state.policy
    bound = RetentionBound(state.generation, state.newest, policy.retained, in_use, state.first, policy.stops_retained)
    prune = Prune(bound)
    # The backoff may be that of the next one already, which has failed meanwhile.
    state = replace(state, pause_until_ms=max(now_ms + state.policy.pause_ms_min, state.backoff_until_ms))
    if not is_final:
        return state, (*replies, prune)
    state, actions = stop_for(state, Stop.FINISHED, Finish(state.newest), f"finished with checkpoint {state.newest}")
    return state, (*replies, prune, *actions)


def decline(
    state: State,
    pending: PendingCheckpoint,
    reports: tuple[SubtaskReport, ...],
    reason: DeclineReason,
    detail: str,
    now_ms: int,
) -> Step:
    """End an attempt that certainly has no manifest, and that the caller has taken out of `state`."""
    record = _record(pending, Status.DECLINED, reports, now_ms, reason, detail)
    failures_in_a_row = state.failures_in_a_row + 1
    backoff_ms = state.policy.backoff_after(failures_in_a_row)
    state = replace(
        _remember(state, record),
        failures=state.failures + reason.is_counted,
        failures_in_a_row=failures_in_a_row,
        due_at_ms=_due_after_decline(state, pending, reason, now_ms),
        pause_until_ms=now_ms + max(state.policy.pause_ms_min, backoff_ms),
        backoff_until_ms=now_ms + backoff_ms,
    )
    actions = (SendBarrier(pending.barrier.cancelled()), *answers(pending.requests, RequestDeclined(reason, detail)))
    if state.failures <= state.policy.failures_tolerable:
        return state, actions
    why = f"{state.failures} checkpoints in a row failed, the last one, {record.checkpoint}: {reason.value} ({detail})"
    state, more = stop_for(state, Stop.FAILED, FailJob(why), why)
    return state, (*actions, *more)


def _due_after_decline(state: State, pending: PendingCheckpoint, reason: DeclineReason, now_ms: int) -> int | None:
    """A periodic checkpoint that came at a bad moment is tried again after the backoff, not after a whole interval."""
    is_bad_moment = reason in (DeclineReason.SUBTASK_NOT_READY, DeclineReason.SUPERSEDED)
    return now_ms if is_bad_moment and state.due_at_ms is not None and not pending.requests else state.due_at_ms


def fenced(state: State, why: str) -> Step:
    """The directory has another owner; nothing of this generation may change it any more (I6)."""
    reason = f"{why}: a newer generation has taken over, and generation {state.generation} must stop"
    return stop_for(state, Stop.FENCED, StopFenced(reason), reason)


def stop_for(state: State, how: Stop, order: Action, detail: str) -> Step:
    """Nothing is decided any more; whoever still waits for an answer gets one, after the order itself."""
    unanswered = (
        *(state.deciding.pending.requests if state.deciding else ()),
        *(state.collecting.pending.requests if state.collecting else ()),
        *(state.publishing.requests if state.publishing else ()),
        *state.queue,
    )
    state = replace(
        state, stop=how, collecting=None, deciding=None, publishing=None, queue=(), reserving=None, wake_ups_ms=()
    )
    return state, (order, *answers(unanswered, RequestDeclined(DeclineReason.DRAINED, detail)))


def answers(requests: Iterable[Request], result: RequestResult) -> tuple[Action, ...]:
    return tuple(AnswerRequest(request.id, result) for request in requests)


def _remember(state: State, record: CheckpointRecord) -> State:
    # By id, not by their ends: one can be declined while the manifest of the one before is written.
    history = sorted((*state.history, record), key=lambda each: each.checkpoint)
    return replace(state, history=tuple(history[-state.policy.history_max :]))


def _record(
    pending: PendingCheckpoint,
    status: Status,
    reports: tuple[SubtaskReport, ...],
    now_ms: int,
    reason: DeclineReason | None = None,
    detail: str = "",
) -> CheckpointRecord:
    barrier = pending.barrier
    return CheckpointRecord(
        barrier.checkpoint,
        barrier.flags,
        status,
        barrier.triggered_at_ms,
        now_ms,
        stats_of(reports),
        reason,
        detail,
    )
