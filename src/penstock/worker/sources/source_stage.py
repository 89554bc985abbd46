"""The head of a source's chain: reads the splits that this subtask owns.

Splits are read in turns, or one after the other if the source says so. If the subtask keeps a clock for each split, the
one that is furthest behind in event time is read first, after all of them have begun: so the watermark, which waits
for the slowest, moves on, and windows hold little more than what the order of the records asks for.
"""

from __future__ import annotations

import contextlib
import logging
import zlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Literal

import pyarrow as pa

from penstock.columnar.gather import owned
from penstock.connectors.dead_letters import labelled
from penstock.connectors.source import END_OF_SPLIT, Backlog, Portion, Source, SplitReader
from penstock.errors import DataError, IncompatibleCheckpoint
from penstock.ids import DEAD_LETTERS, NO_CHECKPOINT, CheckpointId, OperatorName
from penstock.mailbox.notes import SplitClock
from penstock.metrics.metric import counter, gauge
from penstock.metrics.registry import Registry
from penstock.metrics.standard import (
    BACKLOG_BYTES,
    BACKLOG_ROWS,
    BACKLOG_SPLITS,
    FILES_SKIPPED,
    RECORDS_IN,
    RECORDS_OUT,
    SKIPPED,
)
from penstock.metrics.standard import DEAD_LETTERS as DEAD_LETTER_ROWS
from penstock.model.event_time import IDLE_WATERMARK, MAX_WATERMARK, MIN_WATERMARK
from penstock.protocol.manifest import SplitState
from penstock.worker.event_time.event_clocks import EventClocks

_AWAKE_MAX = 8
"""Readers that hold files and buffers at a time; one that is read again after more than these is paused before."""
_FIRST_ROWS = 64
"""As many records are read of a split to learn where its event time begins."""
_EMPTY_MS_MAX = 10_000
"""A subtask to which no split has come for this time is idle. Until then others may not have heard of a new split."""

SPLITS_HELD = gauge(
    "splits_held", "splits", "splits that wait because they are further ahead of the slowest one than `max_drift`"
)
DRIFT_WAIT = counter("drift_wait_time_ms", "ms", "time in which the source has read nothing because splits waited so")
_log = logging.getLogger("penstock")

LISTINGS_FAILED_MAX = 5
"""Failed listings of splits in a row that are only warned of. The splits that are open are read on meanwhile."""


def owned_splits(source: Source, names: Sequence[str], index: int, parallelism: int) -> list[str]:
    """Which of `names` subtask `index` reads.

    A fixed list is dealt out evenly by position. Where splits may appear at any time, positions are not
    stable, so the name decides.
    """
    if source.splits_may_appear:
        return [name for name in names if zlib.crc32(name.encode()) % parallelism == index]
    return [name for position, name in enumerate(names) if position % parallelism == index]


_NO_RECORDS = pa.RecordBatch.from_pylist([], schema=pa.schema([]))
"""What was read had nothing for the main output."""


def _units(backlog: Backlog | None) -> set[str]:
    return set() if backlog is None else {unit for unit in ("rows", "bytes") if getattr(backlog, unit) is not None}


