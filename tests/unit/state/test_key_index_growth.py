"""The index of keys grows without a pause: each call copies and moves a few entries for each key that it adds."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.columnar import direct_table
from penstock.state.index import growing, slot_table
from penstock.state.index.growing import GrowingColumn
from penstock.state.index.key_index import KeyIndex

Values = npt.NDArray[np.int64]


class CountingColumn(GrowingColumn):
    """Counts the values that it copies to a larger array."""

    def _grow(self, size: int, end: int) -> None:
        before, self.copied = self._copied if self._larger is not None else 0, 0
        super()._grow(size, end)
        self.copied = max(0, self._copied - before)

    def appended(self, size: int, values: Values) -> int:
        self.copied = 0
        self.append(size, values)
        return self.copied


@settings(max_examples=100, deadline=None)
@given(st.lists(st.integers(0, 3_000), max_size=60))
def test_a_column_copies_a_few_values_for_each_that_is_added(lengths: list[int]) -> None:
    column, size = CountingColumn(np.int64), 0
    held: list[tuple[Values, int]] = []
    for length in lengths:
        copied = column.appended(size, np.arange(size, size + length))
        size += length
        # Without this a batch of one row would pay for all rows before it.
        assert copied <= 4 * length
        held.append((column.values, size))
    # A snapshot is the array and its size, however the column has grown since.
    assert all((values[:end] == np.arange(end)).all() for values, end in held)


KINDS = {"word": pa.int64(), "text": pa.string(), "bytes": pa.binary(3)}
_numbers = st.one_of(st.none(), st.integers(0, 200), st.integers(-(2**63), 2**63 - 1))


def _array(kind: str, numbers: list[int | None]) -> pa.Array:
    if kind == "word":
        return pa.array(numbers, pa.int64())
    if kind == "text":
        return pa.array([None if number is None else str(number) for number in numbers], pa.string())
    return pa.array([None if number is None else b"%03d" % (number % 1000) for number in numbers], pa.binary(3))


@settings(max_examples=60, deadline=None)
@given(st.lists(st.lists(_numbers, min_size=1, max_size=80), max_size=12), st.sampled_from(sorted(KINDS)))
def test_any_mix_of_calls_around_growth_gives_what_a_dictionary_gives(
    batches: list[list[int | None]], kind: str
) -> None:
    index = KeyIndex([KINDS[kind]])
    model: dict[object, int] = {}
    snapshots = []
    with pytest.MonkeyPatch.context() as patch:
        # All parts grow all the time: segments split, columns are copied, the direct table is filled.
        patch.setattr(slot_table, "_SEGMENT_KEYS_MAX", 4)
        patch.setattr(slot_table, "_MOVES_SAVED_MAX", 8)
        patch.setattr(direct_table, "_FILLED_MAX", 7)
        patch.setattr(growing, "_COPIED_PER_VALUE", 2)
        for numbers in batches:
            array = _array(kind, numbers)
            for key, slot in zip(array.to_pylist(), index.slots_of([array]).tolist(), strict=True):
                assert model.setdefault(key, slot) == slot
            snapshots.append((index.snapshot(), len(model)))
    assert sorted(model.values()) == list(range(index.size))
    by_slot = sorted(model, key=lambda key: model[key])
    for snapshot, size in snapshots:
        assert snapshot.arrays()[0].to_pylist() == by_slot[:size]


@settings(max_examples=60, deadline=None)
@given(st.lists(_numbers, max_size=60), st.lists(_numbers, min_size=1, max_size=60), st.sampled_from(sorted(KINDS)))
def test_find_knows_the_keys_that_came_and_adds_none(
    came: list[int | None], asked: list[int | None], kind: str
) -> None:
    index = KeyIndex([KINDS[kind]])
    model: dict[object, int] = {}
    if came:
        held = _array(kind, came)
        model = dict(zip(held.to_pylist(), index.slots_of([held]).tolist(), strict=True))
    size, looked_up = index.size, _array(kind, asked)
    expected = [-1 if key is None else model.get(key, -1) for key in looked_up.to_pylist()]
    assert index.find([looked_up]).tolist() == expected
    assert index.size == size
