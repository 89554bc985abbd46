"""A PySpark data source as a sink: what a user wrote for `writeStream`, unchanged.

One call of the user's `write` takes what one subtask gets between two checkpoints, and the message that it returns is
the committable. Because `write` pulls from an iterator, it runs in a separate thread; the iterator ends at the
checkpoint.
"""

from __future__ import annotations

import base64
import copy
import json
import threading
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from penstock.columnar.schemas.schema_diff import differences
from penstock.connectors.sink import Committer, Prepared, Sink, SinkWriter, nothing_prepared
from penstock.connectors.spark.messages import decode_message, encode_message, message_classes
from penstock.connectors.spark.rows import arrow_schema, make_data_source, require_data_source, rows_of, spark_schema
from penstock.connectors.spark.task_context import task_context
from penstock.connectors.threads import Closed, call_optional, call_user
from penstock.errors import DataError, PipelineError, StorageError
from penstock.ids import CheckpointId, Generation

_BYTES_WAITING_MAX = 1024 * 1024
"""A writer with this many bytes waiting wants no more for the moment."""
_SECONDS_WAITING_MAX = 0.1
"""Nor does a writer that needs this long for the rows that wait: a checkpoint waits for them."""
_ROWS_PER_SECOND_FIRST = 1_000.0
_JOIN_SECONDS = 0.1
_LOOK_AGAIN_SECONDS = 0.1


class SparkSink(Sink):
    """Writes to a `pyspark.sql.datasource.DataSource` that has a `streamWriter`. **Exactly once**, if it is on Spark.

        stream.sink(SparkSink(Orders, {"path": "/data/orders"}), name="orders")

    Each subtask calls `write` once per checkpoint, with Rows or, for a `DataSourceStreamArrowWriter`, with batches;
    not at all if it has no records. When the checkpoint is durable, the driver calls `commit(messages, batchId)` once
    with the messages of all subtasks; `batchId` is the number of the checkpoint, counted on from the old directory
    after a restore into another one. After a crash it is called again with the same arguments. So `write` must not
    publish, and `commit` must not mind being called twice.

    A message is a dataclass of plain values: str, int, float, bool, None, bytes, lists, tuples, dicts, dataclasses.
    Its class must be in the module of the data source or of its writer, or be named in `messages`.

    The traps: `batchId` grows, but not by one. `abort` is never called: the driver does not know the messages of a
    checkpoint that failed, and some of them are published with the next one; clean up by age what was written and
    never committed. `streamWriter` is called in every worker and in the driver. In `write`, the partition of
    `TaskContext.get()` is the subtask, and its attempt another one in each call.

    Example:

        from dataclasses import dataclass
        from pyspark.sql.datasource import DataSource, DataSourceStreamWriter, WriterCommitMessage

        published = {}

        @dataclass
        class Written(WriterCommitMessage):
            amounts: list

        class Orders(DataSource):
            def streamWriter(self, schema, overwrite):
                return OrdersWriter()

        class OrdersWriter(DataSourceStreamWriter):
            def write(self, iterator):
                return Written([row.amount for row in iterator])

            def commit(self, messages, batchId):
                published[batchId] = [amount for message in messages for amount in message.amounts]

        orders.sink(SparkSink(Orders, messages=[Written]))
        run(pipeline)
        assert sum(published.values(), []) == [10, 20, 30]
    """

    def __init__(
        self,
        data_source: type,
        options: Mapping[str, Any] | None = None,
        *,
        overwrite: bool = False,
        messages: Sequence[type] = (),
    ) -> None:
        from pyspark.sql.datasource import DataSource

        require_data_source("SparkSink", data_source)
        self.data_source = data_source
        self.options = dict(options or {})
        self.overwrite = overwrite
        self.where = f"SparkSink of '{call_user('SparkSink', 'name', data_source.name)}'"  # type: ignore[attr-defined]
        if data_source.streamWriter is DataSource.streamWriter:  # type: ignore[attr-defined]
            raise PipelineError(f"{self.where} does not implement streamWriter, so it cannot be written to")
        if not all(isinstance(each, type) for each in messages):
            raise PipelineError(f"{self.where}: messages is {messages!r}: it must be a list of classes")
        self.messages = list(messages)
        # Looked up here, in the driver: in a worker the module of a notebook is another one.
        self.message_names = frozenset(message_classes(data_source, messages))

    def identity(self) -> Mapping[str, str]:
        return {**super().identity(), "data source": self.where}

    def stream_writer(self, schema: pa.Schema) -> tuple[Any, Any]:
        """A stream writer of the user's, and the schema that it was told."""
        struct = spark_schema(schema)
        made = call_user(self.where, "making it", make_data_source, self.data_source, self.options)
        cure = "nothing can be written to it"
        return call_optional(self.where, "streamWriter", cure, made.streamWriter, struct, self.overwrite), struct

    def writer(self, subtask: int, generation: Generation) -> SinkWriter:
        return _Writer(self, subtask)

    def committer(self) -> Committer:
        return _Committer(self)


