"""The supervisor: keeps a pipeline running, one attempt after the other, until it is finished or given up.

An attempt is one generation: take the directory over, start a gang of workers from the newest valid checkpoint,
coordinate, and when anything fails, stop all of it and begin the next one. Whatever failed, the way is the same.
Failures are noticed by the gang (Spark says that a task died), by a worker's own word, and by silence.
"""

from __future__ import annotations

import enum
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol, assert_never

from penstock.connectors.sink import Committer
from penstock.errors import FencedError, JobFailed, PenstockError, RestoreError
from penstock.ids import COORDINATOR, Generation, OperatorName, WorkerId
from penstock.plan.physical import PhysicalPlan
from penstock.protocol.coordinator_events import FailJob, Finish, RequestDeclined, RequestResult, StopFenced
from penstock.protocol.coordinator_state import Policy, RequestKind
from penstock.protocol.declines import DeclineReason
from penstock.protocol.history import AttemptRecord
from penstock.protocol.manifest import Manifest
from penstock.protocol.restart import GiveUp, RestartAfter, RestartPolicy, decide_restart, recent
from penstock.runtime.coordinator import Coordinator, Ending
from penstock.runtime.frames import BusyFrame, FailedFrame, Frame, HeartbeatFrame, HelloFrame, StopFrame
from penstock.runtime.ports import Background, Clock, Transport
from penstock.runtime.services import Journal
from penstock.runtime.takeover import Claimed, RestoreOptions, take_over
from penstock.runtime.timers import Timers
from penstock.storage.port import Store

_log = logging.getLogger("penstock")


class Gang(Protocol):
    """Starts and ends the workers of an attempt: a Spark job, or the simulator."""

    def launch(self, generation: Generation, plan: PhysicalPlan, manifest: Manifest | None) -> None:
        """Start all workers. Returns at once; what goes wrong is reported to `Supervisor.on_gang_failed`."""
        ...

    def cancel(self, generation: Generation) -> None:
        """End all workers of the attempt, dead or alive. Returns at once."""
        ...


class Phase(enum.Enum):
    """Where a pipeline is in its life."""

    CLAIMING = "claiming"
    RUNNING = "running"
    WAITING = "waiting to restart"
    FINISHED = "finished"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class SupervisorSettings:
    """How patient the driver is."""

    policy: Policy = field(default_factory=Policy)
    restart: RestartPolicy = field(default_factory=RestartPolicy)
    restore: RestoreOptions = field(default_factory=RestoreOptions)
    silence_ms_max: int = 10_000
    """A worker that was not heard of for so long counts as dead."""
    start_ms_max: int = 120_000
    """So long a worker may take to be heard of for the first time."""
    stuck_ms_max: int = 600_000
    """A worker whose mailbox is in one call for longer than this counts as stuck, although its process lives."""


@dataclass(slots=True, eq=False)
class _Request:
    """Somebody waits for a checkpoint."""

    kind: RequestKind
    answer: Callable[[RequestResult], None]
    path: str | None
    is_passed_on: bool = False
    """Whether the coordinator of the current attempt knows of it."""


