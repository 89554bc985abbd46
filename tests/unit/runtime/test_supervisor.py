"""The supervisor: attempt after attempt, until the pipeline is finished, given up, or somebody else's."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TypeVar

import pytest

from penstock.errors import FencedError, JobFailed, NoReadableCheckpoint, PenstockError, StorageError
from penstock.ids import CheckpointId, Generation, WorkerId
from penstock.plan.physical import PhysicalPlan, plan
from penstock.protocol.barrier import BarrierFlag
from penstock.protocol.coordinator_events import RequestCompleted, RequestDeclined, RequestResult
from penstock.protocol.coordinator_state import Policy, RequestKind
from penstock.protocol.declines import DeclineReason
from penstock.protocol.manifest import Committable, Manifest, SubtaskReport
from penstock.protocol.restart import RestartPolicy
from penstock.runtime.frames import (
    AcknowledgeFrame,
    DeclineFrame,
    EndedFrame,
    FailedFrame,
    HeartbeatFrame,
    ReadyFrame,
    StopFrame,
    TriggerFrame,
)
from penstock.runtime.supervisor import Phase, Supervisor, SupervisorSettings
from penstock.storage import paths
from penstock.storage.memory import MemoryStore
from penstock.storage.port import Data
from tests.unit.runtime.fake_ports import (
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
SETTINGS = SupervisorSettings(
    Policy(interval_ms=1_000, expiry_ms=5_000, failures_tolerable=1, backoff_ms=10),
    RestartPolicy(failures_max=3, window_ms=60_000, delay_ms=100, delay_ms_max=400),
    silence_ms_max=2_000,
    start_ms_max=10_000,
)
ON_REQUEST = replace(SETTINGS, policy=replace(SETTINGS.policy, interval_ms=None))
OUTPUT = Committable(WRITE, 0, b"file")


class ListGang:
    """Remembers what was launched and what was cancelled."""

    def __init__(self) -> None:
        self.launched: list[tuple[Generation, Manifest | None]] = []
        self.cancelled: list[Generation] = []

    def launch(self, generation: Generation, settled: PhysicalPlan, manifest: Manifest | None) -> None:
        self.launched.append((generation, manifest))

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

    def sweep(self, generation: Generation) -> None:
        if "sweep" in self.sink.failing:
            raise ValueError("cannot sweep")
        self.calls.append(f"sweep {generation}")


class Driver:
    """A supervisor under test; the workers are played by hand."""

    def __init__(self, store: MemoryStore, settings: SupervisorSettings = SETTINGS) -> None:
        self.store = store
        self.plan = plan(read(Numbers({})), 1, workers=2)
        self.gang, self.clock, self.transport = ListGang(), ManualClock(), ListTransport()
        self.background = ManualBackground()
        self.sink = Staging()
        self.committer = SweepingCommitter(self.sink)
        self.supervisor = Supervisor(
            self.plan,
            settings,
            {WRITE: self.committer},
            self.gang,
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
        return self.gang.launched[-1][0]

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
        assert (driver.phase, driver.gang.launched) == (Phase.CLAIMING, [])
        driver.background.run()
        assert (driver.phase, driver.gang.launched) == (Phase.RUNNING, [(1, None)])
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
        assert driver.gang.cancelled == [1]
        assert [(to, frame) for to, frame in driver.transport.sent if isinstance(frame, StopFrame)] == [
            (WorkerId(0), StopFrame(Generation(1))),
            (WorkerId(1), StopFrame(Generation(1))),
        ]
        assert str(driver.supervisor.error) == "read[0] on worker 0: out of memory"
        driver.pass_time(100)
        assert driver.gang.launched == [(1, None), (2, None)]
        assert (driver.phase, driver.supervisor.restarts) == (Phase.RUNNING, 1)

    def test_the_delay_doubles_and_then_it_gives_up_with_the_cause(self) -> None:
        driver = Driver(MemoryStore()).started()
        for delay_ms in (100, 200, 400):
            driver.fail()
            driver.pass_time(delay_ms - 50)
            assert driver.phase is Phase.WAITING
            driver.pass_time(50)
            assert driver.phase is Phase.RUNNING
        driver.fail("the last straw")
        assert driver.phase is Phase.FAILED
        assert driver.supervisor.has_ended
        error = driver.supervisor.error
        assert isinstance(error, JobFailed)
        assert "the pipeline gave up: 4 failures within 60 s, and 3 are allowed. The last one: " in str(error)
        assert "the last straw" in str(error.__cause__)
        driver.pass_time(10_000)
        driver.supervisor.start()
        assert len(driver.gang.launched) == 4

    def test_failures_of_long_ago_are_forgiven(self) -> None:
        driver = Driver(MemoryStore()).started()
        for _ in range(6):
            driver.ready()
            driver.fail()
            driver.pass_time(25_000)
        assert driver.phase is Phase.RUNNING
        assert len(driver.gang.launched) == 7

    def test_the_gang_s_word_counts_for_the_attempt_that_it_is_about(self) -> None:
        driver = Driver(MemoryStore()).started()
        driver.supervisor.on_gang_failed(Generation(7), PenstockError("of another time"))
        assert driver.phase is Phase.RUNNING
        driver.supervisor.on_gang_failed(Generation(1), PenstockError("an executor died"))
        assert driver.phase is Phase.WAITING
        driver.supervisor.on_gang_failed(Generation(1), PenstockError("and another one"))
        assert str(driver.supervisor.error) == "an executor died"
        assert driver.supervisor.restarts == 1

    def test_frames_of_an_older_generation_change_nothing(self) -> None:
        driver = Driver(MemoryStore()).started()
        driver.fail()
        driver.pass_time(100)
        driver.supervisor.deliver(FailedFrame(Generation(1), WorkerId(0), "a late one"))
        driver.supervisor.deliver(ReadyFrame(Generation(1), WorkerId(0)))
        assert driver.phase is Phase.RUNNING

    def test_a_worker_without_a_subtask_to_blame_is_named_alone(self) -> None:
        driver = Driver(MemoryStore()).started()
        driver.supervisor.deliver(FailedFrame(Generation(1), WorkerId(1), "no room"))
        assert str(driver.supervisor.error) == "worker 1: no room"

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
        assert driver.gang.launched[1:] == [(2, None)]
        assert "no sign of life from worker 1: it hangs, or its host is gone" in str(driver.supervisor.error)

    def test_the_first_word_may_take_longer(self) -> None:
        driver = Driver(MemoryStore(), ON_REQUEST).started()
        driver.pass_time(9_900, beating=())
        assert driver.phase is Phase.RUNNING
        driver.pass_time(600, beating=())
        assert "no sign of life from worker 0, 1" in str(driver.supervisor.error)

    def test_after_the_first_word_silence_is_silence(self) -> None:
        driver = Driver(MemoryStore(), ON_REQUEST).started().ready()
        driver.pass_time(2_600, beating=(0,))
        assert "no sign of life from worker 1" in str(driver.supervisor.error)

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
        assert driver.gang.cancelled == [1]

    def test_a_drain_ends_it_and_its_answer_comes_first(self) -> None:
        driver = Driver(MemoryStore()).started().ready()
        answers: list[RequestResult] = []
        driver.supervisor.request(RequestKind.DRAIN, answers.append)
        driver.pass_time(100)
        (frame,) = [frame for to, frame in driver.transport.sent if to == 0 and isinstance(frame, TriggerFrame)]
        assert frame.barrier.flags & BarrierFlag.DRAIN
        driver.acknowledge(int(frame.barrier.checkpoint))
        assert [type(answer) for answer in answers] == [RequestCompleted]
        assert driver.phase is Phase.FINISHED

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
            RequestDeclined(DeclineReason.DRAINED, "the pipeline has finished"),
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
        launched = len(driver.gang.launched)
        driver.supervisor.stop()
        for _ in range(100):
            driver.clock.advance(50)
            driver.supervisor.timers.fire()
            driver.background.run()
        assert (driver.phase, len(driver.gang.launched)) == (Phase.FINISHED, launched)


class TestRestoring:
    def test_the_next_attempt_starts_from_the_newest_checkpoint(self) -> None:
        driver = Driver(MemoryStore()).started().ready()
        driver.checkpoint()
        newest = driver.checkpoint()
        driver.fail()
        driver.pass_time(100)
        generation, manifest = driver.gang.launched[-1]
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
        assert (driver.phase, driver.gang.launched) == (Phase.FAILED, [])
        for _ in range(100):
            driver.clock.advance(100)
            driver.supervisor.timers.fire()
            driver.background.run()
        assert driver.gang.launched == []

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

    def create(self, path: str, data: Data) -> bool:
        if self.fails("create", path):
            raise StorageError(f"cannot create {path}")
        return super().create(path, data)

    def list(self, prefix: str) -> list[str]:
        if self.fails("list", prefix):
            raise StorageError(f"cannot list {prefix}")
        return super().list(prefix)


class TestTrouble:
    def test_a_store_that_does_not_answer_is_tried_again(self) -> None:
        store = Unreliable()
        store.fails = lambda what, path: what == "list"
        driver = Driver(store).started()
        assert (driver.phase, driver.gang.launched) == (Phase.WAITING, [])
        store.fails = lambda what, path: False
        driver.clock.advance(100)
        driver.supervisor.timers.fire()
        driver.background.run()
        assert (driver.phase, driver.gang.launched) == (Phase.RUNNING, [(1, None)])

    def test_a_sink_that_cannot_be_swept_is_tried_again(self) -> None:
        driver = Driver(MemoryStore())
        driver.sink.failing.add("sweep")
        driver.started()
        assert driver.phase is Phase.WAITING
        driver.sink.failing.clear()
        driver.clock.advance(100)
        driver.supervisor.timers.fire()
        driver.background.run()
        assert (driver.phase, driver.gang.launched) == (Phase.RUNNING, [(2, None)])

    def test_a_restart_that_stumbles_after_it_owned_the_directory_is_not_fenced_by_itself(self) -> None:
        driver = Driver(MemoryStore()).started().ready()
        driver.fail()
        driver.sink.failing.add("sweep")
        driver.pass_time(100)
        assert driver.phase is Phase.WAITING
        driver.sink.failing.clear()
        driver.pass_time(200)
        assert (driver.phase, driver.generation) == (Phase.RUNNING, 3)

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
        assert driver.phase is Phase.RUNNING


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
        assert older.gang.launched == [(1, None)]
        assert (older.gang.cancelled, older.supervisor.restarts) == ([1], 0)
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
        assert (older.phase, older.gang.launched) == (Phase.FAILED, [(1, None)])
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
        assert (older.phase, older.gang.launched) == (Phase.FAILED, [(1, None)])
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
        ((_, restored),) = Driver(store).started().gang.launched
        assert restored is not None
        assert restored.checkpoint == number
