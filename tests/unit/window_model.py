"""Windows in plain Python, row by row: what the columnar state is compared with."""

from __future__ import annotations

from typing import Any

from penstock.model.event_time import MAX_WATERMARK, MIN_WATERMARK
from penstock.model.windows import FixedWindows, SessionWindows, WindowKind

FUNCTIONS = ("sum", "count", "min", "max", "mean", "first", "last")

Row = tuple[Any, Any, int]
"""Key, value, event time in milliseconds."""


class Model:
    """The windows of some keys. Times are milliseconds."""

    def __init__(self, windows: FixedWindows) -> None:
        self.windows = windows
        self.watermark = MIN_WATERMARK
        self.late = 0
        self._rows: dict[tuple[Any, int], list[tuple[int, Any]]] = {}

    def add(self, rows: list[Row]) -> None:
        for key, value, time in rows:
            still_open = [start for start in self.starts(time) if start + self.windows.size_ms > self.watermark]
            self.late += not still_open
            for start in still_open:
                self._rows.setdefault((key, start), []).append((time, value))

    def starts(self, time: int) -> list[int]:
        """Of all windows that a time belongs to, found by trying."""
        size, every, offset = self.windows.size_ms, self.windows.every_ms, self.windows.offset_ms
        near = range(time - size + 1, time + 1)
        return [start for start in near if (start - offset) % every == 0]

    def close(self, watermark: int) -> dict[tuple[Any, int, int], tuple[Any, ...]]:
        """By key, start and end: what is complete."""
        size = self.windows.size_ms
        self.watermark = watermark if watermark < MAX_WATERMARK else self.watermark
        done = [place for place in self._rows if place[1] + size <= watermark]
        return {(key, start, start + size): self._aggregates(self._rows.pop((key, start))) for key, start in done}

    def _aggregates(self, rows: list[tuple[int, Any]]) -> tuple[Any, ...]:
        """In the order of `FUNCTIONS`, and the number of rows."""
        if self.windows.every_ms < self.windows.size_ms:
            rows = sorted(rows, key=lambda row: self._pane(row[0]))
        return aggregates_of([value for _, value in rows])

    def _pane(self, time: int) -> int:
        size, every = self.windows.size_ms, self.windows.every_ms
        while every:
            size, every = every, size % every
        return (time - self.windows.offset_ms) // size


class SessionModel:
    """The sessions of some keys: lists of rows, of which two become one when a row comes between them."""

    def __init__(self, windows: SessionWindows) -> None:
        self.gap = windows.gap_ms
        self.watermark = MIN_WATERMARK
        self.late = 0
        self._came = 0
        self._sessions: dict[Any, list[list[tuple[int, int, Any]]]] = {}
        """By key, rows with their times and the order in which they came."""

    def add(self, rows: list[Row]) -> None:
        for key, value, time in rows:
            if time + self.gap < self.watermark:
                self.late += 1
                continue
            self._came += 1
            joined, others = [(time, self._came, value)], []
            for session in self._sessions.get(key, []):
                if any(abs(at - time) <= self.gap for at, *_ in session):
                    joined += session
                else:
                    others.append(session)
            self._sessions[key] = [*others, joined]

    def close(self, watermark: int) -> dict[tuple[Any, int, int], tuple[Any, ...]]:
        self.watermark = watermark if watermark < MAX_WATERMARK else self.watermark
        done = {}
        for key, sessions in self._sessions.items():
            for session in list(sessions):
                first, last = min(at for at, *_ in session), max(at for at, *_ in session)
                if last + self.gap < watermark:
                    sessions.remove(session)
                    done[key, first, last + self.gap] = self._aggregates(session)
        return done

    def _aggregates(self, session: list[tuple[int, int, Any]]) -> tuple[Any, ...]:
        ordered = sorted(session, key=lambda row: (row[0] // self.gap, row[1]))
        return aggregates_of([value for _, _, value in ordered])


def aggregates_of(values: list[Any]) -> tuple[Any, ...]:
    """In the order of `FUNCTIONS`, and the number of rows."""
    known = [value for value in values if value is not None]
    if not known:
        return (None, 0, None, None, None, None, None, len(values))
    total = sum(known)
    return (total, len(known), min(known), max(known), total / len(known), known[0], known[-1], len(values))


def model_of(windows: WindowKind) -> Model | SessionModel:
    if isinstance(windows, SessionWindows):
        return SessionModel(windows)
    assert isinstance(windows, FixedWindows)
    return Model(windows)


class UpdatingModel(Model):
    """Windows that are kept after they were emitted, and emitted with every change."""

    def __init__(self, windows: FixedWindows, is_early: bool) -> None:
        super().__init__(windows)
        self.is_early = is_early

    def add(self, rows: list[Row]) -> dict[tuple[Any, int, int], tuple[Any, ...]]:  # type: ignore[override]
        """By key, start and end: the results that have changed and are emitted at once."""
        size, changed = self.windows.size_ms, {}
        for key, value, time in rows:
            kept = [at for at in self.starts(time) if at + size + self.windows.lateness_ms > self.watermark]
            self.late += not kept
            for start in kept:
                self._rows.setdefault((key, start), []).append((time, value))
                if self.is_early or start + size <= self.watermark:
                    changed[key, start, start + size] = self._rows[key, start]
        return {place: self._aggregates(here) for place, here in changed.items()}

    def close(self, watermark: int) -> dict[tuple[Any, int, int], tuple[Any, ...]]:
        size, before = self.windows.size_ms, self.watermark
        self.watermark = watermark if watermark < MAX_WATERMARK else self.watermark
        done = {}
        for (key, start), rows in list(self._rows.items()):
            if not self.is_early and before < start + size <= watermark:
                done[key, start, start + size] = self._aggregates(rows)
            if start + size + self.windows.lateness_ms <= watermark:
                del self._rows[key, start]
        return done
