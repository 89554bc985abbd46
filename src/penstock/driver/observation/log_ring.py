"""The last warnings and errors of a pipeline: of its driver, and of its workers as their signs of life bring them."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable

from penstock.ids import WorkerId
from penstock.mailbox.notes import LogLine

LINES_MAX = 1_000
TEXT_MAX = 4_000
"""Characters of one line that are kept."""


class LogRing(logging.Filter):
    """Keeps the last lines of the logger that it is added to. `add` and `lines` are for any thread.

    A filter that lets everything pass, and no handler: with a handler of ours, Python would no longer write warnings to
    standard error where the user has none. A filter sees what is logged to its own logger, and not to those below.

    The trap: other pipelines of the process log to the same loggers. A line that names a pipeline is kept if it names
    this one; one that names none is kept by all.
    """

    def __init__(self, pipeline: str, lines_max: int = LINES_MAX) -> None:
        super().__init__()
        self.pipeline = pipeline
        self._lines: deque[LogLine] = deque(maxlen=lines_max)
        self._added = 0
        self.grown: Callable[[], None] | None = None
        """Called with each line, by whoever logs it: it must return at once."""
        self._lock = threading.Lock()
        self._dropped_by_workers: dict[WorkerId, int] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        if record.levelno >= logging.WARNING:
            self._keep(record)
        return True

    def _keep(self, record: logging.LogRecord) -> None:
        try:
            text = record.getMessage()
        except Exception:
            # A message that cannot be made is not worth a pipeline.
            text = str(record.msg)
        if text.startswith("pipeline ") and not text.startswith((f"pipeline {self.pipeline}", "pipeline '")):
            return
        self.add(LogLine(round(1000 * record.created), record.levelname, text[:TEXT_MAX]))

    def add(self, line: LogLine) -> None:
        with self._lock:
            self._added += 1
            self._lines.append(line)
        if self.grown is not None:
            self.grown()

    def since(self, number: int) -> tuple[list[LogLine], int]:
        """The lines from the `number`-th on that are still here, and the number of the first of them."""
        with self._lock:
            first = max(number, self._added - len(self._lines))
            return list(self._lines)[len(self._lines) - (self._added - first) :], first

    def dropped_by(self, worker: WorkerId, count: int) -> None:
        """A worker has not kept `count` lines since it started."""
        self._dropped_by_workers[worker] = max(count, self._dropped_by_workers.get(worker, 0))

    @property
    def lines(self) -> list[LogLine]:
        """Newest last."""
        return list(self._lines)

    @property
    def dropped(self) -> int:
        """Lines that are not here any more, or never were."""
        return self._added - len(self._lines) + sum(self._dropped_by_workers.values())
