"""A simulated driver process: a supervisor and the workers that it starts."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from penstock.driver.checkpoints.committers import Committers
from penstock.driver.supervisor import Supervisor
from penstock.errors import PenstockError
from penstock.graph.physical import PhysicalPlan
from penstock.ids import COORDINATOR, Generation, WorkerId
from penstock.mailbox.frames import Frame
from penstock.protocol.manifest import Manifest
from penstock.protocol.ownership import Reservation
from penstock.worker.worker import Worker
from tests.simulation.background import VirtualCondition
from tests.simulation.changes import Change
from tests.simulation.disk import DiskView
from tests.simulation.process import Process

if TYPE_CHECKING:
    from tests.simulation.cluster import Cluster


class Driver:
    """A driver process: a supervisor and its gang."""

    def __init__(self, cluster: Cluster, number: int, misfit: Change | None = None) -> None:
        self.cluster = cluster
        self.number = number
        self.misfit = misfit
        """The change by which this driver's pipeline cannot go on from the checkpoint: it must refuse."""
        self.process = cluster.process(f"driver{number}")
        self.workers: dict[Generation, dict[WorkerId, tuple[Process, Worker]]] = {}
        self.drained = False
        network = cluster.network
        network.register(number, COORDINATOR, self.process)
        graph = cluster.topology.graph
        committers = Committers(
            {node.name: node.sink.committer() for node in graph.nodes if node.sink is not None},
            self.process,  # type: ignore[arg-type]
            commit_wait_ms=cluster.scenario.commit_wait_ms,
            discard_wait_ms=cluster.scenario.supervisor.takeover_timeout_ms,
        )
        self.turns = VirtualCondition(cluster.scheduler)
        committers._changed = self.turns  # type: ignore[assignment]
        self.supervisor = Supervisor(
            cluster.plan,
            cluster.scenario.supervisor,
            committers,
            self,
            self.process,
            network.port_of(number, self.process),
            self.process,
            DiskView(cluster.disk, lambda what, path, is_before: cluster.faults.at_store(self, what, path, is_before)),
            cluster.journal_of(self.process.name),
            token=f"driver {number} of {cluster.rng.random()}",
            attempt_background=self.process.background,
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
        for listener in cluster.on_launch:
            listener(self, generation, manifest)
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
            clock=process,
            transport=cluster.network.port_of(self.number, process),
            background=process,
            store=DiskView(cluster.disk),
            manifest=manifest,
            journal=cluster.journal_of(process.name),
        )
        process.mailbox = worker
        process.on_killed = lambda: self._died(generation, number)
        process.beat_us = 1000 * cluster.scenario.worker.heartbeat_ms
        process.beat = self._pulse_of(worker, process)
        self.workers.setdefault(generation, {})[number] = (process, worker)
        cluster.network.register(self.number, number, process)
        process.post(worker.start)

    def _pulse_of(self, worker: Worker, process: Process) -> Callable[[], None]:
        """What the pulse of a worker process does every now and then, as `WorkerBeat` does it in a thread."""
        port = self.cluster.network.port_of(self.number, process)

        def beat() -> None:
            busy_ms = worker.overdue_ms
            if busy_ms is not None:
                port.send(COORDINATOR, worker.busy_frame(busy_ms))

        return beat

    def _died(self, generation: Generation, number: WorkerId) -> None:
        def report() -> None:
            if self.process.is_alive:
                error = PenstockError(f"worker {number} was killed")
                self.process.post(lambda: self.supervisor.on_workers_lost(generation, error))

        self.cluster.scheduler.after(self.cluster.rng.randint(100, 5000), report)

    def cancel(self, generation: Generation) -> None:
        for process, _ in self.workers.get(generation, {}).values():
            # Not at once: for a while there are two generations, and the older one must change nothing.
            self.cluster.scheduler.after(self.cluster.rng.randint(100, 20_000), silently(process))

    def live_workers(self) -> list[tuple[Process, Worker]]:
        current = self.supervisor.coordinator
        if current is None:
            return []
        return [pair for pair in self.workers.get(current.generation, {}).values() if pair[0].is_alive]


def silently(process: Process) -> Callable[[], None]:
    """Kills a process without a word to anybody."""

    def kill() -> None:
        process.on_killed = lambda: None
        process.kill()

    return kill
