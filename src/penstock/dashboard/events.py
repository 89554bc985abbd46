"""Server-sent events: made once a second for all clients together, and only while there is one.

Each client has a bounded queue. A client that reads too slowly loses the oldest events: every event is a whole view, so
the next one makes up for those that were lost. All events of one round are one write to each client.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import msgspec

from penstock.dashboard.sights.sight import Sight
from penstock.dashboard.views import CheckpointView, GraphView, View

PERIOD_S = 1.0
WAITING_MAX = 16
"""Rounds that wait for a client that does not read."""
CLIENTS_MAX = 256
_CHECKPOINTS_LOOKED_AT = 20


class Client:
    """One open connection."""

    def __init__(self, orders_allowed: bool) -> None:
        self.orders_allowed = orders_allowed
        self.waiting: asyncio.Queue[bytes | None] = asyncio.Queue(WAITING_MAX)

    def put(self, events: bytes | None) -> None:
        """Events of one round; None for the end."""
        if self.waiting.full():
            self.waiting.get_nowait()
        self.waiting.put_nowait(events)


class Events:
    """The clients of one server. Belongs to its event loop."""

    def __init__(self, sight: Sight, period_s: float = PERIOD_S) -> None:
        self._sight = sight
        self._period_s = period_s
        self._clients: set[Client] = set()
        self._task: asyncio.Task[None] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._told_checkpoints: dict[int, CheckpointView] = {}
        self._told_recovery: tuple[object, ...] | None = None
        self._graph: tuple[GraphView | None, bytes] = None, b""
        self.rounds = 0
        """Number of times that events were made, whatever the number of clients."""

    @property
    def is_full(self) -> bool:
        return len(self._clients) >= CLIENTS_MAX

    async def stream(self, orders_allowed: bool) -> AsyncIterator[bytes]:
        """The events for one client, from now until it leaves or the server closes."""
        client = Client(orders_allowed)
        self._clients.add(client)
        self._loop = asyncio.get_running_loop()
        client.put(b"".join(self._state_of_things(orders_allowed)))
        if self._task is None or self._task.done():
            self._task = self._loop.create_task(self._run())
        try:
            while True:
                given = await client.waiting.get()
                if given is None:
                    return
                yield given
        finally:
            self._clients.discard(client)

    def close_soon(self) -> None:
        """Let all clients leave. For any thread."""
        loop = self._loop
        if loop is not None and not loop.is_closed():
            loop.call_soon_threadsafe(self._let_go)

    def _let_go(self) -> None:
        for client in self._clients:
            client.put(None)

    async def _run(self) -> None:
        while self._clients:
            await asyncio.sleep(self._period_s)
            self._round()

    def _round(self) -> None:
        self.rounds += 1
        changed = self._changed()
        for orders_allowed in (False, True):
            clients = [each for each in self._clients if each.orders_allowed is orders_allowed]
            if clients:
                # Joined once for all: with many open pages, the number of writes is what costs.
                events = b"".join([*self._state_of_things(orders_allowed), *changed])
                for client in clients:
                    client.put(events)

    def _state_of_things(self, orders_allowed: bool) -> list[bytes]:
        overview = msgspec.structs.replace(self._sight.overview(), orders_allowed=orders_allowed)
        graph = self._sight.graph()
        if graph is not self._graph[0]:
            # It is by far the largest event, and the same for those who may give orders and those who may not.
            self._graph = graph, _event("graph", graph)
        return [_event("overview", overview), self._graph[1]]

    def _changed(self) -> list[bytes]:
        newest = self._sight.checkpoints(_CHECKPOINTS_LOOKED_AT, None).history
        changed = [each for each in reversed(newest) if self._told_checkpoints.get(each.id) != each]
        self._told_checkpoints = {each.id: each for each in newest}
        events = [_event("checkpoint", each) for each in changed]
        recoveries = self._sight.recoveries()
        # Not its phases: the duration of the current one changes all the time.
        told = tuple((each.started_at_ms, each.generation, each.ended_at_ms) for each in recoveries.generations)
        if told != self._told_recovery:
            self._told_recovery = told
            events.append(_event("recovery", recoveries))
        return events


def _event(name: str, view: View) -> bytes:
    return b"event: " + name.encode() + b"\ndata: " + msgspec.json.encode(view) + b"\n\n"
