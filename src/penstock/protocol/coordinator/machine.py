"""The coordinator: decides when a checkpoint begins, whether it completes, and what follows from that.

    trigger--> Collecting --all acknowledged--> Writing --manifest durable--> Publishing --committed--> over
                   |                               |                              ^
                   | declined, expired, cancelled  | failed, expired, cancelled   | the manifest was there
                   v                               v                              |
                 over <-- tombstone created -- WritingTombstone ---------------'

One checkpoint at a time is in the pipeline, in every mode. A second one would capture the same queues again, and its
barriers would wait behind the first one's; a checkpoint that is slow is made faster by letting it overtake records, not
by starting another. But once everybody has acknowledged, the workers are done with it: while its manifest is written,
the next one may be collected, if the manifest leaves nothing to publish. Manifests are written one after the other,
each when the outcome of the one before is known, and none before that one's output is published: so only the newest
checkpoint can be in doubt after a crash (`protocol.commit`).

Rules:

- An id is used once, for one attempt, and reserved in the store before (I5). Ids are reserved in blocks, the next one
  when the last id in hand is taken, so that a trigger rarely waits for the store. An attempt that ended leaves the
  coordinator as ready for the next one as it was for the first.
- An acknowledgement counts if it is of this generation, of the attempt that is collecting, from a member, and the first
  one from it (I12). All else is `Refused` and changes nothing.
- Time passes by `Ticked` alone. Expiry does not wait for a report that may never come.
- Once the manifest may have been written, nobody here knows whether the checkpoint exists. Giving it up then means
  creating a tombstone in the manifest's place: the store decides which of the two there is (I3, I4).
- Triggers are decided in one place, `coordinator_trigger`, after every event.

Pure: no clock, I/O or logging. The runtime executes the returned actions in order.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import assert_never

from penstock.errors import ProtocolViolation
from penstock.ids import NO_CHECKPOINT, CheckpointId, Generation, SubtaskId
from penstock.protocol.barrier import Barrier
from penstock.protocol.commit import CommitPermit
from penstock.protocol.coordinator.endings import (
    answers,
    complete,
    conclude,
    decline,
    fenced,
    give_up_manifest,
    stop_for,
    tombstone,
)
from penstock.protocol.coordinator.events import (
    Acknowledged,
    Action,
    AllReady,
    AnswerRequest,
    CancelRequested,
    CheckpointRequested,
    Commit,
    CommitFailed,
    Committed,
    Declined,
    Event,
    FailJob,
    IdsReserved,
    InputEnded,
    ManifestFailed,
    ManifestWritten,
    OutcomeFound,
    OwnershipLost,
    Refused,
    RequestDeclined,
    ReservationFailed,
    ReservationLost,
    ReserveIds,
    Step,
    Ticked,
    TombstoneFailed,
    TombstoneWritten,
    WriteManifest,
)
from penstock.protocol.coordinator.state import (
    Collecting,
    Deciding,
    Policy,
    Publishing,
    Reserved,
    Retry,
    State,
    Stop,
    Writing,
    WritingTombstone,
)
from penstock.protocol.coordinator.trigger import after_interval, order_wake_up, trigger_if_due
from penstock.protocol.declines import DeclineReason
from penstock.protocol.manifest import Manifest, PipelineShape, SubtaskReport
from penstock.protocol.ownership import Outcome, Reservation
from penstock.protocol.under_way import named

PERMANENT_FAILURES_MAX = 3
"""A commit that fails as often as this with errors that do not pass fails the attempt."""


def start(
    policy: Policy,
    generation: Generation,
    shape: PipelineShape,
    members: frozenset[SubtaskId],
    first: CheckpointId,
    *,
    restored: CheckpointId = NO_CHECKPOINT,
    recommit: CommitPermit | None = None,
    token: str = "",
    batch_offset: int = 0,
    older: tuple[CheckpointId, ...] = (),
    now_ms: int = 0,
) -> Step:
    """The coordinator of a generation that has taken over; `first` is the id it reserved in doing so, under `token`.

    `recommit` is what `decide_recommit` said about the restored checkpoint: nothing is triggered before it is done.
    `batch_offset` is that of the restored checkpoint, `older` are the checkpoints that the takeover found.
    """
    if not members:
        raise ProtocolViolation("a checkpoint without members would be complete before it began")
    reserved = Reserved(Reservation(first, generation, token=token), first, now_ms)
    state = State(
        policy,
        generation,
        shape,
        members,
        reserved,
        restored=restored,
        newest=restored,
        batch_offset=batch_offset,
        first=first,
        older=older,
    )
    if recommit is None:
        return state, ()
    state = replace(state, publishing=Publishing(recommit, Retry(now_ms, timeout_ms=policy.commit_timeout_ms)))
    return order_wake_up(state, (Commit(recommit),))


def step(state: State, event: Event) -> Step:
    """Advance by one event, without mutating `state`. After the end nothing changes any more."""
    if state.stop is not None:
        return state, _after_the_end(state.stop, event)
    state, actions = _handle(state, event)
    state, more = _in_turn(state, event.now_ms, _write_if_its_turn, trigger_if_due)
    return order_wake_up(state, (*actions, *more))


def _in_turn(state: State, now_ms: int, *decisions: Callable[[State, int], Step]) -> Step:
    actions: tuple[Action, ...] = ()
    for decide in decisions:
        state, more = decide(state, now_ms)
        actions += more
    return state, actions


def _handle(state: State, event: Event) -> Step:
    match event:
        case AllReady():
            return _on_all_ready(state, event)
        case Ticked():
            return _on_ticked(state, event)
        case IdsReserved() | ReservationLost() | ReservationFailed():
            return _on_reservation(state, event)
        case CheckpointRequested():
            return _on_requested(state, event)
        case CancelRequested():
            return _on_cancel(state, event)
        case Acknowledged():
            return _on_acknowledged(state, event)
        case Declined():
            return _on_declined(state, event)
        case InputEnded():
            return _on_input_ended(state, event)
        case ManifestWritten() | ManifestFailed() | TombstoneWritten() | TombstoneFailed():
            return _on_store(state, event)
        case OwnershipLost():
            return fenced(state, "the reservation with which it began is gone")
        case OutcomeFound():
            return _on_outcome_found(state, event)
        case Committed() | CommitFailed():
            return _on_commit(state, event)
        case _:
            assert_never(event)


def _after_the_end(stop: Stop, event: Event) -> tuple[Action, ...]:
    match event:
        case CheckpointRequested():
            return (AnswerRequest(event.request.id, RequestDeclined(DeclineReason.DRAINED, stop.value)),)
        case Acknowledged():
            return (Refused(_acknowledgement(event), stop.value),)
        case Declined():
            return (Refused(_decline_of(event), stop.value),)
        case _:
            return ()


# --- what time brings ---


def _on_all_ready(state: State, event: AllReady) -> Step:
    if state.is_ready:
        return state, ()
    return replace(state, is_ready=True, due_at_ms=after_interval(state.policy, event.now_ms)), ()


def _on_ticked(state: State, event: Ticked) -> Step:
    state = replace(state, wake_ups_ms=tuple(at_ms for at_ms in state.wake_ups_ms if at_ms > event.now_ms))
    overdue = _expire_deciding, _expire_collecting, _pursue_reservation, _pursue_tombstone, _pursue_commit
    return _in_turn(state, event.now_ms, *overdue)


def _expire_deciding(state: State, now_ms: int) -> Step:
    if not isinstance(writing := state.deciding, Writing) or now_ms < writing.pending.expires_at_ms:
        return state, ()
    late = f"the manifest was not written within {state.policy.checkpoint_timeout_ms} ms of the trigger"
    return give_up_manifest(state, writing, DeclineReason.EXPIRED, late, now_ms)


def _expire_collecting(state: State, now_ms: int) -> Step:
    collecting = state.collecting
    if collecting is None or now_ms < collecting.pending.expires_at_ms:
        return state, ()
    missing = f"no acknowledgement from {named(collecting.waiting)} within {state.policy.checkpoint_timeout_ms} ms"
    limit = f"{state.policy.checkpoint_timeout_ms} ms of the trigger"
    held_up = f"the outcome of the checkpoint before was not known within {limit}"
    return _give_up(state, collecting, DeclineReason.EXPIRED, missing if collecting.waiting else held_up, now_ms)


def _give_up(state: State, collecting: Collecting, reason: DeclineReason, detail: str, now_ms: int) -> Step:
    state = replace(state, collecting=None)
    return decline(state, collecting.pending, collecting.reports, reason, detail, now_ms)


def _pursue_reservation(state: State, now_ms: int) -> Step:
    if (reserving := state.reserving) is None:
        return state, ()
    tried_again = replace(state, reserving=replace(reserving, retry=_under_way(reserving.retry)))
    what = f"the reservation of {_ids_of(reserving.reservation)}"
    return _pursue(state, reserving.retry, tried_again, ReserveIds(reserving.reservation), what, now_ms)


def _pursue_tombstone(state: State, now_ms: int) -> Step:
    if not isinstance(writing_tombstone := state.deciding, WritingTombstone):
        return state, ()
    tried_again = replace(state, deciding=replace(writing_tombstone, retry=_under_way(writing_tombstone.retry)))
    what = f"the tombstone of checkpoint {writing_tombstone.manifest.checkpoint}"
    return _pursue(state, writing_tombstone.retry, tried_again, tombstone(writing_tombstone.manifest), what, now_ms)


def _pursue_commit(state: State, now_ms: int) -> Step:
    if (publishing := state.publishing) is None:
        return state, ()
    tried_again = replace(state, publishing=replace(publishing, retry=_under_way(publishing.retry)))
    what = f"the commit of checkpoint {publishing.permit.checkpoint}"
    return _pursue(state, publishing.retry, tried_again, Commit(publishing.permit), what, now_ms)


def _pursue(state: State, retry: Retry, tried_again: State, again: Action, what: str, now_ms: int) -> Step:
    if now_ms >= retry.overdue_at_ms(state.policy):
        reason = f"{what} did not succeed within {retry.limit_ms(state.policy)} ms: {retry.error}"
        return stop_for(state, Stop.FAILED, FailJob(reason, isinstance(again, Commit)), reason)
    return (tried_again, (again,)) if retry.is_due(now_ms) else (state, ())


def _under_way(retry: Retry) -> Retry:
    return replace(retry, retry_at_ms=None)


# --- ids and requests ---


def _on_reservation(state: State, event: IdsReserved | ReservationLost | ReservationFailed) -> Step:
    reserving, reservation = state.reserving, event.reservation
    if reserving is None or reserving.reservation != reservation:
        return state, (Refused(f"news of the reservation of {_ids_of(reservation)}", "nobody asked for it"),)
    match event:
        case IdsReserved():
            reserved = Reserved(reservation, reservation.checkpoint, reserving.retry.since_ms)
            return replace(state, reserved=reserved, reserving=None), ()
        case ReservationLost():
            return fenced(state, f"checkpoint id {reservation.checkpoint} is reserved by another generation")
        case ReservationFailed():
            retry = reserving.retry.failed(state.policy, event.error, event.now_ms)
            return replace(state, reserving=replace(reserving, retry=retry)), ()
        case _:
            assert_never(event)


def _on_requested(state: State, event: CheckpointRequested) -> Step:
    if len(state.queue) < state.policy.requests_max:
        return replace(state, queue=(*state.queue, event.request)), ()
    why = f"{len(state.queue)} requests are waiting already; try again later"
    return state, answers((event.request,), RequestDeclined(DeclineReason.CANCELLED, why))


def _on_cancel(state: State, event: CancelRequested) -> Step:
    in_progress = (each for each in (state.collecting, state.deciding) if each is not None)
    meant = (each for each in in_progress if event.checkpoint in (None, each.pending.barrier.checkpoint))
    detail = "on request"
    match next(meant, None):
        case None:
            return state, (Refused(f"cancelling checkpoint {event.checkpoint or 'in progress'}", _NOT_IN_PROGRESS),)
        case Collecting() as collecting:
            return _give_up(state, collecting, DeclineReason.CANCELLED, detail, event.now_ms)
        case Writing() as writing:
            return give_up_manifest(state, writing, DeclineReason.CANCELLED, detail, event.now_ms)
        case WritingTombstone():
            return state, ()
        case _ as never:
            assert_never(never)


def _on_input_ended(state: State, event: InputEnded) -> Step:
    if event.subtask not in state.members:
        return state, (Refused(f"end of input of {event.subtask}", _NOT_A_MEMBER),)
    return replace(state, ended=state.ended | {event.subtask}), ()


# --- collecting ---


def _on_acknowledged(state: State, event: Acknowledged) -> Step:
    subtask = event.report.subtask
    collecting = _collecting(state, event.checkpoint, event.generation, subtask)
    if isinstance(collecting, str):
        return state, (Refused(_acknowledgement(event), collecting),)
    if subtask not in collecting.waiting:
        return state, (Refused(_acknowledgement(event), "it has acknowledged before"),)
    waiting = collecting.waiting - {subtask}
    reports = (*collecting.reports, event.report)
    return replace(state, collecting=replace(collecting, waiting=waiting, reports=reports)), ()


def _on_declined(state: State, event: Declined) -> Step:
    collecting = _collecting(state, event.checkpoint, event.generation, event.subtask)
    if isinstance(collecting, str):
        return state, (Refused(_decline_of(event), collecting),)
    detail = f"{event.subtask}: {event.detail}" if event.detail else str(event.subtask)
    return _give_up(state, collecting, event.reason, detail, event.now_ms)


def _collecting(state: State, checkpoint: CheckpointId, generation: Generation, subtask: SubtaskId) -> Collecting | str:
    """The attempt that `subtask` may speak about, or why it may not (I6, I12)."""
    if generation != state.generation:
        return f"it is of generation {generation} and this is {state.generation}"
    if subtask not in state.members:
        return _NOT_A_MEMBER
    if (collecting := state.collecting) is not None and collecting.pending.barrier.checkpoint == checkpoint:
        return collecting if collecting.waiting else _ALL_ACKNOWLEDGED
    if state.deciding is not None and state.deciding.manifest.checkpoint == checkpoint:
        return _ALL_ACKNOWLEDGED
    return _NOT_IN_PROGRESS


def _manifest(state: State, barrier: Barrier, reports: tuple[SubtaskReport, ...], now_ms: int) -> Manifest:
    return Manifest(
        checkpoint=barrier.checkpoint,
        generation=state.generation,
        shape=state.shape,
        reports=tuple(sorted(reports, key=lambda report: report.subtask)),
        triggered_at_ms=barrier.triggered_at_ms,
        completed_at_ms=now_ms,
        is_savepoint=barrier.is_savepoint,
        is_final=barrier.is_drain,
        batch_offset=state.batch_offset,
        first=state.first,
        older=state.older,
    )


# --- writing, tombstones, publishing ---


def _write_if_its_turn(state: State, now_ms: int) -> Step:
    """Write the manifest of an attempt that everybody has acknowledged, unless the one before is undecided."""
    collecting = state.collecting
    if collecting is None or collecting.waiting or state.deciding is not None:
        return state, ()
    manifest = _manifest(state, collecting.pending.barrier, collecting.reports, now_ms)
    state = replace(state, collecting=None, deciding=Writing(collecting.pending, manifest))
    return state, (WriteManifest(manifest),)


def _on_store(state: State, event: ManifestWritten | ManifestFailed | TombstoneWritten | TombstoneFailed) -> Step:
    deciding = state.deciding
    if deciding is None or deciding.manifest.checkpoint != event.checkpoint:
        return state, (Refused(f"news of the outcome of checkpoint {event.checkpoint}", _NOT_IN_PROGRESS),)
    match event:
        case ManifestWritten():
            # Also while the tombstone is written: the manifest was created before it, so the checkpoint exists.
            return complete(state, deciding.pending, deciding.manifest, event.now_ms)
        case ManifestFailed():
            return _on_manifest_failed(state, deciding, event)
        case TombstoneWritten():
            return _on_tombstone_written(state, deciding, event.now_ms)
        case TombstoneFailed():
            return _on_tombstone_failed(state, deciding, event)
        case _:
            assert_never(event)


def _on_manifest_failed(state: State, deciding: Deciding, event: ManifestFailed) -> Step:
    if isinstance(deciding, WritingTombstone):
        return state, ()
    return give_up_manifest(state, deciding, DeclineReason.MANIFEST_FAILED, event.error, event.now_ms)


def _on_tombstone_written(state: State, deciding: Deciding, now_ms: int) -> Step:
    if isinstance(deciding, Writing):
        raise ProtocolViolation(
            f"checkpoint {deciding.manifest.checkpoint} got a tombstone while its manifest was written"
        )
    state = replace(state, deciding=None)
    return decline(state, deciding.pending, deciding.manifest.reports, deciding.reason, deciding.detail, now_ms)


def _on_tombstone_failed(state: State, deciding: Deciding, event: TombstoneFailed) -> Step:
    if isinstance(deciding, Writing):
        raise ProtocolViolation(f"nobody asked for a tombstone of checkpoint {deciding.manifest.checkpoint}")
    retry = deciding.retry.failed(state.policy, event.error, event.now_ms)
    return replace(state, deciding=replace(deciding, retry=retry)), ()


def _on_outcome_found(state: State, event: OutcomeFound) -> Step:
    outcome = event.outcome
    if outcome.generation != state.generation:
        return fenced(state, f"generation {outcome.generation} decided the outcome of checkpoint {outcome.checkpoint}")
    # Our own: an earlier write of it had arrived after all.
    return _on_store(state, _as_created(outcome, event.now_ms))


def _as_created(outcome: Outcome, now_ms: int) -> ManifestWritten | TombstoneWritten:
    return (TombstoneWritten if outcome.is_tombstone else ManifestWritten)(outcome.checkpoint, now_ms)


def _on_commit(state: State, event: Committed | CommitFailed) -> Step:
    publishing = state.publishing
    if publishing is None or publishing.permit.checkpoint != event.checkpoint:
        return state, (Refused(f"news of the commit of checkpoint {event.checkpoint}", _NOT_IN_PROGRESS),)
    if isinstance(event, CommitFailed):
        retry = publishing.retry.failed(state.policy, event.error, event.now_ms)
        if event.is_permanent and retry.failures >= PERMANENT_FAILURES_MAX:
            reason = f"the commit of checkpoint {event.checkpoint} failed {retry.failures} times: {event.error}"
            return stop_for(state, Stop.FAILED, FailJob(reason, is_of_commit=True), reason)
        return replace(state, publishing=replace(publishing, retry=retry)), ()
    state = replace(state, publishing=None)
    return conclude(state, publishing.requests, event.now_ms, is_final=publishing.is_final)


# --- words ---

_NOT_IN_PROGRESS = "that checkpoint is not in progress"
_ALL_ACKNOWLEDGED = "everybody has acknowledged already"
_NOT_A_MEMBER = "it is not a member of this pipeline"


def _acknowledgement(event: Acknowledged) -> str:
    return f"acknowledgement of checkpoint {event.checkpoint} by {event.report.subtask}"


def _decline_of(event: Declined) -> str:
    return f"decline of checkpoint {event.checkpoint} by {event.subtask}: {event.reason.value}"


def _ids_of(reservation: Reservation) -> str:
    if reservation.count == 1:
        return f"checkpoint id {reservation.checkpoint}"
    return f"checkpoint ids {reservation.checkpoint} to {reservation.last}"
