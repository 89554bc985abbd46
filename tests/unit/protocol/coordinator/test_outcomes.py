"""The coordinator, event by event: how a checkpoint ends, and how the coordinator itself does."""

from __future__ import annotations

from dataclasses import replace

import pytest

from penstock.errors import ProtocolViolation
from penstock.ids import CheckpointId, Generation
from penstock.protocol.barrier import BarrierFlag
from penstock.protocol.commit import decide_recommit
from penstock.protocol.coordinator.events import (
    AnnounceCompleted,
    AnswerRequest,
    CancelRequested,
    Commit,
    CommitFailed,
    FailJob,
    Finish,
    InputEnded,
    ManifestFailed,
    ManifestWritten,
    OutcomeFound,
    Prune,
    Refused,
    RequestCompleted,
    RequestDeclined,
    ReservationFailed,
    ReservationLost,
    ReserveIds,
    SendBarrier,
    StopFenced,
    Ticked,
    TombstoneFailed,
    TombstoneWritten,
    WakeAt,
    WriteManifest,
    WriteTombstone,
)
from penstock.protocol.coordinator.machine import PERMANENT_FAILURES_MAX
from penstock.protocol.coordinator.state import (
    Policy,
    RequestId,
    RequestKind,
    Reserved,
    Stop,
    WritingTombstone,
)
from penstock.protocol.declines import DeclineReason
from penstock.protocol.history import Status
from penstock.protocol.manifest import (
    CheckpointStats,
    SnapshotKind,
    SubtaskReport,
)
from penstock.protocol.ownership import Outcome, Tombstone
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


