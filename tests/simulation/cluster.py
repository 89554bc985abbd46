"""The simulated cluster: drivers, gangs of workers, and the faults that a scenario plans for them."""

from __future__ import annotations

import dataclasses
import enum
import random
import traceback
from collections.abc import Callable

from penstock.errors import FencedError, NoReadableCheckpoint, PenstockError
from penstock.ids import COORDINATOR, Generation, SubtaskId, WorkerId
from penstock.plan.physical import PhysicalPlan, plan
from penstock.protocol.barrier import Barrier
from penstock.protocol.claims import Reservation, Void
from penstock.protocol.coordinator_events import RequestCompleted, RequestResult
from penstock.protocol.coordinator_state import RequestKind
from penstock.protocol.manifest import Manifest, SubtaskReport
from penstock.protocol.manifest_codec import decode_manifest_or_void
from penstock.runtime.frames import FailedFrame, Frame
from penstock.runtime.supervisor import Phase, Supervisor
from penstock.runtime.worker import Worker
from penstock.storage import paths
from tests.simulation.disk import Disk, DiskView, blobs, write_error
from tests.simulation.network import Network
from tests.simulation.process import Process, ProcessKilled
from tests.simulation.scenario import Fault, FaultKind, Scenario
from tests.simulation.scheduler import Scheduler
from tests.simulation.topologies import TOPOLOGIES, Topology
from tests.simulation.world import World

_EXPECTED_FAILURES = (
    "InjectedFailure",
    "simulated disk",
    "no sign of life",
    "killed",
    "checkpoints in a row failed",
    "the driver was not heard of",
)


class Driver:
    """A driver process: a supervisor and its gang."""

    def __init__(self, cluster: Cluster, number: int) -> None:
        self.cluster = cluster
        self.number = number
        self.process = cluster.process(f"driver{number}")
        self.workers: dict[Generation, dict[WorkerId, tuple[Process, Worker]]] = {}
        self.drained = False
        network = cluster.network
        network.register(number, COORDINATOR, self.process)
        graph = cluster.topology.graph
        committers = {node.name: node.sink.committer() for node in graph.nodes if node.sink is not None}
        self.supervisor = Supervisor(
            cluster.plan,
            cluster.scenario.supervisor,
            committers,  # type: ignore[arg-type]
            self,
            self.process,
            network.port_of(number, self.process),
            self.process,
            DiskView(cluster.disk, self._fault, self._killed_after),
            cluster.journal_of(self.process.name),
        )
        self.process.mailbox = self
        self.process.post(self.supervisor.start)

    # --- the mailbox of the process ---

    can_work = False

    def deliver(self, frame: Frame) -> None:
        self.supervisor.deliver(frame)

    def fire_timers(self) -> None:
        self.supervisor.timers.fire()

    def work(self) -> bool:
        return False

    @property
    def next_timer_at_ms(self) -> int | None:
        return self.supervisor.timers.next_at_ms

    # --- the gang ---

    def launch(
        self, generation: Generation, plan: PhysicalPlan, manifest: Manifest | None, reservation: Reservation
    ) -> None:
        cluster = self.cluster
        cluster.restores += manifest is not None
        cluster.restores_inflight += manifest is not None and any(report.channels for report in manifest.reports)
        # All at once, as a gang is: nobody sends before everybody can be reached.
        delay = cluster.rng.randint(50, 2000)
        cluster.scheduler.at(self.process.elapsed_us + delay, lambda: self._start_gang(generation, plan, manifest))

    def _start_gang(self, generation: Generation, plan: PhysicalPlan, manifest: Manifest | None) -> None:
        current = self.supervisor.coordinator
        if not self.process.is_alive or current is None or current.generation != generation:
            return
        for number in range(plan.workers):
            self._start_worker(generation, WorkerId(number), plan, manifest)

    def _start_worker(
        self, generation: Generation, number: WorkerId, plan: PhysicalPlan, manifest: Manifest | None
    ) -> None:
        cluster = self.cluster
        process = cluster.process(f"d{self.number}g{generation}w{number}")
        worker = Worker(
            number,
            plan,
            generation,
            cluster.scenario.worker,
            process,
            cluster.network.port_of(self.number, process),
            process,
            DiskView(cluster.disk, cluster.worker_fault, lambda what, path: None),
            manifest,
            cluster.journal_of(process.name),
        )
        process.mailbox = worker
        process.on_killed = lambda: self._died(generation, number)
        self.workers.setdefault(generation, {})[number] = (process, worker)
        cluster.network.register(self.number, number, process)
        process.post(worker.start)

    def _died(self, generation: Generation, number: WorkerId) -> None:
        def report() -> None:
            if self.process.is_alive:
                error = PenstockError(f"worker {number} was killed")
                self.process.post(lambda: self.supervisor.on_gang_failed(generation, error))

        self.cluster.scheduler.after(self.cluster.rng.randint(100, 5000), report)

    def cancel(self, generation: Generation) -> None:
        for process, _ in self.workers.get(generation, {}).values():
            # Not at once: for a while there are two generations, and the older one must change nothing.
            self.cluster.scheduler.after(self.cluster.rng.randint(100, 20_000), _silently(process))

    def live_workers(self) -> list[tuple[Process, Worker]]:
        current = self.supervisor.coordinator
        if current is None:
            return []
        return [pair for pair in self.workers.get(current.generation, {}).values() if pair[0].is_alive]

    # --- dying at the store ---

    def _fault(self, what: str, path: str) -> None:
        self.cluster.driver_fault(self, what, path, is_before=True)

    def _killed_after(self, what: str, path: str) -> None:
        self.cluster.driver_fault(self, what, path, is_before=False)


