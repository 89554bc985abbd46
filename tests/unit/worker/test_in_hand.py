"""Records in hand: worked off in steps by key, and back in front of their channels when a checkpoint looks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.exchange.codec import decode_items
from penstock.exchange.items import BatchItem
from penstock.graph.logical import Graph, LogicalEdge, Node
from penstock.ids import OperatorName
from penstock.mailbox.frames import BarrierFrame, BatchFrame, CreditFrame
from penstock.operators.contract import Emit, OperatorContext
from penstock.operators.steps import Steps
from penstock.storage.blob import read_segment
from tests.unit.mailbox.fake_ports import (
    LEFT,
    MAP,
    REBALANCE,
    RIGHT,
    WRITE,
    Bench,
    Numbers,
    Seen,
    Staging,
    barrier,
    rows,
    unaligned,
    values,
)

KEYS = 10
ROW = rows(1).nbytes
SENDERS = LEFT, RIGHT


class ByKey(Seen):
    """Works off its records by their last digit: each call takes a slice, so that each is a step of its own."""

    works_in_steps = True
    bench: Bench
    slices_per_call = 1

    def __init__(self, follows: bool = False) -> None:
        super().__init__()
        self.follows = follows

    def open(self, context: OperatorContext) -> None:
        super().open(context)
        if self.follows:
            context.follow_event_time(None)

    def process(self, batch: pa.RecordBatch, source: int, emit: Emit) -> Steps:
        numbers = batch.column("v").to_numpy()
        order = np.argsort(numbers % KEYS, kind="stable")
        return Steps(order, lambda steps: self._calls(numbers[order], steps, emit))

    def _calls(self, numbers: Any, steps: Steps, emit: Emit) -> Iterator[None]:
        is_over = self.context.begin_slice()
        for key in np.unique(numbers % KEYS):
            mine = rows(*numbers[numbers % KEYS == key].tolist())
            self._call("process", values([mine]))
            if self.follows:
                self.context.saw_event_time(max(values([mine])))
            self.state.put([*self.state.get(), mine])
            emit(mine)
            steps.calls += 1
            steps.rows_done += mine.num_rows
            self.bench.clock.us += self.slices_per_call * 4_000
            if is_over() and steps.rows_done < len(numbers):
                yield
                is_over = self.context.begin_slice()


def union(seen: Seen) -> Graph:
    """left, right -> one input of map -> write. Worker 1 hosts the subtask map[1] and nothing else."""
    return Graph(
        "union",
        (
            *(Node(name, source=Numbers({}), parallelism=1) for name in SENDERS),
            Node(MAP, operator=lambda: seen, parallelism=2),
            Node(WRITE, sink=Staging(), parallelism=1),
        ),
        (*(LogicalEdge(name, MAP, REBALANCE) for name in SENDERS), LogicalEdge(MAP, WRITE, REBALANCE)),
    )


def started(follows: bool = False, **options: int) -> tuple[Bench, ByKey]:
    seen = ByKey(follows)
    seen.bench = Bench(union(seen), **options)
    return seen.bench.started(), seen


def calls(seen: ByKey) -> list[list[int]]:
    return [detail for what, detail in seen.log if what == "process"]


def captured(bench: Bench) -> dict[int, list[int]]:
    """The records in flight of the only checkpoint, by the subtask's input channel."""
    (frame,) = bench.acknowledged()
    held: dict[int, list[int]] = {}
    for segment in frame.report.channels:
        items = decode_items(read_segment(bench.store, segment.segment))
        held.setdefault(segment.edge, []).extend(values([i.batch for i in items if isinstance(i, BatchItem)]))
    return held


def granted(bench: Bench) -> Counter[int]:
    total: Counter[int] = Counter()
    for frame in bench.transport.of(CreditFrame):
        total[frame.channel] += frame.grant
    return total


def with_some(bench: Bench) -> None:
    bench.batch(LEFT, 11, 2, 21)
    bench.batch(RIGHT, 1, 3, 12)
    bench.batch(LEFT, 31, 13)


def test_all_that_waits_is_worked_off_by_key_with_a_turn_of_the_mailbox_after_each_call() -> None:
    bench, seen = started()
    with_some(bench)
    for made in range(1, 4):
        assert bench.worker.work()
        assert len(calls(seen)) == made
    bench.work()
    assert calls(seen) == [[11, 21, 31, 1], [2, 12], [13, 3]]


def test_the_output_of_a_call_has_left_before_the_mailbox_gets_control() -> None:
    bench, seen = started()
    with_some(bench)
    for _ in range(3):
        bench.work(1)
        assert sorted(values([frame.batch for frame in bench.transport.of(BatchFrame)])) == sorted(seen.processed)


