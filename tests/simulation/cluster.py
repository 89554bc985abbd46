"""The simulated cluster: drivers, workers, and the lives of a pipeline from its first start to its last end."""

from __future__ import annotations

import dataclasses
import random
import traceback
from collections.abc import Callable, Iterator

from penstock.driver.supervisor import Phase
from penstock.errors import DriverSilent, FencedError, NoReadableCheckpoint, RestoreError
from penstock.exchange.items import Captured
from penstock.graph.physical import plan
from penstock.ids import Generation
from penstock.mailbox.frames import FailedFrame
from penstock.mailbox.journal import brief, told
from penstock.protocol.coordinator.state import RequestKind
from penstock.protocol.manifest import Manifest
from penstock.protocol.manifest.codec import decode_manifest_or_tombstone
from penstock.protocol.ownership import Tombstone
from penstock.storage import paths
from tests.simulation.changes import Change
from tests.simulation.disk import Disk, DiskFailure
from tests.simulation.driver import Driver
from tests.simulation.faults import Faults
from tests.simulation.network import Network
from tests.simulation.process import Process
from tests.simulation.production import SIMULATED
from tests.simulation.scenario import Scenario
from tests.simulation.scheduler import Scheduler
from tests.simulation.topologies import Topology
from tests.simulation.world import InjectedFailure, World

_PLANNED = (InjectedFailure, DiskFailure, DriverSilent)
"""Failures of workers that a seed plans, and those that follow from what it plans."""

_LIFE_US_MAX = 10_000_000
_LOOK_US = 20_000
_AFTERMATH_US = 60_000
"""When all is over, what is still under way gets this long."""


