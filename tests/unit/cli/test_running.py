"""What Ctrl-C, the time limit and failures do to a job that is watched."""

from __future__ import annotations

import itertools
import os
import signal
import threading

import pytest

from penstock.cli.progress.readings import Reading
from penstock.cli.running import Watch, signals_to
from penstock.errors import JobFailed, PenstockError
from penstock.protocol.barrier import BarrierFlag
from tests.unit.cli.kit import FakeJob, record


class Said:
    """A display that remembers what was said."""

    def __init__(self) -> None:
        self.remarks: list[str] = []
        self.is_open = False

    def open(self) -> None:
        self.is_open = True

    def show(self, reading: Reading) -> None:
        assert self.is_open

    def say(self, text: str) -> None:
        self.remarks.append(text)

    def note(self, text: str) -> None:
        self.say(text)

    def close(self, reading: Reading) -> None:
        self.is_open = False


def test_a_pipeline_that_ends_by_itself_is_finished() -> None:
    job, said = FakeJob(), Said()
    job.records = (record(4, flags=BarrierFlag.DRAIN),)
    job.end()
    assert Watch(job, said).run().startswith("finished: all input is read")
    assert job.stops == []
    assert not said.is_open


def test_an_interrupt_stops_with_a_savepoint() -> None:
    job, said = FakeJob(), Said()
    watch = Watch(job, said)
    watch.interrupt()
    assert watch.run() == "stopped with savepoint 9: run the same command again to go on from there"
    assert job.stops == [True]
    assert said.remarks == ["stopping with a savepoint (Ctrl-C again: at once)"]


def test_a_second_interrupt_stops_at_once() -> None:
    hangs = threading.Event()
    job, said = FakeJob(drain=lambda: hangs.wait(10) and None), Said()
    watch = Watch(job, said)
    watch.interrupt()
    watch.interrupt()
    job.records = (record(3),)
    assert watch.run() == "stopped: run the same command again to go on from checkpoint 3"
    assert job.stops == [True, False]
    hangs.set()


def test_a_savepoint_that_is_complete_in_spite_of_a_second_interrupt_is_told_of_as_such() -> None:
    job, said = FakeJob(), Said()
    job.records = (record(3),)
    is_draining = threading.Event()

    def drain() -> None:
        # Complete, and the second interrupt comes before the pipeline has ended.
        job.records = (record(4, flags=BarrierFlag.SAVEPOINT | BarrierFlag.DRAIN),)
        is_draining.set()

    job._drain = drain
    watch = Watch(job, said)
    watch.interrupt()
    watch.interrupt()
    ending = watch.run()
    assert is_draining.is_set()
    assert said.remarks[-1] == "stopping at once, without waiting for the savepoint"
    assert ending == "stopped; savepoint 4 was completed: run the same command again to go on from it"


def test_without_draining_the_first_interrupt_stops_at_once() -> None:
    job = FakeJob()
    watch = Watch(job, Said(), drain=False)
    watch.interrupt()
    assert watch.run() == "stopped: run the same command again to go on from where this run began"
    assert job.stops == [False]


def test_the_time_limit_is_like_an_interrupt() -> None:
    job, clock = FakeJob(), itertools.count(0.0, 0.5)
    watch = Watch(job, Said(), limit_s=2.0, monotonic=lambda: next(clock))
    assert watch.run().startswith("stopped with savepoint 9")
    assert job.stops == [True]


def test_the_time_limit_begins_when_the_workers_are_up() -> None:
    job, clock = FakeJob(), itertools.count(0.0, 0.5)
    workers, job.worker_processes = job.worker_processes, {}
    looks = 0

    def monotonic() -> float:
        nonlocal looks
        looks += 1
        if looks == 20:
            job.worker_processes = workers
        return next(clock)

    Watch(job, Said(), limit_s=1.0, monotonic=monotonic).run()
    assert job.stops == [True]
    assert looks > 20


def test_where_no_savepoint_can_be_taken_the_pipeline_is_stopped_all_the_same() -> None:
    def refuse() -> None:
        raise PenstockError("it was declined")

    job, said = FakeJob(drain=refuse), Said()
    watch = Watch(job, said)
    watch.interrupt()
    watch.run()
    assert job.stops == [True, False]
    assert said.remarks[-1] == "no savepoint could be taken (it was declined): stopping at once"


def test_what_the_pipeline_failed_with_is_raised_and_the_display_closed() -> None:
    job, said = FakeJob(), Said()
    job.failure = JobFailed("it gave up")
    job.end()
    with pytest.raises(JobFailed, match="it gave up"):
        Watch(job, said).run()
    assert not said.is_open


@pytest.mark.filterwarnings("error")
def test_a_pipeline_that_ends_just_before_it_is_stopped_has_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(drain: bool = False, timeout: float | None = None) -> None:
        job.end()
        raise JobFailed("it has ended")

    job = FakeJob()
    monkeypatch.setattr(job, "stop", stop)
    watch = Watch(job, Said(), drain=False)
    watch.interrupt()
    assert watch.run().startswith("stopped")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signals_interrupt_and_are_put_back_afterwards(number: signal.Signals) -> None:
    before, seen = signal.getsignal(number), []
    with signals_to(lambda number, frame: seen.append(number)):
        os.kill(os.getpid(), number)
    assert seen == [number]
    assert signal.getsignal(number) is before
