"""The contract of a source, tried out: positions that hold, and every record once, whatever dies.

The trials read splits by hand first: from the beginning, and again from every position that a reader has reported.
Then whole pipelines run through crashes, restarts of the driver and other parallelisms.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pyarrow as pa

from penstock.connectors.collect import CollectSink
from penstock.connectors.source import END_OF_SPLIT, Portion, Source, SplitReader
from penstock.errors import PenstockError
from penstock.ids import DEAD_LETTERS
from penstock.model.units import Duration
from penstock.pipeline import Pipeline
from penstock.storage import MemoryStore
from penstock.testing.contract import Rows, broken, check_identity, difference, pickled, row_texts
from penstock.testing.local import run

_POSITIONS_MAX = 8
_NOTHING_MAX = 10_000
"""Readings in a row that may return nothing before a source counts as one that does not go on."""
_AT_ONCE = 100
"""Readings in a row that may return nothing, after which each waits a little: the source may read in a thread."""
_WAIT_S = 0.001

_SIPS = 3
"""Portions of each split that wait for a checkpoint, so that a run has several."""

_OFFSET = "offset() must describe exactly the records that read() has returned"


def check_source(
    make_source: Callable[[], Source],
    expected: Rows | None = None,
    *,
    rows: int | None = None,
    batch_rows: int = 7,
    timeout: Duration = "1 min",
) -> None:
    """Raise `ContractBroken` if the source loses or repeats records, or reports a position that does not hold.

    Example:

        def numbers(start, count):
            return pa.record_batch({"n": range(start, start + count)})

        assert check_source(lambda: GeneratorSource(numbers, rows=40, splits=2), expected=numbers(0, 40)) is None

    `make_source()` describes the source; it is called again and again, on the same input. `expected` are its rows, in
    any order; without them, those of a first undisturbed reading count. `rows` is for a source that does not end: as
    many rows are read of it, and there must not be more. `batch_rows` are asked for at a time when splits are read by
    hand: choose it so that a split has several portions.
    """
    trials = _Trials(make_source, rows, batch_rows, timeout)
    splits = trials.splits()
    found: list[_Reading] = []
    texts: list[str] = []
    for split in splits:
        found.append(trials.read_from(split, None, None if rows is None else rows - len(texts)))
        texts += found[-1].texts
    if expected is not None:
        trials.compare(row_texts(expected), texts, "an undisturbed reading does not return the expected rows", "")
    for split, read in zip(splits, found, strict=True):
        trials.positions(split, read)
    trials.runs(texts)


class _Reading:
    """A split that was read to its end: its rows, and the positions on the way."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        self.positions: list[tuple[int, bytes]] = []
        """How many rows were returned, and the offset then."""


class _Died(BaseException):
    """The driver is gone."""


