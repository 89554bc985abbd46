"""The gang on a session that does as told: Spark Connect, one that was stopped, one whose tasks do not start."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from typing import Any

import pytest

from penstock.driver.attempts.phases import HoldUp
from penstock.errors import SessionStopped, WorkerEnvironment
from penstock.graph.physical import plan
from penstock.ids import CheckpointId, Generation
from penstock.protocol.ownership import Reservation
from penstock.spark import worker_group as gang_module
from penstock.spark.sessions import is_stopped
from penstock.spark.slots import Slots
from penstock.spark.task import WorkerLaunch
from penstock.spark.worker_group import SparkWorkerGroup, StoreAddress
from penstock.worker.settings import WorkerSettings
from tests.unit.mailbox.fake_ports import Numbers, read

G = Generation(1)
HANG_S = 60.0


class Session:
    """Spark Connect, as far as a gang sees it. `job` is what happens when its job runs."""

    def __init__(self, job: Callable[[], None]) -> None:
        self.job = job
        self.is_stopped = False
        self.conf = {"spark.master": "local[2]"}
        self.tags: list[str] = []

    def addTag(self, tag: str) -> None:
        self.tags.append(tag)

    def interruptTag(self, tag: str) -> None:
        pass

    def range(self, *arguments: int) -> Session:
        return self

    def mapInArrow(self, function: object, schema: str, barrier: bool) -> Session:
        return self

    def collect(self) -> None:
        self.job()


class Reports:
    def __init__(self) -> None:
        self.failures: queue.Queue[Exception] = queue.Queue()
        self.hold_ups: queue.Queue[HoldUp | None] = queue.Queue()

    def launched(self, session: Session) -> SparkWorkerGroup:
        spark: Any = session
        worker_group = SparkWorkerGroup(
            spark,
            "p",
            WorkerSettings(),
            StoreAddress("unused", {}),
            None,
            lambda generation, error: self.failures.put(error),
            lambda generation, hold_up: self.hold_ups.put(hold_up),
            start_timeout_ms=300_000,
        )
        worker_group.launch(G, plan(read(Numbers({})), 2, workers=2), None, Reservation(CheckpointId(1), G))
        return worker_group


def raising(text: str) -> Callable[[], None]:
    def job() -> None:
        raise RuntimeError(text)

    return job


@pytest.mark.parametrize(
    "text",
    [
        "Job 0 cancelled because SparkContext was shut down",
        "[NO_ACTIVE_SESSION] No active Spark session found",
        "[INVALID_HANDLE.SESSION_CLOSED] The handle is invalid",
    ],
)
def test_a_job_that_ends_because_its_session_was_stopped_says_so_in_a_sentence(text: str) -> None:
    reports = Reports()
    worker_group = reports.launched(Session(raising(text)))
    error = reports.failures.get(timeout=HANG_S)
    assert isinstance(error, SessionStopped)
    assert "start the pipeline again on a new session" in str(error)
    worker_group.close()


def test_a_worker_waits_for_the_others_as_long_as_the_driver_does(monkeypatch: pytest.MonkeyPatch) -> None:
    launches: queue.Queue[WorkerLaunch] = queue.Queue()
    monkeypatch.setattr(SparkWorkerGroup, "_run_job", lambda group, launch: launches.put(launch))
    worker_group = Reports().launched(Session(raising("nothing runs")))
    assert launches.get(timeout=HANG_S).welcome_ms_max == 300_000
    worker_group.close()


def test_nothing_is_submitted_to_a_session_that_was_stopped() -> None:
    def never() -> None:
        raise AssertionError("a job was submitted")

    session, reports = Session(never), Reports()
    session.is_stopped = True
    worker_group = reports.launched(session)
    assert isinstance(reports.failures.get(timeout=HANG_S), SessionStopped)
    worker_group.close()


def test_a_context_without_its_jvm_was_stopped() -> None:
    class Context:
        _jsc = None

    class Classic:
        _sc = Context()

    spark: Any = Classic()
    assert is_stopped(spark)


def test_other_failures_are_not_taken_for_that() -> None:
    reports = Reports()
    worker_group = reports.launched(Session(raising("ModuleNotFoundError: No module named 'penstock'")))
    assert isinstance(reports.failures.get(timeout=HANG_S), WorkerEnvironment)
    worker_group.close()


def test_tasks_that_spark_connect_does_not_start_are_spoken_of(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gang_module, "_SUBMITTED_S", 0.05)
    gate, reports = threading.Event(), Reports()
    worker_group = reports.launched(Session(lambda: gate.wait(HANG_S) and None))
    # With Spark Connect nobody can be asked before.
    assert reports.hold_ups.get(timeout=HANG_S) is None
    told = reports.hold_ups.get(timeout=HANG_S)
    assert told is not None
    assert told.text.startswith("no worker has reported yet")
    worker_group.cancel(G)
    gate.set()
    worker_group.close()


@pytest.mark.parametrize(("holders", "is_held_up"), [((), False), (("another query",), True)])
def test_tasks_that_run_and_are_not_in_the_status_yet_are_no_hold_up(
    monkeypatch: pytest.MonkeyPatch, holders: tuple[str, ...], is_held_up: bool
) -> None:
    """The scheduler knows of two tasks, the status of jobs of none: on a busy host it lags behind."""
    monkeypatch.setattr(gang_module, "_SUBMITTED_S", 0.05)
    monkeypatch.setattr(gang_module, "tasks_of", lambda spark, tag: 0)
    slots = iter([Slots(2, 0), *[Slots(2, 2, holders)] * 1_000])
    monkeypatch.setattr(gang_module, "slots_of", lambda spark, own: next(slots))
    gate, reports = threading.Event(), Reports()
    worker_group = reports.launched(Session(lambda: gate.wait(HANG_S) and None))
    assert reports.hold_ups.get(timeout=HANG_S) is None, "before the job is submitted both slots are free"
    assert (reports.hold_ups.get(timeout=HANG_S) is not None) == is_held_up
    worker_group.cancel(G)
    gate.set()
    worker_group.close()
