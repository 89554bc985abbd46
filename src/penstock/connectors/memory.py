"""A source in memory, for tests: a list of records, with marks for what is to happen between them.

    ListSource([{"n": 1}, {"n": 2}, CHECKPOINT, {"n": 3}, ABORT(), {"n": 4}])

makes the pipeline fail once behind the third record, when a checkpoint that has the first two is durable.
"""

from __future__ import annotations

import enum
import json
import time
from collections.abc import Mapping, Sequence
from typing import Any, Final, TypeAlias

import pyarrow as pa

from penstock.columnar.time_zones import TimeZones
from penstock.connectors.source import END_OF_SPLIT, Source, SplitReader
from penstock.errors import PipelineError
from penstock.model.units import Duration, duration_s
from penstock.user_code import shortened


class Aborted(Exception):
    """Raised by a source at an `ABORT`."""


class ABORT:
    """Fails the pipeline when the source comes here for the first time, and is passed over from then on.

    The trap: that it has happened is known to this one object, in this one process. On Spark the workers have copies
    of it, which fail again after every restart: use it with `penstock.testing.run`.

    Example:

        pipeline = Pipeline("aborted")
        pipeline.source(ListSource([{"n": 1}, CHECKPOINT, ABORT(), {"n": 2}])).sink(output)
        assert run(pipeline).restarts == 1
        assert output.rows() == [{"n": 1}, {"n": 2}]
    """

    def __init__(self) -> None:
        self.is_over = False


class _Mark(enum.Enum):
    CHECKPOINT = "checkpoint"


CHECKPOINT: Final = _Mark.CHECKPOINT
"""Waits until a checkpoint that holds everything in front of this mark has ended: until two have begun."""


class PAUSE:
    """Waits for some time.

    Example:

        pipeline = Pipeline("paused")
        pipeline.source(ListSource([{"n": 1}, PAUSE("20 ms"), {"n": 2}])).sink(output)
        run(pipeline)
        assert output.rows() == [{"n": 1}, {"n": 2}]
    """

    def __init__(self, duration: Duration) -> None:
        self.seconds = duration_s("PAUSE", duration)


Item: TypeAlias = "pa.RecordBatch | dict[str, Any] | ABORT | PAUSE | _Mark"


class ListSource(Source):
    """Batches or rows (dictionaries) from a list, dealt out to `splits` in turn; marks go to every split.

    Rows that follow each other are put into batches of `batch_rows`. Their schema is taken from all of them unless it
    is given; a field that a row does not have is null there. A position is the number of records, so that rows may be
    appended between two runs, but nothing else.

    Example:

        pipeline = Pipeline("numbers")
        pipeline.source(ListSource([{"n": 1}, {"n": 2}, {"n": 3}], splits=2)).sink(output)
        run(pipeline, parallelism=2, crash_after_checkpoints=1)
        assert sorted(row["n"] for row in output.rows()) == [1, 2, 3]
    """

    def __init__(
        self,
        items: Sequence[Item],
        *,
        splits: int = 1,
        schema: pa.Schema | None = None,
        batch_rows: int = 1024,
        watermark_column: str | None = None,
    ) -> None:
        if splits < 1 or batch_rows < 1:
            raise PipelineError(f"ListSource: splits is {splits} and batch_rows {batch_rows}: both must be at least 1")
        rows = [item for item in items if isinstance(item, dict)]
        if rows and schema is None:
            # Arrow would take the fields from the first row, and leave out what only others have.
            names = dict.fromkeys(name for row in rows for name in row)
            schema = pa.table({name: [row.get(name) for row in rows] for name in names}).schema
        elif schema is not None:
            _check_fields(rows, schema)
        if schema is not None:
            TimeZones("ListSource").check(schema, [[row.get(name) for row in rows] for name in schema.names], rows)
        self.split_count = splits
        self.watermark_column = watermark_column
        self._items: list[list[pa.RecordBatch | ABORT | PAUSE | _Mark]] = [[] for _ in range(splits)]
        pending: list[list[dict[str, Any]]] = [[] for _ in range(splits)]

        def flush(split: int) -> None:
            if pending[split]:
                self._items[split].append(pa.RecordBatch.from_pylist(pending[split], schema=schema))
                pending[split] = []

        turn = 0
        for item in items:
            if isinstance(item, dict):
                pending[turn].append(item)
                if len(pending[turn]) >= batch_rows:
                    flush(turn)
                turn = (turn + 1) % splits
            elif isinstance(item, pa.RecordBatch):
                flush(turn)
                self._items[turn].append(item)
                turn = (turn + 1) % splits
            elif isinstance(item, ABORT | PAUSE | _Mark):
                for split in range(splits):
                    flush(split)
                    self._items[split].append(item)
            else:
                raise PipelineError(f"ListSource takes batches, rows as dictionaries, and marks, not {item!r}")
        for split in range(splits):
            flush(split)

    def identity(self) -> Mapping[str, str]:
        return {**super().identity(), "splits": str(self.split_count)}

    def splits(self) -> Sequence[str]:
        return [str(split) for split in range(self.split_count)]

    def open(self, split: str, offset: bytes | None) -> SplitReader:
        return _ListReader(self._items[int(split)], json.loads(offset) if offset else 0, self.watermark_column)


def _check_fields(rows: Sequence[Mapping[str, Any]], schema: pa.Schema) -> None:
    known = set(schema.names)
    for number, row in enumerate(rows):
        if not known.issuperset(row):
            odd = ", ".join(f"'{name}'" for name in row if name not in known)
            raise PipelineError(
                f"ListSource: row {number} has the field {odd}, which the schema does not have: {shortened(repr(row))}"
            )


class _ListReader(SplitReader):
    def __init__(
        self, items: list[pa.RecordBatch | ABORT | PAUSE | _Mark], rows: int, watermark_column: str | None
    ) -> None:
        self._items = items
        self._rows = rows
        self._snapshots = 0
        self._at: int | None = None
        self._since = 0.0
        self._watermark_column = watermark_column
        self._watermark: int | None = None

    def read(self, rows_max: int) -> Any:
        passed = 0
        for position, item in enumerate(self._items):
            if isinstance(item, pa.RecordBatch):
                if passed + item.num_rows > self._rows:
                    return self._returned(item.slice(self._rows - passed, rows_max))
                passed += item.num_rows
            elif passed == self._rows and not self._is_passed(position, item):
                return None
        return END_OF_SPLIT

    def _returned(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        self._rows += batch.num_rows
        if self._watermark_column is not None:
            self._watermark = batch.column(self._watermark_column)[-1].as_py()
        return batch

    def _is_passed(self, position: int, mark: ABORT | PAUSE | _Mark) -> bool:
        if isinstance(mark, ABORT):
            if not mark.is_over:
                mark.is_over = True
                raise Aborted("the source has come to an ABORT")
            return True
        if self._at is None or self._at < position:
            self._at, self._snapshots, self._since = position, 0, time.monotonic()
        if self._at > position:
            return True
        if isinstance(mark, PAUSE):
            return time.monotonic() - self._since >= mark.seconds
        return self._snapshots >= 2

    def offset(self) -> bytes:
        self._snapshots += 1
        return json.dumps(self._rows).encode()

    def watermark(self) -> int | None:
        return self._watermark
