"""The log of a pipeline in its checkpoint directory: a killed driver leaves it behind.

Lines are kept in segments of a bounded size, and the newest few segments of all drivers of the directory. A segment is
written whole whenever it has grown, at most once in `PERIOD_S`: object stores cannot append. The thread that writes
belongs to nobody else, so a store that hangs holds up neither the mailbox nor whoever logs.

A line is lost if the driver is killed within a second after another one. Failures of the store are said once, and the
same lines are tried again later.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

import msgspec

from penstock.driver.observation.log_ring import LogRing
from penstock.errors import PenstockError
from penstock.mailbox.notes import LogLine
from penstock.storage import paths
from penstock.storage.port import Store

_log = logging.getLogger("penstock")

PERIOD_S = 1.0
RETRY_S_MAX = 60.0
SEGMENT_LINES_MAX = 250
SEGMENT_CHARACTERS_MAX = 250_000
SEGMENTS_MAX = 8
_CLOSE_S = 5.0
"""The end of a pipeline waits this long for the store."""


class Segment(msgspec.Struct, frozen=True, kw_only=True):
    """Lines of one driver, oldest first."""

    first: int
    """Lines of this driver before these, those included that were never written."""
    lines: tuple[LogLine, ...]


class KeptLog:
    """Writes the lines of `ring` to the store, in a thread for itself. `started_ms` names the driver."""

    def __init__(self, ring: LogRing, store: Store, started_ms: int) -> None:
        self._ring = ring
        self._store = store
        self._started_ms = started_ms
        self._grown = threading.Event()
        self._is_over = threading.Event()
        self._number = 0
        self._current = Segment(first=0, lines=())
        self._next = 0
        """Number of the first line that is in no segment yet."""
        self._is_written = True
        self._has_failed = False
        self._thread = threading.Thread(target=self._run, name=f"penstock-log-{ring.pipeline}", daemon=True)

    def start(self) -> KeptLog:
        self._ring.grown = self._grown.set
        self._thread.start()
        return self

    def close(self) -> None:
        """Write the last lines, if the store answers in time."""
        self._is_over.set()
        self._grown.set()
        self._thread.join(_CLOSE_S)

    def _run(self) -> None:
        wait_s = PERIOD_S
        while True:
            self._grown.wait()
            self._grown.clear()
            wait_s = PERIOD_S if self._write() else min(2 * wait_s, RETRY_S_MAX)
            if self._is_over.is_set():
                return
            if not self._is_written:
                self._grown.set()
            self._is_over.wait(wait_s)

    def _write(self) -> bool:
        """Bring the segments up to date; False if the store has failed."""
        try:
            while self._take():
                path = paths.log(self._started_ms, self._number)
                self._store.write(path, [msgspec.json.encode(self._current)])
                self._is_written = True
                self._prune()
        except Exception as error:
            if not self._has_failed:
                self._has_failed = True
                _log.warning(
                    "pipeline %s: its log cannot be written to its checkpoint directory; this is tried again: %s",
                    self._ring.pipeline,
                    error,
                )
            return False
        self._has_failed = False
        return True

    def _take(self) -> bool:
        """Put lines that are new into the current segment, or into another if it is full; False if there are none."""
        if not self._is_written:
            return True
        fresh, first = self._ring.since(self._next)
        if not fresh:
            return False
        is_gap = first > self._next
        if self._current.lines and (is_gap or self._is_full):
            self._number += 1
            self._current = Segment(first=first, lines=())
        elif is_gap:
            self._current = Segment(first=first, lines=())
        for line in fresh:
            if self._is_full:
                break
            self._current = Segment(first=self._current.first, lines=(*self._current.lines, line))
        self._next = self._current.first + len(self._current.lines)
        self._is_written = False
        return True

    @property
    def _is_full(self) -> bool:
        lines = self._current.lines
        return len(lines) >= SEGMENT_LINES_MAX or sum(len(each.text) for each in lines) >= SEGMENT_CHARACTERS_MAX

    def _prune(self) -> None:
        if doomed := self._store.list(paths.LOGS)[:-SEGMENTS_MAX]:
            self._store.delete(*doomed)


def keep(logger: logging.Logger, ring: LogRing, store: Store, started_ms: int) -> Callable[[], None]:
    """Let `ring` hear of `logger`, and keep its lines in the store; returns the call that ends both."""
    logger.addFilter(ring)
    kept = KeptLog(ring, store, started_ms).start()

    def close() -> None:
        logger.removeFilter(ring)
        kept.close()

    return close


def read(store: Store, lines_max: int) -> tuple[list[LogLine], int]:
    """The newest lines in a directory, oldest first, and the number of earlier lines that are not kept.

    Lines that `lines_max` leaves out do not count as lost. A segment that cannot be read is left out.
    """
    found: list[LogLine] = []
    lost = 0
    expected: dict[str, int] = {}
    for path in store.list(paths.LOGS):
        try:
            segment = msgspec.json.decode(store.read(path), type=Segment)
        except (PenstockError, msgspec.DecodeError, UnicodeDecodeError):
            continue
        driver = path.rpartition("-")[0]
        lost += max(0, segment.first - expected.get(driver, 0))
        expected[driver] = segment.first + len(segment.lines)
        found += segment.lines
    return found[-lines_max:], lost