class TestACheckpointInTheMiddle:
    def test_has_what_is_done_in_the_state_and_the_rest_on_its_channels_in_order(self) -> None:
        bench, seen = started()
        with_some(bench)
        bench.work(1)
        bench.barrier(LEFT, unaligned(1))
        bench.barrier(RIGHT, unaligned(1))
        assert sorted(captured(bench).values()) == [[2, 13], [3, 12]]
        assert values(seen.state.get()) == [11, 21, 31, 1]

    def test_loses_nothing_and_does_nothing_twice(self) -> None:
        bench, seen = started()
        with_some(bench)
        bench.work(1)
        for sender in SENDERS:
            bench.barrier(sender, unaligned(1))
        bench.work()
        assert [sorted(call) for call in calls(seen)] == [[1, 11, 21, 31], [2, 12], [3, 13]]

    def test_goes_on_from_there_after_a_failure(self) -> None:
        first, _ = started()
        with_some(first)
        first.work(1)
        for sender in SENDERS:
            first.barrier(sender, unaligned(1))
        manifest = first.manifest(1)
        seen = ByKey()
        seen.bench = Bench(union(seen), store=first.store, manifest=manifest)
        seen.bench.started().work()
        seen.bench.background.run()
        seen.bench.work()
        assert sorted(seen.processed) == [2, 3, 12, 13]
        assert sorted(values(seen.state.get())) == [1, 2, 3, 11, 12, 13, 21, 31]

    def test_recovered_records_give_the_mailbox_its_turns_and_a_checkpoint_waits_for_their_slice(self) -> None:
        first, _ = started()
        with_some(first)
        for sender in SENDERS:
            first.barrier(sender, unaligned(1))
        seen = ByKey()
        bench = seen.bench = Bench(union(seen), store=first.store, manifest=first.manifest(1))
        bench.started()
        bench.work(1)
        assert len(calls(seen)) == 1, "one call, and then the mailbox"
        for sender in SENDERS:
            bench.barrier(sender, unaligned(2))
        assert not bench.transport.of(BarrierFrame), "the rest of the slice is in no channel"
        while not bench.transport.of(BarrierFrame):
            bench.work(1)
        (frame,) = bench.acknowledged()
        left = sum(segment.rows for segment in frame.report.channels) if frame.report.channels else 0
        assert len(seen.processed) + left >= 8
        bench.background.run()
        bench.work()
        assert sorted(seen.processed) == [1, 2, 3, 11, 12, 13, 21, 31]

    def test_is_answered_before_the_next_call(self) -> None:
        bench, seen = started()
        with_some(bench)
        bench.work(1)
        for sender in SENDERS:
            bench.barrier(sender, unaligned(1))
        assert len(calls(seen)) == 1
        assert len(bench.acknowledged()) == 1

    def test_stops_capturing_at_a_barrier_that_is_in_front_of_the_queue_by_now(self) -> None:
        bench, _ = started()
        bench.batch(LEFT, 1)
        bench.batch(RIGHT, 2)
        bench.work(1)
        bench.barrier(LEFT, barrier(1, timeout_ms=5))
        bench.batch(LEFT, 4)
        bench.pass_time(5)
        bench.barrier(RIGHT, barrier(1, timeout_ms=5))
        # All of LEFT was done, and 4 is behind its barrier.
        assert sorted(captured(bench).values()) == [[2]]
        bench.work()

    def test_that_is_aligned_waits_for_what_is_in_hand_of_its_channel(self) -> None:
        bench, seen = started()
        with_some(bench)
        bench.work(1)
        for sender in SENDERS:
            bench.barrier(sender, barrier(1))
        assert bench.transport.of(BarrierFrame) == []
        bench.work()
        assert len(seen.processed) == 8
        assert captured(bench) == {}


