"""Restarts: decides whether a failed attempt is followed by another one, and how soon.

A failure now and then is life: the next attempt begins after a delay that doubles while failures follow each
other. Too many within a window mean that the pipeline cannot run as it is, and trying for ever would hide that.

Pure: times enter through the arguments.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from penstock.errors import OptionError


@dataclass(frozen=True, slots=True)
class RestartPolicy:
    """How patient the supervisor is. Raises `OptionError`."""

    failures_max: int = 10
    """So many failures within the window are followed by a restart, the next one by giving up."""
    window_ms: int = 600_000
    delay_ms: int = 200
    delay_ms_max: int = 30_000

    def __post_init__(self) -> None:
        for name, least in (("failures_max", 0), ("window_ms", 1), ("delay_ms", 0), ("delay_ms_max", self.delay_ms)):
            if getattr(self, name) < least:
                raise OptionError(f"{name} is {getattr(self, name)} and must be at least {least}")


@dataclass(frozen=True, slots=True)
class RestartAfter:
    delay_ms: int


@dataclass(frozen=True, slots=True)
class GiveUp:
    reason: str


Decision: TypeAlias = RestartAfter | GiveUp


def recent(failures_at_ms: tuple[int, ...], policy: RestartPolicy, now_ms: int) -> tuple[int, ...]:
    """The failures that still count; older ones may be forgotten."""
    return tuple(at_ms for at_ms in failures_at_ms if at_ms > now_ms - policy.window_ms)


def decide_restart(failures_at_ms: tuple[int, ...], policy: RestartPolicy, now_ms: int) -> Decision:
    """What to do about the last one of `failures_at_ms`, which is the failure that was seen just now."""
    count = len(recent(failures_at_ms, policy, now_ms))
    if count > policy.failures_max:
        within = f"{policy.window_ms / 1000:g} s"
        return GiveUp(f"{count} failures within {within}, and {policy.failures_max} are allowed")
    # The exponent is bounded too: a long row of failures must not build an enormous number first.
    return RestartAfter(min(policy.delay_ms << min(count - 1, 20), policy.delay_ms_max))