class Supervisor:
    """Runs one pipeline. Driven from outside like a worker: `deliver`, `timers`, and reports of the gang."""

    def __init__(
        self,
        plan: PhysicalPlan,
        settings: SupervisorSettings,
        committers: Mapping[OperatorName, Committer],
        gang: Gang,
        clock: Clock,
        transport: Transport,
        background: Background,
        store: Store,
        journal: Journal | None = None,
    ) -> None:
        self._plan = plan
        self._settings = settings
        self._committers = committers
        self._gang = gang
        self._clock = clock
        self._transport = transport
        self._background = background
        self._store = store
        self._journal = journal
        self.timers = Timers(clock)
        self.phase = Phase.CLAIMING
        self.error: Exception | None = None
        self.coordinator: Coordinator | None = None
        self.restarts = 0
        self._generation: Generation | None = None
        self._history: tuple[AttemptRecord, ...] = ()
        self._requests: list[_Request] = []
        self._failures_at_ms: tuple[int, ...] = ()
        self._heard_at_ms: dict[WorkerId, int] = {}
        self._warned_ms: dict[WorkerId, int] = {}
        """For how long a worker that is in one call had been in it when that was logged last."""

    @property
    def history(self) -> tuple[AttemptRecord, ...]:
        """The last checkpoints of all attempts: a restart must not hide why it happened. Newest last."""
        current = self.coordinator.history if self.coordinator is not None else ()
        return (*self._history, *current)[-self._settings.policy.history_max :]

    @property
    def has_ended(self) -> bool:
        return self.phase in (Phase.FINISHED, Phase.FAILED)

    # --- attempts ---

    def start(self) -> None:
        """Begin an attempt: own the directory first, then start the workers."""
        if self.has_ended:
            return
        self.phase = Phase.CLAIMING
        store, committers, former = self._store, self._committers, self._generation
        shape, options = self._plan.shape(), self._settings.restore

        def work() -> Claimed:
            claimed = take_over(
                store,
                shape,
                has_committing_sinks=bool(committers),
                options=options,
                former=former,
                reserved=self._reserved,
            )
            if claimed.recommit is None:
                for committer in committers.values():
                    committer.sweep(claimed.generation)
            return claimed

        self._background.submit(work, self._on_claimed)

    def _reserved(self, generation: Generation) -> None:
        """Runs in the background; the mailbox looks at it when that work is done, and not before."""
        self._generation = generation

    def _on_claimed(self, claimed: Claimed | Exception) -> None:
        if self.has_ended:
            return
        if isinstance(claimed, RestoreError | FencedError):
            # Trying again cannot help: what is on disk, or somebody else, must change first.
            self._give_up(claimed)
            return
        if isinstance(claimed, Exception):
            self._failed(claimed)
            return
        self._log_start(claimed)
        self.phase = Phase.RUNNING
        self.coordinator = Coordinator(
            self._plan,
            claimed,
            self._settings.policy,
            self._committers,
            self._clock,
            self._transport,
            self._background,
            self._store,
            self.timers,
            self._on_ending,
            self._journal,
        )
        now = self._clock.now_ms()
        first_word_by = now + self._settings.start_ms_max - self._settings.silence_ms_max
        self._heard_at_ms = {WorkerId(worker): first_word_by for worker in range(self._plan.workers)}
        self._warned_ms = {}
        self._gang.launch(claimed.generation, self._plan, claimed.manifest)
        self._pass_on_requests()
        self._watch(claimed.generation)

    def _log_start(self, claimed: Claimed) -> None:
        for skipped in claimed.skipped:
            what = f"checkpoint {skipped.checkpoint} passed over: {skipped.reason}"
            _log.warning("pipeline %s: %s", self._plan.name, what)
        start = "from nothing" if claimed.manifest is None else f"from checkpoint {claimed.manifest.checkpoint}"
        _log.info("pipeline %s: generation %d starts %s", self._plan.name, claimed.generation, start)

    def _watch(self, generation: Generation) -> None:
        """Look every now and then whether every worker was heard of."""
        interval_ms = max(1, self._settings.silence_ms_max // 4)
        due_ms = self._clock.now_ms() + interval_ms

        def look() -> None:
            if self.phase is not Phase.RUNNING or self.coordinator is None or self.coordinator.generation != generation:
                return
            # For as long as this comes late the driver was busy, or asleep: signs of life may still be waiting.
            late_ms = self._clock.now_ms() - due_ms
            self._heard_at_ms = {worker: at_ms + late_ms for worker, at_ms in self._heard_at_ms.items()}
            for worker in range(self._plan.workers):
                self._transport.send(WorkerId(worker), HeartbeatFrame(generation, COORDINATOR))
            silent_since = self._clock.now_ms() - self._settings.silence_ms_max
            silent = [worker for worker, at_ms in self._heard_at_ms.items() if at_ms < silent_since]
            if silent:
                names = ", ".join(str(worker) for worker in silent)
                self._failed(PenstockError(f"no sign of life from worker {names}: it hangs, or its host is gone"))
            else:
                self._watch(generation)

        self.timers.after(interval_ms, look)

    # --- what is heard ---

    def deliver(self, frame: Frame) -> None:
        """Take one frame from a worker."""
        coordinator = self.coordinator
        if coordinator is None or self.phase is not Phase.RUNNING or frame.generation != coordinator.generation:
            return
        worker = getattr(frame, "worker", None)
        # One that says hello then waits for the others, and says nothing more until they have all come.
        if worker is not None and not isinstance(frame, HelloFrame):
            self._heard_at_ms[worker] = self._clock.now_ms()
        if isinstance(frame, BusyFrame):
            self._on_busy(frame)
            return
        if isinstance(frame, HeartbeatFrame):
            self._warned_ms.pop(frame.worker, None)
        if isinstance(frame, FailedFrame):
            where = f"{frame.subtask} on worker {frame.worker}" if frame.subtask else f"worker {frame.worker}"
            self._failed(JobFailed(f"{where}: {frame.error}"))
            return
        coordinator.deliver(frame)

    def _on_busy(self, frame: BusyFrame) -> None:
        """The process of a worker lives, and its mailbox is in one call: say so, and again when that has doubled."""
        where = ", ".join(part for part in (frame.doing, frame.line) if part)
        text = f"worker {frame.worker} has been in one call for {frame.busy_ms / 1000:.0f} s: {where}"
        if frame.busy_ms > self._settings.stuck_ms_max:
            self._failed(PenstockError(f"{text}: it is stuck. If the call does return in time, raise call_timeout"))
        elif frame.busy_ms >= max(self._settings.silence_ms_max, 2 * self._warned_ms.get(frame.worker, 0)):
            self._warned_ms[frame.worker] = frame.busy_ms
            cure = "its other work and all checkpoints wait for that; use smaller batches, or map_async"
            _log.warning("pipeline %s: %s; %s", self._plan.name, text, cure)

    def on_gang_failed(self, generation: Generation, error: Exception) -> None:
        """The gang reports that an attempt cannot go on."""
        if self.coordinator is not None and self.coordinator.generation == generation and self.phase is Phase.RUNNING:
            self._failed(error)

    def _on_ending(self, ending: Ending) -> None:
        match ending:
            case Finish():
                self._end_attempt()
                self.phase = Phase.FINISHED
                self._decline_requests("the pipeline has finished")
            case StopFenced(reason):
                self._give_up(FencedError(reason))
            case FailJob(reason):
                self._failed(JobFailed(reason))
            case _:
                assert_never(ending)

    # --- requests of the user ---

    def request(self, kind: RequestKind, answer: Callable[[RequestResult], None], path: str | None = None) -> None:
        """Ask for a checkpoint, a savepoint or a drain. One that comes between two attempts waits for the next one.

        It is answered in any case: an attempt that fails takes its requests with it, and says so.
        """
        if self.has_ended:
            answer(RequestDeclined(DeclineReason.DRAINED, f"the pipeline has {self.phase.value}"))
            return
        request = _Request(kind, answer, path)
        self._requests.append(request)
        self._pass_on_requests()

    def _pass_on_requests(self) -> None:
        if self.coordinator is None or self.phase is not Phase.RUNNING:
            return
        for request in [request for request in self._requests if not request.is_passed_on]:
            request.is_passed_on = True
            self.coordinator.request(request.kind, self._answering(request), request.path)

    def _answering(self, request: _Request) -> Callable[[RequestResult], None]:
        def answer(result: RequestResult) -> None:
            # An attempt that ended may have been answered for already.
            if request in self._requests:
                self._requests.remove(request)
                request.answer(result)

        return answer

    def _decline_requests(self, detail: str) -> None:
        """Answer those who would wait for ever: all at the end, else those that the failed attempt had in hand."""
        for request in [request for request in self._requests if request.is_passed_on or self.has_ended]:
            self._requests.remove(request)
            request.answer(RequestDeclined(DeclineReason.CANCELLED, detail))

    def stop(self) -> None:
        """End the pipeline where it is, without another checkpoint."""
        if not self.has_ended:
            self._end_attempt()
            self.phase = Phase.FINISHED
            self._decline_requests("the pipeline was stopped")

    # --- endings ---

    def _failed(self, error: Exception) -> None:
        self._end_attempt()
        now = self._clock.now_ms()
        self.error = error
        self._failures_at_ms = (*recent(self._failures_at_ms, self._settings.restart, now), now)
        decision = decide_restart(self._failures_at_ms, self._settings.restart, now)
        match decision:
            case GiveUp(reason):
                failure = JobFailed(f"the pipeline gave up: {reason}. The last one: {error}")
                failure.__cause__ = error
                self._give_up(failure)
            case RestartAfter(delay_ms):
                _log.warning("pipeline %s failed and restarts in %d ms: %s", self._plan.name, delay_ms, error)
                self.phase = Phase.WAITING
                self.restarts += 1
                self._decline_requests(f"the pipeline failed and restarts: {error}")
                self.timers.after(delay_ms, self.start)

    def _give_up(self, error: Exception) -> None:
        _log.error("pipeline %s has failed: %s", self._plan.name, error)
        self._end_attempt()
        self.error = error
        self.phase = Phase.FAILED
        self._decline_requests(f"the pipeline has failed: {error}")

    def _end_attempt(self) -> None:
        if self.coordinator is None:
            return
        self._history = self.history
        coordinator, self.coordinator = self.coordinator, None
        coordinator.stop()
        for worker in range(self._plan.workers):
            self._transport.send(WorkerId(worker), StopFrame(coordinator.generation))
        self._gang.cancel(coordinator.generation)
