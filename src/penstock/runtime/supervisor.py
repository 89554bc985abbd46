"""The supervisor: keeps a pipeline running, one attempt after the other, until it is finished or given up.

An attempt is one generation: take the directory over, start a gang of workers from the newest valid checkpoint,
coordinate, and when anything fails, stop all of it and begin the next one. Whatever failed, the way is the same.
Failures are noticed by the gang (Spark says that a task died), by a worker's own word, and by silence.

Code of users and of stores may hang. Each attempt therefore has a background and a view of the store of its own, closed
when it ends (`AttemptStore`): whatever hangs, the next takeover does not wait behind it. A takeover of which nothing is
heard for `claim_ms_max` is a failure of the attempt like any other. Of a takeover that was given up, one call may
still take effect. That does no harm: a reservation that it creates late is either seen by the next takeover, or has the
same id, generation and token as the next one's, and then it is the same file; a void marker is one that the next
takeover creates too.
"""

from __future__ import annotations

import enum
import logging
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol, TypeVar, assert_never

from penstock.connectors.sink import Committer
from penstock.errors import (
    DataError,
    FencedError,
    JobFailed,
    PenstockError,
    RestoreError,
    StorageError,
    UserCodeError,
    is_final,
    is_repeatable,
)
from penstock.ids import COORDINATOR, Generation, OperatorName, WorkerId
from penstock.plan.physical import PhysicalPlan
from penstock.protocol.claims import Reservation
from penstock.protocol.coordinator_events import FailJob, Finish, RequestDeclined, RequestResult, StopFenced
from penstock.protocol.coordinator_state import Policy, RequestKind
from penstock.protocol.declines import DeclineReason
from penstock.protocol.history import AttemptRecord
from penstock.protocol.manifest import Manifest
from penstock.protocol.restart import GiveUp, RestartAfter, RestartPolicy, counted, decide_restart
from penstock.runtime.attempt_store import AttemptStore
from penstock.runtime.committers import Committers
from penstock.runtime.coordinator import Coordinator, Ending
from penstock.runtime.failures import error_of
from penstock.runtime.frames import BusyFrame, FailedFrame, Frame, HeartbeatFrame, HelloFrame, StopFrame
from penstock.runtime.left_out import LateRows, LeftOut, SkippedInput
from penstock.runtime.ports import AttemptBackground, Background, Clock, Transport
from penstock.runtime.services import Journal
from penstock.runtime.takeover import Claimed, RestoreOptions, take_over
from penstock.runtime.timers import Timers
from penstock.storage.port import Store

_log = logging.getLogger("penstock")

T = TypeVar("T")


class Gang(Protocol):
    """Starts and ends the workers of an attempt: a Spark job, or the simulator."""

    def launch(
        self, generation: Generation, plan: PhysicalPlan, manifest: Manifest | None, reservation: Reservation
    ) -> None:
        """Start all workers. Returns at once; what goes wrong is reported to `Supervisor.on_gang_failed`.

        `reservation` is the file by which a worker knows the directory of this driver (`runtime.shared`).
        """
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
    claim_ms_max: int = 120_000
    """A takeover fails if neither the store nor a sink's `sweep` has answered for this long. How long it takes
    altogether is not limited: it reads the whole of the checkpoint."""
    stuck_ms_max: int = 600_000
    """A worker whose mailbox is in one call for longer than this counts as stuck, although its process lives."""


@dataclass(slots=True, eq=False)
class _Request:
    """Somebody waits for a checkpoint."""

    kind: RequestKind
    answer: Callable[[RequestResult], None]
    is_passed_on: bool = False
    """Whether the coordinator of the current attempt knows of it."""


class _Shared:
    """A background that attempts share: where nothing can hang, as in a simulator."""

    def __init__(self, background: Background) -> None:
        self._background = background

    def submit(self, work: Callable[[], T], done: Callable[[T | Exception], None]) -> None:
        self._background.submit(work, done)

    def close(self) -> None:
        pass


@dataclass(frozen=True, slots=True, eq=False)
class _Attempt:
    """What belongs to one attempt alone."""

    background: AttemptBackground
    store: AttemptStore
    started_at_ms: int

    def close(self) -> None:
        self.store.close()
        self.background.close()


