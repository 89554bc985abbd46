"""Both ends of a channel: queues, credit, barriers that wait and barriers that overtake."""

from __future__ import annotations

from penstock.exchange.input_channel import InputChannel
from penstock.exchange.items import BarrierItem, BatchItem, EndItem, Item, WatermarkItem, captured_bytes
from penstock.exchange.output_channel import OutputChannel
from penstock.graph.physical import Channel, PhysicalEdge
from penstock.ids import ChannelId, CheckpointId, EdgeId, OperatorName, SubtaskId, WorkerId
from penstock.mailbox.frames import BarrierFrame, BatchFrame, EndFrame, WatermarkFrame
from penstock.protocol.barrier import Barrier
from penstock.protocol.manifest import Partitioning
from tests.unit.mailbox.fake_ports import GENERATION, ListTransport, ManualClock, barrier, rows, unaligned, values

READ, MAP = OperatorName("read"), OperatorName("map")
EDGE = PhysicalEdge(EdgeId(READ, MAP, 0), READ, MAP, 0, Partitioning.REBALANCE)
CHANNEL = Channel(ChannelId(5), EDGE, SubtaskId(READ, 0), SubtaskId(MAP, 0))
ONE, TWO = CheckpointId(1), CheckpointId(2)
CHUNK = rows(1).nbytes


def item(*numbers: int, cost: int | None = None) -> BatchItem:
    batch = rows(*numbers)
    return BatchItem(batch, batch.nbytes if cost is None else cost, batch.nbytes)


def waiting(number: int) -> BarrierItem:
    return BarrierItem(barrier(number), since_ms=0)


