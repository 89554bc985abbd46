"""Messages of `pgoutput` (protocol 1) as columns of cells: where the text of each value lies.

Messages of many changes are one array of bytes, with a cursor for each. A column is found for all rows at once: its
kind, its length, and the cursor behind it. No row is a Python object.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.columnar.ragged import Bytes, Positions, gathered
from penstock.errors import DataError

INSERT, UPDATE, DELETE, TRUNCATE = b"IUDT"
BEGIN, COMMIT, RELATION = b"BCR"
_OLD_KEY, _OLD_ROW, _NEW = b"KON"
_TEXT, _NULL, _UNCHANGED = b"tnu"
_TUPLE_AT = 6
"""Behind the kind of the message (1), the number of the table (4), and the mark of the tuple (1)."""
_PADDING = bytes(8)
"""A length is read at each cursor, also where a value has none."""

Mask: TypeAlias = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Relation:
    """A table as a message describes it: the columns of the changes that follow."""

    number: int
    schema: str
    name: str
    columns: tuple[str, ...]
    identity: str = "f"
    """The replica identity at that place of the log: `f` has whole old rows."""


def relation_of(message: bytes) -> Relation:
    (number,) = struct.unpack_from(">I", message, 1)
    schema, name, rest = message[5:].split(b"\0", 2)
    # The replica identity, then the number of columns (2).
    (count,) = struct.unpack_from(">H", rest, 1)
    at, columns = 3, []
    for _ in range(count):
        end = rest.index(b"\0", at + 1)
        columns.append(rest[at + 1 : end].decode())
        at = end + 9
    return Relation(number, schema.decode() or "pg_catalog", name.decode(), tuple(columns), chr(rest[0]))


def truncated(message: bytes) -> set[int]:
    """The numbers of the tables that a message empties."""
    (count,) = struct.unpack_from(">I", message, 1)
    return set(struct.unpack_from(f">{count}I", message, 6))


class Cells:
    """The values of one column: the kind of each, and where its text begins and how long it is."""

    __slots__ = ("kinds", "lengths", "starts")

    def __init__(self, count: int) -> None:
        self.kinds = np.full(count, _NULL, np.uint8)
        self.starts = np.zeros(count, np.int64)
        self.lengths = np.zeros(count, np.int64)

    def copy_rows(self, rows: Mask, other: Cells) -> None:
        for mine, theirs in ((self.kinds, other.kinds), (self.starts, other.starts), (self.lengths, other.lengths)):
            mine[rows] = theirs[rows]


class Tuples:
    """Changes of one table, column by column: each row as it was and as it is."""

    def __init__(self, messages: Sequence[bytes], relation: Relation) -> None:
        self.data: Bytes = np.frombuffer(b"".join(messages) + _PADDING, np.uint8)
        lengths = np.fromiter(map(len, messages), np.int64, len(messages))
        at = np.cumsum(lengths) - lengths
        self.relation = relation
        self.kinds = self.data[at]
        mark = self.data[at + 5]
        self.has_old_row: Mask = mark == _OLD_ROW
        self.has_old: Mask = self.has_old_row | (mark == _OLD_KEY)
        self.has_new: Mask = self.kinds != DELETE
        cursors = at + _TUPLE_AT
        self.old = self._read(cursors, self.has_old)
        # Behind an old tuple there is the mark of the new one.
        cursors[self.has_old] += 1
        self.new = self._read(cursors, self.has_new)

    def _read(self, cursors: Positions, rows: Mask) -> list[Cells]:
        """The columns of the tuples at the cursors of `rows`, which then stand behind them."""
        data, count = self.data, len(rows)
        columns = [Cells(count) for _ in self.relation.columns]
        at = cursors[rows] + 2
        for cells in columns:
            kinds = data[at]
            has_text = kinds == _TEXT
            length = np.zeros(len(at), np.int64)
            for place in range(1, 5):
                length = (length << 8) | data[at + place]
            length[~has_text] = 0
            cells.kinds[rows], cells.starts[rows], cells.lengths[rows] = kinds, at + 5, length
            at = at + 1 + np.where(has_text, 4 + length, 0)
        cursors[rows] = at
        return columns

    def fill_unchanged(self, where: str) -> None:
        """Take large values that an update has not touched, and that the log does not repeat, from the old row.

        Raises `DataError` if there is no old row.
        """
        for name, new, old in zip(self.relation.columns, self.new, self.old, strict=True):
            unchanged = self.has_new & (new.kinds == _UNCHANGED)
            if not unchanged.any():
                continue
            if (unchanged & ~(self.has_old_row & (old.kinds == _TEXT))).any():
                raise DataError(
                    f"{where}: an update leaves the large value of column '{name}' as it was, and the "
                    "log does not repeat it. Let the log contain old rows: ALTER TABLE … REPLICA "
                    "IDENTITY FULL. Changes already in the log stay incomplete: start again with a "
                    "new checkpoint directory"
                )
            new.copy_rows(unchanged, old)

    def same(self, column: int, rows: Mask) -> Mask:
        """Of `rows`, those whose old and new value of a column are the same text."""
        old, new = self.old[column], self.new[column]
        found: Mask = rows & (old.kinds == new.kinds) & (old.lengths == new.lengths)
        numbers = np.flatnonzero(found)
        lengths = new.lengths[numbers]
        differ = gathered(self.data, old.starts[numbers], lengths) != gathered(self.data, new.starts[numbers], lengths)
        found[np.repeat(numbers, lengths)[differ]] = False
        return found

    def texts(self, column: int, rows: Positions, is_old: Mask) -> pa.Array:
        """The values of `rows`, of the old or the new tuple each."""
        old, new = self.old[column], self.new[column]
        kinds = np.where(is_old, old.kinds[rows], new.kinds[rows])
        starts = np.where(is_old, old.starts[rows], new.starts[rows])
        lengths = np.where(is_old, old.lengths[rows], new.lengths[rows])
        offsets = np.zeros(len(rows) + 1, np.int32)
        np.cumsum(lengths, out=offsets[1:])
        valid = np.packbits(kinds == _TEXT, bitorder="little")
        buffers = [pa.py_buffer(valid), pa.py_buffer(offsets), pa.py_buffer(gathered(self.data, starts, lengths))]
        return pa.Array.from_buffers(pa.string(), len(rows), buffers)
