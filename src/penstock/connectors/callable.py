"""Output to a function."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa

from penstock.connectors.sink import Prepared, Sink, SinkWriter, nothing_prepared
from penstock.errors import PipelineError
from penstock.ids import Generation


class CallableSink(Sink):
    """Calls a function with every batch, on the worker where it is. **At least once.**

        stream.sink(CallableSink(lambda batch: session.post(url, data=encode(batch))))

    The traps: after a failure, records behind the last checkpoint come again, so the function must bear them twice
    (by writing under a key of the record, say). And it runs on the mailbox thread: while it is slow, checkpoints of
    its worker wait. Put `map_async` in front of it for slow work. For exactly once, write a `Sink` with a `Committer`.

    Example:

        written = []
        orders.sink(CallableSink(lambda batch: written.extend(batch.to_pylist())))
        run(pipeline)
        assert len(written) == 3
    """

    def __init__(self, function: Callable[[pa.RecordBatch], Any]) -> None:
        if not callable(function):
            raise PipelineError(f"CallableSink takes a function of a batch, not {function!r}")
        self.function = function

    def writer(self, subtask: int, generation: Generation) -> SinkWriter:
        return _CallableWriter(self.function)


class _CallableWriter(SinkWriter):
    def __init__(self, function: Callable[[pa.RecordBatch], Any]) -> None:
        self._function = function

    def write(self, batch: pa.RecordBatch) -> None:
        self._function(batch)

    def prepare(self) -> Prepared:
        return nothing_prepared
