"""Output on the driver's console, to look at."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence

import pyarrow as pa

from penstock.connectors.sink import Committer, Prepared, Sink, SinkWriter
from penstock.errors import PipelineError
from penstock.ids import CheckpointId, Generation


class ConsoleSink(Sink):
    """Prints the first `rows` records of each subtask and checkpoint, and how many there were, in the driver.

    At least once: after a failure of the driver, the last checkpoint is printed again.
    """

    def __init__(self, rows: int = 20) -> None:
        if rows < 0:
            raise PipelineError(f"ConsoleSink: rows is {rows}: it must be at least 0")
        self.rows = rows

    def writer(self, subtask: int, generation: Generation) -> SinkWriter:
        return _ConsoleWriter(self.rows)

    def committer(self) -> Committer:
        return _ConsoleCommitter()


class _ConsoleWriter(SinkWriter):
    def __init__(self, rows_max: int) -> None:
        self._rows_max = rows_max
        self._lines: list[str] = []
        self._count = 0

    def write(self, batch: pa.RecordBatch) -> None:
        self._count += batch.num_rows
        room = self._rows_max - len(self._lines)
        if room > 0:
            self._lines += [_line(row) for row in batch.slice(0, room).to_pylist()]

    def prepare(self) -> Prepared:
        lines, count = self._lines, self._count
        self._lines, self._count = [], 0
        return lambda: [json.dumps({"lines": lines, "count": count}).encode()] if count else []


def _line(row: dict[str, object]) -> str:
    return "  ".join(f"{name}={value}" for name, value in row.items())


class _ConsoleCommitter(Committer):
    def commit(self, checkpoint: CheckpointId, committables: Sequence[bytes]) -> None:
        for payload in committables:
            content = json.loads(payload)
            lines, left = content["lines"], content["count"] - len(content["lines"])
            more = [f"… and {left} more"] if left else []
            print("\n".join([*lines, *more]), file=sys.stdout, flush=True)
