"""The coordinator: decides when a checkpoint begins, whether it completes, and what follows from that.

    trigger--> Collecting --all acknowledged--> Writing --manifest durable--> Publishing --committed--> over
                   |                               |                              ^
                   | declined, expired, cancelled  | failed, expired, cancelled   | the manifest was there
                   v                               v                              |
                 over <-- void outcome created -- Settling -----------------------'

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
  creating a void outcome in the manifest's place: the store decides which of the two there is (I3, I4).
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
from penstock.protocol.coordinator.endings import answers, complete, conclude, decline, fenced, settle, stop_for, void
from penstock.protocol.coordinator.events import (
    Acknowledged,
    Action,
    AllReady,
    AnswerRequest,
    CancelRequested,
    CheckpointRequested,
    CheckpointVoided,
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
    VoidFailed,
    WriteManifest,
)
from penstock.protocol.coordinator.state import (
    Collecting,
    Deciding,
    Errand,
    Policy,
    Publishing,
    Reserved,
    Settling,
    State,
    Stop,
    Writing,
)
from penstock.protocol.coordinator.trigger import after_interval, order_wake_up, trigger_if_due
from penstock.protocol.declines import DeclineReason
from penstock.protocol.manifest import Manifest, PipelineShape, SubtaskReport
from penstock.protocol.ownership import Outcome, Reservation
from penstock.protocol.under_way import named


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
    now_ms: int = 0,
) -> Step:
    """The coordinator of a generation that has taken over; `first` is the id it reserved in doing so, under `token`.

    `recommit` is what `decide_recommit` said about the restored checkpoint: nothing is triggered before it is done.
    `batch_offset` is that of the restored checkpoint.
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
    )
    if recommit is None:
        return state, ()
    state = replace(state, publishing=Publishing(recommit, Errand(now_ms)))
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
        case ManifestWritten() | ManifestFailed() | CheckpointVoided() | VoidFailed():
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
    overdue = _expire_deciding, _expire_collecting, _pursue_reservation, _pursue_void, _pursue_commit
    return _in_turn(state, event.now_ms, *overdue)


def _expire_deciding(state: State, now_ms: int) -> Step:
    if not isinstance(writing := state.deciding, Writing) or now_ms < writing.attempt.expires_at_ms:
        return state, ()
    late = f"the manifest was not written within {state.policy.expiry_ms} ms of the trigger"
    return settle(state, writing, DeclineReason.EXPIRED, late, now_ms)


def _expire_collecting(state: State, now_ms: int) -> Step:
    collecting = state.collecting
    if collecting is None or now_ms < collecting.attempt.expires_at_ms:
        return state, ()
    missing = f"no acknowledgement from {named(collecting.waiting)} within {state.policy.expiry_ms} ms"
    held_up = f"the outcome of the checkpoint before was not known within {state.policy.expiry_ms} ms of the trigger"
    return _give_up(state, collecting, DeclineReason.EXPIRED, missing if collecting.waiting else held_up, now_ms)


def _give_up(state: State, collecting: Collecting, reason: DeclineReason, detail: str, now_ms: int) -> Step:
    state = replace(state, collecting=None)
    return decline(state, collecting.attempt, collecting.reports, reason, detail, now_ms)


def _pursue_reservation(state: State, now_ms: int) -> Step:
    if (reserving := state.reserving) is None:
        return state, ()
    tried_again = replace(state, reserving=replace(reserving, errand=_under_way(reserving.errand)))
    what = f"the reservation of {_ids_of(reserving.reservation)}"
    return _pursue(state, reserving.errand, tried_again, ReserveIds(reserving.reservation), what, now_ms)


def _pursue_void(state: State, now_ms: int) -> Step:
    if not isinstance(settling := state.deciding, Settling):
        return state, ()
    tried_again = replace(state, deciding=replace(settling, errand=_under_way(settling.errand)))
    what = f"the void outcome of checkpoint {settling.manifest.checkpoint}"
    return _pursue(state, settling.errand, tried_again, void(settling.manifest), what, now_ms)


def _pursue_commit(state: State, now_ms: int) -> Step:
    if (publishing := state.publishing) is None:
        return state, ()
    tried_again = replace(state, publishing=replace(publishing, errand=_under_way(publishing.errand)))
    what = f"the commit of checkpoint {publishing.permit.checkpoint}"
    return _pursue(state, publishing.errand, tried_again, Commit(publishing.permit), what, now_ms)


def _pursue(state: State, errand: Errand, tried_again: State, again: Action, what: str, now_ms: int) -> Step:
    if now_ms >= errand.overdue_at_ms(state.policy):
        reason = f"{what} did not succeed within {state.policy.expiry_ms} ms: {errand.error}"
        return stop_for(state, Stop.FAILED, FailJob(reason), reason)
    return (tried_again, (again,)) if errand.is_due(now_ms) else (state, ())


def _under_way(errand: Errand) -> Errand:
    return replace(errand, retry_at_ms=None)


# --- ids and requests ---


