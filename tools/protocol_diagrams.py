"""Draws the diagrams of docs/internals/PROTOCOL.md from the state machines themselves.

    python tools/protocol_diagrams.py            writes the blocks between the markers
    python tools/protocol_diagrams.py --check    exits with 1 if they are not up to date

Each machine is started in a small fixed world (two channels, or two subtasks) and fed every event that makes sense
in every state that it reaches. What it did is written down as transitions between kinds of states, with the events
that caused them and the actions that were returned. Nothing in the diagrams is drawn by hand.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from penstock.ids import ChannelId, CheckpointId, Generation, OperatorName, SubtaskId
from penstock.protocol import alignment, overtaking
from penstock.protocol.barrier import Barrier, BarrierFlag
from penstock.protocol.coordinator import events
from penstock.protocol.coordinator import machine as coordinator
from penstock.protocol.coordinator import state as states
from penstock.protocol.declines import DeclineReason
from penstock.protocol.manifest import Committable, PipelineShape, SubtaskReport
from penstock.protocol.ownership import Outcome

DOCUMENT = Path(__file__).parents[1] / "docs" / "internals" / "PROTOCOL.md"
GENERATION = Generation(1)


@dataclass(frozen=True, slots=True, order=True)
class Transition:
    """In a state of the kind `before`, `event` led to one of the kind `after` and to `actions`."""

    before: str
    event: str
    after: str
    actions: tuple[str, ...]

    @property
    def is_silent(self) -> bool:
        return self.before == self.after and not self.actions


# --- exploring ---


def explore(
    first: Iterable[Any],
    step: Callable[[Any, Any], tuple[Any, tuple[Any, ...]]],
    offers: Callable[[Any], Iterable[tuple[str, Any]]],
    kind: Callable[[Any], str],
    same: Callable[[Any], Hashable],
    ignored: frozenset[str] = frozenset(),
) -> list[Transition]:
    """Everything that `step` does with the events on offer, in every state that it leads to."""
    waiting = deque(first)
    seen = {same(state) for state in waiting}
    found: set[Transition] = set()
    while waiting:
        state = waiting.popleft()
        for label, event in offers(state):
            after, actions = step(state, event)
            names = tuple(name for name in (type(action).__name__ for action in actions) if name not in ignored)
            found.add(Transition(kind(state), label, kind(after), names))
            if same(after) not in seen:
                seen.add(same(after))
                waiting.append(after)
    return sorted(transition for transition in found if not transition.is_silent)


# --- alignment: one subtask with two input channels ---

_CHANNELS = frozenset({ChannelId(0), ChannelId(1)})
_KINDS = {
    "aligned": Barrier(CheckpointId(1), GENERATION),
    "with timeout": Barrier(CheckpointId(1), GENERATION, alignment_timeout_ms=100),
    "unaligned": Barrier(CheckpointId(1), GENERATION, flags=BarrierFlag.UNALIGNED),
}


def _barriers(state: alignment.State) -> Iterator[tuple[str, Barrier]]:
    """The barriers that may come: of the checkpoint in progress, and of the next one."""
    for checkpoint in (1, 2):
        id = CheckpointId(checkpoint)
        age = "current" if id == state.newest else "newer" if id > state.newest else "older"
        if age == "older":
            continue
        for kind, barrier in _KINDS.items():
            here = replace(barrier, checkpoint=id)
            if age == "newer":
                yield f"newer, {kind}", here
            elif isinstance(state, alignment.Aligning | alignment.Capturing) and _is_of(here, state.barrier):
                if not here.is_unaligned:
                    yield "current", here
                if here.is_unaligned or here.alignment_timeout_ms is not None:
                    yield "current, overtaking", here.overtaking()


def _is_of(barrier: Barrier, current: Barrier) -> bool:
    """A checkpoint has one mode; only the flag of one with a timeout changes on the way."""
    if barrier.alignment_timeout_ms is None and barrier.is_unaligned != current.is_unaligned:
        return False
    return barrier.alignment_timeout_ms == current.alignment_timeout_ms


def _alignment_offers(state: alignment.State) -> Iterator[tuple[str, alignment.Event]]:
    inputs = state.inputs
    if isinstance(state, alignment.Restoring):
        yield "SubtaskRestored", alignment.SubtaskRestored()
    for words, barrier in _barriers(state):
        if words.startswith("newer") and "overtaking" not in words:
            yield f"CheckpointTriggered ({words})", alignment.CheckpointTriggered(barrier)
        for channel in inputs.channels - inputs.finished:
            blocked = isinstance(state, alignment.Aligning) and channel in state.blocked
            if not blocked:
                yield f"BarrierReached ({words})", alignment.BarrierReached(channel, barrier)
            if not barrier.is_unaligned and channel not in inputs.ended and not (blocked and words == "current"):
                yield f"BarrierAnnounced ({words})", alignment.BarrierAnnounced(channel, barrier)
    if not isinstance(state, alignment.Restoring | alignment.Idle):
        cancel = replace(_KINDS["aligned"], checkpoint=state.newest).cancelled()
        yield "CheckpointTriggered (cancel)", alignment.CheckpointTriggered(cancel)
        yield "AlignmentTimedOut", alignment.AlignmentTimedOut(state.newest)
        yield "LateBarrierTimedOut", alignment.LateBarrierTimedOut(state.newest)
    if not isinstance(state, alignment.Restoring) and state.newest:
        yield "CaptureOverflowed", alignment.CaptureOverflowed(state.newest)
    for channel in inputs.channels - inputs.ended:
        yield "EndArrived", alignment.EndArrived(channel)
    for channel in inputs.ended - inputs.finished:
        yield "EndReached", alignment.EndReached(channel)


def alignment_transitions() -> list[Transition]:
    """A subtask that may capture; one that is `aligned_only` knows no Capturing."""
    return explore(
        [alignment.Restoring(alignment.Inputs(_CHANNELS))],
        alignment.step,
        _alignment_offers,
        lambda state: type(state).__name__,
        lambda state: state,
    )


# --- overtaking: one subtask with two output channels, of which one may be overtaken on ---


def _overtaking_offers(state: overtaking.State) -> Iterator[tuple[str, overtaking.Event]]:
    following = CheckpointId(state.newest + 1)
    if following <= 2:
        for kind, barrier in _KINDS.items():
            for waiting in (frozenset[ChannelId](), frozenset({ChannelId(0)}), frozenset({ChannelId(1)}), _CHANNELS):
                where = {0: "left everywhere at once", 1: "waits", 2: "waits"}[len(waiting)]
                forwarded = overtaking.BarrierForwarded(replace(barrier, checkpoint=following), waiting)
                yield f"BarrierForwarded ({kind}, {where})", forwarded
    if isinstance(state, overtaking.Departing):
        for channel in state.waiting:
            yield "BarrierDeparted", overtaking.BarrierDeparted(channel, state.newest)
        if state.barrier.alignment_timeout_ms is not None:
            yield "DepartureTimedOut", overtaking.DepartureTimedOut(state.newest)
        yield "CheckpointAbandoned", overtaking.CheckpointAbandoned(state.newest)


def overtaking_transitions() -> list[Transition]:
    return explore(
        [overtaking.Clear(frozenset({ChannelId(0)}))],
        overtaking.step,
        _overtaking_offers,
        lambda state: type(state).__name__,
        lambda state: state,
    )


# --- the coordinator, with two subtasks of which one is a sink ---

_MEMBERS = (SubtaskId(OperatorName("source"), 0), SubtaskId(OperatorName("sink"), 0))
_POLICY = states.Policy(
    interval_ms=1_000,
    checkpoint_timeout_ms=10_000,
    commit_timeout_ms=10_000,
    failures_tolerable=1,
    backoff_ms=10,
    backoff_ms_max=10,
)
_ATTEMPTS_MAX = 3
"""The exploration ends with so many checkpoint ids."""


@dataclass(frozen=True, slots=True)
class _At:
    """A coordinator at a moment of the driver's clock."""

    state: states.State
    now_ms: int


