"""A child process that runs a function for `map_async(…, executor="processes")`.

The parent's thread sends a batch and waits for the answer. The child is killed when the operator closes, so that a
function that is stuck ends with it. Code travels as the pipeline's own closure does; nothing of this is stored.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

import pyarrow as pa

from penstock.columnar.schema_guard import SchemaGuard
from penstock.errors import UserCodeError
from penstock.operators.async_map import Runner
from penstock.operators.formats import As, form_of
from penstock.operators.pickling import dumps, loads
from penstock.user_code import called_with, reason_of


class InProcess(Runner):
    """One child process; calls come one at a time."""

    def __init__(self, function: Callable[[Any], Any], as_: As, operator: str) -> None:
        # A fork would copy the locks of the worker's other threads in whatever state they are.
        context = multiprocessing.get_context("spawn")
        self._connection, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs, dumps(function), as_, operator), daemon=True)
        self._process.start()
        theirs.close()

    def call(self, batch: pa.RecordBatch) -> Any:
        try:
            self._connection.send(batch)
            is_good, answer = self._connection.recv()
        except (EOFError, OSError) as error:
            code = self._process.exitcode
            raise UserCodeError(f"the process that ran the function died, with exit code {code}") from error
        if not is_good:
            raise UserCodeError(answer)
        return answer

    def close(self) -> None:
        self._process.kill()


def _serve(connection: Connection, pickled: bytes, as_: As, operator: str) -> None:
    function, form = loads(pickled), form_of(as_, SchemaGuard(f"operator '{operator}'"))
    while True:
        try:
            batch = connection.recv()
        except EOFError:
            return
        try:
            given = form.of(batch)
            result = called_with(function, given) if as_ == "rows" else function(given)
            connection.send((True, result))
        except Exception as error:
            notes = "".join(f" ({note})" for note in getattr(error, "__notes__", ()))
            connection.send((False, f"{type(error).__name__}: {reason_of(error)}{notes}"))
