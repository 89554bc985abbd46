"""Output on the driver's console, to look at: one table for each checkpoint."""

from __future__ import annotations

import datetime
import itertools
import json
import shutil
import sys
from collections.abc import Iterable, Sequence
from typing import Any

import pyarrow as pa

from penstock.connectors.sink import Committer, Prepared, Sink, SinkWriter
from penstock.errors import PipelineError
from penstock.ids import CheckpointId, Generation

_CELL_MAX = 40
_GAP = "  "


class ConsoleSink(Sink):
    """Prints, in the driver, a table of the first `rows` records of each checkpoint, and the number of the others.

    A table that is wider than the terminal becomes lines of `name=value`. A value of more than 40 characters is cut.

    At least once: after a failure of the driver, the last checkpoint is printed again.

    Example:

        orders.sink(ConsoleSink(rows=2))
        assert run(pipeline).checkpoints >= 1  # and prints a table of two rows, and "… and 1 more"
    """

    def __init__(self, rows: int = 20) -> None:
        if rows < 0:
            raise PipelineError(f"ConsoleSink: rows is {rows}: it must be at least 0")
        self.rows = rows

    def writer(self, subtask: int, generation: Generation) -> SinkWriter:
        return _ConsoleWriter(self.rows)

    def committer(self) -> Committer:
        return _ConsoleCommitter(self.rows)


class _ConsoleWriter(SinkWriter):
    def __init__(self, rows_max: int) -> None:
        self._rows_max = rows_max
        self._tables: list[dict[str, Any]] = []
        self._room = rows_max
        self._count = 0

    def write(self, batch: pa.RecordBatch) -> None:
        self._count += batch.num_rows
        shown = batch.slice(0, self._room)
        if shown.num_rows:
            self._room -= shown.num_rows
            self._tables.append(_table(shown))

    def prepare(self) -> Prepared:
        tables, count = self._tables, self._count
        self._tables, self._room, self._count = [], self._rows_max, 0
        return lambda: [json.dumps({"tables": tables, "count": count}).encode()] if count else []


def _table(batch: pa.RecordBatch) -> dict[str, Any]:
    cells = [[_cell(value) for value in column.to_pylist()] for column in batch.columns]
    return {
        "columns": [[field.name, _is_number(field.type)] for field in batch.schema],
        "rows": [list(row) for row in zip(*cells, strict=True)] or [[] for _ in range(batch.num_rows)],
    }


def _is_number(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind))


def _cell(value: object) -> str:
    if isinstance(value, datetime.datetime):
        text = value.isoformat(" ").replace("+00:00", "Z")
    else:
        text = "null" if value is None else str(value)
    # A line break would end the row.
    text = text if text.isprintable() else repr(text)[1:-1]
    return text if len(text) <= _CELL_MAX else text[: _CELL_MAX - 1] + "…"


class _ConsoleCommitter(Committer):
    def __init__(self, rows_max: int) -> None:
        self._rows_max = rows_max

    def commit(self, checkpoint: CheckpointId, committables: Sequence[bytes]) -> None:
        contents = [json.loads(payload) for payload in committables]
        count = sum(content["count"] for content in contents)
        # An earlier version handed over lines: a checkpoint may hold such output that is not printed yet.
        lines = [line for content in contents for line in content.get("lines", ())]
        tables = [table for content in contents for table in content.get("tables", ())]
        rows = [(table["columns"], row) for table in tables for row in table["rows"]][: self._rows_max]
        width = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
        for columns, group in itertools.groupby(rows, key=lambda row: row[0]):
            lines += _lines(columns, [row for _, row in group], width)
        left = count - len(rows) - sum(len(content.get("lines", ())) for content in contents)
        more = [f"… and {left} more"] if left else []
        title = f"checkpoint {checkpoint}: {count} row{'s' if count != 1 else ''}"
        print("\n".join([title, *lines, *more, ""]), file=sys.stdout, flush=True)


def _lines(columns: Sequence[tuple[str, bool]], rows: Sequence[Sequence[str]], width: int | None) -> Iterable[str]:
    """A table with aligned columns, or lines of `name=value` where that is wider than `width`."""
    names = [name for name, _ in columns]
    sizes = [max(map(len, cells)) for cells in zip(names, *rows, strict=True)]
    if width is not None and sum(sizes) + len(_GAP) * max(0, len(sizes) - 1) > width:
        return [_GAP.join(f"{name}={cell}" for name, cell in zip(names, row, strict=True)) for row in rows]

    def line(cells: Sequence[str]) -> str:
        padded = [
            cell.rjust(size) if is_number else cell.ljust(size)
            for cell, size, (_, is_number) in zip(cells, sizes, columns, strict=True)
        ]
        return _GAP.join(padded).rstrip()

    return [line(names), *map(line, rows)]
