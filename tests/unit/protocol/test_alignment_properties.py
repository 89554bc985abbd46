"""One subtask in a storm of records, barriers, ends, cancels and timers: the cut is right whatever comes when.

Every channel is a sender's stream, a wire and a queue. The senders behave legally and nothing else is promised. The
executor does with its queues what the actions say, as the runtime does with its own; the oracle looks at the streams.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import TypeAlias

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

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
from penstock.protocol.manifest import SnapshotKind

END = "end"
Item: TypeAlias = int | Barrier | str
"""A record is its number in the stream of its channel."""


@dataclass
class Input:
    """One channel, from its sender to what was read of it."""

    stream: list[Item] = field(default_factory=list)
    """All that the sender has ever sent, recovered records in front."""
    wire: deque[Item] = field(default_factory=deque)
    queue: deque[Item] = field(default_factory=deque)
    processed: list[int] = field(default_factory=list)
    is_blocked: bool = False
    capturing: list[int] | None = None
    newest: CheckpointId = NO_CHECKPOINT
    """Of the barriers that its sender has sent."""
    has_ended: bool = False

    def send(self, item: Item) -> None:
        self.stream.append(item)
        self.wire.append(item)

    def remove_barrier(self, checkpoint: CheckpointId) -> None:
        for item in self.queue:
            if isinstance(item, Barrier) and item.checkpoint == checkpoint:
                self.queue.remove(item)
                return

    def in_front_of_barrier(self, checkpoint: CheckpointId) -> list[int]:
        found: list[int] = []
        for item in self.queue:
            if item == END or (isinstance(item, Barrier) and item.checkpoint == checkpoint):
                break
            if isinstance(item, int):
                found.append(item)
        return found

    def belongs_to(self, checkpoint: CheckpointId) -> list[int] | None:
        """The records in front of the barrier or the end; None if the sender has sent neither."""
        records: list[int] = []
        for item in self.stream:
            if item == END or (isinstance(item, Barrier) and item.checkpoint == checkpoint):
                return records
            if isinstance(item, int):
                records.append(item)
        return None


class Storm(RuleBasedStateMachine):
    state: State

    @initialize(count=st.integers(0, 4), aligned_only=st.booleans(), is_restoring=st.booleans())
    def begin(self, count: int, aligned_only: bool, is_restoring: bool) -> None:
        self.inputs = {ChannelId(number): Input() for number in range(count)}
        inputs = Inputs(frozenset(self.inputs), aligned_only)
        self.state = Restoring(inputs) if is_restoring else Idle(inputs)
        self.aligned_only = aligned_only
        self.records = 0
        self.attempts: list[Barrier] = []
        self.frames: deque[Barrier] = deque()
        self.timers: list[Event] = []
        self.events: deque[Event] = deque()
        self.snapshots: dict[CheckpointId, dict[ChannelId, int]] = {}
        self.captured: dict[CheckpointId, dict[ChannelId, list[int]]] = {}
        self.forwarded: list[CheckpointId] = []
        self.completed: set[CheckpointId] = set()
        self.declined: set[CheckpointId] = set()
        self.cancelled: set[CheckpointId] = set()
        self.unacknowledged = NO_CHECKPOINT

    # --- the coordinator ---

    @rule(
        timeout_ms=st.sampled_from([None, 100]),
        is_forced=st.booleans(),
        is_drain=st.booleans(),
    )
    def trigger(self, timeout_ms: int | None, is_forced: bool, is_drain: bool) -> None:
        """Also while another one is in progress, which is thereby superseded."""
        flags = BarrierFlag.DRAIN if is_drain else BarrierFlag.NONE
        if is_forced:
            flags, timeout_ms = flags | BarrierFlag.UNALIGNED, None
        barrier = Barrier(CheckpointId(len(self.attempts) + 1), Generation(1), 0, flags, timeout_ms)
        self.attempts.append(barrier)
        self.frames.append(barrier)

    @precondition(lambda self: self.attempts and self.attempts[-1].checkpoint not in self.cancelled)
    @rule()
    def cancel(self) -> None:
        self.cancelled.add(self.attempts[-1].checkpoint)
        self.frames.append(self.attempts[-1].cancelled())

    @precondition(lambda self: self.frames)
    @rule()
    def hear_the_coordinator(self) -> None:
        self.feed(CheckpointTriggered(self.frames.popleft()))

    # --- the senders ---

    def sender(self, pick: int) -> tuple[ChannelId, Input] | None:
        open_inputs = [(channel, each) for channel, each in self.inputs.items() if not each.has_ended]
        return open_inputs[pick % len(open_inputs)] if open_inputs else None

    @rule(pick=st.integers(0, 11), count=st.integers(1, 3))
    def send_records(self, pick: int, count: int) -> None:
        if (found := self.sender(pick)) is not None:
            for _ in range(count):
                self.records += 1
                found[1].send(self.records)

    @precondition(lambda self: self.attempts)
    @rule(pick=st.integers(0, 11), back=st.integers(0, 1), has_overtaken=st.booleans(), age_ms=st.integers(0, 150))
    def send_barrier(self, pick: int, back: int, has_overtaken: bool, age_ms: int) -> None:
        """Of any attempt that is newer than the last: senders may have missed one, and be late for another."""
        if (found := self.sender(pick)) is None:
            return
        barrier = self.attempts[max(0, len(self.attempts) - 1 - back)]
        if barrier.checkpoint > found[1].newest:
            found[1].newest = barrier.checkpoint
            may_overtake = barrier.alignment_timeout_ms is not None
            found[1].send((barrier.overtaking() if has_overtaken and may_overtake else barrier).aged(age_ms))

    @rule(pick=st.integers(0, 11))
    def send_end(self, pick: int) -> None:
        if (found := self.sender(pick)) is not None:
            found[1].has_ended = True
            found[1].send(END)

    # --- the subtask ---

    @rule(pick=st.integers(0, 11))
    def arrive(self, pick: int) -> None:
        arriving = [(channel, each) for channel, each in self.inputs.items() if each.wire]
        if not arriving:
            return
        channel, each = arriving[pick % len(arriving)]
        item = each.wire.popleft()
        if isinstance(item, Barrier):
            overtakes = item.is_unaligned and not self.aligned_only
            if overtakes or not (each.queue or each.is_blocked):
                self.feed(BarrierReached(channel, item))
            else:
                each.queue.append(item)
                self.feed(BarrierAnnounced(channel, item))
            return
        each.queue.append(item)
        if item == END:
            self.feed(EndArrived(channel))
        elif isinstance(item, int) and each.capturing is not None:
            each.capturing.append(item)

    @precondition(lambda self: not isinstance(self.state, Restoring))
    @rule(pick=st.integers(0, 11))
    def read(self, pick: int) -> None:
        readable = [channel for channel, each in self.inputs.items() if each.queue and not each.is_blocked]
        if not readable:
            return
        channel = readable[pick % len(readable)]
        item = self.inputs[channel].queue.popleft()
        if item == END:
            self.feed(EndReached(channel))
        else:
            assert isinstance(item, int), "a barrier waited at the front, where it is to be taken off at once"
            self.inputs[channel].processed.append(item)
        self.settle(channel)
        self.run()

    @precondition(lambda self: isinstance(self.state, Restoring))
    @rule(counts=st.lists(st.integers(0, 3), min_size=4, max_size=4))
    def restore(self, counts: list[int]) -> None:
        for each, count in zip(self.inputs.values(), counts, strict=False):
            recovered = [-1 - self.records - number for number in range(count)]
            self.records += count
            each.stream[0:0] = recovered
            each.queue.extendleft(reversed(recovered))
        self.feed(SubtaskRestored())

    @precondition(lambda self: self.timers)
    @rule(pick=st.integers(0, 11))
    def fire(self, pick: int) -> None:
        event = self.timers.pop(pick % len(self.timers))
        is_due = isinstance(event, AlignmentTimedOut) and isinstance(self.state, Aligning)
        is_due = is_due and self.state.newest == event.checkpoint  # type: ignore[union-attr]
        self.feed(event)
        # I11: from here on nothing waits for records to move.
        assert not is_due or self.state.newest in self.snapshots

    @precondition(lambda self: self.unacknowledged)
    @rule()
    def overflow(self) -> None:
        checkpoint, self.unacknowledged = self.unacknowledged, NO_CHECKPOINT
        is_current = self.state.newest == checkpoint and not isinstance(self.state, Aligning)
        self.feed(CaptureOverflowed(checkpoint))
        assert (checkpoint in self.declined) == is_current

    @precondition(lambda self: self.unacknowledged in self.completed)
    @rule()
    def acknowledge(self) -> None:
        self.unacknowledged = NO_CHECKPOINT

    # --- the executor ---

    def feed(self, event: Event) -> None:
        self.events.append(event)
        self.run()

    def run(self) -> None:
        while self.events:
            event = self.events.popleft()
            before = self.state
            self.state, actions = step(before, event)
            for position, action in enumerate(actions):
                self.execute(action, actions[:position])
            self.check_progress(before, event, actions)

    def settle(self, channel: ChannelId) -> None:
        """Take barriers off the front at once."""
        each = self.inputs[channel]
        while each.queue and not each.is_blocked and isinstance(each.queue[0], Barrier):
            barrier = each.queue.popleft()
            assert isinstance(barrier, Barrier)
            self.events.append(BarrierReached(channel, barrier))

    def execute(self, action: Action, before: tuple[Action, ...]) -> None:
        match action:
            case BlockChannel(channel):
                assert not self.inputs[channel].is_blocked
                self.inputs[channel].is_blocked = True
            case UnblockChannels(channels):
                for channel in sorted(channels):
                    assert self.inputs[channel].is_blocked
                    self.inputs[channel].is_blocked = False
                    self.settle(channel)
            case ForwardBarrier(barrier):
                assert barrier.checkpoint > max(self.forwarded, default=NO_CHECKPOINT)
                self.forwarded.append(barrier.checkpoint)
            case TakeSnapshot(barrier, cut):
                assert before[-1] == ForwardBarrier(barrier)
                assert barrier.checkpoint not in self.snapshots, "two snapshots for one checkpoint"
                assert barrier.is_unaligned or cut is SnapshotKind.ALIGNED
                assert not (self.aligned_only and cut is not SnapshotKind.ALIGNED)
                self.snapshots[barrier.checkpoint] = {
                    channel: len(each.processed) for channel, each in self.inputs.items()
                }
                self.captured[barrier.checkpoint] = {channel: [] for channel in self.inputs}
                self.unacknowledged = barrier.checkpoint
            case Capture(checkpoint, queued, late):
                assert not self.aligned_only
                assert late <= queued
                for channel in sorted(queued):
                    each = self.inputs[channel]
                    held = self.captured[checkpoint][channel] = each.in_front_of_barrier(checkpoint)
                    each.remove_barrier(checkpoint)
                    each.capturing = held if channel in late else None
                    self.settle(channel)
            case EndCapture(checkpoint, channel):
                assert self.inputs[channel].capturing is not None
                self.inputs[channel].capturing = None
                self.inputs[channel].remove_barrier(checkpoint)
            case CompleteInputs(checkpoint):
                self.judge(checkpoint)
            case Abandon(checkpoint):
                for each in self.inputs.values():
                    each.capturing = None
                if self.unacknowledged <= checkpoint:
                    self.unacknowledged = NO_CHECKPOINT
            case Decline(checkpoint, _):
                assert checkpoint not in self.declined, "declined twice"
                self.declined.add(checkpoint)
            case StartAlignmentTimer(checkpoint, after_ms):
                assert 0 <= after_ms <= 100
                self.timers.append(AlignmentTimedOut(checkpoint))
            case StartLateTimer(checkpoint):
                self.timers.append(LateBarrierTimedOut(checkpoint))

    # --- the oracle ---

    def judge(self, checkpoint: CheckpointId) -> None:
        """I1, I2: what was processed before the snapshot and what was captured is what came before the barrier."""
        assert checkpoint not in self.completed | self.declined
        self.completed.add(checkpoint)
        for channel, each in self.inputs.items():
            assert each.capturing is None
            in_state = each.processed[: self.snapshots[checkpoint][channel]]
            assert [*in_state, *self.captured[checkpoint][channel]] == each.belongs_to(checkpoint)

    def check_progress(self, before: State, event: Event, actions: tuple[Action, ...]) -> None:
        """I11: an unaligned barrier that is news takes its snapshot in the same step."""
        if not isinstance(event, CheckpointTriggered | BarrierReached) or event.barrier.is_cancel:
            return
        may_cut = event.barrier.is_unaligned and not self.aligned_only and not isinstance(before, Restoring)
        is_news = event.barrier.checkpoint > before.newest
        is_awaited = isinstance(before, Aligning) and event.barrier.checkpoint == before.newest
        if may_cut and (is_news or (is_awaited and isinstance(event, BarrierReached))):
            assert any(isinstance(action, TakeSnapshot) for action in actions)

    @invariant()
    def channels_are_blocked_only_while_aligning(self) -> None:
        blocked = {channel for channel, each in self.inputs.items() if each.is_blocked}
        assert blocked == (self.state.blocked if isinstance(self.state, Aligning) else set())

    @invariant()
    def channels_are_captured_only_while_late(self) -> None:
        capturing = {channel for channel, each in self.inputs.items() if each.capturing is not None}
        assert capturing == (self.state.late if isinstance(self.state, Capturing) else set())

    @invariant()
    def what_was_read_is_the_beginning_of_each_stream(self) -> None:
        for each in self.inputs.values():
            records = [item for item in each.stream if isinstance(item, int)]
            assert each.processed == records[: len(each.processed)]

    def teardown(self) -> None:
        """First the storm, then calm: everything arrives and is read, and the newest checkpoint comes to its end."""
        if isinstance(self.state, Restoring):
            self.restore([1, 1, 1, 1])
        while self.frames:
            self.hear_the_coordinator()
        if self.attempts:
            for each in self.inputs.values():
                if not each.has_ended and each.newest < self.attempts[-1].checkpoint:
                    each.send(self.attempts[-1])
        while any(each.wire for each in self.inputs.values()):
            self.arrive(0)
        while any(each.queue and not each.is_blocked for each in self.inputs.values()):
            self.read(0)
        for each in self.inputs.values():
            assert not each.queue
            assert each.processed == [item for item in each.stream if isinstance(item, int)]
        assert isinstance(self.state, Idle)
        if self.attempts:
            assert self.attempts[-1].checkpoint in self.completed | self.declined | self.cancelled


TestStorm = Storm.TestCase
TestStorm.settings = settings(max_examples=100, stateful_step_count=50, deadline=None)
