"""A subtask's part in checkpoints: feeds the two state machines and executes what they decide.

`protocol.alignment` decides about the inputs, `protocol.overtaking` about the outputs; this is where their
actions touch queues, operators and the coordinator. Events are taken one at a time: what an action causes
waits until all actions of its event are done, because a machine must never see its own unfinished step.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from typing import assert_never

from penstock.errors import ProtocolViolation
from penstock.exchange.input_channel import InputChannel
from penstock.exchange.items import captured_bytes
from penstock.exchange.output_channel import OutputChannel
from penstock.graph.physical import Channel
from penstock.ids import COORDINATOR, NO_CHECKPOINT, ChannelId, CheckpointId, OperatorName, SubtaskId
from penstock.mailbox.frames import AcknowledgeFrame, DeclineFrame
from penstock.protocol import alignment, overtaking
from penstock.protocol.barrier import Barrier
from penstock.protocol.declines import DeclineReason
from penstock.protocol.manifest import ChannelSegment, CheckpointStats, Committable, Side, SnapshotKind, StateSegment
from penstock.worker.chain import OperatorChain
from penstock.worker.checkpointing.checkpoint_metrics import observe_checkpoints
from penstock.worker.checkpointing.snapshot import (
    CapturedChannel,
    PendingSnapshot,
    inline_channels,
    write_channels,
    write_state,
)
from penstock.worker.services import Services
from penstock.worker.sink_stage import no_committables


class SubtaskCheckpointer:
    """Everything that one subtask does for checkpoints."""

    def __init__(
        self,
        subtask: SubtaskId,
        chain: OperatorChain,
        services: Services,
        *,
        inputs: Mapping[ChannelId, InputChannel],
        outputs: Mapping[ChannelId, OutputChannel],
        may_overtake: frozenset[ChannelId],
        watermarks: Callable[[], tuple[tuple[OperatorName, int], ...]],
        unblocked: Callable[[InputChannel], None],
        put_back: Callable[[], None],
        when_whole: Callable[[Callable[[], None]], None],
    ) -> None:
        self._subtask = subtask
        self._name = str(subtask)
        self._chain = chain
        self._inputs = inputs
        self._outputs = outputs
        self._services = services
        self._operators = [node.name for node in chain.chain.nodes]
        self._newest_figures: CheckpointStats | None = None
        """Of the newest checkpoint that this subtask has acknowledged."""
        metrics = services.metrics.of(subtask.chain, subtask.index)
        self._restored_bytes: int | None = None
        observe_checkpoints(metrics, lambda: self._newest_figures, lambda: self._restored_bytes)
        self._watermarks = watermarks
        self._unblocked = unblocked
        self._put_back = put_back
        self._when_whole = when_whole
        channels = alignment.Inputs(frozenset(inputs), chain.chain.aligned_only)
        self._alignment: alignment.State = alignment.Restoring(channels)
        self._overtaking: overtaking.State = overtaking.Clear(may_overtake)
        self._events: deque[alignment.Event | overtaking.Event] = deque()
        self._is_stepping = False
        self._pending: PendingSnapshot | None = None
        self._heard_of = NO_CHECKPOINT
        self._heard_at_ms = 0
        self._heard_age_ms = 0
        self.draining: CheckpointId | None = None
        """The checkpoint after which a source emits nothing more, while it is not given up."""

    @property
    def has_pending(self) -> bool:
        return self._pending is not None

    # --- what the subtask reports ---

    def on_restored(self, state_bytes: int) -> None:
        """The state is in place. `state_bytes` is its size in the checkpoint, encoded; 0 without one."""
        self._restored_bytes = state_bytes
        self._feed(alignment.SubtaskRestored())

    def on_trigger(self, barrier: Barrier) -> None:
        self._feed(alignment.CheckpointTriggered(barrier))

    def on_announced(self, channel: ChannelId, barrier: Barrier) -> None:
        self._feed(alignment.BarrierAnnounced(channel, barrier))

    def on_reached(self, channel: ChannelId, barrier: Barrier) -> None:
        self._feed(alignment.BarrierReached(channel, barrier))

    def on_end_arrived(self, channel: ChannelId) -> None:
        self._feed(alignment.EndArrived(channel))

    def on_end_reached(self, channel: ChannelId) -> None:
        self._feed(alignment.EndReached(channel))

    def on_departed(self, channel: Channel, checkpoint: CheckpointId) -> None:
        self._feed(overtaking.BarrierDeparted(channel.id, checkpoint))

    def on_late_bytes(self, size: int) -> None:
        """Bytes were captured on a late channel."""
        self._count(size)

    # --- the machines ---

    def _feed(self, event: alignment.Event | overtaking.Event) -> None:
        self._events.append(event)
        if self._is_stepping:
            return
        self._is_stepping = True
        try:
            while self._events:
                self._step(self._events.popleft())
        finally:
            self._is_stepping = False
        self._finish_if_done()

    def _step(self, event: alignment.Event | overtaking.Event) -> None:
        try:
            self._advance(event)
        except ProtocolViolation as error:
            self._services.story.refused(self._name, event, error)
            raise

    def _advance(self, event: alignment.Event | overtaking.Event) -> None:
        if isinstance(event, overtaking.Event):
            self._overtaking, departures = overtaking.step(self._overtaking, event)
            self._note(event, departures)
            for departure in departures:
                self._execute_overtaking(departure)
            return
        self._hear(event)
        self._alignment, actions = alignment.step(self._alignment, event)
        self._note(event, actions)
        for action in actions:
            self._execute_alignment(action)

    def _hear(self, event: alignment.Event) -> None:
        """Note when this subtask first heard of a checkpoint: ages are counted from there."""
        match event:
            case alignment.CheckpointTriggered(barrier) | alignment.BarrierAnnounced(_, barrier):
                pass
            case alignment.BarrierReached(_, barrier):
                pass
            case _:
                return
        if barrier.checkpoint > self._heard_of:
            self._heard_of = barrier.checkpoint
            self._services.slice_budget.checkpoint_started(self._subtask, barrier.checkpoint)
            self._heard_at_ms = self._services.clock.now_ms()
            self._heard_age_ms = barrier.age_ms

    def _finish_if_done(self) -> None:
        # Not by the action that ends a checkpoint: where a newer one supersedes it, there is another in progress.
        if self._pending is None and isinstance(self._alignment, alignment.Restoring | alignment.Idle):
            self._services.slice_budget.checkpoint_finished(self._subtask)

    def _note(self, event: object, actions: tuple[object, ...]) -> None:
        self._services.story.note(self._name, event, actions)
        if self._services.journal is not None:
            self._services.journal(self._name, event, actions)

    # --- actions of the receiving side ---

    def _execute_alignment(self, action: alignment.Action) -> None:
        match action:
            case alignment.BlockChannel(channel):
                self._inputs[channel].blocked = True
            case alignment.UnblockChannels(channels):
                for channel in sorted(channels):
                    self._inputs[channel].blocked = False
                    self._inputs[channel].open_since_us = self._services.clock.now_us()
                    self._unblocked(self._inputs[channel])
            case alignment.ForwardBarrier(barrier):
                self._forward(barrier)
            case alignment.TakeSnapshot(barrier, cut):
                self._take_snapshot(barrier, cut)
            case alignment.Capture(checkpoint, queued, late):
                self._capture(checkpoint, queued, late)
            case alignment.EndCapture(checkpoint, channel):
                self._inputs[channel].capturing = None
                self._inputs[channel].remove_barrier(checkpoint)
            case alignment.CompleteInputs():
                if self._pending is not None:
                    self._pending.inputs_complete = True
                    self._write_channels_if_complete()
            case alignment.Abandon(checkpoint):
                self._abandon(checkpoint)
            case alignment.Decline(checkpoint, reason):
                self._decline(checkpoint, reason)
            case alignment.StartAlignmentTimer(checkpoint, after_ms):
                self._later(after_ms, alignment.AlignmentTimedOut(checkpoint))
            case alignment.StartLateTimer(checkpoint):
                self._later(self._services.settings.late_barrier_timeout_ms, alignment.LateBarrierTimedOut(checkpoint))
            case _:
                assert_never(action)

    def _later(self, after_ms: int, event: alignment.Event | overtaking.Event) -> None:
        if isinstance(event, overtaking.Event):
            self._services.timers.after(after_ms, lambda: self._feed(event))
            return
        # A record that is in the middle of being processed is part of no snapshot.
        self._services.timers.after(after_ms, lambda: self._when_whole(lambda: self._feed(event)))

    def _forward(self, barrier: Barrier) -> None:
        self._drop(NO_CHECKPOINT if self._pending is None else self._pending.checkpoint)
        now = self._services.clock.now_ms()
        waited = now - self._heard_at_ms
        self._pending = PendingSnapshot(barrier, SnapshotKind.ALIGNED, self._heard_age_ms, waited, now)
        if barrier.is_drain:
            self.draining = barrier.checkpoint
        aged = barrier.aged(waited)
        waiting = frozenset(id for id, output in self._outputs.items() if not output.send_barrier(aged))
        self._feed(overtaking.BarrierForwarded(aged, waiting))

    def _take_snapshot(self, barrier: Barrier, cut: SnapshotKind) -> None:
        pending, clock = self._pending, self._services.clock
        assert pending is not None and pending.checkpoint == barrier.checkpoint
        started_us = clock.now_us()
        # I1: records in hand are in the state or in front of their channels from now on, and nowhere in between.
        self._put_back()
        pending.cut = cut
        try:
            encode = self._chain.snapshot(self._services.settings.segment_bytes)
        except Exception as error:
            self._refuse(barrier.checkpoint, error)
            return
        # Not refused: a writer that raises may have cut its output before, and nobody would hand that over (I4).
        prepare = self._chain.prepare(barrier.checkpoint, barrier.completed)
        try:
            # After `prepare`, by which a source hears for which checkpoint it gives its positions.
            pending.splits = self._chain.source.positions() if self._chain.source is not None else ()
        except Exception as error:
            self._refuse(barrier.checkpoint, error)
            return
        # I1: counted up to the cut, like the state; records behind it are counted again after a restore.
        pending.totals = self._services.metrics.totals(self._operators, self._subtask.index)
        pending.watermarks = self._watermarks()
        pending.synchronous_ms = (clock.now_us() - started_us) // 1000
        if prepare is no_committables and not self._chain.has_state:
            # Nothing here takes time.
            pending.states = ()
            self._acknowledge_if_durable(pending)
            return
        services, subtask = self._services, self._subtask

        def work() -> tuple[tuple[StateSegment, ...], list[Committable]]:
            states = write_state(
                services.store,
                barrier.checkpoint,
                services.generation,
                subtask,
                encode,
                services.inline_bytes_max,
            )
            return states, prepare()

        services.background.submit(work, lambda outcome: self._on_state_written(pending, outcome))

    def _refuse(self, checkpoint: CheckpointId, error: Exception) -> None:
        self._abandon(checkpoint)
        self._decline(checkpoint, DeclineReason.SNAPSHOT_FAILED, f"{type(error).__name__}: {error}")

    def _capture(self, checkpoint: CheckpointId, queued: frozenset[ChannelId], late: frozenset[ChannelId]) -> None:
        pending = self._pending
        if pending is None or pending.checkpoint != checkpoint:
            # The snapshot failed at once and was declined: there is nothing to capture for.
            return
        for channel in sorted(queued):
            arriving = self._inputs[channel]
            items = arriving.in_front_of_barrier(checkpoint)
            recovered = arriving.recovered.remaining() if arriving.recovered is not None else []
            pending.inputs[channel] = CapturedChannel(arriving.channel, Side.RECEIVER, items, recovered)
            if channel in late:
                arriving.capturing = items
            # Without its barrier in front of it, what follows may be read or may be the next barrier.
            self._unblocked(arriving)
        self._count(pending.inflight_bytes)

    def _count(self, size: int) -> None:
        if self._pending is None:
            return
        self._pending.counted_bytes += size
        if not self._services.capture_budget.take(size):
            self._feed(alignment.CaptureOverflowed(self._pending.checkpoint))

    def _abandon(self, checkpoint: CheckpointId) -> None:
        for channel in self._inputs.values():
            channel.capturing = None
        self._drop(checkpoint)
        if self.draining is not None and self.draining <= checkpoint:
            self.draining = None
        self._feed(overtaking.CheckpointAbandoned(checkpoint))

    def _drop(self, checkpoint: CheckpointId) -> None:
        if self._pending is not None and self._pending.checkpoint <= checkpoint:
            self._services.capture_budget.give_back(self._pending.counted_bytes)
            self._pending = None

    def _decline(self, checkpoint: CheckpointId, reason: DeclineReason, detail: str = "") -> None:
        frame = DeclineFrame(self._services.generation, checkpoint, self._subtask, reason, detail)
        self._services.transport.send(COORDINATOR, frame)

    # --- actions of the sending side ---

    def _execute_overtaking(self, action: overtaking.Action) -> None:
        match action:
            case overtaking.StartDepartureTimer(checkpoint, after_ms):
                self._later(after_ms, overtaking.DepartureTimedOut(checkpoint))
            case overtaking.Overtake(barrier, channels):
                self._overtake(barrier, channels)
            case overtaking.CompleteOutputs():
                if self._pending is not None:
                    self._pending.outputs_complete = True
                    self._write_channels_if_complete()
            case _:
                assert_never(action)

    def _overtake(self, barrier: Barrier, channels: frozenset[ChannelId]) -> None:
        taken = 0
        for channel in sorted(channels):
            output = self._outputs[channel]
            held = CapturedChannel(output.channel, Side.SENDER, output.overtake(barrier))
            taken += captured_bytes(held.items)
            if self._pending is not None:
                self._pending.outputs[channel] = held
        self._count(taken)

    # --- what takes time ---

    def _on_state_written(
        self,
        pending: PendingSnapshot,
        outcome: tuple[tuple[StateSegment, ...], list[Committable]] | Exception,
    ) -> None:
        if self._pending is not pending:
            return
        if isinstance(outcome, Exception):
            self._storage_failed(pending, outcome)
            return
        pending.states, committables = outcome
        pending.committables = tuple(committables)
        self._acknowledge_if_durable(pending)

    def _write_channels_if_complete(self) -> None:
        pending, services, subtask = self._pending, self._services, self._subtask
        if pending is None or not (pending.inputs_complete and pending.outputs_complete):
            return
        captured = [held for held in pending.captured() if held.items]
        recovered = [segment for held in pending.captured() for segment in held.recovered]
        if not captured:
            pending.channels = tuple(recovered)
            self._acknowledge_if_durable(pending)
            return
        segment_bytes = services.settings.segment_bytes
        if pending.encoded_bytes <= services.inline_bytes_max:
            # Encoding a little takes less time than waiting for a thread to do it.
            pending.channels = (*recovered, *inline_channels(captured, segment_bytes))
            self._acknowledge_if_durable(pending)
            return

        def work() -> list[ChannelSegment]:
            return write_channels(
                services.store, pending.checkpoint, services.generation, subtask, captured, segment_bytes
            )

        def done(outcome: list[ChannelSegment] | Exception) -> None:
            if self._pending is not pending:
                return
            if isinstance(outcome, Exception):
                self._storage_failed(pending, outcome)
                return
            pending.channels = (*recovered, *outcome)
            self._acknowledge_if_durable(pending)

        services.background.submit(work, done)

    def _storage_failed(self, pending: PendingSnapshot, error: Exception) -> None:
        self._abandon(pending.checkpoint)
        self._decline(pending.checkpoint, DeclineReason.STORAGE_FAILED, f"{type(error).__name__}: {error}")

    def _acknowledge_if_durable(self, pending: PendingSnapshot) -> None:
        if pending.states is None or pending.channels is None:
            return
        report = pending.report(self._subtask, self._services.clock.now_ms())
        self._newest_figures = report.figures
        self._drop(pending.checkpoint)
        self._finish_if_done()
        frame = AcknowledgeFrame(self._services.generation, pending.checkpoint, report)
        self._services.transport.send(COORDINATOR, frame)
