"""Bytes of many rows in one array, and the numbers of variable length in them.

Avro is read front to back: a field begins where the one before it ends. So there is a cursor for each row, and a field
is read of all rows at once. No row is a Python object.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

Bytes: TypeAlias = npt.NDArray[np.uint8]
Positions: TypeAlias = npt.NDArray[np.int64]

SHORT = "the message ends in the middle of a value"
_VARINT_BYTES_MAX = 10


@dataclass(frozen=True, slots=True)
class Ragged:
    """Rows of bytes, one behind the other."""

    data: Bytes
    lengths: Positions


def varints(data: Bytes, at: Positions, end: Positions) -> tuple[npt.NDArray[np.uint64], Positions]:
    """The unsigned number at each cursor, seven bits a byte, and the cursors behind them. Raises `ValueError`."""
    if (at >= end).any():
        raise ValueError(SHORT)
    byte = data[at]
    value = (byte & 0x7F).astype(np.uint64)
    at = at + 1
    rows = np.flatnonzero(byte & 0x80)
    shift = 7
    while len(rows):
        if shift >= 7 * _VARINT_BYTES_MAX:
            raise ValueError(f"a number has more than {_VARINT_BYTES_MAX} bytes")
        here = at[rows]
        if (here >= end[rows]).any():
            raise ValueError(SHORT)
        byte = data[here]
        value[rows] |= (byte & 0x7F).astype(np.uint64) << np.uint64(shift)
        at[rows] = here + 1
        rows = rows[(byte & 0x80) != 0]
        shift += 7
    return value, at


def longs(data: Bytes, at: Positions, end: Positions) -> tuple[Positions, Positions]:
    """As `varints`, with the sign in the lowest bit (zigzag)."""
    value, at = varints(data, at, end)
    return (value >> np.uint64(1)).astype(np.int64) ^ -(value & np.uint64(1)).astype(np.int64), at


def gathered(data: Bytes, starts: Positions, lengths: Positions) -> Bytes:
    """The bytes of each row, one row behind the other. The caller has checked that they are there."""
    total = int(lengths.sum())
    before = np.cumsum(lengths) - lengths
    return data[np.repeat(starts - before, lengths) + np.arange(total)]


def joined(pieces: Sequence[Ragged]) -> Ragged:
    """Row by row, the bytes of all pieces: what a record is to its fields."""
    if len(pieces) == 1:
        return pieces[0]
    lengths = np.sum([piece.lengths for piece in pieces], axis=0)
    at = np.cumsum(lengths) - lengths
    data = np.empty(int(lengths.sum()), np.uint8)
    for piece in pieces:
        before = np.cumsum(piece.lengths) - piece.lengths
        data[np.repeat(at - before, piece.lengths) + np.arange(len(piece.data))] = piece.data
        at = at + piece.lengths
    return Ragged(data, lengths)


def encoded_longs(values: Positions) -> Ragged:
    """The opposite of `longs`."""
    zigzag = ((values << 1) ^ (values >> 63)).astype(np.uint64)
    lengths = np.ones(len(values), np.int64)
    widest = int(zigzag.max()) if len(values) else 0
    for power in range(7, max(widest.bit_length(), 1), 7):
        lengths += zigzag >= np.uint64(1) << np.uint64(power)
    width = int(lengths.max()) if len(values) else 1
    shifts = np.arange(width, dtype=np.uint64) * np.uint64(7)
    numbers = np.arange(width)
    matrix = ((zigzag[:, None] >> shifts) & np.uint64(0x7F)).astype(np.uint8)
    matrix |= np.where(numbers < lengths[:, None] - 1, 0x80, 0).astype(np.uint8)
    return Ragged(matrix[numbers < lengths[:, None]], lengths)
