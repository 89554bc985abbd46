"""Recovered in-flight data: read from the checkpoint piece by piece, as they are processed.

The checkpoint itself is the spill: what does not fit into memory simply stays where it is. A checkpoint that is
taken meanwhile refers to the same bytes and notes from which row on they count (I10), so that it costs nothing
however much is still to be read. Nothing is deleted under a reader: what is unread is referred to by the newest
checkpoint, because it was unread when that one was taken.

Here is what one channel has; `backlog_reader` decides what is read when.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np
import pyarrow as pa

from penstock.columnar.gather import take_rows
from penstock.columnar.hashing import key_groups
from penstock.exchange.codec import decode_items
from penstock.exchange.items import BatchItem, Captured, WatermarkItem
from penstock.protocol.manifest import ChannelSegment
from penstock.storage.blob import read_segment
from penstock.storage.port import Store

LIVE = 0
"""The age of what arrives now; recovered records are older."""


class RecoveredBatch:
    """Rows that count, and where in their segment they stand."""

    __slots__ = ("batch", "first_row", "numbers")

    def __init__(self, batch: pa.RecordBatch, first_row: int, numbers: np.ndarray | None) -> None:
        self.batch = batch
        self.first_row = first_row
        self.numbers = numbers
        """The number of each row in the segment; None if they follow `first_row` without a gap."""

    def row_after(self, rows: int) -> int:
        """The first row of the segment that is still to be processed after `rows` of these."""
        return self.first_row + rows if self.numbers is None else int(self.numbers[rows - 1]) + 1

    def without(self, rows: int) -> RecoveredBatch:
        rest = None if self.numbers is None else self.numbers[rows:]
        return RecoveredBatch(self.batch.slice(rows), self.first_row + rows, rest)


Piece: TypeAlias = RecoveredBatch | WatermarkItem


@dataclass(slots=True)
class Entry:
    """One segment: not read yet, or what is left of it."""

    segment: ChannelSegment
    pieces: deque[Piece] | None = None
    is_loading: bool = False

    @property
    def is_wanted(self) -> bool:
        return self.pieces is None and not self.is_loading


class RecoveredChannel:
    """The recovered data of one channel, oldest first."""

    __slots__ = ("_entries",)

    def __init__(self, segments: Iterable[ChannelSegment]) -> None:
        self._entries = deque(Entry(segment) for segment in segments)

    def __bool__(self) -> bool:
        return bool(self._entries)

    @property
    def age(self) -> int:
        return self._entries[0].segment.age if self._entries else LIVE

    @property
    def is_loaded(self) -> bool:
        """Whether something can be read right now."""
        return bool(self._entries) and bool(self._entries[0].pieces)

    @property
    def is_under_way(self) -> bool:
        """Whether something can be read, or will be without anything else happening first."""
        return bool(self._entries) and not self._entries[0].is_wanted

    @property
    def loaded(self) -> int:
        return sum(not entry.is_wanted for entry in self._entries)

    @property
    def bytes_left(self) -> int:
        return sum(entry.segment.segment.length for entry in self._entries)

    def take(self, rows_max: int) -> Captured:
        """The next watermark, or the next rows, at most `rows_max`: from now on they are processed."""
        entry = self._entries[0]
        assert entry.pieces
        piece = entry.pieces[0]
        if isinstance(piece, WatermarkItem):
            entry.pieces.popleft()
            return piece
        rows = min(rows_max, piece.batch.num_rows)
        entry.segment = replace(entry.segment, first_row=piece.row_after(rows))
        if rows == piece.batch.num_rows:
            entry.pieces.popleft()
        else:
            entry.pieces[0] = piece.without(rows)
        batch = piece.batch.slice(0, rows)
        return BatchItem(batch, 0, batch.nbytes)

    def remaining(self) -> list[ChannelSegment]:
        """What a checkpoint taken now must hold of it."""
        return [entry.segment for entry in self._entries]

    def next_to_load(self) -> Entry | None:
        return next((entry for entry in self._entries if entry.is_wanted), None)

    def drop_finished(self) -> int:
        """Forget segments in front that are read to their end; returns how many bytes they had."""
        dropped = 0
        while self._entries and self._entries[0].pieces is not None and not self._entries[0].pieces:
            dropped += self._entries.popleft().segment.segment.length
        return dropped


def load(
    store: Store, segment: ChannelSegment, key: tuple[str, ...], max_parallelism: int, now_us: Callable[[], int]
) -> tuple[list[Piece], int]:
    """The rows of a segment that count, columnar and in their order, and how long decoding and filtering took."""
    data = read_segment(store, segment.segment)
    began_us = now_us()
    own = range(segment.key_group_first, segment.key_group_end)
    pieces: list[Piece] = []
    row = 0
    for item in decode_items(data):
        if isinstance(item, WatermarkItem):
            # Those in front of the first row too: they were heard before, and hearing them again does no harm.
            if segment.has_watermarks:
                pieces.append(item)
            continue
        processed = min(max(segment.first_row - row, 0), item.batch.num_rows)
        piece = RecoveredBatch(item.batch.slice(processed), row + processed, None)
        if own:
            piece = _own_rows(piece, key, own, max_parallelism)
        # One that never had a row shows its schema: see `PhysicalEdge.shows_schema`.
        if piece.batch.num_rows or not item.batch.num_rows:
            pieces.append(piece)
        row += item.batch.num_rows
    return pieces, now_us() - began_us


def _own_rows(piece: RecoveredBatch, key: tuple[str, ...], own: range, max_parallelism: int) -> RecoveredBatch:
    """The rows whose key group is one of `own` (I9)."""
    groups = key_groups(piece.batch, key, max_parallelism)
    mine = (groups >= own.start) & (groups < own.stop)
    if mine.all():
        return piece
    chosen = np.flatnonzero(mine)
    return RecoveredBatch(take_rows(piece.batch, chosen), piece.first_row, chosen + piece.first_row)
