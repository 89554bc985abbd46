"""A child process that runs a function for `map_async(…, executor="processes")`.

The parent's thread sends a batch and waits for the answer. Batches travel as Arrow IPC in both directions; rows and
frames are made, and made a batch again, in the child. No row is pickled, and the parent's interpreter is free.
The child is killed when the operator closes, so that a function that is stuck ends with it. Code travels as the
pipeline's own closure does; nothing of this is stored.

A message of the parent is the schema that outputs have had so far (or nothing) and a batch; an answer is a header in
JSON and, if there are rows, a batch.
"""

from __future__ import annotations

import json
import multiprocessing
from multiprocessing.connection import Connection
from typing import cast

import pyarrow as pa

from penstock.columnar.schemas.schema_guard import SchemaGuard
from penstock.errors import DataError, UserCodeError
from penstock.operators.async_map.operator import Converted, Runner
from penstock.operators.contract import UserFunction
from penstock.operators.failures import RaisedElsewhere
from penstock.operators.formats import As, Format, format_of
from penstock.operators.pickling import dumps, loads
from penstock.user_code import called_with, is_outside, reason_of


class InProcess(Runner):
    """One child process; calls come one at a time."""

    def __init__(self, function: UserFunction, as_: As, guard: SchemaGuard) -> None:
        # A fork would copy the locks of the worker's other threads in whatever state they are.
        context = multiprocessing.get_context("spawn")
        self._guard = guard
        self._connection, theirs = context.Pipe()
        declared = _schema_bytes(guard.schema if guard.is_declared else None)
        arguments = theirs, dumps(function), as_, guard.where, declared
        self._process = context.Process(target=_serve, args=arguments, daemon=True)
        self._process.start()
        theirs.close()

    def call(self, batch: pa.RecordBatch) -> Converted:
        try:
            # Outputs get the types of those before, also of those that other processes have made.
            self._connection.send_bytes(b"" if self._guard.is_declared else _schema_bytes(self._guard.schema))
            self._connection.send_bytes(_batch_bytes(batch))
            header = json.loads(self._connection.recv_bytes())
            made = _batch_of(self._connection.recv_bytes()) if header.get("has_rows") else None
        except (EOFError, OSError) as error:
            code = self._process.exitcode
            raise UserCodeError(f"the process that ran the function died, with exit code {code}") from error
        if "raised" in header:
            raised = RaisedElsewhere(header["raised"])
            raised.may_pass = header.get("is_outside", False)
            raise raised
        return Converted(made, header.get("refused"), header.get("zones", {}))

    def close(self) -> None:
        self._process.kill()


def _serve(connection: Connection, pickled: bytes, as_: As, where: str, declared: bytes) -> None:
    function, guard = cast(UserFunction, loads(pickled)), SchemaGuard(where, _schema_of(declared))
    format = format_of(as_, guard)
    while True:
        try:
            known, batch = connection.recv_bytes(), _batch_of(connection.recv_bytes())
        except EOFError:
            return
        if not guard.is_declared:
            guard.schema = _schema_of(known)
        header, made = _answer(function, format, as_, batch)
        connection.send_bytes(json.dumps(header).encode())
        if made is not None:
            connection.send_bytes(_batch_bytes(made))


def _answer(
    function: UserFunction, format: Format, as_: As, batch: pa.RecordBatch
) -> tuple[dict[str, object], pa.RecordBatch | None]:
    try:
        given = format.of(batch)
        returned = called_with(function, given) if as_ == "rows" else function(given)
    except Exception as error:
        notes = "".join(f" ({note})" for note in getattr(error, "__notes__", ()))
        return {"raised": f"{type(error).__name__}: {reason_of(error)}{notes}", "is_outside": is_outside(error)}, None
    try:
        made = format.batch(format.outputs(returned))
    except DataError as error:
        return {"refused": str(error)}, None
    except Exception as error:
        # The result may be an iterable that runs the function as it is read.
        return {"raised": f"{type(error).__name__}: {reason_of(error)}", "is_outside": is_outside(error)}, None
    return {"has_rows": made is not None, "zones": format.time_zones}, made


def _batch_bytes(batch: pa.RecordBatch) -> pa.Buffer:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return sink.getvalue()


def _batch_of(data: bytes) -> pa.RecordBatch:
    with pa.ipc.open_stream(data) as reader:
        return reader.read_next_batch()


def _schema_bytes(schema: pa.Schema | None) -> bytes:
    return b"" if schema is None else schema.serialize().to_pybytes()


def _schema_of(data: bytes) -> pa.Schema | None:
    return pa.ipc.read_schema(pa.py_buffer(data)) if data else None
