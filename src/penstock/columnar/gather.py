"""Rows of Arrow columns: taken by number, filtered, put together, and cut loose from the rows beside them.

The one place for this, whatever the type. Two things are not as Arrow has them:

- Arrow 26 cannot take rows of views (`string_view`, `binary_view`) nor of run ends, alone or inside of other types.
  Here such a column is taken apart, its children are taken, and it is built again with the type that it had.
- A slice of a dictionary, a view, a list view or a dense union refers to all values of the column that it was cut
  from, and Arrow writes and counts them all. Rows that are taken here bring their own values along and no others;
  `owned` does that for rows that were cut.

A call of Arrow's costs some 30 µs for any number of rows, which is most of the time that a small batch takes. So the
columns that are nothing but numbers are gathered by numpy, at a fraction of that; all others are left to Arrow where
Arrow can do it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from penstock.columnar.fixed_width import FIXED_WIDTH, buffer_values, fixed_width_values

RowNumbers: TypeAlias = npt.NDArray[np.integer[Any]]

JOINED_BYTES_MAX: Final = 1 << 30
"""Batches are put together up to this size: the offsets of strings and lists reach no further than 2 GiB."""
_EXCESS_BYTES_MIN: Final = 1024
"""Values of other rows up to this are not worth the time to leave them behind."""
_INLINE_BYTES: Final = 12
"""A view holds strings of up to this itself."""
_VIEWS: Final = {pa.string_view().id: pa.large_string(), pa.binary_view().id: pa.large_binary()}


# --- rows by number ---


def take(array: pa.Array, rows: RowNumbers) -> pa.Array:
    """The values of these rows, in this order. None of `rows` may be negative."""
    kind = array.type
    dtype = FIXED_WIDTH.get(kind.id)
    if dtype is not None and array.null_count == 0:
        values = fixed_width_values(array, dtype).take(rows)
        return pa.Array.from_buffers(kind, len(values), [None, pa.py_buffer(values)], 0)
    taker = _taker_of(kind)
    return array.take(pa.array(rows)) if taker is None else taker(array, rows)


def take_rows(batch: pa.RecordBatch, rows: RowNumbers) -> pa.RecordBatch:
    """As `take`, of all columns."""
    if batch.num_columns == 0:
        return batch.take(pa.array(rows))
    return _like(batch, [take(column, rows) for column in batch.columns])


def filter_rows(batch: pa.RecordBatch, mask: pa.Array) -> pa.RecordBatch:
    """The rows for which the boolean `mask` is true; a null is not."""
    if mask.null_count:
        mask = mask.fill_null(False)
    chosen = np.flatnonzero(mask.to_numpy(zero_copy_only=False))
    return batch if len(chosen) == batch.num_rows else take_rows(batch, chosen)


def _like(batch: pa.RecordBatch, columns: list[pa.Array]) -> pa.RecordBatch:
    schema = batch.schema
    taken = pa.RecordBatch.from_arrays(columns, names=schema.names)
    # With a schema it takes several times as long, so it is given only where there is more to it than names and types.
    if taken.schema.equals(schema, check_metadata=True):
        return taken
    return pa.RecordBatch.from_arrays(columns, schema=schema)


# --- batches in one ---


def joined(batches: Sequence[pa.RecordBatch], bytes_max: int = JOINED_BYTES_MAX) -> list[pa.RecordBatch]:
    """The same rows in as few batches as possible, none of them made larger than `bytes_max`.

    Batches whose dictionaries do not fit into one, the numbers of its values being too small, stay as they are.
    """
    return [whole for run in _runs(batches, bytes_max) for whole in _joined(run)]


def _runs(batches: Sequence[pa.RecordBatch], bytes_max: int) -> Iterator[list[pa.RecordBatch]]:
    run: list[pa.RecordBatch] = []
    size = 0
    for batch in batches:
        more = int(batch.nbytes)
        if run and size + more > bytes_max:
            yield run
            run, size = [], 0
        run.append(batch)
        size += more
    if run:
        yield run


def _joined(batches: list[pa.RecordBatch]) -> list[pa.RecordBatch]:
    if len(batches) == 1:
        return batches
    try:
        return [pa.concat_batches(batches)]
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        half = len(batches) // 2
        return [*_joined(batches[:half]), *_joined(batches[half:])]


# --- rows without those beside them ---


def owned(batch: pa.RecordBatch) -> pa.RecordBatch:
    """The same rows, without values that only other rows refer to, where those are many."""
    columns = batch.columns
    own = [_owned(column) for column in columns]
    is_same = all(ours is theirs for ours, theirs in zip(own, columns, strict=True))
    return batch if is_same else _like(batch, own)


def may_share(schema: pa.Schema) -> bool:
    """Whether a slice of such a batch can refer to values of other rows."""
    return any(_holds(kind, _is_shared) for kind in schema.types)


def _owned(array: pa.Array) -> pa.Array:
    if array.type.id in FIXED_WIDTH or not _holds(array.type, _is_shared) or not _has_excess(array):
        return array
    return take(array, np.arange(len(array)))


def _has_excess(array: pa.Array) -> bool:
    """Whether more than half of what the array refers to is not its own, or of a dictionary more than it has rows."""
    kind = array.type
    if isinstance(kind, pa.BaseExtensionType):
        return _has_excess(array.storage)
    if pa.types.is_dictionary(kind):
        return _is_excess(array.dictionary, len(array)) or _has_excess(array.dictionary)
    if kind.id in _VIEWS:
        held = sum(int(buffer.size) for buffer in array.buffers()[2:])
        return held > _EXCESS_BYTES_MIN and held > 2 * int(_view_lengths(array).sum())
    if not _holds(kind, _is_shared):
        return False
    if _is_list_view(kind):
        return _is_excess(array.values, 2 * int(_list_spans(array)[1].sum())) or _has_excess(array.values)
    if pa.types.is_union(kind) and kind.mode == "dense":
        children = [array.field(number) for number in range(kind.num_fields)]
        return sum(map(len, children)) > 2 * len(array) + _EXCESS_BYTES_MIN or any(map(_has_excess, children))
    return any(_has_excess(child) for child in _children(array))


def _is_excess(values: pa.Array, used_max: int) -> bool:
    return len(values) > used_max and int(values.nbytes) > _EXCESS_BYTES_MIN


def _children(array: pa.Array) -> list[pa.Array]:
    """The children of a struct, a list, a map, a sparse union or run ends: just the part that this array refers to."""
    kind = array.type
    if pa.types.is_run_end_encoded(kind):
        first, count = array.find_physical_offset(), array.find_physical_length()
        return [array.values.slice(first, count)]
    if pa.types.is_struct(kind) or pa.types.is_union(kind):
        return [array.field(number) for number in range(kind.num_fields)]
    if pa.types.is_fixed_size_list(kind):
        return [array.values.slice(array.offset * kind.list_size, len(array) * kind.list_size)]
    offsets = _offsets(array)
    return [array.values.slice(int(offsets[0]), int(offsets[-1] - offsets[0]))]


# --- types ---


def _holds(kind: pa.DataType, is_one: Callable[[pa.DataType], bool]) -> bool:
    """Whether the type, or one inside of it, is such a one."""
    if is_one(kind):
        return True
    if isinstance(kind, pa.BaseExtensionType):
        return _holds(kind.storage_type, is_one)
    return any(_holds(kind.field(number).type, is_one) for number in range(kind.num_fields))


def _is_shared(kind: pa.DataType) -> bool:
    return (
        kind.id in _VIEWS
        or pa.types.is_dictionary(kind)
        or _is_list_view(kind)
        or (pa.types.is_union(kind) and kind.mode == "dense")
    )


def _is_ours(kind: pa.DataType) -> bool:
    return bool(_is_shared(kind) or pa.types.is_run_end_encoded(kind))


def _is_list_view(kind: pa.DataType) -> bool:
    return bool(pa.types.is_list_view(kind) or pa.types.is_large_list_view(kind))


Taker: TypeAlias = Callable[[pa.Array, RowNumbers], pa.Array]


def _taker_of(kind: pa.DataType) -> Taker | None:
    """How rows of the type are taken; None if Arrow does it, and well."""
    if isinstance(kind, pa.BaseExtensionType):
        return _take_extension
    if kind.num_fields == 0 and not pa.types.is_dictionary(kind) and kind.id not in _VIEWS:
        return None
    return _taker_by_id(kind) if _holds(kind, _is_ours) else None


def _taker_by_id(kind: pa.DataType) -> Taker:
    if kind.id in _VIEWS:
        return _take_views
    if pa.types.is_dictionary(kind):
        return _take_dictionary
    if pa.types.is_run_end_encoded(kind):
        return _take_runs
    if pa.types.is_struct(kind):
        return _take_struct
    if pa.types.is_fixed_size_list(kind):
        return _take_fixed_size_list
    if pa.types.is_union(kind):
        return _take_dense_union if kind.mode == "dense" else _take_sparse_union
    return _take_list_view if _is_list_view(kind) else _take_list


def _take_extension(array: pa.Array, rows: RowNumbers) -> pa.Array:
    return pa.ExtensionArray.from_storage(array.type, take(array.storage, rows))


def _take_views(array: pa.Array, rows: RowNumbers) -> pa.Array:
    # By way of the type that Arrow can take; both conversions leave the strings where they are.
    return array.cast(_VIEWS[array.type.id]).take(pa.array(rows)).cast(array.type)


def _take_dictionary(array: pa.DictionaryArray, rows: RowNumbers) -> pa.Array:
    indices, values = take(array.indices, rows), array.dictionary
    if _is_excess(values, len(rows)):
        places = fixed_width_values(indices, FIXED_WIDTH[indices.type.id])
        valid = np.ones(len(indices), dtype=np.bool_) if not indices.null_count else _valid(indices)
        used, renumbered = np.unique(places[valid], return_inverse=True)
        values = take(values, used)
        numbers = np.zeros(len(indices), dtype=places.dtype)
        numbers[valid] = renumbered
        indices = pa.Array.from_buffers(indices.type, len(numbers), [_bits(valid), pa.py_buffer(numbers)])
    return pa.DictionaryArray.from_arrays(indices, values, ordered=array.type.ordered, safe=False)


def _take_runs(array: pa.Array, rows: RowNumbers) -> pa.Array:
    kind = array.type
    numbers = run_numbers(array, rows)
    firsts = np.flatnonzero(np.diff(numbers, prepend=-1))
    ends = np.append(firsts[1:], len(rows))[: len(firsts)].astype(FIXED_WIDTH[kind.run_end_type.id])
    run_ends = pa.Array.from_buffers(kind.run_end_type, len(ends), [None, pa.py_buffer(ends)])
    return _rebuilt(kind, len(rows), [None], [run_ends, take(array.values, numbers[firsts])])


def run_numbers(array: pa.Array, rows: RowNumbers | None = None) -> npt.NDArray[np.intp]:
    """Which of its values each of these rows of a run-end encoded array has, or each of all rows."""
    wanted = np.arange(len(array)) if rows is None else rows
    ends = fixed_width_values(array.run_ends, FIXED_WIDTH[array.run_ends.type.id])
    numbers: npt.NDArray[np.intp] = np.searchsorted(ends, wanted + array.offset, side="right")
    return numbers


def _take_struct(array: pa.StructArray, rows: RowNumbers) -> pa.Array:
    children = [take(array.field(number), rows) for number in range(array.type.num_fields)]
    return _rebuilt(array.type, len(rows), [_taken_bits(array, rows)], children)


def _take_list(array: pa.Array, rows: RowNumbers) -> pa.Array:
    offsets = _offsets(array)
    starts, lengths = offsets[:-1].take(rows), np.diff(offsets).take(rows)
    ends, child = _taken_spans(array, rows, starts, lengths)
    new = np.append(np.zeros(1, dtype=offsets.dtype), ends.astype(offsets.dtype))
    return _rebuilt(array.type, len(rows), [_taken_bits(array, rows), pa.py_buffer(new)], [child])


def _take_list_view(array: pa.Array, rows: RowNumbers) -> pa.Array:
    starts, lengths = (span.take(rows) for span in _list_spans(array))
    lengths = lengths.copy()
    ends, child = _taken_spans(array, rows, starts, lengths)
    new = (ends - lengths).astype(starts.dtype)
    buffers = [_taken_bits(array, rows), pa.py_buffer(new), pa.py_buffer(lengths)]
    return _rebuilt(array.type, len(rows), buffers, [child])


def _taken_spans(
    array: pa.Array, rows: RowNumbers, starts: npt.NDArray[Any], lengths: npt.NDArray[Any]
) -> tuple[npt.NDArray[np.int64], pa.Array]:
    """Where the lists of these rows end behind each other, and their values. Sets the lengths of nulls to zero."""
    if array.null_count:
        lengths[~_valid(array).take(rows)] = 0
    ends = np.cumsum(lengths, dtype=np.int64)
    total = int(ends[-1]) if len(ends) else 0
    if lengths.dtype.itemsize == 4 and total > np.iinfo(np.int32).max:
        raise pa.ArrowInvalid(f"offset overflow: {len(rows)} rows of {array.type} have {total} values")
    values = np.repeat(starts.astype(np.int64) - (ends - lengths), lengths) + np.arange(total)
    return ends, take(array.values, values)


def _take_fixed_size_list(array: pa.Array, rows: RowNumbers) -> pa.Array:
    size = array.type.list_size
    values = ((rows.astype(np.int64) + array.offset)[:, None] * size + np.arange(size)).ravel()
    return _rebuilt(array.type, len(rows), [_taken_bits(array, rows)], [take(array.values, values)])


def _take_sparse_union(array: pa.Array, rows: RowNumbers) -> pa.Array:
    codes = buffer_values(array, 1, np.int8, len(array)).take(rows)
    children = [take(array.field(number), rows) for number in range(array.type.num_fields)]
    return _rebuilt(array.type, len(rows), [None, pa.py_buffer(codes)], children)


def _take_dense_union(array: pa.Array, rows: RowNumbers) -> pa.Array:
    codes = buffer_values(array, 1, np.int8, len(array)).take(rows)
    places = buffer_values(array, 2, np.int32, len(array)).take(rows)
    new, children = np.empty(len(rows), dtype=np.int32), []
    for number, code in enumerate(array.type.type_codes):
        mine = np.flatnonzero(codes == code)
        new[mine] = np.arange(len(mine), dtype=np.int32)
        children.append(take(array.field(number), places[mine]))
    return _rebuilt(array.type, len(rows), [None, pa.py_buffer(codes), pa.py_buffer(new)], children)


# --- buffers ---


def _rebuilt(kind: pa.DataType, length: int, buffers: list[pa.Buffer | None], children: list[pa.Array]) -> pa.Array:
    """An array of exactly this type, the names and annotations of its fields included."""
    return pa.Array.from_buffers(kind, length, buffers, children=children)


def _valid(array: pa.Array) -> npt.NDArray[np.bool_]:
    mask: npt.NDArray[np.bool_] = array.is_valid().to_numpy(zero_copy_only=False)
    return mask


def _bits(valid: npt.NDArray[np.bool_]) -> pa.Buffer | None:
    return None if valid.all() else pa.array(valid).buffers()[1]


def _taken_bits(array: pa.Array, rows: RowNumbers) -> pa.Buffer | None:
    return _bits(_valid(array).take(rows)) if array.null_count else None


def _offsets(array: pa.Array) -> npt.NDArray[Any]:
    return buffer_values(array, 1, np.int64 if pa.types.is_large_list(array.type) else np.int32, len(array) + 1)


def _list_spans(array: pa.Array) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    """Where each list of a list view begins among the values, and its length."""
    dtype = np.int64 if pa.types.is_large_list_view(array.type) else np.int32
    return buffer_values(array, 1, dtype, len(array)), buffer_values(array, 2, dtype, len(array))


def _view_lengths(array: pa.Array) -> npt.NDArray[np.int32]:
    """The lengths of those strings of a view that do not lie in the view itself."""
    lengths = buffer_values(array, 1, np.dtype((np.void, 16)), len(array)).view(np.int32)[::4]
    is_outside = lengths > _INLINE_BYTES
    if array.null_count:
        is_outside &= _valid(array)
    return np.where(is_outside, lengths, 0)


def null_unless(holds: pa.Array, column: pa.Array) -> pa.Array:
    """The column with nulls where a condition does not hold, of the same type: Arrow widens small decimals."""
    result = pc.if_else(holds, column, pa.scalar(None, column.type))
    return result if result.type == column.type else result.cast(column.type)