def _phase(at: _At) -> str:
    state = at.state
    if state.stop is not None:
        return state.stop.name.capitalize()
    if state.publishing is not None:
        return "Publishing"
    phases = [type(each).__name__ for each in (state.deciding, state.collecting) if each is not None]
    return "And".join(phases) or "NoAttempt"


def _report(member: SubtaskId, has_output: bool) -> SubtaskReport:
    committables = (Committable(member.chain, member.index, b"{}"),) if has_output else ()
    return SubtaskReport(member, committables=committables)


def _coordinator_offers(at: _At) -> Iterator[tuple[str, events.Event]]:
    state, now = at.state, at.now_ms + 1
    if state.stop is not None:
        return
    if not state.is_ready:
        yield "AllReady", events.AllReady(now)
    if state.wake_at_ms is not None:
        yield "Ticked (as ordered)", events.Ticked(max(now, state.wake_at_ms))
        yield "Ticked (the expiry has passed)", events.Ticked(now + _POLICY.checkpoint_timeout_ms + 1)
    if state.reserving is not None:
        yield "IdsReserved", events.IdsReserved(state.reserving.reservation, now)
        yield "ReservationLost", events.ReservationLost(state.reserving.reservation, now)
    if not state.queue and state.collecting is None and state.deciding is None:
        for kind in states.RequestKind:
            request = states.Request(states.RequestId(1), kind)
            yield f"CheckpointRequested ({kind.value})", events.CheckpointRequested(request, now)
    yield from _collecting_offers(state, now)
    yield from _deciding_offers(state, now)
    if state.publishing is not None:
        checkpoint = state.publishing.permit.checkpoint
        yield "Committed", events.Committed(checkpoint, now)
        yield "CommitFailed", events.CommitFailed(checkpoint, "no answer", now)
    for member in sorted(state.members - state.ended):
        yield "InputEnded", events.InputEnded(member, now)


