"""A PySpark data source as a source: what a user wrote for `spark.read` and `spark.readStream`, unchanged."""

from __future__ import annotations

import copy
import threading
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal, get_args

import pyarrow as pa

from penstock.connectors.source import END_OF_SPLIT, Source, SplitReader
from penstock.connectors.spark.reads import (
    BATCH_WEIGHT,
    BatchReading,
    Ended,
    Moved,
    PartitionedRanges,
    Position,
    Ranges,
    SimpleRanges,
    StreamReading,
    checksum_of,
    planned,
)
from penstock.connectors.spark.rows import RowsToArrow, make_data_source, require_data_source, struct_of
from penstock.connectors.threads import Feed, call_optional, call_user
from penstock.errors import IncompatibleCheckpoint, PipelineError
from penstock.model.units import Duration, duration_ms

Mode = Literal["stream", "available_now", "batch"]

_STREAM = "stream"
_ROWS_MAX = 1024
"""Rows that one call of `read` makes a batch of: it takes a few milliseconds, on the mailbox thread."""
_ROWS_WAITING_MAX = 2 * _ROWS_MAX


class SparkSource(Source):
    """Reads a `pyspark.sql.datasource.DataSource`.

        pipeline.source(SparkSource(Orders, {"path": "/data/orders"}), name="orders")

    | `mode` | uses | like |
    |---|---|---|
    | `"stream"` | `streamReader`, or else `simpleStreamReader` | `spark.readStream` |
    | `"available_now"` | the same, and ends when there is nothing more | `trigger(availableNow=True)` |
    | `"batch"` | `reader` | `spark.read` |

    `schema` overrides that of the data source. A stream is asked again `poll` after it had nothing new. A stream is
    one split: one subtask plans it and reads it, so put `rebalance()` behind it for work that takes long. In batch mode
    each partition is a split, and one worker reads `reads_at_once` of them at a time. `commit` of a stream reader is
    called when a checkpoint with that offset is durable; by the next start, if the reader is inside another call when
    the pipeline ends.

    The traps: the same offsets must give the same partitions, and a partition the same rows **in the same order**,
    whenever they are read; Spark itself does not need the order. A change is noticed where a failure has made a
    difference, and is an error. In batch mode the schema and the partitions are asked for here, in the driver; a
    stream reader is made in the worker, where its methods are called from a separate thread.

    Example:

        from pyspark.sql.datasource import DataSource, DataSourceReader

        class Numbers(DataSource):
            def schema(self):
                return "n bigint"

            def reader(self, schema):
                return NumbersReader()

        class NumbersReader(DataSourceReader):
            def read(self, partition):
                return iter([(1,), (2,)])

        pipeline = Pipeline("numbers")
        pipeline.source(SparkSource(Numbers, mode="batch")).sink(output)
        run(pipeline)
        assert output.rows() == [{"n": 1}, {"n": 2}]
    """

    def __init__(
        self,
        data_source: type,
        options: Mapping[str, Any] | None = None,
        *,
        schema: Any = None,
        mode: Mode = "stream",
        poll: Duration = "100 ms",
        reads_at_once: int = 4,
    ) -> None:
        require_data_source("SparkSource", data_source)
        if mode not in get_args(Mode):
            raise PipelineError(f"SparkSource: mode is {mode!r}: it must be one of {', '.join(get_args(Mode))}")
        if reads_at_once < 1:
            raise PipelineError(f"SparkSource: reads_at_once is {reads_at_once}: it must be at least 1")
        self.data_source = data_source
        self.options = dict(options or {})
        self.mode = mode
        self.is_endless = mode == "stream"
        self.poll_ms = duration_ms("SparkSource: poll", poll, at_least_ms=1)
        self.where = f"SparkSource of '{call_user('SparkSource', 'name', data_source.name)}'"  # type: ignore[attr-defined]
        made = call_user(self.where, "making it", make_data_source, data_source, self.options)
        self.struct = struct_of(self._schema_of(made) if schema is None else schema)
        self._slots = _Slots(reads_at_once)
        self._reader: Any = None
        self._partitions: Sequence[Any] = ()
        if mode == "batch":
            self._reader = self._made(made, "reader")
            self._partitions = planned(self.where, call_user(self.where, "partitions", self._reader.partitions))
        else:
            self._check_streams()

    def identity(self) -> Mapping[str, str]:
        # Without the options, which may hold secrets, and of which a part may change: a path, but also a timeout.
        how = "batch" if self.mode == "batch" else "stream"
        return {**super().identity(), "data source": self.where, "mode": how}

    def splits(self) -> Sequence[str]:
        if self.mode != "batch":
            return [_STREAM]
        return [f"{number}/{len(self._partitions)}" for number in range(len(self._partitions))]

    def open(self, split: str, offset: bytes | None) -> SplitReader:
        at = Position.decoded(offset, self.where) if offset else Position()
        rows_to_arrow = RowsToArrow(self.struct, self.where)
        if split not in self.splits():
            raise IncompatibleCheckpoint(
                f"{self.where}: the checkpoint holds the position of '{split}', and in mode '{self.mode}' there is "
                f"{', '.join(self.splits()) or 'nothing'} to read: the mode or the partitions have changed. Put them "
                f"back, or give the source another name to read all of it"
            )
        if self.mode == "batch":
            number = int(split.partition("/")[0])
            # Spark reads every partition with a separate copy, so nobody has made them fit for threads.
            reader, partition = copy.deepcopy((self._reader, self._partitions[number]))
            at = replace(at, partitions=len(self._partitions), partition=number)
            batch = BatchReading(reader, partition, at, rows_to_arrow, self.where)
            return _Reader(Feed(f"penstock-read-{split}", batch, _ROWS_WAITING_MAX), at, rows_to_arrow, self._slots)
        stream = StreamReading(
            self._make_ranges, at, rows_to_arrow, self.where, self.poll_ms / 1000, self.mode == "available_now"
        )
        feed = Feed("penstock-read-stream", stream, _ROWS_WAITING_MAX)
        return _Reader(feed, at, rows_to_arrow, _Slots(1), stream)

    def _schema_of(self, made: Any) -> Any:
        return call_optional(self.where, "schema", "give it with schema=…", made.schema)

    def _made(self, made: Any, method: str) -> Any:
        cure = f"mode '{self.mode}' needs it. Choose another mode"
        return call_optional(self.where, method, cure, getattr(made, method), self.struct)

    def _check_streams(self) -> None:
        from pyspark.sql.datasource import DataSource

        methods = "streamReader", "simpleStreamReader"
        if all(getattr(self.data_source, method) is getattr(DataSource, method) for method in methods):
            raise PipelineError(
                f"{self.where} implements neither streamReader nor simpleStreamReader, and mode '{self.mode}' needs "
                f"one of them. Choose mode='batch'"
            )

    def _make_ranges(self) -> Ranges:
        """A stream reader of the kind that the data source has, chosen as Spark does."""
        from pyspark.sql.datasource import DataSource

        made = call_user(self.where, "making it", make_data_source, self.data_source, self.options)
        if self.data_source.streamReader is DataSource.streamReader:  # type: ignore[attr-defined]
            return SimpleRanges(self._made(made, "simpleStreamReader"), self.where)
        return PartitionedRanges(self._made(made, "streamReader"), self.where)


