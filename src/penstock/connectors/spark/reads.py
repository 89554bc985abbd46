"""What a PySpark data source reads, as ranges of partitions that can be read again from a noted position.

In Spark the driver plans the range between two offsets and its partitions, and tasks read them. Here a stream is
one split, planned and read by one subtask, in one thread (decision 21). A position in it is JSON: the range, the number
of a partition, and how many of its rows have been read. Partitions are not stored: they are planned again.

The trap of a position in the middle of a partition: Spark reads a whole range again after a failure, and does not mind
another order. Here a changed order would lose some rows and repeat others. So a position holds a checksum of the last
row in front of it, and a row that is another one when it is read again is an error (I8).
"""

from __future__ import annotations

import inspect
import json
import zlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, TypeAlias

import pyarrow as pa

from penstock.connectors.spark.rows import RowsToArrow
from penstock.connectors.threads import Feed, call_user, close_quietly
from penstock.errors import RestoreError, UserCodeError

Offset: TypeAlias = dict[str, Any]
"""What a data source calls an offset: JSON."""


@dataclass(frozen=True, slots=True)
class Position:
    """Where reading goes on: behind `rows` rows of partition number `partition` between `start` and `end`.

    Without `end` no range is planned: everything in front of `start` has been read. Without `start` nothing has.
    """

    start: Offset | None = None
    end: Offset | None = None
    partitions: int = 0
    partition: int = 0
    rows: int = 0
    last: int | None = None
    """A checksum of the last row that was read of the partition."""

    def encoded(self) -> bytes:
        return json.dumps(asdict(self)).encode()

    @staticmethod
    def decoded(data: bytes, where: str) -> Position:
        try:
            return Position(**json.loads(data))
        except (ValueError, TypeError) as error:
            raise RestoreError(
                f"{where}: the checkpoint holds a position of another kind of source ({data[:80]!r}): put the old "
                f"source back, or give this one another name"
            ) from error


def checksum_of(row: pa.RecordBatch) -> int:
    """Of a batch of one row: the same for the same values, whatever buffers they are in."""
    return zlib.crc32(repr(row.to_pylist()).encode())


@dataclass(frozen=True, slots=True)
class Moved:
    """An entry of the feed: what follows is read from this position."""

    position: Position


@dataclass(frozen=True, slots=True)
class Ended:
    """An entry of the feed: nothing follows."""


@dataclass(frozen=True, slots=True)
class Range:
    """A planned range: up to `end`, in partitions that can each be read."""

    end: Offset | None
    partitions: int
    read: Callable[[int], Any]


class Ranges(ABC):
    """What can be asked of a stream reader, of either kind. All of it is user code, and runs in the reading thread."""

    def __init__(self, reader: Any, where: str) -> None:
        self.reader = reader
        self.where = where

    def initial(self) -> Offset:
        return self.offset("initialOffset", self.call("initialOffset"))

    @abstractmethod
    def following(self, start: Offset) -> Range | None:
        """What there is behind `start`, or None if there is nothing right now."""

    @abstractmethod
    def again(self, start: Offset, end: Offset) -> Range:
        """A range that was planned before."""

    def prepare_for_available_now(self) -> None:
        if hasattr(self.reader, "prepareForTriggerAvailableNow"):
            self.call("prepareForTriggerAvailableNow")

    def commit(self, end: Offset) -> None:
        self.call("commit", end)

    def stop(self) -> None:
        if hasattr(self.reader, "stop"):
            self.call("stop")

    def call(self, method: str, *arguments: Any) -> Any:
        return call_user(self.where, method, getattr(self.reader, method), *arguments)

    def offset(self, method: str, value: Any) -> Offset:
        """An offset as it will look after a restart, so that it always looks alike. Raises `UserCodeError`."""
        try:
            plain = json.loads(json.dumps(value))
        except (TypeError, ValueError) as error:
            plain = error
        if not isinstance(plain, dict):
            raise UserCodeError(
                f"{self.where}: {method} returned {value!r}. An offset is a dict of strings, numbers, booleans and "
                f"such dicts, because it is written to checkpoints as JSON"
            )
        return plain