class _Trials:
    def __init__(self, make_source: Callable[[], Source], rows: int | None, batch_rows: int, timeout: Duration) -> None:
        self._make_source = make_source
        self._rows = rows
        self._batch_rows = batch_rows
        self._timeout = timeout
        self._source = make_source()
        self._source.on_start()

    def splits(self) -> Sequence[str]:
        check_identity(self._source, self._make_source())
        first, copy, again = (list(source.splits()) for source in (self._source, pickled(self._source), self._source))
        if not first == copy == again:
            raise broken(
                self._source,
                "splits() does not give every worker the same answer, in the same order",
                f"It was {first}, then {copy} in a copy, then {again}",
                "Sort the names",
            )
        if len(set(first)) != len(first):
            raise broken(self._source, "two splits have one name", f"They are {first}", "Make names unique")
        return first

    def read_from(self, split: str, offset: bytes | None, enough: int | None) -> _Reading:
        """Read a split from a position on. Of a source without an end, `enough` rows are expected."""
        reader = pickled(self._source).open(split, offset)
        reading = _Reading()
        reading.positions.append((0, self._offset(split, reader)))
        nothing = 0
        while True:
            batch = reader.read(self._batch_rows)
            if batch is END_OF_SPLIT:
                break
            records = batch.records if isinstance(batch, Portion) else batch
            nothing = 0 if records is not None else nothing + 1
            is_enough = enough is not None and len(reading.texts) >= enough
            if nothing > (_AT_ONCE if is_enough else _NOTHING_MAX):
                if self._rows is not None:
                    break
                raise broken(
                    self._source,
                    f"split '{split}' neither goes on nor ends",
                    f"read() has returned None {nothing} times in a row after {len(reading.texts)} rows",
                    "Return END_OF_SPLIT at the end, or set rows=… to this check if it has none",
                )
            if records is None:
                if nothing > _AT_ONCE:
                    time.sleep(_WAIT_S)
                continue
            if not isinstance(records, pa.RecordBatch):
                raise broken(
                    self._source,
                    "read() returned something that is no record batch",
                    f"It was {type(records).__name__}",
                    "Return a pyarrow.RecordBatch, a Portion, None or END_OF_SPLIT",
                )
            reading.texts += row_texts(records)
            reading.positions.append((len(reading.texts), self._offset(split, reader)))
        reader.pause()
        reader.close()
        return reading

    def _offset(self, split: str, reader: SplitReader) -> bytes:
        offset, again = reader.offset(), reader.offset()
        if offset != again:
            raise broken(
                self._source,
                f"offset() of split '{split}' changes although nothing was read",
                f"It was {offset!r} and then {again!r}",
                _OFFSET,
            )
        try:
            json.loads(offset)
        except (ValueError, TypeError) as error:
            raise broken(
                self._source, f"offset() of split '{split}' is no JSON", f"It is {offset!r}: {error}", "Use json.dumps"
            ) from error
        return offset

    def compare(self, expected: Sequence[str], found: Sequence[str], rule: str, cure: str) -> None:
        said = difference(expected, found)
        if said is not None:
            raise broken(self._source, rule, said[0].upper() + said[1:], cure or _OFFSET)

    def positions(self, split: str, whole: _Reading) -> None:
        """A reader that is opened at a position goes on right behind it, in the same order."""
        step = max(1, len(whole.positions) // _POSITIONS_MAX)
        for returned, offset in {*whole.positions[::step], whole.positions[-1]}:
            expected = whole.texts[returned:]
            rest = self.read_from(split, offset, None if self._rows is None else len(expected)).texts
            where = f"a reader of split '{split}' opened behind row {returned}, at {offset.decode()},"
            if len(rest) < len(expected):
                self.compare(expected, rest, f"{where} misses rows: the offset runs ahead", _OFFSET)
            if len(rest) > len(expected):
                self.compare(expected, rest, f"{where} repeats rows: the offset lags behind", _OFFSET)
            if rest != expected:
                raise broken(
                    self._source,
                    f"{where} does not return the same rows in the same order",
                    f"The first was {(rest or ['none'])[0]} and not {(expected or ['none'])[0]}",
                    "A split has the same records in the same order whenever it is read: sort them",
                )

    # --- whole pipelines ---

    def runs(self, expected: Sequence[str]) -> None:
        self._run(expected, "an undisturbed run", (2,))
        self._run(expected, "two crashes of all workers", (2,), crashes=(1, 2))
        self._run(expected, "restarts of the driver with another parallelism, from 2 to 3 to 1", (2, 3, 1))

    def _run(
        self, expected: Sequence[str], moment: str, parallelisms: Sequence[int], crashes: Sequence[int] = ()
    ) -> None:
        """Each parallelism but the last runs until the driver dies, behind a checkpoint that holds new rows."""
        store, output = MemoryStore(), CollectSink()
        last = len(parallelisms) - 1
        for number, parallelism in enumerate(parallelisms):
            enough = len(expected) * (number + 1) // len(parallelisms)
            pipeline = Pipeline("contract")
            source = self._make_source()
            stream = pipeline.source(_Sipping(source, self._batch_rows), name="source")
            stream.sink(output, name="output")
            if DEAD_LETTERS in source.side_outputs:
                stream.dead_letters().sink(CollectSink(), name="dead letters")
            until = self._until(output, len(expected), enough, is_last=number == last)
            try:
                run(
                    pipeline,
                    parallelism=parallelism,
                    store=store,
                    crash_after_checkpoints=crashes,
                    until=until,
                    timeout=self._timeout,
                )
                break
            except _Died:
                continue
            except (PenstockError, TimeoutError) as error:
                raise broken(
                    self._source, f"after {moment} the pipeline did not come to its end", str(error), "Mend the error"
                ) from error
        self.compare(expected, row_texts(output.rows()), f"after {moment}, not every row came exactly once", _OFFSET)

    def _until(self, output: CollectSink, all_rows: int, enough: int, *, is_last: bool) -> Callable[[], bool]:
        def look() -> bool:
            count = sum(batch.num_rows for batch in output.batches())
            if not is_last and count >= enough:
                raise _Died
            return self._rows is not None and count >= all_rows

        return look


class _Sipping(Source):
    """The source under trial, whose first portions are small and wait for a checkpoint each."""

    def __init__(self, source: Source, batch_rows: int) -> None:
        self._source = source
        self._batch_rows = batch_rows
        self.splits_may_appear = source.splits_may_appear
        self.is_endless = source.is_endless
        self.side_outputs = source.side_outputs
        self.in_order = source.in_order

    def identity(self) -> Mapping[str, str]:
        return self._source.identity()

    def on_start(self) -> None:
        self._source.on_start()

    def splits(self) -> Sequence[str]:
        return self._source.splits()

    def open(self, split: str, offset: bytes | None) -> SplitReader:
        return _SippingReader(self._source.open(split, offset), self._batch_rows)


class _SippingReader(SplitReader):
    def __init__(self, reader: SplitReader, batch_rows: int) -> None:
        self._reader = reader
        self._batch_rows = batch_rows
        self._sips = 0
        self._has_snapshot = True
        self.is_bounded = reader.is_bounded
        self.may_leave = reader.may_leave

    def read(self, rows_max: int) -> Any:
        if self._sips >= _SIPS:
            return self._reader.read(rows_max)
        if not self._has_snapshot:
            return None
        batch = self._reader.read(min(rows_max, self._batch_rows))
        if batch is not None and batch is not END_OF_SPLIT:
            self._sips += 1
            self._has_snapshot = False
        return batch

    def offset(self) -> bytes:
        self._has_snapshot = True
        return self._reader.offset()

    def watermark(self) -> int | None:
        return self._reader.watermark()

    def pause(self) -> None:
        self._reader.pause()

    def on_checkpoint_complete(self, offset: bytes) -> None:
        self._reader.on_checkpoint_complete(offset)

    def close(self) -> None:
        self._reader.close()