def _silently(process: Process) -> Callable[[], None]:
    def kill() -> None:
        process.on_killed = lambda: None
        process.kill()

    return kill


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
        self.network.on_frame = self._look_at
        self.disk = Disk()
        self.disk.on_created = self._on_created
        self._rescales = list(scenario.rescales)
        self.scale(scenario.load.parallelism)
        self.is_verbose = is_verbose
        self.story: list[str] = []
        self.manifests: list[Manifest] = []
        self.on_manifest: list[Callable[[Manifest], None]] = []
        self.crashes = 0
        self.restores = 0
        self.restores_inflight = 0
        """Of these, from checkpoints that held in-flight data."""
        self.overlaps = 0
        """Checkpoints whose manifest appeared when the next one had begun."""
        self.is_rotten = False
        self._writes_fail_until_us = 0
        self._driver_dies_at: tuple[int, bool] | None = None
        self._waiting = list(scenario.faults)
        self.drivers = [Driver(self, 0)]
        self._release_faults()

    def scale(self, parallelism: int) -> None:
        """From the next start on, run at this parallelism; the splits of the sources stay as they are."""
        load = self.scenario.load
        scaled = dataclasses.replace(load, parallelism=parallelism, splits=load.source_splits)
        self.topology: Topology = TOPOLOGIES[self.scenario.topology](self.world, scaled)
        self.plan = plan(self.topology.graph, parallelism, self.scenario.workers)

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
        """Run to the end, or to a violation."""
        while True:
            ended = self.scheduler.run(self._is_over, limit_us=10_000_000, events_max=self._events_max)
            if not ended:
                phase = self.driver.supervisor.phase.value
                self.world.violation(f"liveness: not finished after {self.scheduler.now_us / 1e6:.1f} s, {phase}")
                return
            if self.world.violations or not self.driver.drained:
                return
            # Stopped with a savepoint: start again from it.
            self.start_driver(0)

    def _is_over(self) -> bool:
        return bool(self.world.violations) or (self.driver.process.is_alive and self.driver.supervisor.has_ended)

    def start_driver(self, number: int) -> None:
        self.drivers.append(Driver(self, number))

    @property
    def has_refused(self) -> bool:
        return isinstance(self.driver.supervisor.error, NoReadableCheckpoint)

    def _look_at(self, frame: Frame) -> None:
        if isinstance(frame, FailedFrame):
            self.crashes += 1
            self.tell(f"worker {frame.worker} fails: {frame.error}")
            if not any(text in frame.error for text in _EXPECTED_FAILURES) and not self.is_rotten:
                self.world.violation(f"worker {frame.worker} failed, and nobody planned that: {frame.error}")

    def _on_created(self, path: str, data: bytes) -> None:
        if paths.kind_of(path) is not paths.PathKind.MANIFEST:
            return
        outcome = decode_manifest_or_void(data)
        if isinstance(outcome, Void):
            return
        self.tell(f"checkpoint {outcome.checkpoint} of generation {outcome.generation} is durable")
        try:
            for check in self.on_manifest:
                check(outcome)
        except Exception:
            # This may run inside a process that dies, where nobody would hear of it.
            self.world.violation("a checker failed:\n" + traceback.format_exc())
        self.manifests.append(outcome)
        self._release_faults()

    # --- faults ---

    def _release_faults(self) -> None:
        due = [fault for fault in self._waiting if fault.after_checkpoints <= len(self.manifests)]
        for fault in due:
            self._waiting.remove(fault)
            self.scheduler.after(fault.delay_us, self._injection(fault))

    def _injection(self, fault: Fault) -> Callable[[], None]:
        def inject() -> None:
            if not self._is_over():
                self.tell(f"FAULT {fault.kind.value}")
                self._inject(fault)

        return inject

    def _inject(self, fault: Fault) -> None:
        driver, live = self.driver, self.driver.live_workers()
        victim = live[int(fault.pick * len(live))][0] if live else None
        match fault.kind:
            case FaultKind.KILL_WORKER:
                if victim is not None:
                    self.crashes += 1
                    victim.kill()
            case FaultKind.FREEZE_WORKER:
                if victim is not None:
                    victim.freeze(fault.duration_us)
            case FaultKind.CUT_LINK:
                if victim is not None:
                    to = WorkerId(int(fault.pick * 97) % (self.plan.workers + 1) - 1)
                    self.network.cut(victim, to, fault.duration_us)
            case FaultKind.KILL_DRIVER:
                self.kill_driver(driver)
            case FaultKind.RESCALE:
                self.kill_driver(driver)
                self.scale(self._rescales.pop(0))
            case FaultKind.KILL_DRIVER_AT_STORE:
                self._driver_dies_at = (1 + int(fault.pick * 12), fault.duration_us % 2 == 0)
            case FaultKind.SECOND_DRIVER:
                driver.process.freeze(fault.duration_us)
                self.start_driver(max(other.number for other in self.drivers) + 1)
            case FaultKind.FAIL_MAP:
                self.world.failures["map"] += 1
            case FaultKind.FAIL_SNAPSHOT:
                self.world.failures["snapshot"] += 1 + int(3 * fault.pick)
            case FaultKind.FAIL_OPEN:
                self.world.failures["map.open"] += 1
                if victim is not None:
                    victim.kill()
            case FaultKind.FAIL_CLOSE:
                self.world.failures["close"] += 1
            case FaultKind.FAIL_WRITES:
                self._writes_fail_until_us = self.scheduler.now_us + fault.duration_us
            case FaultKind.ROT:
                self._rot(fault)
                if victim is not None:
                    victim.kill()
            case FaultKind.SAVEPOINT:
                driver.process.post(lambda: driver.supervisor.request(RequestKind.SAVEPOINT, _ignored))
            case FaultKind.DRAIN:
                driver.process.post(lambda: driver.supervisor.request(RequestKind.DRAIN, self._on_drained(driver)))
            case FaultKind.CANCEL:
                driver.process.post(lambda: _cancel(driver.supervisor))

    def _on_drained(self, driver: Driver) -> Callable[[RequestResult], None]:
        def answer(result: RequestResult) -> None:
            driver.drained = driver.drained or isinstance(result, RequestCompleted)

        return answer

    def kill_driver(self, driver: Driver) -> None:
        """The driver dies, its workers soon after, and somebody starts another one."""
        self.crashes += 1
        driver.process.kill()
        for pairs in driver.workers.values():
            for process, _ in pairs.values():
                self.scheduler.after(self.rng.randint(100, 20_000), _silently(process))
        self.scheduler.after(self.rng.randint(500, 30_000), lambda: self.start_driver(driver.number))

    def _rot(self, fault: Fault) -> None:
        candidates = blobs(self.disk)
        if self.manifests and fault.pick < 0.3:
            candidates = [paths.manifest(self.manifests[-1].checkpoint)]
        present = [path for path in candidates if path in self.disk.store.list(path)]
        if present:
            self.is_rotten = True
            self.disk.rot(self.rng, present[int(fault.pick * len(present))])

    def worker_fault(self, what: str, path: str) -> None:
        if what == "write" and self.scheduler.now_us < self._writes_fail_until_us:
            raise write_error(path)

    def driver_fault(self, driver: Driver, what: str, path: str, is_before: bool) -> None:
        self.worker_fault("write" if what == "create" and is_before else "", path)
        if self._driver_dies_at is None or driver is not self.driver or not driver.process.is_alive:
            return
        count, before = self._driver_dies_at
        if what == "read" or before != is_before:
            return
        if count > 1:
            self._driver_dies_at = (count - 1, before)
            return
        self._driver_dies_at = None
        self.tell(f"the driver dies {'before' if before else 'after'} {what} of {path}")
        self.kill_driver(driver)
        raise ProcessKilled


def brief(value: object) -> str:
    """An event or action in a few words: names of checkpoints, channels, subtasks and reasons, nothing else."""
    words = []
    for field in dataclasses.fields(value):  # type: ignore[arg-type]
        content = getattr(value, field.name)
        if isinstance(content, Barrier):
            words.append(f"{content.checkpoint}{'u' if content.is_unaligned else ''}+{content.age_ms}ms")
        elif isinstance(content, frozenset):
            words.append("{" + ",".join(str(item) for item in sorted(content)) + "}")
        elif isinstance(content, enum.Enum):
            words.append(content.value)
        elif isinstance(content, SubtaskReport | Manifest):
            words.append(str(content.subtask if isinstance(content, SubtaskReport) else content.checkpoint))
        elif isinstance(content, int | str | SubtaskId) and field.name not in ("now_ms", "generation"):
            words.append(str(content))
    return f"{type(value).__name__}({' '.join(words)})"


def _ignored(result: RequestResult) -> None:
    """Nobody waits for this answer."""


def _cancel(supervisor: Supervisor) -> None:
    if supervisor.coordinator is not None and supervisor.phase is Phase.RUNNING:
        supervisor.coordinator.cancel()
