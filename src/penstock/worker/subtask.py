"""A subtask: one parallel instance of a chain, with its channels. All of it runs on the mailbox thread.

It works in slices: one call of `work` reads one source, or one slice of one channel, and runs it through the
chain. It does not start while one of its outputs is full, which is how backpressure travels. Barriers are
never records to it: they are handled the moment they arrive or come to the front, full outputs or not (I11).

What its operators do before the first record, after the last one, and when event time goes on, may be large, so it is
work in slices too.
"""

from __future__ import annotations

import functools
from collections import deque
from collections.abc import Callable, Iterator

import pyarrow as pa

from penstock.exchange.coalescing import Joining, joined
from penstock.exchange.input_channel import InputChannel
from penstock.exchange.items import BarrierItem, BatchItem, EndItem, MarkerItem, WatermarkItem
from penstock.exchange.output_channel import FullOutputs, OutputChannel
from penstock.exchange.recovered_channel import RecoveredChannel
from penstock.exchange.router import Router
from penstock.graph.physical import Channel, PhysicalPlan
from penstock.ids import COORDINATOR, ChannelId, CheckpointId, SubtaskId
from penstock.mailbox.frames import CreditFrame, EndedFrame
from penstock.mailbox.recovery_stats import RecoveryStats
from penstock.model.event_time import MAX_WATERMARK
from penstock.protocol.barrier import Barrier
from penstock.worker.chain import OperatorChain
from penstock.worker.checkpointing.subtask_checkpointer import SubtaskCheckpointer
from penstock.worker.event_time.subtask_clock import SubtaskClock
from penstock.worker.in_hand import HAND_BYTES_MAX, InHand
from penstock.worker.latency import LatencyMarkers
from penstock.worker.recovery.channel_reader import RecoveredChannelReader
from penstock.worker.recovery.progress import RecoveryProgress
from penstock.worker.recovery.restore import Reading, Restored
from penstock.worker.scheduling.gathering import Gathering
from penstock.worker.scheduling.slices import SlicePolicy
from penstock.worker.services import Services
from penstock.worker.slice_work import SliceWork
from penstock.worker.sources.source_reading import SourceReading
from penstock.worker.subtask_metrics import BYTES_IN, BYTES_OUT, OUTPUT_WATERMARK, SubtaskTimes, observe_queues, reached

_DONE = object()
_ROW_BYTES = 64.0
"""What a record is taken to be as long as none has been seen."""


