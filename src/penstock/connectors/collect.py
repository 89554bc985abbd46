"""Output collected in the driver, for tests and notebooks."""

from __future__ import annotations

import base64
import json
import secrets
import threading
from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from penstock.connectors.sink import Committer, Prepared, Sink, SinkWriter, nothing_prepared
from penstock.errors import DataError
from penstock.ids import CheckpointId, Generation


class CollectSink(Sink):
    """Collects records in the driver, exactly once, as checkpoints complete.

        output = CollectSink()
        stream.sink(output)
        …
        output.rows()

    The traps: all of it travels through the checkpoints' manifests and stays in the driver's memory, so it is for small
    results. What was collected belongs to this object: a driver that starts again has only what comes after that.

    Example:

        orders.sink(output)
        run(pipeline)
        assert output.rows()[0]["amount"] == 10
        assert output.table().num_rows == sum(batch.num_rows for batch in output.batches()) == 3
    """

    outlives_driver = False

    def __init__(self) -> None:
        self._collected: dict[tuple[Any, ...], list[pa.RecordBatch]] = {}
        self._lock = threading.Lock()

    def __getstate__(self) -> dict[str, Any]:
        return {}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__()  # type: ignore[misc]

    def writer(self, subtask: int, generation: Generation) -> SinkWriter:
        return _CollectWriter(subtask, generation)

    def committer(self) -> Committer:
        return _CollectCommitter(self)

    def add(self, part: tuple[Any, ...], batches: list[pa.RecordBatch]) -> None:
        with self._lock:
            self._collected.setdefault(part, batches)

    def batches(self) -> list[pa.RecordBatch]:
        """What was committed so far; that of one subtask in its order."""
        with self._lock:
            return [batch for batches in self._collected.values() for batch in batches]

    def table(self) -> pa.Table:
        """All of it as one table; without columns if nothing has come.

        Where the schema has changed on the way it has the columns of all of them, null where there were none. Raises
        `DataError` if a column has had types that do not fit into one: then `rows` still works.
        """
        tables = [pa.Table.from_batches([batch]) for batch in self.batches()]
        try:
            return pa.concat_tables(tables, promote_options="permissive") if tables else pa.table({})
        except pa.ArrowException as error:
            raise DataError(
                f"the collected output is not a single table, because its schema changed ({error}). Cast to one type "
                "in front of the sink, or use rows() or batches()"
            ) from error

    def rows(self) -> list[dict[str, Any]]:
        """All of it as dictionaries, each with the columns of its batch."""
        return [row for batch in self.batches() for row in batch.to_pylist()]


class _CollectWriter(SinkWriter):
    def __init__(self, subtask: int, generation: Generation) -> None:
        self._part = [int(generation), subtask, secrets.token_hex(4)]
        self._count = 0
        self._held: list[pa.RecordBatch] = []

    def write(self, batch: pa.RecordBatch) -> None:
        self._held.append(batch)

    def prepare(self) -> Prepared:
        held, self._held = self._held, []
        if not held:
            return nothing_prepared
        self._count += 1
        part = [*self._part, self._count]

        def encode() -> Sequence[bytes]:
            # One stream for each batch: a schema that changes is an error elsewhere, and not in a test's collector.
            return [json.dumps({"part": part, "batches": [_encoded(batch) for batch in held]}).encode()]

        return encode


def _encoded(batch: pa.RecordBatch) -> str:
    stream = pa.BufferOutputStream()
    with pa.ipc.new_stream(stream, batch.schema) as writer:
        writer.write_batch(batch)
    return base64.b64encode(stream.getvalue()).decode()


class _CollectCommitter(Committer):
    def __init__(self, sink: CollectSink) -> None:
        self._sink = sink

    def commit(self, checkpoint: CheckpointId, committables: Sequence[bytes]) -> None:
        for payload in committables:
            content = json.loads(payload)
            streams = [pa.ipc.open_stream(base64.b64decode(text)) for text in content["batches"]]
            self._sink.add(tuple(content["part"]), [batch for stream in streams for batch in stream])
