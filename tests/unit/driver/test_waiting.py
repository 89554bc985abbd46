"""A pipeline that waits says so: for slots, for a disk that is full, for a sink that hangs."""

from __future__ import annotations

import logging
from dataclasses import replace

import pytest

from penstock.driver.attempts.phases import HoldUp, Phase
from penstock.driver.supervisor import Supervisor
from penstock.errors import DataError, JobFailed, NoAnswer, NoFreeSlots, SessionStopped, UserCodeError
from penstock.ids import CheckpointId, WorkerId
from penstock.mailbox.frames import HeartbeatFrame
from penstock.protocol.coordinator.machine import PERMANENT_FAILURES_MAX
from penstock.protocol.coordinator.state import RequestKind
from penstock.protocol.history import Status
from penstock.storage import paths
from penstock.storage.memory import MemoryStore
from tests.unit.driver.test_supervisor import OUTPUT, SETTINGS, Driver, SweepingCommitter, ThreadedDriver, Unreliable
from tests.unit.mailbox.fake_ports import WRITE, Staging

HOLD_UP = HoldUp("1 of 2 free", "the pipeline needs 2 slots, and 'other' holds one")


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]


class Refusing(SweepingCommitter):
    """Its commits raise `error`, while there is one."""

    def __init__(self, sink: Staging, error: Exception) -> None:
        super().__init__(sink)
        self.error: Exception | None = error

    def commit(self, checkpoint: CheckpointId, committables: object) -> None:  # type: ignore[override]
        self.calls.append(f"commit {checkpoint}")
        if self.error is not None:
            raise self.error


class RefusingDriver(Driver):
    """Its sink refuses every commit, and it has the patience of Spark with checkpoints."""

    committer: Refusing

    def __init__(self, error: Exception) -> None:
        policy = replace(SETTINGS.policy, checkpoint_timeout_ms=600_000, commit_timeout_ms=8_000)
        restart = replace(SETTINGS.restart, repeats_max=2)
        super().__init__(MemoryStore(), replace(SETTINGS, policy=policy, restart=restart))
        self.committer = Refusing(self.sink, error)
        self.supervisor = Supervisor(
            self.plan,
            replace(SETTINGS, policy=policy, restart=restart),
            {WRITE: self.committer},
            self.worker_group,
            self.clock,
            self.transport,
            self.background,
            self.store,
        )
        self.started().ready()


