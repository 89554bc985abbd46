"""The supervisor: attempt after attempt, until the pipeline is finished, given up, or somebody else's."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import replace
from typing import TypeVar

import pytest

from penstock.driver.attempts.phases import Phase
from penstock.driver.checkpoints.committers import Committers
from penstock.driver.settings import SupervisorSettings
from penstock.driver.supervisor import Supervisor
from penstock.errors import (
    FencedError,
    IncompatibleCheckpoint,
    JobFailed,
    NoReadableCheckpoint,
    OptionError,
    PenstockError,
    StorageError,
)
from penstock.graph.physical import PhysicalPlan, plan
from penstock.ids import CheckpointId, Generation, WorkerId
from penstock.mailbox.frames import (
    AcknowledgeFrame,
    BusyFrame,
    DeclineFrame,
    EndedFrame,
    FailedFrame,
    HeartbeatFrame,
    ReadyFrame,
    StopFrame,
    TriggerFrame,
)
from penstock.mailbox.threads import Mail, ThreadBackground
from penstock.protocol.barrier import BarrierFlag
from penstock.protocol.coordinator.events import RequestCompleted, RequestDeclined, RequestResult
from penstock.protocol.coordinator.state import Policy, RequestKind
from penstock.protocol.declines import DeclineReason
from penstock.protocol.manifest import Committable, Manifest, SubtaskReport
from penstock.protocol.manifest.codec import decode_reservation
from penstock.protocol.ownership import Reservation
from penstock.protocol.restart import RestartPolicy
from penstock.storage import paths
from penstock.storage.memory import MemoryStore
from penstock.storage.port import Data
from tests.unit.mailbox.fake_ports import (
    WRITE,
    ListTransport,
    ManualBackground,
    ManualClock,
    Numbers,
    Staging,
    StagingCommitter,
    read,
)

F = TypeVar("F")
HANG_S = 60.0
SETTINGS = SupervisorSettings(
    Policy(
        interval_ms=1_000, checkpoint_timeout_ms=5_000, commit_timeout_ms=5_000, failures_tolerable=1, backoff_ms=10
    ),
    RestartPolicy(failures_max=3, window_ms=60_000, delay_ms=100, delay_ms_max=400, repeats_max=None),
    worker_silence_ms=2_000,
    start_timeout_ms=10_000,
)
ON_REQUEST = replace(SETTINGS, policy=replace(SETTINGS.policy, interval_ms=None))
OUTPUT = Committable(WRITE, 0, b"file")


class ListGang:
    """Remembers what was launched and what was cancelled."""

    def __init__(self) -> None:
        self.launched: list[tuple[Generation, Manifest | None]] = []
        self.cancelled: list[Generation] = []
        self.reservations: list[Reservation] = []

    def launch(
        self, generation: Generation, settled: PhysicalPlan, manifest: Manifest | None, reservation: Reservation
    ) -> None:
        self.launched.append((generation, manifest))
        self.reservations.append(reservation)

    def cancel(self, generation: Generation) -> None:
        self.cancelled.append(generation)


class SweepingCommitter(StagingCommitter):
    """Notes its calls in one list, so that their order can be seen."""

    def __init__(self, sink: Staging) -> None:
        super().__init__(sink)
        self.calls: list[str] = []

    def commit(self, checkpoint: CheckpointId, committables: object) -> None:  # type: ignore[override]
        if "commit" in self.sink.failing:
            raise ValueError("the table is locked")
        self.calls.append(f"commit {checkpoint}")

    def discard_uncommitted(self, generation: Generation) -> None:
        if "sweep" in self.sink.failing:
            raise ValueError("cannot sweep")
        self.calls.append(f"sweep {generation}")


class Driver:
    """A supervisor under test; the workers are played by hand."""

    def __init__(self, store: MemoryStore, settings: SupervisorSettings = SETTINGS) -> None:
        self.store = store
        self.plan = plan(read(Numbers({})), 1, workers=2)
        self.worker_group, self.clock, self.transport = ListGang(), ManualClock(), ListTransport()
        self.background = ManualBackground()
        self.sink = Staging()
        self.committer = SweepingCommitter(self.sink)
        self.supervisor = Supervisor(
            self.plan,
            settings,
            {WRITE: self.committer},
            self.worker_group,
            self.clock,
            self.transport,
            self.background,
            store,
        )

    def started(self) -> Driver:
        self.supervisor.start()
        self.background.run()
        return self

    @property
    def phase(self) -> Phase:
        return self.supervisor.phase

    @property
    def generation(self) -> Generation:
        return self.worker_group.launched[-1][0]

    def ready(self) -> Driver:
        for worker in range(2):
            self.supervisor.deliver(ReadyFrame(self.generation, WorkerId(worker)))
        self.background.run()
        return self

    def pass_time(self, ms: int, beating: tuple[int, ...] = (0, 1)) -> None:
        """In steps, because timers are set by timers; the `beating` workers are alive."""
        for _ in range(ms // 50):
            self.clock.advance(50)
            for worker in beating:
                self.supervisor.deliver(HeartbeatFrame(self.generation, WorkerId(worker)))
            self.supervisor.timers.fire()
            self.background.run()

    def triggered(self) -> list[int]:
        frames = [frame for to, frame in self.transport.sent if to == WorkerId(0) and isinstance(frame, TriggerFrame)]
        return [int(frame.barrier.checkpoint) for frame in frames if not frame.barrier.is_cancel]

    def acknowledge(self, number: int, *committables: Committable) -> None:
        for subtask in self.plan.subtasks:
            report = SubtaskReport(subtask, committables=committables if subtask.chain == WRITE else ())
            self.supervisor.deliver(AcknowledgeFrame(self.generation, CheckpointId(number), report))
        self.background.run()

    def checkpoint(self, *committables: Committable) -> int:
        """Wait for the next trigger, and let it complete."""
        before = len(self.triggered())
        self.pass_time(1_500)
        number = self.triggered()[before]
        self.acknowledge(number, *committables)
        return number

    def fail(self, text: str = "it broke") -> None:
        subtask = self.plan.subtasks[0]
        self.supervisor.deliver(FailedFrame(self.generation, WorkerId(0), text, subtask))


class TestAttempts:
    def test_the_directory_is_owned_before_anything_is_launched(self) -> None:
        driver = Driver(MemoryStore())
        driver.supervisor.start()
        assert (driver.phase, driver.worker_group.launched) == (Phase.CLAIMING, [])
        driver.background.run()
        assert (driver.phase, driver.worker_group.launched) == (Phase.STARTING, [(1, None)])
        assert paths.reserved(CheckpointId(1)) in driver.store.blobs

    def test_nothing_is_triggered_before_every_worker_is_ready(self) -> None:
        driver = Driver(MemoryStore()).started()
        driver.supervisor.deliver(ReadyFrame(Generation(1), WorkerId(0)))
        driver.pass_time(3_000)
        assert driver.triggered() == []
        driver.supervisor.deliver(ReadyFrame(Generation(1), WorkerId(1)))
        driver.pass_time(1_500)
        assert driver.triggered() == [1]

    def test_a_failure_stops_all_of_the_attempt_and_another_one_follows(self) -> None:
        driver = Driver(MemoryStore()).started().ready()
        driver.fail("out of memory")
        assert driver.phase is Phase.WAITING
        assert driver.worker_group.cancelled == [1]
        assert [(to, frame) for to, frame in driver.transport.sent if isinstance(frame, StopFrame)] == [
            (WorkerId(0), StopFrame(Generation(1))),
            (WorkerId(1), StopFrame(Generation(1))),
        ]
        assert str(driver.supervisor.error) == "read[0] on worker 0: out of memory"
        driver.pass_time(100)
        assert driver.worker_group.launched == [(1, None), (2, None)]
        assert (driver.phase, driver.supervisor.restarts) == (Phase.STARTING, 1)

    def test_the_delay_doubles_and_then_it_gives_up_with_the_cause(self) -> None:
        driver = Driver(MemoryStore()).started()
        for delay_ms in (100, 200, 400):
            driver.fail()
            driver.pass_time(delay_ms - 50)
            assert driver.phase is Phase.WAITING
            driver.pass_time(50)
            assert driver.phase is Phase.STARTING
        driver.fail("the last straw")
        assert driver.phase is Phase.FAILED
        assert driver.supervisor.has_ended
        error = driver.supervisor.error
        assert isinstance(error, JobFailed)
        assert "the pipeline gave up: 4 failures within 60 s, and 3 are allowed. The last one: " in str(error)
        assert "the last straw" in str(error.__cause__)
        driver.pass_time(10_000)
        driver.supervisor.start()
        assert len(driver.worker_group.launched) == 4

    def test_failures_of_long_ago_are_forgiven_if_checkpoints_completed_since(self) -> None:
        driver = Driver(MemoryStore()).started()
        for _ in range(6):
            driver.ready().checkpoint()
            driver.fail()
            driver.pass_time(25_000)
        assert driver.phase is Phase.RESTORING
        assert len(driver.worker_group.launched) == 7

    def test_a_pipeline_that_never_completes_a_checkpoint_gives_up_however_rarely_it_fails(self) -> None:
        driver = Driver(MemoryStore()).started()
        for _ in range(3):
            driver.fail()
            driver.pass_time(70_000)
            assert driver.phase is Phase.STARTING
        driver.fail("the same again")
        assert driver.phase is Phase.FAILED
        told = "4 failures and no checkpoint completed in between, and 3 are allowed. The last one: "
        assert told + "read[0] on worker 0: the same again" in str(driver.supervisor.error)

    def test_without_an_interval_only_failures_within_the_window_count(self) -> None:
        driver = Driver(MemoryStore(), ON_REQUEST).started()
        for _ in range(6):
            driver.fail()
            driver.pass_time(70_000)
        assert driver.phase is Phase.STARTING

    def test_the_gang_s_word_counts_for_the_attempt_that_it_is_about(self) -> None:
        driver = Driver(MemoryStore()).started()
        driver.supervisor.on_workers_lost(Generation(7), PenstockError("of another time"))
        assert driver.phase is Phase.STARTING
        driver.supervisor.on_workers_lost(Generation(1), PenstockError("an executor died"))
        assert driver.phase is Phase.WAITING
        driver.supervisor.on_workers_lost(Generation(1), PenstockError("and another one"))
        assert str(driver.supervisor.error) == "an executor died"
        assert driver.supervisor.restarts == 1

    def test_frames_of_an_older_generation_change_nothing(self) -> None:
        driver = Driver(MemoryStore()).started()
        driver.fail()
        driver.pass_time(100)
        driver.supervisor.deliver(FailedFrame(Generation(1), WorkerId(0), "a late one"))
        driver.supervisor.deliver(ReadyFrame(Generation(1), WorkerId(0)))
        assert driver.phase is Phase.STARTING

    def test_a_worker_without_a_subtask_to_blame_is_named_alone(self) -> None:
        driver = Driver(MemoryStore()).started()
        driver.supervisor.deliver(FailedFrame(Generation(1), WorkerId(1), "no room"))
        assert str(driver.supervisor.error) == "worker 1: no room"

    def test_a_failure_that_every_attempt_would_meet_ends_the_pipeline_at_once(self) -> None:
        driver = Driver(MemoryStore()).started()
        driver.supervisor.deliver(FailedFrame(Generation(1), WorkerId(1), "not shared", kind="OptionError"))
        assert (driver.phase, driver.supervisor.restarts) == (Phase.FAILED, 0)
        assert isinstance(driver.supervisor.error, OptionError)
        assert str(driver.supervisor.error) == "worker 1: not shared"

    def test_workers_are_given_the_reservation_by_which_they_know_the_directory(self) -> None:
        driver = Driver(MemoryStore()).started()
        driver.fail()
        driver.pass_time(100)
        for reservation in driver.worker_group.reservations:
            found = driver.store.blobs[paths.reserved(reservation.checkpoint)]
            assert decode_reservation(found) == reservation
        first, second = driver.worker_group.reservations
        assert len(first.token) == 32 and first.token == second.token
        assert Driver(MemoryStore()).started().worker_group.reservations[0].token != first.token

    def test_a_final_failure_ends_the_pipeline_without_another_attempt(self) -> None:
        driver = Driver(MemoryStore()).started()
        driver.supervisor.deliver(
            FailedFrame(Generation(1), WorkerId(1), "a state is another one", kind="IncompatibleCheckpoint")
        )
        assert (driver.phase, driver.supervisor.restarts) == (Phase.FAILED, 0)
        assert isinstance(driver.supervisor.error, IncompatibleCheckpoint)
        assert str(driver.supervisor.error) == "worker 1: a state is another one"
        driver.pass_time(600_000)
        assert driver.phase is Phase.FAILED

    def test_too_many_failed_checkpoints_fail_the_attempt_with_the_reason(self) -> None:
        driver = Driver(MemoryStore()).started().ready()
        for _ in range(2):
            before = len(driver.triggered())
            driver.pass_time(1_500)
            number = driver.triggered()[before]
            frame = DeclineFrame(
                Generation(1), CheckpointId(number), driver.plan.subtasks[0], DeclineReason.STORAGE_FAILED, "disk full"
            )
            driver.supervisor.deliver(frame)
        assert driver.phase is Phase.WAITING
        assert "disk full" in str(driver.supervisor.error)
        assert [record.reason for record in driver.supervisor.history] == [DeclineReason.STORAGE_FAILED] * 2


class TestSilence:
    def test_a_worker_that_is_not_heard_of_any_more_fails_the_attempt(self) -> None:
        driver = Driver(MemoryStore(), ON_REQUEST).started().ready()
        driver.pass_time(20_000)
        assert driver.phase is Phase.RUNNING
        driver.pass_time(1_900, beating=(0,))
        assert driver.phase is Phase.RUNNING
        driver.pass_time(700, beating=(0,))
        assert driver.worker_group.launched[1:] == [(2, None)]
        assert "no sign of life from worker 1: it hangs, or its host cannot be reached" in str(driver.supervisor.error)

    def test_the_first_word_may_take_longer(self) -> None:
        driver = Driver(MemoryStore(), ON_REQUEST).started()
        driver.pass_time(9_900, beating=())
        assert driver.phase is Phase.STARTING
        driver.pass_time(600, beating=())
        assert "workers 0, 1 have not come up within 10 s (start_timeout)" in str(driver.supervisor.error)

    def test_after_the_first_word_silence_is_silence(self) -> None:
        driver = Driver(MemoryStore(), ON_REQUEST).started().ready()
        driver.pass_time(2_600, beating=(0,))
        assert "no sign of life from worker 1" in str(driver.supervisor.error)

    def test_a_driver_that_slept_does_not_take_its_own_sleep_for_the_silence_of_workers(self) -> None:
        driver = Driver(MemoryStore(), ON_REQUEST).started().ready()
        driver.clock.advance(60_000)
        # It wakes up: of all that waits for it, only words of one worker have been handled when its timers fire.
        driver.supervisor.deliver(HeartbeatFrame(driver.generation, WorkerId(0)))
        driver.supervisor.timers.fire()
        assert driver.phase is Phase.RUNNING
        driver.pass_time(5_000)
        assert driver.phase is Phase.RUNNING
        driver.pass_time(2_600, beating=(0,))
        assert "no sign of life from worker 1" in str(driver.supervisor.error), "silence is found all the same"

    def busy(self, driver: Driver, busy_ms: int) -> None:
        frame = BusyFrame(driver.generation, WorkerId(1), busy_ms, "operator 'slow', subtask 0", "jobs.py:31 in score")
        driver.supervisor.deliver(frame)

    def test_a_worker_that_is_in_one_call_lives_and_that_is_said_at_growing_distances(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        driver = Driver(MemoryStore(), ON_REQUEST).started().ready()
        for second in range(1, 30):
            driver.pass_time(1_000, beating=(0,))
            self.busy(driver, 1_000 * second)
        assert driver.phase is Phase.RUNNING
        said = [record.getMessage() for record in caplog.records if "in one call" in record.getMessage()]
        assert [text.split(" for ")[1].split(":")[0] for text in said] == ["2 s", "4 s", "8 s", "16 s"]
        assert "worker 1 has been in one call for 2 s: operator 'slow', subtask 0, jobs.py:31 in score; " in said[0]
        assert said[0].endswith("use smaller batches, or map_async")
        caplog.clear()
        driver.supervisor.deliver(HeartbeatFrame(driver.generation, WorkerId(1)))
        self.busy(driver, 1_999)
        assert caplog.records == []
        self.busy(driver, 2_000)
        assert len(caplog.records) == 1, "another call"

    def test_a_worker_that_is_in_one_call_for_too_long_is_stuck(self) -> None:
        driver = Driver(MemoryStore(), replace(ON_REQUEST, call_timeout_ms=30_000)).started().ready()
        self.busy(driver, 30_000)
        assert driver.phase is Phase.RUNNING
        self.busy(driver, 30_001)
        assert driver.phase is Phase.WAITING
        text = "worker 1 has been in one call for 30 s: operator 'slow', subtask 0, jobs.py:31 in score: it is stuck."
        assert text in str(driver.supervisor.error)
        assert str(driver.supervisor.error).endswith("raise call_timeout")

    def test_a_watch_of_an_attempt_that_is_over_looks_at_nothing(self) -> None:
        driver = Driver(MemoryStore(), ON_REQUEST).started().ready()
        driver.fail()
        driver.pass_time(5_000, beating=(0, 1))
        assert driver.supervisor.restarts == 1


class TestEnding:
    def test_a_bounded_pipeline_ends_with_a_final_checkpoint_that_publishes_everything(self) -> None:
        driver = Driver(MemoryStore()).started().ready()
        for subtask in driver.plan.subtasks:
            driver.supervisor.deliver(EndedFrame(driver.generation, subtask))
        driver.pass_time(100)
        (number,) = driver.triggered()
        assert driver.phase is Phase.RUNNING
        driver.acknowledge(number, OUTPUT)
        assert driver.committer.calls == ["sweep 1", "commit 1"]
        assert (driver.phase, driver.supervisor.error) == (Phase.FINISHED, None)
        assert driver.worker_group.cancelled == [1]

    def test_a_drain_ends_it_and_its_answer_comes_first(self) -> None:
        driver = Driver(MemoryStore()).started().ready()
        answers: list[RequestResult] = []
        driver.supervisor.request(RequestKind.DRAIN, answers.append)
        driver.pass_time(100)
        (frame,) = [frame for to, frame in driver.transport.sent if to == 0 and isinstance(frame, TriggerFrame)]
        assert frame.barrier.flags & BarrierFlag.DRAIN
        driver.acknowledge(int(frame.barrier.checkpoint))
        assert [type(answer) for answer in answers] == [RequestCompleted]
        assert driver.phase is Phase.STOPPED

    def test_a_request_that_comes_too_early_waits_for_the_attempt(self) -> None:
        driver = Driver(MemoryStore())
        answers: list[RequestResult] = []
        driver.supervisor.request(RequestKind.CHECKPOINT, answers.append)
        driver.started().ready()
        driver.pass_time(100)
        assert answers == []
        (number,) = driver.triggered()
        driver.acknowledge(number)
        assert [type(answer) for answer in answers] == [RequestCompleted]

    def test_an_attempt_that_fails_answers_what_it_had_in_hand_and_no_more(self) -> None:
        driver = Driver(MemoryStore()).started()
        answers: list[RequestResult] = []
        driver.supervisor.request(RequestKind.SAVEPOINT, answers.append)
        driver.fail()
        (declined,) = answers
        assert isinstance(declined, RequestDeclined)
        assert declined.reason is DeclineReason.CANCELLED and "it broke" in declined.detail
        driver.supervisor.request(RequestKind.CHECKPOINT, answers.append)
        assert len(answers) == 1

    def test_after_the_end_every_request_is_declined(self) -> None:
        driver = Driver(MemoryStore())
        answers: list[RequestResult] = []
        driver.supervisor.request(RequestKind.CHECKPOINT, answers.append)
        driver.supervisor.stop()
        driver.supervisor.request(RequestKind.CHECKPOINT, answers.append)
        assert answers == [
            RequestDeclined(DeclineReason.CANCELLED, "the pipeline was stopped"),
            RequestDeclined(DeclineReason.DRAINED, "the pipeline has stopped"),
        ]

    @pytest.mark.parametrize("when", ["claiming", "running", "waiting"])
    def test_stopping_is_final_whenever_it_comes(self, when: str) -> None:
        driver = Driver(MemoryStore())
        driver.supervisor.start()
        if when != "claiming":
            driver.background.run()
        if when == "waiting":
            driver.fail()
        driver.supervisor.stop()
        driver.background.run()
        launched = len(driver.worker_group.launched)
        driver.supervisor.stop()
        for _ in range(100):
            driver.clock.advance(50)
            driver.supervisor.timers.fire()
            driver.background.run()
        assert (driver.phase, len(driver.worker_group.launched)) == (Phase.STOPPED, launched)


class TestRestoring:
    def test_the_next_attempt_starts_from_the_newest_checkpoint(self) -> None:
        driver = Driver(MemoryStore()).started().ready()
        driver.checkpoint()
        newest = driver.checkpoint()
        driver.fail()
        driver.pass_time(100)
        generation, manifest = driver.worker_group.launched[-1]
        assert manifest is not None
        assert (generation, manifest.checkpoint, manifest.generation) == (2, newest, 1)

    def test_output_in_doubt_is_published_before_anything_is_swept_or_triggered(self) -> None:
        store = MemoryStore()
        driver = Driver(store).started().ready()
        driver.sink.failing.add("commit")
        number = driver.checkpoint(OUTPUT)
        assert driver.committer.calls == ["sweep 1"]
        again = Driver(store).started().ready()
        assert again.committer.calls == [f"commit {number}"]
        assert paths.committed(CheckpointId(number)) in store.blobs

    def test_if_no_checkpoint_can_be_read_it_refuses_and_says_so(self) -> None:
        store = MemoryStore()
        number = Driver(store).started().ready().checkpoint()
        store.blobs[paths.manifest(CheckpointId(number))] = b"damaged"
        driver = Driver(store).started()
        assert isinstance(driver.supervisor.error, NoReadableCheckpoint)
        assert (driver.phase, driver.worker_group.launched) == (Phase.FAILED, [])
        for _ in range(100):
            driver.clock.advance(100)
            driver.supervisor.timers.fire()
            driver.background.run()
        assert driver.worker_group.launched == []

    def test_the_history_outlives_a_restart(self) -> None:
        driver = Driver(MemoryStore()).started().ready()
        first = driver.checkpoint()
        driver.fail()
        driver.pass_time(100)
        second = driver.ready().checkpoint()
        assert [record.checkpoint for record in driver.supervisor.history] == [first, second]


class Unreliable(MemoryStore):
    """A store that fails where it is told to."""

    def __init__(self) -> None:
        super().__init__()
        self.fails: Callable[[str, str], bool] = lambda what, path: False
        self.loses: Callable[[str], bool] = lambda path: False
        self.is_loss_an_error = True

    def create(self, path: str, data: Data) -> bool:
        if self.fails("create", path):
            raise StorageError(f"cannot create {path}")
        created = super().create(path, data)
        if created and self.loses(path):
            if self.is_loss_an_error:
                raise StorageError(f"cannot create {path}: the connection was reset")
            return False
        return created

    def read(self, path: str, offset: int = 0, length: int | None = None) -> bytes:
        if self.fails("read", path):
            raise StorageError(f"cannot read {path}")
        return super().read(path, offset, length)

    def list(self, prefix: str) -> list[str]:
        if self.fails("list", prefix):
            raise StorageError(f"cannot list {prefix}")
        return super().list(prefix)


class TestTrouble:
    def test_a_store_that_does_not_answer_is_tried_again(self) -> None:
        store = Unreliable()
        store.fails = lambda what, path: what == "list"
        driver = Driver(store).started()
        assert (driver.phase, driver.worker_group.launched) == (Phase.WAITING, [])
        store.fails = lambda what, path: False
        driver.clock.advance(100)
        driver.supervisor.timers.fire()
        driver.background.run()
        assert (driver.phase, driver.worker_group.launched) == (Phase.STARTING, [(1, None)])

    def test_a_read_that_fails_once_restarts_and_a_store_that_stays_unreadable_ends_with_that_error(self) -> None:
        store = Unreliable()
        driver = Driver(store).started().ready()
        newest = driver.checkpoint(OUTPUT)
        driver.fail()
        store.fails = lambda what, path: what == "read" and path.endswith("manifest.json")
        driver.pass_time(100)
        assert (driver.phase, driver.supervisor.restarts) == (Phase.WAITING, 2)
        store.fails = lambda what, path: False
        driver.pass_time(200)
        (_, manifest) = driver.worker_group.launched[-1]
        assert manifest is not None and manifest.checkpoint == newest
        store.fails = lambda what, path: what == "read"
        driver.fail()
        driver.pass_time(2_000)
        assert driver.phase is Phase.FAILED
        assert "the checkpoint directory could not be read or written while it was taken over: cannot read" in str(
            driver.supervisor.error
        )

    @pytest.mark.parametrize("name", ["reserved.json", "manifest.json", "committed.json"])
    @pytest.mark.parametrize("is_error", [True, False])
    def test_replies_that_are_lost_change_nothing(self, name: str, is_error: bool) -> None:
        """Every creation of such a file is carried out, and its reply lost: an error, or "it was there before"."""
        store = Unreliable()
        store.loses = lambda path: path.endswith(name)
        store.is_loss_an_error = is_error
        driver = Driver(store).started().ready()
        first = driver.checkpoint(OUTPUT)
        driver.fail()
        driver.pass_time(100)
        second = driver.ready().checkpoint(OUTPUT)
        assert (driver.phase, driver.generation, driver.supervisor.restarts) == (Phase.RUNNING, 2, 1)
        assert driver.committer.calls == ["sweep 1", f"commit {first}", "sweep 2", f"commit {second}"]
        assert [record.reason for record in driver.supervisor.history] == [None, None]

    def test_a_sink_that_cannot_be_swept_is_tried_again(self) -> None:
        driver = Driver(MemoryStore())
        driver.sink.failing.add("sweep")
        driver.started()
        assert driver.phase is Phase.WAITING
        driver.sink.failing.clear()
        driver.clock.advance(100)
        driver.supervisor.timers.fire()
        driver.background.run()
        assert (driver.phase, driver.worker_group.launched) == (Phase.STARTING, [(2, None)])

    def test_a_restart_that_stumbles_after_it_owned_the_directory_is_not_fenced_by_itself(self) -> None:
        driver = Driver(MemoryStore()).started().ready()
        driver.fail()
        driver.sink.failing.add("sweep")
        driver.pass_time(100)
        assert driver.phase is Phase.WAITING
        driver.sink.failing.clear()
        driver.pass_time(200)
        assert (driver.phase, driver.generation) == (Phase.STARTING, 3)

    def test_nor_is_one_that_stumbles_while_it_looks_whether_it_owns_the_directory(self) -> None:
        store = Unreliable()
        driver = Driver(store).started().ready()
        driver.fail()
        before = len(store.blobs)
        store.fails = lambda what, path: what == "list" and len(store.blobs) > before
        driver.pass_time(100)
        assert driver.phase is Phase.WAITING
        store.fails = lambda what, path: False
        driver.pass_time(200)
        assert driver.phase is Phase.STARTING


class Hanging(Unreliable):
    """Calls that it is told of wait for `gate`."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = threading.Event()
        self.hangs: Callable[[str, str], bool] = lambda what, path: False
        self.hanging = 0
        self.resumed = 0

    def list(self, prefix: str) -> list[str]:
        self._hang("list", prefix)
        return super().list(prefix)

    def create(self, path: str, data: Data) -> bool:
        self._hang("create", path)
        return super().create(path, data)

    def _hang(self, what: str, path: str) -> None:
        if self.hangs(what, path):
            self.hanging += 1
            self.gate.wait()
            self.resumed += 1


