"""Listeners hear of a pipeline's life, in order, and hold nobody up."""

from __future__ import annotations

import logging
import threading
from pathlib import Path
from typing import Any

import pytest

from penstock import CheckpointEnded, JobFinished, JobListener, JobRestarted, JobStarted, OptionError
from penstock.driver.observation import listeners as listeners_module
from penstock.driver.observation.listeners import EVENTS_MAX, JobEvent, Listeners
from penstock.ids import Generation, OperatorName, WorkerId
from penstock.mailbox.frames import AcknowledgeFrame, DeclineFrame, FailedFrame, TriggerFrame
from penstock.protocol.coordinator.state import RequestKind
from penstock.protocol.declines import DeclineReason
from penstock.protocol.manifest import SubtaskReport
from penstock.storage.memory import MemoryStore
from tests.unit.driver.test_supervisor import Driver
from tests.unit.spark.test_job_end import Hanging, job_on

HANG_S = 60.0


class Noting(JobListener):
    """Notes the events, and in which thread they came."""

    def __init__(self) -> None:
        self.events: list[JobEvent] = []
        self.threads: set[str] = set()
        self.is_finished = threading.Event()

    def _note(self, event: Any) -> None:
        self.events.append(event)
        self.threads.add(threading.current_thread().name)

    on_started = on_checkpoint = on_restart = _note

    def on_finished(self, event: JobFinished) -> None:
        self._note(event)
        self.is_finished.set()


class Raising(Noting):
    def on_started(self, event: JobStarted) -> None:
        raise ValueError("no such channel")

    on_restart = on_started  # type: ignore[assignment]


class Stuck(JobListener):
    def __init__(self) -> None:
        self.is_in = threading.Event()
        self.may_go = threading.Event()

    def on_started(self, event: JobStarted) -> None:
        self.is_in.set()
        self.may_go.wait(HANG_S)


STARTED = JobStarted("p", Generation(1), 0, None)
FINISHED = JobFinished("p", 0, None)


def restarted(number: int) -> JobRestarted:
    return JobRestarted("p", 0, number, ValueError("no"), 10)


