"""The coordinator while two attempts are in its hands: the manifest of one is written, the next one collects."""

from __future__ import annotations

from dataclasses import replace

import pytest

from penstock.errors import ProtocolViolation
from penstock.ids import Generation
from penstock.protocol.barrier import BarrierFlag
from penstock.protocol.coordinator.events import (
    Acknowledged,
    AnnounceCompleted,
    AnswerRequest,
    CancelRequested,
    Commit,
    Finish,
    InputEnded,
    ManifestFailed,
    OutcomeFound,
    Refused,
    RequestCompleted,
    RequestDeclined,
    SendBarrier,
    StopFenced,
    TombstoneWritten,
    WakeAt,
    WriteManifest,
    WriteTombstone,
)
from penstock.protocol.coordinator.invariants import check
from penstock.protocol.coordinator.state import RequestId, RequestKind, Writing, WritingTombstone
from penstock.protocol.declines import DeclineReason
from penstock.protocol.history import Status
from penstock.protocol.manifest import SubtaskReport
from penstock.protocol.ownership import Outcome, Tombstone
from tests.unit.protocol.coordinator.kit import (
    GENERATION,
    ID_11,
    ID_12,
    MEMBERS,
    PLAIN,
    READ,
    Run,
    barrier,
    checkpoint_id,
    output,
    request,
    triggered,
    writing,
)

CLOSE = replace(PLAIN, interval_ms=1)
ID_13 = checkpoint_id(13)


def overlapping() -> Run:
    """The manifest of 11 is being written and 12 collects since 2000 ms; id 13 is in hand."""
    run = writing()
    run.tick(2_000)
    run.reserved(13)
    return run


def written(run: Run) -> list[int]:
    return [action.manifest.checkpoint for action in run.of(WriteManifest)]


class TestBeginning:
    def test_the_next_one_begins_while_the_manifest_is_written(self) -> None:
        run = writing()
        assert SendBarrier(barrier(12, 2_000)) in run.tick(2_000)
        assert isinstance(run.state.deciding, Writing)

    def test_where_checkpoints_are_back_to_back_it_begins_at_once(self) -> None:
        run = triggered(CLOSE)
        run.now_ms = 1_100
        assert SendBarrier(barrier(12, 1_100)) in run.collect(11)

    def test_not_if_there_will_be_output_to_publish(self) -> None:
        run = writing(output(), policy=CLOSE)
        run.tick(2_000)
        run.written(11)
        assert run.of(SendBarrier) == [SendBarrier(barrier(11, 1_000))]
        assert SendBarrier(barrier(12, 2_000, completed=11)) in run.committed(11)

    def test_not_after_the_last_one(self) -> None:
        run = triggered()
        run.ask(request(1, RequestKind.DRAIN))
        run.collect(11)
        run.reserved(13)
        run.ask(request(2))
        run.collect(12)
        assert run.tick(4_000) == ()
        assert Finish(ID_12) in (*run.written(11), *run.written(12))

    def test_not_if_there_is_to_be_a_pause(self) -> None:
        run = writing(policy=replace(CLOSE, pause_ms_min=50))
        assert run.tick(2_000) == ()
        run.written(11)
        assert SendBarrier(barrier(12, 2_050, completed=11)) in run.tick(2_050)

    def test_but_a_request_waits_for_no_pause(self) -> None:
        run = writing(policy=replace(PLAIN, pause_ms_min=50))
        assert SendBarrier(barrier(12, 1_100)) in run.ask(request(1))

    def test_not_while_nobody_knows_whether_the_manifest_exists(self) -> None:
        run = writing()
        run.feed(ManifestFailed(ID_11, "timed out", 1_200))
        assert run.tick(2_000) == ()
        run.feed(TombstoneWritten(ID_11, 2_050))
        assert SendBarrier(barrier(12, 2_150)) in run.tick(2_150)

    def test_the_final_one_does_not_wait_either(self) -> None:
        run = writing()
        for member in sorted(MEMBERS)[:-1]:
            run.feed(InputEnded(member, 1_200))
        assert SendBarrier(barrier(12, 1_200, BarrierFlag.DRAIN)) in run.feed(InputEnded(max(MEMBERS), 1_200))
        run.collect(12)
        run.written(11)
        assert Finish(ID_12) in run.written(12)


class TestTheOrderOfManifests:
    def test_a_manifest_waits_for_the_outcome_of_the_one_before(self) -> None:
        run = overlapping()
        run.collect(12)
        assert written(run) == [11]
        actions = run.written(11)
        assert AnnounceCompleted(ID_11) in actions
        assert written(run) == [11, 12]
        assert AnnounceCompleted(ID_12) in run.written(12)
        assert [record.status for record in run.state.history] == [Status.COMPLETED] * 2

    def test_nothing_third_begins_while_one_waits(self) -> None:
        run = overlapping()
        run.collect(12)
        assert run.tick(4_000) == ()
        assert SendBarrier(barrier(13, 4_000, completed=11)) in run.written(11)

    def test_output_of_the_second_one_is_published_after_its_own_manifest(self) -> None:
        run = overlapping()
        run.collect(12, output())
        assert not any(isinstance(action, Commit) for action in run.written(11))
        assert [action.permit.checkpoint for action in run.written(12) if isinstance(action, Commit)] == [12]

    def test_if_the_first_one_fails_the_second_one_completes_by_itself(self) -> None:
        run = overlapping()
        run.feed(ManifestFailed(ID_11, "timed out", 2_100))
        assert isinstance(run.state.deciding, WritingTombstone)
        run.collect(12)
        assert written(run) == [11]
        run.now_ms = 2_200
        actions = run.feed(TombstoneWritten(ID_11, 2_200))
        assert actions[0] == SendBarrier(barrier(11, 1_000).cancelled())
        assert written(run) == [11, 12]
        assert AnnounceCompleted(ID_12) in run.written(12)
        assert [record.status for record in run.state.history] == [Status.DECLINED, Status.COMPLETED]
        assert run.state.failures == 0

    def test_every_request_gets_the_answer_of_its_own_checkpoint(self) -> None:
        run = triggered(CLOSE)
        run.ask(request(1))
        run.collect(11)
        run.collect(12)
        assert not any(isinstance(action, AnswerRequest) for action in run.written(11))
        assert AnswerRequest(RequestId(1), RequestCompleted(ID_12)) in run.written(12)