class Cluster:
    """One simulated run."""

    def __init__(self, scenario: Scenario, is_verbose: bool = False) -> None:
        self.scenario = scenario
        self.rng = random.Random(f"cluster {scenario.seed}")
        self.scheduler = Scheduler()
        self.world = World(random.Random(f"world {scenario.seed}"), self.scheduler)
        self.world.slow_us = scenario.load.slow_us
        # Channels, and with them barriers, grow with the square of the parallelism.
        self._events_max = 150_000 * max(1, scenario.load.parallelism // 3) ** 2
        self.network = Network(self.scheduler, random.Random(f"network {scenario.seed}"), scenario.network_us)
        self.network.on_frame[FailedFrame].append(self._look_at)
        self.disk = Disk(self.scheduler, random.Random(f"disk {scenario.seed}"))
        self.disk.on_created = self._on_created
        self._load = dataclasses.replace(scenario.load, splits=scenario.load.source_splits)
        self._change: Change | None = None
        self._lives = list(scenario.lives)
        self._build()
        self.is_verbose = is_verbose
        self.story: list[str] = []
        self.manifests: list[Manifest] = []
        self.strays: list[Manifest] = []
        """Those that took effect where a tombstone had been, when a newer generation had completed a checkpoint."""
        self.on_manifest: list[Callable[[Manifest], None]] = []
        self.on_launch: list[Callable[[Driver, Generation, Manifest | None], None]] = []
        self.decoded: dict[int, list[Captured]] = {}
        """What the segments of the newest manifest hold, for the checkers."""
        self.crashes = 0
        self.restores = 0
        self.restores_inflight = 0
        """Of these, from checkpoints that held in-flight data."""
        self.refusals = 0
        """Pipelines that did not fit their checkpoint, and did not start."""
        self.lives = 1
        self.overlaps = 0
        """Checkpoints whose manifest appeared when the next one had begun."""
        self.is_rotten = False
        self.is_hanging = False
        """Whether a call was still under way when all was over."""
        self.faults = Faults(self)
        self.drivers = [Driver(self, 0)]
        self.faults.release()
        self._wanted = set(self.topology.expected.tolist())
        self._stop_when_done()

    # --- the pipeline ---

    def _build(self) -> None:
        """From the next start on, run the pipeline as it is described now."""
        load, change = self._load, self._change
        make = SIMULATED[self.scenario.topology]
        self.topology: Topology = make(self.world, load if change is None else change.load(load))
        if change is not None:
            self.topology.graph = change.graph(self.topology.graph, self.world)
        self.plan = plan(self.topology.graph, load.parallelism, self.scenario.workers)

    def rescale(self, parallelism: int) -> None:
        """From the next start on, run at this parallelism; the splits of the sources stay as they are."""
        self._load = dataclasses.replace(self._load, parallelism=parallelism)
        self._build()

    @property
    def is_changed(self) -> bool:
        return self._change is not None

    def start_changed(self, number: int, change: Change, fits: bool) -> None:
        """Start a driver whose pipeline is not the one that it was."""
        self.tell(f"the pipeline has changed: {change.name}, which {'fits' if fits else 'does not fit'}")
        self._change = change
        self._build()
        self.drivers.append(Driver(self, number, None if fits else change))

    def start_driver(self, number: int) -> None:
        if self.driver.misfit is not None:
            # Somebody has put back what did not fit.
            self._change = None
            self._build()
        self.drivers.append(Driver(self, number))

    # --- what the run is made of ---

    def process(self, name: str) -> Process:
        rng = random.Random(f"{name} {self.scenario.seed}")
        return Process(name, self.scheduler, rng, self.scenario.background_us)

    def journal_of(self, process: str) -> Callable[[str, object, tuple[object, ...]], None] | None:
        if not self.is_verbose:
            return None

        def note(who: str, event: object, actions: tuple[object, ...]) -> None:
            self.tell(f"{process} {who}: {brief(event)} -> {'; '.join(map(brief, actions)) or 'nothing'}")

        return note

    def tell(self, text: str) -> None:
        if self.is_verbose:
            self.story.append(f"{self.scheduler.now_us / 1000:10.3f} ms  {text}")

    # --- running ---

    @property
    def driver(self) -> Driver:
        """The one that counts: the last one that was started and not fenced by another."""
        unfenced = [d for d in self.drivers if not isinstance(d.supervisor.error, FencedError)]
        return (unfenced or self.drivers)[-1]

    def run(self) -> None:
        """Run to the end of the last life, or to a violation."""
        try:
            while self._run_on():
                pass
            if not self.world.violations:
                until_us = self.scheduler.now_us + _AFTERMATH_US
                self.scheduler.run(lambda: self.scheduler.now_us >= until_us, until_us, self._events_max)
        finally:
            self.is_hanging = self.scheduler.hangs.are_under_way
            self.scheduler.hangs.close()

    def _run_on(self) -> bool:
        """Run until somebody must do something, and do it: True. False if nothing is left to be done."""
        limit_us = self.scheduler.now_us + _LIFE_US_MAX
        if not self.scheduler.run(self.is_over, limit_us, self._events_max):
            phase, error = self.driver.supervisor.phase.value, self.driver.supervisor.error
            took_s = self.scheduler.now_us / 1e6
            self.world.violation(f"liveness: not finished after {took_s:.1f} s, {phase}; the last error: {error}")
            return False
        if self.world.violations:
            return False
        driver = self.driver
        if driver.drained:
            self.tell("stopped with a savepoint, and started again from it")
        elif driver.misfit is not None and isinstance(driver.supervisor.error, RestoreError):
            self.tell(f"the changed pipeline was refused: {driver.supervisor.error}")
            self.refusals += 1
        elif driver.supervisor.phase is Phase.FAILED and self._may_give_up(driver):
            self.tell(f"the driver gave up, and somebody starts another one: {driver.supervisor.error}")
            driver.process.kill()
        elif driver.supervisor.phase in (Phase.FINISHED, Phase.STOPPED) and self._lives:
            self._begin_life()
        else:
            return False
        self.start_driver(0)
        return True

    def _stop_when_done(self) -> None:
        """Where no source ever ends, stop the pipeline with a savepoint when all is published."""
        if not self.topology.is_endless:
            return
        driver = self.driver
        if driver.process.is_alive and not driver.supervisor.has_ended and self._wanted <= self.world.visible:
            self.tell("all is published, and somebody stops the pipeline")
            driver.process.post(lambda: driver.supervisor.request(RequestKind.DRAIN, lambda result: None))
        self.scheduler.after(_LOOK_US, self._stop_when_done)

    def _may_give_up(self, driver: Driver) -> bool:
        """A committer or store that never answers may end a driver, with an error; the next one has to manage."""
        if not self.scheduler.hangs.for_ever or isinstance(driver.supervisor.error, RestoreError | FencedError):
            return False
        # Whatever has hung was mended in between.
        self.scheduler.hangs.forget()
        return True

    def _begin_life(self) -> None:
        """All input was read and the pipeline has come to its end: there is more input now."""
        life = self._lives.pop(0)
        self.tell(f"the pipeline has ended; {life.more} more of each split")
        self.lives += 1
        load = self._load
        self._load = dataclasses.replace(load, count=load.count + life.more, ended_at=(*load.ended_at, load.count))
        self._build()
        completed = len(self.manifests)
        self.faults.add(
            [dataclasses.replace(fault, after_checkpoints=completed + fault.after_checkpoints) for fault in life.faults]
        )

    def is_over(self) -> bool:
        return bool(self.world.violations) or (self.driver.process.is_alive and self.driver.supervisor.has_ended)

    @property
    def has_refused(self) -> bool:
        return isinstance(self.driver.supervisor.error, NoReadableCheckpoint)

    def _look_at(self, frame: FailedFrame) -> None:
        self.crashes += 1
        self.tell(f"worker {frame.worker} fails: {frame.error}")
        driver, failure = self._failure_of(frame)
        planned: tuple[type[BaseException], ...] = _PLANNED
        if driver.misfit is not None and driver.misfit.is_found_by_workers:
            planned = (*_PLANNED, RestoreError)
        if not self.is_rotten and not any(isinstance(error, planned) for error in causes_of(failure)):
            what = f"worker {frame.worker} failed, and nobody planned that: {frame.error}"
            self.world.violation(f"{what}\n{told(frame.story)}")

    def _failure_of(self, frame: FailedFrame) -> tuple[Driver, BaseException | None]:
        for driver in self.drivers:
            pair = driver.workers.get(frame.generation, {}).get(frame.worker)
            if pair is not None:
                return driver, pair[1].failure
        raise AssertionError(f"no worker {frame.worker} of generation {frame.generation} was ever started")

    def _on_created(self, path: str, data: bytes) -> None:
        if paths.kind_of(path) is not paths.PathKind.MANIFEST:
            return
        outcome = decode_manifest_or_tombstone(data)
        if isinstance(outcome, Tombstone):
            return
        newest = max((manifest.generation for manifest in self.manifests), default=0)
        if outcome.generation < newest and self.disk.history.count(("create", path)) > 1:
            self.tell(f"checkpoint {outcome.checkpoint} of generation {outcome.generation} is a stray")
            self.strays.append(outcome)
            return
        self.tell(f"checkpoint {outcome.checkpoint} of generation {outcome.generation} is durable")
        self.decoded.clear()
        try:
            for check in self.on_manifest:
                check(outcome)
        except Exception:
            # This may run inside a process that dies, where nobody would hear of it.
            self.world.violation("a checker failed:\n" + traceback.format_exc())
        self.manifests.append(outcome)
        self.faults.release()


def causes_of(error: BaseException | None) -> Iterator[BaseException]:
    """An error and all that led to it."""
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__
