"""Stages rows in the database by COPY, in a thread: the mailbox waits for nothing.

Rows become durable as they are staged, not only with the checkpoint, so that little is left to do at a cut. What the
thread has not taken yet is bounded: beyond that the sink wants no input, and its barriers overtake (I11).
"""

from __future__ import annotations

import json
import queue
import secrets
import threading
from collections.abc import Sequence
from concurrent.futures import Future
from typing import Any

import pyarrow as pa

from penstock.columnar.gather import joined
from penstock.connectors.postgres.copy import csv_of
from penstock.connectors.postgres.database import OP_COLUMN, Database, Tables
from penstock.connectors.postgres.server import driver, quoted
from penstock.connectors.sink import Prepared, SinkWriter
from penstock.connectors.tables.changes import check_ops
from penstock.errors import DataError, PenstockError, StorageError
from penstock.ids import Generation
from penstock.model.changelog import OP

_COPY_BYTES = 1024 * 1024
"""Rows of about this size go into one COPY."""
_WAITING_BYTES_MAX = 8 * 1024 * 1024
_JOIN_S = 1.0


class StagingWriter(SinkWriter):
    """Stages the rows of one subtask. Parts are numbered; a part ends with a checkpoint, or with another schema."""

    def __init__(self, database: Database, generation: Generation, *, takes_changes: bool) -> None:
        self._database = database
        self._takes_changes = takes_changes
        self._generation = int(generation)
        self._token = secrets.token_hex(8)
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._waiting_bytes = 0
        self._lock = threading.Lock()
        self._part = 0
        self._open: list[_Job] = []
        """Batches since the last cut, without their rows once these are staged."""
        self._failure: PenstockError | None = None
        self._is_closed = False
        self._thread: threading.Thread | None = None
        self._tables: Tables | None = None

    def write(self, batch: pa.RecordBatch) -> None:
        if self._failure is not None:
            raise self._failure
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="penstock-postgres", daemon=True)
            self._thread.start()
        columns = tuple(batch.schema.names)
        if self._open and self._open[-1].columns != columns:
            self._part += 1
        job = _Job(self._part, columns, batch, batch.num_rows, int(batch.nbytes))
        self._open.append(job)
        with self._lock:
            self._waiting_bytes += job.bytes
        self._jobs.put(job)

    @property
    def wants_input(self) -> bool:
        return self._waiting_bytes < _WAITING_BYTES_MAX

    def prepare(self) -> Prepared:
        jobs, self._open = self._open, []
        if not jobs:
            return list
        self._part += 1
        cut: Future[None] = Future()
        self._jobs.put(_Job(-1, (), None, 0, 0, cut))
        # Told apart by part: a schema that changed within the checkpoint has begun another one.
        rows: dict[tuple[int, tuple[str, ...]], int] = {}
        for job in jobs:
            rows[job.part, job.columns] = rows.get((job.part, job.columns), 0) + job.rows
        return lambda: self._committables(cut, rows)

    def _committables(self, cut: Future[None], rows: dict[tuple[int, tuple[str, ...]], int]) -> Sequence[bytes]:
        cut.result()
        tables = self._tables
        assert tables is not None
        known = {column.name for column in tables.columns}
        return [
            json.dumps(
                {
                    "stage": tables.stage,
                    "writer": self._token,
                    "part": part,
                    # Those of the table: `op` of a changelog is none of them.
                    "columns": [name for name in columns if name in known],
                    "rows": count,
                    "changes": OP in columns and OP not in known,
                }
            ).encode()
            for (part, columns), count in rows.items()
            if count
        ]

    def close(self) -> None:
        self._is_closed = True
        self._jobs.put(None)
        if self._thread is not None:
            self._thread.join(_JOIN_S)

    # --- in the thread ---

    def _run(self) -> None:
        try:
            with self._database.connect(autocommit=True) as connection:
                self._tables = self._database.tables(connection)
                self._serve(connection, self._tables)
        except PenstockError as error:
            self._fail(error)
        except BaseException as error:  # a thread that dies in silence would be a pipeline that stands still
            self._fail(self._told(error))

    def _told(self, error: BaseException) -> PenstockError:
        psycopg = driver()
        text = " ".join(str(error).split())
        table = f"{self._database.schema}.{self._database.name}"
        if isinstance(error, psycopg.DataError):
            return DataError(f"the records do not fit {table}: {text}. Cast or filter them in front of the sink")
        if isinstance(error, psycopg.errors.UndefinedTable):
            text += ": start the pipeline again, which creates it"
        return StorageError(f"rows for {table} cannot be staged in {self._database.address}: {text}")

    def _fail(self, error: PenstockError) -> None:
        self._failure = error
        with self._lock:
            # Woken up, the subtask writes and meets the failure.
            self._waiting_bytes = 0
        while not self._is_closed:
            job = self._jobs.get()
            if job is None:
                return
            if job.cut is not None:
                job.cut.set_exception(error)

    def _serve(self, connection: Any, tables: Tables) -> None:
        held: list[_Job] = []
        while not self._is_closed:
            job = self._jobs.get()
            if job is None:
                return
            is_other = bool(held) and (job.part != held[0].part or held[0].schema != job.schema)
            if held and (is_other or sum(one.bytes for one in held) >= _COPY_BYTES):
                self._try(connection, tables, held, job)
                held = []
            if job.cut is not None:
                job.cut.set_result(None)
                continue
            held.append(job)
            if self._jobs.empty():
                self._try(connection, tables, held, None)
                held = []

    def _try(self, connection: Any, tables: Tables, held: list[_Job], following: _Job | None) -> None:
        """Stage; if that fails, the cut that was taken off the queue must hear of it."""
        try:
            self._stage(connection, tables, held)
        except BaseException as error:
            if following is not None and following.cut is not None:
                following.cut.set_exception(error if isinstance(error, PenstockError) else self._told(error))
            raise

    def _stage(self, connection: Any, tables: Tables, held: list[_Job]) -> None:
        target = f"{self._database.schema}.{self._database.name}"
        known = {column.name for column in tables.columns}
        has_ops = self._takes_changes and OP in held[0].columns and OP not in known
        unknown = [name for name in held[0].columns if name not in known and not (has_ops and name == OP)]
        if unknown:
            raise DataError(
                f"the table {target} has no column '{unknown[0]}'; its columns are {', '.join(sorted(known))}. Rename "
                f"or drop it in front of the sink, or add it to the table and start again"
            )
        own = ("penstock_writer", "penstock_part", "penstock_generation")
        staged = [OP_COLUMN if has_ops and name == OP else name for name in held[0].columns]
        names = ", ".join(quoted(name) for name in (*own, *staged))
        with (
            connection.cursor() as cursor,
            cursor.copy(f"COPY {tables.stage} ({names}) FROM STDIN (FORMAT csv)") as copy,
        ):
            for batch in joined([job.batch for job in held if job.batch is not None]):
                if has_ops:
                    check_ops(batch.column(OP), target)
                copy.write(csv_of(self._labelled(batch, held[0].part), target))
        with self._lock:
            self._waiting_bytes -= sum(job.bytes for job in held)
        for job in held:
            job.batch = None

    def _labelled(self, batch: pa.RecordBatch, part: int) -> pa.RecordBatch:
        labels = [pa.repeat(value, batch.num_rows) for value in (self._token, part, self._generation)]
        names = ["penstock_writer", "penstock_part", "penstock_generation", *batch.schema.names]
        return pa.RecordBatch.from_arrays([*labels, *batch.columns], names=names)


class _Job:
    """A batch to stage, or a cut: everything in front of it is staged when `cut` is done."""

    __slots__ = ("batch", "bytes", "columns", "cut", "part", "rows", "schema")

    def __init__(
        self,
        part: int,
        columns: tuple[str, ...],
        batch: pa.RecordBatch | None,
        rows: int,
        size: int,
        cut: Future[None] | None = None,
    ) -> None:
        self.part = part
        self.columns = columns
        self.batch = batch
        self.schema = None if batch is None else batch.schema
        self.rows = rows
        self.bytes = size
        self.cut = cut
