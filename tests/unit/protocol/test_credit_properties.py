"""Both ends of one channel in any interleaving: never below zero, never above the window, never stuck."""

from __future__ import annotations

from collections import deque

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from penstock.protocol.credit import ReceiverCredit, SenderCredit


class Wire(RuleBasedStateMachine):
    """A sender's queue, frames on their way in both directions, and a receiver's queue."""

    @initialize(credit_limit_bytes=st.integers(1, 60))
    def open(self, credit_limit_bytes: int) -> None:
        self.credit_limit_bytes = credit_limit_bytes
        self.sender = SenderCredit(credit_limit_bytes)
        self.receiver = ReceiverCredit(credit_limit_bytes)
        self.waiting: deque[int] = deque()
        self.sent: deque[int] = deque()
        self.queue: deque[int] = deque()
        self.grants: deque[tuple[int, int]] = deque()
        self.offered = self.done = 0

    @rule(batch_bytes=st.integers(0, 100))
    def offer(self, batch_bytes: int) -> None:
        self.waiting.append(batch_bytes)
        self.offered += 1
        self.pump()

    def pump(self) -> None:
        while self.waiting and self.sender.can_send(self.waiting[0]):
            self.sent.append(self.sender.spend(self.waiting.popleft()))

    @precondition(lambda self: self.sent)
    @rule()
    def arrive(self) -> None:
        self.queue.append(self.sent.popleft())

    @precondition(lambda self: self.queue)
    @rule(waited_us=st.integers(0, 100), ahead=st.integers(0, 100), is_standing=st.booleans())
    def consume(self, waited_us: int = 50, ahead: int = 10, is_standing: bool = True) -> None:
        cost = self.queue.popleft()
        self.done += 1
        self.receiver.learn(waited_us, ahead, is_standing, 20, 1)
        granted = self.receiver.consumed(cost, not self.queue)
        if granted is not None:
            self.grants.append((granted, self.receiver.credit_limit_bytes))

    @precondition(lambda self: self.grants)
    @rule()
    def grant(self) -> None:
        self.sender.grant(*self.grants.popleft())
        self.pump()

    @invariant()
    def credit_is_within_its_bounds_and_none_is_lost(self) -> None:
        assert 0 <= self.sender.available <= self.credit_limit_bytes
        assert 1 <= self.receiver.credit_limit_bytes <= self.credit_limit_bytes
        on_the_way = sum(self.sent) + sum(self.queue) + sum(granted for granted, _ in self.grants)
        assert self.sender.available + on_the_way == self.receiver.outstanding <= self.credit_limit_bytes

    @invariant()
    def a_sender_that_waits_is_owed_something_that_will_come(self) -> None:
        if self.waiting and not (self.sent or self.queue or self.grants):
            raise AssertionError(
                f"stuck with {self.sender.available} of {self.waiting[0]}: window {self.receiver.credit_limit_bytes}"
            )

    def teardown(self) -> None:
        while self.sent or self.queue or self.grants:
            for step, is_possible in ((self.arrive, self.sent), (self.consume, self.queue), (self.grant, self.grants)):
                if is_possible:
                    step()
        assert self.done == self.offered


TestWire = Wire.TestCase
TestWire.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)
