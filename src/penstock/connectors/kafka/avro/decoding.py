"""Avro to Arrow, a column at a time: each type reads itself from all rows, and leaves their cursors behind itself.

A reader yields the column that the *reader's* schema wants from bytes that another schema wrote; `resolution.py`
chooses it. All errors of data are `ValueError`: the caller searches for the message.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.columnar.ragged import SHORT, Bytes, Positions, gathered, longs

_INT = -(1 << 31), (1 << 31) - 1
_OFFSETS_MAX = (1 << 31) - 1
_DECIMAL_BYTES = 16


class Reader(ABC):
    """Reads one type. Each call gets the cursors of some rows, and the ends of these rows."""

    type: pa.DataType

    @abstractmethod
    def read(self, data: Bytes, at: Positions, end: Positions) -> tuple[pa.Array, Positions]: ...

    def skip(self, data: Bytes, at: Positions, end: Positions) -> Positions:
        return self.read(data, at, end)[1]


def _as(array: pa.Array, kind: pa.DataType) -> pa.Array:
    if array.type.equals(kind):
        return array
    # A timestamp is the number that it is written as; a promoted number is another number.
    return array.cast(kind) if pa.types.is_floating(kind) or pa.types.is_integer(kind) else array.view(kind)


class Nulls(Reader):
    def __init__(self, kind: pa.DataType) -> None:
        self.type = kind

    def read(self, data: Bytes, at: Positions, end: Positions) -> tuple[pa.Array, Positions]:
        return pa.nulls(len(at), self.type), at


class Booleans(Reader):
    type = pa.bool_()

    def read(self, data: Bytes, at: Positions, end: Positions) -> tuple[pa.Array, Positions]:
        if (at >= end).any():
            raise ValueError(SHORT)
        found = data[at]
        if (found > 1).any():
            raise ValueError("a boolean is neither 0 nor 1")
        return pa.array(found.astype(bool)), at + 1


class Integers(Reader):
    """`int` and `long`, and everything that is written as one of them."""

    def __init__(self, kind: pa.DataType, *, is_int: bool) -> None:
        self.type = kind
        self._is_int = is_int

    def read(self, data: Bytes, at: Positions, end: Positions) -> tuple[pa.Array, Positions]:
        values, at = longs(data, at, end)
        if self._is_int and len(values) and not _INT[0] <= values.min() <= values.max() <= _INT[1]:
            raise ValueError("an int is outside of 32 bits")
        narrow = self.type.id in {pa.int32().id, pa.date32().id, pa.time32("ms").id}
        if pa.types.is_floating(self.type):
            return pa.array(values.astype(self.type.to_pandas_dtype())), at
        return _as(pa.array(values.astype(np.int32) if narrow else values), self.type), at

    def skip(self, data: Bytes, at: Positions, end: Positions) -> Positions:
        return longs(data, at, end)[1]


class Floats(Reader):
    def __init__(self, kind: pa.DataType, dtype: str) -> None:
        self.type = kind
        self._dtype = np.dtype(dtype)

    def read(self, data: Bytes, at: Positions, end: Positions) -> tuple[pa.Array, Positions]:
        raw = fixed_bytes(data, at, end, self._dtype.itemsize)
        return _as(pa.array(raw.reshape(-1).view(self._dtype)), self.type), at + self._dtype.itemsize


def fixed_bytes(data: Bytes, at: Positions, end: Positions, size: int) -> Bytes:
    """A matrix of `size` bytes for each row."""
    if (at + size > end).any():
        raise ValueError(SHORT)
    return np.ascontiguousarray(data[at[:, None] + np.arange(size)])


def _extents(data: Bytes, at: Positions, end: Positions) -> tuple[Positions, Positions]:
    """Where the bytes of a string begin, and how many they are."""
    lengths, at = longs(data, at, end)
    if (lengths < 0).any() or (lengths > end - at).any():
        raise ValueError(SHORT)
    return at, lengths


class Strings(Reader):
    """`string` and `bytes`."""

    def __init__(self, kind: pa.DataType) -> None:
        self.type = kind

    def read(self, data: Bytes, at: Positions, end: Positions) -> tuple[pa.Array, Positions]:
        at, lengths = _extents(data, at, end)
        return binary(gathered(data, at, lengths), lengths, self.type), at + lengths

    def skip(self, data: Bytes, at: Positions, end: Positions) -> Positions:
        at, lengths = _extents(data, at, end)
        return at + lengths


def binary(values: Bytes, lengths: Positions, kind: pa.DataType) -> pa.Array:
    """Bytes one row behind the other as a column. Raises `ArrowInvalid` if text is not UTF-8."""
    offsets = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, out=offsets[1:])
    if offsets[-1] > _OFFSETS_MAX:
        raise ValueError("the messages of one poll have more than 2 GiB of text in one column")
    buffers = [None, pa.py_buffer(offsets.astype(np.int32)), pa.py_buffer(values)]
    array = pa.Array.from_buffers(kind, len(lengths), buffers)
    if pa.types.is_string(kind) and (values & 0x80).any():
        array.validate(full=True)
    return array


class Fixed(Reader):
    def __init__(self, size: int) -> None:
        self.type = pa.binary(size)
        self._size = size

    def read(self, data: Bytes, at: Positions, end: Positions) -> tuple[pa.Array, Positions]:
        raw = fixed_bytes(data, at, end, self._size)
        return pa.Array.from_buffers(self.type, len(at), [None, pa.py_buffer(raw)]), at + self._size


class Decimals(Reader):
    """The whole number, most significant byte first, as `bytes` or as `fixed`."""

    def __init__(self, kind: pa.DataType, size: int | None) -> None:
        self.type = kind
        self._size = size

    def read(self, data: Bytes, at: Positions, end: Positions) -> tuple[pa.Array, Positions]:
        if self._size is None:
            at, lengths = _extents(data, at, end)
        else:
            lengths = np.full(len(at), self._size)
            if (at + lengths > end).any():
                raise ValueError(SHORT)
        behind = at + lengths
        is_negative = (lengths > 0) & (data[np.minimum(at, max(0, len(data) - 1))] >= 0x80)
        sign = np.where(is_negative, 0xFF, 0).astype(np.uint8)
        values = np.repeat(sign[:, None], _DECIMAL_BYTES, axis=1)
        for number in range(_DECIMAL_BYTES):
            rows = np.flatnonzero(lengths > number)
            values[rows, number] = data[behind[rows] - 1 - number]
        self._require_fit(data, at, lengths, values, sign)
        array = pa.Array.from_buffers(self.type, len(at), [None, pa.py_buffer(values)])
        array.validate(full=True)
        return array, behind

    def _require_fit(self, data: Bytes, at: Positions, lengths: Positions, values: Bytes, sign: Bytes) -> None:
        """Bytes in front of the sixteenth repeat the sign, and so does the sixteenth."""
        too_large = ValueError(f"a decimal does not fit {self.type}")
        for row in np.flatnonzero(lengths > _DECIMAL_BYTES):
            if (data[at[row] : at[row] + lengths[row] - _DECIMAL_BYTES] != sign[row]).any():
                raise too_large
        if ((values[:, -1] >= 0x80) != (sign != 0)).any():
            raise too_large


class Enums(Reader):
    """Symbols by their numbers. `symbols` are those of the writer, None for one that the reader does not have."""

    type = pa.string()

    def __init__(self, symbols: Sequence[str | None], names: Sequence[str]) -> None:
        self._symbols = pa.array(symbols, pa.string())
        self._names = names
        self._unknown = np.array([symbol is None for symbol in symbols])

    def read(self, data: Bytes, at: Positions, end: Positions) -> tuple[pa.Array, Positions]:
        numbers, at = longs(data, at, end)
        if ((numbers < 0) | (numbers >= len(self._names))).any():
            raise ValueError(f"an enum index is outside its {len(self._names)} symbols")
        unknown = numbers[self._unknown[numbers]]
        if len(unknown):
            name = self._names[int(unknown[0])]
            raise ValueError(f"the enum symbol '{name}' is not in the reader's schema, whose enum has no default")
        return self._symbols.take(pa.array(numbers)), at


class Records(Reader):
    """The fields in the order of the writer; columns in that of the reader."""

    def __init__(
        self, kind: pa.DataType, fields: Sequence[tuple[int | None, Reader]], added: dict[int, pa.Array]
    ) -> None:
        self.type = kind
        self._fields = fields
        """Of each written field the number of its column, None for one that is not wanted."""
        self._added = added
        """Of columns that were not written, the default as an array of one."""

    def columns(self, data: Bytes, at: Positions, end: Positions) -> tuple[list[pa.Array], Positions]:
        found: dict[int, pa.Array] = {}
        for number, reader in self._fields:
            if number is None:
                at = reader.skip(data, at, end)
            else:
                found[number], at = reader.read(data, at, end)
        zeros = pa.array(np.zeros(len(at), np.int64))
        return [
            found[number] if number in found else self._added[number].take(zeros)
            for number in range(self.type.num_fields)
        ], at

    def read(self, data: Bytes, at: Positions, end: Positions) -> tuple[pa.Array, Positions]:
        columns, behind = self.columns(data, at, end)
        if not columns:
            return pa.array([{}] * len(at), self.type), behind
        return pa.StructArray.from_arrays(columns, fields=list(self.type)), behind

    def skip(self, data: Bytes, at: Positions, end: Positions) -> Positions:
        for _, reader in self._fields:
            at = reader.skip(data, at, end)
        return at


class Unfit(Reader):
    """A branch of a union that the reader's schema does not have. Only data that use it are at fault."""

    def __init__(self, reason: str) -> None:
        self.type = pa.null()
        self._reason = reason

    def read(self, data: Bytes, at: Positions, end: Positions) -> tuple[pa.Array, Positions]:
        raise ValueError(self._reason)


