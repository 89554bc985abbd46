"""The sending side in any interleaving: queues that wait for credit, barriers that leave in turn or ahead.

What a receiver gets and what the sender captures, put together, must be what was emitted before the barrier.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from penstock.ids import NO_CHECKPOINT, ChannelId, CheckpointId, Generation
from penstock.protocol.barrier import Barrier, BarrierFlag
from penstock.protocol.overtaking import (
    BarrierDeparted,
    BarrierForwarded,
    CheckpointAbandoned,
    Clear,
    CompleteOutputs,
    Departing,
    DepartureTimedOut,
    Event,
    Overtake,
    StartDepartureTimer,
    State,
    step,
)


@dataclass
class Output:
    """One channel: what was emitted, what waits for credit, what has left."""

    emitted: list[int | Barrier] = field(default_factory=list)
    queue: deque[int | Barrier] = field(default_factory=deque)
    sent: list[int | Barrier] = field(default_factory=list)
    credit: int = 1

    def pump(self) -> list[CheckpointId]:
        """Send what has credit; returns the barriers that left in their turn."""
        departed = []
        while self.queue and (self.credit or isinstance(self.queue[0], Barrier)):
            item = self.queue.popleft()
            if isinstance(item, Barrier):
                departed.append(item.checkpoint)
            else:
                self.credit -= 1
            self.sent.append(item)
        return departed

    def waits(self, checkpoint: CheckpointId) -> bool:
        return any(isinstance(item, Barrier) and item.checkpoint == checkpoint for item in self.queue)

    def records_before(self, items: list[int | Barrier], checkpoint: CheckpointId) -> list[int] | None:
        records: list[int] = []
        for item in items:
            if isinstance(item, int):
                records.append(item)
            elif item.checkpoint == checkpoint:
                return records
        return None


class Senders(RuleBasedStateMachine):
    state: State

    @initialize(may=st.lists(st.booleans(), min_size=0, max_size=3))
    def begin(self, may: list[bool]) -> None:
        self.outputs = {ChannelId(number): Output() for number in range(len(may))}
        self.state = Clear(frozenset(ChannelId(number) for number, allowed in enumerate(may) if allowed))
        self.records = 0
        self.newest: Barrier | None = None
        self.timers: list[CheckpointId] = []
        self.captured: dict[CheckpointId, dict[ChannelId, list[int]]] = {}
        self.completed: list[CheckpointId] = []
        self.abandoned = NO_CHECKPOINT

    @rule(pick=st.integers(0, 5))
    def emit(self, pick: int) -> None:
        if self.outputs:
            self.records += 1
            channel = ChannelId(pick % len(self.outputs))
            self.outputs[channel].emitted.append(self.records)
            self.outputs[channel].queue.append(self.records)
            self.pump(channel)

    @rule(pick=st.integers(0, 5), credit=st.integers(1, 3))
    def grant(self, pick: int, credit: int) -> None:
        if self.outputs:
            channel = ChannelId(pick % len(self.outputs))
            self.outputs[channel].credit += credit
            self.pump(channel)

    def pump(self, channel: ChannelId) -> None:
        for checkpoint in self.outputs[channel].pump():
            self.feed(BarrierDeparted(channel, checkpoint))

    @rule(timeout_ms=st.sampled_from([None, 100]), is_forced=st.booleans())
    def forward(self, timeout_ms: int | None, is_forced: bool) -> None:
        number = CheckpointId(1 if self.newest is None else self.newest.checkpoint + 1)
        flags = BarrierFlag.UNALIGNED if is_forced else BarrierFlag.NONE
        self.newest = barrier = Barrier(number, Generation(1), 0, flags, None if is_forced else timeout_ms)
        self.captured[number] = {channel: [] for channel in self.outputs}
        for output in self.outputs.values():
            output.emitted.append(barrier)
            output.queue.append(barrier)
            output.pump()
        waiting = frozenset(channel for channel, output in self.outputs.items() if output.waits(number))
        self.feed(BarrierForwarded(barrier, waiting))
        if is_forced:
            # I11: no barrier waits for credit, except where the receiver must be aligned.
            assert not any(self.outputs[channel].waits(number) for channel in self.state.may_overtake)

    @precondition(lambda self: self.timers)
    @rule(pick=st.integers(0, 5))
    def fire(self, pick: int) -> None:
        checkpoint = self.timers.pop(pick % len(self.timers))
        is_due = isinstance(self.state, Departing) and self.state.newest == checkpoint
        self.feed(DepartureTimedOut(checkpoint))
        if is_due:
            assert not any(self.outputs[channel].waits(checkpoint) for channel in self.state.may_overtake)

    @precondition(lambda self: self.newest is not None and self.newest.checkpoint > self.abandoned)
    @rule()
    def abandon(self) -> None:
        assert self.newest is not None
        self.abandoned = self.newest.checkpoint
        self.feed(CheckpointAbandoned(self.abandoned))

    def feed(self, event: Event) -> None:
        self.state, actions = step(self.state, event)
        for action in actions:
            match action:
                case StartDepartureTimer(checkpoint, after_ms):
                    assert 0 < after_ms <= 100
                    self.timers.append(checkpoint)
                case Overtake(barrier, channels):
                    assert barrier.is_unaligned
                    for channel in channels:
                        self.overtake(channel, barrier)
                case CompleteOutputs(checkpoint):
                    self.judge(checkpoint)

    def overtake(self, channel: ChannelId, barrier: Barrier) -> None:
        output = self.outputs[channel]
        in_front = output.records_before(list(output.queue), barrier.checkpoint)
        assert in_front is not None, "a barrier that has left cannot overtake"
        self.captured[barrier.checkpoint][channel] = in_front
        output.queue.remove(next(item for item in output.queue if item == barrier or is_same(item, barrier)))
        output.sent.append(barrier)

    def judge(self, checkpoint: CheckpointId) -> None:
        """I1, I2: what has left in front of the barrier, and then what it has overtaken."""
        assert checkpoint not in self.completed, "completed twice"
        assert checkpoint > self.abandoned, "completed although it was given up"
        self.completed.append(checkpoint)
        for channel, output in self.outputs.items():
            sent = output.records_before(output.sent, checkpoint)
            assert sent is not None, "complete before the barrier has left everywhere"
            assert [*sent, *self.captured[checkpoint][channel]] == output.records_before(output.emitted, checkpoint)

    @invariant()
    def what_waits_is_known(self) -> None:
        if isinstance(self.state, Departing):
            waiting = {channel for channel, output in self.outputs.items() if output.waits(self.state.newest)}
            assert waiting == self.state.waiting != frozenset()

    def teardown(self) -> None:
        for channel, output in self.outputs.items():
            output.credit += self.records
            self.pump(channel)
            assert not output.queue
            assert [item for item in output.sent if isinstance(item, int)] == [
                item for item in output.emitted if isinstance(item, int)
            ]
        if self.newest is not None:
            assert self.newest.checkpoint in [*self.completed, self.abandoned]


def is_same(item: int | Barrier, barrier: Barrier) -> bool:
    return isinstance(item, Barrier) and item.checkpoint == barrier.checkpoint


TestSenders = Senders.TestCase
TestSenders.settings = settings(max_examples=120, stateful_step_count=50, deadline=None)
