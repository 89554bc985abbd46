"""Sources that wait for each other: how far the slowest one is, here and on all other workers.

Sources whose records may meet are a group (`PhysicalPlan.source_groups`), as far as they have a `max_drift`. A worker
tells the driver how far its slowest one is, and is told how far the slowest of all others is. That word is old when it
comes. An old one is too small, so that it makes a source wait for longer, and never lets it read too much. The clocks
of the worker itself are read when they are needed: nobody waits for an old word about itself.
"""

from __future__ import annotations

from collections.abc import Iterable

from penstock.graph.physical import PhysicalPlan
from penstock.ids import COORDINATOR, OperatorName, WorkerId
from penstock.mailbox.frames import ClocksFrame, SlowestFrame
from penstock.model.event_time import MIN_WATERMARK
from penstock.worker.services import Services
from penstock.worker.sources.source_stage import SourceStage


def slowest_of(clocks: Iterable[int | None]) -> int | None:
    """The slowest of some clocks. None: nobody has to wait. `MIN_WATERMARK`: one has not begun to read, and will."""
    return min((clock for clock in clocks if clock is not None), default=None)


class SourceDrift:
    """The sources of one worker that have a `max_drift`."""

    def __init__(self, worker: WorkerId, plan: PhysicalPlan, services: Services) -> None:
        self._worker = worker
        self._groups = plan.source_groups
        self._services = services
        self._sources: dict[OperatorName, list[SourceStage]] = {}
        self._elsewhere: dict[OperatorName, int | None] = {}
        """What the driver has said."""
        self._told: dict[OperatorName, int | None] | None = None

    def add(self, source: SourceStage) -> None:
        """A subtask of the worker reads this source."""
        if source.max_drift_ms is None:
            return
        group = self._groups[source.operator]
        self._sources.setdefault(group, []).append(source)
        # Until the driver has heard of all workers, another one may be anywhere.
        self._elsewhere[group] = MIN_WATERMARK
        source.slowest_of_all = lambda: slowest_of((self._slowest_here(group), self._elsewhere[group]))

    def _slowest_here(self, group: OperatorName) -> int | None:
        return slowest_of(source.slowest() for source in self._sources[group])

    def begin(self) -> None:
        """All sources are restored: tell the driver of them, and again whenever they have moved on."""
        if not self._sources:
            return
        told = {group: self._slowest_here(group) for group in self._sources}
        if told != self._told:
            self._told = told
            frame = ClocksFrame(self._services.generation, self._worker, told)
            self._services.transport.send(COORDINATOR, frame)
        self._services.timers.after(self._services.settings.drift_interval_ms, self.begin)

    def on_slowest(self, frame: SlowestFrame) -> None:
        """The driver says how far the slowest sources of other workers are."""
        self._elsewhere.update(frame.slowest)