class TestInput:
    def channel(self, *items: Item, credit_limit_bytes: int = 1_000) -> InputChannel:
        channel = InputChannel(CHANNEL, credit_limit_bytes)
        for each in items:
            channel.receive(each)
        return channel

    def test_it_is_readable_if_something_waits_and_it_is_not_blocked(self) -> None:
        channel = self.channel()
        assert not channel.is_readable
        channel.receive(EndItem())
        assert channel.is_readable
        channel.blocked = True
        assert not channel.is_readable

    def test_a_grant_is_never_held_back_behind_what_needs_no_credit(self) -> None:
        channel = self.channel(item(1, cost=10), WatermarkItem(7), waiting(1), EndItem())
        taken = channel.take_slice(100)
        assert channel.consumed(taken, now_us=0) == 10

    def test_grants_are_gathered_while_batches_wait(self) -> None:
        channel = self.channel(item(1, cost=10), item(2, cost=10))
        assert [channel.consumed(channel.take_slice(100), now_us=0) for _ in range(2)] == [None, 20]

    def test_a_slice_leaves_the_price_with_the_rest(self) -> None:
        channel = self.channel(item(1, 2, 3, 4, 5, cost=40))
        first, second, third = (channel.take_slice(2) for _ in range(3))
        assert [values([each.batch]) for each in (first, second, third)] == [[1, 2], [3, 4], [5]]
        assert [each.cost for each in (first, second, third)] == [0, 0, 40]
        assert sum(each.size for each in (first, second, third)) == 5 * CHUNK
        assert (channel.queued_batches, len(channel.queue)) == (0, 0)

    def test_a_slice_gives_nothing_back_before_the_last_one(self) -> None:
        channel = self.channel(item(1, 2, 3, cost=30))
        assert [channel.consumed(channel.take_slice(1), now_us=0) for _ in range(3)] == [None, None, 30]

    def test_of_several_that_one_call_consumed_only_the_last_counts_as_the_end_of_the_queue(self) -> None:
        channel = self.channel(item(1, cost=10), item(2, cost=20))
        first, second = (channel.take_slice(100) for _ in range(2))
        assert channel.consumed(first, now_us=0, is_last=False) is None
        assert channel.consumed(second, now_us=0) == 30

    def test_what_arrives_knows_how_much_waits_with_it(self) -> None:
        channel = self.channel(first := item(1, 2), WatermarkItem(5), second := item(3))
        assert [each.ahead for each in (first, second)] == [2 * CHUNK, 3 * CHUNK]
        channel.take_slice(1)
        channel.receive(third := item(4))
        assert (channel.queued_bytes, third.ahead) == (3 * CHUNK, 3 * CHUNK)
        while channel.queue:
            channel.pop()
        assert (channel.queued_bytes, channel.queued_batches) == (0, 0)

    def test_the_rest_of_a_batch_has_waited_since_the_whole_came_and_says_that_it_is_a_rest(self) -> None:
        whole = item(1, 2, 3)
        whole.since_us = 7
        channel = self.channel(whole)
        head, rest = channel.take_slice(1), channel.take_slice(100)
        assert (head.is_rest, rest.is_rest, whole.is_rest) == (False, True, False)
        assert (rest.since_us, rest.ahead) == (7, 3 * CHUNK)

    def test_a_window_does_not_learn_from_waiting_before_the_channel_was_open(self) -> None:
        for open_since_us, window in ((0, 100), (99_000, 1_000)):
            channel = InputChannel(CHANNEL, 1_000, 100, queue_us_target=20_000)
            for each in (item(1), item(2)):
                channel.receive(each)
            channel.open_since_us = open_since_us
            channel.consumed(channel.take_slice(100), now_us=100_000)
            assert channel.credit.credit_limit_bytes == window

    def test_only_a_queue_that_stands_shrinks_the_window(self) -> None:
        for others, window in ((0, 1_000), (1, 100)):
            channel = InputChannel(CHANNEL, 1_000, 100, queue_us_target=20_000)
            for each in [item(1), *(item(2) for _ in range(others)), WatermarkItem(3)]:
                channel.receive(each)
            channel.consumed(channel.take_slice(100), now_us=100_000)
            assert channel.credit.credit_limit_bytes == window

    def test_a_slice_copies_nothing(self) -> None:
        channel = self.channel(whole := item(1, 2, 3))
        head = channel.take_slice(2).batch
        buffers = [batch.column(0).buffers()[1].address for batch in (whole.batch, head)]
        assert buffers[0] == buffers[1]

    def test_what_is_captured_is_a_list_of_references(self) -> None:
        first, mark, second = item(1), WatermarkItem(5), item(2)
        channel = self.channel(first, mark, second)
        captured = channel.in_front_of_barrier(ONE)
        assert [id(each) for each in captured] == [id(first), id(mark), id(second)]
        assert list(channel.queue) == [first, mark, second]

    def test_what_is_captured_ends_at_the_barrier_which_is_removed(self) -> None:
        first, second = item(1), item(2)
        channel = self.channel(first, waiting(1), second)
        assert channel.in_front_of_barrier(ONE) == [first]
        assert list(channel.queue) == [first, second]

    def test_a_barrier_of_another_checkpoint_is_neither_captured_nor_removed(self) -> None:
        first, stale, second = item(1), waiting(1), item(2)
        channel = self.channel(first, stale, second, waiting(2))
        assert channel.in_front_of_barrier(TWO) == [first, second]
        assert list(channel.queue) == [first, stale, second]

    def test_an_end_is_not_channel_state(self) -> None:
        first, end = item(1), EndItem()
        channel = self.channel(first, end)
        assert channel.in_front_of_barrier(ONE) == [first]
        assert list(channel.queue) == [first, end]

    def test_a_late_channel_captures_all_that_arrives_and_keeps_it_to_be_read(self) -> None:
        channel = self.channel(item(1))
        channel.capturing = []
        arriving = [item(2), WatermarkItem(4), waiting(1), EndItem()]
        for each in arriving:
            channel.receive(each)
        assert channel.capturing == arriving[:2]
        assert list(channel.queue)[1:] == arriving

    def test_what_was_captured_is_whole_even_if_it_is_read_in_slices_meanwhile(self) -> None:
        channel = self.channel(item(1, 2, 3))
        channel.take_slice(1)
        captured = channel.in_front_of_barrier(ONE)
        channel.take_slice(1)
        assert [values([each.batch]) for each in captured if isinstance(each, BatchItem)] == [[2, 3]]
        assert captured_bytes(captured) == 2 * CHUNK

    def test_watermarks_that_need_no_credit_do_not_pile_up_on_a_blocked_channel(self) -> None:
        channel = self.channel(item(1), WatermarkItem(1), waiting(1))
        channel.blocked = True
        channel.capturing = []
        for number in range(2, 1_000):
            channel.receive(WatermarkItem(number))
        channel.receive(item(2))
        channel.receive(WatermarkItem(1_000))
        said = [each.watermark for each in channel.queue if isinstance(each, WatermarkItem)]
        assert said == [1, 999, 1_000], "each in its place among the records and barriers"
        assert [type(each) for each in channel.capturing] == [WatermarkItem, BatchItem, WatermarkItem]

    def test_a_watermark_that_was_captured_stays_as_it_was(self) -> None:
        channel = self.channel(item(1), WatermarkItem(5))
        captured = channel.in_front_of_barrier(ONE)
        channel.receive(WatermarkItem(9))
        assert [each.watermark for each in captured if isinstance(each, WatermarkItem)] == [5]
        assert [each.watermark for each in channel.queue if isinstance(each, WatermarkItem)] == [9]

    def test_only_the_barrier_of_the_checkpoint_is_removed(self) -> None:
        stale, wanted = waiting(1), waiting(2)
        channel = self.channel(item(1), stale, wanted)
        channel.remove_barrier(TWO)
        channel.remove_barrier(CheckpointId(3))
        assert list(channel.queue)[1:] == [stale]


