"""What all subtasks of a worker share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from penstock.ids import Generation
from penstock.runtime.capture_budget import CaptureBudget
from penstock.runtime.ports import Background, Clock, Transport
from penstock.runtime.settings import WorkerSettings
from penstock.runtime.timers import Timers
from penstock.storage.port import Store

Journal: TypeAlias = Callable[[str, object, tuple[object, ...]], None]
"""Told of every event and the actions it caused; what a violation prints as its story."""


@dataclass(frozen=True, slots=True)
class Services:
    """The ports of a worker, and what it counts across its subtasks."""

    generation: Generation
    settings: WorkerSettings
    clock: Clock
    transport: Transport
    background: Background
    store: Store
    timers: Timers
    budget: CaptureBudget
    journal: Journal | None = None
