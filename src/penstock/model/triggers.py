"""Triggers: when the current values of a key leave an aggregate that has no window."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Trigger:
    """The values of a key are emitted at the end of the input, and before that as often as this says."""

    every_ms: int | None = None
    """By the clock of the worker, if the key has had records since it was emitted."""
    rows: int | None = None
    """When the key has had this many records since it was emitted, at most once for a batch."""


AT_END = Trigger()