class Unions(Reader):
    def __init__(self, kind: pa.DataType, branches: Sequence[Reader]) -> None:
        self.type = kind
        self._branches = branches

    def read(self, data: Bytes, at: Positions, end: Positions) -> tuple[pa.Array, Positions]:
        chosen, at = self._chosen(data, at, end)
        if len(at) and (chosen == chosen[0]).all():
            return self._branches[int(chosen[0])].read(data, at, end)
        parts: list[tuple[npt.NDArray[np.int64], pa.Array]] = []
        for number, branch in enumerate(self._branches):
            rows = np.flatnonzero(chosen == number)
            if len(rows):
                column, at[rows] = branch.read(data, at[rows], end[rows])
                parts.append((rows, column))
        return in_order(parts, self.type), at

    def skip(self, data: Bytes, at: Positions, end: Positions) -> Positions:
        chosen, at = self._chosen(data, at, end)
        for number, branch in enumerate(self._branches):
            rows = np.flatnonzero(chosen == number)
            if len(rows):
                at[rows] = branch.skip(data, at[rows], end[rows])
        return at

    def _chosen(self, data: Bytes, at: Positions, end: Positions) -> tuple[Positions, Positions]:
        chosen, at = longs(data, at, end)
        if ((chosen < 0) | (chosen >= len(self._branches))).any():
            raise ValueError(f"a union index is outside its {len(self._branches)} branches")
        return chosen, at


