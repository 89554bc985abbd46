"""The worker: one mailbox that owns the subtasks of one slot, their channels and their state.

Single-threaded and driven from outside: `deliver` hands it a frame, `fire_timers` the time, `work` lets it do
one slice. On Spark a loop around a socket does so, in the simulator a scheduler. It never blocks: what may
block goes to the background port and comes back as a call.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from typing import TypeVar

from penstock.errors import DriverSilent
from penstock.graph.physical import PhysicalPlan
from penstock.ids import COORDINATOR, Generation, SubtaskId, WorkerId
from penstock.mailbox.activity import Activity
from penstock.mailbox.failures import failed_frame
from penstock.mailbox.frames import (
    BarrierFrame,
    BatchFrame,
    BusyFrame,
    CompletedFrame,
    CreditFrame,
    EndFrame,
    Frame,
    HeartbeatFrame,
    MarkerFrame,
    ProfiledFrame,
    ProfileFrame,
    ReadyFrame,
    SlowestFrame,
    StopFrame,
    TriggerFrame,
    WatermarkFrame,
)
from penstock.mailbox.journal import Journal, Story
from penstock.mailbox.notes import SPLITS_MAX, SplitClock, Stack, WorkerNotes
from penstock.mailbox.ports import Background, Clock, Transport
from penstock.mailbox.recovery_stats import combined
from penstock.mailbox.timers import Timers
from penstock.protocol.manifest import Manifest
from penstock.protocol.redistribution import totals_of
from penstock.state.backends import backend_of
from penstock.storage.port import Store
from penstock.worker.host import Host
from penstock.worker.recovery.restore import Restored, restore
from penstock.worker.scheduling.budget import Budget
from penstock.worker.scheduling.slice_budget import SliceBudget
from penstock.worker.services import Services
from penstock.worker.settings import WorkerSettings
from penstock.worker.sources.source_drift import SourceDrift
from penstock.worker.subtask import Subtask

T = TypeVar("T")


class _Guarded:
    """A background whose results come back like any other call into the worker: guarded, and not after its end."""

    def __init__(self, background: Background, call_back: Callable[[Callable[[], None]], None]) -> None:
        self._background = background
        self._call_back = call_back

    def submit(self, work: Callable[[], T], done: Callable[[T | Exception], None]) -> None:
        self._background.submit(work, lambda outcome: self._call_back(lambda: done(outcome)))


_FRESH_MS = 100
"""Age up to which figures count as fresh."""
_SLICES_PER_SOURCE = 8
"""Number of slices after which sources get a turn, even if other work is waiting."""


class _Turns:
    """Subtasks that take turns."""

    def __init__(self) -> None:
        self.subtasks: list[Subtask] = []
        self._turn = 0

    def next(self) -> Subtask | None:
        """The next one that has something to do."""
        count = len(self.subtasks)
        for _ in range(count):
            subtask = self.subtasks[self._turn % count]
            self._turn += 1
            if subtask.can_work:
                return subtask
        return None


class Worker:
    """One worker of the group, for one generation."""

    def __init__(
        self,
        worker: WorkerId,
        plan: PhysicalPlan,
        generation: Generation,
        settings: WorkerSettings,
        *,
        clock: Clock,
        transport: Transport,
        background: Background,
        store: Store,
        manifest: Manifest | None = None,
        journal: Journal | None = None,
        host: Host | None = None,
        activity: Activity | None = None,
    ) -> None:
        self.worker = worker
        self._host = host
        self.generation = generation
        self._plan = plan
        self._manifest = manifest
        self._services = Services(
            generation=generation,
            settings=settings,
            clock=clock,
            transport=transport,
            background=_Guarded(background, self._call_back),
            store=store,
            timers=Timers(clock),
            capture_budget=Budget(settings.inflight_bytes_max),
            recovery_budget=Budget(settings.recovery_bytes_max),
            inline_bytes_max=settings.inline_bytes_max // max(1, len(plan.subtasks)),
            slice_budget=SliceBudget(settings, clock),
            journal=journal,
            state_backend=backend_of(settings.state_backend),
            story=Story(clock),
            activity=activity or Activity(),
        )
        self._drift = SourceDrift(worker, plan, self._services)
        self.subtasks: dict[SubtaskId, Subtask] = {}
        self._order: list[Subtask] = []
        self._sources, self._others = _Turns(), _Turns()
        self._since_source = 0
        """Slices of work since a source had its turn."""
        self._receivers: dict[int, Subtask] = {}
        self._senders: dict[int, Subtask] = {}
        self._restoring = 0
        self._heard_at_ms = clock.now_ms()
        self._beat_at_ms = clock.now_ms()
        self._beat_due_ms = clock.now_ms()
        self.has_stopped = False
        self.failure: BaseException | None = None
        self.has_reported = False
        """Whether the driver was told of the failure."""
        self.frames_fenced = 0
        """Frames of other generations that were dropped (I6)."""

    # --- starting ---

    def start(self) -> None:
        """Open all subtasks and begin to restore them; each works as soon as its own state is back."""
        self._beat_due_ms = self._services.clock.now_ms()
        with_subtasks = self._guard(None, self._open_subtasks)
        if not with_subtasks:
            return
        self._beat()
        self._restoring = len(self._order)
        if not self._order:
            self._ready()
        for subtask in self._order:
            self._begin_restore(subtask)

    def _beat(self) -> None:
        """Give a sign of life, and again after a while."""
        services = self._services
        self._send_beat()
        # For as long as this comes late the mailbox was busy, or asleep: words of the driver may still be waiting.
        self._heard_at_ms += self._beat_at_ms - self._beat_due_ms
        silent_ms = self._beat_at_ms - self._heard_at_ms
        if silent_ms > services.settings.driver_silence_ms:
            # Nobody would commit what we do, and somebody else may have taken over (I6).
            raise DriverSilent(f"no message from the driver for {silent_ms} ms: it has ended, or cannot be reached")
        self._beat_due_ms = self._beat_at_ms + services.settings.heartbeat_ms
        services.timers.after(services.settings.heartbeat_ms, self._beat)

    @property
    def overdue_ms(self) -> int | None:
        """For how long the mailbox has been busy, if it owes a sign of life; else None. For any thread.

        Somebody else then sends `busy_frame` in its place.
        """
        now_ms = self._services.clock.now_ms()
        if self.has_stopped or now_ms - self._beat_at_ms <= self._services.settings.heartbeat_ms:
            return None
        since_ms = self._services.activity.since_ms
        return now_ms - (self._beat_at_ms if since_ms is None else since_ms)

    def busy_frame(self, busy_ms: int, line: str = "") -> BusyFrame:
        """The sign of life of a worker whose mailbox is busy. For any thread."""
        return BusyFrame(self.generation, self.worker, busy_ms, str(self._services.activity), line)

    def _send_beat(self) -> None:
        self._beat_at_ms = self._services.clock.now_ms()
        self._services.transport.send(COORDINATOR, self.heartbeat())

    def heartbeat(self) -> HeartbeatFrame:
        """A sign of life, with the metrics that have changed since the last one."""
        return HeartbeatFrame(
            self.generation,
            self.worker,
            self._services.metrics.update(),
            combined(subtask.recovery() for subtask in self._order) if self._manifest is not None else None,
            self._first_skipped,
            self._notes(),
        )

    def _notes(self) -> WorkerNotes:
        host = self._host
        logs, dropped = host.take_log() if host is not None else ((), 0)
        return WorkerNotes(0 if host is None else host.memory_bytes(), self._slowest_splits(), logs, dropped)

    def _slowest_splits(self) -> tuple[SplitClock, ...]:
        sources = (subtask.chain.source for subtask in self._order)
        clocks = (clock for source in sources if source is not None for clock in source.split_clocks())
        return tuple(heapq.nsmallest(SPLITS_MAX, clocks, key=lambda each: (each.is_idle, each.reached_ms or 0)))

    def _open_subtasks(self) -> None:
        self._restore_totals()
        for name in self._plan.subtasks_of(self.worker):
            subtask = Subtask(name, self._plan, self._services)
            self.subtasks[name] = subtask
            self._order.append(subtask)
            if self._manifest is not None:
                subtask.chain.check_fits(self._manifest)
            (self._others if subtask.chain.source is None else self._sources).subtasks.append(subtask)
            if subtask.chain.source is not None:
                self._drift.add(subtask.chain.source)
            self._receivers.update((channel, subtask) for channel in subtask.inputs)
            self._senders.update((channel, subtask) for channel in subtask.outputs)

    def _restore_totals(self) -> None:
        """Let the counters go on from the checkpoint: they are made together with the subtasks."""
        if self._manifest is not None:
            for (operator, subtask), totals in totals_of(self._manifest, self._plan.parallelism_of_operators).items():
                self._services.metrics.restore(operator, subtask, totals)

    def _begin_restore(self, subtask: Subtask) -> None:
        manifest, plan, store = self._manifest, self._plan, self._services.store

        def done(outcome: Restored | Exception) -> None:
            if isinstance(outcome, Exception):
                self._fail(subtask, outcome)
            else:
                self._guard(subtask, lambda: subtask.begin(outcome, self._on_begun))

        put, reading = subtask.chain.restore, subtask.reading
        self._services.background.submit(lambda: restore(store, manifest, plan, subtask.subtask, put, reading), done)

    def _on_begun(self) -> None:
        self._restoring -= 1
        if self._restoring == 0:
            self._ready()

    def _ready(self) -> None:
        # The driver has heard of the sources of all workers when all are ready.
        self._drift.begin()
        self._services.transport.send(COORDINATOR, ReadyFrame(self.generation, self.worker))

    # --- the mailbox ---

    def deliver(self, frame: Frame) -> None:
        """Take one frame. What belongs to another generation changes nothing (I6)."""
        if frame.generation != self.generation:
            self.frames_fenced += 1
            return
        if self.has_stopped:
            return
        self._guard(self._addressee(frame), lambda: self._dispatch(frame))

    def _addressee(self, frame: Frame) -> Subtask | None:
        if isinstance(frame, BatchFrame | BarrierFrame | WatermarkFrame | MarkerFrame | EndFrame):
            return self._receivers.get(frame.channel)
        return self._senders.get(frame.channel) if isinstance(frame, CreditFrame) else None

    def _dispatch(self, frame: Frame) -> None:
        match frame:
            case BatchFrame(_, channel, batch, cost):
                self._receivers[channel].on_batch(channel, batch, cost)
            case CreditFrame(_, channel, grant, window):
                self._senders[channel].on_credit(channel, grant, window)
            case BarrierFrame(_, channel, barrier):
                self._receivers[channel].on_barrier(channel, barrier)
            case WatermarkFrame(_, channel, watermark):
                self._receivers[channel].on_watermark(channel, watermark)
            case MarkerFrame(_, channel, source, emitted_ms):
                self._receivers[channel].on_marker(channel, source, emitted_ms)
            case EndFrame(_, channel):
                self._receivers[channel].on_end(channel)
            case TriggerFrame(_, barrier):
                # With a checkpoint the figures are fresh; with the last one they are final.
                if barrier.is_drain or self._services.clock.now_ms() - self._beat_at_ms >= _FRESH_MS:
                    self._send_beat()
                for subtask in self._order:
                    subtask.on_trigger(barrier)
            case CompletedFrame(_, checkpoint):
                for subtask in self._order:
                    subtask.chain.on_checkpoint_complete(checkpoint)
            case StopFrame():
                self.stop()
            case ProfileFrame(_, number, seconds):
                self._profile(number, seconds)
            case SlowestFrame():
                self._drift.on_slowest(frame)
            case HeartbeatFrame():
                self._heard_at_ms = self._services.clock.now_ms()
            case _:
                # Nothing else is for a worker.
                pass

    def _profile(self, number: int, seconds: float) -> None:
        def done(samples: int, took_s: float, stacks: tuple[Stack, ...] = ()) -> None:
            frame = ProfiledFrame(self.generation, self.worker, number, samples, took_s, stacks)
            self._services.transport.send(COORDINATOR, frame)

        if self._host is None or not self._host.profile(seconds, done):
            done(0, 0.0)

    @property
    def captured_bytes(self) -> int:
        """In-flight data held for checkpoints that are not durable yet."""
        return self._services.capture_budget.bytes_held

    @property
    def _first_skipped(self) -> str:
        sources = (subtask.chain.source for subtask in self._order)
        return next((source.first_skipped for source in sources if source is not None and source.first_skipped), "")

    @property
    def can_work(self) -> bool:
        return not self.has_stopped and any(subtask.can_work for subtask in self._order)

    @property
    def turn_us(self) -> int:
        return self._services.slice_budget.turn_us

    def work(self) -> bool:
        """Let a subtask that has something to do work for one slice; False if none has."""
        if self.has_stopped:
            return False
        # What has been read is finished first: if sources went on meanwhile, it would only wait for longer.
        is_sources_turn = self._since_source >= _SLICES_PER_SOURCE
        first, then = (self._sources, self._others) if is_sources_turn else (self._others, self._sources)
        for turns in (first, then):
            subtask = turns.next()
            if subtask is not None:
                self._since_source = 0 if turns is self._sources else self._since_source + 1
                self._guard(subtask, subtask.work)
                return True
        return False

    @property
    def next_timer_at_ms(self) -> int | None:
        return None if self.has_stopped else self._services.timers.next_at_ms

    def fire_timers(self) -> None:
        timers = self._services.timers
        if not self.has_stopped and timers.is_due:
            self._guard(None, timers.fire)

    def fail(self, error: Exception) -> None:
        """End because of something that happened outside: a connection that broke."""
        self._fail(None, error)

    def _call_back(self, call: Callable[[], None]) -> None:
        if not self.has_stopped:
            self._guard(None, call)

    # --- the end ---

    def _guard(self, subtask: Subtask | None, call: Callable[[], object]) -> bool:
        """Run something of a subtask; an exception ends the worker, and the coordinator is told why."""
        activity = self._services.activity
        is_outermost = activity.since_ms is None
        if is_outermost:
            activity.since_ms = self._services.clock.now_ms()
        try:
            call()
        except Exception as error:
            self._fail(subtask, error)
            return False
        finally:
            if is_outermost:
                activity.since_ms = activity.working = None
        return True

    def _fail(self, subtask: Subtask | None, error: Exception) -> None:
        if self.has_stopped:
            return
        self.failure, self.has_reported = error, True
        name, story = subtask.subtask if subtask is not None else None, self._services.story
        story.attach(error)
        working = self._services.activity.working
        frame = failed_frame(self.generation, self.worker, error, name, story=story.text(), working=working)
        self._services.transport.send(COORDINATOR, frame)
        self.stop()

    def stop(self) -> None:
        """Close everything; whatever comes afterwards is ignored."""
        if self.has_stopped:
            return
        self.has_stopped = True
        for subtask in self._order:
            try:
                subtask.close()
            except Exception as error:
                self.failure = self.failure or error
