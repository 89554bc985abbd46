"""The current version of each key, and versions that are about to become current: found by key and time, columnar.

The rows lie in immutable batches, the *chunks*. A column says for each slot which row of which chunk is its current
one. A chunk of which less than half is current is written again with its current rows only, a few chunks at a time. So
memory follows the number of keys, and no call takes longer because there are many of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.columnar.gather import joined, take, take_rows
from penstock.state.index.key_index import KeyIndex, with_capacity
from penstock.state.index.slot_table import Slots

Times = npt.NDArray[np.int64]
References = npt.NDArray[np.int64]
"""The number of a chunk in the upper half, that of a row plus one in the lower half; 0 is no row."""

_ROW_BITS = 32
_ROW = (1 << _ROW_BITS) - 1
_CHUNK_ROWS = 1 << 14
"""Rows of a chunk that is not merged with others any more."""
_REWRITTEN_CHUNKS = 4
"""Chunks that one call writes again, at most."""


@dataclass(slots=True)
class _Chunk:
    rows: pa.RecordBatch
    slots: Slots
    times: Times
    current: int
    """Number of rows that are the current ones of their keys."""


@dataclass(frozen=True, slots=True)
class _Staged:
    """Versions that are about to become current, sorted by slot, time and arrival."""

    slots: Slots
    times: Times
    references: References


class Versions:
    """Versions of one subtask. `kinds` are the plain types of the key columns."""

    def __init__(self, kinds: Sequence[pa.DataType]) -> None:
        self._index = KeyIndex(kinds)
        self._where: References = np.empty(0, dtype=np.int64)
        self._times: Times = np.empty(0, dtype=np.int64)
        self._chunks: dict[int, _Chunk] = {}
        self._next = 0
        self._staged = _Staged(*(np.empty(0, dtype=np.int64) for _ in range(3)))
        self._staged_chunks: list[int] = []

    @property
    def batches(self) -> list[pa.RecordBatch]:
        """The chunks with the current versions; staged ones are not among them."""
        return [chunk.rows for number, chunk in self._chunks.items() if number not in self._staged_chunks]

    def stage(self, parts: Sequence[tuple[pa.RecordBatch, list[pa.Array], Times]]) -> None:
        """Let `match` see these versions too, in the order in which they came: rows, their keys and their times."""
        slots, references = [np.empty(0, dtype=np.int64)], [np.empty(0, dtype=np.int64)]
        for rows, keys, times in parts:
            slots.append(self._index.slots_of(keys).astype(np.int64))
            number = self._add_chunk(_Chunk(rows, slots[-1], times, 0))
            references.append(_references(number, rows.num_rows))
            self._staged_chunks.append(number)
        self._where = with_capacity(self._where, self._index.size)
        self._times = with_capacity(self._times, self._index.size)
        all_slots = np.concatenate(slots)
        all_times = np.concatenate([np.empty(0, dtype=np.int64), *(times for _, _, times in parts)])
        # Stable: of equal times the one that came last is behind the others.
        order = np.lexsort((all_times, all_slots))
        self._staged = _Staged(all_slots[order], all_times[order], np.concatenate(references)[order])

    def match(self, keys: Sequence[pa.Array], times: Times) -> References:
        """For each key the last version that is not later than the time, or 0."""
        slots = self._index.find(keys)
        found: References = np.zeros(len(slots), dtype=np.int64)
        if self._index.size == 0:
            return found
        where, current = self._where.take(slots, mode="clip"), self._times.take(slots, mode="clip")
        sees = (slots >= 0) & (where != 0) & (current <= times)
        found[sees] = where[sees]
        staged = self._staged
        places = _last_not_later(staged.slots, staged.times, slots, times)
        rows = np.flatnonzero(places >= 0)
        # A late version may be older than the current one. Of equal times the later arrival counts.
        rows = rows[~sees[rows] | (staged.times[places[rows]] >= current[rows])]
        found[rows] = staged.references[places[rows]]
        return found

    def gather(self, references: References, columns: Sequence[str]) -> list[pa.Array]:
        """The columns of these rows, all of which are rows."""
        numbers, rows = references >> _ROW_BITS, (references & _ROW) - 1
        distinct = np.unique(numbers)
        if len(distinct) == 1:
            chunk = self._chunks[int(distinct[0])].rows
            return [take(chunk.column(name), rows) for name in columns]
        order = np.argsort(numbers, kind="stable")
        bounds = np.searchsorted(numbers[order], distinct)
        parts = np.split(rows[order], bounds[1:])
        back = np.empty(len(order), dtype=np.int64)
        back[order] = np.arange(len(order))
        chunks = [self._chunks[number].rows for number in distinct.tolist()]
        return [
            take(
                pa.concat_arrays([take(chunk.column(name), part) for chunk, part in zip(chunks, parts, strict=True)]),
                back,
            )
            for name in columns
        ]

    def unstage(self) -> None:
        """Forget the staged versions: none of them becomes current."""
        for number in self._staged_chunks:
            del self._chunks[number]
        self._staged_chunks = []
        self._staged = _Staged(*(np.empty(0, dtype=np.int64) for _ in range(3)))

    def settle(self) -> None:
        """The last staged version of each key becomes the current one, unless it is older."""
        staged = self._staged
        is_last = np.append(staged.slots[1:] != staged.slots[:-1], [True])[: len(staged.slots)]
        slots, times, references = staged.slots[is_last], staged.times[is_last], staged.references[is_last]
        is_newer = (self._where[slots] == 0) | (times >= self._times[slots])
        order = np.argsort(references[is_newer])
        slots, times, references = (each[is_newer][order] for each in (slots, times, references))
        numbers = references >> _ROW_BITS
        parts = []
        for number in self._staged_chunks:
            mine = np.flatnonzero(numbers == number)
            rows = (references[mine] & _ROW) - 1
            parts.append((take_rows(self._chunks[number].rows, rows), slots[mine], times[mine]))
        self.unstage()
        self._store(slots, parts)

    def _store(self, slots: Slots, parts: list[tuple[pa.RecordBatch, Slots, Times]]) -> None:
        self._leave(slots)
        rewritten = self._sparse_chunks()
        size = sum(rows.num_rows for rows, _, _ in parts)
        for number in reversed(self._chunks):
            # Small neighbours become one chunk.
            if number in rewritten:
                continue
            if self._chunks[number].rows.num_rows > min(2 * size, _CHUNK_ROWS):
                break
            size += self._chunks[number].rows.num_rows
            rewritten.append(number)
        kept = [self._pop_current(number) for number in sorted(rewritten)]
        for rows, those, times in _in_one([*kept, *parts]):
            number = self._add_chunk(_Chunk(rows, those, times, rows.num_rows))
            self._where[those] = _references(number, rows.num_rows)
            self._times[those] = times

    def _leave(self, slots: Slots) -> None:
        """The current versions of these slots are no longer current."""
        former = self._where[slots]
        numbers, counts = np.unique(former[former != 0] >> _ROW_BITS, return_counts=True)
        for number, count in zip(numbers.tolist(), counts.tolist(), strict=True):
            self._chunks[number].current -= count
        self._where[slots] = 0

    def _sparse_chunks(self) -> list[int]:
        sparse = [number for number, chunk in self._chunks.items() if 2 * chunk.current < chunk.rows.num_rows]
        return sparse[:_REWRITTEN_CHUNKS]

    def _pop_current(self, number: int) -> tuple[pa.RecordBatch, Slots, Times]:
        chunk = self._chunks.pop(number)
        mine = np.flatnonzero(self._where[chunk.slots] == _references(number, chunk.rows.num_rows))
        return take_rows(chunk.rows, mine), chunk.slots[mine], chunk.times[mine]

    def _add_chunk(self, chunk: _Chunk) -> int:
        self._next += 1
        self._chunks[self._next] = chunk
        return self._next


def _references(number: int, rows: int) -> References:
    return (number << _ROW_BITS) + np.arange(1, rows + 1, dtype=np.int64)


def _last_not_later(slots: Slots, times: Times, asked: Slots, at: Times) -> npt.NDArray[np.intp]:
    """For each slot that is asked for, the last place of it with a time that is not later than `at`; -1 if none is.

    `slots` and `times` are sorted by both. A time becomes its rank, so that slot and time are one number.
    """
    if len(slots) == 0:
        return np.full(len(asked), -1, dtype=np.intp)
    distinct = np.unique(times)
    span = len(distinct) + 1
    places = slots * span + np.searchsorted(distinct, times) + 1
    wanted = asked * span + np.searchsorted(distinct, at, side="right")
    found = np.searchsorted(places, wanted, side="right") - 1
    is_there = (found >= 0) & (slots[np.maximum(found, 0)] == asked)
    return np.where(is_there, found, -1)


def _in_one(
    parts: Sequence[tuple[pa.RecordBatch, Slots, Times]],
) -> Iterator[tuple[pa.RecordBatch, Slots, Times]]:
    parts = [part for part in parts if part[0].num_rows]
    if not parts:
        return
    slots, times = (np.concatenate([part[place] for part in parts]) for place in (1, 2))
    first = 0
    for rows in joined([rows for rows, _, _ in parts]):
        end = first + rows.num_rows
        yield rows, slots[first:end], times[first:end]
        first = end
