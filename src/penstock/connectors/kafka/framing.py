"""Values of a poll as one piece of memory, and what Confluent's serializers put in front of them.

In front of a value: a zero byte, and the id of its schema in four bytes. Protobuf adds the place of the message in its
file. Messages of one poll may have several schemas: they are decoded by schema, and put back in their order.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.columnar.gather import take_rows
from penstock.columnar.ragged import Bytes, Positions, Ragged, gathered, joined, longs
from penstock.connectors.kafka.client import kafka

Messages: TypeAlias = Sequence[Any]
Rows: TypeAlias = npt.NDArray[np.int64]

HEADER_BYTES = 5
_INDEXES_MAX = 64
"""Messages nested deeper than this do not exist; a number that says so is no frame."""


@dataclass(frozen=True, slots=True)
class Values:
    """The values that there are, one behind the other; messages without a value are left out."""

    data: Bytes
    at: Positions
    end: Positions
    rows: Rows
    """The number of the message of each."""
    count: int
    """All messages."""

    def binary(self) -> pa.Array:
        lengths = self.end - self.at
        content = gathered(self.data, self.at, lengths)
        offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
        return pa.Array.from_buffers(pa.binary(), len(lengths), [None, pa.py_buffer(offsets), pa.py_buffer(content)])

    def part(self, rows: Rows) -> Values:
        return Values(self.data, self.at[rows], self.end[rows], self.rows[rows], len(rows))


def values_of(messages: Messages) -> list[bytes | None]:
    return list(map(kafka().Message.value, messages))


def values_joined(values: Sequence[bytes | None]) -> Values:
    present = [value for value in values if value is not None]
    lengths = np.fromiter(map(len, present), np.int64, len(present))
    end = np.cumsum(lengths)
    if len(present) == len(values):
        rows = np.arange(len(values))
    else:
        rows = np.array([number for number, value in enumerate(values) if value is not None], np.int64)
    return Values(np.frombuffer(b"".join(present), np.uint8), end - lengths, end, rows, len(values))


def with_nulls(batch: pa.RecordBatch, values: Values) -> pa.RecordBatch:
    """One row for each message: a message without a value is a row of nulls."""
    if batch.num_rows == values.count:
        return batch
    numbers = np.full(values.count, -1)
    numbers[values.rows] = np.arange(batch.num_rows)
    return batch.take(pa.array(numbers, mask=numbers < 0))


# --- reading ---


def unframed(values: Values) -> tuple[npt.NDArray[np.int64], Values]:
    """The ids of the schemas, and the values behind them. Raises `ValueError`."""
    if ((values.end - values.at) < HEADER_BYTES).any() or values.data[values.at].any():
        raise ValueError(
            "the message does not begin with a zero byte and the id of a schema: it was written without a registry"
        )
    header = values.data[values.at[:, None] + np.arange(1, HEADER_BYTES)].astype(np.int64)
    ids = (header << np.array([24, 16, 8, 0])).sum(axis=1)
    return ids, Values(values.data, values.at + HEADER_BYTES, values.end, values.rows, values.count)


def message_indexes(values: Values) -> tuple[npt.NDArray[np.int64], Values]:
    """Of Protobuf, the place of the message in its file, padded with -1, and the values behind it."""
    counts, at = longs(values.data, values.at, values.end)
    if ((counts < 0) | (counts > _INDEXES_MAX)).any():
        raise ValueError("the message lacks the index of its message type in the schema")
    # A single zero stands for the first message.
    found = np.full((len(counts), max(1, int(counts.max(initial=0)))), -1)
    found[counts == 0, 0] = 0
    for number in range(int(counts.max(initial=0))):
        rows = np.flatnonzero(counts > number)
        found[rows, number], at[rows] = longs(values.data, at[rows], values.end[rows])
    return found, Values(values.data, at, values.end, values.rows, values.count)


def by_schema(
    keys: npt.NDArray[np.int64], values: Values, decode: Callable[[tuple[int, ...], Values], pa.RecordBatch]
) -> pa.RecordBatch:
    """Decode the rows of each key together. `keys` has a row for each value."""
    kinds, numbers = np.unique(keys, axis=0, return_inverse=True)
    if len(kinds) == 1:
        return decode(tuple(kinds[0].tolist()), values)
    parts = [np.flatnonzero(numbers.reshape(-1) == number) for number in range(len(kinds))]
    batches = [decode(tuple(kind.tolist()), values.part(rows)) for kind, rows in zip(kinds, parts, strict=True)]
    order = np.argsort(np.concatenate(parts), kind="stable")
    return take_rows(pa.concat_batches(batches), order)


# --- writing ---


def framed(number: int, rows: Ragged, indexes: bytes = b"") -> pa.Array:
    """The rows of bytes as values of messages, with the id of their schema in front."""
    header = np.frombuffer(struct.pack(">bI", 0, number) + indexes, np.uint8)
    count = len(rows.lengths)
    return as_binary(joined([Ragged(np.tile(header, count), np.full(count, len(header))), rows]))


def as_binary(rows: Ragged) -> pa.Array:
    offsets = np.concatenate([[0], np.cumsum(rows.lengths)])
    if offsets[-1] >= 1 << 31:
        raise ValueError("one batch has more than 2 GiB of messages")
    buffers = [None, pa.py_buffer(offsets.astype(np.int32)), pa.py_buffer(np.ascontiguousarray(rows.data))]
    return pa.Array.from_buffers(pa.binary(), len(rows.lengths), buffers)
