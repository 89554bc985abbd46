"""A real file system that is full, or becomes read-only, while a pipeline runs: it says so, and goes on by itself."""

from __future__ import annotations

import contextlib
import logging
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.driver.attempts.phases import Phase
from penstock.protocol.history import Status
from penstock.storage import LocalStore
from tests.unit.driver.test_supervisor import Driver


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    place = tmp_path / "disk"
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(place)]
    if os.geteuid() != 0 or subprocess.run(mount, capture_output=True, check=False).returncode != 0:
        pytest.skip("a small file system of its own can be mounted by root only")
    try:
        yield place
    finally:
        subprocess.run(["umount", "-l", str(place)], check=True)


@contextlib.contextmanager
def full(disk: Path) -> Iterator[None]:
    filler = disk / "filler"
    with filler.open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(b"x" * 4096)
    yield
    filler.unlink()


@contextlib.contextmanager
def read_only(disk: Path) -> Iterator[None]:
    subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
    yield
    subprocess.run(["mount", "-o", "remount,rw", str(disk)], check=True)


@pytest.mark.parametrize(("broken", "says"), [(full, "The disk is full"), (read_only, "Read-only file system")])
def test_a_disk_that_takes_no_manifest_is_a_warning_at_once_and_the_pipeline_goes_on_when_it_does(
    broken: object, says: str, disk: Path, caplog: pytest.LogCaptureFixture
) -> None:
    driver = Driver(LocalStore(disk / "checkpoints")).started().ready()  # type: ignore[arg-type]
    first = driver.checkpoint()
    driver.pass_time(1_500)
    second = driver.triggered()[-1]
    with broken(disk):  # type: ignore[operator]
        driver.acknowledge(second)
        told = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
        assert any("No checkpoint completes before that succeeds" in text and says in text for text in told), told
        waiting = {record.checkpoint: record for record in driver.supervisor.checkpoints}[second]
        assert waiting.status is Status.IN_PROGRESS
        assert says in waiting.detail
        assert driver.phase is Phase.RUNNING
        assert says in driver.supervisor.progress.detail
    driver.pass_time(1_500)
    third = driver.triggered()[-1]
    driver.acknowledge(third)
    assert [record.checkpoint for record in driver.supervisor.checkpoints if record.is_completed] == [first, third]
    assert driver.supervisor.restarts == 0
