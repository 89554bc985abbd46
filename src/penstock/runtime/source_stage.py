"""The head of a source's chain: reads the splits that this subtask owns, in turn."""

from __future__ import annotations

import logging
import zlib
from collections import deque
from collections.abc import Mapping, Sequence

import pyarrow as pa

from penstock.api.operator import MAX_WATERMARK, MIN_WATERMARK
from penstock.columnar.gather import owned
from penstock.connectors.source import END_OF_SPLIT, Source, SplitReader
from penstock.ids import NO_CHECKPOINT, CheckpointId, OperatorName
from penstock.protocol.manifest import SplitState

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


class SourceStage:
    """Reads one subtask's splits of a source."""

    def __init__(self, operator: OperatorName, source: Source, index: int, parallelism: int) -> None:
        self.operator = operator
        self.source = source
        self.index = index
        self.parallelism = parallelism
        self._restored: Mapping[str, SplitState] = {}
        self._readers: dict[str, SplitReader] = {}
        self._open: list[str] = []
        self._turn = 0
        self._listings_failed = 0
        self._checkpoint = NO_CHECKPOINT
        """The one that `positions` are taken for."""
        self._noted: deque[tuple[CheckpointId, tuple[SplitState, ...]]] = deque(maxlen=2)
        """Positions of checkpoints of which it is not known whether they are durable: while one is collected, only the
        one before it can be undecided."""

    def restore(self, splits: Mapping[str, SplitState]) -> None:
        """Positions to go on from; must be called before `discover`."""
        self._restored = splits

    def discover(self, names: Sequence[str]) -> bool:
        """Open the splits of `names` that are this subtask's and not open yet; True if there were any."""
        known = [*names, *sorted(set(self._restored) - set(names))]
        new = [
            name for name in owned_splits(self.source, known, self.index, self.parallelism) if name not in self._readers
        ]
        for name in new:
            position = self._restored.get(name)
            self._readers[name] = self.source.open(name, position.offset if position else None)
            self._open.append(name)
        return bool(new)

    def on_listed(self, names: Sequence[str] | Exception) -> None:
        """Take the outcome of a repeated listing of the splits.

        A directory or bucket may fail to answer for a moment, so a failure is a warning. One more than
        `LISTINGS_FAILED_MAX` in a row is raised.
        """
        if not isinstance(names, Exception):
            self._listings_failed = 0
            self.discover(names)
            return
        self._listings_failed += 1
        if self._listings_failed > LISTINGS_FAILED_MAX:
            raise names
        what = f"source '{self.operator}', subtask {self.index}"
        tries = f"{self._listings_failed} of {LISTINGS_FAILED_MAX}"
        _log.warning("%s cannot list its splits and tries again (%s): %r", what, tries, names)

    @property
    def has_ended(self) -> bool:
        return not self._open and not self.source.splits_may_appear

    def read(self, rows_max: int) -> pa.RecordBatch | None:
        """The next records of any split, or None if there are none right now."""
        for _ in range(len(self._open)):
            if self._turn >= len(self._open):
                self._turn = 0
            name = self._open[self._turn]
            batch = self._readers[name].read(rows_max)
            if batch is END_OF_SPLIT:
                self._open.remove(name)
                continue
            self._turn += 1
            if batch is not None and batch.num_rows:
                # What is counted, sent and captured of a slice should be the slice.
                return owned(batch)
        return None

    def watermark(self) -> int:
        """The slowest split decides; those that have ended hold nothing back."""
        clocks = [self._readers[name].watermark() for name in self._open]
        if not clocks:
            return MAX_WATERMARK if self.has_ended else MIN_WATERMARK
        return min(MIN_WATERMARK if clock is None else clock for clock in clocks)

    def prepare(self, checkpoint: CheckpointId, completed: CheckpointId) -> None:
        """The next `positions` are those of `checkpoint`; `completed` is the newest that is durable."""
        self.on_durable(completed)
        self._checkpoint = checkpoint

    def positions(self) -> tuple[SplitState, ...]:
        """Where to read on, split by split: exactly behind what `read` has returned (I1)."""
        states = tuple(SplitState(self.operator, name, reader.offset()) for name, reader in self._readers.items())
        self._noted.append((self._checkpoint, states))
        return states

    def on_durable(self, checkpoint: CheckpointId) -> None:
        """Tell the readers, once, if it is a checkpoint that they gave their offsets for."""
        while self._noted and self._noted[0][0] <= checkpoint:
            noted, states = self._noted.popleft()
            if noted == checkpoint:
                for split in states:
                    self._readers[split.split].on_durable(split.offset)

    def close(self) -> None:
        for reader in self._readers.values():
            reader.close()
