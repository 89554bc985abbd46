"""Small batches are put together for one call: which ones, in which order, and what comes after the call."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.exchange.codec import decode_batches
from penstock.graph.logical import Graph, LogicalEdge, Node
from penstock.ids import OperatorName
from penstock.mailbox.frames import BarrierFrame, BatchFrame, CreditFrame
from penstock.operators.contract import Emit, OperatorContext
from penstock.storage.blob import read_segment
from tests.unit.mailbox.fake_ports import (
    GENERATION,
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
    join,
    rows,
    unaligned,
    values,
)

MIDDLE = OperatorName("middle")
SENDERS = LEFT, MIDDLE, RIGHT
SMALL_BYTES = 262_144
ROW = rows(1).nbytes


class Noted(Seen):
    """Notes the input of each call too."""

    def __init__(self) -> None:
        super().__init__()
        self.inputs: list[int] = []

    def process(self, batch: pa.RecordBatch, source: int, emit: Emit) -> None:
        self.inputs.append(source)
        super().process(batch, source, emit)

    @property
    def steps(self) -> list[Any]:
        """Each call as a list of its records, each watermark as its number."""
        return [detail for what, detail in self.log if what in ("process", "on_watermark")]


class Timed(Noted):
    """Makes watermarks from the times of its records, so that each channel has a clock."""

    def open(self, context: OperatorContext) -> None:
        super().open(context)
        context.follow_event_time(None)


def union(seen: Seen) -> Graph:
    """left, middle, right -> one input of map -> write. Worker 1 hosts the subtask map[1] and nothing else."""
    return Graph(
        "union",
        (
            *(Node(name, source=Numbers({}), parallelism=1) for name in SENDERS),
            Node(MAP, operator=lambda: seen, parallelism=2),
            Node(WRITE, sink=Staging(), parallelism=1),
        ),
        (*(LogicalEdge(name, MAP, REBALANCE) for name in SENDERS), LogicalEdge(MAP, WRITE, REBALANCE)),
    )


def started(**options: int) -> tuple[Bench, Noted]:
    seen = Noted()
    return Bench(union(seen), **options).started(), seen


def deliver(bench: Bench, sender: OperatorName, batch: pa.RecordBatch) -> None:
    bench.worker.deliver(BatchFrame(GENERATION, bench.channel(sender), batch, max(1, int(batch.nbytes))))


def padded(number: int, size: int) -> pa.RecordBatch:
    """A batch of one row and `size` bytes."""
    batch = pa.record_batch({"v": pa.array([number], pa.int64()), "pad": pa.array([b"x" * (size - 12)], pa.binary())})
    assert batch.nbytes == size
    return batch


class TestWhichBatches:
    def test_those_of_one_channel_in_their_order(self) -> None:
        bench, seen = started()
        for numbers in ([1], [2, 3], [], [4]):
            bench.batch(LEFT, *numbers, cost=8)
        bench.work()
        assert seen.steps == [[1, 2, 3, 4]]

    def test_those_of_several_channels_one_channel_after_the_other(self) -> None:
        bench, seen = started()
        for sender, number in ((MIDDLE, 10), (LEFT, 1), (RIGHT, 20), (LEFT, 2), (MIDDLE, 11)):
            bench.batch(sender, number)
        bench.work()
        assert seen.steps == [[10, 11, 1, 2, 20]]

    def test_what_they_become_goes_on_as_one_batch(self) -> None:
        bench, _ = started()
        bench.batch(LEFT, 1)
        bench.batch(RIGHT, 2)
        bench.work()
        assert [values([frame.batch]) for frame in bench.transport.of(BatchFrame)] == [[1, 2]]

    def test_no_more_rows_than_a_call_should_get_and_no_batch_is_cut_for_it(self) -> None:
        bench, seen = started(slice_rows_max=5)
        for first in (0, 2, 4):
            bench.batch(LEFT, first, first + 1)
        bench.batch(RIGHT, 10)
        bench.work()
        assert seen.steps == [[0, 1, 2, 3], [10, 4, 5]]

    def test_exactly_as_many_rows_as_a_call_should_get(self) -> None:
        bench, seen = started(slice_rows_max=4)
        for first in (0, 2, 4):
            bench.batch(LEFT, first, first + 1)
        bench.work()
        assert seen.steps == [[0, 1, 2, 3], [4, 5]]

    def test_no_more_rows_than_the_receivers_have_room_for(self) -> None:
        bench, seen = started(credit_limit_bytes=6 * ROW)
        for number in range(4):
            bench.batch(LEFT, number)
        bench.work(1)
        assert seen.steps == [[0, 1, 2]], "half of the window"

    def test_the_rest_of_a_batch_that_was_cut_goes_with_the_next_one(self) -> None:
        bench, seen = started(slice_rows_max=3)
        bench.batch(LEFT, 1, 2, 3, 4, 5)
        bench.batch(LEFT, 6)
        bench.work()
        assert seen.steps == [[1, 2, 3], [4, 5, 6]]

    @pytest.mark.parametrize(("sizes", "calls"), [((0, 1), 2), ((1, 0), 2), ((0, 0), 1)])
    @pytest.mark.parametrize("other", [LEFT, RIGHT])
    def test_none_that_is_large(self, sizes: tuple[int, int], calls: int, other: OperatorName) -> None:
        bench, seen = started()
        for number, (sender, beyond) in enumerate(zip((LEFT, other), sizes, strict=True)):
            deliver(bench, sender, padded(number, SMALL_BYTES + beyond))
        bench.work()
        assert (len(seen.steps), seen.processed) == (calls, [0, 1])

    @pytest.mark.parametrize(
        "different",
        [
            pa.record_batch({"v": pa.array([2], pa.int32())}),
            pa.record_batch({"v": pa.array([2], pa.int64()), "w": pa.array([0])}),
            pa.record_batch([pa.array([2], pa.int64())], pa.schema([pa.field("v", pa.int64(), nullable=False)])),
        ],
        ids=["type", "column", "nullable"],
    )
    @pytest.mark.parametrize("other", [LEFT, RIGHT])
    def test_none_of_another_schema(self, different: pa.RecordBatch, other: OperatorName) -> None:
        bench, seen = started()
        bench.batch(LEFT, 1)
        deliver(bench, other, different)
        bench.batch(other, 3)
        bench.work()
        assert seen.steps == [[1], [2], [3]]

    def test_none_whose_schema_cannot_be_joined(self) -> None:
        bench, seen = started()
        for number, word in enumerate("ab"):
            words = pa.array([word]).dictionary_encode()
            deliver(bench, LEFT, pa.record_batch({"v": pa.array([number], pa.int64()), "w": words}))
        bench.work()
        assert seen.steps == [[0], [1]]

    def test_after_one_schema_that_cannot_be_joined_others_still_can(self) -> None:
        bench, seen = started()
        words = pa.array(["a"]).dictionary_encode()
        for _ in range(2):
            deliver(bench, LEFT, pa.record_batch({"v": pa.array([0], pa.int64()), "w": words}))
        for number in (1, 2):
            bench.batch(LEFT, number)
        bench.work()
        assert seen.steps == [[0], [0], [1, 2]]

    def test_none_of_the_other_input_of_an_operator(self) -> None:
        seen = Noted()
        bench = Bench(join(seen)).started()
        for sender, number in ((LEFT, 1), (RIGHT, 10), (LEFT, 2), (RIGHT, 11)):
            bench.batch(sender, number)
        bench.work()
        assert (seen.steps, seen.inputs) == ([[1, 2], [10, 11]], [0, 1])

    def test_none_of_another_channel_where_each_has_a_clock(self) -> None:
        seen = Timed()
        bench = Bench(union(seen)).started()
        for sender, number in ((MIDDLE, 10), (LEFT, 1), (MIDDLE, 11), (LEFT, 2)):
            bench.batch(sender, number)
        bench.work()
        assert seen.steps == [[10, 11], [1, 2]]

    def test_none_behind_a_watermark(self) -> None:
        bench, seen = started()
        for sender in (MIDDLE, RIGHT):
            bench.watermark(sender, 100)
        bench.work()
        bench.batch(LEFT, 1)
        bench.watermark(LEFT, 5)
        bench.batch(LEFT, 2)
        bench.batch(RIGHT, 10)
        bench.work()
        assert seen.steps == [[1, 10], 5, [2]]

    def test_none_behind_a_watermark_of_a_channel_that_is_not_the_first(self) -> None:
        bench, seen = started()
        for sender in (LEFT, MIDDLE):
            bench.watermark(sender, 100)
        bench.work()
        bench.batch(LEFT, 1)
        bench.batch(RIGHT, 10)
        bench.watermark(RIGHT, 5)
        bench.batch(RIGHT, 11)
        bench.batch(MIDDLE, 20)
        bench.work()
        assert seen.steps == [[1, 10, 20], 5, [11]]

    def test_none_of_a_channel_that_is_blocked(self) -> None:
        bench, seen = started()
        bench.barrier(RIGHT, barrier(1))
        bench.batch(RIGHT, 10)
        bench.batch(LEFT, 1)
        bench.work()
        assert seen.steps == [[1]]

    def test_none_that_waits_behind_recovered_records(self) -> None:
        first, _ = started()
        first.batch(LEFT, 1)
        for sender in SENDERS:
            first.barrier(sender, unaligned(1))
        seen = Noted()
        bench = Bench(union(seen), store=first.store, manifest=first.manifest(1))
        bench.worker.start()
        bench.batch(RIGHT, 10)
        bench.batch(LEFT, 2)
        bench.background.run()
        bench.work()
        assert seen.steps[0] == [10]
        assert [number for number in seen.processed if number < 10] == [1, 2]

    def test_the_end_of_a_channel_does_not_wait_for_those_that_were_taken_with_it(self) -> None:
        bench, seen = started()
        for sender, number in ((LEFT, 1), (MIDDLE, 10), (RIGHT, 20)):
            bench.batch(sender, number)
            bench.end(sender)
        bench.work()
        assert seen.steps[0] == [1, 10, 20]
        assert seen.log[-1] == ("on_end", None)


class TestCredit:
    def test_every_batch_gives_its_price_back_once_to_its_own_channel(self) -> None:
        bench, seen = started()
        prices = {LEFT: (3, 5), RIGHT: (7,), MIDDLE: (11, 13)}
        for sender, costs in prices.items():
            for cost in costs:
                bench.batch(sender, 1, cost=cost)
        bench.work()
        assert len(seen.steps) == 1
        granted = {frame.channel: frame.grant for frame in bench.transport.of(CreditFrame)}
        assert granted == {bench.channel(sender): sum(costs) for sender, costs in prices.items()}
        assert all(channel.credit.outstanding == 1 << 20 for channel in bench.subtask.inputs.values())

    def test_all_batches_of_a_channel_are_one_grant(self) -> None:
        bench, _ = started()
        for number in range(5):
            bench.batch(LEFT, number)
        bench.work()
        assert [frame.grant for frame in bench.transport.of(CreditFrame)] == [5 * ROW]

    def test_a_channel_of_which_something_still_waits_grants_later(self) -> None:
        bench, _ = started(slice_rows_max=2)
        for number in range(3):
            bench.batch(LEFT, number)
        bench.work(1)
        assert bench.transport.of(CreditFrame) == []
        bench.work()
        assert [frame.grant for frame in bench.transport.of(CreditFrame)] == [3 * ROW]


class TestBarriers:
    def test_one_that_comes_to_the_front_is_handled_after_the_call_and_before_anything_else(self) -> None:
        bench, seen = started()
        for sender, number in ((LEFT, 1), (RIGHT, 10)):
            bench.batch(sender, number)
            bench.barrier(sender, barrier(1))
            bench.batch(sender, number + 1)
        bench.barrier(MIDDLE, barrier(1))
        bench.work(1)
        assert seen.steps == [[1, 10]]
        sent = [type(frame) for _, frame in bench.transport.sent if isinstance(frame, BatchFrame | BarrierFrame)]
        assert sent == [BatchFrame, BarrierFrame]
        (frame,) = bench.acknowledged()
        (state,) = frame.report.states
        assert values(decode_batches(read_segment(bench.store, state.segment))) == [1, 10]
        bench.work()
        assert sorted(seen.processed[2:]) == [2, 11]

    def test_one_that_comes_to_the_front_blocks_its_channel(self) -> None:
        bench, seen = started()
        bench.batch(LEFT, 1)
        bench.batch(RIGHT, 10)
        bench.barrier(RIGHT, barrier(1))
        bench.batch(RIGHT, 11)
        bench.batch(LEFT, 2)
        bench.work()
        assert seen.steps == [[1, 2, 10]]
        assert bench.transport.of(BarrierFrame) == []

    def test_what_was_taken_is_not_captured(self) -> None:
        bench, _ = started(slice_rows_max=2)
        for number in range(3):
            bench.batch(LEFT, number)
        bench.batch(RIGHT, 10)
        bench.work(1)
        for sender in SENDERS:
            bench.barrier(sender, unaligned(1))
        (frame,) = bench.acknowledged()
        assert sum(segment.rows for segment in frame.report.channels) == 2


@settings(max_examples=100, deadline=None)
@given(
    arrivals=st.lists(
        st.tuples(st.sampled_from(SENDERS), st.integers(0, 5) | st.sampled_from(["watermark", "other", "work"])),
        max_size=30,
    ),
    slice_rows_max=st.integers(1, 8),
)
def test_whatever_arrives_each_channel_keeps_its_order_and_gets_its_credit(
    arrivals: list[tuple[OperatorName, Any]], slice_rows_max: int
) -> None:
    bench, seen = started(slice_rows_max=slice_rows_max)
    first = {sender: 1_000_000 * number for number, sender in enumerate(SENDERS)}
    sent: dict[OperatorName, list[int]] = {sender: [] for sender in SENDERS}
    paid: Counter[int] = Counter()
    for sender, what in arrivals:
        if what == "work":
            bench.work(1)
        elif what == "watermark":
            bench.watermark(sender, len(sent[sender]))
        else:
            count = 1 if what == "other" else what
            numbers = [first[sender] + len(sent[sender]) + offset for offset in range(count)]
            sent[sender] += numbers
            batch = rows(*numbers)
            deliver(bench, sender, batch.append_column("w", batch.column(0)) if what == "other" else batch)
            paid[bench.channel(sender)] += max(1, batch.nbytes * (2 if what == "other" else 1))
    bench.work()
    for sender, numbers in sent.items():
        assert [number for number in seen.processed if number // 1_000_000 == SENDERS.index(sender)] == numbers
    assert max(seen.calls, default=0) <= slice_rows_max
    granted: Counter[int] = Counter()
    for frame in bench.transport.of(CreditFrame):
        granted[frame.channel] += frame.grant
    assert granted == paid
