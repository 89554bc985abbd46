"""Alignment, transition by transition. What must hold over whole runs is in `test_alignment_properties`.

The classes named after a document hold the defects that its state machine had: each sentence would be untrue there.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from penstock.ids import NO_CHECKPOINT, ChannelId, CheckpointId, Generation
from penstock.protocol.alignment import (
    Abandon,
    Action,
    Aligning,
    AlignmentTimedOut,
    BarrierAnnounced,
    BarrierReached,
    BlockChannel,
    Capture,
    CaptureOverflowed,
    Capturing,
    CheckpointTriggered,
    CompleteInputs,
    Decline,
    EndArrived,
    EndCapture,
    EndReached,
    Event,
    ForwardBarrier,
    Idle,
    Inputs,
    LateBarrierTimedOut,
    Restoring,
    StartAlignmentTimer,
    StartLateTimer,
    State,
    SubtaskRestored,
    TakeSnapshot,
    UnblockChannels,
    step,
)
from penstock.protocol.barrier import Barrier, BarrierFlag
from penstock.protocol.declines import DeclineReason
from penstock.protocol.manifest import SnapshotKind

A, B, C = ChannelId(0), ChannelId(1), ChannelId(2)
ONE, TWO, THREE = CheckpointId(1), CheckpointId(2), CheckpointId(3)
NONE: frozenset[ChannelId] = frozenset()


def some(*channels: ChannelId) -> frozenset[ChannelId]:
    return frozenset(channels)


def barrier(
    checkpoint: CheckpointId = ONE,
    flags: BarrierFlag = BarrierFlag.NONE,
    timeout_ms: int | None = None,
    age_ms: int = 0,
) -> Barrier:
    return Barrier(checkpoint, Generation(1), 0, flags, timeout_ms, age_ms)


PLAIN = barrier()
FORCED = barrier(flags=BarrierFlag.UNALIGNED)
TIMED = barrier(timeout_ms=200)
OVERTAKING = TIMED.overtaking()
CANCEL = PLAIN.cancelled()
INPUTS = Inputs(some(A, B, C))
PAIR = Inputs(some(A, B))
ALIGNED_ONLY = Inputs(some(A, B), aligned_only=True)
SOURCE = Inputs(NONE)


def run(state: State, *events: Event) -> tuple[State, list[tuple[Action, ...]]]:
    """The last state, and the actions of each event."""
    taken = []
    for event in events:
        state, actions = step(state, event)
        taken.append(actions)
    return state, taken


def aligned(*blocked: ChannelId, of: Barrier = PLAIN) -> tuple[Action, ...]:
    """What happens when the last channel is cut."""
    checkpoint = of.checkpoint
    return (
        ForwardBarrier(of),
        TakeSnapshot(of, SnapshotKind.ALIGNED),
        CompleteInputs(checkpoint),
        UnblockChannels(some(*blocked)),
    )


def unaligned(
    of: Barrier,
    cut: SnapshotKind,
    queued: frozenset[ChannelId],
    late: frozenset[ChannelId],
    unblocked: frozenset[ChannelId] = NONE,
) -> tuple[Action, ...]:
    """What happens when a snapshot is taken with records in front of barriers."""
    last = StartLateTimer(of.checkpoint) if late else CompleteInputs(of.checkpoint)
    return (
        ForwardBarrier(of),
        TakeSnapshot(of, cut),
        Capture(of.checkpoint, queued, late),
        UnblockChannels(unblocked),
        last,
    )


class TestAligned:
    def test_each_channel_is_blocked_at_its_barrier_until_the_last_one_has_come(self) -> None:
        state, taken = run(Idle(INPUTS), BarrierReached(A, PLAIN), BarrierReached(C, PLAIN), CheckpointTriggered(PLAIN))
        assert state == Aligning(INPUTS, PLAIN, blocked=some(A, C))
        assert taken == [(BlockChannel(A),), (BlockChannel(C),), ()]
        assert step(state, BarrierReached(B, PLAIN)) == (
            Idle(INPUTS, ONE),
            (BlockChannel(B), *aligned(A, B, C)),
        )

    def test_the_trigger_may_come_first(self) -> None:
        state, taken = run(Idle(PAIR), CheckpointTriggered(PLAIN), BarrierReached(A, PLAIN))
        assert state == Aligning(PAIR, PLAIN, blocked=some(A))
        assert taken == [(), (BlockChannel(A),)]

    def test_channels_are_unblocked_after_the_snapshot_and_not_before(self) -> None:
        _, actions = step(Aligning(PAIR, PLAIN, blocked=some(A)), BarrierReached(B, PLAIN))
        kinds = [type(action) for action in actions]
        assert kinds.index(TakeSnapshot) < kinds.index(UnblockChannels) == len(kinds) - 1

    def test_the_barrier_is_forwarded_before_the_snapshot(self) -> None:
        _, actions = step(Idle(SOURCE), CheckpointTriggered(PLAIN))
        assert actions[:2] == (ForwardBarrier(PLAIN), TakeSnapshot(PLAIN, SnapshotKind.ALIGNED))

    @pytest.mark.parametrize("inputs", [SOURCE, replace(PAIR, ended=some(A, B), finished=some(A, B))])
    def test_a_source_and_a_subtask_whose_inputs_are_finished_are_cut_by_the_trigger_alone(
        self, inputs: Inputs
    ) -> None:
        assert step(Idle(inputs), CheckpointTriggered(TIMED)) == (Idle(inputs, ONE), aligned(of=TIMED))

    def test_a_single_channel_is_cut_at_once_and_needs_no_timer(self) -> None:
        inputs = Inputs(some(A))
        assert step(Idle(inputs), BarrierReached(A, TIMED)) == (
            Idle(inputs, ONE),
            (BlockChannel(A), *aligned(A, of=TIMED)),
        )

    def test_a_barrier_that_waits_behind_records_is_noted_and_blocks_nothing(self) -> None:
        state, taken = run(Idle(PAIR), BarrierAnnounced(A, PLAIN), BarrierAnnounced(B, PLAIN))
        assert state == Aligning(PAIR, PLAIN, announced=some(A, B))
        assert taken == [(), ()]
        assert step(state, BarrierReached(B, PLAIN)) == (
            Aligning(PAIR, PLAIN, announced=some(A), blocked=some(B)),
            (BlockChannel(B),),
        )

    def test_any_number_of_channels_is_aligned(self) -> None:
        # A bit set of 128 inputs would not do.
        channels = [ChannelId(number) for number in range(1_000)]
        state, taken = run(Idle(Inputs(frozenset(channels))), *(BarrierReached(each, PLAIN) for each in channels))
        assert state == Idle(Inputs(frozenset(channels)), ONE)
        assert taken[-1] == (BlockChannel(channels[-1]), *aligned(*channels))

    def test_a_drain_is_forwarded_as_one(self) -> None:
        drain = barrier(flags=BarrierFlag.DRAIN)
        assert step(Idle(SOURCE), CheckpointTriggered(drain)) == (Idle(SOURCE, ONE), aligned(of=drain))


class TestTimeout:
    @pytest.mark.parametrize(("age_ms", "after_ms"), [(0, 200), (150, 50), (500, 0)])
    def test_the_timer_runs_for_what_is_left_of_the_timeout_since_the_trigger(self, age_ms: int, after_ms: int) -> None:
        old = TIMED.aged(age_ms)
        assert step(Idle(PAIR), BarrierReached(A, old)) == (
            Aligning(PAIR, old, blocked=some(A)),
            (BlockChannel(A), StartAlignmentTimer(ONE, after_ms)),
        )
        assert step(Idle(PAIR), CheckpointTriggered(old)) == (
            Aligning(PAIR, old),
            (StartAlignmentTimer(ONE, after_ms),),
        )

    def test_on_timeout_the_snapshot_is_taken_and_what_is_in_front_of_the_barriers_is_captured(self) -> None:
        state = Aligning(INPUTS, TIMED, announced=some(B), blocked=some(A))
        assert step(state, AlignmentTimedOut(ONE)) == (
            Capturing(INPUTS, OVERTAKING, late=some(C)),
            unaligned(OVERTAKING, SnapshotKind.TIMED_OUT, queued=some(B, C), late=some(C), unblocked=some(A)),
        )

    def test_if_every_barrier_waits_already_nothing_is_late(self) -> None:
        state = Aligning(PAIR, TIMED, announced=some(A, B))
        assert step(state, AlignmentTimedOut(ONE)) == (
            Idle(PAIR, ONE),
            unaligned(OVERTAKING, SnapshotKind.TIMED_OUT, queued=some(A, B), late=NONE),
        )

    @pytest.mark.parametrize(
        "state",
        [
            Restoring(PAIR, ONE),
            Idle(PAIR, ONE),
            Aligning(PAIR, replace(TIMED, checkpoint=TWO), blocked=some(A)),
            Capturing(PAIR, FORCED, late=some(A)),
        ],
    )
    def test_a_timer_of_something_that_is_over_changes_nothing(self, state: State) -> None:
        assert step(state, AlignmentTimedOut(ONE)) == (state, ())

    @pytest.mark.parametrize("flags", [BarrierFlag.NONE, BarrierFlag.SAVEPOINT])
    def test_without_a_timeout_no_timer_is_started(self, flags: BarrierFlag) -> None:
        patient = barrier(flags=flags)
        assert step(Idle(PAIR), CheckpointTriggered(patient)) == (Aligning(PAIR, patient), ())


class TestUnaligned:
    def test_a_forced_trigger_takes_the_snapshot_at_once_and_every_channel_is_late(self) -> None:
        assert step(Idle(PAIR), CheckpointTriggered(FORCED)) == (
            Capturing(PAIR, FORCED, late=some(A, B)),
            unaligned(FORCED, SnapshotKind.FORCED, queued=some(A, B), late=some(A, B)),
        )

    def test_an_unaligned_barrier_that_comes_first_captures_what_it_has_overtaken(self) -> None:
        # I11: the barrier has passed the records of its own channel, which are captured and not waited for.
        assert step(Idle(PAIR), BarrierReached(A, FORCED)) == (
            Capturing(PAIR, FORCED, late=some(B)),
            unaligned(FORCED, SnapshotKind.FORCED, queued=some(A, B), late=some(B)),
        )

    def test_a_barrier_that_turned_unaligned_upstream_ends_the_alignment(self) -> None:
        state = Aligning(INPUTS, TIMED, announced=some(B), blocked=some(A))
        assert step(state, BarrierReached(C, OVERTAKING)) == (
            Idle(INPUTS, ONE),
            unaligned(OVERTAKING, SnapshotKind.OVERTAKEN, queued=some(B, C), late=NONE, unblocked=some(A)),
        )

    def test_late_barriers_end_the_capture_of_their_channels_one_by_one(self) -> None:
        state = Capturing(INPUTS, FORCED, late=some(A, B, C))
        state, taken = run(state, BarrierReached(B, FORCED), BarrierAnnounced(A, PLAIN))
        assert state == Capturing(INPUTS, FORCED, late=some(C))
        assert taken == [(EndCapture(ONE, B),), (EndCapture(ONE, A),)]
        assert step(state, BarrierReached(C, PLAIN)) == (
            Idle(INPUTS, ONE),
            (EndCapture(ONE, C), CompleteInputs(ONE)),
        )

    def test_the_trigger_of_what_is_being_captured_is_no_news(self) -> None:
        state = Capturing(PAIR, FORCED, late=some(A))
        assert step(state, CheckpointTriggered(FORCED)) == (state, ())

    def test_a_barrier_on_a_channel_that_is_not_late_changes_nothing(self) -> None:
        state = Capturing(PAIR, FORCED, late=some(A))
        assert step(state, BarrierReached(B, FORCED)) == (state, ())

    def test_an_unaligned_checkpoint_of_a_source_captures_nothing_and_is_complete(self) -> None:
        assert step(Idle(SOURCE), CheckpointTriggered(FORCED)) == (
            Idle(SOURCE, ONE),
            unaligned(FORCED, SnapshotKind.FORCED, queued=NONE, late=NONE),
        )


class TestAlignedOnly:
    """Forward and broadcast inputs, and operators that say so, are never captured."""

    def test_every_barrier_is_one_to_be_aligned(self) -> None:
        state, taken = run(Idle(ALIGNED_ONLY), CheckpointTriggered(FORCED), BarrierReached(A, FORCED))
        assert state == Aligning(ALIGNED_ONLY, FORCED, blocked=some(A))
        assert taken == [(), (BlockChannel(A),)]
        assert step(state, BarrierReached(B, FORCED)) == (
            Idle(ALIGNED_ONLY, ONE),
            (BlockChannel(B), *aligned(A, B, of=FORCED)),
        )

    def test_an_unaligned_barrier_may_wait_behind_records(self) -> None:
        assert step(Idle(ALIGNED_ONLY), BarrierAnnounced(A, FORCED)) == (
            Aligning(ALIGNED_ONLY, FORCED, announced=some(A)),
            (),
        )

    def test_no_timer_is_started(self) -> None:
        assert step(Idle(ALIGNED_ONLY), CheckpointTriggered(TIMED)) == (Aligning(ALIGNED_ONLY, TIMED), ())


class TestEndOfInput:
    def test_a_channel_that_ended_counts_as_cut(self) -> None:
        finished = replace(PAIR, ended=some(A), finished=some(A))
        assert step(Idle(finished), BarrierReached(B, PLAIN)) == (
            Idle(finished, ONE),
            (BlockChannel(B), *aligned(B)),
        )

    def test_the_end_of_the_last_open_channel_completes_an_alignment(self) -> None:
        finished = replace(PAIR, ended=some(B), finished=some(B))
        assert step(Aligning(PAIR, PLAIN, blocked=some(A)), EndReached(B)) == (Idle(finished, ONE), aligned(A))

    def test_an_end_that_waits_behind_records_cuts_nothing_yet(self) -> None:
        ended = replace(PAIR, ended=some(B))
        assert step(Aligning(PAIR, PLAIN, blocked=some(A)), EndArrived(B)) == (
            Aligning(ended, PLAIN, blocked=some(A)),
            (),
        )

    def test_a_channel_whose_end_waits_is_captured_but_not_late(self) -> None:
        ended = replace(PAIR, ended=some(B))
        assert step(Idle(ended), CheckpointTriggered(FORCED)) == (
            Capturing(ended, FORCED, late=some(A)),
            unaligned(FORCED, SnapshotKind.FORCED, queued=some(A, B), late=some(A)),
        )

    def test_the_end_of_a_late_channel_counts_as_its_barrier(self) -> None:
        ended = replace(PAIR, ended=some(A))
        assert step(Capturing(PAIR, FORCED, late=some(A)), EndArrived(A)) == (
            Idle(ended, ONE),
            (EndCapture(ONE, A), CompleteInputs(ONE)),
        )

    @pytest.mark.parametrize(
        "state",
        [Restoring(PAIR), Idle(PAIR, ONE), Capturing(PAIR, FORCED, late=some(A))],
        ids=lambda s: type(s).__name__,
    )
    def test_an_end_that_is_reached_is_remembered(self, state: State) -> None:
        finished = replace(PAIR, ended=some(B), finished=some(B))
        assert step(state, EndReached(B)) == (replace(state, inputs=finished), ())


class TestStaleAndSuperseded:
    @pytest.mark.parametrize(
        "state",
        [
            Restoring(PAIR, TWO),
            Idle(PAIR, TWO),
            Aligning(PAIR, barrier(TWO), blocked=some(A)),
            Capturing(PAIR, barrier(TWO, BarrierFlag.UNALIGNED), late=some(B)),
        ],
        ids=lambda s: type(s).__name__,
    )
    @pytest.mark.parametrize(
        "event",
        [
            CheckpointTriggered(PLAIN),
            BarrierAnnounced(B, PLAIN),
            BarrierReached(B, PLAIN),
            BarrierReached(B, FORCED),
            CheckpointTriggered(CANCEL),
        ],
        ids=str,
    )
    def test_what_is_older_changes_nothing(self, state: State, event: Event) -> None:
        assert step(state, event) == (state, ())

    @pytest.mark.parametrize("state", [Restoring(PAIR, ONE), Idle(PAIR, ONE)], ids=lambda s: type(s).__name__)
    @pytest.mark.parametrize(
        "event", [CheckpointTriggered(PLAIN), BarrierAnnounced(B, PLAIN), BarrierReached(B, FORCED)], ids=str
    )
    def test_what_is_over_changes_nothing(self, state: State, event: Event) -> None:
        assert step(state, event) == (state, ())

    def test_a_newer_barrier_ends_an_alignment_and_begins_its_own(self) -> None:
        newer = barrier(TWO)
        assert step(Aligning(PAIR, PLAIN, blocked=some(A)), BarrierReached(B, newer)) == (
            Aligning(PAIR, newer, blocked=some(B)),
            (Abandon(ONE), UnblockChannels(some(A)), Decline(ONE, DeclineReason.SUPERSEDED), BlockChannel(B)),
        )

    def test_a_newer_trigger_ends_a_capture(self) -> None:
        newer = barrier(TWO)
        assert step(Capturing(PAIR, FORCED, late=some(A)), CheckpointTriggered(newer)) == (
            Aligning(PAIR, newer),
            (Abandon(ONE), Decline(ONE, DeclineReason.SUPERSEDED)),
        )

    def test_a_newer_unaligned_barrier_takes_its_snapshot_after_the_old_one_was_given_up(self) -> None:
        newer = barrier(TWO, BarrierFlag.UNALIGNED)
        assert step(Aligning(PAIR, PLAIN, announced=some(A)), BarrierReached(A, newer)) == (
            Capturing(PAIR, newer, late=some(B)),
            (
                Abandon(ONE),
                Decline(ONE, DeclineReason.SUPERSEDED),
                *unaligned(newer, SnapshotKind.FORCED, queued=some(A, B), late=some(B)),
            ),
        )

    def test_an_idle_subtask_has_nothing_to_give_up(self) -> None:
        assert step(Idle(PAIR, ONE), CheckpointTriggered(barrier(THREE))) == (Aligning(PAIR, barrier(THREE)), ())


class TestCancel:
    @pytest.mark.parametrize(
        "event", [CheckpointTriggered(CANCEL), BarrierAnnounced(B, CANCEL), BarrierReached(B, CANCEL)], ids=str
    )
    @pytest.mark.parametrize(
        ("state", "after", "actions"),
        [
            (Restoring(PAIR), Restoring(PAIR, ONE), (Abandon(ONE),)),
            (Idle(PAIR), Idle(PAIR, ONE), (Abandon(ONE),)),
            (Idle(PAIR, ONE), Idle(PAIR, ONE), (Abandon(ONE),)),
            (Aligning(PAIR, PLAIN), Idle(PAIR, ONE), (Abandon(ONE),)),
            (Aligning(PAIR, PLAIN, blocked=some(A)), Idle(PAIR, ONE), (Abandon(ONE), UnblockChannels(some(A)))),
            (Capturing(PAIR, FORCED, late=some(A)), Idle(PAIR, ONE), (Abandon(ONE),)),
        ],
        ids=["restoring", "unheard of", "over", "aligning", "blocked", "capturing"],
    )
    def test_a_cancel_ends_it_everywhere_and_is_not_a_decline(
        self, state: State, after: State, actions: tuple[Action, ...], event: Event
    ) -> None:
        assert step(state, event) == (after, actions)

    def test_barriers_that_were_on_their_way_are_stale_afterwards(self) -> None:
        state, _ = step(Aligning(PAIR, PLAIN, announced=some(A)), CheckpointTriggered(CANCEL))
        assert run(state, BarrierReached(A, PLAIN), BarrierReached(B, FORCED)) == (state, [(), ()])

    def test_a_cancel_of_a_newer_one_ends_the_one_in_progress(self) -> None:
        newer = barrier(TWO).cancelled()
        assert step(Aligning(PAIR, PLAIN, blocked=some(A)), CheckpointTriggered(newer)) == (
            Idle(PAIR, TWO),
            (Abandon(ONE), UnblockChannels(some(A))),
        )


class TestBounds:
    def test_a_late_barrier_that_does_not_come_declines_the_checkpoint(self) -> None:
        assert step(Capturing(PAIR, FORCED, late=some(A)), LateBarrierTimedOut(ONE)) == (
            Idle(PAIR, ONE),
            (Abandon(ONE), Decline(ONE, DeclineReason.LATE_BARRIER_TIMEOUT)),
        )

    @pytest.mark.parametrize(
        "state",
        [Idle(PAIR, ONE), Aligning(PAIR, PLAIN), Capturing(PAIR, replace(FORCED, checkpoint=TWO), late=some(A))],
        ids=lambda s: type(s).__name__,
    )
    def test_the_timer_of_late_barriers_that_came_changes_nothing(self, state: State) -> None:
        assert step(state, LateBarrierTimedOut(ONE)) == (state, ())

    @pytest.mark.parametrize(
        "state", [Capturing(PAIR, FORCED, late=some(A)), Idle(PAIR, ONE)], ids=lambda s: type(s).__name__
    )
    def test_an_overflow_declines_the_checkpoint_with_that_reason(self, state: State) -> None:
        # Idle too: the capture that passed the bound may have been the one that completed the inputs.
        assert step(state, CaptureOverflowed(ONE)) == (
            Idle(PAIR, ONE),
            (Abandon(ONE), Decline(ONE, DeclineReason.CAPTURE_OVERFLOW)),
        )

    @pytest.mark.parametrize(
        "state", [Idle(PAIR, TWO), Aligning(PAIR, PLAIN), Restoring(PAIR, ONE)], ids=lambda s: type(s).__name__
    )
    def test_an_overflow_of_something_else_changes_nothing(self, state: State) -> None:
        assert step(state, CaptureOverflowed(ONE)) == (state, ())


class TestRestoring:
    @pytest.mark.parametrize(
        "event", [CheckpointTriggered(PLAIN), BarrierAnnounced(A, PLAIN), BarrierReached(A, FORCED)], ids=str
    )
    def test_a_subtask_whose_state_is_not_back_declines_and_that_is_not_counted(self, event: Event) -> None:
        # A subtask that is not ready yet is an uncounted decline.
        after, actions = step(Restoring(PAIR), event)
        assert (after, actions) == (Restoring(PAIR, ONE), (Decline(ONE, DeclineReason.SUBTASK_NOT_READY),))
        assert not DeclineReason.SUBTASK_NOT_READY.is_counted

    def test_it_declines_once_however_often_it_hears_of_it(self) -> None:
        state, taken = run(
            Restoring(PAIR), CheckpointTriggered(PLAIN), BarrierReached(A, PLAIN), BarrierReached(B, PLAIN)
        )
        assert taken == [(Decline(ONE, DeclineReason.SUBTASK_NOT_READY),), (), ()]
        assert state == Restoring(PAIR, ONE)

    def test_what_it_declined_stays_declined_when_it_is_restored(self) -> None:
        assert step(Restoring(PAIR, ONE), SubtaskRestored()) == (Idle(PAIR, ONE), ())
        assert step(Idle(PAIR, ONE), BarrierReached(A, PLAIN)) == (Idle(PAIR, ONE), ())

    def test_it_takes_part_in_the_next_one_while_recovered_records_still_wait(self) -> None:
        # Checkpoints go on during recovery; recovered records are channel state like any others.
        state, _ = step(Restoring(PAIR, ONE), SubtaskRestored())
        newer = replace(FORCED, checkpoint=TWO)
        assert step(state, CheckpointTriggered(newer)) == (
            Capturing(PAIR, newer, late=some(A, B)),
            unaligned(newer, SnapshotKind.FORCED, queued=some(A, B), late=some(A, B)),
        )


class TestDefectsOfTheUnalignedMachine:
    """Known defects of unaligned snapshots, one sentence each. The rest is in the classes above."""

    def test_captured_records_are_taken_and_the_list_does_not_stay_empty(self) -> None:
        _, actions = step(Aligning(PAIR, TIMED, blocked=some(A)), AlignmentTimedOut(ONE))
        assert Capture(ONE, queued=some(B), late=some(B)) in actions

    def test_what_arrives_on_a_late_channel_after_the_switch_is_recorded_until_its_barrier(self) -> None:
        state, actions = step(Aligning(PAIR, TIMED, blocked=some(A)), AlignmentTimedOut(ONE))
        assert Capture(ONE, queued=some(B), late=some(B)) in actions
        assert state == Capturing(PAIR, OVERTAKING, late=some(B))
        assert step(state, BarrierReached(B, TIMED))[1] == (EndCapture(ONE, B), CompleteInputs(ONE))

    def test_records_behind_a_barrier_are_neither_captured_nor_dropped_but_read_again(self) -> None:
        _, actions = step(Aligning(PAIR, TIMED, blocked=some(A)), AlignmentTimedOut(ONE))
        captured = [action.queued for action in actions if isinstance(action, Capture)]
        assert captured == [some(B)]
        assert UnblockChannels(some(A)) in actions

    def test_a_barrier_of_the_next_checkpoint_never_completes_this_one(self) -> None:
        state = Aligning(PAIR, PLAIN, blocked=some(A))
        after, actions = step(state, BarrierReached(B, barrier(TWO)))
        assert after == Aligning(PAIR, barrier(TWO), blocked=some(B))
        assert not any(isinstance(action, TakeSnapshot | CompleteInputs) for action in actions)

    def test_a_barrier_of_the_next_checkpoint_never_ends_the_capture_of_this_one(self) -> None:
        after, actions = step(Capturing(PAIR, FORCED, late=some(B)), BarrierReached(B, barrier(TWO)))
        assert after == Aligning(PAIR, barrier(TWO), blocked=some(B))
        assert not any(isinstance(action, CompleteInputs | EndCapture) for action in actions)

    def test_unaligned_switched_off_is_respected(self) -> None:
        # There a setting `enabled` was never read; here a barrier without a timeout and without the flag stays aligned.
        state, taken = run(Idle(PAIR), CheckpointTriggered(PLAIN), BarrierReached(A, PLAIN.aged(10**9)))
        assert state == Aligning(PAIR, PLAIN, blocked=some(A))
        assert taken == [(), (BlockChannel(A),)]

    def test_an_overflow_never_yields_an_aligned_snapshot_with_inputs_missing(self) -> None:
        _, actions = step(Capturing(PAIR, FORCED, late=some(A)), CaptureOverflowed(ONE))
        assert actions == (Abandon(ONE), Decline(ONE, DeclineReason.CAPTURE_OVERFLOW))

    @pytest.mark.parametrize(
        ("state", "event", "cut"),
        [
            (Idle(PAIR), CheckpointTriggered(FORCED), SnapshotKind.FORCED),
            (Idle(PAIR), BarrierReached(A, FORCED), SnapshotKind.FORCED),
            (Aligning(PAIR, FORCED), BarrierReached(A, FORCED), SnapshotKind.FORCED),
            (Idle(PAIR), BarrierReached(A, OVERTAKING), SnapshotKind.OVERTAKEN),
            (Aligning(PAIR, TIMED), BarrierReached(A, OVERTAKING), SnapshotKind.OVERTAKEN),
            (Aligning(PAIR, TIMED), AlignmentTimedOut(ONE), SnapshotKind.TIMED_OUT),
        ],
    )
    def test_the_cause_of_an_unaligned_cut_is_reported_as_what_it_was(
        self, state: State, event: Event, cut: SnapshotKind
    ) -> None:
        _, actions = step(state, event)
        assert [action.cut for action in actions if isinstance(action, TakeSnapshot)] == [cut]


class TestDefectsOfTheAligner:
    """Known defects of aligners at a fan-in."""

    def test_mismatched_ids_are_not_counted_together(self) -> None:
        state, _ = run(Idle(INPUTS), BarrierReached(A, barrier(ONE)), BarrierReached(B, barrier(TWO)))
        assert state == Aligning(INPUTS, barrier(TWO), blocked=some(B))

    def test_ids_begin_anywhere_and_are_not_cut(self) -> None:
        far = CheckpointId(2**40 + 1)
        assert step(Idle(SOURCE, CheckpointId(2**40)), CheckpointTriggered(barrier(far))) == (
            Idle(SOURCE, far),
            aligned(of=barrier(far)),
        )
        assert NO_CHECKPOINT < ONE

    def test_a_dead_neighbour_does_not_block_for_ever(self) -> None:
        # There was no abort; here a cancel frees the channels and the next checkpoint begins as the first one did.
        state, _ = run(Idle(PAIR), BarrierReached(A, PLAIN), CheckpointTriggered(CANCEL))
        state, taken = run(state, BarrierReached(A, barrier(TWO)), BarrierReached(B, barrier(TWO)))
        assert state == Idle(PAIR, TWO)
        assert taken == [(BlockChannel(A),), (BlockChannel(B), *aligned(A, B, of=barrier(TWO)))]


class TestDefectsOfTheInjector:
    """Known defects of barriers and their injection."""

    def test_every_source_that_hears_the_trigger_takes_part_and_none_takes_it_away(self) -> None:
        one, other = Idle(SOURCE), Idle(SOURCE)
        assert step(one, CheckpointTriggered(PLAIN)) == step(other, CheckpointTriggered(PLAIN))
        assert step(one, CheckpointTriggered(PLAIN))[1] == aligned()

    def test_a_trigger_that_was_not_finished_is_not_overwritten_silently(self) -> None:
        _, actions = step(Aligning(PAIR, PLAIN), CheckpointTriggered(barrier(TWO)))
        assert Decline(ONE, DeclineReason.SUPERSEDED) in actions

    def test_sources_cannot_disagree_because_everything_comes_with_the_barrier(self) -> None:
        drain = replace(barrier(THREE, BarrierFlag.DRAIN), triggered_at_ms=99, completed=TWO)
        assert step(Idle(SOURCE), CheckpointTriggered(drain))[1][:2] == (
            ForwardBarrier(drain),
            TakeSnapshot(drain, SnapshotKind.ALIGNED),
        )
