"""Directories of sockets: a process that ends leaves none, and one that was killed leaves it to the next."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.exchange.socket_directory import SocketDirectory, sweep
from penstock.exchange.zmq_transport import ZmqTransport, make_secrets
from penstock.ids import WorkerId


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    yield tmp_path


def left_by_killed_process(temporary: Path) -> Path:
    """The directory of a process that was killed with SIGKILL while it had one."""
    code = "from penstock.exchange.socket_directory import SocketDirectory as D; print(D().path, flush=True); input()"
    process = subprocess.Popen(
        [sys.executable, "-c", code],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "TMPDIR": str(temporary)},
    )
    assert process.stdout is not None
    path = Path(process.stdout.readline().strip())
    sweep()
    assert path.is_dir(), "its owner lives"
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert path.is_dir()
    return path


def test_a_transport_that_is_closed_leaves_nothing(temporary: Path) -> None:
    transport = ZmqTransport(WorkerId(0), make_secrets())
    assert [path.name for path in temporary.glob("penstock-*/inbox")] == ["inbox"]
    transport.close()
    assert not list(temporary.iterdir())


def test_the_directory_of_a_killed_process_is_removed_at_the_next_start(temporary: Path) -> None:
    left = left_by_killed_process(temporary)
    directory = SocketDirectory()
    assert not left.exists() and directory.path.is_dir()
    directory.close()


def test_and_at_the_end_of_a_process_that_outlives_it(temporary: Path) -> None:
    directory = SocketDirectory()
    left = left_by_killed_process(temporary)
    directory.close()
    assert not left.exists() and not list(temporary.iterdir())


def test_a_directory_of_another_host_is_left(temporary: Path) -> None:
    left = left_by_killed_process(temporary)
    (left / "lock").write_text("another host")
    sweep()
    assert left.is_dir()


def test_a_directory_that_is_being_made_or_is_somebody_elses_is_left(temporary: Path) -> None:
    making, other = temporary / "penstock-making", temporary / "penstock-demo-x"
    for directory, name in ((making, ".lock"), (other, "file")):
        directory.mkdir()
        (directory / name).touch()
    sweep()
    assert making.is_dir() and other.is_dir()


def test_a_temporary_directory_that_is_gone_is_no_error(temporary: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(temporary / "gone"))
    sweep()
