"""Notes of a worker for those who look at a pipeline: they travel with its signs of life, and decide nothing."""

from __future__ import annotations

from dataclasses import dataclass

SPLITS_MAX = 50
"""Splits whose clocks one sign of life carries: those that are furthest behind."""


@dataclass(frozen=True, slots=True)
class SplitClock:
    """The event time of a split that is read."""

    operator: str
    split: str
    reached_ms: int | None
    """None if no record of it was read."""
    is_idle: bool


@dataclass(frozen=True, slots=True)
class LogLine:
    """A warning or an error that a process has logged."""

    at_ms: int
    """In milliseconds since 1970, by the clock of its host."""
    level: str
    text: str
    worker: int | None = None
    """None for the driver."""
    operator: str | None = None
    """The operator that worked at that time, if it was any."""


@dataclass(frozen=True, slots=True)
class WorkerNotes:
    """A worker at the time of a sign of life."""

    memory_bytes: int = 0
    """Resident memory of its process; 0 if that is not known."""
    splits: tuple[SplitClock, ...] = ()
    logs: tuple[LogLine, ...] = ()
    """Lines since the last sign of life."""
    logs_dropped: int = 0
    """Lines that were not kept, since the worker started."""


NO_NOTES = WorkerNotes()


@dataclass(frozen=True, slots=True)
class Stack:
    """A stack of calls, from the outermost to the innermost, and how often it was met."""

    calls: tuple[tuple[str, str, int, int], ...]
    """Function, file, line, and whose code it is, as in `user_code.strangeness`."""
    samples: int
    operator: str | None = None
    """The operator that worked; None if it was the mailbox itself."""