class TestListeners:
    def test_they_hear_of_all_events_in_order_on_a_thread_of_their_own(self) -> None:
        listeners, listener = Listeners("p"), Noting()
        listeners.add(listener)
        told = [STARTED, *(restarted(number) for number in range(100)), FINISHED]
        for event in told:
            listeners.tell(event)
        listeners.close(HANG_S)
        assert listener.events == told
        assert listener.threads == {"penstock-listener-p"}

    def test_one_that_raises_is_said_once_and_hears_of_what_follows(self, caplog: pytest.LogCaptureFixture) -> None:
        listeners, raising, noting = Listeners("p"), Raising(), Noting()
        listeners.add(raising)
        listeners.add(noting)
        with caplog.at_level(logging.WARNING, "penstock"):
            for event in (STARTED, restarted(1), FINISHED):
                listeners.tell(event)
            listeners.close(HANG_S)
        assert raising.events == [FINISHED] and len(noting.events) == 3
        (message,) = caplog.messages
        assert message.startswith("pipeline p: listener Raising has raised ValueError: no such channel")

    def test_one_that_hangs_is_said_once_and_holds_up_neither_the_pipeline_nor_another_listener(
        self, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(listeners_module, "HANGING_S", 0.0)
        listeners, stuck, noting = Listeners("p"), Stuck(), Noting()
        listeners.add(stuck)
        listeners.add(noting)
        with caplog.at_level(logging.WARNING, "penstock"):
            listeners.tell(STARTED)
            assert stuck.is_in.wait(HANG_S)
            for number in range(EVENTS_MAX + 10):
                listeners.tell(restarted(number))
            listeners.tell(FINISHED)
            assert noting.is_finished.wait(HANG_S)
        listeners.close(HANG_S)
        mine = [message for message in caplog.messages if "listener Stuck" in message]
        assert len([message for message in mine if "has been in one call" in message]) == 1
        assert len([message for message in mine if "the oldest ones are dropped" in message]) == 1
        stuck.may_go.set()


class TestSupervisor:
    """Which events there are, from the supervisor's own life."""

    def test_a_life_with_a_failure_in_it(self) -> None:
        events: list[JobEvent] = []
        driver = Driver(MemoryStore())
        driver.supervisor.observations._tell = events.append
        driver.started().ready()
        assert events == [JobStarted("read", driver.generation, driver.clock.wall_ms(), None)]
        driver.supervisor.deliver(FailedFrame(driver.generation, WorkerId(0), "no"))
        (restart,) = events[1:]
        assert isinstance(restart, JobRestarted)
        assert (restart.restarts, "no" in str(restart.error)) == (1, True)
        driver.pass_time(restart.delay_ms)
        driver.background.run()
        driver.supervisor.stop()
        driver.supervisor.stop()
        assert events[2:] == [JobFinished("read", driver.clock.wall_ms(), None)]

    def test_checkpoints_are_told_with_their_progress_and_declined_ones_with_their_reason(self) -> None:
        events: list[JobEvent] = []
        driver = Driver(MemoryStore())
        driver.supervisor.observations._tell = events.append
        driver.started().ready()
        driver.supervisor.request(RequestKind.CHECKPOINT, lambda result: None)
        driver.background.run()
        (barrier, *_) = [frame.barrier for frame in driver.transport.take(TriggerFrame)]
        read = ((OperatorName("read"), "num_records_in", 7),)
        for subtask in driver.plan.subtasks:
            report = SubtaskReport(subtask, totals=read if subtask.index == 0 and subtask.chain == "read" else ())
            driver.supervisor.deliver(AcknowledgeFrame(driver.generation, barrier.checkpoint, report))
        driver.background.run()
        done = events[-1]
        assert isinstance(done, CheckpointEnded) and done.record.is_completed and done.progress is not None
        assert (done.progress.rows_in, done.progress.checkpoint) == (7, barrier.checkpoint)
        assert done.record.triggered_at_ms == done.progress.timestamp_ms
        assert driver.supervisor.observations.totals.rows_in == 7
        driver.supervisor.request(RequestKind.CHECKPOINT, lambda result: None)
        driver.background.run()
        (barrier, *_) = [frame.barrier for frame in driver.transport.take(TriggerFrame)]
        reason = DeclineReason.SNAPSHOT_FAILED
        subtask = driver.plan.subtasks[0]
        driver.supervisor.deliver(DeclineFrame(driver.generation, barrier.checkpoint, subtask, reason, "no"))
        driver.background.run()
        declined = events[-1]
        assert isinstance(declined, CheckpointEnded)
        assert (declined.record.reason, declined.progress) == (reason, None)


class TestJob:
    def test_it_is_active_until_its_end_of_which_a_listener_hears_in_time(self) -> None:
        store = Hanging()
        store.hangs = {"list"}
        job, listener = job_on(store), Noting()
        job.add_listener(listener)
        job._start()
        assert store.entered.wait(HANG_S)
        assert job.is_active and job.last_progress is None and job.recent_progress == ()
        job.stop(timeout=HANG_S)
        assert not job.is_active
        assert [type(event) for event in listener.events] == [JobFinished]

    def test_a_listener_that_hangs_does_not_keep_it_from_ending(self, monkeypatch: pytest.MonkeyPatch) -> None:
        class Forever(JobListener):
            def on_finished(self, event: JobFinished) -> None:
                may_go.wait(HANG_S)

        may_go = threading.Event()
        job = job_on(MemoryStore())
        job.add_listener(Forever())
        job._start()
        job.stop(timeout=HANG_S / 2)
        assert not job.is_active
        may_go.set()

    def test_something_else_is_refused(self, tmp_path: Path) -> None:
        with pytest.raises(OptionError, match=r"add_listener needs a penstock\.JobListener, not 'me'"):
            job_on(MemoryStore()).add_listener("me")  # type: ignore[arg-type]
