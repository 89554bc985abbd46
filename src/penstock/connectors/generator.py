"""A source that makes its records from their numbers: for tests, benchmarks and demonstrations."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.connectors.source import END_OF_SPLIT, Backlog, Source, SplitReader
from penstock.errors import DataError, IncompatibleCheckpoint, PipelineError

_BLOCK_ROWS = 1 << 16
"""An unbounded source deals out its numbers to the splits in blocks of this size."""


class GeneratorSource(Source):
    """Calls `make(start, count)` for the records `start … start+count-1`, as fast as it goes or at a rate.

        GeneratorSource(lambda start, count: pa.record_batch({"n": range(start, start + count)}), rows=1_000_000)

    `make` may also be an Arrow schema: then the columns hold numbers that look random. `rows=None` never ends.
    `rows_per_second` is for all splits together.

    The trap: `make` must be a function of the numbers alone. After a failure it is asked for the same records again,
    perhaps in other pieces; with a clock or a random generator in it they would be others. `splits` may not change
    while there are checkpoints of it. `rows` may: with more of them a restored pipeline goes on, with fewer it ends.

    Example:

        pipeline = Pipeline("numbers")
        make = lambda start, count: pa.record_batch({"n": range(start, start + count)})
        pipeline.source(GeneratorSource(make, rows=100, splits=2)).sink(output)
        run(pipeline, parallelism=2)
        assert sorted(row["n"] for row in output.rows()) == list(range(100))
    """

    def __init__(
        self,
        make: Callable[[int, int], pa.RecordBatch] | pa.Schema,
        *,
        rows: int | None = None,
        splits: int = 1,
        rows_per_second: float | None = None,
    ) -> None:
        if splits < 1 or (rows is not None and rows < 0) or (rows_per_second is not None and rows_per_second <= 0):
            raise PipelineError(
                f"GeneratorSource: rows is {rows}, splits {splits}, rows_per_second {rows_per_second}: "
                f"none may be negative, and there is at least one split"
            )
        self.make = _Columns(make) if isinstance(make, pa.Schema) else make
        self.rows = rows
        self.is_endless = rows is None
        self.split_count = splits
        self.rows_per_second = rows_per_second

    def identity(self) -> Mapping[str, str]:
        return {**super().identity(), "splits": str(self.split_count)}

    def splits(self) -> Sequence[str]:
        return [f"{split}/{self.split_count}" for split in range(self.split_count)]

    def open(self, split: str, offset: bytes | None) -> SplitReader:
        number, _, count = split.partition("/")
        if int(count) != self.split_count:
            raise IncompatibleCheckpoint(
                f"the checkpoint has a generator of {count} splits, and the pipeline has one of {self.split_count}: "
                f"set splits={count} again"
            )
        return _GeneratorReader(self, int(number), offset)


class _Share:
    """The numbers of one split, in order.

    `extents` are the values that `rows` has had: the numbers up to the first one were dealt out among the splits when
    the source began, those from there to the next when it grew. So a number never changes its split. None means without
    an end: those numbers are dealt out in blocks.
    """

    def __init__(self, split: int, splits: int, extents: Sequence[int | None]) -> None:
        self._split = split
        self._splits = splits
        self.extents = tuple(extents)

    def grown_to(self, rows: int | None) -> _Share:
        """The same with more numbers behind them, if `rows` is more than it has ever been."""
        last = self.extents[-1]
        is_more = last is not None and (rows is None or rows > last)
        return _Share(self._split, self._splits, (*self.extents, rows)) if is_more else self

    @property
    def rows(self) -> int | None:
        """The number of its numbers; None if they have no end."""
        count = low = 0
        for high in self.extents:
            if high is None:
                return None
            first, end = (low + (high - low) * number // self._splits for number in (self._split, self._split + 1))
            count, low = count + end - first, high
        return count

    def span(self, position: int) -> tuple[int, int]:
        """The number at `position`, and how many follow it one by one; of none at the end."""
        low = 0
        for high in self.extents:
            if high is None:
                block, within = divmod(position, _BLOCK_ROWS)
                return low + (block * self._splits + self._split) * _BLOCK_ROWS + within, _BLOCK_ROWS - within
            first, end = (low + (high - low) * number // self._splits for number in (self._split, self._split + 1))
            if position < end - first:
                return first + position, end - first - position
            position -= end - first
            low = high
        return low, 0


class _GeneratorReader(SplitReader):
    def __init__(self, source: GeneratorSource, split: int, offset: bytes | None) -> None:
        self._source = source
        state = json.loads(offset) if offset else 0
        if isinstance(state, int):
            # A new split, or one of a checkpoint of the time when `rows` was not noted.
            state = {"position": state, "extents": [source.rows]}
        self._position: int = state["position"]
        self._share = _Share(split, source.split_count, state["extents"]).grown_to(source.rows)
        rate = source.rows_per_second
        self._rate = None if rate is None else rate / source.split_count
        self._allowed = 0.0
        self._counted_at = time.monotonic()

    def read(self, rows_max: int) -> Any:
        start, left = self._share.span(self._position)
        if self._source.rows is not None:
            left = min(left, self._source.rows - start)
        if left <= 0:
            return END_OF_SPLIT
        count = min(rows_max, left, self._budget())
        # Many batches of a few rows cost more than they are worth: wait for those of a hundredth of a second.
        if count < 1 or (self._rate is not None and count < min(rows_max, left, self._rate / 100)):
            return None
        batch = self._source.make(start, count)
        if not isinstance(batch, pa.RecordBatch) or batch.num_rows != count:
            found = f"{batch.num_rows} rows" if isinstance(batch, pa.RecordBatch) else repr(batch)
            raise DataError(f"the function of a GeneratorSource was asked for a batch of {count} rows, not {found}")
        self._position += count
        self._allowed -= count
        return batch

    def _budget(self) -> int:
        """How many records the clock allows now; after a standstill, those of one second at most."""
        if self._rate is None:
            return 1 << 62
        now = time.monotonic()
        self._allowed = min(self._allowed + (now - self._counted_at) * self._rate, max(1.0, self._rate))
        self._counted_at = now
        return int(self._allowed)

    def backlog(self) -> Backlog | None:
        rows = self._share.rows
        # Fewer rows than once: those that are left are not those of the share.
        is_whole = rows is not None and self._source.rows == self._share.extents[-1]
        return Backlog(rows=rows - self._position) if rows is not None and is_whole else None

    def offset(self) -> bytes:
        return json.dumps({"position": self._position, "extents": self._share.extents}).encode()


class _Columns:
    """Columns of a schema, made from the numbers of the records."""

    def __init__(self, schema: pa.Schema) -> None:
        self.schema = schema
        for field in schema:
            try:
                self._column(0, field.type, np.zeros(1, dtype=np.uint64))
            except (pa.ArrowException, NotImplementedError) as error:
                raise PipelineError(
                    f"GeneratorSource cannot make the column '{field.name}' of type {field.type}: write a function"
                ) from error

    def __call__(self, start: int, count: int) -> pa.RecordBatch:
        numbers = np.arange(start, start + count, dtype=np.uint64)
        columns = [self._column(place, field.type, numbers) for place, field in enumerate(self.schema)]
        return pa.RecordBatch.from_arrays(columns, schema=self.schema)

    @staticmethod
    def _column(place: int, kind: pa.DataType, numbers: npt.NDArray[np.uint64]) -> pa.Array:
        mixed = (numbers + np.uint64(place + 1)) * np.uint64(0x9E3779B97F4A7C15)
        mixed ^= mixed >> np.uint64(29)
        mixed *= np.uint64(0xBF58476D1CE4E5B9)
        small = (mixed >> np.uint64(54)).astype(np.int64)  # 0 … 1023
        if pa.types.is_floating(kind):
            return pa.array((mixed >> np.uint64(11)).astype(np.float64) / 2**53).cast(kind)
        if pa.types.is_boolean(kind):
            return pa.array(small % 2 == 1)
        if pa.types.is_timestamp(kind):
            return pa.array(numbers.astype(np.int64)).cast(pa.timestamp("ms")).cast(kind)
        if pa.types.is_integer(kind) and kind.bit_width == 8:
            small %= 128
        return pa.array(small).cast(kind)