class TestSlots:
    def test_a_pipeline_without_slots_says_so_at_once_and_then_rarely_and_fails_with_that(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        driver = Driver(MemoryStore()).started()
        for _ in range(95):
            driver.supervisor.on_workers_held_up(driver.generation, HOLD_UP)
            driver.pass_time(100, beating=())
            assert str(driver.supervisor.progress) == "waiting for slots (1 of 2 free)"
        told = [text for text in warnings(caplog) if "waits: the pipeline needs 2 slots" in text]
        assert 2 <= len(told) <= 5
        driver.pass_time(1_500, beating=())
        assert driver.phase is Phase.FAILED
        assert driver.supervisor.restarts == 0
        assert isinstance(driver.supervisor.error, NoFreeSlots)
        assert "not started within 10 s (start_timeout): the pipeline needs 2 slots" in str(driver.supervisor.error)

    def test_workers_have_their_time_to_come_up_from_when_there_are_slots(self) -> None:
        driver = Driver(MemoryStore()).started()
        driver.supervisor.on_workers_held_up(driver.generation, HOLD_UP)
        driver.pass_time(9_500, beating=())
        driver.supervisor.on_workers_held_up(driver.generation, None)
        driver.pass_time(9_500, beating=())
        assert (str(driver.supervisor.progress), driver.supervisor.restarts) == ("starting workers (0 of 2)", 0)
        driver.pass_time(1_500, beating=())
        assert "workers 0, 1 have not come up within 10 s" in str(driver.supervisor.error)

    def test_a_worker_that_comes_ends_the_wait(self) -> None:
        driver = Driver(MemoryStore()).started()
        driver.supervisor.on_workers_held_up(driver.generation, HOLD_UP)
        driver.supervisor.deliver(HeartbeatFrame(driver.generation, WorkerId(1)))
        assert str(driver.supervisor.progress) == "starting workers (1 of 2)"

    def test_a_pipeline_that_has_run_restarts_when_its_slots_are_gone(self) -> None:
        driver = Driver(MemoryStore()).started().ready()
        driver.fail()
        driver.pass_time(200, beating=())
        driver.supervisor.on_workers_held_up(driver.generation, HOLD_UP)
        driver.pass_time(10_600, beating=())
        assert isinstance(driver.supervisor.error, NoFreeSlots)
        assert driver.supervisor.restarts == 2

    def test_the_word_of_an_older_attempt_counts_for_nothing(self) -> None:
        driver = Driver(MemoryStore()).started()
        older = driver.generation
        driver.fail()
        driver.pass_time(200, beating=())
        driver.supervisor.on_workers_held_up(older, HOLD_UP)
        assert driver.phase is Phase.STARTING


class TestStore:
    def test_a_disk_that_is_full_is_a_warning_at_once_and_the_attempt_can_be_seen(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        store = Unreliable()
        driver = Driver(store).started().ready()
        first = driver.checkpoint()
        full = paths.manifest(CheckpointId(first + 1))
        store.fails = lambda what, path: what == "create" and path == full
        driver.pass_time(1_500)
        second = driver.triggered()[-1]
        waiting = driver.supervisor.checkpoints[-1]
        assert (waiting.checkpoint, waiting.status) == (second, Status.IN_PROGRESS)
        assert waiting.detail.startswith("0 of 3 subtasks have acknowledged; it waits for read[0]")
        caplog.clear()
        driver.acknowledge(second)
        (told,) = warnings(caplog)
        assert f"checkpoint {second} has failed, manifest could not be written, and" in told
        assert "tried once in 0 s, retrying" in told
        assert "cannot create" in told
        assert ".." not in told
        (waiting,) = (record for record in driver.supervisor.checkpoints if record.checkpoint == second)
        assert (waiting.status, waiting.is_completed) == (Status.IN_PROGRESS, False)
        assert "which was tried once: cannot create" in waiting.detail
        assert driver.phase is Phase.RUNNING
        assert "the store cannot record that" in driver.supervisor.progress.detail
        driver.pass_time(2_000)
        assert len(warnings(caplog)) == 1
        store.fails = lambda what, path: False
        driver.pass_time(2_000)
        third = driver.triggered()[-1]
        driver.acknowledge(third)
        assert [record.checkpoint for record in driver.supervisor.checkpoints if record.is_completed] == [first, third]
        assert driver.supervisor.progress.detail == ""

    def test_times_are_those_of_the_clock_on_the_wall(self) -> None:
        driver = Driver(MemoryStore()).started().ready()
        driver.checkpoint()
        (record,) = driver.supervisor.checkpoints
        assert driver.clock.wall_ms() - 2_000 < record.triggered_at_ms <= record.ended_at_ms == driver.clock.wall_ms()

    def test_a_pipeline_that_drains_is_stopping(self) -> None:
        driver = Driver(MemoryStore()).started().ready()
        driver.supervisor.request(RequestKind.DRAIN, lambda result: None)
        assert driver.phase is Phase.STOPPING


class TestSinks:
    def test_a_commit_that_hangs_is_a_warning_and_twice_the_same_is_the_end(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        settings = replace(SETTINGS, restart=replace(SETTINGS.restart, repeats_max=2))
        driver = ThreadedDriver(MemoryStore(), settings).hung_commit()
        driver.after(4_000)
        told = [text for text in warnings(caplog) if "has not returned for" in text and "Give its client" in text]
        assert told
        assert "sink 'write': the commit of checkpoint 1 by generation 1" in told[0]
        driver.after(1_500)
        assert isinstance(driver.supervisor.error, NoAnswer)
        driver.wait(lambda: driver.generation == 2)
        driver.after(6_000)
        assert driver.phase is Phase.FAILED
        assert driver.supervisor.restarts == 1
        assert isinstance(driver.supervisor.error, JobFailed)
        assert "the same error was raised twice" in str(driver.supervisor.error)
        driver.committer.gate.set()

    def test_the_warning_of_a_commit_that_hangs_names_the_limit_and_it_is_not_that_of_checkpoints(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        policy = replace(SETTINGS.policy, checkpoint_timeout_ms=600_000, commit_timeout_ms=8_000)
        driver = ThreadedDriver(MemoryStore(), replace(SETTINGS, policy=policy)).hung_commit()
        driver.after(6_000)
        assert any("the pipeline restarts after 8 s (commit_timeout). Give its client" in t for t in warnings(caplog))
        driver.after(3_000)
        assert isinstance(driver.supervisor.error, NoAnswer)
        assert driver.supervisor.restarts == 1
        driver.committer.gate.set()

    @pytest.mark.parametrize("error", [PermissionError("read-only"), TypeError("no bytes"), DataError("no column")])
    def test_a_commit_whose_error_does_not_pass_is_the_end_with_the_second_attempt(
        self, error: Exception, caplog: pytest.LogCaptureFixture
    ) -> None:
        driver = RefusingDriver(error)
        driver.checkpoint(OUTPUT)
        driver.pass_time(1_000)
        assert driver.supervisor.restarts == 1
        assert any("tried once in " in text and "(commit_timeout)" in text for text in warnings(caplog))
        driver.pass_time(500)
        driver.ready().pass_time(1_000)
        assert driver.phase is Phase.FAILED
        assert driver.committer.calls.count("commit 1") == 2 * PERMANENT_FAILURES_MAX
        failure = driver.supervisor.error
        assert isinstance(failure, UserCodeError | DataError) and str(error) in str(failure)
        assert any("the same error was raised twice" in note for note in failure.__notes__)
        if isinstance(failure, UserCodeError):
            assert "sink 'write': commit raised" in str(failure) and "test_waiting.py:" in str(failure)

    def test_a_commit_whose_error_may_pass_is_tried_again_for_the_time_of_commits(self) -> None:
        driver = RefusingDriver(RuntimeError("the database restarts"))
        driver.checkpoint(OUTPUT)
        driver.pass_time(7_000)
        assert (driver.phase, driver.supervisor.restarts) == (Phase.RUNNING, 0)
        driver.pass_time(2_000)
        assert driver.supervisor.restarts == 1
        driver.ready().pass_time(10_000)
        assert driver.supervisor.restarts == 2, "an outage is not the same error twice"
        driver.committer.error = None
        driver.ready().pass_time(2_000)
        assert (driver.phase, driver.supervisor.restarts) == (Phase.RUNNING, 2)
        assert paths.committed(CheckpointId(1)) in driver.store.list("")

    def test_the_status_names_it(self) -> None:
        driver = ThreadedDriver(
            MemoryStore(), replace(SETTINGS, policy=replace(SETTINGS.policy, commit_timeout_ms=60_000))
        )
        driver.hung_commit().after(6_000)
        assert driver.phase is Phase.RUNNING
        assert "sink 'write': the commit of checkpoint 1" in driver.supervisor.progress.detail
        driver.committer.gate.set()


class TestRestarts:
    def test_a_restart_is_one_line_that_says_where_it_goes_on(self, caplog: pytest.LogCaptureFixture) -> None:
        driver = Driver(MemoryStore()).started().ready()
        driver.fail("it broke\nwith a long\ntrace")
        driver.pass_time(100)
        number = driver.ready().checkpoint(OUTPUT)
        driver.fail()
        first, second = warnings(caplog)
        assert first == "pipeline read failed and restarts in 100 ms from the beginning: read[0] on worker 0: it broke"
        assert second.startswith(f"pipeline read failed and restarts in 200 ms from checkpoint {number}: ")

    def test_a_session_that_was_stopped_is_the_end(self) -> None:
        driver = Driver(MemoryStore()).started().ready()
        driver.supervisor.on_workers_lost(driver.generation, SessionStopped("the session is gone"))
        assert (driver.phase, driver.supervisor.restarts) == (Phase.FAILED, 0)
        assert isinstance(driver.supervisor.error, SessionStopped)