class Supervisor:
    """Runs one pipeline. Driven from outside like a worker: `deliver`, `timers`, and reports of the gang."""

    def __init__(
        self,
        plan: PhysicalPlan,
        settings: SupervisorSettings,
        committers: Mapping[OperatorName, Committer] | Committers,
        gang: Gang,
        clock: Clock,
        transport: Transport,
        background: Background,
        store: Store,
        journal: Journal | None = None,
        *,
        token: str | None = None,
        attempt_background: Callable[[], AttemptBackground] | None = None,
    ) -> None:
        """`attempt_background` makes the background of each attempt; without it all of them share `background`.

        `token` tells this driver's files from those of others; a random one unless a test wants to know it."""
        self._plan = plan
        self._settings = settings
        if not isinstance(committers, Committers):
            committers = Committers(committers, clock, sweep_wait_ms=settings.claim_ms_max)
        self._committers = committers
        self._gang = gang
        self._clock = clock
        self._transport = transport
        self._attempt_background = attempt_background or (lambda: _Shared(background))
        self._store = store
        self._journal = journal
        self._token = token or secrets.token_hex(16)
        self._has_owned = False
        self.timers = Timers(clock)
        self.phase = Phase.CLAIMING
        self.error: Exception | None = None
        self.coordinator: Coordinator | None = None
        self.restarts = 0
        self._history: tuple[AttemptRecord, ...] = ()
        self._requests: list[_Request] = []
        self._failures_at_ms: tuple[int, ...] = ()
        self._attempt: _Attempt | None = None
        self._progress_at_ms: int | None = None
        """Start of the last attempt in which a checkpoint completed."""
        self._heard_at_ms: dict[WorkerId, int] = {}
        self._repeated = ""
        """The text of the last failure, if no checkpoint has completed since."""
        self._repeats = 0
        self._warned_ms: dict[WorkerId, int] = {}
        """For how long a worker that is in one call had been in it when that was logged last."""
        self._left_out: tuple[LeftOut, ...] = LateRows(plan.name, clock), SkippedInput(plan.name, clock)

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
        self._attempt = attempt = _Attempt(self._attempt_background(), AttemptStore(self._store), self._clock.now_ms())
        store, committers, token, has_owned = attempt.store, self._committers, self._token, self._has_owned
        shape, options = self._plan.shape(), self._settings.restore

        def work() -> Claimed:
            claimed = take_over(
                store,
                shape,
                token=token,
                has_owned=has_owned,
                has_committing_sinks=bool(committers),
                options=options,
            )
            committers.admit(claimed.generation)
            if claimed.recommit is None:
                committers.sweep(claimed.generation)
            return claimed

        attempt.background.submit(work, lambda claimed: self._on_claimed(attempt, claimed))
        self._watch_claim(attempt)

    def _watch_claim(self, attempt: _Attempt) -> None:
        """Look every now and then whether the takeover has come further."""
        limit_ms = self._settings.claim_ms_max
        returned, since_ms = attempt.store.returned, self._clock.now_ms()

        def look() -> None:
            nonlocal returned, since_ms
            if self._attempt is not attempt or self.phase is not Phase.CLAIMING:
                return
            now = self._clock.now_ms()
            if attempt.store.returned != returned:
                returned, since_ms = attempt.store.returned, now
            if now - since_ms < limit_ms:
                self.timers.after(max(1, limit_ms // 4), look)
                return
            cause = self._committers.under_way(limit_ms // 2) or "the store does not answer"
            told = f"the takeover of the checkpoint directory made no progress for {limit_ms / 1000:g} s: {cause}"
            self._failed(PenstockError(told))

        self.timers.after(max(1, limit_ms // 4), look)

    def _on_claimed(self, attempt: _Attempt, claimed: Claimed | Exception) -> None:
        if self.has_ended or self._attempt is not attempt:
            return
        if isinstance(claimed, RestoreError | FencedError):
            # Trying again cannot help: what is on disk, or somebody else, must change first.
            self._give_up(claimed)
            return
        if isinstance(claimed, StorageError):
            # Not a word about the checkpoints: those may all be well.
            text = f"the checkpoint directory could not be read or written while it was taken over: {claimed}"
            claimed = StorageError(text)
        if isinstance(claimed, Exception):
            self._failed(claimed)
            return
        self._has_owned = True
        self._log_start(claimed)
        self.phase = Phase.RUNNING
        self.coordinator = Coordinator(
            self._plan,
            claimed,
            self._settings.policy,
            self._committers,
            self._clock,
            self._transport,
            attempt.background,
            attempt.store,
            self.timers,
            self._on_ending,
            self._journal,
        )
        now = self._clock.now_ms()
        first_word_by = now + self._settings.start_ms_max - self._settings.silence_ms_max
        self._heard_at_ms = {WorkerId(worker): first_word_by for worker in range(self._plan.workers)}
        self._warned_ms = {}
        for left_out in self._left_out:
            left_out.begin_attempt()
        self._gang.launch(claimed.generation, self._plan, claimed.manifest, claimed.reservation)
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
            for left_out in self._left_out:
                left_out.heard(frame)
        if isinstance(frame, FailedFrame):
            self._on_worker_failed(frame)
            return
        coordinator.deliver(frame)

    def _on_worker_failed(self, frame: FailedFrame) -> None:
        error = error_of(frame)
        if is_final(type(error)):
            self._give_up(error)
        else:
            self._failed(error)

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
                # Its store stays open: the last retirement is under way.
                self._end_coordinator()
                self.phase = Phase.FINISHED
                for left_out in self._left_out:
                    left_out.end()
                self._decline_requests("the pipeline has finished")
            case StopFenced(reason):
                self._give_up(FencedError(reason))
            case FailJob(reason):
                self._failed(JobFailed(reason))
            case _:
                assert_never(ending)

    # --- requests of the user ---

    def request(self, kind: RequestKind, answer: Callable[[RequestResult], None]) -> None:
        """Ask for a checkpoint, a savepoint or a drain. One that comes between two attempts waits for the next one.

        It is answered in any case: an attempt that fails takes its requests with it, and says so.
        """
        if self.has_ended:
            answer(RequestDeclined(DeclineReason.DRAINED, f"the pipeline has {self.phase.value}"))
            return
        request = _Request(kind, answer)
        self._requests.append(request)
        self._pass_on_requests()

    def _pass_on_requests(self) -> None:
        if self.coordinator is None or self.phase is not Phase.RUNNING:
            return
        for request in [request for request in self._requests if not request.is_passed_on]:
            request.is_passed_on = True
            self.coordinator.request(request.kind, self._answering(request))

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
        now, policy, progress = self._clock.now_ms(), self._settings.restart, self._progress_at_ms
        self.error = error
        self._failures_at_ms = (*counted(self._failures_at_ms, policy, now, progress), now)
        self._repeats = self._repeats + 1 if is_repeatable(error) and str(error) == self._repeated else 1
        self._repeated = str(error)
        decision = decide_restart(self._failures_at_ms, policy, now, progress, self._repeats)
        match decision:
            case GiveUp(reason):
                self._give_up(_given_up(error, reason))
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
        self._end_coordinator()
        if self._attempt is not None:
            self._attempt.close()
            self._attempt = None

    def _end_coordinator(self) -> None:
        if self.coordinator is None or self._attempt is None:
            return
        self._history = self.history
        coordinator, self.coordinator = self.coordinator, None
        # Without an interval nobody has asked for checkpoints: that none completed says nothing.
        if coordinator.state.newest > coordinator.state.restored or self._settings.policy.interval_ms is None:
            self._progress_at_ms = self._attempt.started_at_ms
            self._repeated = ""
        coordinator.stop()
        for worker in range(self._plan.workers):
            self._transport.send(WorkerId(worker), StopFrame(coordinator.generation))
        self._gang.cancel(coordinator.generation)


def _given_up(error: Exception, reason: str) -> Exception:
    """What the pipeline ends with. An error of the user's own code or data is raised as it is."""
    if isinstance(error, UserCodeError | DataError):
        error.add_note(f"The pipeline gave up: {reason}.")
        return error
    failure = JobFailed(f"the pipeline gave up: {reason}. The last one: {error}")
    failure.__cause__ = error
    return failure