class TestOutput:
    def setup_method(self) -> None:
        self.clock = ManualClock()
        self.transport = ListTransport()
        self.departures: list[tuple[ChannelId, CheckpointId]] = []
        self.full: set[ChannelId] = set()

    def channel(self, credit_limit_bytes: int = 2 * CHUNK, bytes_max: int = 3 * CHUNK) -> OutputChannel:
        return OutputChannel(
            CHANNEL,
            to=WorkerId(3),
            generation=GENERATION,
            credit_limit_bytes=credit_limit_bytes,
            bytes_max=bytes_max,
            transport=self.transport,
            clock=self.clock,
            departed=lambda channel, checkpoint: self.departures.append((channel.id, checkpoint)),
            full=self.full,
        )

    def sent(self) -> list[object]:
        """What has left, in short, and forgotten then."""
        short: list[object] = []
        for to, frame in self.transport.sent:
            assert to == WorkerId(3)
            match frame:
                case BatchFrame(_, _, batch, _):
                    short.append(values([batch]))
                case WatermarkFrame(_, _, watermark):
                    short.append(watermark)
                case BarrierFrame(_, _, sent):
                    short.append(("u" if sent.is_unaligned else "a", sent.checkpoint))
                case EndFrame():
                    short.append("end")
        self.transport.sent.clear()
        return short

    def test_what_has_credit_leaves_at_once_and_the_rest_waits_in_order(self) -> None:
        channel = self.channel()
        for number in range(4):
            channel.send_batch(rows(number))
            channel.send_watermark(100 + number)
        assert self.sent() == [[0], 100, [1], 101]
        channel.grant(CHUNK, 2 * CHUNK)
        assert self.sent() == [[2], 102]
        channel.grant(CHUNK, 2 * CHUNK)
        assert self.sent() == [[3], 103]

    def test_a_batch_larger_than_the_window_travels_alone(self) -> None:
        channel = self.channel()
        channel.send_batch(rows(1))
        channel.send_batch(rows(*range(50)))
        channel.send_batch(rows(2))
        assert self.sent() == [[1]]
        channel.grant(CHUNK, 2 * CHUNK)
        assert self.sent() == [list(range(50))]
        assert channel.credit.available == 0
        channel.grant(2 * CHUNK, 2 * CHUNK)
        assert self.sent() == [[2]]

    def test_the_frame_says_what_was_paid(self) -> None:
        channel = self.channel()
        channel.send_batch(rows(*range(50)))
        (frame,) = self.transport.of(BatchFrame)
        assert (frame.cost, frame.channel, frame.generation) == (2 * CHUNK, ChannelId(5), GENERATION)

    def test_it_holds_its_subtask_up_from_the_bound_until_enough_has_left(self) -> None:
        channel = self.channel(credit_limit_bytes=3 * CHUNK, bytes_max=2 * CHUNK)
        for number in range(4):
            channel.send_batch(rows(number))
        assert self.full == set()
        channel.send_batch(rows(4))
        assert (self.full, channel.queued_bytes) == ({ChannelId(5)}, 2 * CHUNK)
        channel.grant(CHUNK, 3 * CHUNK)
        assert (self.full, channel.queued_bytes) == (set(), CHUNK)

    def test_no_more_waits_here_than_the_receiver_wants_to_have_waiting(self) -> None:
        channel = self.channel(credit_limit_bytes=8 * CHUNK, bytes_max=8 * CHUNK)
        for number in range(10):
            channel.send_batch(rows(number))
        assert (self.full, channel.queued_bytes) == (set(), 2 * CHUNK)
        channel.grant(0, 4 * CHUNK)
        assert (self.full, channel.queued_bytes) == ({ChannelId(5)}, 2 * CHUNK)
        channel.grant(CHUNK, 4 * CHUNK)
        assert (self.full, channel.queued_bytes) == (set(), CHUNK)
        channel.send_batch(rows(6))
        assert self.full == {ChannelId(5)}
        channel.grant(0, 8 * CHUNK)
        assert self.full == set(), "it has room again"

    def test_an_empty_queue_is_never_full_however_small_the_window(self) -> None:
        channel = self.channel()
        channel.send_batch(rows(1))
        channel.grant(CHUNK, 1)
        assert (self.full, channel.queued_bytes) == (set(), 0)
        channel.send_batch(rows(1))
        assert self.full == set(), "it has left at once"

    def test_a_batch_that_waits_costs_what_the_window_is_when_it_leaves(self) -> None:
        channel = self.channel(credit_limit_bytes=4 * CHUNK)
        channel.send_batch(rows(1))
        channel.send_batch(rows(1, 2))
        channel.send_batch(rows(*range(50)))
        assert self.sent() == [[1], [1, 2]]
        channel.grant(0, CHUNK)
        (frame,) = self.transport.of(BatchFrame)
        assert (frame.batch.num_rows, frame.cost, channel.credit.available) == (50, CHUNK, 0)

    def test_a_barrier_that_leaves_at_once_is_not_reported_as_a_departure(self) -> None:
        channel = self.channel()
        channel.send_batch(rows(1))
        assert channel.send_barrier(barrier(1)) is True
        assert self.sent() == [[1], ("a", 1)]
        assert self.departures == []

    def test_a_barrier_that_waited_is_reported_when_it_leaves_in_its_turn(self) -> None:
        channel = self.channel(credit_limit_bytes=CHUNK)
        channel.send_batch(rows(1))
        channel.send_batch(rows(2))
        assert channel.send_barrier(barrier(1)) is False
        assert self.sent() == [[1]]
        channel.grant(CHUNK, CHUNK)
        assert self.sent() == [[2], ("a", 1)]
        assert self.departures == [(ChannelId(5), ONE)]

    def test_a_barrier_is_older_by_the_time_that_it_waited(self) -> None:
        channel = self.channel(credit_limit_bytes=CHUNK)
        channel.send_batch(rows(1))
        channel.send_batch(rows(2))
        channel.send_barrier(barrier(1).aged(5))
        self.clock.advance(40)
        channel.grant(CHUNK, CHUNK)
        assert [frame.barrier.age_ms for frame in self.transport.of(BarrierFrame)] == [45]

    def test_watermarks_do_not_pile_up_while_records_wait_for_credit(self) -> None:
        channel = self.channel(credit_limit_bytes=CHUNK)
        channel.send_batch(rows(1))
        channel.send_batch(rows(2))
        for number in range(1_000):
            channel.send_watermark(number)
        assert len(channel.queue) == 2
        channel.send_barrier(unaligned(1))
        (_, captured) = channel.overtake(unaligned(1))
        channel.send_watermark(2_000)
        assert isinstance(captured, WatermarkItem) and captured.watermark == 999
        self.sent()
        channel.grant(CHUNK, CHUNK)
        assert self.sent() == [[2], 2_000]

    def test_an_overtaking_barrier_leaves_without_credit_and_what_it_passed_is_captured_by_reference(self) -> None:
        channel = self.channel(credit_limit_bytes=CHUNK)
        second, third = rows(2), rows(3)
        channel.send_batch(rows(1))
        channel.send_batch(second)
        channel.send_watermark(7)
        channel.send_batch(third)
        channel.send_barrier(unaligned(1))
        channel.send_batch(rows(4))
        self.sent()
        self.clock.advance(30)
        captured = channel.overtake(unaligned(1))
        assert [frame.barrier.age_ms for frame in self.transport.of(BarrierFrame)] == [30]
        assert self.sent() == [("u", 1)]
        assert [each.batch for each in captured if isinstance(each, BatchItem)] == [second, third]
        assert captured[0].batch is second  # type: ignore[union-attr]
        assert isinstance(captured[1], WatermarkItem)
        channel.grant(CHUNK, CHUNK)
        channel.grant(CHUNK, CHUNK)
        assert self.sent() == [[2], 7, [3]], "what was captured is sent all the same, behind the barrier"

    def test_an_overtaking_barrier_passes_one_that_was_given_up_which_still_leaves_later(self) -> None:
        channel = self.channel(credit_limit_bytes=CHUNK)
        channel.send_batch(rows(1))
        channel.send_batch(rows(2))
        channel.send_barrier(barrier(1))
        channel.send_barrier(unaligned(2))
        self.sent()
        captured = channel.overtake(unaligned(2))
        assert [type(each) for each in captured] == [BatchItem]
        assert self.sent() == [("u", 2)]
        channel.grant(CHUNK, CHUNK)
        assert self.sent() == [[2], ("a", 1)]

    def test_behind_an_end_that_was_sent_there_is_no_barrier(self) -> None:
        channel = self.channel()
        channel.send_end()
        assert channel.send_barrier(barrier(1)) is True
        assert self.sent() == ["end"]

    def test_a_barrier_goes_in_front_of_an_end_that_waits_and_can_overtake_from_there(self) -> None:
        channel = self.channel(credit_limit_bytes=CHUNK)
        channel.send_batch(rows(1))
        channel.send_batch(rows(2))
        channel.send_end()
        assert channel.send_barrier(unaligned(1)) is False
        self.sent()
        captured = channel.overtake(unaligned(1))
        assert [values([each.batch]) for each in captured if isinstance(each, BatchItem)] == [[2]]
        assert self.sent() == [("u", 1)]
        channel.grant(CHUNK, CHUNK)
        assert self.sent() == [[2], "end"]

    def test_two_barriers_in_front_of_an_end_keep_their_order(self) -> None:
        channel = self.channel(credit_limit_bytes=CHUNK)
        channel.send_batch(rows(1))
        channel.send_batch(rows(2))
        channel.send_end()
        channel.send_barrier(barrier(1))
        channel.send_barrier(barrier(2))
        self.sent()
        channel.grant(CHUNK, CHUNK)
        assert self.sent() == [[2], ("a", 1), ("a", 2), "end"]
        assert self.departures == [(ChannelId(5), ONE), (ChannelId(5), TWO)]

    def test_a_barrier_is_sent_as_it_was_given_apart_from_its_age(self) -> None:
        channel = self.channel()
        given: Barrier = barrier(1, timeout_ms=200, completed=9).aged(3)
        channel.send_barrier(given)
        assert [frame.barrier for frame in self.transport.of(BarrierFrame)] == [given]
