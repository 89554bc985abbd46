"""Hashes of keys: which key group a record belongs to.

The hash decides where keyed state lies in a checkpoint, so it is **part of the checkpoint format**: a change of
a single bit here makes every existing checkpoint unreadable. The tests pin known answers. What holds:

- equal values hash equally whatever their width or layout: `int8` and `uint64`, `float32` and `float64`, the
  `string` types, a dictionary and its decoded values, a slice and its copy;
- `-0.0` is `0.0`, and all NaNs are one value; decimals are compared at their own scale, times in their own unit;
- a null has a fixed hash. Whether a key may be null is decided elsewhere.

Everything is vectorised: the only loops are over columns, over blocks that fit the cache, and over the first
words of strings. Equal hashes do not mean equal keys; whoever looks up by hash compares the keys as well.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.columnar.fixed_width import FIXED_WIDTH, fixed_width_values, null_mask
from penstock.columnar.gather import run_numbers
from penstock.errors import DataError

Words: TypeAlias = npt.NDArray[np.uint64]

_GOLDEN: Final = np.uint64(0x9E3779B97F4A7C15)
_FIRST: Final = np.uint64(0xBF58476D1CE4E5B9)
_SECOND: Final = np.uint64(0x94D049BB133111EB)
_COMBINE: Final = np.uint64(0xD6E8FEB86659FD93)
_LENGTH: Final = np.uint64(0xA0761D6478BD642F)
NULL_HASH: Final = np.uint64(0x9B0F2C4E6A8D1357)

_SHIFTS: Final = (np.uint64(30), np.uint64(27), np.uint64(31))
_BLOCK_ROWS: Final = 1 << 14  # two arrays of this many words stay in the first two levels of cache
_STEPPED_WORDS: Final = 32  # strings are walked word by word so far, and what lies beyond is summed by reduceat
_TAIL_BLOCK_WORDS: Final = 1 << 18
_KEEP_BYTES: Final = np.array([(1 << 8 * n) - 1 for n in range(9)], dtype=np.uint64)
_OF_POSITION: Final = np.arange(_STEPPED_WORDS, dtype=np.uint64) * _COMBINE
_CANONICAL_NAN: Final = np.uint64(0x7FF8000000000000).view(np.float64)


def hash_rows(batch: pa.RecordBatch, columns: Sequence[str]) -> Words:
    """One hash per row over `columns`, whose order matters. Raises `DataError` for a column it cannot hash."""
    if not columns:
        raise DataError("a key needs at least one column")
    hashes: Words | None = None
    for name in columns:
        position = batch.schema.get_field_index(name)
        if position < 0:
            known = ", ".join(batch.schema.names)
            raise DataError(f"key column {name!r} not found, or ambiguous; the columns are {known}")
        try:
            column = hash_array(batch.column(position))
        except DataError as error:
            raise DataError(f"the key column {name!r}: {error}") from error
        hashes = column if hashes is None else _combine(hashes, column)
    assert hashes is not None
    return hashes


def key_groups(batch: pa.RecordBatch, columns: Sequence[str], max_parallelism: int) -> npt.NDArray[np.int32]:
    """The key group of each row: 0 … max_parallelism-1."""
    return key_groups_of_hashes(hash_rows(batch, columns), max_parallelism)


def key_groups_of_hashes(hashes: Words, max_parallelism: int) -> npt.NDArray[np.int32]:
    """Scale the upper half of the hash to the key groups: a multiplication, where a modulo would cost a division.

    The lower bits stay independent of the key group, so a table of one subtask may use them as its index.
    """
    if not 0 < max_parallelism <= 1 << 31:
        raise DataError(f"max_parallelism must be between 1 and 2**31, not {max_parallelism}")
    scaled = hashes >> np.uint64(32)
    scaled *= np.uint64(max_parallelism)
    scaled >>= np.uint64(32)
    return scaled.astype(np.int32)


def mix(words: Words) -> Words:
    """The splitmix64 finaliser over `words`, in place; the same array is returned."""
    scratch = np.empty(min(len(words), _BLOCK_ROWS), dtype=np.uint64)
    for start in range(0, len(words), _BLOCK_ROWS):
        block = words[start : start + _BLOCK_ROWS]
        shifted = scratch[: len(block)]
        np.add(block, _GOLDEN, out=block)
        np.right_shift(block, _SHIFTS[0], out=shifted)
        np.bitwise_xor(block, shifted, out=block)
        np.multiply(block, _FIRST, out=block)
        np.right_shift(block, _SHIFTS[1], out=shifted)
        np.bitwise_xor(block, shifted, out=block)
        np.multiply(block, _SECOND, out=block)
        np.right_shift(block, _SHIFTS[2], out=shifted)
        np.bitwise_xor(block, shifted, out=block)
    return words


def hash_array(array: pa.Array) -> Words:
    """One hash per element. The result is the caller's own. Raises `DataError` for a type without a hash."""
    kind = array.type
    if isinstance(kind, pa.BaseExtensionType):
        return hash_array(array.storage)
    if pa.types.is_null(kind):
        return np.full(len(array), NULL_HASH, dtype=np.uint64)
    if pa.types.is_dictionary(kind):
        return _hash_dictionary(array)
    if pa.types.is_run_end_encoded(kind):
        return hash_array(array.values).take(run_numbers(array))
    hashes = _hash_valid(array)
    if array.null_count:
        hashes[null_mask(array)] = NULL_HASH
    return hashes