class SourceStage:
    """Reads one subtask's splits of a source. `emit_side` takes the records of its side outputs."""

    def __init__(
        self,
        operator: OperatorName,
        source: Source,
        index: int,
        parallelism: int,
        emit_side: Callable[[str, pa.RecordBatch], None] = lambda output, batch: None,
        metrics: Registry | None = None,
        *,
        added_at: str = "",
    ) -> None:
        self.operator = operator
        self.added_at = added_at
        """The line of the user's program that describes the source."""
        self.source = source
        self.index = index
        self.parallelism = parallelism
        self.clocks: EventClocks[str] | None = None
        """The event time of each open split, if the records of this chain have one."""
        self.max_drift_ms: int | None = None
        """A split that is further ahead of the slowest one waits. None: any distance."""
        self.slowest_of_all: Callable[[], int | None] = self.slowest
        """As `slowest`, of all sources whose splits wait for each other."""
        self._has_begun = False
        """Whether each split that was there at the start has had a record, or nothing to read."""
        self._had_nothing: set[str] = set()
        """Splits that were asked for their first record, and are not known to have one."""
        self._waits_since_ms: int | None = None
        """When the source was asked, and had nothing because of `max_drift`."""
        self.current: str | None = None
        """The split whose records were returned last."""
        self._held = 0
        """Splits that waited when records were asked for last."""
        self._emit_side = emit_side
        counts = (metrics or Registry()).of(operator, index)
        self._records_in = counts.counter(RECORDS_IN)
        self._records_out = counts.counter(RECORDS_OUT)
        self._rows_skipped = counts.counter(SKIPPED)
        self._files_skipped = counts.counter(FILES_SKIPPED)
        self._dead_letters = counts.counter(DEAD_LETTER_ROWS)
        counts.observe(BACKLOG_ROWS, lambda: self._backlog("rows"))
        counts.observe(BACKLOG_BYTES, lambda: self._backlog("bytes"))
        counts.observe(BACKLOG_SPLITS, self._splits_left)
        self._measured: set[str] = set()
        """The units in which any split has told its backlog: without an open split it is 0, and not unknown."""
        counts.observe(SPLITS_HELD, lambda: self._held)
        self._drift_wait = counts.counter(DRIFT_WAIT)
        self.first_skipped = ""
        """The first of what was skipped in this attempt: where it lies, and the reason."""
        self._restored: Mapping[str, SplitState] = {}
        self._readers: dict[str, SplitReader] = {}
        self._open: list[str] = []
        self._settling: list[str] = []
        """Splits that have appeared since the last look. They hold the watermark, and are read after the next one:
        by then all subtasks have heard of what has appeared together with them."""
        self._has_looked = False
        self._empty_since_ms: int | None = None
        self._turn = 0
        self._listings_failed = 0
        self._awake: dict[str, None] = {}
        """Readers that were read and not paused since, the one that was read last at the end."""
        self._checkpoint = NO_CHECKPOINT
        """The one that `positions` are taken for."""
        self._noted: deque[tuple[CheckpointId, tuple[SplitState, ...]]] = deque(maxlen=2)
        """Positions of checkpoints of which it is not known whether they are durable: while one is collected, only the
        one before it can be undecided."""

    def restore(self, splits: Mapping[str, SplitState]) -> None:
        """Positions to go on from; must be called before `discover`."""
        self._restored = splits
        self.source.on_restore({name: state.offset for name, state in splits.items()})

    def discover(self, names: Sequence[str], now_ms: int = 0) -> bool:
        """Open the splits of `names` that are this subtask's and not open yet; True if there were any."""
        known = [*names, *sorted(set(self._restored) - set(names))]
        new = [
            name for name in owned_splits(self.source, known, self.index, self.parallelism) if name not in self._readers
        ]
        self._open += self._settling
        for name in new:
            position = self._restored.get(name)
            reader = self._readers[name] = self._opened(name, position)
            if self.clocks is not None:
                reached = position.reached_ms if position else None
                self.clocks.open(name, now_ms, reached, may_idle=not reader.is_bounded)
        self._settling = new if self._has_looked else []
        if not self._has_looked:
            self._open += new
        self._has_looked = True
        return bool(new)

    def _opened(self, name: str, position: SplitState | None) -> SplitReader:
        if position is None:
            return self.source.open(name, None)
        try:
            return self.source.open(name, position.offset)
        # A position that another source has written may be anything. What it is read from may fail for a while.
        except pa.ArrowException:
            raise
        except (ValueError, TypeError, LookupError, AttributeError) as error:
            kind, noted = type(self.source).__name__, position.offset.decode(errors="replace")
            raise IncompatibleCheckpoint(
                f"source '{self.operator}', a {kind}, cannot resume from position {noted} of split "
                f"'{name}', which the checkpoint holds for a source of that name "
                f"({type(error).__name__}: {error}). If that was a different source, put it back, or "
                "give this one another name and set allow_dropped_state=True"
            ) from error

    @property
    def named(self) -> str:
        return f"source '{self.operator}'"

    @property
    def subtask(self) -> str:
        """The subtask, as messages name it."""
        return f"subtask {self.index} of {self.parallelism}"

    def on_listed(self, names: Sequence[str] | Exception, now_ms: int = 0) -> None:
        """Take the outcome of a repeated listing of the splits.

        A directory or bucket may fail to answer for a moment, so a failure is a warning. One more than
        `LISTINGS_FAILED_MAX` in a row is raised.
        """
        if not isinstance(names, Exception):
            self._listings_failed = 0
            self.discover(names, now_ms)
            return
        self._listings_failed += 1
        if self._listings_failed > LISTINGS_FAILED_MAX or isinstance(names, DataError):
            # What is wrong with the data does not pass.
            raise names
        what = f"source '{self.operator}', subtask {self.index}"
        tries = f"{self._listings_failed} of {LISTINGS_FAILED_MAX}"
        _log.warning("%s cannot list its splits and tries again (%s): %r", what, tries, names)

    @property
    def has_ended(self) -> bool:
        return not self._open and not self.source.splits_may_appear

    def read(self, rows_max: int, now_ms: int = 0) -> pa.RecordBatch | None:
        """The next records of any split, or None if there are none right now.

        What goes to side outputs is emitted at once. If nothing else was read, the batch is empty.
        """
        former, self.current = self.current, None
        self._count_wait(now_ms)
        for name in self._not_ahead(self._order(former)):
            is_begun = self.clocks is None or self.clocks.reached(name) > MIN_WATERMARK
            batch = self._readers[name].read(rows_max if is_begun else min(rows_max, _FIRST_ROWS))
            if batch is END_OF_SPLIT:
                self._close(name)
                continue
            self._keep_awake(name)
            is_portion = isinstance(batch, Portion)
            if isinstance(batch, Portion):
                batch = self._without_sides(batch)
            if batch is not None and batch.num_rows:
                self.current = name
                self._had_nothing.discard(name)
                self._records_in.value += batch.num_rows
                self._records_out.value += batch.num_rows
                # What is counted, sent and captured of a slice should be the slice.
                return owned(batch)
            if is_portion:
                return _NO_RECORDS
            if self.clocks is not None:
                if self._readers[name].is_caught_up:
                    self._had_nothing.add(name)
                    self.clocks.had_nothing(name, now_ms)
                else:
                    self.clocks.has_more(name, now_ms)
        self._waits_since_ms = now_ms if self._held else None
        return None

    def _count_wait(self, now_ms: int) -> None:
        if self._waits_since_ms is not None:
            self._drift_wait.value += now_ms - self._waits_since_ms
            self._waits_since_ms = None

    def _backlog(self, unit: Literal["rows", "bytes"]) -> int | None:
        told = (self._readers[name].backlog() for name in (*self._open, *self._settling))
        found = [left for each in told if each is not None and (left := getattr(each, unit)) is not None]
        if found:
            self._measured.add(unit)
        return sum(found) if unit in self._measured else None

    def _splits_left(self) -> int | None:
        is_bounded = [self._readers[name].is_bounded for name in (*self._open, *self._settling)]
        return None if is_bounded and not any(is_bounded) else sum(is_bounded)

    def _without_sides(self, portion: Portion) -> pa.RecordBatch | None:
        self._rows_skipped.value += portion.rows_skipped
        self._files_skipped.value += portion.files_skipped
        self.first_skipped = self.first_skipped or portion.example
        for output, batch in portion.side.items():
            self._records_out.value += batch.num_rows
            if output == DEAD_LETTERS:
                self._dead_letters.value += batch.num_rows
                self._emit_side(output, labelled(batch, self.operator))
            else:
                self._emit_side(output, batch)
        return portion.records

    def slowest(self) -> int | None:
        """The clock of the slowest split; None if nobody has to wait, and `MIN_WATERMARK` before all have begun.

        Nobody waits for a split that is idle, nor for one that has no record yet and was asked for it. One that appears
        later does not count before its first record.
        """
        if self.clocks is None:
            return None
        clocks, begun = self.clocks, []
        for name in (*self._open, *self._settling):
            reached = clocks.reached(name)
            if reached > MIN_WATERMARK:
                if not clocks.is_idle(name):
                    begun.append(reached)
            elif not self._has_begun and name not in self._had_nothing:
                return MIN_WATERMARK
        self._has_begun = self._has_looked
        return min(begun, default=None)

    def _not_ahead(self, names: Iterable[str]) -> Iterable[str]:
        """Those of the splits that are no more than `max_drift_ms` ahead of the slowest one of all."""
        if self.clocks is None or self.max_drift_ms is None:
            return names
        every, slowest, clocks = list(names), self.slowest_of_all(), self.clocks
        if slowest is None:
            self._held = 0
            return every
        # Before all have begun, nobody knows how far ahead the others are: only first records are read.
        near = [name for name in every if clocks.reached(name) <= slowest + self.max_drift_ms]
        self._held = len(every) - len(near)
        return near

    def _order(self, former: str | None) -> Iterable[str]:
        """The open splits, those first that are to be read first."""
        if self.clocks is not None:
            clocks = self.clocks
            ordered = sorted(self._open, key=clocks.reached)
            is_begun = bool(ordered) and clocks.reached(ordered[0]) > MIN_WATERMARK
            if is_begun and former in self._readers and not self._readers[former].may_leave:
                return [former, *(name for name in ordered if name != former)]
            return ordered
        if self.source.in_order:
            return list(self._open)
        count = len(self._open)
        first = self._turn % count if count else 0
        self._turn = first + 1
        return [*self._open[first:], *self._open[:first]]

    def _close(self, name: str) -> None:
        # A split may be read to its end before anybody asks for its backlog. One that raises is said by the gauges.
        with contextlib.suppress(Exception):
            self._measured |= _units(self._readers[name].backlog())
        position = self._open.index(name)
        self._open.remove(name)
        if position < self._turn:
            self._turn -= 1
        self._awake.pop(name, None)
        self._had_nothing.discard(name)
        if self.clocks is not None:
            self.clocks.close(name)

    def _keep_awake(self, name: str) -> None:
        self._awake.pop(name, None)
        self._awake[name] = None
        if len(self._awake) > _AWAKE_MAX:
            longest = next(iter(self._awake))
            del self._awake[longest]
            self._readers[longest].pause()

    def watermark(self, now_ms: int) -> int:
        """The slowest split decides; those that have ended hold nothing back. `IDLE_WATERMARK` if there are none."""
        if self.has_ended:
            return MAX_WATERMARK
        if not self._open and not self._settling:
            return self._without_splits(now_ms)
        self._empty_since_ms = None
        if self.clocks is not None:
            return self.clocks.watermark()
        if self._settling:
            return MIN_WATERMARK
        clocks = [self._readers[name].watermark() for name in self._open]
        return min(MIN_WATERMARK if clock is None else clock for clock in clocks)

    def _without_splits(self, now_ms: int) -> int:
        if self._empty_since_ms is None:
            self._empty_since_ms = now_ms
        return IDLE_WATERMARK if now_ms - self._empty_since_ms >= _EMPTY_MS_MAX else MIN_WATERMARK

    def prepare(self, checkpoint: CheckpointId, completed: CheckpointId) -> None:
        """The next `positions` are those of `checkpoint`; `completed` is the newest that is durable."""
        self.on_checkpoint_complete(completed)
        self._checkpoint = checkpoint

    def positions(self) -> tuple[SplitState, ...]:
        """Where to read on, split by split: exactly behind what `read` has returned (I1)."""
        states = tuple(
            SplitState(self.operator, name, reader.offset(), self._reached(name))
            for name, reader in self._readers.items()
        )
        self._noted.append((self._checkpoint, states))
        return states

    def _reached(self, name: str) -> int | None:
        """The clock of a split; None for one that has ended, or has not begun."""
        if self.clocks is None or (name not in self._open and name not in self._settling):
            return None
        reached = self.clocks.reached(name)
        return reached if reached > MIN_WATERMARK else None

    def split_clocks(self) -> Iterator[SplitClock]:
        """The event time of each open split, if they have clocks."""
        if self.clocks is not None:
            for name in (*self._open, *self._settling):
                yield SplitClock(self.operator, name, self._reached(name), self.clocks.is_idle(name))

    def on_checkpoint_complete(self, checkpoint: CheckpointId) -> None:
        """Tell the readers, once, if it is a checkpoint that they gave their offsets for."""
        while self._noted and self._noted[0][0] <= checkpoint:
            noted, states = self._noted.popleft()
            if noted == checkpoint:
                for split in states:
                    self._readers[split.split].on_checkpoint_complete(split.offset)

    def close(self) -> None:
        for reader in self._readers.values():
            reader.close()