class TestOrder:
    def test_a_watermark_waits_until_all_in_front_of_it_is_done(self) -> None:
        bench, seen = started()
        with_some(bench)
        for sender in SENDERS:
            bench.watermark(sender, 5)
        bench.batch(LEFT, 41)
        bench.work()
        what = [name for name, _ in seen.log if name in ("process", "on_watermark")]
        assert what == ["process"] * 3 + ["on_watermark", "process"]

    def test_an_end_waits_until_all_in_front_of_it_is_done(self) -> None:
        bench, seen = started()
        with_some(bench)
        for sender in SENDERS:
            bench.end(sender)
        bench.work()
        assert len(seen.processed) == 8
        assert seen.log[-1] == ("on_end", None)

    def test_no_time_is_passed_on_while_earlier_records_are_in_hand_or_have_been_put_back(self) -> None:
        bench, seen = started(follows=True)
        bench.batch(RIGHT, 50)
        bench.work()
        bench.batch(LEFT, 40, 1, 2, 3)
        bench.work(1)
        released = bench.subtask._clock.passed_on
        bench.subtask._clock._look()
        assert bench.subtask._clock.passed_on == released, "1, 2 and 3 are in hand, and 40 was seen"
        for sender in SENDERS:
            bench.barrier(sender, unaligned(1))
        bench.batch(RIGHT, 60)
        bench.subtask._clock._look()
        assert bench.subtask._clock.passed_on == released
        bench.work()
        assert bench.subtask._clock.passed_on == 40
        assert seen.processed[-1] in (3, 60)


class TestCredit:
    def test_is_given_back_as_records_are_done(self) -> None:
        bench, _ = started(credit_limit_bytes=8 * ROW)
        bench.batch(LEFT, *range(8), cost=8 * ROW)
        given_back = []
        for _ in range(8):
            bench.work(1)
            given_back.append(granted(bench)[bench.channel(LEFT)] // ROW)
        assert given_back == [0, 0, 0, 4, 4, 4, 4, 8]

    def test_is_given_back_once_however_often_records_go_back(self) -> None:
        bench, _ = started()
        bench.batch(LEFT, 1, 2, 3, 4, 5, cost=100)
        for number in range(1, 5):
            bench.work(1)
            for sender in SENDERS:
                bench.barrier(sender, unaligned(number))
        bench.work()
        assert granted(bench) == {bench.channel(LEFT): 100}
        assert all(channel.credit.outstanding == 1 << 20 for channel in bench.subtask.inputs.values())

    def test_is_not_held_back_from_a_channel_that_is_empty_after_records_went_back(self) -> None:
        bench, _ = started(credit_limit_bytes=10 * ROW)
        bench.batch(LEFT, 1, 2, cost=2 * ROW)
        bench.batch(RIGHT, 3)
        bench.work(2)
        for sender in SENDERS:
            bench.barrier(sender, unaligned(1))
        assert granted(bench)[bench.channel(LEFT)] == 2 * ROW

    def test_is_not_held_back_by_a_batch_that_was_done_and_paid_before_the_last_step(self) -> None:
        bench, _ = started(credit_limit_bytes=10 * ROW)
        bench.batch(LEFT, 1, cost=2 * ROW)
        bench.batch(RIGHT, 3)
        bench.work()
        assert granted(bench)[bench.channel(LEFT)] == 2 * ROW


@settings(max_examples=100, deadline=None)
@given(
    arrivals=st.lists(
        st.tuples(st.sampled_from(SENDERS), st.integers(0, 5) | st.sampled_from(["watermark", "checkpoint", "work"])),
        max_size=30,
    ),
    slice_rows_max=st.integers(1, 20),
    digits=st.randoms(use_true_random=False),
)
def test_whatever_arrives_every_key_of_a_channel_keeps_its_order_and_every_channel_gets_its_credit(
    arrivals: list[tuple[OperatorName, Any]], slice_rows_max: int, digits: Any
) -> None:
    bench, seen = started(slice_rows_max=slice_rows_max)
    sent: dict[OperatorName, list[int]] = {sender: [] for sender in SENDERS}
    paid: Counter[int] = Counter()
    checkpoints = 0
    for sender, what in arrivals:
        if what == "work":
            bench.work(1)
        elif what == "watermark":
            bench.watermark(sender, len(sent[sender]))
        elif what == "checkpoint":
            checkpoints += 1
            for each in SENDERS:
                bench.barrier(each, unaligned(checkpoints))
        else:
            first = 1_000_000 * SENDERS.index(sender)
            numbers = [first + KEYS * (len(sent[sender]) + n) + digits.randrange(4) for n in range(what)]
            sent[sender] += numbers
            batch = bench.batch(sender, *numbers, cost=max(1, what * ROW))
            paid[bench.channel(sender)] += max(1, batch.nbytes)
    bench.work()
    for sender, numbers in sent.items():
        mine = [number for number in seen.processed if number // 1_000_000 == SENDERS.index(sender)]
        assert sorted(mine) == numbers
        for key in range(4):
            of_key = [number for number in mine if number % KEYS == key]
            assert of_key == sorted(of_key)
    assert granted(bench) == paid
    assert bench.subtask.chain.contexts[0].records_in.value == sum(map(len, sent.values()))
    assert all(not (c.in_hand or c.overtaken or c.queued_bytes) for c in bench.subtask.inputs.values())