def _collecting_offers(state: states.State, now: int) -> Iterator[tuple[str, events.Event]]:
    collecting = state.collecting
    if collecting is None:
        return
    checkpoint = collecting.pending.barrier.checkpoint
    yield "CancelRequested", events.CancelRequested(checkpoint, now)
    which = "the last one" if len(collecting.waiting) == 1 else "others are missing"
    for member in sorted(collecting.waiting):
        for has_output in (False, True) if member.chain == "sink" else (False,):
            report = _report(member, has_output)
            yield f"Acknowledged ({which})", events.Acknowledged(checkpoint, state.generation, report, now)
    for reason in (DeclineReason.STORAGE_FAILED, DeclineReason.SUBTASK_NOT_READY) if collecting.waiting else ():
        words = "counted" if reason.is_counted else "not counted"
        declined = events.Declined(checkpoint, state.generation, _MEMBERS[0], reason, "", now)
        yield f"Declined ({words})", declined


def _deciding_offers(state: states.State, now: int) -> Iterator[tuple[str, events.Event]]:
    deciding = state.deciding
    if deciding is None:
        return
    checkpoint = deciding.manifest.checkpoint
    if state.collecting is None:
        yield "CancelRequested", events.CancelRequested(checkpoint, now)
    yield "ManifestWritten", events.ManifestWritten(checkpoint, now)
    yield "ManifestFailed", events.ManifestFailed(checkpoint, "no answer", now)
    yield "OutcomeFound (own manifest)", events.OutcomeFound(Outcome(checkpoint, state.generation), now)
    other = Outcome(checkpoint, Generation(state.generation + 1), is_tombstone=True)
    yield "OutcomeFound (another generation's)", events.OutcomeFound(other, now)
    yield "OwnershipLost", events.OwnershipLost(now)
    if isinstance(deciding, states.WritingTombstone):
        yield "TombstoneWritten", events.TombstoneWritten(checkpoint, now)
        yield "TombstoneFailed", events.TombstoneFailed(checkpoint, "no answer", now)


def _coordinator_step(at: _At, event: events.Event) -> tuple[_At, tuple[events.Action, ...]]:
    after, actions = coordinator.step(at.state, event)
    return _At(after, event.now_ms), actions