def in_order(parts: Sequence[tuple[npt.NDArray[np.int64], pa.Array]], kind: pa.DataType) -> pa.Array:
    """Columns of some rows each as one column of all rows."""
    if not parts:
        return pa.array([], kind)
    rows = np.concatenate([rows for rows, _ in parts])
    return pa.concat_arrays([column for _, column in parts]).take(pa.array(np.argsort(rows, kind="stable")))


class Lists(Reader):
    """Arrays and maps: blocks of items, the last one empty. Item by item, of all rows that have one more."""

    def __init__(self, kind: pa.DataType, items: Sequence[Reader]) -> None:
        self.type = kind
        self._items = items
        """One for an array; keys and values for a map."""

    def read(self, data: Bytes, at: Positions, end: Positions) -> tuple[pa.Array, Positions]:
        parts: list[list[tuple[Any, pa.Array]]] = [[] for _ in self._items]

        def read_items(rows: Positions, at: Positions) -> None:
            for part, item in zip(parts, self._items, strict=True):
                column, at[rows] = item.read(data, at[rows], end[rows])
                part.append((rows, column))

        counts, at = self._walk(data, at, end, read_items)
        columns = [in_order(part, item.type) for part, item in zip(parts, self._items, strict=True)]
        offsets = pa.array(np.concatenate([[0], np.cumsum(counts)]).astype(np.int32))
        if len(columns) == 2:
            return pa.MapArray.from_arrays(offsets, *columns).cast(self.type), at
        return pa.ListArray.from_arrays(offsets, columns[0]).cast(self.type), at

    def skip(self, data: Bytes, at: Positions, end: Positions) -> Positions:
        def skip_items(rows: Positions, at: Positions) -> None:
            for item in self._items:
                at[rows] = item.skip(data, at[rows], end[rows])

        return self._walk(data, at, end, skip_items)[1]

    def _walk(
        self, data: Bytes, at: Positions, end: Positions, item: Callable[[Positions, Positions], None]
    ) -> tuple[Positions, Positions]:
        """How many items each row has. `item` moves the cursors of the given rows behind their next item."""
        at, rows = at.copy(), np.arange(len(at))
        counts, left = np.zeros(len(at), np.int64), np.zeros(len(at), np.int64)
        while len(rows):
            left[rows], at[rows] = self._block(data, at[rows], end[rows])
            rows = rows[left[rows] > 0]
            within = rows
            while len(within):
                item(within, at)
                counts[within] += 1
                left[within] -= 1
                within = within[left[within] > 0]
        return counts, at

    @staticmethod
    def _block(data: Bytes, at: Positions, end: Positions) -> tuple[Positions, Positions]:
        """How many items there are in the next block: a negative number is followed by the size in bytes."""
        counts, at = longs(data, at, end)
        sized = np.flatnonzero(counts < 0)
        if len(sized):
            _, at[sized] = longs(data, at[sized], end[sized])
            counts[sized] = -counts[sized]
        if (counts < 0).any() or (counts > _OFFSETS_MAX).any():
            raise ValueError("a block has an impossible number of items")
        return counts, at


def decode(reader: Records, schema: pa.Schema, data: Bytes, at: Positions, end: Positions) -> pa.RecordBatch:
    """One row for each of the messages between `at` and `end`. Raises one of `BAD`."""
    columns, behind = reader.columns(data, at, end)
    wrong = np.flatnonzero(behind != end)
    if len(wrong):
        row = wrong[0]
        raise ValueError(
            f"the Avro record ends {end[row] - behind[row]} bytes before the message: the schema does not fit"
        )
    if not columns:
        return pa.RecordBatch.from_pylist([{}] * len(at), schema=schema)
    return pa.RecordBatch.from_arrays(columns, schema=schema)