class TestWritingAndSettling:
    def test_a_durable_manifest_completes_the_checkpoint(self) -> None:
        run = writing()
        assert run.written(11) == (AnnounceCompleted(ID_11), Prune(bound(11)))
        assert (run.state.newest, run.state.deciding) == (ID_11, None)

    def test_retention_goes_by_the_policy(self) -> None:
        policy = replace(PLAIN, retained=2, stops_retained=7)
        run = writing(policy=policy)
        expected = replace(bound(11), retained=2, stops_retained=7)
        assert run.written(11) == (AnnounceCompleted(ID_11), Prune(expected))

    def test_a_manifest_that_may_have_been_written_is_voided_before_the_attempt_is_given_up(self) -> None:
        run = writing()
        assert run.feed(ManifestFailed(ID_11, "timed out", 1_200))[0] == WriteTombstone(Tombstone(ID_11, GENERATION))
        assert run.of(SendBarrier) == [SendBarrier(barrier(11, 1_000))]
        run.now_ms = 1_300
        assert run.feed(TombstoneWritten(ID_11, 1_300)) == (SendBarrier(barrier(11, 1_000).cancelled()),)
        assert run.state.wake_at_ms == 2_000
        assert run.state.history[-1].reason is DeclineReason.MANIFEST_FAILED
        assert run.state.history[-1].detail == "timed out"
        assert run.state.failures == 1

    def test_a_manifest_that_hangs_expires_by_the_tick(self) -> None:
        run = writing()
        assert run.tick(6_000)[0] == WriteTombstone(Tombstone(ID_11, GENERATION))
        run.feed(TombstoneWritten(ID_11, 6_001))
        assert run.state.history[-1].reason is DeclineReason.EXPIRED

    def test_a_retry_of_something_else_does_not_forget_that_the_manifest_expires(self) -> None:
        run = Run()
        run.ready()
        run.tick(1_000)
        run.collect(11, output())
        assert run.feed(ReservationFailed(block(12), "503", 1_010)) == (WakeAt(1_110),)
        assert run.reserved(12) == ()
        run.tick(1_110)
        assert run.state.wake_at_ms == 6_000

    def test_a_manifest_that_arrives_before_the_void_counts(self) -> None:
        run = writing()
        run.tick(6_000)
        assert AnnounceCompleted(ID_11) in run.written(11)
        assert run.state.history[-1].status is Status.COMPLETED

    def test_finding_our_own_manifest_means_that_it_was_written(self) -> None:
        run = writing()
        run.feed(ManifestFailed(ID_11, "timed out", 1_200))
        assert AnnounceCompleted(ID_11) in run.feed(OutcomeFound(Outcome(ID_11, GENERATION), 1_300))

    def test_finding_our_own_void_means_that_it_was_voided(self) -> None:
        run = writing()
        run.feed(ManifestFailed(ID_11, "timed out", 1_200))
        run.feed(OutcomeFound(Outcome(ID_11, GENERATION, is_tombstone=True), 1_300))
        assert run.state.history[-1].status is Status.DECLINED

    def test_finding_the_outcome_of_another_generation_fences(self) -> None:
        run = writing()
        run.ask(request(5))
        (stop, answer) = run.feed(OutcomeFound(Outcome(ID_11, Generation(4), is_tombstone=True), 1_200))
        reason = (
            "generation 4 decided the outcome of checkpoint 11: a newer generation has taken over, "
            "and generation 3 must stop"
        )
        assert stop == StopFenced(reason)
        assert answer == AnswerRequest(RequestId(5), RequestDeclined(DeclineReason.DRAINED, reason))
        assert run.state.stop is Stop.FENCED

    def test_a_second_failure_of_the_manifest_changes_nothing(self) -> None:
        run = writing()
        run.tick(6_000)
        before = run.state
        assert run.feed(ManifestFailed(ID_11, "timed out", 6_001)) == ()
        assert run.state == before

    def test_a_void_that_fails_is_tried_again_until_it_succeeds(self) -> None:
        run = writing()
        run.feed(ManifestFailed(ID_11, "timed out", 1_200))
        assert run.feed(TombstoneFailed(ID_11, "timed out", 1_300)) == (WakeAt(1_400),)
        assert run.tick(1_399) == ()
        assert run.tick(1_400)[0] == WriteTombstone(Tombstone(ID_11, GENERATION))
        assert run.tick(1_500) == ()
        assert run.feed(TombstoneFailed(ID_11, "timed out", 1_500)) == (WakeAt(1_700),)

    def test_a_store_that_never_answers_fails_the_job_and_does_not_hang_it(self) -> None:
        run = writing(output())
        run.ask(request(5))
        run.feed(ManifestFailed(ID_11, "timed out", 1_200))
        run.feed(TombstoneFailed(ID_11, "no route", 1_300))
        run.tick(1_400)
        assert run.tick(6_200)[0] == FailJob("the tombstone of checkpoint 11 did not succeed within 5000 ms: no route")

    def test_news_of_an_outcome_that_nobody_waits_for_is_refused(self) -> None:
        run = triggered()
        for event in (
            ManifestWritten(ID_11, 1_000),
            ManifestFailed(ID_11, "", 1_000),
            TombstoneWritten(ID_12, 1_000),
            TombstoneFailed(ID_11, "", 1_000),
        ):
            refused = Refused(f"news of the outcome of checkpoint {event.checkpoint}", NOT_IN_PROGRESS)
            assert run.feed(event) == (refused,)

    def test_news_of_the_outcome_of_another_checkpoint_is_refused(self) -> None:
        assert isinstance(writing().written(10)[0], Refused)

    @pytest.mark.parametrize("event", [TombstoneWritten(ID_11, 0), TombstoneFailed(ID_11, "", 0)])
    def test_a_void_that_nobody_ordered_is_a_bug(self, event: TombstoneWritten | TombstoneFailed) -> None:
        with pytest.raises(ProtocolViolation, match="checkpoint 11"):
            writing().feed(event)