class Subtask:
    """One subtask of a worker."""

    def __init__(self, subtask: SubtaskId, plan: PhysicalPlan, services: Services) -> None:
        self.subtask = subtask
        self._plan = plan
        self._services = services
        settings = services.settings
        window = settings.credit_limit_bytes, settings.credit_limit_bytes_min, 1000 * settings.channel_time_ms
        self.inputs = {channel.id: InputChannel(channel, *window) for channel in plan.inputs[subtask]}
        metrics = services.metrics.of(subtask.chain, subtask.index)
        self._times = SubtaskTimes(services.clock, metrics)
        self._full = FullOutputs(self._times.full_changed)
        last = services.metrics.of(plan.chains[subtask.chain].nodes[-1].name, subtask.index)
        self._bytes_in, bytes_out = metrics.counter(BYTES_IN), last.counter(BYTES_OUT)
        self.outputs: dict[ChannelId, OutputChannel] = {}
        for channels in plan.outputs[subtask].values():
            for channel in channels:
                self.outputs[channel.id] = OutputChannel(
                    channel,
                    to=plan.worker_of(channel.receiver),
                    generation=services.generation,
                    credit_limit_bytes=settings.credit_limit_bytes,
                    bytes_max=settings.output_bytes_max,
                    transport=services.transport,
                    clock=services.clock,
                    departed=self._departed,
                    full=self._full,
                    bytes_sent=bytes_out,
                )
        observe_queues(metrics, self.inputs, self.outputs)
        self._router = Router(subtask, plan, self.outputs)
        self._markers = LatencyMarkers(services, last, self._router.send_marker)
        self._clock = SubtaskClock(services, self.inputs, self.outputs)
        last.observe(OUTPUT_WATERMARK, lambda: reached(self._clock.passed_on))
        self._owed: deque[Iterator[None]] = deque()
        """What its operators have to do before the next record, in steps."""
        self.chain = OperatorChain(
            subtask,
            plan,
            services,
            output=self._router.emit,
            side_output=self._router.emit_to,
            release_watermark=self._clock.pass_on,
            event_time=self._clock,
            work_off=self._owed.append,
        )
        self._clock.begin(self.chain)
        self._aligned_only = self.chain.chain.aligned_only
        self._slices = SlicePolicy(settings.slice_us, settings.slice_rows_max)
        self._in_hand = InHand(
            self.chain,
            self._clock,
            services,
            slices=self._slices,
            bytes_in=self._bytes_in,
            grant=self._grant,
            freed=self._unblocked,
            to_read=self._list,
        )
        self.checkpointer = SubtaskCheckpointer(
            subtask,
            self.chain,
            services,
            inputs=self.inputs,
            outputs=self.outputs,
            may_overtake=frozenset(id for id, output in self.outputs.items() if plan.may_overtake(output.channel)),
            watermarks=functools.partial(self._clock.in_checkpoint, subtask.chain),
            unblocked=self._unblocked,
            put_back=self._in_hand.put_back,
            when_whole=self._when_whole,
        )
        self._readable: deque[InputChannel] = deque()
        is_gathered = bool(self.chain.limits.time_ms)
        self._joining = Joining(*HAND_BYTES_MAX) if self.chain.works_in_steps else Joining(cuts=is_gathered)
        self.recovered_channels = RecoveredChannelReader(subtask, plan.max_parallelism, services)
        self._open_channels = len(self.inputs)
        self._source = SourceReading(
            self.chain,
            self._clock,
            services,
            markers=self._markers,
            rows_max=self._source_rows_max,
            came=self._source_came,
            ended=lambda: self._go_through(self._ending()),
        )
        self._row_bytes = _ROW_BYTES
        """Of the last batch that was read."""
        self.is_restored = False
        self.has_ended = False
        self._progress = RecoveryProgress(services.clock, self.recovered_channels)
        self._barriers_wait = False
        """Whether a barrier at the front of a channel may wait for the end of a record."""
        self._mail: deque[Callable[[], None]] = deque()
        """What has come while a record was in the middle of being processed, in order."""
        self._slice = SliceWork(self.chain, self._clock, self._slices, services.clock)
        self._gathering = Gathering(self.chain.limits, self.inputs.values(), services, self._list)

    # --- restoring ---

    def begin(self, restored: Restored, begun: Callable[[], None]) -> None:
        """The state of the chain is in place: begin to work. `begun` is called when the operators are ready too."""
        self._go_through(self._beginning(restored, begun))

    def _beginning(self, restored: Restored, begun: Callable[[], None]) -> Iterator[None]:
        if restored.watermark is not None:
            self._clock.restore(restored.watermark)
        yield from self.chain.on_restored()
        if self.chain.source is not None:
            self.chain.source.restore(restored.splits)
            self.chain.source.discover(restored.split_names, self._services.clock.now_ms())
            self._source.discover_later()
        self.recovered_channels.begin(self.inputs.values(), restored.channels, self._released)
        if restored.watermark is not None:
            self._clock.tell_restored(restored.watermark)
        if (follower := self._clock.follower) in restored.clocks:
            self._clock.restore_held(restored.clocks[follower])
        self.is_restored = True
        self._progress.note_read()
        self._note_if_drained()
        self.checkpointer.on_restored(self._progress.reading.bytes_total)
        begun()
        if not self.inputs and self.chain.source is None:
            # Nothing will ever come here, as to all but the first subtask behind a global exchange.
            yield from self._ending()

    def recovery(self) -> RecoveryStats:
        return self._progress.stats()

    @property
    def reading(self) -> Reading:
        """How much of the state has been read."""
        return self._progress.reading

    def _note_if_drained(self) -> None:
        if self._progress.note_if_drained():
            self._clock.on_recovered()

    # --- what arrives ---

    @property
    def is_mid_record(self) -> bool:
        """Whether a part of the output of a record has left, and the rest of it is in no channel and no state."""
        return self.chain.suspended > 0 or self._in_hand.is_mid_call

    def _when_whole(self, call: Callable[[], None]) -> None:
        """Call it as soon as no record is in the middle of being processed: until then no checkpoint is taken (I1).

        All that arrives waits, or what is behind a barrier would be taken for what is in front of it. Credit does not:
        without it the output of the record might never leave.
        """
        if self.is_mid_record or self._mail:
            self._mail.append(call)
        else:
            call()

    def on_batch(self, channel: ChannelId, batch: pa.RecordBatch, cost: int) -> None:
        if self.is_mid_record:
            self._mail.append(functools.partial(self.on_batch, channel, batch, cost))
            return
        item = BatchItem(batch, cost, int(batch.nbytes), self._services.clock.now_us())
        arriving = self.inputs[channel]
        arriving.receive(item)
        if arriving.capturing is not None:
            self.checkpointer.on_late_bytes(item.size)
        self._list(arriving)

    def on_watermark(self, channel: ChannelId, watermark: int) -> None:
        self._when_whole(lambda: self._on_watermark(channel, watermark))

    def _on_watermark(self, channel: ChannelId, watermark: int) -> None:
        self.inputs[channel].receive(WatermarkItem(watermark))
        self._list(self.inputs[channel])

    def on_marker(self, channel: ChannelId, source: str, emitted_ms: int) -> None:
        self.inputs[channel].receive(MarkerItem(source, emitted_ms))
        self._list(self.inputs[channel])

    def on_end(self, channel: ChannelId) -> None:
        self._when_whole(lambda: self._on_end(channel))

    def _on_end(self, channel: ChannelId) -> None:
        self.inputs[channel].receive(EndItem())
        self._list(self.inputs[channel])
        self.checkpointer.on_end_arrived(channel)

    def on_trigger(self, barrier: Barrier) -> None:
        self._when_whole(lambda: self.checkpointer.on_trigger(barrier))

    def on_barrier(self, channel: ChannelId, barrier: Barrier) -> None:
        self._when_whole(lambda: self._on_barrier(channel, barrier))

    def _on_barrier(self, channel: ChannelId, barrier: Barrier) -> None:
        arriving = self.inputs[channel]
        overtakes = barrier.is_unaligned and not self._aligned_only
        if overtakes or barrier.is_cancel or (arriving.is_at_front and not arriving.has_items):
            self.checkpointer.on_reached(channel, barrier)
            return
        arriving.receive(BarrierItem(barrier, self._services.clock.now_ms()))
        # Records that have waited for others wait no longer.
        self._list(arriving)
        self.checkpointer.on_announced(channel, barrier)

    def on_credit(self, channel: ChannelId, grant: int, window: int) -> None:
        output = self.outputs[channel]
        if window != output.credit.credit_limit_bytes:
            self._router.credit_limits_changed()
        output.grant(grant, window)

    # --- work ---

    @property
    def is_backpressured(self) -> bool:
        return bool(self._full)

    @property
    def can_work(self) -> bool:
        if self.has_ended:
            return False
        if self._full:
            # The rest of a batch that has been read does not wait for room, so that no barrier waits for it; the output
            # of a generator does, because nobody knows how much it is.
            return self.chain.suspended > 0 and not self.chain.is_mid_call
        if self._owed or self.chain.suspended:
            return True
        if not self.is_restored:
            return False
        if self.chain.source is not None:
            return not self._source.rests and self.checkpointer.draining is None and self.chain.wants_input
        return (bool(self._readable) or not self._in_hand.is_empty) and self.chain.wants_input

    def work(self) -> bool:
        """Do one slice of work; False if there is no work right now."""
        if not self.can_work:
            return False
        self._times.begin()
        is_done = self._work()
        self._times.end()
        return is_done

    def _work(self) -> bool:
        if self._owed or self.chain.suspended:
            self._take_steps()
            return True
        if not self._in_hand.is_empty:
            self._in_hand.go_on()
            self._deliver_mail()
            return True
        if self.chain.source is not None:
            return self._source.read()
        return self._read_channel()

    def _go_through(self, steps: Iterator[None]) -> None:
        """Do work that may be large: as much as fits into a slice now, and the rest when the subtask has its turn."""
        self._owed.append(steps)
        self._take_steps()

    def _take_steps(self) -> None:
        is_over = self._services.slice_budget.begin_slice()
        while self._owed or self.chain.suspended:
            if self.chain.suspended:
                self._slice.go_on()
                self._deliver_mail()
            elif next(self._owed[0], _DONE) is _DONE:
                self._owed.popleft()
                continue
            if is_over() or self._full:
                return

    def _deliver_mail(self) -> None:
        """The record is whole: look at what has come meanwhile, and at barriers that have come to the front."""
        if self.is_mid_record or not (self._mail or self._barriers_wait):
            return
        self._barriers_wait = False
        for channel in self.inputs.values():
            self._unblocked(channel)
        while self._mail:
            self._mail.popleft()()

    def _source_rows_max(self) -> int:
        # At the end of a pipeline nobody holds a source up; but no batch should be endlessly large.
        return min(self._rows_max(), int(self._services.settings.output_bytes_max / self._row_bytes))

    def _source_came(self, batch: pa.RecordBatch, started_us: int) -> None:
        size = int(batch.nbytes)
        self._bytes_in.value += size
        self._row_bytes = max(1.0, size / batch.num_rows)
        self._process(batch, 0, started_us)

    def _read_channel(self) -> bool:
        while self._readable:
            reading = self._readable.popleft()
            reading.listed = False
            self._handle_barriers(reading)
            if reading.is_readable and not self._gathering.waits(reading):
                if reading.recovered is not None:
                    self._read_recovered(reading, reading.recovered)
                else:
                    self._read(reading)
                self._handle_barriers(reading)
                self._list(reading)
                return True
        return False

    def _read_recovered(self, reading: InputChannel, recovered: RecoveredChannel) -> None:
        item = recovered.take(self._rows_max())
        if isinstance(item, BatchItem):
            self._bytes_in.value += item.size
            self._process_channel(reading, item.batch)
        else:
            self._clock.on_watermark(reading, item.watermark)
        self.recovered_channels.after_read(reading)
        if reading.recovered is None:
            # What has come meanwhile had to wait for the recovered records.
            reading.open_since_us = self._services.clock.now_us()
        self._note_if_drained()

    def _rows_max(self) -> int:
        """How many records the next call gets: what it does in a slice, and what its receivers have room for."""
        return self._fitting(self._slices.rows_within(self._services.slice_budget.slice_us))

    def _fitting(self, rows: int) -> int:
        bytes_max = self._router.batch_bytes_max
        return rows if bytes_max is None else max(1, min(rows, int(bytes_max / self._row_bytes)))

    def _read_batches(self, reading: InputChannel, front: BatchItem) -> None:
        """Run the next records of a channel through the chain; where batches are small, of some more channels too."""
        self._row_bytes = max(1.0, front.size / max(1, front.batch.num_rows))
        others = () if self._clock.tells_channels_apart else self._readable
        if self.chain.works_in_steps:
            self._progress.note_record()
            self._slice.channel = reading.channel.id
            self._in_hand.take(self._joining.take(reading, others, self._services.settings.slice_rows_max))
            return
        limits = self.chain.limits
        rows_max = self._rows_max() if not limits.time_ms else limits.rows or self._services.settings.slice_rows_max
        taken = self._joining.take(reading, others, rows_max)
        self._bytes_in.value += sum(item.size for _, item in taken)
        self._process_channel(reading, joined([item.batch for _, item in taken]))
        rows_least = 2 * rows_max if limits.time_ms and limits.rows else self._fitting(self._slices.rows_max)
        bytes_least = int(rows_least * self._row_bytes) // len(self.inputs)
        for number, (channel, item) in enumerate(taken, 1):
            is_last = number == len(taken) or taken[number][0] is not channel
            self._give_credit(channel, item, bytes_least, is_last)
        for channel, _ in taken[1:]:
            self._handle_barriers(channel)
            self._list(channel)

    def _read(self, reading: InputChannel) -> None:
        item = reading.queue[0]
        if isinstance(item, BatchItem):
            self._read_batches(reading, item)
        elif isinstance(item, WatermarkItem):
            reading.pop()
            self._clock.on_watermark(reading, item.watermark)
        elif isinstance(item, MarkerItem):
            reading.pop()
            self._markers.arrived(item.source, item.emitted_ms)
        elif not self.chain.is_idle:
            # Records are still being worked on in the background; their results come before the end.
            self._wait_until_idle(reading)
        else:
            assert isinstance(item, EndItem)
            reading.pop()
            self._open_channels -= 1
            self._clock.on_watermark(reading, MAX_WATERMARK)
            self.checkpointer.on_end_reached(reading.channel.id)
            if self._open_channels == 0:
                self._go_through(self._ending())

    def _process_channel(self, reading: InputChannel, batch: pa.RecordBatch) -> None:
        self._clock.reading(reading.channel.id)
        self._slice.channel = reading.channel.id
        self._process(batch, reading.channel.edge.input, self._services.clock.own_us())
        self._clock.reading(None)
        self._clock.after_channel()

    def _process(self, batch: pa.RecordBatch, source: int, started_us: int) -> None:
        self._progress.note_record()
        self._slice.begin(batch, source, started_us)

    def _give_credit(self, reading: InputChannel, item: BatchItem, bytes_least: int, is_last: bool) -> None:
        self._grant(reading, reading.consumed(item, self._services.clock.now_us(), bytes_least, is_last))

    def _grant(self, reading: InputChannel, granted: int | None) -> None:
        if granted is not None:
            channel = reading.channel
            frame = CreditFrame(self._services.generation, channel.id, granted, reading.credit.credit_limit_bytes)
            self._services.transport.send(self._plan.worker_of(channel.sender), frame)

    def _wait_until_idle(self, reading: InputChannel) -> None:
        """Look at the channel again in a moment; until then it is not on the list."""
        reading.listed = True

        def look_again() -> None:
            reading.listed = False
            self._list(reading)

        self._services.timers.after(1, look_again)

    def _ending(self) -> Iterator[None]:
        """All input has been processed: what the operators still have to emit, and then the end."""
        yield from self.chain.on_end()
        self.has_ended = True
        for output in self.outputs.values():
            output.send_end()
        self._services.transport.send(COORDINATOR, EndedFrame(self._services.generation, self.subtask))

    # --- the list of channels to read ---

    def _list(self, channel: InputChannel) -> None:
        if not channel.listed and channel.is_readable:
            channel.listed = True
            self._readable.append(channel)

    def _handle_barriers(self, channel: InputChannel) -> None:
        """Take barriers off the front at once: they wait for nobody but the rest of a record."""
        if self.is_mid_record:
            self._barriers_wait = True
            return
        while channel.queue and channel.is_at_front and isinstance(channel.queue[0], BarrierItem):
            item = channel.pop()
            assert isinstance(item, BarrierItem)
            barrier = item.barrier.aged(self._services.clock.now_ms() - item.since_ms)
            self.checkpointer.on_reached(channel.channel.id, barrier)

    def _departed(self, channel: Channel, checkpoint: CheckpointId) -> None:
        self.checkpointer.on_departed(channel, checkpoint)

    def _unblocked(self, channel: InputChannel) -> None:
        self._handle_barriers(channel)
        self._list(channel)

    def _released(self, channel: InputChannel) -> None:
        """Older records of the same edge are done: it may be read from now on."""
        channel.open_since_us = self._services.clock.now_us()
        self._unblocked(channel)

    def close(self) -> None:
        self.chain.close()
