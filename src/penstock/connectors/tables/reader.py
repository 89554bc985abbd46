"""Reads a table that grows: the files of one version, then those that later versions add, dealt out to splits.

Files are dealt out to a fixed number of splits by a hash of their names. Each split goes through the versions of the
table in order, and passes over the files of others. So a position is small however long the table lives: a version, a
file of it, and a row. The format of the table is behind `TableLog`, which may answer "not yet": catalogs and logs are
read beside the mailbox, see `Answers`.
"""

from __future__ import annotations

import functools
import json
import threading
import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

import pyarrow as pa

from penstock.connectors.source import END_OF_SPLIT, Backlog, SplitReader

_WAIT_S = 0.002


class TableFile(Protocol):
    """A file that one split reads."""

    @property
    def path(self) -> str: ...

    @property
    def rows(self) -> int | None:
        """None if the table does not say."""
        ...

    @property
    def size(self) -> int:
        """In bytes."""
        ...


class TableLog(Protocol):
    """The versions of a table, as one worker sees them."""

    @property
    def split_count(self) -> int: ...

    @property
    def is_bounded(self) -> bool: ...

    def is_end(self, version: int) -> bool:
        """Whether nothing behind this version is read."""
        ...

    def files(self, version: int, *, is_snapshot: bool) -> Sequence[TableFile] | None:
        """All files of a version, or those that it has added, in an order that does not change; None: not yet known."""
        ...

    def after(self, version: int) -> int | None:
        """The version that follows; None while the table has no newer one."""
        ...

    def rows_ahead(self, version: int) -> int:
        """Rows of later versions, of all splits, as far as they are known."""
        ...

    def rows_of(self, file: Any, version: int, skipped: int) -> Iterator[pa.RecordBatch]:
        """The rows of a file from row `skipped` on, in the schema of the source."""
        ...


class TableReader(SplitReader):
    """Reads the files of one split."""

    def __init__(self, log: TableLog, number: int, start: int, offset: bytes | None) -> None:
        self._log = log
        self._number = number
        self.is_bounded = log.is_bounded
        first: dict[str, Any] = {"version": start, "snapshot": True, "file": 0, "row": 0}
        position = json.loads(offset) if offset else first
        self._version: int = position["version"]
        self._is_snapshot: bool = position["snapshot"]
        self._file: int = position["file"]
        self._row: int = position["row"]
        self._batches: Iterator[pa.RecordBatch] | None = None
        # A version that was read to its end is not looked up again: it may be gone, and is not needed any more.
        self._files: list[Any] | None = [] if position.get("read") else None
        self._is_caught_up = False

    def read(self, rows_max: int) -> Any:
        files = self._current_files()
        if files is None:
            return None
        while self._file < len(files):
            if self._batches is None:
                self._batches = self._log.rows_of(files[self._file], self._version, self._row)
            batch = next(self._batches, None)
            if batch is None:
                self._file, self._row, self._batches = self._file + 1, 0, None
                continue
            if batch.num_rows > rows_max:
                self._batches = _with_rest(batch.slice(rows_max), self._batches)
                batch = batch.slice(0, rows_max)
            self._row += batch.num_rows
            return batch
        return END_OF_SPLIT if self._log.is_end(self._version) else self._next_version()

    def _current_files(self) -> list[Any] | None:
        if self._files is None:
            listed = self._log.files(self._version, is_snapshot=self._is_snapshot)
            if listed is not None:
                count = self._log.split_count
                self._files = [file for file in listed if zlib.crc32(file.path.encode()) % count == self._number]
        return self._files

    def _next_version(self) -> None:
        """Go on to the next version, if there is one."""
        version = self._log.after(self._version)
        self._is_caught_up = version is None
        if version is not None:
            self._version = version
            self._is_snapshot, self._file, self._row, self._files = False, 0, 0, None

    @property
    def is_caught_up(self) -> bool:  # type: ignore[override]
        return self._is_caught_up

    def backlog(self) -> Backlog | None:
        if self._files is None:
            return None
        left = self._files[self._file :]
        sizes = sum(file.size for file in left)
        if any(file.rows is None for file in left):
            return Backlog(bytes=sizes)
        # Later versions are dealt out when they are read: until then each split counts its share of them.
        share = self._log.rows_ahead(self._version) // self._log.split_count
        return Backlog(rows=max(0, sum(file.rows for file in left) - self._row) + share, bytes=sizes)

    def offset(self) -> bytes:
        position = {"version": self._version, "snapshot": self._is_snapshot, "file": self._file, "row": self._row}
        is_read = self._files is not None and self._file >= len(self._files)
        return json.dumps({**position, "read": True} if is_read else position).encode()

    def pause(self) -> None:
        self._batches = None

    def close(self) -> None:
        self._batches = None


def _with_rest(rest: pa.RecordBatch, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield rest
    yield from batches


class Answers:
    """Answers of a catalog, asked for beside the mailbox: the first call for a question starts a thread, and a later
    one has the answer, or raises its error. One question is under way at a time."""

    def __init__(self) -> None:
        self._thread: threading.Thread | None = None
        self._answered: dict[Any, Callable[[], Any]] = {}
        """Written by the thread, taken by the one who asked: splits ask in turns."""

    def ask(self, question: Any, call: Callable[[], Any]) -> Any:
        """The answer; None while it is under way."""
        if self._thread is not None:
            # A little waiting: most answers come within it, and the mailbox can spare it.
            self._thread.join(_WAIT_S)
            if self._thread.is_alive():
                return None
            self._thread = None
        if question in self._answered:
            return self._answered.pop(question)()
        self._thread = threading.Thread(target=self._run, args=(question, call), name="penstock-table", daemon=True)
        self._thread.start()
        return None

    def _run(self, question: Any, call: Callable[[], Any]) -> None:
        try:
            answer = call()
        except BaseException as error:  # raised where the question was asked
            self._answered[question] = functools.partial(_raise, error)
        else:
            self._answered[question] = lambda: answer


def _raise(error: BaseException) -> None:
    raise error


class Poll:
    """When to look again for something that was not there."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._looked_at: float | None = None

    def is_due(self) -> bool:
        return self._looked_at is None or time.monotonic() - self._looked_at >= self._seconds

    def looked(self) -> None:
        self._looked_at = time.monotonic()