class TestPublishing:
    def test_sinks_commit_only_after_the_manifest_is_durable_and_requests_are_answered_after_both(self) -> None:
        run = Run()
        run.ready()
        run.ask(request(1))
        run.collect(11, output())
        assert run.of(Commit) == []
        (announce, commit) = run.written(11)
        assert announce == AnnounceCompleted(ID_11)
        assert isinstance(commit, Commit)
        assert (commit.permit.checkpoint, commit.permit.generation) == (ID_11, GENERATION)
        assert commit.permit.committables == output().committables
        assert run.committed(11)[:2] == (AnswerRequest(RequestId(1), RequestCompleted(ID_11)), Prune(bound(11)))

    def test_no_checkpoint_begins_before_the_last_one_is_committed(self) -> None:
        run = writing(output())
        run.written(11)
        run.ask(request(1))
        assert run.tick(3_000) == ()
        assert SendBarrier(barrier(12, 3_000, completed=11)) in run.committed(11)

    def test_a_commit_that_fails_is_tried_again(self) -> None:
        run = writing(output())
        commit = run.written(11)[1]
        assert run.feed(CommitFailed(ID_11, "503", 1_150)) == (WakeAt(1_250),)
        assert run.tick(1_250)[0] == commit
        run.committed(11)
        assert run.state.publishing is None

    def test_a_commit_that_never_ends_fails_the_job_and_its_request(self) -> None:
        run = Run()
        run.ready()
        run.ask(request(1))
        run.reserved(12)
        run.collect(11, output())
        run.written(11)
        run.feed(CommitFailed(ID_11, "503", 100))
        why = "the commit of checkpoint 11 did not succeed within 5000 ms: 503"
        assert run.tick(5_000) == (
            FailJob(why, is_of_commit=True),
            AnswerRequest(RequestId(1), RequestDeclined(DeclineReason.DRAINED, why)),
        )

    def test_a_commit_has_its_own_time(self) -> None:
        run = Run(replace(PLAIN, commit_timeout_ms=2_000))
        run.ready()
        run.ask(request(1))
        run.reserved(12)
        run.collect(11, output())
        run.written(11)
        run.feed(CommitFailed(ID_11, "503", 100))
        assert not any(isinstance(action, FailJob) for action in run.tick(1_999))
        assert run.tick(2_000)[0] == FailJob("the commit of checkpoint 11 did not succeed within 2000 ms: 503", True)

    def test_a_commit_whose_error_does_not_pass_is_tried_three_times(self) -> None:
        run = writing(output())
        commit = run.written(11)[1]
        for number in range(1, PERMANENT_FAILURES_MAX):
            run.feed(CommitFailed(ID_11, "no right", 1_000 * number, is_permanent=True))
            assert run.tick(1_000 * number + 500)[0] == commit
        ending = run.feed(CommitFailed(ID_11, "no right", 4_000, is_permanent=True))
        assert ending == (FailJob("the commit of checkpoint 11 failed 3 times: no right", is_of_commit=True),)

    def test_what_a_manifest_names_cannot_be_cancelled(self) -> None:
        run = writing(output())
        run.written(11)
        assert run.feed(CancelRequested(None, 1_200)) == (
            Refused("cancelling checkpoint in progress", NOT_IN_PROGRESS),
        )
        assert run.state.publishing is not None

    def test_news_of_another_commit_is_refused(self) -> None:
        refused = Refused("news of the commit of checkpoint 10", NOT_IN_PROGRESS)
        assert writing().committed(10) == (refused,)
        run = writing(output())
        run.written(11)
        assert run.committed(10) == (refused,)

    def test_after_a_restart_the_restored_checkpoint_is_committed_before_anything_begins(self) -> None:
        restored = replace(manifest_11(output()), checkpoint=checkpoint_id(9), generation=Generation(2))
        permit = decide_recommit(restored, GENERATION, is_committed=False)
        assert permit is not None
        run = Run(restored=checkpoint_id(9), recommit=permit)
        assert run.actions == [Commit(permit), WakeAt(5_000)]
        run.ready()
        assert run.tick(2_000) == ()
        actions = run.committed(9)
        assert actions[:2] == (Prune(bound(9, 9)), SendBarrier(barrier(11, 2_000, completed=9)))


