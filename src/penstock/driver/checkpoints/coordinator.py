"""The coordinator of one generation: executes what `protocol.coordinator` decides, on the ports of the driver.

Single-threaded like a worker: frames, timers and results of background work come in through its mailbox. Every
order that touches the store or a sink runs in the background and is answered with the event that the protocol
expects for it; a failure is reported as one, never swallowed.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from typing import TypeAlias, assert_never

from penstock.driver.attempts.takeover import Ownership
from penstock.driver.checkpoints.committers import Committers, is_permanent
from penstock.driver.checkpoints.pruning import Pruner
from penstock.driver.observation.checkpoint_history import COMMIT, MANIFEST
from penstock.driver.reminders import Reminders
from penstock.errors import PenstockError, ProtocolViolation, StorageError
from penstock.graph.physical import PhysicalPlan
from penstock.ids import CheckpointId, WorkerId
from penstock.mailbox.frames import (
    AcknowledgeFrame,
    CompletedFrame,
    DeclineFrame,
    EndedFrame,
    Frame,
    ReadyFrame,
    TriggerFrame,
)
from penstock.mailbox.journal import Journal, Story
from penstock.mailbox.ports import Background, Clock, Transport
from penstock.mailbox.timers import Timers
from penstock.protocol.commit import CommitPermit
from penstock.protocol.coordinator import machine
from penstock.protocol.coordinator.events import (
    Acknowledged,
    Action,
    AllReady,
    AnnounceCompleted,
    AnswerRequest,
    CancelRequested,
    CheckpointRequested,
    Commit,
    CommitFailed,
    Committed,
    Declined,
    Event,
    FailJob,
    Finish,
    IdsReserved,
    InputEnded,
    ManifestFailed,
    ManifestWritten,
    OutcomeFound,
    OwnershipLost,
    Prune,
    Refused,
    RequestResult,
    ReservationFailed,
    ReservationLost,
    ReserveIds,
    SendBarrier,
    StopFenced,
    Ticked,
    TombstoneFailed,
    TombstoneWritten,
    WakeAt,
    WriteManifest,
    WriteTombstone,
)
from penstock.protocol.coordinator.state import Policy, Request, RequestId, RequestKind, State
from penstock.protocol.history import CheckpointRecord
from penstock.protocol.manifest import Manifest
from penstock.protocol.manifest.codec import (
    decode_manifest_or_tombstone,
    decode_reservation,
    encode_manifest,
    encode_reservation,
    encode_tombstone,
)
from penstock.protocol.ownership import Outcome, Reservation, Tombstone
from penstock.protocol.under_way import Hindrance, checkpoints_under_way, hindrance
from penstock.storage import paths
from penstock.storage.directory import Directory, create_or_read, read_if_there
from penstock.storage.port import Store

_log = logging.getLogger("penstock")

SLOW_CALL_MS = 5_000
"""A call of a store or committer that has not returned for this long is worth a word."""

Ending: TypeAlias = FailJob | StopFenced | Finish


class Coordinator:
    """The coordinator of one generation. `ended` is told, once, how it came to its end."""

    def __init__(
        self,
        plan: PhysicalPlan,
        ownership: Ownership,
        policy: Policy,
        committers: Committers,
        clock: Clock,
        transport: Transport,
        background: Background,
        store: Store,
        timers: Timers,
        ended: Callable[[Ending], None],
        journal: Journal | None = None,
        checkpoint_ended: Callable[[CheckpointRecord, Manifest | None], None] = lambda record, manifest: None,
        story: Story | None = None,
        part_done: Callable[[CheckpointId, str, int], None] = lambda checkpoint, part, took_ms: None,
    ) -> None:
        self._plan = plan
        self.generation = ownership.generation
        self._committers = committers
        self._clock = clock
        self._transport = transport
        self._background = background
        self._store = store
        self._licence = ownership.reservation
        self._directory = Directory(store)
        self._pruner = Pruner(store, self._directory, background, timers)
        self._pruner.sweep(ownership.first)
        self._timers = timers
        self._ended = ended
        self._journal = journal
        self._story = story or Story(clock)
        self._checkpoint_ended = checkpoint_ended
        self._part_done = part_done
        self._begun_at_ms: dict[tuple[CheckpointId, str], int] = {}
        """When the driver began its parts of checkpoints; of one that is tried again, the first time."""
        self._manifests: dict[CheckpointId, Manifest] = {}
        """Of the checkpoints that are not over, as far as they are written."""
        self._ready: set[WorkerId] = set()
        self._answers: dict[RequestId, Callable[[RequestResult], None]] = {}
        self._request_count = 0
        self.refusals = 0
        """Acknowledgements and the like that counted for nothing (I12)."""
        self._is_over = False
        self._reminders = Reminders()
        self._state, actions = machine.start(
            policy,
            ownership.generation,
            plan.shape(),
            frozenset(plan.subtasks),
            ownership.first,
            restored=ownership.manifest.checkpoint if ownership.manifest else CheckpointId(0),
            recommit=ownership.recommit,
            token=ownership.token,
            batch_offset=ownership.manifest.batch_offset if ownership.manifest else 0,
            older=ownership.older,
            now_ms=clock.now_ms(),
        )
        self._execute(actions)

    @property
    def state(self) -> State:
        return self._state

    @property
    def history(self) -> tuple[CheckpointRecord, ...]:
        return self._state.history

    @property
    def checkpoints_under_way(self) -> tuple[CheckpointRecord, ...]:
        return checkpoints_under_way(self._state, self._clock.now_ms())

    @property
    def held_up(self) -> str:
        """The store or sink that holds up checkpoints, in a sentence; empty if none does. For any thread."""
        now = self._clock.now_ms()
        found = hindrance(self._state, now, SLOW_CALL_MS)
        return "" if found is None else _told(found, now)

    def look(self) -> None:
        """Say so if the store or a sink holds up checkpoints: at once, and again when that has lasted twice as long."""
        now = self._clock.now_ms()
        found = hindrance(self._state, now, SLOW_CALL_MS)
        if found is None:
            self._reminders.forget_all()
        elif self._reminders.is_due((found.what, found.since_ms), now - found.since_ms):
            _log.warning("pipeline %s: %s", self._plan.name, _told(found, now))

    # --- what is asked and heard ---

    def request(self, kind: RequestKind, answer: Callable[[RequestResult], None]) -> None:
        """Ask for a checkpoint now; `answer` is called in the mailbox when it is known what became of it."""
        self._request_count += 1
        request = Request(RequestId(self._request_count), kind)
        self._answers[request.id] = answer
        self._feed(CheckpointRequested(request, self._clock.now_ms()))

    def cancel(self, checkpoint: CheckpointId | None = None) -> None:
        """Give up the checkpoint in progress."""
        self._feed(CancelRequested(checkpoint, self._clock.now_ms()))

    def deliver(self, frame: Frame) -> None:
        """Take one frame. What belongs to another generation changes nothing (I6)."""
        if frame.generation != self.generation:
            self.refusals += 1
            return
        now = self._clock.now_ms()
        match frame:
            case AcknowledgeFrame(generation, checkpoint, report):
                self._feed(Acknowledged(checkpoint, generation, report, now))
            case DeclineFrame(generation, checkpoint, subtask, reason, detail):
                self._feed(Declined(checkpoint, generation, subtask, reason, detail, now))
            case EndedFrame(_, subtask):
                self._feed(InputEnded(subtask, now))
            case ReadyFrame(_, worker):
                self._on_ready(worker)
            case _:
                # Signs of life and failures are the supervisor's business.
                pass

    def _on_ready(self, worker: WorkerId) -> None:
        self._ready.add(worker)
        if len(self._ready) == self._plan.workers:
            self._feed(AllReady(self._clock.now_ms()))

    def stop(self) -> None:
        """Decide nothing more; what the background still brings is ignored."""
        self._is_over = True
        self._pruner.stop()

    # --- the machine ---

    def _feed(self, event: Event) -> None:
        if self._is_over:
            return
        before = self._state.history
        self._note_parts(event)
        try:
            self._state, actions = machine.step(self._state, event)
        except ProtocolViolation as error:
            self._story.refused("coordinator", event, error)
            raise
        self._story.note("coordinator", event, actions)
        if self._state.history is not before:
            # By id: to compare whole records takes two hundred times as long, a millisecond of every checkpoint.
            known = {record.checkpoint for record in before}
            for record in self._state.history:
                if record.checkpoint not in known:
                    self._begun_at_ms.pop((record.checkpoint, MANIFEST), None)
                    self._log_attempt(record)
                    self._checkpoint_ended(record, self._manifests.pop(record.checkpoint, None))
        if self._journal is not None:
            self._journal("coordinator", event, actions)
        self._execute(actions)
        if isinstance(event, TombstoneFailed | ReservationFailed | CommitFailed):
            self.look()

    def _note_parts(self, event: Event) -> None:
        match event:
            case ManifestWritten(checkpoint):
                self._end_part(checkpoint, MANIFEST)
            case Committed(checkpoint):
                self._end_part(checkpoint, COMMIT)
            case _:
                pass

    def _begin_part(self, checkpoint: CheckpointId, part: str) -> None:
        self._begun_at_ms.setdefault((checkpoint, part), self._clock.now_ms())

    def _end_part(self, checkpoint: CheckpointId, part: str) -> None:
        begun_at_ms = self._begun_at_ms.pop((checkpoint, part), None)
        if begun_at_ms is not None:
            self._part_done(checkpoint, part, self._clock.now_ms() - begun_at_ms)

    def _log_attempt(self, record: CheckpointRecord) -> None:
        what = f"pipeline {self._plan.name}, generation {self.generation}: checkpoint {record.checkpoint}"
        if record.reason is not None:
            why = f"{record.reason.value} ({record.detail})"
            _log.warning("%s declined after %d ms: %s", what, record.duration_ms, why)
            return
        kind = "unaligned" if record.is_unaligned else "aligned"
        sizes = f"{record.state_bytes} bytes of state, {record.inflight_bytes} in flight"
        _log.info("%s completed in %d ms, %s, %s", what, record.duration_ms, kind, sizes)

    def _execute(self, actions: tuple[Action, ...]) -> None:
        for action in actions:
            self._execute_one(action)

    def _execute_one(self, action: Action) -> None:
        match action:
            case SendBarrier(barrier):
                self._tell_all(TriggerFrame(self.generation, barrier))
            case AnnounceCompleted(checkpoint):
                self._tell_all(CompletedFrame(self.generation, checkpoint))
            case ReserveIds(reservation):
                self._background.submit(lambda: self._reserve(reservation), self._answered)
            case WriteManifest(manifest):
                self._begin_part(manifest.checkpoint, MANIFEST)
                dated = self._manifests[manifest.checkpoint] = self._dated(manifest)
                self._background.submit(lambda: self._write_manifest(dated), self._answered)
            case WriteTombstone(tombstone):
                self._background.submit(lambda: self._tombstone(tombstone), self._answered)
            case Commit(permit):
                self._begin_part(permit.checkpoint, COMMIT)
                self._background.submit(lambda: self._commit(permit), self._answered)
            case Prune(bound):
                self._pruner.ask(bound)
            case AnswerRequest(request, result):
                self._answers.pop(request)(result)
            case Refused(what, why):
                self.refusals += 1
                _log.debug("pipeline %s: %s refused: %s", self._plan.name, what, why)
            case WakeAt(at_ms):
                delay_ms = max(0, at_ms - self._clock.now_ms())
                self._timers.after(delay_ms, lambda: self._feed(Ticked(self._clock.now_ms())))
            case Finish():
                self._pruner.finish()
                self._ended(action)
            case FailJob(reason):
                self._ended(replace(action, reason=self._with_calls_under_way(reason)))
            case StopFenced():
                self._ended(action)
            case _:
                assert_never(action)

    def _dated(self, manifest: Manifest) -> Manifest:
        """With the times that people know: inside, everything goes by this process's monotonic clock."""
        since_1970_ms = self._clock.wall_ms() - self._clock.now_ms()
        return replace(
            manifest,
            triggered_at_ms=manifest.triggered_at_ms + since_1970_ms,
            completed_at_ms=manifest.completed_at_ms + since_1970_ms,
        )

    def _with_calls_under_way(self, reason: str) -> str:
        """With the sinks that hang, if there are any: the protocol knows of none but that there was no answer."""
        stuck = self._committers.under_way(min(SLOW_CALL_MS, self._state.policy.commit_timeout_ms))
        return reason if stuck is None else f"{reason} ({stuck})"

    def _tell_all(self, frame: Frame) -> None:
        for worker in range(self._plan.workers):
            self._transport.send(WorkerId(worker), frame)

    def _answered(self, outcome: Callable[[int], Event] | Exception) -> None:
        if isinstance(outcome, Exception):
            # The work below turns every failure of store or sink into an event; anything else is our own bug.
            raise outcome
        self._feed(outcome(self._clock.now_ms()))

    # --- in the background: facts, to which the mailbox adds the time ---

    def _reserve(self, reservation: Reservation) -> Callable[[int], Event]:
        wanted = encode_reservation(reservation)
        try:
            if self._is_revoked():
                return OwnershipLost
            found = create_or_read(self._store, paths.reserved(reservation.checkpoint), wanted)
            is_own = found == wanted
            if found is not None:
                # One that is damaged does not say whose it is.
                decode_reservation(found)
            if self._is_revoked():
                return OwnershipLost
        except PenstockError as error:
            text = str(error)
            return lambda now: ReservationFailed(reservation, text, now)
        return lambda now: IdsReserved(reservation, now) if is_own else ReservationLost(reservation, now)

    def _write_manifest(self, manifest: Manifest) -> Callable[[int], Event]:
        checkpoint = manifest.checkpoint
        try:
            if self._is_revoked():
                return OwnershipLost
            found = self._record_outcome(checkpoint, encode_manifest(manifest))
            if self._is_revoked():
                return OwnershipLost
        except PenstockError as error:
            text = str(error)
            return lambda now: ManifestFailed(checkpoint, text, now)
        if found is None:
            self._directory.remember(manifest)
            return lambda now: ManifestWritten(checkpoint, now)
        return lambda now: OutcomeFound(found, now)

    def _tombstone(self, tombstone: Tombstone) -> Callable[[int], Event]:
        checkpoint = tombstone.checkpoint
        try:
            found = self._record_outcome(checkpoint, encode_tombstone(tombstone))
            if self._is_revoked():
                return OwnershipLost
        except PenstockError as error:
            text = str(error)
            return lambda now: TombstoneFailed(checkpoint, text, now)
        return lambda now: TombstoneWritten(checkpoint, now) if found is None else OutcomeFound(found, now)

    def _is_revoked(self) -> bool:
        """Whether a newer generation has deleted our licence (`ownership`).

        Asked before a creation, so that nothing is created in vain, and after it, before anybody acts on it.
        """
        found = read_if_there(self._store, paths.reserved(self._licence.checkpoint))
        return found is None or decode_reservation(found) != self._licence

    def _record_outcome(self, checkpoint: CheckpointId, outcome: bytes) -> Outcome | None:
        """Give a checkpoint its outcome: None if it is this one, or the other that it has."""
        found = create_or_read(self._store, paths.manifest(checkpoint), outcome)
        if found == outcome:
            return None
        if found is None:
            raise StorageError(
                f"the manifest or tombstone of checkpoint {checkpoint} has disappeared "
                "from the store: files below the checkpoint directory must not be "
                "deleted by hand"
            )
        decoded = decode_manifest_or_tombstone(found)
        return Outcome(checkpoint, decoded.generation, isinstance(decoded, Tombstone))

    def _commit(self, permit: CommitPermit) -> Callable[[int], Event]:
        checkpoint = permit.checkpoint
        try:
            self._committers.publish(permit)
            create_or_read(self._store, paths.committed(checkpoint), b"{}")
        except Exception as error:
            # Committers are user code: whatever they raise means that this commit must be tried again.
            text, permanent = f"{type(error).__name__}: {error}", is_permanent(error)
            return lambda now: CommitFailed(checkpoint, text, now, permanent)
        return lambda now: Committed(checkpoint, now)


def _told(found: Hindrance, now_ms: int) -> str:
    times = "once" if found.failures == 1 else f"{found.failures} times"
    seconds = f"{(now_ms - found.since_ms) / 1000:.0f} s"
    how_often = f"tried {times} in {seconds}, retrying" if found.failures else f"no answer for {seconds}"
    limit = f"; after {found.limit_ms / 1000:g} s the pipeline restarts ({found.setting})" if found.limit_ms else ""
    return f"{found.what} ({how_often}): {found.error.rstrip('.')}. No checkpoint completes before that succeeds{limit}"