class _Slots:
    """How many reads may go on at once in one process. Taken and given back on the mailbox thread."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._free = threading.Semaphore(count)

    def __reduce__(self) -> tuple[type[_Slots], tuple[int]]:
        return _Slots, (self._count,)

    def take(self) -> bool:
        return self._free.acquire(blocking=False)

    def give_back(self) -> None:
        self._free.release()


class _Reader(SplitReader):
    """Takes what a thread has read, and knows the position behind what it has returned."""

    def __init__(
        self,
        feed: Feed,
        at: Position,
        rows_to_arrow: RowsToArrow,
        slots: _Slots,
        stream: StreamReading | None = None,
    ) -> None:
        self._feed = feed
        self._at = at
        self._rows_to_arrow = rows_to_arrow
        self._slots = slots
        self._stream = stream
        self._has_slot = False
        self._has_ended = False
        self._rest: pa.RecordBatch | None = None
        self._last: pa.RecordBatch | None = None
        """The row in front of the position, if this reader has returned it."""

    def read(self, rows_max: int) -> Any:
        if self._has_ended:
            return END_OF_SPLIT
        if not self._feed.is_started:
            self._has_slot = self._has_slot or self._slots.take()
            if not self._has_slot:
                return None
            self._feed.start()
        failed = self._feed.failed
        if self._rest is not None:
            return self._returned(self._cut(self._rest, rows_max))
        while self._feed.entries:
            found = self._next(rows_max)
            if found is END_OF_SPLIT:
                return END_OF_SPLIT
            if found is not None and found.num_rows:
                return self._returned(found)
        if failed is not None:
            raise failed
        return None

    def _next(self, rows_max: int) -> Any:
        """What the next entry is to a caller of `read`; None for one that is ours alone."""
        entry = self._feed.entries[0]
        if isinstance(entry, Moved):
            self._feed.take()
            self._at, self._last = entry.position, None
            return None
        if isinstance(entry, Ended):
            self._has_ended = True
            self._give_back_slot()
            return END_OF_SPLIT
        if isinstance(entry, pa.RecordBatch):
            self._feed.take(BATCH_WEIGHT)
            self._feed.wake()
            return self._cut(self._rows_to_arrow.adapted(entry, self._place), rows_max)
        rows = self._take_rows(min(rows_max, _ROWS_MAX))
        return self._rows_to_arrow.batch_of(rows, self._at.rows, self._place)

    def _take_rows(self, rows_max: int) -> list[Any]:
        entries, rows = self._feed.entries, list[Any]()
        while entries and len(rows) < rows_max and not isinstance(entries[0], Moved | Ended | pa.RecordBatch):
            rows.append(self._feed.take())
        self._feed.wake()
        return rows

    def _cut(self, batch: pa.RecordBatch, rows_max: int) -> pa.RecordBatch:
        self._rest = batch.slice(rows_max) if batch.num_rows > rows_max else None
        return batch.slice(0, rows_max)

    def _returned(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        self._at = replace(self._at, rows=self._at.rows + batch.num_rows)
        self._last = batch.slice(batch.num_rows - 1)
        return batch

    @property
    def _place(self) -> str:
        return f" of partition {self._at.partition}"

    def offset(self) -> bytes:
        if self._last is not None:
            self._at, self._last = replace(self._at, last=checksum_of(self._last)), None
        return self._at.encoded()

    def on_checkpoint_complete(self, offset: bytes) -> None:
        """Everything in front of the range that `offset` lies in has been dealt with for good."""
        start = Position.decoded(offset, self._rows_to_arrow.where).start
        if self._stream is not None and start is not None:
            self._stream.durable = start
            self._feed.wake()

    def _give_back_slot(self) -> None:
        if self._has_slot:
            self._has_slot = False
            self._slots.give_back()

    def close(self) -> None:
        self._give_back_slot()
        self._feed.close()
        if self._stream is not None and self._feed.is_alive:
            self._stream.is_superseded = True
