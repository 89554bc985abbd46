"""The views that a server serves, whatever they are made from: a pipeline of this process, or a checkpoint directory.

All methods are for any thread. Those that read the store may block, and say so.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

from penstock.dashboard.views import (
    CheckpointDetail,
    CheckpointsView,
    ConfigurationView,
    GraphView,
    HistoryView,
    LatenciesView,
    LogsView,
    Overview,
    ProfileView,
    RecoveriesView,
    StateRows,
    StateView,
    VertexDetail,
    WatermarksView,
    WorkersView,
)
from penstock.driver.control import Command
from penstock.metrics.samples import Metrics


class Sight(ABC):
    """One pipeline, as clients see it. A view of something that does not exist is None."""

    pipeline: str
    """Its name."""

    @property
    @abstractmethod
    def moment(self) -> int:
        """A number that changes when views may have changed: until then they are shared by all clients."""

    @abstractmethod
    def overview(self) -> Overview: ...

    @abstractmethod
    def graph(self) -> GraphView: ...

    @abstractmethod
    def vertex(self, name: str) -> VertexDetail | None: ...

    @abstractmethod
    def checkpoints(self, limit: int, before: int | None) -> CheckpointsView: ...

    @abstractmethod
    def checkpoint(self, checkpoint: int) -> CheckpointDetail | None: ...

    @abstractmethod
    def watermarks(self) -> WatermarksView: ...

    @abstractmethod
    def state(self) -> StateView:
        """Blocks."""

    @abstractmethod
    def state_rows(self, operator: str, limit: int) -> StateRows | None:
        """Blocks."""

    @abstractmethod
    def recoveries(self) -> RecoveriesView: ...

    @abstractmethod
    def history(self, seconds: int) -> HistoryView: ...

    @abstractmethod
    def latency(self) -> LatenciesView: ...

    @abstractmethod
    def workers(self) -> WorkersView: ...

    @abstractmethod
    def configuration(self) -> ConfigurationView: ...

    @abstractmethod
    def logs(self, limit: int) -> LogsView: ...

    @abstractmethod
    def metrics(self) -> Metrics:
        """All metrics, for Prometheus."""

    @abstractmethod
    def profile(self, worker: int, seconds: float) -> ProfileView:
        """Blocks for `seconds`. Raises `PenstockError` if there is no such worker, or one is under way."""

    @abstractmethod
    def order(self, command: Command) -> None:
        """Give an order, without waiting for its end. May block for a moment. Raises `PenstockError`."""

    def sample(self) -> None:
        """Called every few seconds, for what is shown over time."""
