"""The records that the first operator of a subtask is in the middle of, and the turns in which it works them off.

An operator that works in steps gets all records that wait in front of its channels, up to the next watermark, barrier
or end. Nothing else is read before the last of them is done, so no watermark overtakes one. When a checkpoint looks at
the state, those that are not done go back to their channels first (I1): it waits for one call of the function at most.
"""

from __future__ import annotations

from collections.abc import Callable

from penstock.exchange.coalescing import joined
from penstock.exchange.hand import Hand
from penstock.exchange.input_channel import InputChannel
from penstock.exchange.items import BatchItem
from penstock.metrics.instruments import Counter
from penstock.operators.steps import CALL_ROWS_FIRST
from penstock.worker.chain import OperatorChain
from penstock.worker.event_time.subtask_clock import SubtaskClock
from penstock.worker.scheduling.batching import HandCost, bytes_wanted
from penstock.worker.scheduling.slices import SlicePolicy
from penstock.worker.services import Services

HAND_BYTES_MAX = 1 << 20, 8 << 20
"""Of one batch, and of all that is put together: it is copied twice, to join and to sort it (I7)."""


class InHand:
    """At most one hand at a time."""

    def __init__(
        self,
        chain: OperatorChain,
        event_time: SubtaskClock,
        services: Services,
        *,
        slices: SlicePolicy,
        bytes_in: Counter,
        grant: Callable[[InputChannel, int | None], None],
        freed: Callable[[InputChannel], None],
        to_read: Callable[[InputChannel], None],
    ) -> None:
        self._chain = chain
        self._event_time = event_time
        self._services = services
        self._slices = slices
        self._bytes_in = bytes_in
        self._grant = grant
        self._freed = freed
        self._to_read = to_read
        self._hand: Hand | None = None
        settings = services.settings
        self._calls = SlicePolicy(settings.slice_us, settings.slice_rows_max, CALL_ROWS_FIRST)
        """For single calls of the user's function."""
        self._keys = SlicePolicy(settings.slice_us, settings.slice_rows_max, CALL_ROWS_FIRST)
        """The same for single keys, where a call has several: it may cost by call, or by key."""

    @property
    def is_empty(self) -> bool:
        return self._hand is None

    @property
    def is_mid_call(self) -> bool:
        """Whether a part of the output of a call has left, and no checkpoint may be taken."""
        return self._hand is not None and self._hand.steps.is_mid_call

    def take(self, taken: list[tuple[InputChannel, BatchItem]]) -> None:
        """Begin to work off these batches."""
        started_us = self._services.clock.own_us()
        batch = joined([item.batch for _, item in taken])
        steps = self._chain.process(batch, taken[0][0].channel.edge.input)
        assert steps is not None, "an operator that works in steps has returned none"
        self._hand = Hand(taken, steps)
        self._bytes_in.value += self._hand.size
        self._hand.took_us = self._services.clock.own_us() - started_us
        self.go_on()

    def go_on(self) -> None:
        """One step."""
        hand, clock = self._hand, self._services.clock
        assert hand is not None
        steps = hand.steps
        rows, calls, keys, started_us = steps.rows_done, steps.calls, steps.keys, clock.own_us()
        limits = self._chain.limits
        if limits.time_ms:
            # The user knows how many records a call is worth waiting for.
            steps.call_rows_max = limits.rows or len(steps.order) or 1
        else:
            rows_max = self._calls.rows_within(self._services.slice_budget.slice_us)
            steps.call_rows_max = min(rows_max, limits.rows or rows_max)
        self._event_time.reading(hand.channels[0].channel.id)
        has_more = self._chain.step(steps)
        self._event_time.reading(None)
        took_us = clock.own_us() - started_us
        made, hand.took_us = steps.calls - calls, hand.took_us + took_us
        # Calls that are not over count with those that end them.
        hand.rows_open, hand.open_us = hand.rows_open + steps.rows_done - rows, hand.open_us + took_us
        if made:
            self._calls.measured(hand.rows_open / made, hand.open_us / made)
            if seen := steps.keys - keys:
                self._keys.measured(hand.rows_open / seen, hand.open_us / seen)
            hand.rows_open = hand.open_us = 0
        if has_more:
            for channel, cost in hand.paid_since():
                self._grant(channel, channel.credit.consumed(cost, queue_is_empty=False))
        else:
            self._finish(hand)

    def _finish(self, hand: Hand) -> None:
        self._hand = None
        self._slices.measured(len(hand.steps.order), hand.took_us)
        bytes_least = self._bytes_least(hand)
        now_us = self._services.clock.now_us()
        for channel, last, unpaid in hand.finish():
            self._grant(channel, channel.all_consumed(last, unpaid, now_us, bytes_least))
        self._event_time.after_channel()
        for channel in hand.channels:
            self._freed(channel)

    def _bytes_least(self, hand: Hand) -> int:
        """What a channel should have room for, however long it waits."""
        batch_us = 1000 * self._services.settings.batch_time_ms
        wanted = 0
        for calls, policy in ((hand.steps.calls, self._calls), (hand.steps.keys, self._keys)):
            cost = HandCost(len(hand.steps.order), calls, hand.size, hand.took_us)
            wanted = max(wanted, bytes_wanted(cost, policy.call_us, policy.row_us, batch_us))
        if self._chain.limits.time_ms:
            wanted = hand.size
        # The next hand comes in while this one is worked off.
        return 2 * wanted // len(hand.channels)

    def put_back(self) -> None:
        """The protocol is about to look at the queues: what is not done is in front of them again."""
        if self._hand is not None:
            hand, self._hand = self._hand, None
            rows = hand.put_back()
            # They are counted when they come again.
            self._bytes_in.value -= hand.size * rows // max(1, len(hand.steps.order))
            for channel in hand.channels:
                if not channel.queued_batches:
                    # All of its records are done, and its sender may wait for just the grant that was held back.
                    self._grant(channel, channel.credit.consumed(0, queue_is_empty=True))
                # A barrier that is in front now stays there: it tells the capture where to stop (I1).
                self._to_read(channel)
