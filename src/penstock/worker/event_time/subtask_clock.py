"""The event time of one subtask: which watermark it has reached, and which it has passed on.

Watermarks come from upstream, or from the source's own readers, or are made here from the times that an operator of
the chain reports (`follow`). Those are told apart by split or by channel, see `event_clocks`, unless an operator in
front of the reporting one emits in its own time: then nobody knows where its records came from, and the subtask has
one clock for all.

A subtask without anything to read is idle. It says so downstream, and nobody waits for it until it says otherwise.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING

from penstock.exchange.input_channel import InputChannel
from penstock.exchange.output_channel import OutputChannel
from penstock.ids import ChannelId, OperatorName
from penstock.model.event_time import IDLE_WATERMARK, MAX_WATERMARK, MIN_WATERMARK
from penstock.worker.context import Context
from penstock.worker.event_time.event_clocks import EventClocks
from penstock.worker.services import Services

if TYPE_CHECKING:
    from penstock.worker.chain import OperatorChain

_log = logging.getLogger("penstock")

_LOOK_AGAIN_MS = 20


class SubtaskClock:
    """Event time in one subtask. `tell` and `release` reach the operators of its chain."""

    def __init__(
        self, services: Services, inputs: Mapping[ChannelId, InputChannel], outputs: Mapping[ChannelId, OutputChannel]
    ) -> None:
        self._services = services
        self._inputs = inputs
        self._outputs = outputs
        self._chain: OperatorChain
        self._watermark = MIN_WATERMARK
        """What upstream has said, or the readers of the source."""
        self._released = MIN_WATERMARK
        """What was made of the times of records."""
        self._held = MIN_WATERMARK
        """What had been made of them before a restore, and waits until the recovered records are done."""
        self._is_recovered = False
        self.passed_on = MIN_WATERMARK
        """What downstream has been told. A checkpoint holds this one: what is held back is held back again."""
        self.is_idle = False
        self._follower: Context | None = None
        self._idle_after_ms: int | None = None
        self._max_drift_ms: int | None = None
        self._by_split: EventClocks[str] | None = None
        self._by_channel: EventClocks[ChannelId] | None = None
        self._newest = MIN_WATERMARK
        """The newest time of all input, where it is not told apart."""
        self._furthest = MIN_WATERMARK
        """The latest watermark that any channel has had."""
        self._reading: ChannelId | None = None
        self._looks_again = False

    # --- following the times of records ---

    def follow(self, context: Context, idle_after_ms: int | None, max_drift_ms: int | None) -> None:
        """`context` is that of the operator whose reports make the watermarks from now on."""
        self._follower, self._idle_after_ms, self._max_drift_ms = context, idle_after_ms, max_drift_ms

    def begin(self, chain: OperatorChain) -> None:
        """The chain is complete."""
        self._chain = chain
        if self._follower is None:
            return
        is_apart = not chain.emits_later_before(self._follower)
        if self._max_drift_ms is not None and not (is_apart and chain.source is not None):
            _log.warning(
                "operator '%s': max_drift has no effect, because splits cannot be distinguished "
                "here: call with_watermark right behind the source, or behind map and filter",
                self._follower.operator,
            )
        if not is_apart:
            return
        if chain.source is not None:
            self._by_split = chain.source.clocks = EventClocks(self._idle_after_ms)
            chain.source.max_drift_ms = self._max_drift_ms
            return
        self._by_channel = EventClocks(self._idle_after_ms)
        now_ms = self._services.clock.now_ms()
        for channel in self._inputs:
            self._by_channel.open(channel, now_ms)
        if self._idle_after_ms is not None:
            self._look_every(max(1, self._idle_after_ms // 4))

    @property
    def _clocks(self) -> EventClocks[str] | EventClocks[ChannelId] | None:
        return self._by_split if self._by_split is not None else self._by_channel

    @property
    def tells_channels_apart(self) -> bool:
        """Whether the records of one call must come from one channel."""
        return self._by_channel is not None

    def reading(self, channel: ChannelId | None) -> None:
        """The records at hand come from this channel."""
        self._reading = channel

    def saw(self, context: Context, reached_ms: int) -> None:
        if context is not self._follower:
            return
        source, now_ms = self._chain.source, self._services.clock.now_ms()
        if self._by_split is not None and source is not None and source.current is not None:
            self._by_split.saw(source.current, reached_ms, now_ms)
        elif self._by_channel is not None and self._reading is not None:
            self._by_channel.saw(self._reading, reached_ms, now_ms)
        else:
            self._newest = max(self._newest, reached_ms)

    # --- what has been read ---

    def in_checkpoint(self, chain: OperatorName) -> tuple[tuple[OperatorName, int], ...]:
        """What a checkpoint holds: where downstream is, and how far the operator has seen that follows event time.

        The records that it saw are not seen again after a restore. Without its clock, event time would stand still
        from there on until a later record comes, and nobody knows when that is.
        """
        passed_on = (chain, self.passed_on)
        if self._follower is None or self._follower.operator == chain:
            return (passed_on,)
        # More than what was released: that waits while earlier records are in hand.
        return passed_on, (self._follower.operator, max(self._seen(), self._held, self._released))

    def _seen(self) -> int:
        """The watermark of all records that the operator has seen which follows event time, released or not."""
        if self._by_split is not None:
            # A checkpoint holds the clock of each split.
            return MIN_WATERMARK
        if self._by_channel is None:
            return self._newest
        watermark = self._by_channel.watermark()
        return self._by_channel.newest if watermark == IDLE_WATERMARK else watermark

    @property
    def follower(self) -> OperatorName | None:
        """The operator that follows event time."""
        return None if self._follower is None else self._follower.operator

    def restore_held(self, watermark: int) -> None:
        """Go on from a clock that waits for recovered records."""
        self._held = watermark

    def on_recovered(self) -> None:
        """All recovered records are done."""
        self._is_recovered = True
        if self._follower is not None and self._held > self._released:
            self._release(self._held)

    def restore(self, watermark: int) -> None:
        """Go on from a checkpoint, before the operators do."""
        if self._follower is None:
            self._watermark = watermark
            self._chain.restore_watermark(watermark)
        else:
            self._released = watermark

    def tell_restored(self, watermark: int) -> None:
        """Tell downstream where to go on from: a recovered channel may hold an older word of this subtask."""
        self.pass_on(watermark)

    def after_source(self) -> None:
        """The source has been asked for records."""
        source = self._chain.source
        assert source is not None
        watermark = source.watermark(self._services.clock.now_ms())
        if self._follower is None or source.has_ended:
            self._advance(watermark)
        else:
            self._release(watermark if self._clocks is not None or watermark == IDLE_WATERMARK else self._newest)

    def after_channel(self) -> None:
        """Records of a channel have been processed."""
        if self._by_channel is not None:
            self._release(self._by_channel.watermark())
        elif self._follower is not None:
            self._release(self._newest)

    def on_watermark(self, reading: InputChannel, watermark: int) -> None:
        """A channel has a watermark, is idle, or (`MAX_WATERMARK`) has ended."""
        reading.watermark = watermark
        if watermark < MAX_WATERMARK:
            self._furthest = max(self._furthest, watermark)
        if self._by_channel is not None:
            self._note(self._by_channel, reading.channel.id, watermark)
        self._look()

    def _note(self, clocks: EventClocks[ChannelId], channel: ChannelId, watermark: int) -> None:
        if watermark == MAX_WATERMARK:
            clocks.close(channel)
        elif watermark == IDLE_WATERMARK:
            clocks.rest(channel)
        else:
            clocks.wake(channel)

    def _look(self) -> None:
        """What all channels together say."""
        said = [channel.watermark for channel in self._inputs.values()]
        slowest = min((watermark for watermark in said if watermark != IDLE_WATERMARK), default=IDLE_WATERMARK)
        if slowest == MAX_WATERMARK and IDLE_WATERMARK in said:
            # Those that have ended say nothing about those that are only idle.
            slowest = IDLE_WATERMARK
        if slowest == IDLE_WATERMARK and self._by_channel is None and self._furthest > self._watermark:
            # Nobody is left to wait for.
            self._advance(self._furthest)
        self._advance(slowest)
        if self._by_channel is not None and slowest != MAX_WATERMARK:
            self._release(self._by_channel.watermark())

    def _look_every(self, ms: int) -> None:
        def look() -> None:
            self._ask_channels()
            self._look()
            self._look_every(ms)

        self._services.timers.after(ms, look)

    def _ask_channels(self) -> None:
        """Which channels have nothing to read, and which have records that wait."""
        assert self._by_channel is not None
        now_ms = self._services.clock.now_ms()
        for channel, reading in self._inputs.items():
            if reading.is_empty:
                self._by_channel.had_nothing(channel, now_ms)
            else:
                self._by_channel.has_more(channel, now_ms)

    # --- how far it is ---

    def _advance(self, watermark: int) -> None:
        """Event time from upstream has moved on, if it has: the operators first, then everybody downstream."""
        # Where channels are told apart, they are idle by their clocks.
        if self._by_channel is None and self._is_idle_now(watermark):
            return
        if watermark == IDLE_WATERMARK or watermark <= self._watermark:
            return
        self._watermark = watermark
        if not self._chain.on_watermark(watermark):
            self.pass_on(watermark)

    def _release(self, watermark: int) -> None:
        """Event time of the records has moved on: the operators behind the one that follows it hear of it."""
        assert self._follower is not None
        if self._chain.suspended:
            # It is asked again as soon as the chain has done all that was read.
            return
        if any(channel.in_hand or channel.overtaken for channel in self._inputs.values()):
            # Records that came before those that were seen have not been processed yet: they would be late.
            return
        newest = self._newest if self._clocks is None else self._clocks.newest
        reached = newest if watermark == IDLE_WATERMARK else watermark
        if self._is_recovered:
            reached = max(reached, self._held)
        if reached > self._released:
            self._released = reached
            self._chain.release(self._follower, reached)
        self._is_idle_now(watermark)

    def pass_on(self, watermark: int) -> None:
        """Tell everybody downstream.

        Downstream hears of the end by the end of its channels. A checkpoint must not hold it: the pipeline may be
        started again with more input, and no watermark is later than the end.
        """
        if watermark < MAX_WATERMARK:
            self.passed_on = watermark
            self._send(watermark)

    def _is_idle_now(self, watermark: int) -> bool:
        """Whether the subtask is idle; on a change of that, downstream is told."""
        if watermark != IDLE_WATERMARK:
            if self.is_idle:
                self.is_idle = False
                self._send(self.passed_on)
            return False
        if not self._chain.is_idle:
            # Records are still being worked on in the background: nobody may overtake them.
            self._look_again()
        elif not self.is_idle:
            self.is_idle = True
            self._send(IDLE_WATERMARK)
        return True

    def _look_again(self) -> None:
        if self._chain.source is None and not self._looks_again:
            self._looks_again = True

            def look() -> None:
                self._looks_again = False
                self._look()

            self._services.timers.after(_LOOK_AGAIN_MS, look)

    def _send(self, watermark: int) -> None:
        for output in self._outputs.values():
            output.send_watermark(watermark)