def _on_reservation(state: State, event: IdsReserved | ReservationLost | ReservationFailed) -> Step:
    reserving, reservation = state.reserving, event.reservation
    if reserving is None or reserving.reservation != reservation:
        return state, (Refused(f"news of the reservation of {_ids_of(reservation)}", "nobody asked for it"),)
    match event:
        case IdsReserved():
            reserved = Reserved(reservation, reservation.checkpoint, reserving.errand.since_ms)
            return replace(state, reserved=reserved, reserving=None), ()
        case ReservationLost():
            return fenced(state, f"checkpoint id {reservation.checkpoint} is reserved by another generation")
        case ReservationFailed():
            errand = reserving.errand.failed(state.policy, event.error, event.now_ms)
            return replace(state, reserving=replace(reserving, errand=errand)), ()
        case _:
            assert_never(event)


def _on_requested(state: State, event: CheckpointRequested) -> Step:
    if len(state.queue) < state.policy.requests_max:
        return replace(state, queue=(*state.queue, event.request)), ()
    why = f"{len(state.queue)} requests are waiting already; try again later"
    return state, answers((event.request,), RequestDeclined(DeclineReason.CANCELLED, why))


def _on_cancel(state: State, event: CancelRequested) -> Step:
    in_progress = (each for each in (state.collecting, state.deciding) if each is not None)
    meant = (each for each in in_progress if event.checkpoint in (None, each.attempt.barrier.checkpoint))
    detail = "on request"
    match next(meant, None):
        case None:
            return state, (Refused(f"cancelling checkpoint {event.checkpoint or 'in progress'}", _NOT_IN_PROGRESS),)
        case Collecting() as collecting:
            return _give_up(state, collecting, DeclineReason.CANCELLED, detail, event.now_ms)
        case Writing() as writing:
            return settle(state, writing, DeclineReason.CANCELLED, detail, event.now_ms)
        case Settling():
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
    if (collecting := state.collecting) is not None and collecting.attempt.barrier.checkpoint == checkpoint:
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
    )


# --- writing, settling, publishing ---


def _write_if_its_turn(state: State, now_ms: int) -> Step:
    """Write the manifest of an attempt that everybody has acknowledged, unless the one before is undecided."""
    collecting = state.collecting
    if collecting is None or collecting.waiting or state.deciding is not None:
        return state, ()
    manifest = _manifest(state, collecting.attempt.barrier, collecting.reports, now_ms)
    state = replace(state, collecting=None, deciding=Writing(collecting.attempt, manifest))
    return state, (WriteManifest(manifest),)


def _on_store(state: State, event: ManifestWritten | ManifestFailed | CheckpointVoided | VoidFailed) -> Step:
    deciding = state.deciding
    if deciding is None or deciding.manifest.checkpoint != event.checkpoint:
        return state, (Refused(f"news of the outcome of checkpoint {event.checkpoint}", _NOT_IN_PROGRESS),)
    match event:
        case ManifestWritten():
            # Also while settling: it was created before the void outcome could be, so the checkpoint exists.
            return complete(state, deciding.attempt, deciding.manifest, event.now_ms)
        case ManifestFailed():
            return _on_manifest_failed(state, deciding, event)
        case CheckpointVoided():
            return _on_voided(state, deciding, event.now_ms)
        case VoidFailed():
            return _on_void_failed(state, deciding, event)
        case _:
            assert_never(event)


def _on_manifest_failed(state: State, deciding: Deciding, event: ManifestFailed) -> Step:
    if isinstance(deciding, Settling):
        return state, ()
    return settle(state, deciding, DeclineReason.MANIFEST_FAILED, event.error, event.now_ms)


def _on_voided(state: State, deciding: Deciding, now_ms: int) -> Step:
    if isinstance(deciding, Writing):
        raise ProtocolViolation(f"checkpoint {deciding.manifest.checkpoint} was voided while its manifest was written")
    state = replace(state, deciding=None)
    return decline(state, deciding.attempt, deciding.manifest.reports, deciding.reason, deciding.detail, now_ms)


def _on_void_failed(state: State, deciding: Deciding, event: VoidFailed) -> Step:
    if isinstance(deciding, Writing):
        raise ProtocolViolation(f"nobody asked to void checkpoint {deciding.manifest.checkpoint}")
    errand = deciding.errand.failed(state.policy, event.error, event.now_ms)
    return replace(state, deciding=replace(deciding, errand=errand)), ()


def _on_outcome_found(state: State, event: OutcomeFound) -> Step:
    outcome = event.outcome
    if outcome.generation != state.generation:
        return fenced(state, f"generation {outcome.generation} decided the outcome of checkpoint {outcome.checkpoint}")
    # Our own: an earlier write of it had arrived after all.
    return _on_store(state, _as_created(outcome, event.now_ms))


def _as_created(outcome: Outcome, now_ms: int) -> ManifestWritten | CheckpointVoided:
    return (CheckpointVoided if outcome.is_void else ManifestWritten)(outcome.checkpoint, now_ms)


def _on_commit(state: State, event: Committed | CommitFailed) -> Step:
    publishing = state.publishing
    if publishing is None or publishing.permit.checkpoint != event.checkpoint:
        return state, (Refused(f"news of the commit of checkpoint {event.checkpoint}", _NOT_IN_PROGRESS),)
    if isinstance(event, CommitFailed):
        errand = publishing.errand.failed(state.policy, event.error, event.now_ms)
        return replace(state, publishing=replace(publishing, errand=errand)), ()
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
