"""A pipeline as the dashboard sees it: snapshots that any thread may read, and orders that return at once."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING

from penstock.driver.control import Command
from penstock.driver.supervisor import Supervisor
from penstock.errors import PenstockError
from penstock.graph.physical import PhysicalPlan
from penstock.ids import WorkerId
from penstock.mailbox.frames import ProfiledFrame
from penstock.mailbox.ports import Clock
from penstock.mailbox.threads import Mail
from penstock.protocol.coordinator.events import RequestCompleted, RequestResult
from penstock.protocol.coordinator.state import RequestKind
from penstock.spark.sessions import context_of
from penstock.spark.settings import Settings
from penstock.spark.worker_group import SparkWorkerGroup
from penstock.storage.port import Store

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_log = logging.getLogger("penstock")

_KINDS = {Command.SAVEPOINT: RequestKind.SAVEPOINT, Command.DRAIN: RequestKind.DRAIN}


@dataclass(frozen=True, slots=True, kw_only=True)
class Watched:
    """A pipeline that runs in this process."""

    supervisor: Supervisor
    plan: PhysicalPlan
    store: Store
    place: str
    """Its checkpoint directory, in the user's words."""
    clock: Clock
    checkpoint_interval_ms: int | None
    channel_bytes_max: int
    """Credit of one channel, at most."""
    settings: Mapping[str, str]
    order: Callable[[Command], None]
    """Gives an order and returns at once. Its outcome is logged."""
    profile: Callable[[WorkerId, float], Future[ProfiledFrame]]
    """Raises `PenstockError` if there is no such worker, or one is under way."""
    spark_app_id: str | None = None
    spark_ui_url: str | None = None
    spark_version: str | None = None


@dataclass(frozen=True, slots=True)
class Inside:
    """The parts of a job that its page needs. All methods are for any thread, and return at once."""

    name: str
    supervisor: Supervisor
    mail: Mail
    worker_group: SparkWorkerGroup
    store: Store
    clock: Clock

    def watched(self, spark: SparkSession, settings: Settings, place: str) -> Watched:
        context = context_of(spark)
        return Watched(
            supervisor=self.supervisor,
            plan=self.supervisor.plan,
            store=self.store,
            place=place,
            clock=self.clock,
            checkpoint_interval_ms=settings.supervisor().policy.interval_ms,
            channel_bytes_max=settings.worker().credit_limit_bytes,
            settings=shown_settings(settings),
            order=self.order,
            profile=self.profile,
            spark_app_id=None if context is None else context.applicationId,
            spark_ui_url=None if context is None else context.uiWebUrl,
            spark_version=spark.version,
        )

    def order(self, command: Command) -> None:
        """Give an order to the mailbox: the same calls as those of `driver.control`."""
        kind = _KINDS.get(command)
        if kind is None:
            self.mail.post(self.supervisor.stop)
        else:
            self.mail.post(lambda: self.supervisor.request(kind, lambda result: self._answered(command, result)))

    def _answered(self, command: Command, result: RequestResult) -> None:
        if isinstance(result, RequestCompleted):
            _log.info("pipeline %s: %s %d is complete", self.name, command.value, result.checkpoint)
            return
        told = f"{result.reason.value} ({result.detail})" if result.detail else result.reason.value
        _log.warning("pipeline %s: the order %s was declined: %s", self.name, command.value, told)

    def profile(self, worker: WorkerId, seconds: float) -> Future[ProfiledFrame]:
        coordinator = self.supervisor.coordinator
        if coordinator is None or worker not in self.worker_group.processes:
            raise PenstockError(f"worker {worker} is not running")
        return self.supervisor.observations.profiles.ask(
            worker,
            seconds,
            coordinator.generation,
            lambda to, frame: self.mail.post(lambda: self.worker_group.send(to, frame)),
        )


def shown_settings(settings: Settings) -> dict[str, str]:
    """All settings as texts; a number is shown with the unit that it stands for."""
    units = {"Duration": "s", "Size": "bytes"}
    shown = {}
    for each in dataclasses.fields(settings):
        value = getattr(settings, each.name)
        if isinstance(value, timedelta):
            value = value.total_seconds()
        unit = next((unit for kind, unit in units.items() if kind in str(each.type)), None)
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        text = f"{value:g}" if isinstance(value, float) else str(value)
        shown[each.name] = f"{text} {unit}" if is_number and unit else text
    return shown