class PartitionedRanges(Ranges):
    """Those of a `DataSourceStreamReader`."""

    def following(self, start: Offset) -> Range | None:
        end = self.offset("latestOffset", self._latest(start))
        return None if end == start else self.again(start, end)

    def _latest(self, start: Offset) -> Any:
        if not inspect.signature(self.reader.latestOffset).parameters:
            # As it was before Spark 4.2.
            return self.call("latestOffset")
        return self.call("latestOffset", start, self.call("getDefaultReadLimit"))

    def again(self, start: Offset, end: Offset) -> Range:
        partitions = planned(self.where, self.call("partitions", start, end))
        return Range(end, len(partitions), lambda number: self.call("read", partitions[number]))


class SimpleRanges(Ranges):
    """Those of a `SimpleDataSourceStreamReader`: one partition each, planned and read in one call."""

    def following(self, start: Offset) -> Range | None:
        answer = self.call("read", start)
        if not (isinstance(answer, tuple) and len(answer) == 2):
            raise UserCodeError(f"{self.where}: read returned {answer!r}, not an iterator and the next offset")
        rows, end = answer[0], self.offset("read", answer[1])
        if end != start:
            return Range(end, 1, lambda number: rows)
        if next(iter(rows), None) is not None:
            raise UserCodeError(
                f"{self.where}: read returned rows and the offset that it was given, {json.dumps(start)}. They would "
                f"be read again and again: return the offset behind the rows"
            )
        return None

    def again(self, start: Offset, end: Offset) -> Range:
        return Range(end, 1, lambda number: self.call("readBetweenOffsets", start, end))


def planned(where: str, partitions: Any) -> Sequence[Any]:
    """The partitions that a data source has planned. Raises `UserCodeError` if they are none."""
    from pyspark.sql.datasource import InputPartition

    if not isinstance(partitions, list | tuple) or not all(isinstance(each, InputPartition) for each in partitions):
        raise UserCodeError(f"{where}: partitions returned {partitions!r}, not a list of InputPartitions")
    return partitions


class StreamReading:
    """Reads a stream, range by range, into a feed. The work of one thread."""

    def __init__(
        self,
        make: Callable[[], Ranges],
        at: Position,
        rows_to_arrow: RowsToArrow,
        where: str,
        poll_seconds: float,
        is_bounded: bool,
    ) -> None:
        self._make = make
        self._at = at
        self._rows_to_arrow = rows_to_arrow
        self._where = where
        self._poll_seconds = poll_seconds
        self._is_bounded = is_bounded
        self._committed: Offset | None = None
        self.durable: Offset | None = None
        """Set by the mailbox: everything up to here is in a durable checkpoint."""
        self.is_superseded = False
        """Set by the mailbox: the reader was closed while this thread was inside user code. The next attempt reads
        the stream by now and may have committed a later offset, so nothing is committed here any more (I6)."""

    def __call__(self, feed: Feed) -> None:
        ranges = self._make()
        feed.on_wake = lambda: self._commit(ranges)
        try:
            self._read(feed, ranges)
        finally:
            # The last commit of a pipeline is made here, when the thread is told to end.
            self._commit(ranges)
            ranges.stop()

    def _read(self, feed: Feed, ranges: Ranges) -> None:
        if self._is_bounded:
            ranges.prepare_for_available_now()
        start = self._resume(feed, ranges)
        while True:
            self._commit(ranges)
            found = ranges.following(start)
            if found is not None:
                at = Position(start, found.end, found.partitions)
                feed.put(Moved(at))
                start = self._read_range(feed, found, at)
            elif self._is_bounded:
                feed.put(Ended())
                while True:  # to commit what becomes durable, until it is closed
                    feed.wait(self._poll_seconds)
            else:
                feed.wait(self._poll_seconds)

    def _resume(self, feed: Feed, ranges: Ranges) -> Offset:
        """Come to where no range is planned, and return the offset there."""
        at = self._at
        if at.start is None:
            self._committed = initial = ranges.initial()
            feed.put(Moved(Position(initial)))
            return initial
        if at.end is None:
            return at.start
        found = ranges.again(at.start, at.end)
        if found.partitions != at.partitions:
            raise RestoreError(
                f"{self._where}: between {json.dumps(at.start)} and {json.dumps(at.end)} there were {at.partitions} "
                f"partitions and now there are {found.partitions}: partitions must return the same for the same "
                f"offsets. Put the data back as they were, or restore another checkpoint"
            )
        return self._read_range(feed, found, at)

    def _read_range(self, feed: Feed, found: Range, at: Position) -> Offset:
        for number in range(at.partition, found.partitions):
            if number > at.partition:
                at = replace(at, partition=number, rows=0, last=None)
                feed.put(Moved(at))
            read_partition(feed, found, at, self._rows_to_arrow, self._where)
        assert found.end is not None
        feed.put(Moved(Position(found.end)))
        return found.end

    def _commit(self, ranges: Ranges) -> None:
        durable = self.durable
        if durable is not None and durable != self._committed and not self.is_superseded:
            self._committed = durable
            ranges.commit(durable)