def word_values(array: pa.Array) -> npt.NDArray[np.int64] | None:
    """The array as 64-bit words in which equal values have equal bits, or None if its values do not fit in words.

    Integers, booleans, dates, times, timestamps, durations and small decimals are widened; floats are their bits
    after -0.0 and NaN have been made one each. Trap: what stands at a null is arbitrary, and so is sharing: the
    words may be the buffer of the array itself, read only.
    """
    kind = array.type
    if pa.types.is_boolean(kind):
        return fixed_width_values(array.cast(pa.uint8()), np.uint8).astype(np.int64)
    dtype = FIXED_WIDTH.get(kind.id)
    if dtype is None:
        return None
    if dtype.kind == "f":
        return _float_words(array, dtype)
    values = fixed_width_values(array, dtype)
    return values.view(np.int64) if values.dtype.itemsize == 8 else values.astype(np.int64)


def _float_words(array: pa.Array, dtype: np.dtype[Any]) -> npt.NDArray[np.int64]:
    with np.errstate(invalid="ignore"):
        # Adding zero turns -0.0 into 0.0 and leaves every other number as it is.
        values = fixed_width_values(array, dtype).astype(np.float64) + 0.0
    values[np.isnan(values)] = _CANONICAL_NAN
    return values.view(np.int64)


def _hash_valid(array: pa.Array) -> Words:
    kind = array.type
    words = word_values(array)
    if words is not None:
        return mix(words.view(np.uint64).copy())
    if pa.types.is_decimal(kind):
        return _hash_wide_decimal(array)
    if pa.types.is_string_view(kind) or pa.types.is_binary_view(kind):
        return _hash_variable(array.cast(pa.large_string() if pa.types.is_string_view(kind) else pa.large_binary()))
    if pa.types.is_fixed_size_binary(kind):
        return _hash_fixed_size_binary(array)
    if pa.types.is_string(kind) or pa.types.is_binary(kind):
        return _hash_variable(array)
    if pa.types.is_large_string(kind) or pa.types.is_large_binary(kind):
        return _hash_variable(array)
    if pa.types.is_struct(kind):
        return _hash_struct(array)
    raise DataError(f"a value of type {kind} cannot be part of a key")


def _combine(left: Words, right: Words) -> Words:
    left *= _COMBINE
    left += right
    return mix(left)


def _hash_struct(array: pa.StructArray) -> Words:
    hashes = np.zeros(len(array), dtype=np.uint64)
    # flatten, not field: it applies the offset and the nulls of the struct to its children.
    for child in array.flatten():
        hashes = _combine(hashes, hash_array(child))
    return hashes


def _hash_dictionary(array: pa.DictionaryArray) -> Words:
    if len(array.dictionary) == 0:
        return np.full(len(array), NULL_HASH, dtype=np.uint64)
    of_values = hash_array(array.dictionary)
    indices = array.indices
    places = fixed_width_values(indices, FIXED_WIDTH[indices.type.id])
    # Only a null may hold an index out of bounds; clipping spares a copy with the nulls filled in.
    hashes: Words = of_values.take(places, mode="clip")
    if indices.null_count:
        hashes[null_mask(indices)] = NULL_HASH
    return hashes


def _hash_wide_decimal(array: pa.Array) -> Words:
    """Words from the lowest up, without those that only repeat the sign: a decimal hashes equally at any width."""
    count = array.type.bit_width // 64
    buffer = array.buffers()[1]
    if len(array) == 0 or buffer is None:
        return np.zeros(len(array), dtype=np.uint64)
    start = array.offset * count * 8
    words = np.frombuffer(buffer, dtype=np.int64, count=len(array) * count, offset=start).reshape(-1, count)
    hashes = mix(words[:, 0].view(np.uint64).copy())
    for position in range(1, count):
        sign = words[:, position - 1] >> 63
        matters = np.flatnonzero((words[:, position:] != sign[:, None]).any(axis=1))
        hashes[matters] = _combine(hashes[matters], words[matters, position].view(np.uint64))
    return hashes


