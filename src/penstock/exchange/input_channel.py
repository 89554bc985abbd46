"""The receiving end of a channel: a queue, and what of it belongs to a checkpoint.

The queue is bounded by the credit that was granted; of watermarks, which need none, only the last one of several in a
row is kept. What was recovered is read before it, from the recovered channel.
Everything here is a list of references to immutable batches: capturing copies nothing.
"""

from __future__ import annotations

from collections import deque

from penstock.exchange.items import BarrierItem, BatchItem, Captured, EndItem, Item, MarkerItem, WatermarkItem, append
from penstock.exchange.recovered_channel import RecoveredChannel
from penstock.graph.physical import Channel
from penstock.ids import CheckpointId
from penstock.model.event_time import MIN_WATERMARK
from penstock.protocol.credit import ReceiverCredit


class InputChannel:
    """One input channel of a subtask."""

    __slots__ = (
        "blocked",
        "capturing",
        "channel",
        "credit",
        "held",
        "in_hand",
        "listed",
        "open_since_us",
        "overtaken",
        "queue",
        "queue_us_target",
        "queued_batches",
        "queued_bytes",
        "queued_markers",
        "recovered",
        "watermark",
    )

    def __init__(
        self, channel: Channel, credit_limit_bytes: int, credit_limit_bytes_min: int = 1, queue_us_target: int = 0
    ) -> None:
        self.channel = channel
        self.credit = ReceiverCredit(credit_limit_bytes, credit_limit_bytes_min)
        self.queue_us_target = queue_us_target
        """For how long records should wait here at most; 0 for a window that stays as it is."""
        self.queue: deque[Item] = deque()
        self.queued_batches = 0
        self.queued_bytes = 0
        self.queued_markers = 0
        self.in_hand = 0
        """Batches that are being worked on: to everybody else they are still in front of the queue. See `hand`."""
        self.overtaken = 0
        """Batches at the front of the queue of which later records have been processed already."""
        self.open_since_us = 0
        """Since when it may be read: waiting before that says nothing about how fast it is read."""
        self.watermark = MIN_WATERMARK
        self.blocked = False
        self.held = False
        """Whether its next records must wait for older ones of the same edge on other channels."""
        self.recovered: RecoveredChannel | None = None
        """Recovered records that come before everything in the queue (I2); None when all are processed."""
        self.listed = False
        """Whether the subtask has it on its list of channels to read."""
        self.capturing: list[Captured] | None = None
        """Where everything that arrives is noted too, while this channel is late."""

    @property
    def is_readable(self) -> bool:
        if self.blocked or self.held:
            return False
        return bool(self.queue) if self.recovered is None else self.recovered.is_loaded

    @property
    def is_empty(self) -> bool:
        """Whether nothing waits here but markers, whether it may be read or not."""
        return not self.has_items and self.recovered is None and not self.in_hand

    @property
    def has_items(self) -> bool:
        """Whether anything but markers is in the queue: nobody waits for a marker."""
        return len(self.queue) > self.queued_markers

    @property
    def is_at_front(self) -> bool:
        """Whether nothing is in front of the queue that must be processed before its first item."""
        return not (self.blocked or self.recovered or self.in_hand)

    def receive(self, item: Item) -> None:
        """Queue what has arrived; on a late channel it is channel state as well."""
        if isinstance(item, BarrierItem):
            self._put_before_markers(item)
        elif not append(self.queue, item):
            return
        if isinstance(item, BatchItem):
            self.queued_batches += 1
            self.queued_bytes += item.size
            item.ahead = self.queued_bytes
        elif isinstance(item, MarkerItem):
            self.queued_markers += 1
        if self.capturing is not None and isinstance(item, BatchItem | WatermarkItem):
            append(self.capturing, item)

    def _put_before_markers(self, barrier: BarrierItem) -> None:
        """Queue a barrier in front of markers that have nothing behind them: it comes to the front as without them."""
        position = len(self.queue)
        while position and isinstance(self.queue[position - 1], MarkerItem):
            position -= 1
        self.queue.insert(position, barrier)

    def pop(self) -> Item:
        item = self.queue.popleft()
        if isinstance(item, BatchItem):
            self.queued_batches -= 1
            self.queued_bytes -= item.size
            if self.overtaken:
                self.overtaken -= 1
        elif isinstance(item, MarkerItem):
            self.queued_markers -= 1
        return item

    def put_back(self, item: BatchItem) -> None:
        """The rest of a batch that was taken off the front."""
        self.queue.appendleft(item)
        self.queued_batches += 1
        self.queued_bytes += item.size
        self.overtaken += 1

    def take_slice(self, rows_max: int) -> BatchItem:
        """The first records of the queue, at most `rows_max`; the rest stays in front.

        The price in credit stays with the rest, so that it is given back once, with the last slice.
        """
        item = self.queue[0]
        assert isinstance(item, BatchItem)
        if item.batch.num_rows <= rows_max:
            self.pop()
            return item
        head, rest = item.batch.slice(0, rows_max), item.batch.slice(rows_max)
        size = item.size * rows_max // item.batch.num_rows
        self.queue[0] = BatchItem(rest, item.cost, item.size - size, item.since_us, item.ahead, True)
        self.queued_bytes -= size
        return BatchItem(head, 0, size)

    def consumed(self, item: BatchItem, now_us: int, bytes_least: int = 1, is_last: bool = True) -> int | None:
        """The grant to send after a batch was consumed, None for none. `bytes_least` are consumed at once.

        What else may wait in the queue needs no credit, so only batches count for whether it is empty. Of several that
        were consumed by one call, all but the last count as if they were still there: one grant is enough for them.
        """
        if not item.cost:
            return None
        if is_last:
            self._learn(item, now_us, bytes_least)
        return self.credit.consumed(item.cost, is_last and self.queued_batches == 0)

    def all_consumed(self, last: BatchItem, unpaid: int, now_us: int, bytes_least: int) -> int | None:
        """The grant to send when all that was in hand is consumed: `last` came last, and `unpaid` is left of its price.

        Not even with nothing left to pay may it be forgotten: a grant may have been held back before.
        """
        if last.cost:
            self._learn(last, now_us, bytes_least)
        return self.credit.consumed(unpaid, self.queued_batches == 0)

    def _learn(self, item: BatchItem, now_us: int, bytes_least: int) -> None:
        if self.queue_us_target:
            waited_us = now_us - max(item.since_us, self.open_since_us)
            is_standing = item.is_rest or self.queued_batches > 0
            self.credit.learn(waited_us, item.ahead, is_standing, self.queue_us_target, bytes_least)

    def in_front_of_barrier(self, checkpoint: CheckpointId) -> list[Captured]:
        """What waits in front of the barrier of `checkpoint`, which is removed; or all, if it is not here."""
        captured: list[Captured] = []
        for position, item in enumerate(self.queue):
            if isinstance(item, BarrierItem):
                if item.barrier.checkpoint == checkpoint:
                    del self.queue[position]
                    break
            elif isinstance(item, EndItem):
                break
            elif not isinstance(item, MarkerItem):
                captured.append(item)
        return captured

    def remove_barrier(self, checkpoint: CheckpointId) -> None:
        """Take the barrier of `checkpoint` out of the queue, if it waits there."""
        for position, item in enumerate(self.queue):
            if isinstance(item, BarrierItem) and item.barrier.checkpoint == checkpoint:
                del self.queue[position]
                return