class TestTheSecondOneFails:
    def test_a_decline_leaves_the_first_one_alone_and_the_history_in_order(self) -> None:
        run = overlapping()
        actions = run.decline(12, DeclineReason.STORAGE_FAILED)
        assert actions[0] == SendBarrier(barrier(12, 2_000).cancelled())
        assert AnnounceCompleted(ID_11) in run.written(11)
        assert [(record.checkpoint, record.status) for record in run.state.history] == [
            (ID_11, Status.COMPLETED),
            (ID_12, Status.DECLINED),
        ]

    def test_its_backoff_holds_although_the_first_one_completes(self) -> None:
        run = overlapping()
        run.tick(3_000)
        run.decline(12, DeclineReason.STORAGE_FAILED)
        run.written(11)
        assert run.tick(3_099) == ()
        assert SendBarrier(barrier(13, 3_100, completed=11)) in run.tick(3_100)

    def test_after_an_overflow_the_next_one_captures_nothing(self) -> None:
        run = overlapping()
        run.decline(12, DeclineReason.CAPTURE_OVERFLOW)
        run.written(11)
        assert SendBarrier(barrier(13, 3_000, timeout_ms=None, completed=11)) in run.tick(3_000)

    def test_it_expires_although_everybody_has_acknowledged(self) -> None:
        run = overlapping()
        run.collect(12)
        run.tick(6_000)
        assert isinstance(run.state.deciding, WritingTombstone), "the first one expires first"
        assert run.tick(7_000)[0] == SendBarrier(barrier(12, 2_000).cancelled())
        record = run.state.history[-1]
        assert (record.checkpoint, record.reason) == (ID_12, DeclineReason.EXPIRED)
        assert record.detail == "the outcome of the checkpoint before was not known within 5000 ms of the trigger"

    def test_the_wake_up_call_is_that_of_whichever_ends_first(self) -> None:
        run = overlapping()
        assert run.state.wake_at_ms == 6_000
        run.written(11)
        assert run.tick(6_000) == (WakeAt(7_000),)
        assert run.state.wake_at_ms == 7_000


class TestSpeakingOfOneOfThem:
    def test_cancelling_whichever_is_in_progress_means_the_newer_one(self) -> None:
        run = overlapping()
        assert run.feed(CancelRequested(None, 2_100))[0] == SendBarrier(barrier(12, 2_000).cancelled())
        assert run.feed(CancelRequested(None, 2_100))[0] == WriteTombstone(Tombstone(ID_11, GENERATION))

    def test_cancelling_by_id(self) -> None:
        run = overlapping()
        assert run.feed(CancelRequested(ID_11, 2_100))[0] == WriteTombstone(Tombstone(ID_11, GENERATION))
        assert run.feed(CancelRequested(ID_11, 2_100)) == ()
        assert run.feed(CancelRequested(ID_12, 2_100))[0] == SendBarrier(barrier(12, 2_000).cancelled())
        assert isinstance(run.feed(CancelRequested(ID_13, 2_100))[0], Refused)

    @pytest.mark.parametrize("number", [11, 12])
    def test_an_acknowledgement_that_comes_after_all_others_is_refused(self, number: int) -> None:
        run = overlapping()
        run.collect(12)
        late = Acknowledged(checkpoint_id(number), GENERATION, SubtaskReport(READ), 2_100)
        (refused,) = run.feed(late)
        assert isinstance(refused, Refused) and refused.why == "everybody has acknowledged already"

    def test_when_all_is_over_whoever_asked_for_either_is_answered(self) -> None:
        run = triggered(CLOSE)
        run.collect(11)
        run.ask(request(1))
        run.reserved(13)
        run.collect(12)
        run.written(11)
        run.ask(request(2))
        actions = run.feed(OutcomeFound(Outcome(ID_12, Generation(4), is_tombstone=True), 1_200))
        assert isinstance(actions[0], StopFenced)
        answered = [action for action in actions if isinstance(action, AnswerRequest)]
        assert [answer.request for answer in answered] == [1, 2]
        assert all(isinstance(answer.result, RequestDeclined) for answer in answered)


class TestInvariants:
    def test_attempts_in_the_wrong_order_are_found(self) -> None:
        run = overlapping()
        assert run.state.deciding is not None
        swapped = replace(run.state.deciding, manifest=replace(run.state.deciding.manifest, checkpoint=ID_13))
        with pytest.raises(ProtocolViolation, match="attempts in the wrong order"):
            check(replace(run.state, deciding=swapped))

    def test_one_that_begins_before_output_is_published_is_found(self) -> None:
        run = overlapping()
        assert run.state.deciding is not None
        manifest = run.state.deciding.manifest
        reports = tuple(output(each.subtask) for each in manifest.reports)
        with pytest.raises(ProtocolViolation, match="begun before the end of the last"):
            check(replace(run.state, deciding=replace(run.state.deciding, manifest=replace(manifest, reports=reports))))

    def test_a_manifest_that_nobody_writes_is_found(self) -> None:
        run = overlapping()
        run.collect(12)
        with pytest.raises(ProtocolViolation, match="nothing was written"):
            check(replace(run.state, deciding=None))
