"""Background work on real threads: bounded, daemonic, and with an outcome in any case."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
import time
from collections.abc import Callable

import pytest

from penstock.errors import PenstockError
from penstock.mailbox import threads
from penstock.mailbox.threads import Mail, ThreadBackground

HANG_S = 60.0


class Office:
    """A background, its mail, and what has come back."""

    def __init__(self, threads_max: int = 4) -> None:
        self.mail = Mail(lambda: None)
        self.name = f"office-{id(self)}"
        self.background = ThreadBackground(self.mail, threads_max, self.name)
        self.outcomes: list[object] = []

    def submit(self, work: Callable[[], object]) -> None:
        self.background.submit(work, self.outcomes.append)

    def wait(self, is_done: Callable[[], bool]) -> None:
        until = time.monotonic() + HANG_S
        while not is_done():
            assert time.monotonic() < until
            self.mail.deliver()
            time.sleep(0.001)

    @property
    def threads(self) -> list[threading.Thread]:
        return [thread for thread in threading.enumerate() if thread.name.startswith(self.name)]


def test_work_waits_behind_a_call_that_hangs_only_if_all_threads_hang() -> None:
    office, gate = Office(4), threading.Event()
    try:
        for _ in range(3):
            office.submit(gate.wait)
        for number in range(50):
            office.submit(lambda number=number: number)  # type: ignore[misc]
        office.wait(lambda: len(office.outcomes) == 50)
        assert office.outcomes == list(range(50))
    finally:
        gate.set()


def test_there_are_never_more_threads_than_it_may_have_and_all_are_daemonic() -> None:
    office, gate = Office(3), threading.Event()
    try:
        for _ in range(20):
            office.submit(gate.wait)
        assert len(office.threads) == 3
        assert all(thread.daemon for thread in office.threads)
    finally:
        gate.set()
    office.wait(lambda: len(office.outcomes) == 20)


def test_a_thread_without_work_ends_and_another_one_takes_its_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "_IDLE_S", 0.01)
    office = Office()
    office.submit(lambda: "first")
    office.wait(lambda: office.outcomes == ["first"] and not office.threads)
    office.submit(lambda: "second")
    office.wait(lambda: office.outcomes == ["first", "second"])


def test_a_closed_background_begins_nothing_and_tells_nobody() -> None:
    office, gate, begun = Office(1), threading.Event(), threading.Event()

    def hang() -> None:
        begun.set()
        gate.wait()

    office.submit(hang)
    office.submit(lambda: "never")
    assert begun.wait(HANG_S)
    office.background.close()
    office.submit(lambda: "never")
    gate.set()
    office.wait(lambda: not office.threads)
    office.mail.deliver()
    assert office.outcomes == []


@pytest.mark.parametrize("error", [SystemExit(3), asyncio.CancelledError("enough"), KeyboardInterrupt()])
def test_work_that_raises_what_is_no_exception_has_an_outcome_too(error: BaseException) -> None:
    def work() -> None:
        raise error

    office = Office()
    office.submit(work)
    office.wait(lambda: bool(office.outcomes))
    (outcome,) = office.outcomes
    assert isinstance(outcome, PenstockError) and outcome.__cause__ is error
    assert f"background work was ended by {type(error).__name__}" in str(outcome)


def test_a_call_that_hangs_does_not_keep_the_process_from_ending() -> None:
    code = (
        "import threading\n"
        "from penstock.mailbox.threads import Mail, ThreadBackground\n"
        "begun = threading.Event()\n"
        "def hang():\n"
        "    begun.set()\n"
        "    threading.Event().wait()\n"
        "ThreadBackground(Mail(lambda: None)).submit(hang, print)\n"
        "begun.wait()\n"
    )
    assert subprocess.run([sys.executable, "-c", code], timeout=HANG_S, check=False).returncode == 0
