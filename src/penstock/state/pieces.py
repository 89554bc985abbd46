"""Keyed state as it lies in a checkpoint: rows with their key group, sorted by it, cut between key groups.

Every kind of keyed state has one layout, which Spark, pandas or DuckDB can read as it is:
`key_group: int32, key: struct<…>, … , value: struct<…>`. A piece holds whole key groups only, so that a subtask
with another range reads little beyond what is its own, and keeps just that (I9).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.columnar.fixed_width import fixed_width_values
from penstock.columnar.gather import joined, take_rows
from penstock.columnar.hashing import key_groups
from penstock.errors import ProtocolViolation, RestoreError

PIECE_BYTES_MAX = 1 << 30
"""No batch is made larger than this: the offsets of strings reach no further than 2 GiB."""
KEY_GROUP = "key_group"
KEY = "key"
USER_KEY = "user_key"
VALUE = "value"


@dataclass(frozen=True, slots=True)
class KeyedPiece:
    """Some of one state's rows, of the key groups `first` … `end`-1.

    All of those that this subtask has, unless a single key group is too large for one batch: then several pieces
    have a part of it each.
    """

    name: str
    first: int
    end: int
    batch: pa.RecordBatch
    rows: int


def cut(name: str, table: pa.Table, target_bytes: int) -> list[KeyedPiece]:
    """Cut a table that is sorted by key group into pieces of about `target_bytes`; none if it has no rows.

    A piece is larger if a single key group is. The size of a row is taken to be the average of its chunk.
    """
    chunks = [chunk for chunk in table.to_batches() if chunk.num_rows]
    if not chunks:
        return []
    groups = np.concatenate([fixed_width_values(chunk.column(KEY_GROUP), np.int32) for chunk in chunks])
    sizes = [max(1, chunk.nbytes // chunk.num_rows) for chunk in chunks]
    row_bytes = np.repeat(np.array(sizes, dtype=np.int64), [chunk.num_rows for chunk in chunks])

    def batches(begin: int, end: int) -> list[pa.RecordBatch]:
        return in_batches(table.slice(begin, end - begin).to_batches())

    return cut_rows(name, groups, row_bytes, target_bytes, batches)


def cut_rows(
    name: str,
    groups: npt.NDArray[np.int32],
    row_bytes: npt.NDArray[np.int64],
    target_bytes: int,
    batches: Callable[[int, int], list[pa.RecordBatch]],
) -> list[KeyedPiece]:
    """Pieces of rows that are sorted by key group, between two of them wherever that is possible.

    `batches` makes the rows from one number up to another, which it is asked for piece by piece and in order.
    """
    pieces: list[KeyedPiece] = []
    for begin, end in _spans(groups, row_bytes, target_bytes):
        row = begin
        for batch in batches(begin, end):
            first, last = int(groups[row]), int(groups[row + batch.num_rows - 1])
            pieces.append(KeyedPiece(name, first, last + 1, batch, batch.num_rows))
            row += batch.num_rows
    return pieces


def _spans(
    groups: npt.NDArray[np.int32], row_bytes: npt.NDArray[np.int64], target_bytes: int
) -> Iterator[tuple[int, int]]:
    if len(groups) == 0:
        return
    starts = np.flatnonzero(np.diff(groups, prepend=groups[0] - 1))
    before = np.cumsum(row_bytes) - row_bytes
    # A piece begins with the first group that begins in the next stretch of `target_bytes`.
    stretch = before[starts] // max(1, target_bytes)
    begins = starts[np.diff(stretch, prepend=-1) > 0].tolist()
    for begin, end in zip(begins, [*begins[1:], len(groups)], strict=True):
        for first, stop in blocks(row_bytes[begin:end]):
            yield begin + first, begin + stop


def in_batches(batches: Sequence[pa.RecordBatch]) -> list[pa.RecordBatch]:
    """The same rows in as few batches as they fit into."""
    return joined(batches, PIECE_BYTES_MAX)


def blocks(row_bytes: npt.NDArray[np.int64]) -> Iterator[tuple[int, int]]:
    """Cut rows of these sizes into stretches that fit into one batch; a single row always does."""
    ends = np.cumsum(row_bytes)
    begin = 0
    while begin < len(ends):
        limit = (int(ends[begin - 1]) if begin else 0) + PIECE_BYTES_MAX
        end = max(begin + 1, int(np.searchsorted(ends, limit, side="right")))
        yield begin, end
        begin = end


def check_owned(name: str, groups: npt.NDArray[np.int32], owned: range) -> None:
    """A row of another subtask's key group would be lost at the next rescale: stop before it is written (I9)."""
    if len(groups) and (groups.min() < owned.start or groups.max() >= owned.stop):
        raise ProtocolViolation(
            f"state '{name}' holds keys of the key groups {groups.min()} … {groups.max()}, but its subtask owns "
            f"{owned.start} … {owned.stop - 1}: its key does not begin with the key its input is partitioned by"
        )


def own_rows(
    name: str,
    batch: pa.RecordBatch,
    owned: range,
    max_parallelism: int,
    partitioned_by: Callable[[pa.StructType], Sequence[str]],
) -> pa.RecordBatch:
    """The rows of `batch` whose key group is in `owned` (I9). Raises `RestoreError` if it is not of our making.

    The key groups are computed anew and compared with the stored ones: a checkpoint that was written with
    another max_parallelism or another hash must not be read as if nothing had happened (I8).
    """
    schema = batch.schema
    layout_fits = schema.names[:2] == [KEY_GROUP, KEY] and schema.types[0] == pa.int32()
    if not layout_fits or not pa.types.is_struct(schema.types[1]):
        raise RestoreError(f"state '{name}' cannot be restored from a batch with the schema {schema}")
    if batch.column(0).null_count or batch.column(1).null_count:
        raise RestoreError(f"state '{name}' cannot be restored: a row has no key or no key group")
    stored = fixed_width_values(batch.column(0), np.int32)
    rows = np.flatnonzero((stored >= owned.start) & (stored < owned.stop))
    if len(rows) == 0:
        return batch.slice(0, 0)
    # At an unchanged parallelism all rows are our own, and nothing is copied.
    mine = batch if len(rows) == len(stored) else take_rows(batch, rows)
    key = key_batch(mine.column(1))
    if not np.array_equal(key_groups(key, partitioned_by(schema.types[1]), max_parallelism), stored[rows]):
        raise RestoreError(
            f"the key groups of state '{name}' are not those of its keys: the checkpoint was written with another "
            f"max_parallelism than {max_parallelism}, or with another key"
        )
    return mine


def key_batch(key: pa.StructArray) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays(key.flatten(), schema=pa.schema(list(key.type)))


def struct_of(arrays: Sequence[pa.Array], names: Sequence[str]) -> pa.StructArray:
    fields = [pa.field(name, array.type) for name, array in zip(names, arrays, strict=True)]
    return pa.StructArray.from_arrays(list(arrays), fields=fields)


def stable_order(groups: npt.NDArray[np.int32], owned: range) -> npt.NDArray[Any]:
    """The order by key group; numpy sorts integers of 16 bits by radix."""
    relative = groups - owned.start
    return np.argsort(relative.astype(np.uint16) if len(owned) <= 1 << 16 else relative, kind="stable")
