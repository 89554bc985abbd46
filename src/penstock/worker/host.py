"""The process around a worker, for those who look at a pipeline: its memory, its log, and what its mailbox thread does.

A worker without a host, as in a simulator, tells nothing of these.
"""

from __future__ import annotations

import functools
import logging
import os
import sys
import threading
import time
from collections import Counter, deque
from collections.abc import Callable
from typing import Protocol, TypeAlias

from penstock.mailbox.activity import Activity
from penstock.mailbox.notes import LogLine, Stack
from penstock.user_code import strangeness

LINES_MAX = 200
"""Lines that wait for the next sign of life. With more, the oldest ones are dropped."""
LINES_SENT_MAX = 50
"""Lines of one sign of life."""
_TEXT_MAX = 4_000
PROFILE_S_MAX = 60.0
SAMPLES_PER_SECOND = 100
_DEPTH_MAX = 200
_LOOP = "run_worker"
Call: TypeAlias = tuple[str, str, int, int]
_whose = functools.lru_cache(4_096)(strangeness)
STACKS_MAX = 1_000
"""Different stacks of one profile: the most frequent ones are told of."""


class Host(Protocol):
    """What a worker asks of its process. Called by the mailbox, and returns at once."""

    def memory_bytes(self) -> int: ...

    def take_log(self) -> tuple[tuple[LogLine, ...], int]:
        """Lines since the last call, and the number of those that were dropped, since the start."""
        ...

    def profile(self, seconds: float, done: Callable[[int, float, tuple[Stack, ...]], None]) -> bool:
        """Look at the mailbox thread for some seconds, then call `done` in the mailbox. False if one is under way."""
        ...


class WorkerLog(logging.Handler):
    """Keeps warnings and errors that anything in the process logs, until a sign of life takes them along."""

    def __init__(self, activity: Activity) -> None:
        super().__init__(logging.WARNING)
        self.activity = activity
        self._lines: deque[LogLine] = deque()
        self._dropped = 0
        self._is_alone = False

    def __enter__(self) -> WorkerLog:
        root = logging.getLogger()
        # Without any handler Python writes warnings to standard error; with ours it would not any more.
        self._is_alone = not root.handlers
        root.addHandler(self)
        return self

    def __exit__(self, *_: object) -> None:
        # Spark uses the process again.
        logging.getLogger().removeHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        if self._is_alone and logging.lastResort is not None:
            logging.lastResort.handle(record)
        working = self.activity.working
        try:
            text = record.getMessage()
        except Exception:
            # A message that cannot be made is not worth a worker.
            text = str(record.msg)
        operator = None if working is None else working[0]
        # The handler's lock is held.
        self._lines.append(LogLine(round(1000 * record.created), record.levelname, text[:_TEXT_MAX], operator=operator))
        if len(self._lines) > LINES_MAX:
            self._lines.popleft()
            self._dropped += 1

    def take(self) -> tuple[tuple[LogLine, ...], int]:
        self.acquire()
        try:
            count = min(LINES_SENT_MAX, len(self._lines))
            return tuple(self._lines.popleft() for _ in range(count)), self._dropped
        finally:
            self.release()


class Process:
    """This process. `mailbox` is the number of the mailbox thread, `post` hands a call to it."""

    def __init__(self, mailbox: int, post: Callable[[Callable[[], None]], None], log: WorkerLog) -> None:
        self._mailbox = mailbox
        self._post = post
        self._log = log
        self._profiling: threading.Thread | None = None

    def memory_bytes(self) -> int:
        return resident_bytes()

    def take_log(self) -> tuple[tuple[LogLine, ...], int]:
        return self._log.take()

    def profile(self, seconds: float, done: Callable[[int, float, tuple[Stack, ...]], None]) -> bool:
        if self._profiling is not None and self._profiling.is_alive():
            return False

        def run() -> None:
            samples, took_s, stacks = sampled(self._mailbox, min(seconds, PROFILE_S_MAX), self._log.activity)
            self._post(lambda: done(samples, took_s, stacks))

        self._profiling = threading.Thread(target=run, name="penstock-profile", daemon=True)
        self._profiling.start()
        return True


def sampled(thread: int, seconds: float, activity: Activity) -> tuple[int, float, tuple[Stack, ...]]:
    """The stacks of a thread, looked at a hundred times a second: samples, seconds, the most frequent stacks first.

    Each has the operator that `activity` names at that moment.
    """
    counts: Counter[tuple[str | None, tuple[Call, ...]]] = Counter()
    started = time.monotonic()
    samples = 0
    while time.monotonic() - started < seconds:
        working, calls = activity.working, _calls(thread)
        if not calls:
            break
        samples += 1
        found = None if working is None else str(working[0]), calls
        if found in counts or len(counts) < 10 * STACKS_MAX:
            counts[found] += 1
        time.sleep(1 / SAMPLES_PER_SECOND)
    stacks = tuple(Stack(calls, count, operator) for (operator, calls), count in counts.most_common(STACKS_MAX))
    return samples, time.monotonic() - started, stacks


def _calls(thread: int) -> tuple[Call, ...]:
    """The calls that a thread is in, the outermost first; empty if there is no such thread."""
    frame = sys._current_frames().get(thread)
    calls: list[Call] = []
    while frame is not None and len(calls) < _DEPTH_MAX:
        code = frame.f_code
        calls.append((code.co_qualname, code.co_filename, frame.f_lineno or 0, _whose(code.co_filename)))
        frame = frame.f_back
    calls.reverse()
    # Of a worker, from its mailbox loop on: what Spark calls it with is the same in every stack.
    start = next((place for place, call in enumerate(calls) if call[0] == _LOOP), 0)
    return tuple(calls[start:])


def resident_bytes() -> int:
    """Resident memory of this process; 0 where the system does not say."""
    try:
        with open("/proc/self/statm", encoding="ascii") as statm:
            return int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        return 0
