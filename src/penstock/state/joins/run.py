"""Runs: rows of one side of a join, sorted by the hash of their key and then by time, never changed afterwards.

A batch is looked up in a run by binary search: first the hash, then the bounds of the partners' times, so that a key
with many rows costs only for those that match. Equal hashes do not mean equal keys: whoever makes pairs compares those.

The high bits of a hash are its key group, so a run is in the order of the key groups too, and a checkpoint cuts it as
it is. And it needs no index of keys: when its rows are not needed any more, nothing of them is left.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.columnar.gather import take_rows
from penstock.columnar.hashing import Words

Rows: TypeAlias = npt.NDArray[np.intp]
Times: TypeAlias = npt.NDArray[np.int64]
Mask: TypeAlias = npt.NDArray[np.bool_]
Directory: TypeAlias = tuple[Rows, np.uint64]
"""The first row of each bucket of hashes, and the bits that a bucket is wide."""

_DIRECTORY_ROWS_MIN = 1 << 14
"""Larger runs have a directory of buckets: a binary search over a million rows misses the cache at every step."""
_ROWS_OF_KEY = 4
"""Rows of a key that are counted one by one before a search."""


class Run:
    """Sorted rows. `matched` says which of them have had a partner; None where nobody asks."""

    __slots__ = (
        "_buckets",
        "_by_time",
        "_is_shared",
        "cannot_merge",
        "emitted",
        "first_time",
        "hashes",
        "is_merging",
        "last_time",
        "matched",
        "rows",
        "rows_bytes",
        "times",
    )

    def __init__(self, hashes: Words, times: Times, rows: pa.RecordBatch, matched: Mask | None) -> None:
        self.hashes = hashes
        self.times = times
        self.rows = rows
        self.rows_bytes = int(rows.nbytes)
        self.matched = matched
        self.emitted = 0
        """In the order of time, the first rows that are gone: they were not needed any more."""
        self.is_merging = False
        self.cannot_merge = False
        self.first_time, self.last_time = int(times.min()), int(times.max())
        self._by_time: Rows | None = None
        self._buckets: Directory | None = None
        self._is_shared = False

    def __len__(self) -> int:
        return len(self.hashes)

    @property
    def run_bytes(self) -> int:
        matched = 0 if self.matched is None else self.matched.nbytes
        by_time = 0 if self._by_time is None else self._by_time.nbytes
        buckets = 0 if self._buckets is None else self._buckets[0].nbytes
        return self.rows_bytes + self.hashes.nbytes + self.times.nbytes + matched + by_time + buckets

    def find(self, hashes: Words, first: Times, last: Times) -> tuple[Rows, Rows]:
        """For each of `hashes`, the first row of the run that may match it, and how many follow with it."""
        starts = self._starts(hashes)
        counts = np.zeros(len(hashes), dtype=np.intp)
        hits = np.flatnonzero(self.hashes.take(starts, mode="clip") == hashes)
        if len(hits) == 0:
            return starts, counts
        low = starts[hits]
        high = self._ends(low, hashes[hits])
        if self.first_time < int(first.max()):
            low = bisected(self.times, low, high, first[hits], is_after=False)
        if self.last_time > int(last.min()):
            high = bisected(self.times, low, high, last[hits], is_after=True)
        starts[hits] = low
        counts[hits] = high - low
        return starts, counts

    def _starts(self, hashes: Words) -> Rows:
        """The first row that has each hash, or a larger one."""
        if len(self) < _DIRECTORY_ROWS_MIN:
            return np.searchsorted(self.hashes, hashes, side="left")
        directory, shift = self._directory
        # A hash outside of the run belongs to its first or last bucket.
        clipped = np.clip(hashes, self.hashes[0], self.hashes[-1])
        buckets = ((clipped - self.hashes[0]) >> shift).astype(np.intp)
        return bisected(self.hashes, directory[buckets], directory[buckets + 1], hashes, is_after=False)

    def _ends(self, starts: Rows, hashes: Words) -> Rows:
        """The row behind the last one that has each hash, which `starts` have. Most keys have few rows."""
        ends = starts + 1
        for _ in range(_ROWS_OF_KEY):
            is_more = self.hashes.take(ends, mode="clip") == hashes
            is_more &= ends < len(self)
            if not is_more.any():
                return ends
            ends += is_more
        left = np.flatnonzero(is_more)
        ends[left] = np.searchsorted(self.hashes, hashes[left], side="right")
        return ends

    @property
    def _directory(self) -> Directory:
        if self._buckets is None:
            self._buckets = _directory_of(self.hashes)
        return self._buckets

    def meets(self, first: Times, last: Times) -> bool:
        """Whether the run has rows of the times that anybody asks for."""
        return self.last_time >= int(first.min()) and self.first_time <= int(last.max())

    def mark(self, rows: Rows) -> None:
        """These rows have had a partner."""
        assert self.matched is not None
        if self._is_shared:
            # A snapshot holds the array as it was.
            self.matched, self._is_shared = self.matched.copy(), False
        self.matched[rows] = True

    @property
    def by_time(self) -> Rows:
        """The rows in the order of their times."""
        if self._by_time is None:
            self._by_time = np.argsort(self.times, kind="stable")
        return self._by_time

    def expired(self, limit: int) -> int:
        """How many rows are older than `limit`."""
        if limit <= self.first_time:
            return 0
        if limit > self.last_time:
            return len(self)
        by_time, times = self.by_time, self.times
        return bisect.bisect_left(range(len(self)), limit, key=lambda place: times[by_time[place]])

    def view(self) -> RunView:
        """The run as a snapshot holds it."""
        self._is_shared = True
        by_time = self.by_time if self.emitted else None
        return RunView(self.hashes, self.times, self.rows, self.matched, by_time, self.emitted)


@dataclass(frozen=True, slots=True)
class RunView:
    """A run at one moment."""

    hashes: Words
    times: Times
    rows: pa.RecordBatch
    matched: Mask | None
    by_time: Rows | None
    emitted: int

    def kept(self, limit: int) -> Rows:
        """The rows that are still needed, in their order."""
        is_kept = self.times >= limit
        if self.by_time is not None:
            is_kept[self.by_time[: self.emitted]] = False
        return np.flatnonzero(is_kept)


@dataclass(frozen=True, slots=True)
class Merged:
    """Several runs in one, without their marks, which may change while the merge is under way."""

    hashes: Words
    times: Times
    rows: pa.RecordBatch
    order: Rows
    """The number of each row among those of all runs, one run after the other."""
    directory: Directory | None
    by_time: Rows | None

    def run(self, matched: Sequence[Mask] | None) -> Run:
        marks = None if matched is None else np.concatenate(matched)[self.order]
        run = Run(self.hashes, self.times, self.rows, marks)
        # A large run is sorted and cut into buckets where it was merged, and not on the mailbox.
        run._buckets, run._by_time = self.directory, self.by_time
        return run


def sorted_run(hashes: Words, times: Times, rows: pa.RecordBatch, matched: Mask | None) -> Run:
    """A run of rows in any order; those of one key and time stay in their order."""
    order = _order(hashes, times)
    if order is None:
        return Run(hashes, times, rows, matched)
    return Run(hashes[order], times[order], take_rows(rows, order), None if matched is None else matched[order])


def merged(views: Sequence[RunView], limit: int) -> Merged:
    """The rows of several runs that are still needed, sorted. Touches nothing that changes.

    Raises `pa.ArrowException` if their columns cannot be put together, such as dictionaries that are too large.
    """
    kept = [view.kept(limit) for view in views]
    hashes = np.concatenate([view.hashes[rows] for view, rows in zip(views, kept, strict=True)])
    times = np.concatenate([view.times[rows] for view, rows in zip(views, kept, strict=True)])
    offsets = np.cumsum([0, *(len(view.hashes) for view in views)]).tolist()
    numbers = np.concatenate([rows + offset for rows, offset in zip(kept, offsets, strict=False)])
    rows = pa.concat_batches(
        [
            view.rows if len(some) == len(view.hashes) else take_rows(view.rows, some)
            for view, some in zip(views, kept, strict=True)
        ]
    )
    order = _order(hashes, times)
    if order is not None:
        hashes, times, rows, numbers = hashes[order], times[order], take_rows(rows, order), numbers[order]
    directory = _directory_of(hashes) if len(hashes) >= _DIRECTORY_ROWS_MIN else None
    has_marks = any(view.matched is not None for view in views)
    return Merged(hashes, times, rows, numbers, directory, np.argsort(times, kind="stable") if has_marks else None)


def _directory_of(hashes: Words) -> Directory:
    """Buckets of about two rows: hashes are spread evenly."""
    span = int(hashes[-1]) - int(hashes[0])
    shift = np.uint64(max(0, span.bit_length() - (len(hashes) // 2).bit_length()))
    counts = np.bincount(((hashes - hashes[0]) >> shift).astype(np.intp))
    return np.concatenate([np.zeros(1, np.intp), np.cumsum(counts)]), shift


def pairs_of(starts: Rows, counts: Rows, pairs_max: int) -> Iterator[tuple[Rows, Rows]]:
    """Numbers of the rows that were looked up, and of those of the run that each may match, in blocks."""
    ends = np.cumsum(counts)
    total = int(ends[-1]) if len(ends) else 0
    first_rows = starts - (ends - counts)
    for begin in range(0, total, pairs_max):
        numbers = np.arange(begin, min(begin + pairs_max, total))
        asking = (
            np.repeat(np.arange(len(counts)), counts) if total <= pairs_max else np.searchsorted(ends, numbers, "right")
        )
        yield asking, numbers + first_rows[asking]


def _order(hashes: Words, times: Times) -> Rows | None:
    """By hash, then time, then as they are; None if they are in that order."""
    rising = hashes[1:] > hashes[:-1]
    if bool((rising | ((hashes[1:] == hashes[:-1]) & (times[1:] >= times[:-1]))).all()):
        return None
    if bool((times[1:] >= times[:-1]).all()):
        return np.argsort(hashes, kind="stable")
    return np.lexsort((times, hashes))


def bisected(values: npt.NDArray[Any], low: Rows, high: Rows, bounds: npt.NDArray[Any], is_after: bool) -> Rows:
    """For each stretch of rising values, the first one that is not before its bound, or that is after it."""
    low, high = low.copy(), high.copy()
    while True:
        is_open = low < high
        if not is_open.any():
            return low
        middle = (low + high) >> 1
        at = values.take(middle, mode="clip")
        is_left = is_open & ((at <= bounds) if is_after else (at < bounds))
        low = np.where(is_left, middle + 1, low)
        high = np.where(is_open & ~is_left, middle, high)
