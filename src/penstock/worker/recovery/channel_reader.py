"""Which recovered in-flight data a subtask reads when: ahead of what it processes, within a budget of memory."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from penstock.errors import RestoreError
from penstock.exchange.input_channel import InputChannel
from penstock.exchange.recovered_channel import LIVE, Entry, Piece, RecoveredChannel, load
from penstock.ids import ChannelId, EdgeId, SubtaskId
from penstock.protocol.manifest import ChannelSegment
from penstock.worker.services import Services

LOADS_MAX = 4
"""How many segments a subtask reads at a time: enough to hide the round trips to a store."""


@dataclass(slots=True)
class _Edge:
    """The channels of one edge: its older records are read before its younger ones, on whichever channel they are.

    After a rescale a key may come from another sender than before, and between two channels nothing else keeps the
    order of its records (I2). Other edges do not wait: an operator that reads selectively would never go on.
    """

    channels: list[InputChannel]
    oldest: int = LIVE

    def hold(self) -> list[InputChannel]:
        """Hold the channels whose turn has not come; returns those whose turn has come now."""
        ages = [(channel, channel.recovered.age if channel.recovered else LIVE) for channel in self.channels]
        self.oldest = max(age for _, age in ages)
        released = [channel for channel, age in ages if channel.held and age == self.oldest]
        for channel, age in ages:
            channel.held = age < self.oldest
        return released

    @property
    def is_under_way(self) -> bool:
        """Whether some channel can be read on, or will be without another load."""
        return any(c.recovered is not None and c.recovered.is_under_way for c in self.channels if not c.held)

    def next_to_load(self) -> tuple[InputChannel, Entry] | None:
        """Of the channels whose turn it is, the one that has the least in memory, and its next segment."""
        turns = [
            (c.recovered.loaded, c, c.recovered.next_to_load()) for c in self.channels if c.recovered and not c.held
        ]
        wanted = [(loaded, channel, entry) for loaded, channel, entry in turns if entry is not None]
        return min(wanted, key=lambda turn: turn[0])[1:] if wanted else None


class RecoveredChannelReader:
    """Reads the recovered channels of one subtask, ahead of what it processes but within the budget of its worker."""

    def __init__(self, subtask: SubtaskId, max_parallelism: int, services: Services) -> None:
        self._subtask = subtask
        self._max_parallelism = max_parallelism
        self._services = services
        self._edges: dict[EdgeId, _Edge] = {}
        self._loading = 0
        self._readable: Callable[[InputChannel], None] = lambda channel: None
        self.filter_us = 0
        """Time spent on decoding and filtering, in the background."""

    def begin(
        self,
        inputs: Iterable[InputChannel],
        segments: Mapping[ChannelId, list[ChannelSegment]],
        readable: Callable[[InputChannel], None],
    ) -> None:
        """Give each channel its recovered records; `readable` is told of channels that can be read on."""
        self._readable = readable
        by_edge: dict[EdgeId, list[InputChannel]] = {}
        for channel in inputs:
            by_edge.setdefault(channel.channel.edge.id, []).append(channel)
            if channel.channel.id in segments:
                channel.recovered = RecoveredChannel(segments[channel.channel.id])
        for id, channels in by_edge.items():
            edge = _Edge(channels)
            edge.hold()
            if edge.oldest:
                self._edges[id] = edge
        self._load()

    @property
    def is_done(self) -> bool:
        return not self._edges

    @property
    def bytes_left(self) -> int:
        return sum(c.recovered.bytes_left for edge in self._edges.values() for c in edge.channels if c.recovered)

    def after_read(self, channel: InputChannel) -> None:
        """A piece of `channel` was taken: go on to its next segment, or to the records that waited for this one."""
        edge = self._edges.get(channel.channel.edge.id)
        if edge is not None and channel.recovered is not None and self._drop_finished(edge, channel):
            self._load()

    def _drop_finished(self, edge: _Edge, channel: InputChannel) -> bool:
        """Forget what is read to its end, and let those go on who waited for it; True if there was something."""
        assert channel.recovered is not None
        dropped = channel.recovered.drop_finished()
        if not dropped:
            return False
        self._services.recovery_budget.give_back(dropped)
        if not channel.recovered:
            channel.recovered = None
        released = edge.hold()
        if not edge.oldest:
            del self._edges[channel.channel.edge.id]
        for each in released:
            self._readable(each)
        return True

    # --- reading ---

    def _load(self) -> None:
        """Start to read what is wanted next: of each edge something at once, more as far as the budget goes."""
        for edge in self._edges.values():
            while found := edge.next_to_load():
                channel, entry = found
                is_needed = not edge.is_under_way
                if not is_needed and self._loading >= LOADS_MAX:
                    break
                size = entry.segment.segment.length
                if not self._services.recovery_budget.take(size) and not is_needed:
                    self._services.recovery_budget.give_back(size)
                    break
                self._begin_load(edge, channel, entry)

    def _begin_load(self, edge: _Edge, channel: InputChannel, entry: Entry) -> None:
        services, key = self._services, channel.channel.edge.key
        entry.is_loading = True
        self._loading += 1

        def work() -> tuple[list[Piece], int]:
            return load(services.store, entry.segment, key, self._max_parallelism, services.clock.now_us)

        def done(outcome: tuple[list[Piece], int] | Exception) -> None:
            self._loading -= 1
            entry.is_loading = False
            if isinstance(outcome, Exception):
                raise RestoreError(
                    f"{self._subtask} cannot read back its records in flight on the edge {channel.channel.edge.id}: "
                    f"{outcome}"
                ) from outcome
            pieces, took_us = outcome
            self.filter_us += took_us
            entry.pieces = deque(pieces)
            self._drop_finished(edge, channel)
            self._readable(channel)
            self._load()

        services.background.submit(work, done)
