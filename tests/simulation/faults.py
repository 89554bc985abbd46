"""What goes wrong: carries out the faults that a scenario has planned."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from penstock.driver.supervisor import Phase, Supervisor
from penstock.ids import WorkerId
from penstock.protocol.coordinator.events import RequestCompleted, RequestResult
from penstock.protocol.coordinator.state import Mode, RequestKind
from penstock.storage import paths
from tests.simulation import changes
from tests.simulation.calls import Hang, ProcessKilled
from tests.simulation.driver import Driver, silently
from tests.simulation.process import Process
from tests.simulation.scenario import Fault, FaultKind

if TYPE_CHECKING:
    from tests.simulation.cluster import Cluster


class Faults:
    """Lets the faults of a scenario happen, as checkpoints complete."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.happened: set[FaultKind] = set()
        self._waiting = list(cluster.scenario.faults)
        self._rescales = list(cluster.scenario.rescales)
        self._driver_dies_at: tuple[int, bool] | None = None

    @property
    def store_has_failed(self) -> bool:
        """Whether an operation of the store may have failed."""
        return bool(self.happened & {FaultKind.FAIL_WRITES, FaultKind.FAIL_READS, FaultKind.LOSE_REPLIES})

    # --- when ---

    def release(self) -> None:
        completed = len(self.cluster.manifests)
        for fault in [fault for fault in self._waiting if fault.after_checkpoints <= completed]:
            self._waiting.remove(fault)
            self.cluster.scheduler.after(fault.delay_us, self._injection(fault))

    def add(self, faults: list[Fault]) -> None:
        self._waiting += faults
        self.release()

    def _injection(self, fault: Fault) -> Callable[[], None]:
        def inject() -> None:
            if not self.cluster.is_over():
                self.cluster.tell(f"FAULT {fault.kind.value}")
                self.happened.add(fault.kind)
                self._inject(fault)

        return inject

    # --- what ---

    def _inject(self, fault: Fault) -> None:
        cluster, driver = self.cluster, self.cluster.driver
        live = driver.live_workers()
        victim = live[int(fault.pick * len(live))][0] if live else None
        until_us = cluster.scheduler.now_us + fault.duration_us
        world, disk, hangs = cluster.world, cluster.disk, cluster.scheduler.hangs
        match fault.kind:
            case FaultKind.KILL_WORKER:
                self._kill(victim)
            case FaultKind.FREEZE_WORKER:
                if victim is not None:
                    victim.freeze(fault.duration_us)
            case FaultKind.BUSY_WORKER:
                world.busy_us.append(1000 * cluster.scenario.supervisor.worker_silence_ms + fault.duration_us)
            case FaultKind.CUT_LINK:
                if victim is not None:
                    to = WorkerId(int(fault.pick * 97) % (cluster.plan.workers + 1) - 1)
                    cluster.network.cut(victim, to, fault.duration_us)
            case FaultKind.KILL_DRIVER:
                self.kill_driver(driver)
            case FaultKind.RESCALE:
                self.kill_driver(driver)
                cluster.rescale(self._rescales.pop(0))
            case FaultKind.CHANGE_PIPELINE:
                self._change(driver, fault)
            case FaultKind.KILL_DRIVER_AT_STORE:
                self._driver_dies_at = (1 + int(fault.pick * 12), fault.duration_us % 2 == 0)
            case FaultKind.SECOND_DRIVER:
                driver.process.freeze(fault.duration_us)
                cluster.start_driver(max(other.number for other in cluster.drivers) + 1)
            case FaultKind.FAIL_MAP:
                world.failures["map"] += 1
            case FaultKind.FAIL_TIMER:
                world.failures["timer"] += 1
            case FaultKind.FAIL_CALL:
                world.failures["call"] += 1
            case FaultKind.FAIL_SNAPSHOT:
                world.failures["snapshot"] += 1 + int(3 * fault.pick)
            case FaultKind.FAIL_OPEN:
                world.failures["map.open"] += 1
                self._kill(victim)
            case FaultKind.FAIL_CLOSE:
                world.failures["close"] += 1
            case FaultKind.FAIL_COMMIT:
                world.failures["commit"] += 1 + int(3 * fault.pick)
            case FaultKind.FAIL_SWEEP:
                world.failures["sweep"] += 1 + int(3 * fault.pick)
                self._kill(victim)
            case FaultKind.HANG_COMMIT:
                hangs.plan(Hang("commit", self._long_us(fault)))
            case FaultKind.HANG_COMMIT_FOR_EVER:
                hangs.plan(*[Hang("commit", None)] * (1 + int(6 * fault.pick)))
            case FaultKind.HANG_STORE:
                hangs.plan(Hang("store", self._long_us(fault)))
            case FaultKind.STUCK_CALL:
                world.stuck_until = self._until_checkpoints(2, until_us)
            case FaultKind.FAIL_WRITES:
                disk.writes_fail_until_us = until_us
            case FaultKind.FAIL_READS:
                disk.reads_fail_until_us = until_us
                self._kill(victim)
            case FaultKind.LOSE_REPLIES:
                disk.replies_are_lost_until_us = until_us
                if fault.pick < 0.5:
                    self._kill(victim)
            case FaultKind.ROT:
                self._rot(fault)
                self._kill(victim)
            case FaultKind.SAVEPOINT:
                driver.process.post(lambda: driver.supervisor.request(RequestKind.SAVEPOINT, _ignored))
            case FaultKind.DRAIN:
                driver.process.post(lambda: driver.supervisor.request(RequestKind.DRAIN, _on_drained(driver)))
            case FaultKind.CANCEL:
                driver.process.post(lambda: _cancel(driver.supervisor))

    def _kill(self, victim: Process | None) -> None:
        if victim is not None:
            self.cluster.crashes += 1
            victim.kill()

    def _long_us(self, fault: Fault) -> int:
        """Longer than anything waits: the attempt has been given up, and the next one is under way."""
        policy = self.cluster.scenario.supervisor.policy
        return fault.duration_us + int(2000 * fault.pick * policy.checkpoint_timeout_ms)

    def _until_checkpoints(self, count: int, until_us: int) -> Callable[[], bool]:
        """I11: where barriers may overtake, checkpoints complete while user code is stuck; elsewhere it gets time."""
        cluster = self.cluster
        wanted = len(cluster.manifests) + count
        if cluster.scenario.supervisor.policy.mode is Mode.ALIGNED:
            return lambda: cluster.scheduler.now_us > until_us
        return lambda: len(cluster.manifests) >= wanted

    def _rot(self, fault: Fault) -> None:
        cluster = self.cluster
        candidates = cluster.disk.blobs()
        if cluster.manifests and fault.pick < 0.3:
            candidates = [paths.manifest(cluster.manifests[-1].checkpoint)]
        present = [path for path in candidates if path in cluster.disk.store.list(path)]
        if present:
            cluster.is_rotten = cluster.world.is_rotten = True
            cluster.disk.rot(cluster.rng, present[int(fault.pick * len(present))])

    # --- drivers ---

    def kill_driver(self, driver: Driver) -> None:
        """The driver dies, its workers soon after, and somebody starts another one."""
        if not driver.process.is_alive:
            return
        cluster = self.cluster
        cluster.crashes += 1
        driver.process.kill()
        for pairs in driver.workers.values():
            for process, _ in pairs.values():
                cluster.scheduler.after(cluster.rng.randint(100, 20_000), silently(process))
        cluster.scheduler.after(cluster.rng.randint(500, 30_000), lambda: cluster.start_driver(driver.number))

    def _change(self, driver: Driver, fault: Fault) -> None:
        """The driver dies, and the next one runs a pipeline that is not quite the same."""
        cluster = self.cluster
        if not driver.process.is_alive or cluster.is_changed:
            return
        if not cluster.manifests:
            # To a start from nothing every pipeline fits.
            self.add([replace(fault, after_checkpoints=1)])
            return
        driver.process.kill()
        cluster.crashes += 1
        for pairs in driver.workers.values():
            for process, _ in pairs.values():
                silently(process)()

        def start() -> None:
            if cluster.is_over():
                # Another driver has taken over meanwhile, and brought the pipeline to its end.
                return
            if cluster.is_rotten:
                cluster.start_driver(driver.number)
                return
            manifest = cluster.manifests[-1]
            is_committed = paths.committed(manifest.checkpoint) in cluster.disk.store.blobs
            chosen = changes.choose(cluster.topology.graph, manifest, is_committed, fault.pick)
            if chosen is None:
                cluster.start_driver(driver.number)
            else:
                cluster.start_changed(driver.number, *chosen)

        # Late enough that nothing of the old processes is under way.
        cluster.scheduler.after(30_000, start)

    def at_store(self, driver: Driver, what: str, path: str, is_before: bool) -> None:
        """Kill the driver here, if that is planned."""
        if self._driver_dies_at is None or driver is not self.cluster.driver or not driver.process.is_alive:
            return
        count, before = self._driver_dies_at
        if before != is_before:
            return
        if count > 1:
            self._driver_dies_at = (count - 1, before)
            return
        self._driver_dies_at = None
        self.cluster.tell(f"the driver dies {'before' if before else 'after'} {what} of {path}")
        self.kill_driver(driver)
        raise ProcessKilled


def _on_drained(driver: Driver) -> Callable[[RequestResult], None]:
    def answer(result: RequestResult) -> None:
        driver.drained = driver.drained or isinstance(result, RequestCompleted)

    return answer


def _ignored(result: RequestResult) -> None:
    """Nobody waits for this answer."""


def _cancel(supervisor: Supervisor) -> None:
    if supervisor.coordinator is not None and supervisor.phase is Phase.RUNNING:
        supervisor.coordinator.cancel()
