"""Both ends of one channel in any interleaving: never below zero, never above the window, never stuck."""

from __future__ import annotations

from collections import deque

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from penstock.protocol.credit import ReceiverCredit, SenderCredit, cost_of


class Wire(RuleBasedStateMachine):
    """A sender's queue, frames on their way in both directions, and a receiver's queue."""

    @initialize(window_bytes=st.integers(1, 60))
    def open(self, window_bytes: int) -> None:
        self.window_bytes = window_bytes
        self.sender = SenderCredit(window_bytes)
        self.receiver = ReceiverCredit(window_bytes)
        self.waiting: deque[int] = deque()
        self.sent: deque[int] = deque()
        self.queue: deque[int] = deque()
        self.grants: deque[int] = deque()
        self.offered = self.done = 0

    @rule(batch_bytes=st.integers(0, 100))
    def offer(self, batch_bytes: int) -> None:
        self.waiting.append(cost_of(batch_bytes, self.window_bytes))
        self.offered += 1
        self.pump()

    def pump(self) -> None:
        while self.waiting and self.sender.can_send(self.waiting[0]):
            cost = self.waiting.popleft()
            self.sender.spend(cost)
            self.sent.append(cost)

    @precondition(lambda self: self.sent)
    @rule()
    def arrive(self) -> None:
        self.queue.append(self.sent.popleft())

    @precondition(lambda self: self.queue)
    @rule()
    def consume(self) -> None:
        cost = self.queue.popleft()
        self.done += 1
        granted = self.receiver.consumed(cost, not self.queue)
        if granted:
            self.grants.append(granted)

    @precondition(lambda self: self.grants)
    @rule()
    def grant(self) -> None:
        self.sender.grant(self.grants.popleft())
        self.pump()

    @invariant()
    def credit_is_within_its_bounds_and_none_is_lost(self) -> None:
        assert 0 <= self.sender.available <= self.window_bytes
        on_the_way = sum(self.sent) + sum(self.queue) + sum(self.grants) + self.receiver.owed
        assert self.sender.available + on_the_way == self.window_bytes

    @invariant()
    def a_sender_that_waits_is_owed_something_that_will_come(self) -> None:
        if self.waiting and not (self.sent or self.queue or self.grants):
            raise AssertionError(f"stuck with {self.sender.available} of {self.waiting[0]}: {self.receiver.owed} owed")

    def teardown(self) -> None:
        while self.sent or self.queue or self.grants:
            for step, is_possible in ((self.arrive, self.sent), (self.consume, self.queue), (self.grant, self.grants)):
                if is_possible:
                    step()
        assert self.done == self.offered


TestWire = Wire.TestCase
TestWire.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)
