"""Requests of the user for a checkpoint, a savepoint or a drain: every one of them is answered."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from penstock.driver.checkpoints.coordinator import Coordinator
from penstock.protocol.coordinator.events import RequestDeclined, RequestResult
from penstock.protocol.coordinator.state import RequestKind
from penstock.protocol.declines import DeclineReason


@dataclass(slots=True, eq=False)
class _Request:
    """Somebody waits for a checkpoint."""

    kind: RequestKind
    answer: Callable[[RequestResult], None]
    is_passed_on: bool = False
    """Whether the coordinator of the current attempt knows of it."""


class Requests:
    """The requests that have no answer yet. One that comes between two attempts waits for the next one."""

    def __init__(self) -> None:
        self._open: list[_Request] = []

    @property
    def has_drain(self) -> bool:
        return any(request.kind is RequestKind.DRAIN for request in tuple(self._open))

    def add(self, kind: RequestKind, answer: Callable[[RequestResult], None]) -> None:
        self._open.append(_Request(kind, answer))

    def pass_on(self, coordinator: Coordinator) -> None:
        """Ask the coordinator for all that it does not know of."""
        for request in [request for request in self._open if not request.is_passed_on]:
            request.is_passed_on = True
            coordinator.request(request.kind, self._answering(request))

    def _answering(self, request: _Request) -> Callable[[RequestResult], None]:
        def answer(result: RequestResult) -> None:
            # An attempt that ended may have been answered for already.
            if request in self._open:
                self._open.remove(request)
                request.answer(result)

        return answer

    def decline(self, detail: str, *, is_end: bool) -> None:
        """Answer the requests that nobody else would: all of them at the end, else those that an attempt took along."""
        for request in [request for request in self._open if request.is_passed_on or is_end]:
            self._open.remove(request)
            request.answer(RequestDeclined(DeclineReason.CANCELLED, detail))
