"""Checkpoints that are in progress, and what they wait for: read off the state of a coordinator.

Pure, and decides nothing: this is for those who look at a pipeline from outside.
"""

from __future__ import annotations

from dataclasses import dataclass

from penstock.ids import SubtaskId
from penstock.protocol.coordinator.state import (
    Collecting,
    PendingCheckpoint,
    Policy,
    Retry,
    State,
    Writing,
    WritingTombstone,
)
from penstock.protocol.history import CheckpointRecord, Status, stats_of
from penstock.protocol.manifest import SubtaskReport

_NAMED_MAX = 5


@dataclass(frozen=True, slots=True)
class Hindrance:
    """Something that was asked of the store or of a sink and that does not succeed, or has no answer yet."""

    what: str
    """Begins a sentence: `the output of checkpoint 3 is not published yet`."""
    since_ms: int
    failures: int
    """Number of attempts that have failed."""
    error: str
    limit_ms: int = 0
    """How long it is tried; 0 if nothing but its checkpoint ends after that."""
    setting: str = "checkpoint_timeout"
    """Name of the setting that says so."""


def checkpoints_under_way(state: State, now_ms: int) -> tuple[CheckpointRecord, ...]:
    """The attempts that have no outcome yet, the older one first; each ends now, as far as anybody knows."""
    records = []
    match state.deciding:
        case Writing(pending, manifest):
            records.append(_record(pending, manifest.reports, "its manifest is being written", now_ms))
        case WritingTombstone(pending, manifest, reason, detail, retry):
            why = f"{reason.value} ({detail}); the store must record that it has failed{_failing(retry)}"
            records.append(_record(pending, manifest.reports, why, now_ms))
        case None:
            pass
    if (collecting := state.collecting) is not None:
        records.append(_record(collecting.pending, collecting.reports, _waits_for(collecting), now_ms))
    return tuple(records)


def hindrance(state: State, now_ms: int, patience_ms: int) -> Hindrance | None:
    """The call of a store or sink that holds up checkpoints: one that has failed, or lasts for `patience_ms`."""
    found = [each for each in _calls(state) if each.failures or now_ms - each.since_ms >= patience_ms]
    return found[0] if found else None


def _calls(state: State) -> list[Hindrance]:
    calls = []
    if (publishing := state.publishing) is not None:
        what = f"the output of checkpoint {publishing.permit.checkpoint} is not published yet"
        calls.append(_of_retry(what, publishing.retry, state.policy, "commit_timeout"))
    match state.deciding:
        case Writing(_, manifest):
            what = f"the manifest of checkpoint {manifest.checkpoint} is not written yet"
            calls.append(Hindrance(what, manifest.completed_at_ms, 0, "the store does not answer"))
        case WritingTombstone(_, manifest, reason, _, retry):
            what = f"checkpoint {manifest.checkpoint} has failed, {reason.value}, and the store cannot record that"
            calls.append(_of_retry(what, retry, state.policy))
        case None:
            pass
    if (reserving := state.reserving) is not None:
        what = f"no id can be reserved for checkpoint {reserving.reservation.checkpoint}"
        calls.append(_of_retry(what, reserving.retry, state.policy))
    return calls


def _of_retry(what: str, retry: Retry, policy: Policy, setting: str = "checkpoint_timeout") -> Hindrance:
    return Hindrance(what, retry.since_ms, retry.failures, retry.error, retry.limit_ms(policy), setting)


def _failing(retry: Retry) -> str:
    times = "once" if retry.failures == 1 else f"{retry.failures} times"
    return f", which was tried {times}: {retry.error}" if retry.failures else ""


def _waits_for(collecting: Collecting) -> str:
    if not collecting.waiting:
        return "all subtasks have acknowledged; it waits for the outcome of the checkpoint before it"
    count = len(collecting.waiting) + len(collecting.reports)
    return f"{len(collecting.reports)} of {count} subtasks have acknowledged; it waits for {named(collecting.waiting)}"


def named(subtasks: frozenset[SubtaskId]) -> str:
    """The first few by name, and how many more there are."""
    ordered = sorted(subtasks)
    more = f" and {len(ordered) - _NAMED_MAX} more" if len(ordered) > _NAMED_MAX else ""
    return ", ".join(str(subtask) for subtask in ordered[:_NAMED_MAX]) + more


def _record(
    pending: PendingCheckpoint, reports: tuple[SubtaskReport, ...], detail: str, now_ms: int
) -> CheckpointRecord:
    barrier = pending.barrier
    return CheckpointRecord(
        barrier.checkpoint,
        barrier.flags,
        Status.IN_PROGRESS,
        barrier.triggered_at_ms,
        now_ms,
        stats_of(reports),
        detail=detail,
    )
