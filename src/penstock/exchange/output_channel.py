"""The sending end of a channel: a queue that waits for credit, and barriers that may overtake it."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import pyarrow as pa

from penstock.exchange.items import BarrierItem, BatchItem, Captured, EndItem, Item, MarkerItem, WatermarkItem, append
from penstock.graph.physical import Channel
from penstock.ids import ChannelId, CheckpointId, Generation, WorkerId
from penstock.mailbox.frames import BarrierFrame, BatchFrame, EndFrame, MarkerFrame, WatermarkFrame
from penstock.mailbox.ports import Clock, Transport
from penstock.metrics.instruments import Counter
from penstock.protocol.barrier import Barrier
from penstock.protocol.credit import SenderCredit


class FullOutputs:
    """The output channels of a subtask that hold it up. `changed` hears of the first one and of the end of the last."""

    __slots__ = ("_changed", "_channels")

    def __init__(self, changed: Callable[[bool], None]) -> None:
        self._changed = changed
        self._channels: set[ChannelId] = set()

    def __bool__(self) -> bool:
        return bool(self._channels)

    def add(self, channel: ChannelId) -> None:
        if not self._channels:
            self._changed(True)
        self._channels.add(channel)

    def discard(self, channel: ChannelId) -> None:
        if channel in self._channels:
            self._channels.remove(channel)
            if not self._channels:
                self._changed(False)


class OutputChannel:
    """One output channel of a subtask. `departed` is told of each barrier that leaves in its turn."""

    __slots__ = (
        "bytes_max",
        "bytes_sent",
        "channel",
        "clock",
        "credit",
        "departed",
        "full",
        "generation",
        "has_ended",
        "queue",
        "queued_bytes",
        "to",
        "transport",
    )

    def __init__(
        self,
        channel: Channel,
        *,
        to: WorkerId,
        generation: Generation,
        credit_limit_bytes: int,
        bytes_max: int,
        transport: Transport,
        clock: Clock,
        departed: Callable[[Channel, CheckpointId], None],
        full: FullOutputs | set[ChannelId],
        bytes_sent: Counter | None = None,
    ) -> None:
        self.channel = channel
        self.to = to
        self.generation = generation
        self.credit = SenderCredit(credit_limit_bytes)
        self.bytes_max = bytes_max
        self.transport = transport
        self.clock = clock
        self.departed = departed
        self.full = full
        """The channels of the subtask that hold it up; this one adds and removes itself."""
        self.bytes_sent = bytes_sent or Counter()
        """Bytes of all batches of the subtask."""
        self.queue: deque[Item] = deque()
        self.queued_bytes = 0
        self.has_ended = False
        """Whether the end has been sent: nothing may follow."""

    def send_batch(self, batch: pa.RecordBatch) -> None:
        size = int(batch.nbytes)
        self.queue.append(BatchItem(batch, 0, size))
        self.queued_bytes += size
        self.bytes_sent.value += size
        self.pump()
        self._note_if_full()

    def send_watermark(self, watermark: int) -> None:
        append(self.queue, WatermarkItem(watermark))
        self.pump()

    def send_marker(self, source: str, emitted_ms: int) -> None:
        append(self.queue, MarkerItem(source, emitted_ms))
        self.pump()

    def send_end(self) -> None:
        self.queue.append(EndItem())
        self.pump()

    def send_barrier(self, barrier: Barrier) -> bool:
        """Put the barrier behind the queued records; True if it has left at once, or has nowhere to go."""
        if self.has_ended:
            return True
        item = BarrierItem(barrier, self.clock.now_ms())
        if self.queue and isinstance(self.queue[-1], EndItem):
            # The end cuts the channel too; but in front of it the barrier can still overtake the records.
            self.queue.insert(len(self.queue) - 1, item)
        else:
            self.queue.append(item)
        self.pump(is_new=barrier.checkpoint)
        return item not in self.queue

    def grant(self, granted: int, credit_limit_bytes: int) -> None:
        self.credit.grant(granted, credit_limit_bytes)
        self.pump()
        self._note_if_full()

    def _note_if_full(self) -> None:
        # In front of a slow receiver as little should wait here as there: a batch that is as large as it should be.
        # An empty queue is never full, however small the window: nobody would tell when there is room again.
        if self.queued_bytes >= max(1, min(self.bytes_max, self.credit.credit_limit_bytes // 2)):
            self.full.add(self.channel.id)
        else:
            self.full.discard(self.channel.id)

    def pump(self, is_new: CheckpointId | None = None) -> None:
        """Send what has credit. Departures are reported, except of the barrier that was queued just now."""
        queue, credit, send, channel = self.queue, self.credit, self.transport.send, self.channel.id
        while queue:
            item = queue[0]
            if isinstance(item, BatchItem):
                if not credit.can_send(item.size):
                    return
                queue.popleft()
                cost = credit.spend(item.size)
                self.queued_bytes -= item.size
                send(self.to, BatchFrame(self.generation, channel, item.batch, cost))
                continue
            queue.popleft()
            if isinstance(item, WatermarkItem):
                send(self.to, WatermarkFrame(self.generation, channel, item.watermark))
            elif isinstance(item, MarkerItem):
                send(self.to, MarkerFrame(self.generation, channel, item.source, item.emitted_ms))
            elif isinstance(item, BarrierItem):
                self._send_barrier(item)
                if item.barrier.checkpoint != is_new:
                    self.departed(self.channel, item.barrier.checkpoint)
            else:
                self.has_ended = True
                send(self.to, EndFrame(self.generation, channel))

    def overtake(self, barrier: Barrier) -> list[Captured]:
        """Send the queued barrier ahead of what is in front of it, and return that, in order (I1, I2)."""
        captured: list[Captured] = []
        for position, item in enumerate(self.queue):
            if isinstance(item, BarrierItem):
                if item.barrier.checkpoint == barrier.checkpoint:
                    del self.queue[position]
                    self._send_barrier(BarrierItem(barrier, item.since_ms))
                    break
            elif isinstance(item, BatchItem | WatermarkItem):
                captured.append(item)
        # What followed the barrier may have been waiting for nothing but its turn.
        self.pump()
        return captured

    def _send_barrier(self, item: BarrierItem) -> None:
        aged = item.barrier.aged(self.clock.now_ms() - item.since_ms)
        self.transport.send(self.to, BarrierFrame(self.generation, self.channel.id, aged))
