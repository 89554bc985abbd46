"""The window of a channel follows its receiver, from the queue of a worker to the sender at the other end."""

from __future__ import annotations

from collections import deque

import pyarrow as pa
import pytest

from penstock.graph.logical import Graph, LogicalEdge, Node
from penstock.ids import ChannelId, OperatorName
from penstock.mailbox.frames import BatchFrame, CreditFrame
from penstock.protocol.credit import SenderCredit
from penstock.protocol.manifest import Partitioning
from penstock.worker.settings import MIB
from tests.unit.mailbox.fake_ports import (
    GENERATION,
    LEFT,
    MAP,
    READ,
    RIGHT,
    WRITE,
    Bench,
    Numbers,
    Seen,
    Staging,
    barrier,
    join,
    read,
    rows,
    unaligned,
)

ROW = rows(1).nbytes
ROWS = 10
BATCH = ROWS * ROW
WINDOW = 100 * BATCH
TARGET_MS = 20


class Sender:
    """The other end of a channel: sends batches as far as it has credit, and hears what it is granted."""

    def __init__(self, bench: Bench, sender: OperatorName) -> None:
        self.bench = bench
        self.channel = bench.channel(sender)
        self.credit = SenderCredit(bench.settings.credit_limit_bytes)
        self.waiting: deque[pa.RecordBatch] = deque()
        self.costs: list[int] = []
        self.windows: list[int] = []
        self.sent = 0

    def offer(self, batches: int, rows_each: int = ROWS) -> None:
        for _ in range(batches):
            self.waiting.append(rows(*range(self.sent, self.sent + rows_each)))
            self.sent += rows_each
        self.pump()

    def pump(self) -> None:
        while self.waiting and self.credit.can_send(self.waiting[0].nbytes):
            batch = self.waiting.popleft()
            cost = self.credit.spend(batch.nbytes)
            self.costs.append(cost)
            self.bench.worker.deliver(BatchFrame(GENERATION, self.channel, batch, cost))

    def hear(self) -> None:
        for frame in self.bench.transport.take(CreditFrame):
            if frame.channel == self.channel:
                self.credit.grant(frame.grant, frame.window)
                self.windows.append(frame.window)
        self.pump()

    @property
    def queued_bytes(self) -> int:
        return self.bench.subtask.inputs[self.channel].queued_bytes


class Slow:
    """A worker whose operator takes 1 ms for a record, and a sender that always has more."""

    def __init__(self, us_per_row: int = 1_000, **options: int) -> None:
        self.seen = Seen()
        chosen = {
            "credit_limit_bytes": WINDOW,
            "credit_limit_bytes_min": BATCH,
            "channel_time_ms": TARGET_MS,
            "slice_rows_max": ROWS,
            "slice_us": 10**6,
            **options,
        }
        # Chained to its sink: nothing but its own pace holds it up.
        self.bench = Bench(join(self.seen, is_chained=True), **chosen).started()
        self.seen.clock, self.seen.us_per_row = self.bench.clock, us_per_row
        self.sender = Sender(self.bench, LEFT)

    def work(self, slices: int) -> None:
        for _ in range(slices):
            self.bench.work(1)
            self.sender.hear()


