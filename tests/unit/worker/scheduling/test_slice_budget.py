"""The pace of a worker: short slices from the first word of a checkpoint until the last subtask is done with it."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from penstock.ids import CheckpointId, OperatorName, SubtaskId
from penstock.mailbox.frames import AcknowledgeFrame, DeclineFrame
from penstock.protocol.barrier import Barrier
from penstock.worker.scheduling.slice_budget import _CLOSE_MS, _LINGER_MS, SliceBudget
from penstock.worker.settings import WorkerSettings
from tests.unit.mailbox.fake_ports import LEFT, RIGHT, Bench, ManualClock, Numbers, Seen, barrier, join, read, unaligned

CALM_US, HURRIED_US = 4_000, 1_000
FIRST, SECOND = (SubtaskId(OperatorName("map"), index) for index in range(2))


class TestPace:
    def setup_method(self) -> None:
        self.clock = ManualClock()
        self.slice_budget = SliceBudget(WorkerSettings(slice_us=CALM_US, checkpoint_slice_us=HURRIED_US), self.clock)

    def test_it_is_calm_at_first(self) -> None:
        assert (self.slice_budget.is_checkpointing, self.slice_budget.slice_us) == (False, CALM_US)

    def test_it_is_hurried_as_long_as_one_subtask_is(self) -> None:
        for subtask in (FIRST, SECOND, SECOND):
            self.slice_budget.checkpoint_started(subtask, CheckpointId(1))
        self.slice_budget.checkpoint_finished(FIRST)
        self.clock.advance(10 * _LINGER_MS)
        assert (self.slice_budget.is_checkpointing, self.slice_budget.slice_us) == (True, HURRIED_US)
        self.slice_budget.checkpoint_finished(SECOND)
        self.clock.advance(_LINGER_MS)
        assert (self.slice_budget.is_checkpointing, self.slice_budget.slice_us) == (False, CALM_US)

    def take_checkpoint(self, number: int) -> None:
        """One subtask is done with it before the other one hears of it."""
        for subtask in (FIRST, SECOND):
            self.slice_budget.checkpoint_started(subtask, CheckpointId(number))
            self.slice_budget.checkpoint_finished(subtask)

    def test_a_checkpoint_that_follows_none_leaves_it_calm_at_once(self) -> None:
        self.take_checkpoint(1)
        assert not self.slice_budget.is_checkpointing

    @pytest.mark.parametrize(("after_ms", "lingers"), [(0, True), (_CLOSE_MS, True), (_CLOSE_MS + 1, False)])
    def test_it_lingers_where_checkpoints_follow_each_other_closely(self, after_ms: int, lingers: bool) -> None:
        self.take_checkpoint(1)
        self.clock.advance(after_ms)
        self.take_checkpoint(2)
        assert self.slice_budget.is_checkpointing == lingers
        self.clock.advance(_LINGER_MS - 1)
        assert self.slice_budget.is_checkpointing == lingers
        self.clock.advance(1)
        assert not self.slice_budget.is_checkpointing

    def test_one_that_was_not_in_a_hurry_does_not_make_it_linger(self) -> None:
        self.slice_budget.checkpoint_finished(FIRST)
        assert not self.slice_budget.is_checkpointing
        self.take_checkpoint(1)
        self.take_checkpoint(2)
        self.clock.advance(_LINGER_MS - 1)
        self.slice_budget.checkpoint_finished(FIRST)
        self.clock.advance(1)
        assert not self.slice_budget.is_checkpointing


def is_checkpointing(bench: Bench) -> bool:
    """Whether it is in a hurry, and not only was a moment ago."""
    bench.pass_time(_LINGER_MS)
    return bench.worker.turn_us == 0


class TestOfAWorker:
    def test_from_the_trigger_to_the_acknowledgement(self) -> None:
        bench = Bench(join(Seen())).started()
        assert not is_checkpointing(bench)
        bench.trigger(barrier(1))
        assert is_checkpointing(bench)
        for sender in (LEFT, RIGHT):
            bench.barrier(sender, barrier(1))
        assert is_checkpointing(bench), "its state is not written yet"
        bench.background.run()
        assert bench.transport.of(AcknowledgeFrame)
        assert not is_checkpointing(bench)

    def test_it_lingers_after_the_acknowledgement(self) -> None:
        bench = Bench(read(Numbers({}))).started()
        for number in (1, 2):
            bench.trigger(barrier(number))
        assert len(bench.transport.of(AcknowledgeFrame)) == 2
        assert bench.worker.turn_us == 0
        assert not is_checkpointing(bench)

    @pytest.mark.parametrize("first", ["announced", "reached"])
    def test_a_barrier_that_is_faster_than_the_trigger_counts(self, first: str) -> None:
        bench = Bench(join(Seen())).started()
        if first == "announced":
            bench.batch(LEFT, 1)
        bench.barrier(LEFT, barrier(1))
        assert is_checkpointing(bench)

    @pytest.mark.parametrize("cut", [barrier, unaligned])
    def test_until_the_checkpoint_is_cancelled(self, cut: Callable[[int], Barrier]) -> None:
        bench = Bench(join(Seen())).started()
        bench.trigger(cut(1))
        assert is_checkpointing(bench)
        bench.trigger(cut(1).cancelled())
        assert not is_checkpointing(bench)

    def test_until_it_is_declined(self) -> None:
        bench = Bench(join(Seen()), late_barrier_timeout_ms=500).started()
        bench.trigger(unaligned(1))
        assert is_checkpointing(bench)
        bench.pass_time(500)
        assert bench.transport.of(DeclineFrame)
        assert not is_checkpointing(bench)

    def test_not_after_a_decline_of_a_subtask_that_is_not_restored(self) -> None:
        bench = Bench(join(Seen()))
        bench.worker.start()
        bench.trigger(barrier(1))
        assert bench.transport.of(DeclineFrame)
        assert not is_checkpointing(bench)

    def test_a_checkpoint_that_supersedes_another_is_as_urgent_as_that(self) -> None:
        bench = Bench(join(Seen())).started()
        bench.barrier(LEFT, barrier(1))
        bench.barrier(LEFT, barrier(2))
        assert [int(frame.checkpoint) for frame in bench.transport.of(DeclineFrame)] == [1]
        assert is_checkpointing(bench)
        bench.barrier(RIGHT, barrier(2))
        bench.background.run()
        assert not is_checkpointing(bench)

    def test_a_trigger_of_a_checkpoint_that_was_cancelled_before_is_not_urgent(self) -> None:
        bench = Bench(join(Seen())).started()
        bench.trigger(barrier(1).cancelled())
        bench.trigger(barrier(1))
        assert not is_checkpointing(bench)

    def test_calls_are_shorter_while_it_is_hurried(self) -> None:
        seen = Seen()
        bench = Bench(join(seen), slice_us=4_000, checkpoint_slice_us=1_000).started()
        seen.clock, seen.us_per_row = bench.clock, 100
        bench.batch(LEFT, *range(3_000))
        bench.work(2)
        assert 39 <= seen.calls[-1] <= 40
        bench.trigger(barrier(1))
        bench.work(1)
        assert 9 <= seen.calls[-1] <= 10
        bench.trigger(barrier(1).cancelled())
        bench.pass_time(_LINGER_MS)
        bench.work(1)
        assert 39 <= seen.calls[-1] <= 40