class HangingCommitter(SweepingCommitter):
    """Commits wait for `gate`."""

    def __init__(self, sink: Staging) -> None:
        super().__init__(sink)
        self.gate, self.entered = threading.Event(), threading.Event()
        self.inside = self.inside_max = 0

    def commit(self, checkpoint: CheckpointId, committables: object) -> None:  # type: ignore[override]
        self.inside += 1
        self.inside_max = max(self.inside_max, self.inside)
        self.entered.set()
        self.gate.wait()
        self.calls.append(f"commit {checkpoint}")
        self.inside -= 1


class ThreadedDriver(Driver):
    """As a driver on Spark: each attempt has threads of its own. Time is moved by hand."""

    def __init__(self, store: MemoryStore, settings: SupervisorSettings = SETTINGS) -> None:
        super().__init__(store, settings)
        self.committer = HangingCommitter(self.sink)
        self.mail = Mail(lambda: None)
        self.supervisor = Supervisor(
            self.plan,
            settings,
            {WRITE: self.committer},
            self.worker_group,
            self.clock,
            self.transport,
            self.background,
            self.store,
            attempt_background=lambda: ThreadBackground(self.mail),
        )

    def wait(self, is_done: Callable[[], bool]) -> None:
        until = time.monotonic() + HANG_S
        while not is_done():
            assert time.monotonic() < until, (self.phase, self.supervisor.error)
            self.mail.deliver()
            time.sleep(0.001)

    def after(self, ms: int) -> None:
        for _ in range(ms // 100):
            self.clock.advance(100)
            for worker in range(2 if self.worker_group.launched else 0):
                self.supervisor.deliver(HeartbeatFrame(self.generation, WorkerId(worker)))
            self.supervisor.timers.fire()

    def hung_commit(self) -> ThreadedDriver:
        """An attempt whose first commit hangs."""
        self.supervisor.start()
        self.wait(lambda: self.phase is Phase.STARTING)
        self.ready()
        self.after(1_000)
        self.acknowledge(1, OUTPUT)
        self.wait(self.committer.entered.is_set)
        return self


class TestHanging:
    def test_a_takeover_that_never_answers_is_a_failure_and_too_many_of_them_are_the_end(self) -> None:
        store = Hanging()
        store.hangs = lambda what, path: what == "list"
        # More attempts than one background has threads.
        driver = ThreadedDriver(store, replace(SETTINGS, restart=replace(SETTINGS.restart, failures_max=6)))
        driver.supervisor.start()
        for number in range(1, 8):
            driver.wait(lambda: store.hanging == number)  # noqa: B023
            for _ in range(4):
                assert driver.phase is Phase.CLAIMING
                driver.after(30_000)
            told = "the takeover of the checkpoint directory made no progress for 120 s: the store does not answer"
            assert told in str(driver.supervisor.error)
            driver.after(400)
        assert driver.phase is Phase.FAILED
        store.gate.set()

    def test_a_takeover_may_take_any_time_if_the_store_answers_now_and_then(self) -> None:
        store = Unreliable()
        driver = Driver(store)
        calls = []

        def slow(what: str, path: str) -> bool:
            calls.append(what)
            driver.clock.advance(100_000)
            driver.supervisor.timers.fire()
            return False

        store.fails = slow
        driver.started()
        assert (driver.phase, driver.supervisor.restarts) == (Phase.STARTING, 0)
        assert len(calls) > 2

    def test_the_next_attempt_does_not_wait_behind_a_takeover_that_hangs_and_that_one_changes_nothing_later(
        self,
    ) -> None:
        store = Hanging()
        driver = ThreadedDriver(store)
        store.hangs = lambda what, path: what == "create" and store.hanging == 0
        driver.supervisor.start()
        driver.wait(lambda: store.hanging == 1)
        # The listing had answered: that is noticed with the first look, after 30 s.
        for _ in range(5):
            driver.after(30_000)
        assert driver.phase is Phase.WAITING
        driver.after(100)
        driver.wait(lambda: driver.phase is Phase.STARTING)
        before = dict(store.blobs)
        store.gate.set()
        driver.wait(lambda: store.resumed == 1)
        driver.committer.gate.set()
        driver.ready()
        driver.after(1_000)
        driver.acknowledge(1, OUTPUT)
        driver.wait(lambda: paths.committed(CheckpointId(1)) in store.blobs)
        assert before.items() <= store.blobs.items()
        assert (driver.phase, driver.supervisor.restarts) == (Phase.RUNNING, 1)
        assert driver.committer.calls == ["sweep 1", "commit 1"]

    def test_a_commit_that_never_returns_ends_the_pipeline_with_the_name_of_the_sink(self) -> None:
        driver = ThreadedDriver(MemoryStore()).hung_commit()
        for number in range(2, 6):
            driver.after(5_000)
            assert "sink 'write': the commit of checkpoint 1 by generation 1 has not returned for" in str(
                driver.supervisor.error
            )
            if number < 5:
                assert driver.phase is Phase.WAITING
                driver.after(400)
                driver.wait(lambda: driver.generation == number)  # noqa: B023
        assert driver.phase is Phase.FAILED
        assert isinstance(driver.supervisor.error, JobFailed)
        assert (driver.committer.inside_max, driver.committer.calls) == (1, ["sweep 1"])
        driver.committer.gate.set()

    def test_the_next_generation_commits_after_a_call_of_the_one_before_has_returned(self) -> None:
        driver = ThreadedDriver(store := MemoryStore()).hung_commit()
        driver.fail()
        driver.after(100)
        driver.wait(lambda: driver.generation == 2)
        driver.ready()
        assert paths.committed(CheckpointId(1)) not in store.blobs
        driver.committer.gate.set()
        driver.wait(lambda: paths.committed(CheckpointId(1)) in store.blobs)
        assert driver.committer.calls == ["sweep 1", "commit 1", "commit 1"]
        coordinator = driver.supervisor.coordinator
        assert coordinator is not None
        driver.wait(lambda: coordinator.state.publishing is None)
        driver.after(1_000)
        driver.acknowledge(driver.triggered()[-1], OUTPUT)
        driver.wait(lambda: len(driver.committer.calls) == 4)
        assert driver.committer.inside_max == 1


def test_when_a_generation_has_begun_the_committers_refuse_the_one_before() -> None:
    driver = Driver(MemoryStore())
    committers = Committers({WRITE: driver.committer}, driver.clock)
    driver.supervisor = Supervisor(
        driver.plan,
        SETTINGS,
        committers,
        driver.worker_group,
        driver.clock,
        driver.transport,
        driver.background,
        driver.store,
    )
    driver.started().ready().fail()
    driver.pass_time(500)
    assert driver.generation == 2
    with pytest.raises(PenstockError, match="sweep of generation 1 is refused, because generation 2 has begun"):
        committers.discard_uncommitted(Generation(1))
    assert driver.committer.calls == ["sweep 1", "sweep 2"]


class TestTwoDrivers:
    def test_the_older_one_stops_with_an_error_and_does_not_restart(self) -> None:
        store = MemoryStore()
        older = Driver(store).started().ready()
        newer = Driver(store).started().ready()
        assert newer.generation == 2
        older.pass_time(3_000)
        older.acknowledge(1)
        older.pass_time(3_000)
        assert older.phase is Phase.FAILED
        assert isinstance(older.supervisor.error, FencedError)
        assert older.worker_group.launched == [(1, None)]
        assert (older.worker_group.cancelled, older.supervisor.restarts) == ([1], 0)
        assert newer.phase is Phase.RUNNING

    def test_the_older_one_publishes_nothing_of_a_checkpoint_that_it_could_not_complete(self) -> None:
        store = MemoryStore()
        older = Driver(store).started().ready()
        older.pass_time(1_500)
        newer = Driver(store).started().ready()
        older.acknowledge(1, OUTPUT)
        assert older.committer.calls == ["sweep 1"]
        number = newer.checkpoint(OUTPUT)
        assert newer.committer.calls == ["sweep 2", f"commit {number}"]
        assert isinstance(older.supervisor.error, FencedError)

    def test_the_older_one_does_not_take_the_directory_back_when_it_restarts(self) -> None:
        store = MemoryStore()
        older = Driver(store).started().ready()
        newer = Driver(store).started().ready()
        older.fail()
        older.pass_time(5_000)
        assert (older.phase, older.worker_group.launched) == (Phase.FAILED, [(1, None)])
        assert isinstance(older.supervisor.error, FencedError)
        assert newer.checkpoint()
        assert newer.phase is Phase.RUNNING

    def test_both_may_start_at_once_and_one_of_them_owns_it(self) -> None:
        store = MemoryStore()
        one, other = Driver(store), Driver(store)
        one.supervisor.start()
        other.supervisor.start()
        one.background.run()
        other.background.run()
        assert {one.generation, other.generation} == {1, 2}

    def test_nor_when_nothing_is_left_of_its_own_files(self) -> None:
        # The newer one has cleared away what it needs no more, the licence of the older one first.
        store = MemoryStore()
        older = Driver(store).started().ready()
        newer = Driver(store).started().ready()
        newer.checkpoint()
        newer.pass_time(1_000)
        assert paths.reserved(CheckpointId(1)) not in store.blobs
        assert paths.manifest(CheckpointId(1)) not in store.blobs
        older.fail()
        older.pass_time(5_000)
        assert (older.phase, older.worker_group.launched) == (Phase.FAILED, [(1, None)])
        assert isinstance(older.supervisor.error, FencedError)
        assert newer.phase is Phase.RUNNING

    def test_the_older_one_publishes_nothing_although_nothing_is_left_that_would_stop_it(self) -> None:
        store = MemoryStore()
        older = Driver(store).started().ready()
        older.pass_time(1_500)
        newer = Driver(store).started().ready()
        number = newer.checkpoint(OUTPUT)
        newer.pass_time(1_000)
        assert paths.manifest(CheckpointId(1)) not in store.blobs
        older.acknowledge(1, OUTPUT)
        assert older.committer.calls == ["sweep 1"]
        assert isinstance(older.supervisor.error, FencedError)
        assert newer.committer.calls == ["sweep 2", f"commit {number}"]
        assert paths.manifest(CheckpointId(1)) not in store.blobs
        ((_, restored),) = Driver(store).started().worker_group.launched
        assert restored is not None
        assert restored.checkpoint == number
