"""Restarts: decides whether a failed attempt is followed by another one, and how soon.

A failure now and then is life: the next attempt begins after a delay that doubles while failures follow each
other. Too many of them mean that the pipeline cannot run as it is, and trying again without end would hide that. A
failure counts while it is within a window, and until a checkpoint completes after it: a pipeline that fails each time
after an hour and never completes a checkpoint repeats that hour.

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
    """Maximum number of restarts for the failures that count; one more failure fails the pipeline."""
    window_ms: int = 600_000
    """A failure that was followed by a completed checkpoint counts for this long."""
    delay_ms: int = 200
    delay_ms_max: int = 30_000
    repeats_max: int | None = 2
    """Equal failures of the user's code in a row that fail the pipeline, if no checkpoint completes in between: the
    same record would raise the same error again. None for no such limit."""

    def __post_init__(self) -> None:
        for name, least in (("failures_max", 0), ("window_ms", 1), ("delay_ms", 0), ("delay_ms_max", self.delay_ms)):
            if getattr(self, name) < least:
                raise OptionError(f"{name} is {getattr(self, name)} and must be at least {least}")
        if self.repeats_max is not None and self.repeats_max < 1:
            raise OptionError(f"repeats_max is {self.repeats_max} and must be at least 1, or None")


@dataclass(frozen=True, slots=True)
class RestartAfter:
    delay_ms: int


@dataclass(frozen=True, slots=True)
class GiveUp:
    reason: str


Decision: TypeAlias = RestartAfter | GiveUp


def counted(
    failures_at_ms: tuple[int, ...], policy: RestartPolicy, now_ms: int, progress_at_ms: int | None
) -> tuple[int, ...]:
    """The failures that count: all within the window, and all since `progress_at_ms`. The others may be forgotten.

    `progress_at_ms` is the start of the last attempt in which a checkpoint completed; None if none has completed.
    """
    return tuple(
        at_ms
        for at_ms in failures_at_ms
        if at_ms > now_ms - policy.window_ms or progress_at_ms is None or at_ms >= progress_at_ms
    )


def decide_restart(
    failures_at_ms: tuple[int, ...],
    policy: RestartPolicy,
    now_ms: int,
    progress_at_ms: int | None,
    repeats: int = 1,
) -> Decision:
    """What to do about the last one of `failures_at_ms`, which is the failure that was seen just now.

    `repeats` is how often in a row it was the same one, with no completed checkpoint in between.
    """
    if policy.repeats_max is not None and repeats >= policy.repeats_max:
        times = {1: "once", 2: "twice"}.get(repeats, f"{repeats} times in a row")
        return GiveUp(f"the same error was raised {times}, and no checkpoint completed in between")
    count = len(counted(failures_at_ms, policy, now_ms, progress_at_ms))
    if count > policy.failures_max:
        is_recent = count == len(counted(failures_at_ms, policy, now_ms, now_ms))
        when = f"within {policy.window_ms / 1000:g} s" if is_recent else "and no checkpoint completed in between"
        return GiveUp(f"{count} failures {when}, and {policy.failures_max} are allowed")
    # The exponent is bounded too: a long row of failures must not build an enormous number first.
    return RestartAfter(min(policy.delay_ms << min(count - 1, 20), policy.delay_ms_max))
