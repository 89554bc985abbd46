"""When to speak of something that lasts: at once, and again each time its duration has doubled."""

from __future__ import annotations

from collections.abc import Hashable


class Reminders:
    """Remembers how long each thing had lasted when it was spoken of last."""

    def __init__(self, again_ms_min: int = 5_000) -> None:
        """`again_ms_min` is the least time between the first and the second word."""
        self._again_ms_min = again_ms_min
        self._spoken: dict[Hashable, int] = {}

    def is_due(self, what: Hashable, lasted_ms: int) -> bool:
        """Whether to speak of `what` now; if so, that counts as done."""
        spoken_ms = self._spoken.get(what)
        if spoken_ms is not None and lasted_ms < max(2 * spoken_ms, spoken_ms + self._again_ms_min):
            return False
        self._spoken[what] = lasted_ms
        return True

    def forget(self, *whats: Hashable) -> None:
        """`whats` are over: if one comes again, it is news."""
        for what in whats:
            self._spoken.pop(what, None)

    def forget_all(self) -> None:
        self._spoken.clear()
