"""Ctrl-C in a script: handlers of others are respected, and a pipeline is stopped only by a Ctrl-C in `wait`."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from typing import Any, cast

import pytest
from pyspark.sql import SparkSession

from penstock.driver.attempts.phases import Phase
from penstock.protocol.history import CheckpointRecord
from penstock.spark import interrupts
from penstock.spark.cancellation import cancel_other_jobs
from penstock.spark.interrupts import Stopping, _Handler
from tests.unit.cli.kit import FakeJob, status


def of_pyspark(number: int, frame: object) -> None:
    raise AssertionError("PySpark's handler would cancel the pipeline")


of_pyspark.__module__ = "pyspark.core.context"


@pytest.fixture(autouse=True)
def restored() -> Iterator[None]:
    before = signal.getsignal(signal.SIGINT)
    yield
    signal.signal(signal.SIGINT, before)


class Handler(_Handler):
    """One of its own for each test, and a note of the sessions whose other jobs were cancelled."""


@pytest.fixture
def cancelled(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    sessions: list[object] = []
    monkeypatch.setattr(interrupts, "cancel_other_jobs", sessions.append)
    return sessions


def press() -> None:
    os.kill(os.getpid(), signal.SIGINT)


def test_outside_of_wait_ctrl_c_ends_the_other_jobs_and_not_the_pipeline(cancelled: list[object]) -> None:
    signal.signal(signal.SIGINT, of_pyspark)
    handler = Handler()
    assert handler.install()
    handler.add(1, cast(SparkSession, "session"))
    with pytest.raises(KeyboardInterrupt):
        press()
    assert cancelled == ["session"]


def test_without_a_pipeline_the_handler_before_has_its_way(cancelled: list[object]) -> None:
    signal.signal(signal.SIGINT, of_pyspark)
    handler = Handler()
    handler.install()
    handler.add(1, cast(SparkSession, "session"))
    handler.remove(1)
    with pytest.raises(AssertionError, match="PySpark's handler"):
        press()
    assert cancelled == []


def test_in_wait_it_is_counted_and_nothing_is_raised(cancelled: list[object]) -> None:
    signal.signal(signal.SIGINT, signal.default_int_handler)
    handler, stopping = Handler(), Stopping(FakeJob(), lambda text: None)
    with handler.waiting(stopping) as is_installed:
        assert is_installed
        press()
    assert stopping.has_begun
    assert cancelled == []
    # As it was: a notebook wants its own in the next cell.
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_handler_of_the_user_is_left_alone() -> None:
    seen: list[int] = []
    signal.signal(signal.SIGINT, lambda number, frame: seen.append(number))
    handler, stopping = Handler(), Stopping(FakeJob(), lambda text: None)
    assert not handler.install()
    with handler.waiting(stopping) as is_installed:
        assert not is_installed
        press()
    assert (seen, stopping.has_begun) == ([signal.SIGINT], False)


def test_in_another_thread_nothing_is_installed() -> None:
    found: list[bool] = []
    thread = threading.Thread(target=lambda: found.append(Handler().install()))
    thread.start()
    thread.join()
    assert found == [False]


@pytest.mark.parametrize("phase", [Phase.CLAIMING, Phase.WAITING_FOR_SLOTS, Phase.STARTING])
def test_a_pipeline_that_has_not_begun_is_stopped_at_once(phase: Phase) -> None:
    job, said = FakeJob(), list[str]()
    job.now = status(phase=phase)
    stopping = Stopping(job, said.append)
    stopping.interrupt()
    stopping.react()
    while not job.wait(0.01):
        pass
    assert job.stops == [False]
    assert said == ["stopping: no worker has begun yet, so there is nothing to save"]


def test_nothing_happens_before_somebody_interrupts() -> None:
    job = FakeJob()
    Stopping(job, lambda text: None).react()
    assert job.stops == []


class Jobs:
    """A context of Spark with three jobs, one of which is a pipeline's."""

    tags = {1: "penstock-12ab-1", 2: "", 3: "mine"}  # noqa: RUF012

    def __init__(self) -> None:
        self.cancelled: list[int] = []
        self._jsc = self

    def __getattr__(self, name: str) -> Any:
        return lambda *arguments: self

    def getActiveJobsIds(self) -> list[int]:
        return sorted(self.tags)

    def job(self, number: int) -> Jobs:
        self.asked = number
        return self

    def mkString(self, separator: str) -> str:
        return self.tags[self.asked]

    def cancelJob(self, number: int) -> None:
        self.cancelled.append(number)


def test_jobs_of_pipelines_are_not_among_the_others() -> None:
    class Session:
        _sc = Jobs()

    cancel_other_jobs(cast(SparkSession, Session()))
    assert Session._sc.cancelled == [2, 3]


def test_the_end_is_told_with_the_way_to_go_on() -> None:
    records: tuple[CheckpointRecord, ...] = ()
    assert interrupts.ending_text(records, "start it again") == (
        "stopped: start it again to go on from where this run began"
    )