BATCH_WEIGHT = 512
"""Weight of a batch in the feed, in rows."""


def read_partition(feed: Feed, found: Range, at: Position, rows_to_arrow: RowsToArrow, where: str) -> None:
    """Put the rows of a partition into the feed, without those in front of the position."""
    rows = found.read(at.partition)
    if not isinstance(rows, Iterator):
        raise UserCodeError(f"{where}: read returned a {type(rows).__name__}, not an iterator: yield the rows")
    try:
        for entry in _skipped(rows, at, rows_to_arrow, where):
            feed.put(entry, BATCH_WEIGHT if isinstance(entry, pa.RecordBatch) else 1)
    finally:
        close_quietly(rows)


def _skipped(rows: Iterator[Any], at: Position, rows_to_arrow: RowsToArrow, where: str) -> Iterator[Any]:
    left = at.rows
    while True:
        try:
            entry = call_user(where, "read", next, rows)
        except StopIteration:
            break
        if left == 0:
            yield entry
        elif isinstance(entry, pa.RecordBatch):
            skipped = min(left, entry.num_rows)
            left -= skipped
            if left == 0:
                _check_last(rows_to_arrow.adapted(entry.slice(skipped - 1, 1)), at, where)
                yield entry.slice(skipped)
        else:
            left -= 1
            if left == 0:
                _check_last(rows_to_arrow.batch_of([entry], at.rows - 1), at, where)
    if left:
        raise RestoreError(
            f"{where}: {at.rows} rows had been read of partition {at.partition}{_between(at)}, and now it has only "
            f"{at.rows - left}: put the data back, or restore another checkpoint"
        )


def _check_last(row: pa.RecordBatch, at: Position, where: str) -> None:
    if at.last is not None and checksum_of(row) != at.last:
        raise RestoreError(
            f"{where}: row {at.rows - 1} of partition {at.partition}{_between(at)} is not the one that was read there "
            f"before the failure. A partition must yield the same rows in the same order each time it is read: let "
            f"read sort them, or read from a snapshot of the data"
        )


def _between(at: Position) -> str:
    return "" if at.start is None else f" between {json.dumps(at.start)} and {json.dumps(at.end)}"


class BatchReading:
    """Reads one partition of a bounded reader into a feed. The work of one thread."""

    def __init__(self, reader: Any, partition: Any, at: Position, rows_to_arrow: RowsToArrow, where: str) -> None:
        self._found = Range(None, 1, lambda _: call_user(where, "read", reader.read, partition))
        self._at = at
        self._rows_to_arrow = rows_to_arrow
        self._where = where

    def __call__(self, feed: Feed) -> None:
        read_partition(feed, self._found, self._at, self._rows_to_arrow, self._where)
        feed.put(Ended())
