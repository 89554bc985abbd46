"""A source that makes its records from their numbers: for tests, benchmarks and demonstrations."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.connectors.source import END_OF_SPLIT, Backlog, Source, SplitReader
from penstock.errors import DataError, IncompatibleCheckpoint, PipelineError

_BLOCK_ROWS_MAX = 1 << 16
"""Numbers are dealt out to the splits in blocks of at most this size, unless the user says otherwise."""
_BLOCKS_OF_A_SPLIT = 32
"""A bounded source has smaller blocks if each split would have fewer of them than this."""


class GeneratorSource(Source):
    """Calls `make(start, count)` for the records `start … start+count-1`, as fast as it goes or at a rate.

        GeneratorSource(lambda start, count: pa.record_batch({"n": range(start, start + count)}), rows=1_000_000)

    `make` may also be an Arrow schema: then the columns hold numbers that look random. `rows=None` never ends.
    `rows_per_second` is for all splits together.

    Numbers are dealt out to the splits in blocks, in turn, so that all splits are near the same number at any time:
    where event time follows the numbers, it advances together. `block_rows` is the size of a block.

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
        block_rows: int | None = None,
    ) -> None:
        if block_rows is not None and block_rows < 1:
            raise PipelineError(f"GeneratorSource: block_rows is {block_rows}: it must be at least 1")
        if splits < 1 or (rows is not None and rows < 0) or (rows_per_second is not None and rows_per_second <= 0):
            raise PipelineError(
                f"GeneratorSource: rows is {rows}, splits {splits}, rows_per_second "
                f"{rows_per_second}: rows and rows_per_second must not be negative, and splits must "
                "be at least 1"
            )
        self.make = _Columns(make) if isinstance(make, pa.Schema) else make
        self.rows = rows
        self.is_endless = rows is None
        self.split_count = splits
        self.rows_per_second = rows_per_second
        self.block_rows = block_rows

    def identity(self) -> Mapping[str, str]:
        return {**super().identity(), "splits": str(self.split_count)}

    def splits(self) -> Sequence[str]:
        return [f"{split}/{self.split_count}" for split in range(self.split_count)]

    def open(self, split: str, offset: bytes | None) -> SplitReader:
        number, _, count = split.partition("/")
        if int(count) != self.split_count:
            raise IncompatibleCheckpoint(
                f"the checkpoint was taken with splits={count}, and the pipeline has "
                f"splits={self.split_count}: set splits={count} again"
            )
        return _GeneratorReader(self, int(number), offset)


@dataclass(frozen=True, slots=True)
class _Extent:
    """Numbers up to `high` that were dealt out together."""

    high: int | None
    """The value that `rows` had. None means without an end."""
    block_rows: int | None
    """The size of a block. None in checkpoints of version 0.1.0, where each split had one stretch of a bounded source,
    and blocks of 65536 numbers of one without an end."""

    def span(self, low: int, split: int, splits: int, position: int) -> tuple[int, int]:
        """The number at `position` of a split, and the numbers that follow one by one; of none behind the end."""
        if self.block_rows is None and self.high is not None:
            first, end = (low + (self.high - low) * number // splits for number in (split, split + 1))
            return first + position, max(0, end - first - position)
        size = self.block_rows or _BLOCK_ROWS_MAX
        block, within = divmod(position, size)
        number = low + (block * splits + split) * size + within
        left = size - within
        return number, left if self.high is None else max(0, min(left, self.high - number))

    def share(self, low: int, split: int, splits: int) -> int:
        """The numbers of one split, of an extent with an end."""
        assert self.high is not None
        count = self.high - low
        if self.block_rows is None:
            return count * (split + 1) // splits - count * split // splits
        rounds, rest = divmod(count, self.block_rows * splits)
        return rounds * self.block_rows + min(max(rest - split * self.block_rows, 0), self.block_rows)


def _extent(low: int, high: int | None, splits: int, block_rows: int | None) -> _Extent:
    """An extent that begins now, with blocks of which every split has several."""
    if block_rows is None and high is not None:
        # A single split has nobody to advance with: its numbers are one block.
        count = high - low
        even = count if splits == 1 else min(_BLOCK_ROWS_MAX, count // (splits * _BLOCKS_OF_A_SPLIT))
        block_rows = max(1, even)
    return _Extent(high, block_rows or _BLOCK_ROWS_MAX)


class _Share:
    """The numbers of one split, in order.

    `extents` are the values that `rows` has had: the numbers up to the first one were dealt out among the splits when
    the source began, those from there to the next when it grew. So a number never changes its split.
    """

    def __init__(self, split: int, splits: int, extents: Sequence[_Extent]) -> None:
        self._split = split
        self._splits = splits
        self.extents = tuple(extents)

    def grown_to(self, rows: int | None, block_rows: int | None) -> _Share:
        """The same with more numbers behind them, if `rows` is more than it has ever been."""
        last = self.extents[-1].high if self.extents else 0
        is_more = last is not None and (rows is None or rows > last or not self.extents)
        if not is_more:
            return self
        new = _extent(last or 0, rows, self._splits, block_rows)
        return _Share(self._split, self._splits, (*self.extents, new))

    @property
    def rows(self) -> int | None:
        """The number of its numbers; None if they have no end."""
        count = low = 0
        for extent in self.extents:
            if extent.high is None:
                return None
            count, low = count + extent.share(low, self._split, self._splits), extent.high
        return count

    def span(self, position: int) -> tuple[int, int]:
        """The number at `position`, and how many follow it one by one; of none at the end."""
        low = 0
        for extent in self.extents:
            number, left = extent.span(low, self._split, self._splits, position)
            if left or extent.high is None:
                return number, left
            position -= extent.share(low, self._split, self._splits)
            low = extent.high
        return low, 0


class _GeneratorReader(SplitReader):
    def __init__(self, source: GeneratorSource, split: int, offset: bytes | None) -> None:
        self._source = source
        self._position, extents = _noted(offset, source.rows)
        share = _Share(split, source.split_count, extents)
        self._share = share.grown_to(source.rows, source.block_rows)
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
            raise DataError(f"the function of a GeneratorSource must return a batch of {count} rows, not {found}")
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
        is_whole = rows is not None and self._source.rows == self._share.extents[-1].high
        return Backlog(rows=rows - self._position) if rows is not None and is_whole else None

    def offset(self) -> bytes:
        extents = self._share.extents
        state = {"extents": [each.high for each in extents], "blocks": [each.block_rows for each in extents]}
        return json.dumps({"position": self._position, **state}).encode()


def _noted(offset: bytes | None, rows: int | None) -> tuple[int, list[_Extent]]:
    """The position and the extents that a checkpoint has; no extents for a split that begins."""
    if not offset:
        return 0, []
    state = json.loads(offset)
    if isinstance(state, int):
        # A checkpoint of the time when `rows` was not noted.
        return state, [_Extent(rows, None)]
    highs = state["extents"]
    return state["position"], [*map(_Extent, highs, state.get("blocks", [None] * len(highs)))]


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
