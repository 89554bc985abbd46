"""uvicorn without its clock: a server that nobody asks anything does not wake up ten times a second.

A page that nobody looks at is open for as long as its pipeline runs. Here the loop ends when it is told to, and wakes
once a second for the header `Date`, by which the page knows the clock of the driver.
"""

from __future__ import annotations

import asyncio
import contextlib

import uvicorn

_DATE_S = 1.0


class QuietServer(uvicorn.Server):
    """A server that `end_soon` ends at once, from any thread."""

    _loop: asyncio.AbstractEventLoop | None = None
    _is_over: asyncio.Event

    async def main_loop(self) -> None:
        self._is_over = asyncio.Event()
        # From here on it can be told: `should_exit` is set before the loop is looked at, and read after it is set.
        self._loop = asyncio.get_running_loop()
        while not await self.on_tick(0):
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._is_over.wait(), _DATE_S)

    def end_soon(self) -> None:
        self.should_exit = True
        loop = self._loop
        if loop is not None:
            # A loop that is closed has ended already.
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(self._is_over.set)