@dataclass(slots=True)
class _Epoch:
    """What is written between two checkpoints. The thread fills in the result."""

    is_done: threading.Event = field(default_factory=threading.Event)
    committables: list[bytes] = field(default_factory=list)
    error: BaseException | None = None


class _Writer(SinkWriter):
    """Hands batches to the thread that runs the user's `write`, one call after the other."""

    def __init__(self, sink: SparkSink, subtask: int) -> None:
        self._sink = sink
        self._subtask = subtask
        self._where = f"{sink.where}, subtask {subtask}"
        self._schema: pa.Schema | None = None
        self._has_rows = False
        self._bytes_waiting = 0
        self._rows_waiting = 0
        self._rows_per_second = _ROWS_PER_SECOND_FIRST
        self._entries: deque[pa.RecordBatch | _Epoch] = deque()
        self._changed = threading.Condition()
        self._is_closed = False
        self._error: BaseException | None = None
        self._made: tuple[Any, Any] | None = None
        self._thread: threading.Thread | None = None

    # --- on the mailbox thread ---

    def write(self, batch: pa.RecordBatch) -> None:
        if not batch.num_rows:
            return
        adapted = self._adapted(batch)
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="penstock-write", daemon=True)
            self._thread.start()
        self._has_rows = True
        with self._changed:
            self._raise_if_failed()
            self._entries.append(adapted)
            self._bytes_waiting += adapted.nbytes
            self._rows_waiting += adapted.num_rows
            self._changed.notify()

    def _adapted(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The batch as Spark would show it to a writer. Raises `DataError`."""
        if self._schema is None:
            try:
                self._schema = _nullable(arrow_schema(spark_schema(batch.schema)))
            except DataError as error:
                raise DataError(f"{self._where}: {error}") from error
        said = sorted(self._schema.names) != sorted(batch.schema.names) and differences(self._schema, batch.schema)
        if said:
            raise DataError(f"{self._where}: the columns changed from one batch to the next: {said}")
        try:
            return batch.select(self._schema.names).cast(self._schema)
        except (pa.ArrowException, NotImplementedError, ValueError) as error:
            raise DataError(
                f"{self._where}: a batch does not fit the schema of the first one: {error}. Cast in front of the sink"
            ) from error

    @property
    def wants_input(self) -> bool:
        if self._error is not None:
            return True  # to hear of it in `write`
        rows_max = self._rows_per_second * _SECONDS_WAITING_MAX
        return self._rows_waiting == 0 or (self._rows_waiting < rows_max and self._bytes_waiting < _BYTES_WAITING_MAX)

    def prepare(self) -> Prepared:
        epoch = _Epoch()
        with self._changed:
            self._raise_if_failed()
            if not self._has_rows:
                return nothing_prepared
            self._has_rows = False
            self._entries.append(epoch)
            self._changed.notify()

        def finish() -> Sequence[bytes]:
            while not epoch.is_done.wait(_LOOK_AGAIN_SECONDS):
                if self._is_closed:
                    # Nobody waits for it any more, and user code that is stuck must not keep this thread.
                    raise StorageError(f"{self._where} was closed before its output was complete")
            if epoch.error is not None:
                raise epoch.error
            return epoch.committables

        return finish

    def _raise_if_failed(self) -> None:
        if self._error is not None:
            raise self._error

    def close(self) -> None:
        """What is being written is given up: the iterator of `write` raises, so that it does not take it for all."""
        with self._changed:
            self._is_closed = True
            self._changed.notify()
        if self._thread is not None:
            self._thread.join(_JOIN_SECONDS)

    # --- in the thread ---

    def _run(self) -> None:
        try:
            while True:
                self._write_epoch()
        except BaseException as error:  # a thread that dies in silence would be a pipeline that stands still
            self._fail(error)

    def _fail(self, error: BaseException) -> None:
        if isinstance(error, Closed):
            error = StorageError(f"{self._where} was closed before its output was complete")
        with self._changed:
            self._error = error
            left = [entry for entry in self._entries if isinstance(entry, _Epoch)]
        for epoch in left:
            epoch.error = error
            epoch.is_done.set()

    def _write_epoch(self) -> None:
        batches = _Batches(self)
        batches.peek()
        assert self._schema is not None
        if self._made is None:
            self._made = self._sink.stream_writer(self._schema)
        # Spark writes with a copy in every task, so what one call leaves in the object is not there in the next one.
        writer, struct = copy.deepcopy(self._made[0]), self._made[1]
        records = batches if _is_arrow(writer) else _Rows(batches, struct)
        with task_context(self._subtask):
            message = call_user(self._where, "write", writer.write, records)
        batches.drain()
        encoded = encode_message(message, self._sink.message_names, self._where)
        committable = {"schema": base64.b64encode(self._schema.serialize()).decode(), "message": encoded}
        epoch = self._next()
        assert isinstance(epoch, _Epoch)
        epoch.committables = [json.dumps(committable).encode()]
        self._take()
        epoch.is_done.set()

    def _next(self) -> pa.RecordBatch | _Epoch:
        """The entry at the front, which stays there. Raises `Closed`."""
        with self._changed:
            while not self._entries and not self._is_closed:
                self._changed.wait()
            if self._is_closed:
                raise Closed
            return self._entries[0]

    def _take(self) -> None:
        with self._changed:
            entry = self._entries.popleft()
            if not isinstance(entry, _Epoch):
                self._bytes_waiting -= entry.nbytes
                self._rows_waiting -= entry.num_rows

    def _measured(self, rows: int, seconds: float) -> None:
        rate, known = rows / max(seconds, 1e-6), self._rows_per_second
        # Slowing down is learnt at once, as for the slices of a chain.
        self._rows_per_second = rate if rate < known / 2 else 0.7 * known + 0.3 * rate


def _nullable(schema: pa.Schema) -> pa.Schema:
    """Whether a column may be null is said by the first batch for itself, and not for those that follow."""
    return pa.schema([field.with_nullable(True) for field in schema])


class _Batches(Iterator[pa.RecordBatch]):
    """The batches up to the cut, each of which is waited for."""

    def __init__(self, writer: _Writer) -> None:
        self._writer = writer
        self._rows = 0
        """Those of the last batch, since when the user's code works on it."""
        self._since = 0.0

    def peek(self) -> None:
        """Wait for the first one."""
        self._writer._next()

    def __next__(self) -> pa.RecordBatch:
        if self._rows:
            self._writer._measured(self._rows, time.monotonic() - self._since)
            self._rows = 0
        entry = self._writer._next()
        if isinstance(entry, _Epoch):
            raise StopIteration
        self._writer._take()
        self._rows, self._since = entry.num_rows, time.monotonic()
        return entry

    def drain(self) -> None:
        """A `write` that does not want the rest does not get it, as on Spark."""
        for _ in self:
            pass


class _Rows(Iterator[Any]):
    """The rows of batches."""

    def __init__(self, batches: _Batches, struct: Any) -> None:
        self._batches = batches
        self._struct = struct
        self._rows: Iterator[Any] = iter(())

    def __next__(self) -> Any:
        while True:
            for row in self._rows:
                return row
            self._rows = rows_of(next(self._batches), self._struct)


def _is_arrow(writer: Any) -> bool:
    from pyspark.sql.datasource import DataSourceStreamArrowWriter

    return isinstance(writer, DataSourceStreamArrowWriter)


class _Committer(Committer):
    """Calls the user's `commit`, in the driver."""

    def __init__(self, sink: SparkSink) -> None:
        self._sink = sink

    def commit(self, checkpoint: CheckpointId, committables: Sequence[bytes]) -> None:
        """All messages in one call: a sink that knows a batch by its number would drop those of a second one."""
        sink = self._sink
        where = f"{sink.where}, checkpoint {checkpoint}"
        classes = message_classes(sink.data_source, sink.messages)
        read = [_read(committable, where) for committable in committables]
        messages = [decode_message(message, classes, where) for _, message in read]
        writer, _ = sink.stream_writer(read[0][0])
        call_user(where, "commit", writer.commit, messages, int(checkpoint))


def _read(committable: bytes, where: str) -> tuple[pa.Schema, Any]:
    try:
        read = json.loads(committable)
        return pa.ipc.read_schema(pa.py_buffer(base64.b64decode(read["schema"]))), read["message"]
    except (ValueError, TypeError, KeyError, pa.ArrowException) as error:
        raise StorageError(f"{where}: {committable[:80]!r} is not a committable of a SparkSink") from error
