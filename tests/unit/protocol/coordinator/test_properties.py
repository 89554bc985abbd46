"""The coordinator in a storm: any events in any order, on a store that fails, lies about failing, and is late."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from penstock.ids import CheckpointId, Generation
from penstock.protocol.commit import CommitPermit
from penstock.protocol.coordinator.events import (
    Acknowledged,
    Action,
    AllReady,
    AnnounceCompleted,
    AnswerRequest,
    CancelRequested,
    CheckpointRequested,
    Commit,
    CommitFailed,
    Committed,
    Declined,
    Event,
    Finish,
    IdsReserved,
    InputEnded,
    ManifestFailed,
    ManifestWritten,
    OutcomeFound,
    ReservationFailed,
    ReserveIds,
    SendBarrier,
    StopFenced,
    Ticked,
    TombstoneFailed,
    TombstoneWritten,
    WriteManifest,
    WriteTombstone,
)
from penstock.protocol.coordinator.state import Mode, Policy, Publishing, Request, RequestId, RequestKind
from penstock.protocol.declines import DeclineReason
from penstock.protocol.history import Status
from penstock.protocol.manifest import CheckpointStats, Manifest, SubtaskReport, committables_of
from penstock.protocol.ownership import Outcome, Tombstone
from tests.unit.protocol.coordinator.kit import FIRST, GENERATION, MEMBERS, STRANGER, Run, output

Call = ReserveIds | WriteManifest | WriteTombstone | Commit
subtasks = st.sampled_from([*sorted(MEMBERS), STRANGER])
generations = st.sampled_from([GENERATION, GENERATION, GENERATION, Generation(2)])


class Storm(RuleBasedStateMachine):
    """Plays workers, store, sinks and users; judges what the coordinator orders."""

    run: Run

    @initialize(
        mode=st.sampled_from(list(Mode)),
        interval_ms=st.sampled_from([None, 100, 1_000]),
        pause_ms=st.sampled_from([0, 300]),
        tolerable=st.sampled_from([0, 3, 1_000, 1_000]),
    )
    def begin(self, mode: Mode, interval_ms: int | None, pause_ms: int, tolerable: int) -> None:
        policy = Policy(
            interval_ms,
            pause_ms,
            checkpoint_timeout_ms=2_000,
            commit_timeout_ms=2_000,
            failures_tolerable=tolerable,
            mode=mode,
            history_max=5,
            requests_max=3,
        )
        self.run = Run(policy)
        self.store: dict[CheckpointId, Manifest | Tombstone] = {}
        self.calls: list[Call] = []
        self.reserved = {FIRST}
        self.triggered: list[CheckpointId] = []
        self.written: dict[CheckpointId, Manifest] = {}
        self.cancelled: set[CheckpointId] = set()
        self.announced: list[CheckpointId] = []
        self.published: list[CheckpointId] = []
        self.asked: set[RequestId] = set()
        self.answered: list[RequestId] = []

    # --- what the coordinator orders, and what must be true of it at that moment ---

    def feed(self, event: Event) -> None:
        was_running = self.run.state.stop is None
        actions = self.run.feed(event)
        for action in actions:
            self.execute(action)
        assert was_running or all(not isinstance(action, SendBarrier | Commit) for action in actions)

    def execute(self, action: Action) -> None:
        match action:
            case SendBarrier(barrier) if barrier.is_cancel:
                assert not isinstance(self.store.get(barrier.checkpoint), Manifest), (
                    "a checkpoint that exists was cancelled"
                )
                self.cancelled.add(barrier.checkpoint)
            case SendBarrier(barrier):
                assert barrier.checkpoint in self.reserved, "I5: an id was used before it was reserved"
                assert barrier.checkpoint > max(self.triggered, default=0), "I5"
                assert all(self.is_over(earlier) for earlier in self.triggered[:-1]), "three at a time"
                assert all(self.may_be_followed(earlier) for earlier in self.triggered[-1:]), "two at a time"
                self.triggered.append(barrier.checkpoint)
            case WriteManifest(manifest):
                assert [report.subtask for report in manifest.reports] == sorted(MEMBERS), "I12"
                before = [earlier for earlier in self.triggered if earlier < manifest.checkpoint]
                assert all(self.is_over(earlier) for earlier in before), "manifests out of order"
                self.written[manifest.checkpoint] = manifest
                self.calls.append(action)
            case Commit(permit):
                assert isinstance(self.store.get(permit.checkpoint), Manifest), "I4: committed before the manifest"
                assert permit.checkpoint >= max(self.published, default=0), "commits out of order"
                self.calls.append(action)
            case ReserveIds() | WriteTombstone():
                self.calls.append(action)
            case AnnounceCompleted(checkpoint):
                assert isinstance(self.store.get(checkpoint), Manifest), "I3: announced without its manifest"
                self.announced.append(checkpoint)
            case AnswerRequest(request):
                self.answered.append(request)
            case Finish(checkpoint):
                found = self.store[checkpoint]
                assert isinstance(found, Manifest) and found.is_final
            case StopFenced():
                raise AssertionError("fenced although there is no other generation")
            case _:
                pass

    def is_over(self, checkpoint: CheckpointId) -> bool:
        return checkpoint in self.cancelled or checkpoint in self.announced

    def may_be_followed(self, checkpoint: CheckpointId) -> bool:
        """Whether it is over, or its manifest is being written and leaves nothing to do."""
        if self.is_over(checkpoint):
            return True
        manifest = self.written.get(checkpoint)
        return manifest is not None and not manifest.is_final and not committables_of(manifest)

    # --- the store and the sinks: a call succeeds, fails, or fails after it has succeeded ---

    def answer(self, call: Call, *, arrives: bool, is_reported: bool) -> None:
        now_ms = self.run.now_ms
        match call:
            case ReserveIds(reservation):
                if arrives:
                    self.reserved.update(reservation.ids)
                event: Event = IdsReserved(reservation, now_ms)
                self.feed(event if arrives and is_reported else ReservationFailed(reservation, "503", now_ms))
            case WriteManifest(manifest):
                found = self.create(manifest, arrives=arrives)
                written = ManifestWritten(manifest.checkpoint, now_ms)
                self.feed(self.seen(found, written) if is_reported and arrives else self.lost(call))
            case WriteTombstone(tombstone):
                found = self.create(tombstone, arrives=arrives)
                voided = TombstoneWritten(tombstone.checkpoint, now_ms)
                self.feed(self.seen(found, voided) if is_reported and arrives else self.lost(call))
            case Commit(permit):
                self.publish(permit, arrives=arrives, is_reported=is_reported)

    def create(self, value: Manifest | Tombstone, *, arrives: bool) -> Manifest | Tombstone | None:
        """What was there already, if the call arrives and something was."""
        found = self.store.get(value.checkpoint)
        if arrives and found is None:
            self.store[value.checkpoint] = value
        return found

    def seen(self, found: Manifest | Tombstone | None, created: ManifestWritten | TombstoneWritten) -> Event:
        if found is None:
            return created
        outcome = Outcome(found.checkpoint, found.generation, isinstance(found, Tombstone))
        return OutcomeFound(outcome, created.now_ms)

    def lost(self, call: WriteManifest | WriteTombstone) -> Event:
        if isinstance(call, WriteManifest):
            return ManifestFailed(call.manifest.checkpoint, "503", self.run.now_ms)
        return TombstoneFailed(call.tombstone.checkpoint, "503", self.run.now_ms)

    def publish(self, permit: CommitPermit, *, arrives: bool, is_reported: bool) -> None:
        if arrives:
            self.published.append(permit.checkpoint)
        done = arrives and is_reported
        now_ms = self.run.now_ms
        self.feed(Committed(permit.checkpoint, now_ms) if done else CommitFailed(permit.checkpoint, "503", now_ms))

    # --- the storm ---

    @rule()
    def everybody_is_ready(self) -> None:
        self.feed(AllReady(self.run.now_ms))

    @rule(waited_ms=st.sampled_from([0, 1, 50, 400, 3_000]))
    def time_passes(self, waited_ms: int) -> None:
        self.run.now_ms += waited_ms
        self.feed(Ticked(self.run.now_ms))

    @rule()
    def the_wake_up_call_comes(self) -> None:
        if self.run.state.wake_at_ms is not None:
            self.run.now_ms = max(self.run.now_ms, self.run.state.wake_at_ms)
            self.feed(Ticked(self.run.now_ms))

    @precondition(lambda self: self.calls)
    @rule(data=st.data(), arrives=st.booleans(), is_reported=st.booleans())
    def the_store_answers(self, data: st.DataObject, arrives: bool, is_reported: bool) -> None:
        call = self.calls.pop(data.draw(st.integers(0, len(self.calls) - 1)))
        self.answer(call, arrives=arrives, is_reported=is_reported)

    @rule(back=st.integers(0, 2), subtask=subtasks, generation=generations, has_output=st.booleans())
    def somebody_acknowledges(self, back: int, subtask, generation: Generation, has_output: bool) -> None:  # type: ignore[no-untyped-def]
        report = output(subtask) if has_output else SubtaskReport(subtask, figures=CheckpointStats(state_bytes=1))
        self.feed(Acknowledged(self.recent(back), generation, report, self.run.now_ms))

    @rule(has_output=st.booleans())
    def everybody_acknowledges(self, has_output: bool) -> None:
        checkpoint = self.recent(0)
        for member in sorted(MEMBERS):
            report = output(member) if has_output else SubtaskReport(member)
            self.feed(Acknowledged(checkpoint, GENERATION, report, self.run.now_ms))

    @rule(back=st.integers(0, 1), subtask=subtasks, generation=generations, reason=st.sampled_from(DeclineReason))
    def somebody_declines(self, back: int, subtask, generation: Generation, reason: DeclineReason) -> None:  # type: ignore[no-untyped-def]
        self.feed(Declined(self.recent(back), generation, subtask, reason, "", self.run.now_ms))

    @rule(kind=st.sampled_from(RequestKind))
    def somebody_asks(self, kind: RequestKind) -> None:
        asked = Request(RequestId(len(self.asked) + 1), kind)
        self.asked.add(asked.id)
        self.feed(CheckpointRequested(asked, self.run.now_ms))

    @rule(back=st.none() | st.integers(0, 1))
    def somebody_cancels(self, back: int | None) -> None:
        self.feed(CancelRequested(None if back is None else self.recent(back), self.run.now_ms))

    @rule(subtask=subtasks)
    def an_input_ends(self, subtask) -> None:  # type: ignore[no-untyped-def]
        self.feed(InputEnded(subtask, self.run.now_ms))

    def recent(self, back: int) -> CheckpointId:
        return CheckpointId((self.triggered[-1] if self.triggered else FIRST) - back)

    # --- after the storm ---

    @precondition(lambda self: self.run.state.stop is None)
    @rule()
    def once_all_is_well_again_a_checkpoint_completes(self) -> None:
        self.somebody_asks(RequestKind.CHECKPOINT)
        self.everybody_is_ready()
        before = len(self.announced)
        for _ in range(12):
            while self.calls:
                self.answer(self.calls.pop(0), arrives=True, is_reported=True)
            self.everybody_acknowledges(has_output=True)
            if self.run.state.stop is not None or (
                len(self.announced) > before and not self.asked - set(self.answered)
            ):
                break
            self.the_wake_up_call_comes()
        # An errand may have been overdue when the store came back: then the job starts again, which is an end as well.
        assert self.run.state.stop is not None or len(self.announced) > before

    # --- what holds at all times ---

    @invariant()
    def the_history_says_what_the_store_holds(self) -> None:
        for record in self.run.state.history:
            is_there = isinstance(self.store.get(record.checkpoint), Manifest)
            assert is_there == (record.status is Status.COMPLETED)
            assert record.state_bytes <= len(MEMBERS), "a duplicate inflated the size"

    @invariant()
    def every_request_is_answered_once_or_still_waits(self) -> None:
        state = self.run.state
        waiting = [request.id for request in state.queue]
        for pending in (state.collecting, state.deciding):
            waiting += [request.id for request in pending.pending.requests] if pending is not None else []
        if isinstance(state.publishing, Publishing):
            waiting += [request.id for request in state.publishing.requests]
        assert sorted(self.answered + waiting) == sorted(self.asked)

    @invariant()
    def nobody_is_waited_for_who_has_acknowledged(self) -> None:
        collecting = self.run.state.collecting
        if collecting is not None:
            assert len(collecting.reports) + len(collecting.waiting) == len(MEMBERS)


TestStorm = Storm.TestCase
TestStorm.settings = settings(max_examples=150, stateful_step_count=60, deadline=None)