class TestASlowReceiver:
    def test_it_tells_smaller_windows_until_little_waits_for_longer_than_it_should(self) -> None:
        slow = Slow()
        slow.sender.offer(1_000)
        assert slow.sender.queued_bytes == WINDOW, "a second of work"
        slow.work(300)
        windows = slow.sender.windows
        assert windows == sorted(windows, reverse=True)
        # In 20 ms it gets 20 rows done.
        assert BATCH <= windows[-1] <= 20 * ROW
        assert slow.sender.queued_bytes <= 20 * ROW
        waits = [slow.bench.clock.us - item.since_us for item in slow.bench.subtask.inputs[slow.sender.channel].queue]  # type: ignore[union-attr]
        assert max(waits) <= 1000 * TARGET_MS
        assert len(slow.seen.processed) == 300 * ROWS, "it was never without work"

    def test_it_never_shrinks_below_its_least(self) -> None:
        slow = Slow(us_per_row=100_000, credit_limit_bytes_min=3 * BATCH)
        slow.sender.offer(200)
        slow.work(120)
        assert set(slow.sender.windows) == {3 * BATCH}

    def test_it_never_shrinks_below_what_one_call_takes(self) -> None:
        # Each call takes 30 ms, however many records it is given: fewer of them would only mean more calls.
        slow = Slow(us_per_row=0, slice_rows_max=4 * ROWS)
        process = slow.seen.process

        def slowly(batch: pa.RecordBatch, source: int, emit: object) -> None:
            slow.bench.clock.advance(30)
            process(batch, source, emit)  # type: ignore[arg-type]

        slow.seen.process = slowly  # type: ignore[method-assign]
        slow.sender.offer(1_000)
        slow.work(200)
        assert slow.sender.windows[-1] >= 2 * BATCH, "half of what a call takes, for each of two inputs"
        assert slow.seen.calls[-1] >= 2 * ROWS

    def test_with_a_target_of_nothing_windows_stay_as_they_are(self) -> None:
        slow = Slow(channel_time_ms=0)
        slow.sender.offer(1_000)
        slow.work(300)
        assert set(slow.sender.windows) == {WINDOW}
        assert slow.sender.queued_bytes > WINDOW // 2

    def test_when_it_is_fast_again_the_window_grows_to_what_it_was(self) -> None:
        slow = Slow()
        slow.sender.offer(1_000)
        slow.work(300)
        slow.seen.us_per_row = 1
        for _ in range(100):
            # It has done everything before it is heard of: the sender should have sent more.
            slow.bench.work()
            slow.sender.hear()
        assert slow.sender.windows[-1] == WINDOW
        assert len(slow.seen.processed) == slow.sender.sent

    def test_a_batch_larger_than_the_shrunk_window_still_gets_through(self) -> None:
        slow = Slow()
        slow.sender.offer(300)
        slow.work(250)
        told = slow.sender.credit.credit_limit_bytes
        slow.sender.offer(1, rows_each=50 * ROWS)
        slow.sender.offer(3)
        slow.work(1_000)
        assert (slow.sender.waiting, len(slow.seen.processed)) == (deque(), slow.sender.sent)
        assert told < 5 * BATCH
        assert max(slow.sender.costs) < 5 * BATCH, "it was charged the window"

    def test_the_rest_of_a_batch_that_is_cut_keeps_the_queue_standing(self) -> None:
        # One batch at a time, always: whenever one is consumed to its end, no other is there.
        slow = Slow(credit_limit_bytes_min=1)
        for _ in range(20):
            slow.sender.offer(1, rows_each=5 * ROWS)
            slow.work(5)
        assert set(slow.sender.windows) == {5 * BATCH * TARGET_MS // 50}

    def test_a_queue_that_runs_empty_does_not_shrink_the_window_however_long_it_took(self) -> None:
        slow = Slow()
        for _ in range(20):
            slow.sender.offer(1)
            slow.bench.pass_time(500)
            slow.work(1)
        assert set(slow.sender.windows) == {WINDOW}

    def test_every_channel_has_its_own_window(self) -> None:
        slow = Slow(us_per_row=100)
        slow.sender.offer(1_000)
        other = Sender(slow.bench, RIGHT)
        told = []
        for _ in range(300):
            if not other.queued_bytes:
                other.offer(1)
            slow.bench.work(1)
            told += [frame.window for frame in slow.bench.transport.of(CreditFrame) if frame.channel == other.channel]
            other.credit.available = WINDOW
            slow.sender.hear()
        assert slow.sender.windows[-1] < WINDOW // 5
        assert set(told) == {WINDOW}


class TestTimeThatDoesNotCount:
    def windows_after(self, slow: Slow, slices: int = 50) -> set[int]:
        slow.work(slices)
        return set(slow.sender.windows)

    def waiting(self, **options: int) -> Slow:
        return Slow(us_per_row=1, **options)

    def test_waiting_counts_where_nothing_but_the_receiver_is_slow(self) -> None:
        slow = self.waiting()
        slow.seen.wants_input = False
        slow.sender.offer(50)
        slow.bench.pass_time(10_000)
        slow.seen.wants_input = True
        assert min(self.windows_after(slow)) < WINDOW

    def test_the_time_for_which_alignment_blocks_a_channel_does_not_shrink_its_window(self) -> None:
        slow = self.waiting()
        slow.bench.barrier(LEFT, barrier(1))
        slow.sender.offer(50)
        slow.bench.pass_time(10_000)
        slow.bench.barrier(RIGHT, barrier(1))
        assert self.windows_after(slow) == {WINDOW}
        assert len(slow.seen.processed) == slow.sender.sent

    def test_nor_does_the_time_for_which_recovered_records_come_first(self) -> None:
        first = Slow()
        first.sender.offer(5)
        for sender in (LEFT, RIGHT):
            first.bench.barrier(sender, unaligned(1))
        manifest = first.bench.manifest(1)
        slow = self.waiting()
        bench = Bench(
            join(slow.seen, is_chained=True), store=first.bench.store, manifest=manifest, **options_of(slow.bench)
        ).started()
        slow.bench, slow.sender = bench, Sender(bench, LEFT)
        slow.seen.clock = bench.clock
        slow.sender.offer(50)
        slow.seen.us_per_row = 10_000
        slow.work(5)
        assert bench.subtask.inputs[bench.channel(LEFT)].recovered is None
        assert bench.clock.us - 1_000_000 == 50 * 10_000, "half a second for what was recovered"
        slow.seen.us_per_row = 1
        assert self.windows_after(slow) == {WINDOW}


def options_of(bench: Bench) -> dict[str, int]:
    return {name: getattr(bench.settings, name) for name in bench.settings.__slots__}


class TestWhatFits:
    """How large a batch should be is for the windows of those who get it."""

    def spread(self, how: Partitioning, receivers: int = 4) -> Bench:
        key = ("v",) if how is Partitioning.HASH else ()
        graph = Graph(
            "spread",
            (
                Node(LEFT, source=Numbers({}), parallelism=1),
                Node(MAP, operator=Seen, parallelism=2),
                Node(WRITE, sink=Staging(), parallelism=receivers),
            ),
            (LogicalEdge(LEFT, MAP, Partitioning.REBALANCE), LogicalEdge(MAP, WRITE, how, key=key)),
        )
        bench = Bench(graph).started()
        bench.worker._order = [subtask for subtask in bench.worker._order if subtask.subtask.chain == MAP]
        return bench

    def router_most(self, bench: Bench) -> int | None:
        (subtask,) = bench.worker._order
        return subtask._router.batch_bytes_max

    def told(self, bench: Bench, window: int, receiver: int = 0) -> None:
        (channel,) = [
            channel.id
            for channel in bench.plan.channels
            if (channel.sender.chain, channel.sender.index, channel.receiver.index) == (MAP, 1, receiver)
        ]
        bench.worker.deliver(CreditFrame(GENERATION, ChannelId(channel), 0, window))
        assert bench.worker.failure is None

    def test_rows_of_a_hash_exchange_are_spread_over_all_receivers(self) -> None:
        bench = self.spread(Partitioning.HASH)
        assert self.router_most(bench) == 4 * MIB // 2
        self.told(bench, 1000)
        assert self.router_most(bench) == (3 * MIB + 1000) // 2

    @pytest.mark.parametrize("how", [Partitioning.REBALANCE, Partitioning.BROADCAST])
    def test_elsewhere_one_of_them_gets_the_whole_batch(self, how: Partitioning) -> None:
        bench = self.spread(how)
        assert self.router_most(bench) == MIB // 2
        self.told(bench, 1000)
        assert self.router_most(bench) == 500
        self.told(bench, 600, receiver=3)
        assert self.router_most(bench) == 300
        self.told(bench, MIB, receiver=3)
        assert self.router_most(bench) == 500

    def test_it_is_one_byte_at_least(self) -> None:
        bench = self.spread(Partitioning.REBALANCE)
        self.told(bench, 1)
        assert self.router_most(bench) == 1

    def test_the_narrowest_of_several_edges_decides(self) -> None:
        other = OperatorName("other")
        graph = Graph(
            "two edges",
            (
                Node(LEFT, source=Numbers({}), parallelism=1),
                Node(MAP, operator=Seen, parallelism=2),
                Node(WRITE, sink=Staging(), parallelism=4),
                Node(other, sink=Staging(), parallelism=1),
            ),
            (
                LogicalEdge(LEFT, MAP, Partitioning.REBALANCE),
                LogicalEdge(MAP, WRITE, Partitioning.HASH, key=("v",)),
                LogicalEdge(MAP, other, Partitioning.REBALANCE),
            ),
        )
        bench = Bench(graph).started()
        bench.worker._order = [subtask for subtask in bench.worker._order if subtask.subtask.chain == MAP]
        assert self.router_most(bench) == MIB // 2

    def test_without_outputs_there_is_nothing_to_fit(self) -> None:
        bench = Bench(join(Seen(), is_chained=True)).started()
        assert bench.subtask._router.batch_bytes_max is None

    def test_a_subtask_makes_smaller_calls_for_a_receiver_that_is_slow(self) -> None:
        seen = Seen()
        bench = Bench(join(seen)).started()
        bench.batch(LEFT, *range(1_000))
        bench.worker.deliver(CreditFrame(GENERATION, bench.channel(MAP, WRITE), 0, 40 * ROW))
        bench.work(1)
        assert seen.calls == [20]

    def test_a_source_reads_less_for_a_receiver_that_is_slow(self) -> None:
        bench = Bench(read(Numbers({"a": [], "b": list(range(1_000))}, chunk=1_000)), source_rows_max=100).started()
        bench.work(1)
        bench.worker.deliver(CreditFrame(GENERATION, bench.channel(READ, WRITE), 0, 40 * ROW))
        bench.work(1)
        assert [frame.batch.num_rows for frame in bench.transport.of(BatchFrame)] == [100, 20]