class TestIds:
    def test_ids_go_on_where_an_earlier_run_ended(self) -> None:
        run = Run(restored=checkpoint_id(9))
        run.ready()
        assert run.tick(1_000)[0] == SendBarrier(barrier(FIRST, 1_000, completed=9))

    def test_a_reservation_taken_by_somebody_else_fences(self) -> None:
        run = Run()
        run.ready()
        run.tick(1_000)
        (stop,) = run.feed(ReservationLost(block(12), 1_001))
        assert isinstance(stop, StopFenced)
        assert "checkpoint id 12 is reserved by another generation" in stop.reason
        assert run.acknowledge(11, READ) == (
            Refused("acknowledgement of checkpoint 11 by read[0]", "a newer generation has taken over"),
        )

    def test_a_reservation_that_fails_is_tried_again_and_then_used(self) -> None:
        run = Run()
        run.ready()
        run.tick(1_000)
        assert run.feed(ReservationFailed(block(12), "503", 1_010)) == (WakeAt(1_110),)
        assert run.tick(1_110) == (ReserveIds(block(12)),)
        run.reserved(12)
        assert run.state.reserved == Reserved(block(12), ID_12, 1_000)

    def test_a_reservation_that_never_succeeds_fails_the_job(self) -> None:
        run = Run()
        run.ready()
        run.ask(request(1))
        run.collect(11)
        run.written(11)
        assert run.tick(5_000) == (
            FailJob("the reservation of checkpoint ids 12 to 13 did not succeed within 5000 ms: no answer"),
        )

    def test_news_of_a_reservation_that_nobody_asked_for_is_refused(self) -> None:
        refused = Refused("news of the reservation of checkpoint id 12", "nobody asked for it")
        assert triggered().reserved(12) == (refused,)
        run = Run()
        run.ready()
        run.tick(1_000)
        assert isinstance(run.reserved(13)[0], Refused)


class TestCancelling:
    @pytest.mark.parametrize("which", [None, ID_11])
    def test_a_checkpoint_can_be_cancelled_while_it_collects(self, which: CheckpointId | None) -> None:
        run = triggered()
        assert run.feed(CancelRequested(which, 1_200))[0] == SendBarrier(barrier(11, 1_000).cancelled())
        assert run.state.history[-1].reason is DeclineReason.CANCELLED
        assert run.state.failures == 0

    def test_cancelling_while_the_manifest_is_written_leaves_it_to_the_store(self) -> None:
        run = writing()
        assert run.feed(CancelRequested(ID_11, 1_200))[0] == WriteTombstone(Tombstone(ID_11, GENERATION))
        assert isinstance(run.state.deciding, WritingTombstone)
        assert run.feed(CancelRequested(ID_11, 1_300)) == ()

    def test_another_checkpoint_is_not_cancelled(self) -> None:
        run = triggered()
        assert run.feed(CancelRequested(ID_12, 1_200)) == (Refused("cancelling checkpoint 12", NOT_IN_PROGRESS),)


