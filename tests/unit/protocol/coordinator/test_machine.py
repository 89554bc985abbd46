"""The coordinator, event by event: when a checkpoint begins, who takes part, and how long it may take.

The defects of the documents it goes back to have their sentences here and in `test_coordinator_outcomes`.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from penstock.errors import OptionError, ProtocolViolation
from penstock.ids import NO_CHECKPOINT, EdgeId, Generation, OperatorName, SubtaskId
from penstock.protocol.barrier import Barrier, BarrierFlag
from penstock.protocol.commit import decide_recommit
from penstock.protocol.coordinator.events import (
    Acknowledged,
    AnnounceCompleted,
    AnswerRequest,
    Declined,
    FailJob,
    Finish,
    Prune,
    Refused,
    RequestCompleted,
    RequestDeclined,
    ReserveIds,
    SendBarrier,
    WakeAt,
    WriteManifest,
)
from penstock.protocol.coordinator.invariants import check
from penstock.protocol.coordinator.machine import start
from penstock.protocol.coordinator.state import (
    Collecting,
    Mode,
    Policy,
    RequestId,
    RequestKind,
    Reserving,
    Retry,
    Stop,
)
from penstock.protocol.declines import DeclineReason
from penstock.protocol.history import CheckpointRecord, Status
from penstock.protocol.manifest import (
    ChannelSegment,
    CheckpointStats,
    Segment,
    Side,
    SnapshotKind,
    SplitState,
    SubtaskReport,
)
from tests.unit.protocol.coordinator.kit import (
    COUNT_0,
    COUNT_1,
    FIRST,
    GENERATION,
    ID_11,
    ID_12,
    MEMBERS,
    NOT_IN_PROGRESS,
    ON_REQUEST,
    PLAIN,
    READ,
    SHAPE,
    STRANGER,
    Run,
    barrier,
    block,
    bound,
    checkpoint_id,
    manifest_11,
    output,
    request,
    triggered,
    writing,
)


class TestTriggering:
    def test_nothing_is_triggered_before_everybody_is_ready(self) -> None:
        run = Run()
        assert run.tick(10_000_000) == ()
        assert run.ready() == (WakeAt(10_001_000),)

    def test_the_interval_triggers_and_the_next_id_is_reserved_at_once(self) -> None:
        run = Run()
        assert run.ready() == (WakeAt(1_000),)
        assert run.tick(999) == ()
        assert run.tick(1_000) == (SendBarrier(barrier(11, 1_000)), ReserveIds(block(12)), WakeAt(6_000))
        assert run.state.collecting is not None
        assert run.state.reserving == Reserving(block(12), Retry(1_000))

    def test_being_ready_twice_moves_nothing(self) -> None:
        run = Run()
        run.ready()
        before = run.state
        run.now_ms = 700
        assert run.ready() == ()
        assert run.state == before

    def test_a_trigger_waits_for_its_id_and_comes_when_the_id_does(self) -> None:
        run = Run()
        run.ready()
        run.tick(1_000)
        run.collect(11)
        run.written(11)
        assert run.tick(2_000) == ()
        run.now_ms = 2_050
        assert SendBarrier(barrier(12, 2_050, completed=11)) in run.reserved(12)

    @pytest.mark.parametrize(
        ("mode", "flags", "timeout_ms"),
        [
            (Mode.ALIGNED, BarrierFlag.NONE, None),
            (Mode.UNALIGNED, BarrierFlag.UNALIGNED, None),
            (Mode.ALIGNED_WITH_TIMEOUT, BarrierFlag.NONE, 200),
        ],
    )
    def test_the_mode_is_in_the_barrier(self, mode: Mode, flags: BarrierFlag, timeout_ms: int | None) -> None:
        run = triggered(replace(PLAIN, mode=mode))
        assert run.of(SendBarrier) == [SendBarrier(barrier(11, 1_000, flags, timeout_ms))]

    @pytest.mark.parametrize("mode", list(Mode))
    def test_one_checkpoint_at_a_time_in_every_mode(self, mode: Mode) -> None:
        run = triggered(replace(PLAIN, mode=mode))
        run.ask(request(1))
        run.tick(4_999)
        assert len(run.of(SendBarrier)) == 1

    def test_a_long_checkpoint_is_followed_by_the_next_as_soon_as_the_pause_allows(self) -> None:
        run = triggered(replace(PLAIN, pause_ms_min=300))
        run.now_ms = 3_500
        run.collect(11)
        assert run.written(11)[-1] == WakeAt(3_800)
        assert run.tick(3_799) == ()
        assert SendBarrier(barrier(12, 3_800, completed=11)) in run.tick(3_800)

    def test_a_request_waits_neither_for_the_interval_nor_for_the_pause(self) -> None:
        run = triggered(replace(PLAIN, pause_ms_min=60_000))
        run.collect(11)
        run.written(11)
        run.now_ms = 1_200
        assert SendBarrier(barrier(12, 1_200, completed=11)) in run.ask(request(1))

    def test_without_an_interval_only_requests_trigger(self) -> None:
        run = Run(ON_REQUEST)
        assert run.ready() == ()
        assert run.tick(10_000_000) == ()
        run.ask(request(1))
        assert run.of(SendBarrier) == [SendBarrier(barrier(11, 10_000_000))]

    def test_a_request_is_waited_for_from_its_own_trigger_on(self) -> None:
        run = Run()
        run.ready()
        run.now_ms = 900
        run.ask(request(1))
        run.collect(11)
        run.written(11)
        run.reserved(12)
        assert run.tick(1_000) == (WakeAt(1_900),)
        assert SendBarrier(barrier(12, 1_900, completed=11)) in run.tick(1_900)


class TestRequests:
    def test_all_who_just_want_a_checkpoint_share_one(self) -> None:
        run = triggered()
        run.ask(request(1))
        run.ask(request(2, RequestKind.SAVEPOINT))
        run.ask(request(3))
        run.collect(11)
        run.written(11)
        run.collect(12)
        assert run.written(12)[1:3] == (
            AnswerRequest(RequestId(1), RequestCompleted(ID_12)),
            AnswerRequest(RequestId(3), RequestCompleted(ID_12)),
        )
        assert run.state.queue == (request(2, RequestKind.SAVEPOINT),)

    def test_a_savepoint_is_aligned_and_never_times_out_into_unaligned(self) -> None:
        run = Run(replace(PLAIN, mode=Mode.UNALIGNED))
        run.ready()
        run.ask(request(1, RequestKind.SAVEPOINT))
        flags = BarrierFlag.SAVEPOINT
        assert run.of(SendBarrier) == [SendBarrier(barrier(11, 0, flags, None))]
        written = run.collect(11)[0]
        assert isinstance(written, WriteManifest)
        assert (written.manifest.is_savepoint, written.manifest.is_final) == (True, False)

    def test_a_drain_is_a_savepoint_after_which_nothing_comes(self) -> None:
        run = Run()
        run.ready()
        run.ask(request(1, RequestKind.DRAIN))
        run.ask(request(2))
        flags = BarrierFlag.SAVEPOINT | BarrierFlag.DRAIN
        assert run.of(SendBarrier) == [SendBarrier(barrier(11, 0, flags, None))]
        run.collect(11)
        assert run.written(11) == (
            AnnounceCompleted(ID_11),
            AnswerRequest(RequestId(1), RequestCompleted(ID_11)),
            Prune(bound(11)),
            Finish(ID_11),
            AnswerRequest(RequestId(2), RequestDeclined(DeclineReason.DRAINED, "finished with checkpoint 11")),
        )
        assert run.state.stop is Stop.FINISHED
        assert run.tick(1_000_000) == ()

    def test_a_failed_drain_leaves_the_job_running_and_says_why(self) -> None:
        run = Run()
        run.ready()
        run.ask(request(1, RequestKind.DRAIN))
        run.reserved(12)
        actions = run.decline(11, DeclineReason.SNAPSHOT_FAILED, detail="disk full")
        assert (
            AnswerRequest(RequestId(1), RequestDeclined(DeclineReason.SNAPSHOT_FAILED, "count[0]: disk full"))
            in actions
        )
        assert run.state.stop is None
        assert SendBarrier(barrier(12, 1_000)) in run.tick(1_000)

    def test_a_request_too_many_is_answered_at_once(self) -> None:
        run = triggered(replace(PLAIN, requests_max=1))
        assert run.ask(request(1)) == ()
        assert run.ask(request(2)) == (
            AnswerRequest(
                RequestId(2),
                RequestDeclined(DeclineReason.CANCELLED, "1 requests are waiting already; try again later"),
            ),
        )


class TestCollecting:
    def test_the_manifest_is_written_when_the_last_one_acknowledged(self) -> None:
        run = triggered()
        assert run.acknowledge(11, READ) == ()
        assert run.acknowledge(11, COUNT_1) == ()
        run.now_ms = 1_100
        assert run.acknowledge(11, COUNT_0) == (WriteManifest(manifest_11()), WakeAt(2_000))

    def test_positions_watermarks_and_channels_of_the_same_cut_are_in_the_manifest(self) -> None:
        read = SubtaskReport(
            READ,
            splits=(SplitState(OperatorName("read"), "0", b"42"),),
            watermarks=((OperatorName("read"), 7),),
        )
        edge = EdgeId(OperatorName("read"), OperatorName("count"), 0)
        count = SubtaskReport(
            COUNT_0,
            SnapshotKind.TIMED_OUT,
            channels=(ChannelSegment(edge, 0, 0, Side.RECEIVER, Segment(4, 0, "blob"), rows=1),),
        )
        run = triggered()
        run.now_ms = 1_100
        assert run.collect(11, read, count) == (WriteManifest(manifest_11(read, count)), WakeAt(2_000))

    def test_the_manifest_names_the_checkpoints_that_the_takeover_found(self) -> None:
        older = (checkpoint_id(3), checkpoint_id(8))
        state, _ = start(PLAIN, GENERATION, SHAPE, MEMBERS, ID_11, older=older)
        run = triggered()
        run.state = replace(run.state, older=state.older)
        (written, _) = run.collect(11)
        assert isinstance(written, WriteManifest)
        assert (written.manifest.first, written.manifest.older) == (ID_11, older)

    def refused(self, run: Run, event: Acknowledged | Declined, why: str) -> None:
        before = run.state
        (action,) = run.feed(event)
        assert isinstance(action, Refused)
        assert action.why == why
        assert run.state == before

    def test_an_acknowledgement_of_another_checkpoint_is_refused(self) -> None:
        late = Acknowledged(checkpoint_id(10), GENERATION, SubtaskReport(READ), 1_000)
        self.refused(triggered(), late, NOT_IN_PROGRESS)

    def test_an_acknowledgement_without_a_checkpoint_in_progress_is_refused(self) -> None:
        self.refused(Run(), Acknowledged(ID_11, GENERATION, SubtaskReport(READ), 0), NOT_IN_PROGRESS)

    def test_an_acknowledgement_of_another_generation_is_refused(self) -> None:
        old = Acknowledged(ID_11, Generation(2), SubtaskReport(READ), 1_000)
        self.refused(triggered(), old, "it is of generation 2 and this is 3")

    def test_an_acknowledgement_by_a_stranger_is_refused(self) -> None:
        strange = Acknowledged(ID_11, GENERATION, SubtaskReport(STRANGER), 1_000)
        self.refused(triggered(), strange, "it is not a member of this pipeline")

    def test_a_second_acknowledgement_is_refused_and_inflates_nothing(self) -> None:
        run = triggered()
        large = SubtaskReport(READ, figures=CheckpointStats(state_bytes=1_000))
        run.acknowledge(11, large)
        self.refused(run, Acknowledged(ID_11, GENERATION, large, 1_000), "it has acknowledged before")
        run.collect(11, SubtaskReport(COUNT_0, figures=CheckpointStats(state_bytes=1)))
        run.written(11)
        assert run.state.history[-1].state_bytes == 1_001

    def test_an_acknowledgement_after_the_last_one_is_refused(self) -> None:
        late = Acknowledged(ID_11, GENERATION, SubtaskReport(READ), 1_100)
        self.refused(writing(), late, "everybody has acknowledged already")

    def test_an_acknowledgement_of_an_attempt_that_was_declined_is_refused(self) -> None:
        run = triggered()
        run.decline(11, DeclineReason.SNAPSHOT_FAILED)
        self.refused(run, Acknowledged(ID_11, GENERATION, SubtaskReport(READ), 1_000), NOT_IN_PROGRESS)

    def test_a_decline_of_a_stale_checkpoint_is_refused(self) -> None:
        stale = Declined(checkpoint_id(10), GENERATION, READ, DeclineReason.SNAPSHOT_FAILED, "", 1_000)
        self.refused(triggered(), stale, NOT_IN_PROGRESS)

    def test_a_decline_ends_the_attempt_everywhere(self) -> None:
        run = triggered()
        run.now_ms = 1_200
        assert run.decline(11, DeclineReason.CAPTURE_OVERFLOW, detail="300 MB") == (
            SendBarrier(barrier(11, 1_000).cancelled()),
            WakeAt(2_000),
        )
        assert run.state.collecting is None
        assert run.state.history == (
            CheckpointRecord(
                ID_11,
                BarrierFlag.NONE,
                Status.DECLINED,
                1_000,
                1_200,
                (),
                DeclineReason.CAPTURE_OVERFLOW,
                "count[0]: 300 MB",
            ),
        )

    def test_one_who_has_acknowledged_may_still_decline(self) -> None:
        run = triggered()
        run.acknowledge(11, COUNT_0)
        run.decline(11, DeclineReason.LATE_BARRIER_TIMEOUT)
        assert run.state.collecting is None

    def test_the_id_of_a_declined_attempt_is_never_used_again(self) -> None:
        run = triggered(replace(PLAIN, failures_tolerable=100))
        for number in range(11, 20):
            run.decline(number, DeclineReason.SNAPSHOT_FAILED)
            run.tick(run.now_ms + 20_000)
            run.reserved(number + 2)
        sent = [action.barrier.checkpoint for action in run.of(SendBarrier) if not action.barrier.is_cancel]
        assert sent == list(range(11, 21))


class TestTime:
    def test_an_attempt_expires_by_the_tick_although_nobody_reports(self) -> None:
        run = triggered()
        run.acknowledge(11, READ)
        assert run.tick(5_999) == ()
        assert run.tick(6_000) == (SendBarrier(barrier(11, 1_000).cancelled()), WakeAt(6_100))
        record = run.state.history[-1]
        assert record.reason is DeclineReason.EXPIRED
        assert record.detail == "no acknowledgement from count[0], count[1] within 5000 ms"
        assert [each.subtask for each in record.subtasks] == [READ]

    def test_a_late_report_does_not_expire_an_attempt(self) -> None:
        run = triggered()
        run.now_ms = 9_000
        run.collect(11)
        assert run.of(WriteManifest) != []

    def test_after_expiry_the_next_checkpoint_begins_by_itself(self) -> None:
        run = triggered()
        run.tick(6_000)
        assert SendBarrier(barrier(12, 6_100)) in run.tick(6_100)
        run.collect(12)
        assert AnnounceCompleted(ID_12) in run.written(12)

    def test_a_thousand_silent_subtasks_are_counted_and_not_listed(self) -> None:
        members = frozenset(SubtaskId(OperatorName("map"), index) for index in range(8))
        run = triggered()
        assert run.state.collecting is not None
        collecting = replace(run.state.collecting, waiting=members)
        run.state = replace(run.state, members=members, collecting=collecting)
        run.tick(6_000)
        assert "map[0], map[1], map[2], map[3], map[4] and 3 more within" in run.state.history[-1].detail

    def test_a_wake_up_call_that_came_is_not_waited_for_any_longer(self) -> None:
        restored = replace(manifest_11(output()), checkpoint=checkpoint_id(9), generation=Generation(2))
        run = Run(ON_REQUEST, restored.checkpoint, decide_recommit(restored, GENERATION, is_committed=False))
        run.committed(9)
        assert run.tick(4_999) == ()
        assert run.state.wake_at_ms == 5_000
        assert run.tick(5_000) == ()
        assert run.state.wake_at_ms is None

    def test_a_tick_too_early_orders_nothing_new(self) -> None:
        run = triggered()
        before = run.state
        assert run.tick(1_001) == ()
        assert run.state == before

    def test_failures_in_a_row_beyond_the_tolerable_fail_the_job_with_the_cause(self) -> None:
        run = triggered(replace(PLAIN, failures_tolerable=1))
        run.decline(11, DeclineReason.STORAGE_FAILED)
        run.tick(2_000)
        run.ask(request(7))
        actions = run.decline(12, DeclineReason.SNAPSHOT_FAILED, detail="KeyError: 'x'")
        why = "2 checkpoints in a row failed, the last one, 12: snapshot failed (count[0]: KeyError: 'x')"
        assert actions == (
            SendBarrier(barrier(12, 2_000).cancelled()),
            FailJob(why),
            AnswerRequest(RequestId(7), RequestDeclined(DeclineReason.DRAINED, why)),
        )
        assert run.state.stop is Stop.FAILED

    def test_a_completed_checkpoint_forgives_the_failures_before_it(self) -> None:
        run = triggered(replace(PLAIN, failures_tolerable=1))
        run.decline(11, DeclineReason.STORAGE_FAILED)
        run.tick(2_000)
        run.reserved(13)
        run.collect(12)
        run.written(12)
        run.tick(3_000)
        run.decline(13, DeclineReason.STORAGE_FAILED)
        assert (run.state.failures, run.state.failures_in_a_row, run.state.stop) == (1, 1, None)

    def test_uncounted_declines_never_fail_the_job_and_never_spin(self) -> None:
        run = triggered(replace(PLAIN, failures_tolerable=0, backoff_ms_max=1_600))
        tries_ms = []
        for number in range(11, 19):
            run.decline(number, DeclineReason.SUBTASK_NOT_READY)
            declined_at_ms = run.now_ms
            while run.state.collecting is None:
                assert run.state.wake_at_ms is not None
                run.tick(run.state.wake_at_ms)
            tries_ms.append(run.now_ms - declined_at_ms)
            run.reserved(number + 2)
        assert tries_ms == [100, 200, 400, 800, 1_600, 1_600, 1_600, 1_600]
        assert run.state.stop is None

    def test_a_periodic_checkpoint_at_a_bad_moment_does_not_wait_for_a_whole_interval(self) -> None:
        run = triggered(replace(PLAIN, interval_ms=1_000, pause_ms_min=250))
        assert run.decline(11, DeclineReason.SUBTASK_NOT_READY)[-1] == WakeAt(1_250)

    def test_a_requested_checkpoint_at_a_bad_moment_leaves_the_interval_as_it_is(self) -> None:
        run = Run()
        run.ready()
        run.ask(request(1))
        run.reserved(12)
        run.decline(11, DeclineReason.SUBTASK_NOT_READY)
        assert (run.state.wake_at_ms, run.state.due_at_ms) == (1_000, 1_000)

    def test_requests_respect_the_backoff(self) -> None:
        run = Run(ON_REQUEST)
        run.ready()
        run.ask(request(1))
        run.reserved(12)
        run.decline(11, DeclineReason.SUBTASK_NOT_READY)
        assert run.ask(request(2)) == (WakeAt(100),)
        assert SendBarrier(barrier(12, 100)) in run.tick(100)


class TestPolicy:
    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"interval_ms": 0}, "interval_ms is 0 and must be at least 1; None switches"),
            ({"checkpoint_timeout_ms": 0}, "checkpoint_timeout_ms is 0"),
            ({"commit_timeout_ms": 0}, "commit_timeout_ms is 0"),
            ({"retained": 0}, "retained is 0"),
            ({"pause_ms_min": -1}, "pause_ms_min is -1 and must be at least 0"),
            ({"failures_tolerable": -1}, "failures_tolerable"),
            ({"alignment_timeout_ms": -1}, "alignment_timeout_ms"),
            ({"backoff_ms": 50, "backoff_ms_max": 49}, "backoff_ms_max is 49 and must be at least 50"),
        ],
    )
    def test_values_that_cannot_work_are_refused(self, options: dict[str, int], message: str) -> None:
        with pytest.raises(OptionError, match=message):
            Policy(**options)

    def test_the_backoff_stays_bounded_after_any_number_of_setbacks(self) -> None:
        assert Policy().backoff_after(10**9) == Policy().backoff_ms_max

    def test_a_pipeline_has_members(self) -> None:
        with pytest.raises(ProtocolViolation, match="without members"):
            start(Policy(), GENERATION, SHAPE, frozenset(), FIRST)


class TestInvariants:
    def test_a_broken_state_is_reported_with_every_broken_condition(self) -> None:
        run = triggered()
        assert run.state.collecting is not None
        twice = replace(run.state.collecting, reports=(SubtaskReport(READ), SubtaskReport(READ)))
        broken = replace(run.state, collecting=twice, ended=frozenset({STRANGER}), failures=1)
        with pytest.raises(ProtocolViolation) as caught:
            check(broken)
        for text in ("ended who is no member", "counted twice", "still waited for", "more failures than"):
            assert text in str(caught.value)

    def test_an_id_that_was_used_before_is_found(self) -> None:
        run = triggered()
        pending = replace(run.state.collecting.pending, barrier=Barrier(NO_CHECKPOINT, GENERATION))  # type: ignore[union-attr]
        with pytest.raises(ProtocolViolation, match="the id of an attempt was used already"):
            check(replace(run.state, collecting=Collecting(pending, MEMBERS)))

    def test_anything_that_goes_on_after_the_end_is_found(self) -> None:
        with pytest.raises(ProtocolViolation, match="after the end"):
            check(replace(triggered().state, stop=Stop.FENCED))

    def test_neither_an_id_in_hand_nor_one_being_reserved_is_found(self) -> None:
        with pytest.raises(ProtocolViolation, match="not exactly one block"):
            check(replace(Run().state, reserved=None))
