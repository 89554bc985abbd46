"""Sources and sinks that say when they did what, and what they had in hand: for measuring, and for checking.

They are made of the public interfaces alone: no part of the engine knows that it is being measured. A source notes its
first and its last record in files, one for each split; a sink hands its figures over as committables, so that what is
compared in the end is what was committed, exactly once.
"""

from __future__ import annotations

import json
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from penstock import Sink, SinkWriter
from penstock.connectors.sink import Committer, Prepared, nothing_prepared
from penstock.connectors.source import END_OF_SPLIT, Source, SplitReader
from penstock.ids import CheckpointId, Generation

CheckpointStats = dict[str, float]


class NotedSource(Source):
    """Another source, with the times of its first read and of its end noted in a directory."""

    def __init__(self, inner: Source, notes: str) -> None:
        self._inner = inner
        self._notes = notes
        self.splits_may_appear = inner.splits_may_appear

    def splits(self) -> Sequence[str]:
        return self._inner.splits()

    def open(self, split: str, offset: bytes | None) -> SplitReader:
        return _NotedReader(self._inner.open(split, offset), self._notes, split)


class _NotedReader(SplitReader):
    def __init__(self, inner: SplitReader, notes: str, split: str) -> None:
        self._inner = inner
        self._notes = notes
        self._split = split
        self._has_read = False

    def read(self, rows_max: int) -> Any:
        if not self._has_read:
            self._has_read = True
            note(self._notes, "first", self._split)
        batch = self._inner.read(rows_max)
        if batch is END_OF_SPLIT:
            note(self._notes, "end", self._split)
        return batch

    def offset(self) -> bytes:
        return self._inner.offset()

    def watermark(self) -> int | None:
        return self._inner.watermark()

    def on_checkpoint_complete(self, offset: bytes) -> None:
        self._inner.on_checkpoint_complete(offset)

    def close(self) -> None:
        self._inner.close()


def note(directory: str, what: str, who: str) -> None:
    """Write the time into a file, once: a second note of the same thing changes nothing."""
    path = Path(directory) / f"{what}-{who.replace('/', '-')}"
    if not path.exists():
        path.write_text(repr(time.time()))


def noted(directory: str, what: str, after: float = 0.0) -> list[float]:
    """The times that were noted of something, in order; those after a moment, if one is given."""
    found = [float(path.read_text() or "0") for path in Path(directory).glob(f"{what}-*")]
    return sorted(at for at in found if at > after)


class Tally(ABC):
    """Adds up what one writer is given."""

    @abstractmethod
    def take(self, batch: pa.RecordBatch) -> None: ...

    @abstractmethod
    def figures(self) -> CheckpointStats:
        """All that was taken so far, not only since the last call. Must be small."""


class Checked(Sink):
    """Takes everything and keeps nothing but a tally, of which the driver hears with each checkpoint.

    With a directory `notes`, each writer notes its first record there, as `out` of its generation and subtask. With
    `at_close` the tally is not handed over with each checkpoint but noted there too, at the end: such a sink has
    nothing to commit, and its tally holds as long as nothing fails.
    """

    def __init__(self, tally: Callable[[], Tally], notes: str | None = None, *, at_close: bool = False) -> None:
        self._tally = tally
        self._notes = notes
        self._at_close = at_close
        self._parts: dict[str, tuple[int, CheckpointStats]] = {}
        self._last_at = 0.0

    def __getstate__(self) -> dict[str, Any]:
        return {"_tally": self._tally, "_notes": self._notes, "_at_close": self._at_close}

    def writer(self, subtask: int, generation: Generation) -> SinkWriter:
        return _CheckedWriter(self._tally(), f"{generation}/{subtask}", self._notes, self._at_close)

    def committer(self) -> Committer:
        return _CheckedCommitter(self)

    def add(self, part: str, number: int, last_at: float, figures: CheckpointStats) -> None:
        if number > self._parts.get(part, (0, {}))[0]:
            self._parts[part] = number, figures
            self._last_at = max(self._last_at, last_at)

    @property
    def figures(self) -> CheckpointStats:
        """What was committed, over all subtasks and attempts."""
        if self._at_close and self._notes is not None:
            for path in Path(self._notes).glob("tally-*"):
                self.add(*json.loads(path.read_text()))
        names = dict.fromkeys(name for _, figures in self._parts.values() for name in figures)
        return {name: sum(figures.get(name, 0) for _, figures in self._parts.values()) for name in names}

    @property
    def last_at(self) -> float:
        """When the last record was written."""
        return self._last_at


class _CheckedWriter(SinkWriter):
    def __init__(self, tally: Tally, part: str, notes: str | None, at_close: bool) -> None:
        self._tally = tally
        self._part = part
        self._notes = notes
        self._at_close = at_close
        self._number = 0
        self._last_at = 0.0

    def write(self, batch: pa.RecordBatch) -> None:
        if self._notes is not None and not self._last_at:
            note(self._notes, "out", self._part)
        self._tally.take(batch)
        self._last_at = time.time()

    def prepare(self) -> Prepared:
        if self._at_close:
            return nothing_prepared
        payload = self._report().encode()
        return lambda: [payload]

    def _report(self) -> str:
        self._number += 1
        return json.dumps([self._part, self._number, self._last_at, self._tally.figures()])

    def close(self) -> None:
        if self._at_close and self._notes is not None:
            (Path(self._notes) / f"tally-{self._part.replace('/', '-')}").write_text(self._report())


class _CheckedCommitter(Committer):
    def __init__(self, sink: Checked) -> None:
        self._sink = sink

    def commit(self, checkpoint: CheckpointId, committables: Sequence[bytes]) -> None:
        for payload in committables:
            self._sink.add(*json.loads(payload))