class TestTheEndOfInput:
    def ended(self, policy: Policy = ON_REQUEST) -> Run:
        run = Run(policy)
        run.ready()
        for member in sorted(MEMBERS):
            run.feed(InputEnded(member, 50))
        run.now_ms = 50
        return run

    def test_a_final_checkpoint_comes_as_soon_as_everybody_has_ended(self) -> None:
        run = self.ended()
        assert run.of(SendBarrier) == [SendBarrier(barrier(11, 50, BarrierFlag.DRAIN))]
        (written,) = run.collect(11, output())
        assert isinstance(written, WriteManifest)
        assert (written.manifest.is_final, written.manifest.is_savepoint) == (True, False)

    def test_the_pipeline_finishes_only_after_the_final_checkpoint_is_committed(self) -> None:
        run = self.ended()
        run.collect(11, output())
        run.written(11)
        assert run.of(Finish) == []
        assert run.committed(11) == (Prune(bound(11)), Finish(ID_11))

    def test_one_subtask_that_goes_on_keeps_the_pipeline_going(self) -> None:
        run = Run(ON_REQUEST)
        run.ready()
        run.feed(InputEnded(READ, 50))
        run.feed(InputEnded(READ, 51))
        run.feed(InputEnded(COUNT_0, 52))
        assert run.of(SendBarrier) == []

    def test_the_final_checkpoint_is_tried_until_one_completes(self) -> None:
        run = self.ended()
        run.reserved(12)
        assert run.decline(11, DeclineReason.STORAGE_FAILED)[-1] == WakeAt(150)
        assert SendBarrier(barrier(12, 150, BarrierFlag.DRAIN)) in run.tick(150)

    def test_a_checkpoint_in_progress_at_the_end_is_not_the_final_one(self) -> None:
        run = triggered(ON_REQUEST)
        run.ask(request(1))
        for member in sorted(MEMBERS):
            run.feed(InputEnded(member, 1_050))
        run.reserved(12)
        run.now_ms = 1_060
        assert SendBarrier(barrier(12, 1_060, BarrierFlag.DRAIN)) in run.collect(11)
        assert not any(isinstance(action, Finish) for action in run.written(11))

    def test_a_savepoint_asked_for_at_the_end_comes_first(self) -> None:
        run = triggered()
        run.ask(request(1, RequestKind.SAVEPOINT))
        for member in sorted(MEMBERS):
            run.feed(InputEnded(member, 1_050))
        savepoint = BarrierFlag.SAVEPOINT
        assert SendBarrier(barrier(12, 1_000, savepoint, None)) in run.collect(11)

    def test_the_end_of_a_stranger_is_refused(self) -> None:
        refused = Refused("end of input of stranger[0]", "it is not a member of this pipeline")
        assert Run().feed(InputEnded(STRANGER, 0)) == (refused,)

    def test_after_the_end_nothing_is_accepted_and_everybody_is_answered(self) -> None:
        run = self.ended()
        run.collect(11)
        run.written(11)
        over = "the pipeline has finished"
        assert run.ask(request(9)) == (AnswerRequest(RequestId(9), RequestDeclined(DeclineReason.DRAINED, over)),)
        assert run.acknowledge(11, READ) == (Refused("acknowledgement of checkpoint 11 by read[0]", over),)
        assert run.decline(11, DeclineReason.EXPIRED) == (
            Refused("decline of checkpoint 11 by count[0]: expired", over),
        )
        assert run.feed(Ticked(10_000_000)) == ()


class TestHistory:
    def test_it_shows_the_figures_that_users_look_for(self) -> None:
        run = triggered()
        run.now_ms = 1_100
        slow = CheckpointStats(
            start_delay_ms=40, alignment_ms=30, synchronous_ms=2, asynchronous_ms=9, state_bytes=100, inflight_bytes=7
        )
        run.collect(11, SubtaskReport(READ, figures=CheckpointStats(start_delay_ms=1, state_bytes=11)))
        run.now_ms = 1_150
        run.written(11)
        assert (run.state.history[-1].duration_ms, run.state.history[-1].is_unaligned) == (150, False)
        run.tick(2_000)
        run.collect(12, SubtaskReport(COUNT_1, SnapshotKind.TIMED_OUT, figures=slow), SubtaskReport(READ, figures=slow))
        run.written(12)
        record = run.state.history[-1]
        assert [each.subtask for each in record.subtasks] == sorted(MEMBERS)
        assert record.subtasks[1].figures == slow
        assert (record.start_delay_ms, record.alignment_ms, record.synchronous_ms, record.asynchronous_ms) == (
            40,
            30,
            2,
            9,
        )
        assert (record.state_bytes, record.inflight_bytes, record.is_unaligned) == (200, 14, True)

    def test_it_is_bounded_and_newest_last(self) -> None:
        run = triggered(replace(PLAIN, history_max=2, failures_tolerable=9))
        for number in (11, 12, 13):
            run.decline(number, DeclineReason.EXPIRED)
            run.tick(run.now_ms + 20_000)
            run.reserved(number + 2)
        assert [record.checkpoint for record in run.state.history] == [12, 13]
