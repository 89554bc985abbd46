"""The table of integers that lie close together: knows what it was taught, and nothing else."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.columnar import direct_table
from penstock.columnar.direct_table import DirectTable
from penstock.columnar.hashing import key_groups
from penstock.exchange.partitioners import HashPartitioner
from penstock.state.index.key_index import KeyIndex

INT64 = np.iinfo(np.int64)


def words(*values: int) -> npt.NDArray[np.int64]:
    return np.array(values, dtype=np.int64)


Batch = tuple[list[int], list[int], int]


def zeros(rows: npt.NDArray[np.intp]) -> npt.NDArray[np.intp]:
    return np.zeros(len(rows), dtype=np.intp)


integers = st.one_of(st.integers(-50, 50), st.integers(-(2**14), 2**14), st.integers(INT64.min, INT64.max))
batches = st.lists(st.lists(integers, min_size=1, max_size=40), min_size=1, max_size=8)


@settings(deadline=None)
@given(batches)
def test_it_is_a_dictionary_that_may_refuse(sequence: list[list[int]]) -> None:
    table, model = DirectTable(), {}
    for number, values in enumerate(sequence):
        unknown = [row for row, value in enumerate(values) if value not in model]

        def ask(rows: npt.NDArray[np.intp], batch: Batch = (values, unknown, 1000 * number)) -> Any:
            values, unknown, first = batch
            assert rows.tolist() == unknown, "what is known is not asked for again"
            model.update({values[row]: first + row for row in rows})
            return np.array([model[values[row]] for row in rows])

        known = table.look_up(words(*values), ask)
        assert known is None or known.tolist() == [model[value] for value in values]


@settings(deadline=None)
@given(batches)
def test_keys_have_one_slot_each_however_they_are_found(sequence: list[list[int]]) -> None:
    index, model = KeyIndex([pa.int64()]), {}
    for values in sequence:
        for value, slot in zip(values, index.slots_of([pa.array(values, pa.int64())]).tolist(), strict=True):
            assert model.setdefault(value, slot) == slot
    assert sorted(model.values()) == list(range(len(model))) == list(range(index.size))


@settings(deadline=None)
@given(batches, st.sampled_from([pa.int64(), pa.int32(), pa.uint64()]))
def test_keys_go_to_the_owner_of_their_group_however_it_is_found(sequence: list[list[int]], kind: pa.DataType) -> None:
    partitioner = HashPartitioner(["k"], 3, 128)
    for values in sequence:
        fitting = [abs(value) % 2**31 for value in values]
        batch = pa.record_batch({"other": fitting, "k": pa.array(fitting, kind)})
        wanted = partitioner._owners.take(key_groups(batch, ["k"], 128))
        assert partitioner.receivers_of(batch).tolist() == wanted.tolist()


def test_a_null_that_comes_later_changes_nothing_for_the_others() -> None:
    index = KeyIndex([pa.int64()])
    first = index.slots_of([pa.array([1, 2, 3])]).tolist()
    assert index.slots_of([pa.array([3, None, 1])]).tolist() == [first[2], 3, first[0]]
    assert index.slots_of([pa.array([2, 4])]).tolist() == [first[1], 4]


@pytest.mark.parametrize("far", [2**40, -(2**40), INT64.max, INT64.min])
def test_far_away_integers_do_not_come_in(far: int) -> None:
    table = DirectTable()
    assert table.look_up(words(1, 2, 3), zeros) is not None
    assert table.look_up(words(1, far), zeros) is None
    assert table.look_up(words(1, 2, 3), zeros) is not None


def test_a_few_integers_do_not_make_a_large_table() -> None:
    table = DirectTable()
    assert table.look_up(words(0, 100_000), zeros) is None
    many = np.arange(0, 100_000, 10)
    assert [table.look_up(many, zeros) is not None for _ in range(4)] == [False, False, False, True]


def test_a_larger_table_is_filled_in_parts_and_knows_what_the_old_one_knew(monkeypatch: pytest.MonkeyPatch) -> None:
    """To fill two million places at once took 80 ms."""
    monkeypatch.setattr(direct_table, "_FILLED_MAX", 1_000)
    table, filled = DirectTable(), []
    monkeypatch.setattr(DirectTable, "_fill", counting(DirectTable._fill, filled))
    many = np.arange(-5_000, 20_000)
    while table.look_up(many[4_000:6_000], lambda rows: rows + 7) is None:
        pass
    calls = 0
    while (known := table.look_up(many, lambda rows: rows + 3_000_007)) is None:
        calls += 1
    assert calls >= 20
    assert max(filled) <= 1_000
    assert (known[4_000:6_000] == np.arange(7, 2_007)).all()
    assert (known[6_000:] == np.arange(6_000, 25_000) + 3_000_007).any()


def counting(fill: Any, filled: list[int]) -> Any:
    def count(table: DirectTable, larger: npt.NDArray[np.intp]) -> None:
        before = table._filled
        fill(table, larger)
        filled.append(table._filled - before)

    return count
