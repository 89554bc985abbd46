"""Accumulators that keep a sketch for each slot: a summary of bounded size that can be merged with others.

A sketch is an object that is replaced and never changed, so that a snapshot that refers to it stays as it is. Rows are
sorted by slot, and each key of a batch costs one call of numpy or of the library, not each row.
"""

from __future__ import annotations

import importlib
from abc import abstractmethod
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.columnar.hashing import Words, hash_array
from penstock.errors import PipelineError
from penstock.model.aggregates import Aggregate
from penstock.state.aggregates.accumulators import Accumulator, Folded, Input, Nulls, Numbers
from penstock.state.index.slot_table import Slots

HASHES_MAX = 1 << 11
"""As many of the smallest hashes are kept. The standard error is 1 / sqrt(2048), or 2.2 %; fewer values are exact."""
_DIGEST_SIZE = 200
_DIGEST_BYTES = 4096


def digest_library() -> Any:
    """The library of quantile sketches. Raises `PipelineError` if it is not installed."""
    try:
        return importlib.import_module("datasketches")
    except ImportError as error:
        raise PipelineError(
            "quantile needs the package datasketches, on the driver and on the workers: install penstock[sketches]"
        ) from error


class Sketched(Accumulator):
    """A column of sketches; None in slots without one."""

    initial = None
    _bytes = 0

    def __init__(self, label: str, input: Input, kind: pa.DataType) -> None:
        super().__init__(label, input, kind, object)

    @property
    def held_bytes(self) -> int:
        return self._bytes

    @abstractmethod
    def updated(self, sketch: Any, values: npt.NDArray[Any]) -> Any:
        """A sketch with these values too."""

    @abstractmethod
    def merged(self, sketch: Any, other: Any) -> Any:
        """A sketch with what both have."""

    @abstractmethod
    def bytes_of(self, sketch: Any) -> int:
        """About the memory that it takes."""

    def values_of(self, folded: Folded) -> npt.NDArray[Any]:
        return folded.values

    def fold(self, state: Numbers, folded: Folded) -> None:
        values = self.values_of(folded)
        for slot, rows in _by_slot(folded.slots):
            self._set(state, slot, self.updated(state[slot], values[rows]))

    def merge(self, state: Numbers, folded: Folded, source: Accumulator) -> None:
        for slot, other in zip(folded.slots.tolist(), folded.values, strict=True):
            if other is not None:
                self._set(state, slot, other if state[slot] is None else self.merged(state[slot], other))

    def clear(self, state: Numbers, slots: Slots) -> None:
        for slot in slots.tolist():
            self._set(state, slot, None)

    def _set(self, state: Numbers, slot: int, sketch: Any) -> None:
        for each, sign in ((state[slot], -1), (sketch, 1)):
            self._bytes += 0 if each is None else sign * self.bytes_of(each)
        state[slot] = sketch


def _by_slot(slots: Slots) -> Iterator[tuple[int, npt.NDArray[np.intp]]]:
    order = np.argsort(slots, kind="stable")
    ordered = slots.take(order)
    starts = np.flatnonzero(np.diff(ordered, prepend=-1))
    yield from zip(ordered.take(starts).tolist(), np.split(order, starts[1:]), strict=True)


class Hashes(Sketched):
    """The smallest hashes of the distinct values: how close they lie says how many values there are.

    (Bar-Yossef et al., "Counting distinct elements in a data stream", 2002.) Numpy merges them, and up to `HASHES_MAX`
    values the number is exact.
    """

    is_count = True
    needs_numbers = False

    def __init__(self, label: str, input: Input) -> None:
        super().__init__(label, input, pa.list_(pa.uint64()))

    def values_of(self, folded: Folded) -> Words:
        return hash_array(folded.read(self.input[0]))

    def updated(self, sketch: Words | None, values: Words) -> Words:
        if sketch is not None and len(sketch) == HASHES_MAX:
            values = values[values < sketch[-1]]
            if len(values) == 0:
                return sketch
        smallest = np.unique(values if sketch is None else np.concatenate([sketch, values]))
        return smallest[:HASHES_MAX].copy()

    def merged(self, sketch: Words, other: Words) -> Words:
        return self.updated(sketch, other)

    def bytes_of(self, sketch: Words) -> int:
        return int(sketch.nbytes)

    def array(self, numbers: Numbers, nulls: Nulls) -> pa.Array:
        none = np.zeros(0, dtype=np.uint64)
        parts = [none if each is None else each for each in numbers]
        offsets = np.cumsum([0, *map(len, parts)], dtype=np.int64).astype(np.int32)
        values = pa.array(np.concatenate([none, *parts]))
        return pa.Array.from_buffers(self.kind, len(parts), [None, pa.py_buffer(offsets)], children=[values])

    def put(self, state: Numbers, slots: Slots, array: pa.Array, nulls: npt.NDArray[np.bool_]) -> None:
        lengths = array.value_lengths().fill_null(0).to_numpy(zero_copy_only=False)
        parts = np.split(array.flatten().to_numpy(), np.cumsum(lengths)[:-1])
        for slot, part in zip(slots.tolist(), parts, strict=True):
            self._set(state, slot, part.copy() if len(part) else None)

    def has_value(self, state: Numbers, slots: Slots, nulls: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
        return np.array([each is not None for each in state.take(slots)], dtype=np.bool_)

    def result(self, aggregate: Aggregate, numbers: Numbers, nulls: Nulls) -> pa.Array:
        return pa.array([0 if each is None else estimate(each) for each in numbers], pa.int64())


def estimate(smallest: Words) -> int:
    """How many distinct values there are, by their smallest hashes."""
    if len(smallest) < HASHES_MAX:
        return len(smallest)
    # All of them but one lie before the last: in proportion, this number is expected in the whole range.
    return round((HASHES_MAX - 1) * 2.0**64 / float(smallest[-1]))


class Digests(Sketched):
    """Quantiles by a t-digest of the library datasketches: most precise near 0 and 1. NaN is left out.

    It makes no random choice, so that a replay of the same batches gives the same result.
    """

    def __init__(self, label: str, input: Input) -> None:
        super().__init__(label, input, pa.binary())
        self._kind = digest_library().tdigest_double

    def updated(self, sketch: Any, values: npt.NDArray[Any]) -> Any:
        digest = self._copied(sketch)
        known = values.astype(np.float64, copy=False)
        digest.update(np.ascontiguousarray(known[~np.isnan(known)]))
        return digest

    def merged(self, sketch: Any, other: Any) -> Any:
        digest = self._copied(sketch)
        digest.merge(other)
        return digest

    def bytes_of(self, sketch: Any) -> int:
        return _DIGEST_BYTES

    def array(self, numbers: Numbers, nulls: Nulls) -> pa.Array:
        return pa.array([None if each is None else each.serialize() for each in numbers], pa.binary())

    def put(self, state: Numbers, slots: Slots, array: pa.Array, nulls: npt.NDArray[np.bool_]) -> None:
        for slot, stored in zip(slots.tolist(), array.to_pylist(), strict=True):
            self._set(state, slot, None if stored is None else self._kind.deserialize(stored))

    def result(self, aggregate: Aggregate, numbers: Numbers, nulls: Nulls) -> pa.Array:
        fraction = aggregate.fraction
        values = [None if each is None or each.is_empty() else each.get_quantile(fraction) for each in numbers]
        return pa.array(values, pa.float64())

    def _copied(self, sketch: Any) -> Any:
        return self._kind(_DIGEST_SIZE) if sketch is None else self._kind.deserialize(sketch.serialize())
