"""What all subtasks of a worker share."""

from __future__ import annotations

import functools
from dataclasses import dataclass, field

from penstock.ids import Generation
from penstock.mailbox.activity import Activity
from penstock.mailbox.journal import Journal, Story
from penstock.mailbox.ports import Background, Clock, Transport
from penstock.mailbox.timers import Timers
from penstock.metrics.registry import Registry
from penstock.state.backends import DEFAULT_BACKEND, StateBackend, backend_of
from penstock.storage.port import Store
from penstock.worker.scheduling.budget import Budget
from penstock.worker.scheduling.slice_budget import SliceBudget
from penstock.worker.settings import WorkerSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class Services:
    """The ports of a worker, and what it counts across its subtasks."""

    generation: Generation
    settings: WorkerSettings
    clock: Clock
    transport: Transport
    background: Background
    store: Store
    timers: Timers
    capture_budget: Budget
    """For in-flight data that checkpoints capture (I7)."""
    recovery_budget: Budget
    """For recovered in-flight data in memory."""
    inline_bytes_max: int
    """What one subtask may send inside the manifest, instead of writing a file."""
    slice_budget: SliceBudget
    journal: Journal | None = None
    metrics: Registry = field(default_factory=Registry)
    story: Story = field(kw_only=True)
    """The last steps of the checkpoint protocol, for reports of failures."""
    activity: Activity = field(default_factory=Activity)
    state_backend: StateBackend = field(default_factory=functools.partial(backend_of, DEFAULT_BACKEND))
    """Makes the keyed state of all operators."""
