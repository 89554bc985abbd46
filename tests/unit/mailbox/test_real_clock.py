"""The clock of a worker process, and what it leaves out."""

from __future__ import annotations

import gc
import os
from pathlib import Path

import pytest

from penstock.exchange import zmq_transport
from penstock.exchange.zmq_transport import RealClock


@pytest.fixture
def schedule(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file as Linux keeps it for each thread, and time that stands still at 9 ms."""
    path = tmp_path / "schedstat"
    path.write_text("7000000 0 1\n")
    monkeypatch.setattr(zmq_transport, "_SCHEDULE", str(path))
    monkeypatch.setattr(zmq_transport.time, "monotonic_ns", lambda: 9_000_000)
    return path


def test_its_own_time_leaves_out_for_how_long_the_thread_had_to_wait_for_a_core(schedule: Path) -> None:
    schedule.write_text("7000000 2000000 2\n")
    clock = RealClock()
    assert (clock.own_us(), clock.now_us()) == (7_000, 9_000)


def test_where_the_system_does_not_say_its_own_time_is_all_time(schedule: Path) -> None:
    schedule.unlink()
    clock = RealClock()
    assert [clock.own_us(), clock.own_us()] == [9_000, 9_000]


def test_the_file_is_closed_with_the_clock(schedule: Path) -> None:
    clock = RealClock()
    clock.own_us()
    opened = clock._schedule
    assert opened is not None
    os.fstat(opened)
    del clock
    gc.collect()
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(opened)


def test_its_own_time_never_goes_back(schedule: Path) -> None:
    clock = RealClock()
    assert clock.own_us() == 9_000
    schedule.write_text("7000000 2000000 2\n")
    assert clock.own_us() == 9_000, "the delay came between the readings of the time and of the file"


def test_on_this_system_its_own_time_goes_on_and_is_never_ahead() -> None:
    clock = RealClock()
    times = [clock.own_us() for _ in range(3)]
    assert times == sorted(times)
    assert times[-1] <= clock.now_us()