def _hash_fixed_size_binary(array: pa.Array) -> Words:
    width = array.type.byte_width
    lengths = np.full(len(array), width, dtype=np.int64)
    starts = np.arange(array.offset, array.offset + len(array), dtype=np.int64) * width
    return _hash_spans(array.buffers()[1], starts, lengths)


def _hash_variable(array: pa.Array) -> Words:
    is_large = pa.types.is_large_string(array.type) or pa.types.is_large_binary(array.type)
    _, offset_buffer, data = array.buffers()
    if len(array) == 0 or offset_buffer is None:
        return np.zeros(0, dtype=np.uint64)
    dtype = np.dtype(np.int64 if is_large else np.int32)
    offsets = np.frombuffer(
        offset_buffer, dtype=dtype, count=len(array) + 1, offset=array.offset * dtype.itemsize
    ).astype(np.int64, copy=False)
    return _hash_spans(data, offsets[:-1], np.diff(offsets))


def _hash_spans(data: pa.Buffer | None, starts: npt.NDArray[np.int64], lengths: npt.NDArray[np.int64]) -> Words:
    """The sum over its words, each mixed with its position, then mixed with the length.

    The last word is filled up with zeros; the length tells apart what that makes equal. As a sum has no order,
    it may be gathered word by word over all rows (short strings) or row by row (long ones) with one result.
    """
    if len(starts) == 0:
        return np.zeros(0, dtype=np.uint64)
    words, starts = _padded_words(data, starts, lengths)
    hashes = mix(_load(words, starts, lengths))
    rows: npt.NDArray[np.intp] | slice = slice(None)
    begin, remaining = starts, lengths
    for position in range(1, _STEPPED_WORDS):
        longer = np.flatnonzero(remaining > 8)
        if len(longer) < len(remaining):
            rows = longer if isinstance(rows, slice) else rows[longer]
            begin, remaining = begin[longer], remaining[longer]
        if len(remaining) == 0:
            break
        begin, remaining = begin + 8, remaining - 8
        loaded = _load(words, begin, remaining)
        loaded += _OF_POSITION[position]
        hashes[rows] += mix(loaded)
    tails = np.flatnonzero(lengths > 8 * _STEPPED_WORDS)
    if len(tails):
        _add_tails(hashes, words, starts, lengths, tails)
    hashes += lengths.view(np.uint64) * _LENGTH
    return mix(hashes)


def _padded_words(
    data: pa.Buffer | None, starts: npt.NDArray[np.int64], lengths: npt.NDArray[np.int64]
) -> tuple[Words, npt.NDArray[np.int64]]:
    """The bytes in use, copied so that a whole aligned word can be read from any position, and the new starts."""
    first = int(starts[0])
    size = int(starts[-1] + lengths[-1]) - first
    words = np.zeros(size // 8 + 3, dtype=np.uint64)
    if data is not None and size:
        words.view(np.uint8)[:size] = np.frombuffer(data, dtype=np.uint8, count=size, offset=first)
    return words, starts - first


def _load(words: Words, starts: npt.NDArray[np.int64], remaining: npt.NDArray[np.int64]) -> Words:
    """Eight bytes from each start, the ones beyond `remaining` zeroed. Two aligned reads beat one unaligned here."""
    place = starts >> 3
    shift = ((starts & 7) << 3).view(np.uint64)
    loaded: Words = words.take(place, mode="clip")
    loaded >>= shift
    place += 1
    upper = words.take(place, mode="clip")
    # By 64 - shift in two steps, because a shift by 64 is undefined.
    upper <<= np.uint64(63) - shift
    upper <<= np.uint64(1)
    loaded |= upper
    loaded &= _KEEP_BYTES.take(remaining, mode="clip")
    return loaded


def _add_tails(
    hashes: Words,
    words: Words,
    starts: npt.NDArray[np.int64],
    lengths: npt.NDArray[np.int64],
    rows: npt.NDArray[np.intp],
) -> None:
    """Add the words from `_STEPPED_WORDS` on, in blocks of rows so that the scratch space stays small."""
    counts = (lengths[rows] + 7) // 8 - _STEPPED_WORDS
    ends = np.cumsum(counts)
    cuts = np.searchsorted(ends, np.arange(_TAIL_BLOCK_WORDS, ends[-1], _TAIL_BLOCK_WORDS))
    for block in np.split(np.arange(len(rows)), np.unique(cuts)):
        if len(block) == 0:
            continue
        some, many = rows[block], counts[block]
        firsts = np.cumsum(many) - many
        position = np.arange(int(many.sum())) - np.repeat(firsts, many) + _STEPPED_WORDS
        begin = 8 * position
        loaded = _load(words, np.repeat(starts[some], many) + begin, np.repeat(lengths[some], many) - begin)
        loaded += position.view(np.uint64) * _COMBINE
        # No row here is without a word, so that reduceat never meets an empty stretch.
        hashes[some] += np.add.reduceat(mix(loaded), firsts)
