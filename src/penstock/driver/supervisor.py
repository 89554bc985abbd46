"""The supervisor: keeps a pipeline running, one attempt after the other, until it is finished or given up.

An attempt is one generation: take the directory over, start the workers from the newest valid checkpoint,
coordinate, and when anything fails, stop all of it and begin the next one. Whatever failed, the way is the same.
Failures are noticed by the worker group (Spark says that a task died), by a worker's own word, and by silence.

Code of users and of stores may hang. Each attempt therefore has its own background and its own view of the store,
closed when it ends (`AttemptStore`): whatever hangs, the next takeover does not wait behind it. A takeover
that is silent for `takeover_timeout_ms` is a failure of the attempt like any other. Of a takeover that was given up,
one call may still take effect. That does no harm: a reservation that it creates late is either seen by the next
takeover, or has the same id, generation and token as the next one's, and then it is the same file; a tombstone is
one that the next takeover creates too.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable, Mapping
from typing import Protocol, assert_never

from penstock.connectors.sink import Committer
from penstock.driver.attempts.attempt import Attempt, Shared
from penstock.driver.attempts.attempt_store import AttemptStore
from penstock.driver.attempts.liveness import SignsOfLife
from penstock.driver.attempts.phases import HoldUp, Phase, Progress, Startup
from penstock.driver.attempts.slowest_sources import SlowestSources
from penstock.driver.attempts.takeover import Ownership, take_over
from penstock.driver.checkpoints.committers import Committers
from penstock.driver.checkpoints.coordinator import SLOW_CALL_MS, Coordinator, Ending
from penstock.driver.observation.listeners import JobEvent
from penstock.driver.observation.observations import Observations, dated
from penstock.driver.reminders import Reminders
from penstock.driver.requests import Requests
from penstock.driver.settings import SupervisorSettings
from penstock.errors import (
    FencedError,
    JobFailed,
    NoAnswer,
    NoFreeSlots,
    PenstockError,
    RestoreError,
    StorageError,
    is_final,
    repetition_of,
)
from penstock.graph.physical import PhysicalPlan
from penstock.ids import COORDINATOR, NO_CHECKPOINT, CheckpointId, Generation, OperatorName, WorkerId
from penstock.mailbox.failures import error_of, given_up, is_defect
from penstock.mailbox.frames import BusyFrame, FailedFrame, Frame, HeartbeatFrame, HelloFrame, StopFrame
from penstock.mailbox.journal import Journal, Story, told
from penstock.mailbox.ports import AttemptBackground, Background, Clock, Transport
from penstock.mailbox.timers import Timers
from penstock.protocol.coordinator.events import FailJob, Finish, RequestDeclined, RequestResult, StopFenced
from penstock.protocol.coordinator.state import RequestKind
from penstock.protocol.declines import DeclineReason
from penstock.protocol.history import CheckpointRecord, ends_with_savepoint
from penstock.protocol.manifest import Manifest
from penstock.protocol.ownership import Reservation
from penstock.protocol.restart import GiveUp, RestartAfter, counted, decide_restart
from penstock.storage.port import Store

_log = logging.getLogger("penstock")


class WorkerGroup(Protocol):
    """Starts and ends the workers of an attempt: a Spark job, or the simulator."""

    def launch(
        self, generation: Generation, plan: PhysicalPlan, manifest: Manifest | None, reservation: Reservation
    ) -> None:
        """Start all workers. Returns at once; what goes wrong is reported to `Supervisor.on_workers_lost`.

        `reservation` is the file by which a worker knows the directory of this driver (`worker.shared`).
        """
        ...

    def cancel(self, generation: Generation) -> None:
        """End all workers of the attempt, dead or alive. Returns at once."""
        ...


class Supervisor:
    """Runs one pipeline. Driven from outside like a worker: `deliver`, `timers`, and reports of the worker group."""

    def __init__(
        self,
        plan: PhysicalPlan,
        settings: SupervisorSettings,
        committers: Mapping[OperatorName, Committer] | Committers,
        worker_group: WorkerGroup,
        clock: Clock,
        transport: Transport,
        background: Background,
        store: Store,
        journal: Journal | None = None,
        *,
        token: str | None = None,
        attempt_background: Callable[[], AttemptBackground] | None = None,
        tell: Callable[[JobEvent], None] = lambda event: None,
    ) -> None:
        """`attempt_background` makes the background of each attempt; without it all of them share `background`.

        `tell` is called with each event that listeners hear of, and returns at once.

        `token` tells this driver's files from those of others; a random one unless a test wants to know it."""
        self.plan = self._plan = plan
        self._settings = settings
        if not isinstance(committers, Committers):
            committers = Committers(committers, clock, discard_wait_ms=settings.takeover_timeout_ms)
        self._committers = committers
        self._worker_group = worker_group
        self._clock = clock
        self._transport = transport
        self._attempt_background = attempt_background or (lambda: Shared(background))
        self._store = store
        self._journal = journal
        self._story = Story(clock)
        self._token = token or secrets.token_hex(16)
        self._has_owned = False
        self.timers = Timers(clock)
        self._stage = Phase.CLAIMING
        """The phase while there is no coordinator."""
        self.error: Exception | None = None
        self.coordinator: Coordinator | None = None
        self.restarts = 0
        self._history: tuple[CheckpointRecord, ...] = ()
        self._requests = Requests()
        self._failures_at_ms: tuple[int, ...] = ()
        self._attempt: Attempt | None = None
        self._progress_at_ms: int | None = None
        """Start of the last attempt in which a checkpoint completed."""
        self._workers = [WorkerId(worker) for worker in range(plan.workers)]
        self._begin_workers(restores=False)
        self._has_run = False
        """Whether all workers of any attempt were up."""
        self._newest: CheckpointId | None = None
        """None before the directory was read."""
        self._repeated: str | None = None
        """What the last failure repeats if it comes again; None if a checkpoint has completed since."""
        self._repeats = 0
        self.observations = Observations(plan, clock, tell)

    @property
    def history(self) -> tuple[CheckpointRecord, ...]:
        """The last checkpoints of all attempts: a restart must not hide why it happened. Newest last."""
        current = self.coordinator.history if self.coordinator is not None else ()
        return (*self._history, *current)[-self._settings.policy.history_max :]

    @property
    def checkpoints(self) -> tuple[CheckpointRecord, ...]:
        """The history and the attempts in progress, with the times that people know. Newest last."""
        ended = (dated(each, self._clock) for each in self.history)
        return tuple(sorted((*ended, *self.checkpoints_under_way), key=lambda record: record.checkpoint))

    @property
    def checkpoints_under_way(self) -> tuple[CheckpointRecord, ...]:
        """Those in progress, with the times that people know. For any thread."""
        coordinator = self.coordinator
        return tuple(dated(each, self._clock) for each in coordinator.checkpoints_under_way) if coordinator else ()

    @property
    def phase(self) -> Phase:
        return self.progress.phase

    @property
    def progress(self) -> Progress:
        """The phase, and how far it has come; of one that runs, what holds up its checkpoints. For any thread."""
        coordinator, startup = self.coordinator, self._startup
        if coordinator is None:
            return Progress(self._stage)
        if not startup.is_complete:
            return startup.progress
        phase = Phase.STOPPING if self._requests.has_drain else Phase.RUNNING
        return Progress(phase, self._committers.under_way(SLOW_CALL_MS) or coordinator.held_up)

    @property
    def has_ended(self) -> bool:
        return self.coordinator is None and self._stage.is_end

    # --- attempts ---

    def start(self) -> None:
        """Begin an attempt: own the directory first, then start the workers."""
        if self.has_ended:
            return
        self._stage = Phase.CLAIMING
        self.observations.attempt_starts()
        self._attempt = attempt = Attempt(self._attempt_background(), AttemptStore(self._store), self._clock.now_ms())
        store, committers, token, has_owned = attempt.store, self._committers, self._token, self._has_owned
        shape, former_names, options = self._plan.shape(), self._plan.former_names(), self._settings.restore

        def work() -> Ownership:
            ownership = take_over(
                store,
                shape,
                token=token,
                has_owned=has_owned,
                has_committing_sinks=bool(committers),
                options=options,
                former_names=former_names,
            )
            committers.admit(ownership.generation)
            if ownership.recommit is None:
                committers.discard_uncommitted(ownership.generation)
            return ownership

        attempt.background.submit(work, lambda ownership: self._on_taken_over(attempt, ownership))
        self._watch_takeover(attempt)

    def _watch_takeover(self, attempt: Attempt) -> None:
        """Look every now and then whether the takeover has come further."""
        limit_ms = self._settings.takeover_timeout_ms
        returned, since_ms = attempt.store.returned, self._clock.now_ms()

        def look() -> None:
            nonlocal returned, since_ms
            if self._attempt is not attempt or self.coordinator is not None:
                return
            now = self._clock.now_ms()
            if attempt.store.returned != returned:
                returned, since_ms = attempt.store.returned, now
            if now - since_ms < limit_ms:
                self.timers.after(max(1, limit_ms // 4), look)
                return
            told = f"the takeover of the checkpoint directory made no progress for {limit_ms / 1000:g} s"
            hanging = self._committers.no_answer(told, limit_ms // 2)
            self._failed(hanging or PenstockError(f"{told}: the store does not answer"))

        self.timers.after(max(1, limit_ms // 4), look)

    def _on_taken_over(self, attempt: Attempt, ownership: Ownership | Exception) -> None:
        if self.has_ended or self._attempt is not attempt:
            return
        if isinstance(ownership, RestoreError | FencedError):
            # Trying again cannot help: what is on disk, or somebody else, must change first.
            self._give_up(ownership)
            return
        if isinstance(ownership, StorageError):
            # Not a word about the checkpoints: those may all be well.
            text = f"the checkpoint directory could not be read or written while it was taken over: {ownership}"
            ownership = StorageError(text)
        if isinstance(ownership, Exception):
            self._failed(ownership)
            return
        self._has_owned = True
        self._log_start(ownership)
        self._newest = NO_CHECKPOINT if ownership.manifest is None else ownership.manifest.checkpoint
        self._begin_workers(restores=ownership.manifest is not None)
        self.observations.begin_attempt(ownership.generation, ownership.manifest)
        self.coordinator = Coordinator(
            self._plan,
            ownership,
            self._settings.policy,
            self._committers,
            self._clock,
            self._transport,
            attempt.background,
            attempt.store,
            self.timers,
            self._on_ending,
            self._journal,
            self.observations.checkpoint_ended,
            self._story,
            self.observations.part_done,
        )
        self._worker_group.launch(ownership.generation, self._plan, ownership.manifest, ownership.reservation)
        self._requests.pass_on(self.coordinator)
        self._watch(ownership.generation)

    def _begin_workers(self, *, restores: bool) -> None:
        settings = self._settings
        self._startup = Startup(len(self._workers), restores=restores)
        self._signs = SignsOfLife(self._workers, self._clock, settings.start_timeout_ms, settings.worker_silence_ms)
        self._reminders = Reminders(settings.worker_silence_ms)
        self._slowest = SlowestSources(self._plan.workers, settings.drift_interval_ms, self.timers, self._transport)

    def _log_start(self, ownership: Ownership) -> None:
        for skipped in ownership.skipped:
            what = f"checkpoint {skipped.checkpoint} passed over: {skipped.reason}"
            _log.warning("pipeline %s: %s", self._plan.name, what)
        start = "from nothing" if ownership.manifest is None else f"from checkpoint {ownership.manifest.checkpoint}"
        _log.info("pipeline %s: generation %d starts %s", self._plan.name, ownership.generation, start)

    def _watch(self, generation: Generation) -> None:
        """Look every now and then whether every worker was heard of."""
        interval_ms = max(1, self._settings.worker_silence_ms // 4)
        due_ms = self._clock.now_ms() + interval_ms

        def look() -> None:
            if self.coordinator is None or self.coordinator.generation != generation:
                return
            self._signs.excuse(self._clock.now_ms() - due_ms)
            for worker in self._workers:
                self._transport.send(worker, HeartbeatFrame(generation, COORDINATOR))
            if silent := self._signs.silent:
                self._failed(self._silence_of(silent))
                return
            self.coordinator.look()
            self._warn_of_hanging_sinks()
            self._watch(generation)

        self.timers.after(interval_ms, look)

    def _silence_of(self, workers: list[WorkerId]) -> PenstockError:
        names = ", ".join(str(worker) for worker in workers)
        seconds = f"{self._settings.start_timeout_ms / 1000:g} s (start_timeout)"
        if self._startup.hold_up is not None:
            return NoFreeSlots(f"the workers have not started within {seconds}: {self._startup.hold_up.text}")
        if missing := self._startup.missing(workers):
            cure = "Spark has started its task; its process is slow to come up, or cannot reach the driver"
            who = f"worker {missing[0]} has" if len(missing) == 1 else f"workers {', '.join(map(str, missing))} have"
            return PenstockError(f"{who} not come up within {seconds}: {cure}")
        return PenstockError(f"no sign of life from worker {names}: it hangs, or its host cannot be reached")

    def _warn_of_hanging_sinks(self) -> None:
        for sink in self._committers.hanging(self._settings.worker_silence_ms):
            lasted_ms = self._committers.longest_ms(sink)
            if self._reminders.is_due(("sink", sink), lasted_ms):
                told = self._committers.under_way(lasted_ms)
                limit = f"{self._settings.policy.commit_timeout_ms / 1000:g} s (commit_timeout)"
                cure = f"checkpoints wait for it, and the pipeline restarts after {limit}. Give its client a timeout"
                _log.warning("pipeline %s: %s; %s", self._plan.name, told, cure)

    # --- what is heard ---

    def deliver(self, frame: Frame) -> None:
        """Take one frame from a worker."""
        coordinator = self.coordinator
        if coordinator is None or frame.generation != coordinator.generation:
            return
        worker = getattr(frame, "worker", None)
        # One that says hello then waits for the others, and says nothing more until they have all come.
        if worker is not None and not isinstance(frame, HelloFrame):
            self._signs.heard(worker)
        if self._startup.hold_up is not None:
            self.on_workers_held_up(frame.generation, None)
        self._startup.heard(frame)
        self.observations.in_phase(self._startup.progress.phase)
        self._has_run = self._has_run or self._startup.is_complete
        if isinstance(frame, BusyFrame):
            self._on_busy(frame)
            return
        if isinstance(frame, HeartbeatFrame):
            self._reminders.forget(frame.worker)
        self.observations.heard(frame)
        self._slowest.heard(frame)
        if isinstance(frame, FailedFrame):
            self._on_worker_failed(frame)
            return
        coordinator.deliver(frame)

    def _on_worker_failed(self, frame: FailedFrame) -> None:
        self.on_workers_lost(frame.generation, error_of(frame))

    def _on_busy(self, frame: BusyFrame) -> None:
        """The process of a worker lives, and its mailbox is in one call: say so, and again when that has doubled."""
        where = ", ".join(part for part in (frame.doing, frame.line) if part)
        text = f"worker {frame.worker} has been in one call for {frame.busy_ms / 1000:.0f} s: {where}"
        if frame.busy_ms > self._settings.call_timeout_ms:
            cure = "it is stuck. If the call does return in time, raise call_timeout"
            self._failed(NoAnswer(f"{text}: {cure}", f"worker {frame.worker}: {frame.doing}"))
        elif frame.busy_ms >= self._settings.worker_silence_ms and self._reminders.is_due(frame.worker, frame.busy_ms):
            cure = "its other work and all checkpoints wait for that; use smaller batches, or map_async"
            _log.warning("pipeline %s: %s; %s", self._plan.name, text, cure)

    def on_workers_lost(self, generation: Generation, error: Exception) -> None:
        """The worker group reports that an attempt cannot go on."""
        if self.coordinator is None or self.coordinator.generation != generation:
            return
        if isinstance(error, PenstockError) and is_final(type(error)):
            self._give_up(error)
        else:
            self._failed(error)

    def on_workers_held_up(self, generation: Generation, hold_up: HoldUp | None) -> None:
        """The worker group reports that there is no room for its workers; None when there is."""
        if self.coordinator is None or self.coordinator.generation != generation:
            return
        if hold_up is None:
            if self._startup.hold_up is not None:
                # Only now their processes begin to come up.
                self._signs.await_first(self._startup.missing(self._workers))
                self._reminders.forget("hold-up")
        elif self._attempt is not None:
            lasted_ms = self._clock.now_ms() - self._attempt.started_at_ms
            if self._reminders.is_due("hold-up", lasted_ms):
                _log.warning("pipeline %s waits: %s", self._plan.name, hold_up.text)
        self._startup.hold_up = hold_up
        self.observations.in_phase(self._startup.progress.phase)

    def _on_ending(self, ending: Ending) -> None:
        match ending:
            case Finish():
                # Its store stays open: the last pruning is under way.
                self._end_coordinator(Phase.STOPPED if ends_with_savepoint(self.history) else Phase.FINISHED)
                self.observations.ended(None)
                self._requests.decline(f"the pipeline has {self._stage.value}", is_end=True)
            case StopFenced(reason):
                self._give_up(FencedError(reason))
            case FailJob(reason, is_of_commit):
                limit_ms = min(SLOW_CALL_MS, self._settings.policy.commit_timeout_ms)
                hanging = self._committers.no_answer(reason, limit_ms)
                failed = self._committers.failure(reason) if is_of_commit else None
                self._failed(hanging or failed or JobFailed(reason))
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
        self._requests.add(kind, answer)
        if self.coordinator is not None:
            self._requests.pass_on(self.coordinator)

    def stop(self, error: Exception | None = None) -> None:
        """End the pipeline where it is, without another checkpoint; because of `error`, if there is one."""
        if not self.has_ended:
            self._end_attempt(Phase.STOPPED)
            self.observations.ended(error)
            self._requests.decline("the pipeline was stopped", is_end=True)

    # --- endings ---

    def _failed(self, error: Exception) -> None:
        if isinstance(error, NoFreeSlots) and not self._has_run:
            # A pipeline that has run gets its executors back; one that never has would only wait again.
            self._give_up(error)
            return
        self._end_attempt(Phase.WAITING)
        now, policy, progress = self._clock.now_ms(), self._settings.restart, self._progress_at_ms
        self.error = error
        self._failures_at_ms = (*counted(self._failures_at_ms, policy, now, progress), now)
        repetition = repetition_of(error)
        self._repeats = self._repeats + 1 if repetition is not None and repetition == self._repeated else 1
        self._repeated = repetition
        decision = decide_restart(self._failures_at_ms, policy, now, progress, self._repeats)
        match decision:
            case GiveUp(reason):
                self._give_up(given_up(error, reason))
            case RestartAfter(delay_ms):
                self._log_restart(error, delay_ms)
                self.restarts += 1
                self.observations.restarting(error, self.restarts, delay_ms)
                self._requests.decline(f"the pipeline failed and restarts: {error}", is_end=False)
                self.timers.after(delay_ms, self.start)

    def _log_restart(self, error: Exception, delay_ms: int) -> None:
        """One line: what failed, and where it goes on; the rest is for those who look for it."""
        known = {None: "from its newest checkpoint", NO_CHECKPOINT: "from the beginning"}
        start = known.get(self._newest, f"from checkpoint {self._newest}")
        first, *more = str(error).splitlines() or [type(error).__name__]
        _log.warning("pipeline %s failed and restarts in %d ms %s: %s", self._plan.name, delay_ms, start, first)
        if more:
            _log.debug("pipeline %s: the whole of that failure: %s", self._plan.name, error)
        self._log_story(error)

    def _log_story(self, error: Exception) -> None:
        """The last steps before a failure: for everybody if it is a defect of ours, else for those who look for it."""
        if isinstance(error, PenstockError) and error.story:
            level = logging.WARNING if is_defect(error) else logging.DEBUG
            _log.log(level, "pipeline %s: %s", self._plan.name, told(error.story))

    def _give_up(self, error: Exception) -> None:
        _log.error("pipeline %s has failed: %s", self._plan.name, error)
        self._log_story(error)
        self._end_attempt(Phase.FAILED)
        self.error = error
        self.observations.ended(error)
        self._requests.decline(f"the pipeline has failed: {error}", is_end=True)

    def _end_attempt(self, then: Phase) -> None:
        self._end_coordinator(then)
        if self._attempt is not None:
            self._attempt.close()
            self._attempt = None

    def _end_coordinator(self, then: Phase) -> None:
        self._stage = then
        if self.coordinator is None or self._attempt is None:
            return
        self._history = self.history
        coordinator, self.coordinator = self.coordinator, None
        self._newest = coordinator.state.newest
        # Without an interval nobody has asked for checkpoints: that none completed says nothing.
        if coordinator.state.newest > coordinator.state.restored or self._settings.policy.interval_ms is None:
            self._progress_at_ms = self._attempt.started_at_ms
            self._repeated = None
        coordinator.stop()
        self._slowest.close()
        for worker in self._workers:
            self._transport.send(worker, StopFrame(coordinator.generation))
        self._worker_group.cancel(coordinator.generation)
