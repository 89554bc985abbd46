"""How patient the driver is."""

from __future__ import annotations

from dataclasses import dataclass, field

from penstock.driver.attempts.takeover import RestoreOptions
from penstock.protocol.coordinator.state import Policy
from penstock.protocol.restart import RestartPolicy


@dataclass(frozen=True, slots=True)
class SupervisorSettings:
    """How patient the driver is."""

    policy: Policy = field(default_factory=Policy)
    restart: RestartPolicy = field(default_factory=RestartPolicy)
    restore: RestoreOptions = field(default_factory=RestoreOptions)
    worker_silence_ms: int = 10_000
    """A worker that has been silent for this long counts as dead."""
    drift_interval_ms: int = 100
    """How often a worker is told how far the slowest source of all others is, where sources have `max_drift`."""
    start_timeout_ms: int = 120_000
    """Time for a worker to be heard of for the first time, from when there are slots for all of them; and the time
    that a pipeline waits for those slots."""
    takeover_timeout_ms: int = 120_000
    """A takeover fails if neither the store nor a sink's `sweep` has answered for this long. How long it takes
    altogether is not limited: it reads the whole of the checkpoint."""
    call_timeout_ms: int = 600_000
    """A worker whose mailbox is in one call for longer than this counts as stuck, although its process lives."""
