"""The log in the checkpoint directory: bounded, whole after a kill, and never in anybody's way."""

from __future__ import annotations

import logging
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest

from penstock.driver.observation import kept_log
from penstock.driver.observation.kept_log import (
    SEGMENT_CHARACTERS_MAX,
    SEGMENT_LINES_MAX,
    SEGMENTS_MAX,
    KeptLog,
    Segment,
)
from penstock.driver.observation.log_ring import TEXT_MAX, LogRing
from penstock.errors import StorageError
from penstock.mailbox.notes import LogLine
from penstock.storage import LocalStore, MemoryStore, paths

PATIENCE_S = 60.0
KILLED = """
import logging, os, signal, sys
from penstock.driver.observation import kept_log
from penstock.driver.observation.log_ring import LogRing
from penstock.storage import LocalStore

store = LocalStore(sys.argv[1])
logger = logging.getLogger("penstock")
kept_log.keep(logger, LogRing("orders"), store, 7)
logger.warning("pipeline orders: the last words of a driver")
while not store.list("logs/"):
    pass
os.kill(os.getpid(), signal.SIGKILL)
"""


def line(number: int, text: str = "") -> LogLine:
    return LogLine(1_000 + number, "WARNING", text or f"line {number}")


def wait_for(holds: Callable[[], object]) -> None:
    until = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < until, "it does not come"
        time.sleep(0.005)


def texts(store: MemoryStore | LocalStore, lines_max: int = 10_000) -> list[str]:
    return [each.text for each in kept_log.read(store, lines_max)[0]]


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(kept_log, "PERIOD_S", 0.001)
    yield


def written(ring: LogRing, store: MemoryStore, started_ms: int = 1) -> None:
    kept = KeptLog(ring, store, started_ms).start()
    kept.close()


def test_a_killed_driver_leaves_its_log(tmp_path: Path) -> None:
    killed = subprocess.run([sys.executable, "-c", KILLED, str(tmp_path)], check=False, timeout=PATIENCE_S)
    assert killed.returncode == -signal.SIGKILL
    assert texts(LocalStore(tmp_path)) == ["pipeline orders: the last words of a driver"]


def test_lines_of_several_drivers_are_in_order_and_the_newest_are_shown() -> None:
    store = MemoryStore()
    for driver in (1, 2):
        ring = LogRing("orders")
        for number in range(3):
            ring.add(line(number, f"{driver}.{number}"))
        written(ring, store, driver)
    assert texts(store) == ["1.0", "1.1", "1.2", "2.0", "2.1", "2.2"]
    assert texts(store, 2) == ["2.1", "2.2"]


def test_it_is_bounded_and_says_what_is_not_kept(quick: None) -> None:
    store, ring = MemoryStore(), LogRing("orders", lines_max=100_000)
    total = (SEGMENTS_MAX + 3) * SEGMENT_LINES_MAX
    for number in range(total):
        ring.add(line(number))
    written(ring, store)
    found, lost = kept_log.read(store, 10**6)
    assert len(store.list(paths.LOGS)) == SEGMENTS_MAX
    assert len(found) == SEGMENTS_MAX * SEGMENT_LINES_MAX and found[-1].text == f"line {total - 1}"
    assert lost == 3 * SEGMENT_LINES_MAX


def test_long_lines_begin_another_segment_sooner() -> None:
    store, ring = MemoryStore(), LogRing("orders")
    for number in range(200):
        ring.add(line(number, "x" * TEXT_MAX))
    written(ring, store)
    sizes = [len(store.read(path)) for path in store.list(paths.LOGS)]
    assert len(sizes) > 2 and max(sizes) < SEGMENT_CHARACTERS_MAX + 2 * TEXT_MAX + 100 * SEGMENT_LINES_MAX
    assert len(texts(store)) == 200


def test_lines_that_the_ring_has_lost_are_counted() -> None:
    store, ring = MemoryStore(), LogRing("orders", lines_max=10)
    for number in range(25):
        ring.add(line(number))
    written(ring, store)
    found, lost = kept_log.read(store, 100)
    assert (found[0].text, len(found), lost) == ("line 15", 10, 15)


def test_a_segment_grows_until_it_is_full(quick: None) -> None:
    store, ring = MemoryStore(), LogRing("orders")
    kept = KeptLog(ring, store, 1).start()
    for number in range(5):
        ring.add(line(number))
        wait_for(lambda count=number + 1: len(texts(store)) == count)  # type: ignore[misc]
    assert len(store.list(paths.LOGS)) == 1
    kept.close()


class Failing(MemoryStore):
    """Fails until it is told otherwise; or hangs."""

    def __init__(self) -> None:
        super().__init__()
        self.tries = 0
        self.is_broken = True
        self.hangs = threading.Event()
        self.hangs.set()

    def write(self, path: str, parts: object) -> None:
        self.tries += 1
        self.hangs.wait(PATIENCE_S)
        if self.is_broken:
            raise StorageError("503 slow down")
        super().write(path, parts)  # type: ignore[arg-type]


def test_a_store_that_fails_is_said_once_and_the_lines_are_tried_again(
    quick: None, caplog: pytest.LogCaptureFixture
) -> None:
    store, ring = Failing(), LogRing("orders")
    logger = logging.getLogger("penstock")
    with caplog.at_level(logging.WARNING, "penstock"):
        close = kept_log.keep(logger, ring, store, 1)
        logger.warning("pipeline orders: first")
        wait_for(lambda: store.tries >= 4)
        store.is_broken = False
        wait_for(lambda: "pipeline orders: first" in texts(store))
        close()
    assert sum("cannot be written" in each for each in caplog.messages) == 1
    assert texts(store)[0] == "pipeline orders: first"


def test_a_store_that_hangs_holds_up_nobody_who_logs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept_log, "_CLOSE_S", 0.01)
    store, ring = Failing(), LogRing("orders")
    store.hangs.clear()
    logger = logging.getLogger("penstock")
    close = kept_log.keep(logger, ring, store, 1)
    try:
        for number in range(50):
            logger.warning("pipeline orders: %d", number)
        wait_for(lambda: store.tries)
        assert len(ring.lines) == 50
        close()
        assert ring not in logger.filters
    finally:
        store.is_broken = False
        store.hangs.set()


def test_a_segment_that_cannot_be_read_is_left_out() -> None:
    store = MemoryStore()
    store.write(paths.log(1, 0), [b"\xff nonsense"])
    store.write(paths.log(2, 0), [msgspec.json.encode(Segment(first=0, lines=(line(1),)))])
    assert texts(store) == ["line 1"]
