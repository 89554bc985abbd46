"""The keys of a columnar state: typed Arrow columns on the outside, 64-bit words on the inside.

A key is taken apart into words. A column whose values fit into a word is its word; of any other column each
distinct value is interned, once, and its number is the word; a struct becomes its fields. Nulls are the bits of
one more word, which exists only once the first null has come. Keys are compared word by word: equal words are
equal keys.

A key is never changed in its place. So a snapshot is the references and the size.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from penstock.columnar.direct_table import DirectTable
from penstock.columnar.fixed_width import fixed_width_values, null_mask
from penstock.columnar.gather import take
from penstock.columnar.hashing import Words, hash_array, mix
from penstock.columnar.plain import plain
from penstock.errors import DataError
from penstock.state.columns import Mask, array_of_words, fits_word, with_nulls, words_of
from penstock.state.index.growing import GrowingColumn
from penstock.state.index.slot_table import Equal, Rows, Slots, SlotTable

Column: TypeAlias = npt.NDArray[np.int64]

_MULTIPLIER = np.uint64(0xD6E8FEB86659FD93)
_MERGED_ROWS_MAX = 1 << 16
"""Values of a chunk that is not merged with others any more: merging holds the mailbox."""
_MERGED_BYTES_MAX = 1 << 30  # a string array cannot hold more than 2 GiB
_LEAVES_MAX = 62


class Interner:
    """Numbers the distinct values of one column in the order in which they came."""

    def __init__(self, kind: pa.DataType) -> None:
        self.kind = kind
        self._chunks: tuple[pa.Array, ...] = (pa.array([], kind),)
        self._hashes = GrowingColumn(np.uint64)
        self._table = SlotTable(self._hashes_of)

    def _hashes_of(self, slots: Slots) -> Words:
        hashes: Words = self._hashes.values.take(slots)
        return hashes

    def words(self, array: pa.Array) -> npt.NDArray[np.int64]:
        """The number of each value, a new one for each new value; arbitrary for a null."""
        encoded = array.dictionary_encode()
        distinct = encoded.dictionary
        if len(distinct) == 0:
            return np.zeros(len(array), dtype=np.int64)
        hashes = hash_array(distinct)

        def append(rows: Rows) -> None:
            self._hashes.append(self._table.size, hashes[rows])
            self._chunks = _with_chunk(self._chunks, take(distinct, rows))

        return _spread(self._table.find_or_add(hashes, self._equal(distinct, hashes), append), encoded)

    def known_words(self, array: pa.Array) -> npt.NDArray[np.int64]:
        """The number of each value, -1 for a value that never came; arbitrary for a null."""
        encoded = array.dictionary_encode()
        distinct = encoded.dictionary
        if len(distinct) == 0 or self._table.size == 0:
            return np.full(len(array), -1, dtype=np.int64)
        hashes = hash_array(distinct)
        return _spread(self._table.find(hashes, self._equal(distinct, hashes)), encoded)

    def _equal(self, distinct: pa.Array, hashes: Words) -> Equal:
        def equal(slots: Slots, rows: Rows | None) -> Mask:
            """Compare the hashes of all, and the values where the hashes are equal."""
            theirs = hashes if rows is None else hashes[rows]
            same: Mask = self._hashes.values.take(slots, mode="clip") == theirs
            same &= slots >= 0
            likely = np.flatnonzero(same)
            ours = take_from(self._chunks, slots[likely])
            values = take(distinct, likely if rows is None else rows[likely])
            same[likely] = pc.equal(ours, values).to_numpy(zero_copy_only=False)
            return same

        return equal

    @property
    def state_bytes(self) -> int:
        values: int = sum(chunk.nbytes for chunk in self._chunks)
        return self._hashes.column_bytes + self._table.table_bytes + values

    @property
    def chunks(self) -> tuple[pa.Array, ...]:
        """All values in the order of their numbers; immutable."""
        return self._chunks


def _spread(numbers: Slots, encoded: pa.DictionaryArray) -> npt.NDArray[np.int64]:
    """The numbers of distinct values at the places where the values stand."""
    indices = fixed_width_values(encoded.indices, np.int32)
    return numbers.astype(np.int64).take(indices, mode="clip")


def _with_chunk(chunks: tuple[pa.Array, ...], chunk: pa.Array) -> tuple[pa.Array, ...]:
    """Append, and merge neighbours of like size, so that there are few chunks and no value is copied often."""
    merged = [*chunks, chunk]
    while len(merged) > 1 and len(merged[-2]) <= min(2 * len(merged[-1]), _MERGED_ROWS_MAX):
        if merged[-2].nbytes + merged[-1].nbytes > _MERGED_BYTES_MAX:
            break
        last = merged.pop()
        merged[-1] = pa.concat_arrays([merged[-1], last])
    return tuple(merged)


def take_from(chunks: Sequence[pa.Array], places: npt.NDArray[np.integer[Any]]) -> pa.Array:
    """Like `take` over all chunks, which Arrow does by concatenating them first."""
    if len(chunks) == 1:
        return take(chunks[0], places)
    ends = np.cumsum([len(chunk) for chunk in chunks])
    which = np.searchsorted(ends, places, side="right")
    order = np.argsort(which.astype(np.uint16), kind="stable")
    counts = np.bincount(which, minlength=len(chunks))
    parts, start = [], 0
    for number, chunk in enumerate(chunks):
        some = places[order[start : start + counts[number]]] - (ends[number] - len(chunk))
        start += counts[number]
        if len(some):
            parts.append(take(chunk, some))
    if not parts:
        return chunks[0].slice(0, 0)
    back = np.empty(len(order), dtype=np.int64)
    back[order] = np.arange(len(order))
    return take(pa.concat_arrays(parts), back)


@dataclass(frozen=True, slots=True)
class KeySnapshot:
    """The keys of the first `size` slots as they are and will stay."""

    kinds: tuple[pa.DataType, ...]
    size: int
    words: tuple[Column, ...]
    """One per leaf, and one for the nulls if there have been any."""
    chunks: tuple[tuple[pa.Array, ...] | None, ...]
    """Per leaf, the interned values."""

    def row_bytes(self) -> npt.NDArray[np.int64]:
        """About what the key of each slot takes."""
        sizes = np.full(self.size, 8 * len(self.words), dtype=np.int64)
        for leaf, chunks in enumerate(self.chunks):
            if chunks is not None and any(len(chunk) for chunk in chunks):
                sizes += np.concatenate([_value_bytes(chunk) for chunk in chunks]).take(self._column(leaf, None))
        return sizes

    def arrays(self, slots: Slots | None = None) -> list[pa.Array]:
        """The key columns of `slots`, or of all. Trap: a string column holds no more than 2 GiB (`row_bytes`)."""
        leaves = iter(range(len(self.chunks)))
        return [self._assemble(kind, leaves, slots) for kind in self.kinds]

    def _assemble(self, kind: pa.DataType, leaves: Iterator[int], slots: Slots | None) -> pa.Array:
        leaf = next(leaves)
        words = self._column(leaf, slots)
        if pa.types.is_struct(kind):
            children = [self._assemble(field.type, leaves, slots) for field in kind]
            return pa.StructArray.from_arrays(children, fields=list(kind), mask=pa.array(words == 0))
        nulls = None
        if len(self.words) > len(self.chunks):
            nulls = (self._column(-1, slots) >> leaf) & 1 == 1
        chunks = self.chunks[leaf]
        if chunks is None:
            return array_of_words(words, kind, nulls)
        if not any(len(chunk) for chunk in chunks):
            return pa.nulls(len(words), kind)
        return with_nulls(take_from(chunks, words), nulls)

    def _column(self, leaf: int, slots: Slots | None) -> Column:
        words = self.words[leaf][: self.size]
        return words if slots is None else words.take(slots)


def _value_bytes(values: pa.Array) -> npt.NDArray[np.int64]:
    """The size of each value."""
    if pa.types.is_fixed_size_binary(values.type) or not _has_length(values.type):
        return np.full(len(values), max(1, values.nbytes // max(1, len(values))), dtype=np.int64)
    lengths: npt.NDArray[np.int64] = pc.binary_length(values).to_numpy(zero_copy_only=False).astype(np.int64)
    return lengths


def _has_length(kind: pa.DataType) -> bool:
    is_small = pa.types.is_string(kind) or pa.types.is_binary(kind)
    return bool(is_small or pa.types.is_large_string(kind) or pa.types.is_large_binary(kind))


class KeyIndex:
    """Finds the slot of each row's key. `kinds` are the plain types of the key columns."""

    def __init__(self, kinds: Sequence[pa.DataType]) -> None:
        self.kinds = tuple(kinds)
        leaf_kinds = [leaf for kind in self.kinds for leaf in _leaf_kinds(kind)]
        if len(leaf_kinds) > _LEAVES_MAX:
            raise DataError(f"a key has at most {_LEAVES_MAX} columns and fields, not {len(leaf_kinds)}")
        self._interners = [None if fits_word(kind) else Interner(kind) for kind in leaf_kinds]
        self._words = [GrowingColumn(np.int64) for _ in leaf_kinds]
        self._direct = DirectTable()
        """Of keys that are one word, the slots of those that lie close together."""
        self._table = SlotTable(lambda slots: self._hashes([column.values.take(slots) for column in self._words]))

    @property
    def size(self) -> int:
        return self._table.size

    @property
    def state_bytes(self) -> int:
        """The memory of the keys and of the tables that find them."""
        tables = self._direct.table_bytes + self._table.table_bytes
        interned = sum(interner.state_bytes for interner in self._interners if interner is not None)
        return sum(column.column_bytes for column in self._words) + tables + interned

    def slots_of(self, arrays: Sequence[pa.Array]) -> Slots:
        """The slot of each row, a new one for each new key. The arrays are of `kinds`, encoded or plain."""
        words, nulls = self._take_apart(arrays)
        if nulls is not None and not self._has_nulls:
            self._add_null_word()
        if self._has_nulls:
            words.append(np.zeros(len(words[0]), dtype=np.int64) if nulls is None else nulls)
        if len(words) == 1:
            known = self._direct.look_up(words[0], lambda rows: self._find_or_add([words[0][rows]]))
            if known is not None:
                return known
        return self._find_or_add(words)

    def find(self, arrays: Sequence[pa.Array], nulls_match: bool = False) -> Slots:
        """The slot of each row, -1 for a key that never came. Nothing is added.

        With `nulls_match` null is a key like any other, else a key with a null in it has no slot.
        """
        leaves = [leaf for array in arrays for leaf in _leaves(array)]
        is_known = np.ones(len(leaves[0]), dtype=np.bool_)
        words: list[Column] = []
        bits: Column = np.zeros(len(leaves[0]), dtype=np.int64)
        for position, (array, interner) in enumerate(zip(leaves, self._interners, strict=True)):
            column = words_of(array) if interner is None else interner.known_words(array)
            mask = null_mask(array) if array.null_count else np.zeros(len(array), dtype=np.bool_)
            column = np.where(mask, 0, column)
            bits |= mask.astype(np.int64) << position
            if interner is not None:
                is_known &= column >= 0
            words.append(column)
        if not (nulls_match and self._has_nulls):
            is_known &= bits == 0
        rows = np.flatnonzero(is_known)
        words = [column[rows] for column in [*words, *[bits] * self._has_nulls]]
        slots: Slots = np.full(len(is_known), -1, dtype=np.intp)
        slots[rows] = self._table.find(self._hashes(words), self._equal(words))
        return slots

    def _equal(self, words: Sequence[Column]) -> Equal:
        def equal(slots: Slots, rows: Rows | None) -> Mask:
            same: Mask | None = None
            for ours, theirs in zip(self._words, words, strict=True):
                column = ours.values.take(slots, mode="clip") == (theirs if rows is None else theirs.take(rows))
                same = column if same is None else same & column
            assert same is not None
            return same

        return equal

    def _find_or_add(self, words: Sequence[Column]) -> Slots:
        def append(rows: Rows) -> None:
            for ours, theirs in zip(self._words, words, strict=True):
                ours.append(self.size, theirs[rows])

        return self._table.find_or_add(self._hashes(words), self._equal(words), append)

    def snapshot(self) -> KeySnapshot:
        chunks = tuple(None if interner is None else interner.chunks for interner in self._interners)
        return KeySnapshot(self.kinds, self.size, tuple(column.values for column in self._words), chunks)

    @property
    def _has_nulls(self) -> bool:
        return len(self._words) > len(self._interners)

    def _add_null_word(self) -> None:
        # Twice as long as the others: a column that is half empty has time to grow.
        self._words = [*self._words, GrowingColumn(np.int64, 2 * len(self._words[0].values))]

    def _hashes(self, words: Sequence[Column]) -> Words:
        """The hash of each key. Without nulls it is the same whether there is a word for them or not."""
        leaves = len(self._interners)
        hashes = _hash_words(words[:leaves])
        for nulls in words[leaves:]:
            hashes += nulls.view(np.uint64) * _MULTIPLIER
        return hashes

    def _take_apart(self, arrays: Sequence[pa.Array]) -> tuple[list[Column], Column | None]:
        """One word per leaf, zero at nulls, and the nulls as a word of bits if there are any."""
        leaves = [leaf for array in arrays for leaf in _leaves(array)]
        words: list[Column] = []
        nulls: Column | None = None
        for position, (array, interner) in enumerate(zip(leaves, self._interners, strict=True)):
            column = words_of(array) if interner is None else interner.words(array)
            if array.null_count:
                mask = null_mask(array)
                column = np.where(mask, 0, column)
                bits = mask.astype(np.int64) << position
                nulls = bits if nulls is None else nulls | bits
            words.append(column)
        return words, nulls


def with_capacity(column: npt.NDArray[Any], size: int) -> npt.NDArray[Any]:
    """The column, or a larger copy with room for `size`; what lies beyond the old end is zero."""
    if size <= len(column):
        return column
    larger = np.zeros(max(size, 2 * len(column)), dtype=column.dtype)
    larger[: len(column)] = column
    return larger


def _leaf_kinds(kind: pa.DataType) -> list[pa.DataType]:
    if pa.types.is_struct(kind):
        return [pa.bool_(), *(leaf for field in kind for leaf in _leaf_kinds(field.type))]
    return [kind]


def _leaves(array: pa.Array) -> list[pa.Array]:
    array = plain(array)
    if pa.types.is_struct(array.type):
        return [array.is_valid(), *(leaf for child in array.flatten() for leaf in _leaves(child))]
    return [array]


def _hash_words(words: Sequence[Column]) -> Words:
    hashes = mix(words[0].view(np.uint64).copy())
    for column in words[1:]:
        hashes *= _MULTIPLIER
        hashes += column.view(np.uint64)
        mix(hashes)
    return hashes