def _coordinator_key(at: _At) -> Hashable:
    """States that differ in nothing but times, ids and history are explored once."""
    state, collecting, deciding = at.state, at.state.collecting, at.state.deciding
    waiting = collecting.waiting if collecting is not None else None
    has_output = tuple(
        any(report.committables for report in reports)
        for reports in (
            collecting.reports if collecting is not None else (),
            deciding.manifest.reports if deciding is not None else (),
        )
    )
    attempts = (each.pending for each in (collecting, deciding) if each is not None)
    is_drain = tuple(pending.barrier.is_drain for pending in attempts)
    is_final = state.publishing is not None and state.publishing.is_final
    asked = tuple(request.kind for request in state.queue)
    errands = [each.retry for each in (state.reserving, state.publishing) if each is not None]
    errands += [deciding.retry] if isinstance(deciding, states.WritingTombstone) else []
    to_be_tried_again = tuple(retry.retry_at_ms is not None for retry in errands)
    used = min(len(state.history), _ATTEMPTS_MAX)
    return (
        (_phase(at), waiting, has_output, is_drain, is_final, asked, used),
        (state.is_ready, state.reserved is None, state.ended, state.failures, to_be_tried_again),
    )


def coordinator_transitions() -> list[Transition]:
    shape = PipelineShape("example", 128)
    first, _ = coordinator.start(_POLICY, GENERATION, shape, frozenset(_MEMBERS), CheckpointId(1))
    return explore(
        [_At(first, 0)],
        _coordinator_step,
        _coordinator_offers,
        _phase,
        _coordinator_key,
        # Which tick is ordered, and who is answered, belongs to no transition in particular.
        ignored=frozenset({"WakeAt", "AnswerRequest", "ReserveIds"}),
    )


# --- drawing ---


def diagram(transitions: list[Transition], start: str) -> str:
    """A mermaid state diagram: one arrow from one kind of state to another, with the events that take it."""
    arrows: dict[tuple[str, str], list[str]] = {}
    for transition in transitions:
        if transition.before != transition.after:
            events_of = arrows.setdefault((transition.before, transition.after), [])
            name = transition.event.partition(" (")[0]
            if name not in events_of:
                events_of.append(name)
    lines = ["```mermaid", "stateDiagram-v2", f"    [*] --> {start}"]
    lines += [f"    {before} --> {after}: {', '.join(names)}" for (before, after), names in sorted(arrows.items())]
    return "\n".join([*lines, "```"])


def table(transitions: list[Transition]) -> str:
    """Every transition with its actions in their order; events that did the same are in one row."""
    rows: dict[tuple[str, str, tuple[str, ...]], dict[str, list[str]]] = {}
    for transition in transitions:
        name, _, words = transition.event.partition(" (")
        seen = rows.setdefault((transition.before, transition.after, transition.actions), {}).setdefault(name, [])
        if words:
            seen.append(words.rstrip(")"))
    lines = ["| in | event | becomes | actions, in this order |", "|---|---|---|---|"]
    for (before, after, actions), names in sorted(rows.items()):
        heard = "; ".join(f"`{name}`" + (f" ({' / '.join(words)})" if words else "") for name, words in names.items())
        ordered = ", ".join(f"`{action}`" for action in actions) or "none"
        lines.append(f"| {before} | {heard} | {after} | {ordered} |")
    return "\n".join(lines)


def blocks() -> dict[str, str]:
    """What belongs between the markers of each name."""
    machines = {
        "alignment": (alignment_transitions(), "Restoring"),
        "overtaking": (overtaking_transitions(), "Clear"),
        "coordinator": (coordinator_transitions(), "NoAttempt"),
    }
    return {name: f"{diagram(found, start)}\n\n{table(found)}" for name, (found, start) in machines.items()}


def updated(text: str) -> str:
    """The document with all its blocks as the code has them. Raises `ValueError` if a marker is missing."""
    for name, block in blocks().items():
        begin, end = f"<!-- generated: {name} -->", f"<!-- end: {name} -->"
        if text.count(begin) != 1 or text.count(end) != 1:
            raise ValueError(f"there must be one pair of markers for '{name}'")
        head, _, rest = text.partition(begin)
        _, _, tail = rest.partition(end)
        text = f"{head}{begin}\n{block}\n{end}{tail}"
    return text


def main(arguments: list[str]) -> int:
    before = DOCUMENT.read_text(encoding="utf-8")
    after = updated(before)
    if arguments == ["--check"]:
        print("up to date" if before == after else f"{DOCUMENT.name} is not up to date: run {Path(__file__).name}")
        return int(before != after)
    DOCUMENT.write_text(after, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
