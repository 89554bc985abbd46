"""The table grows in small steps, and finds every key while it does."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.state.index import slot_table
from penstock.state.index.slot_table import Rows, Slots, SlotTable

Numbers = npt.NDArray[np.uint64]


class Keys:
    """Keys that are their own hashes, so that a test decides where they stand."""

    def __init__(self) -> None:
        self.held: Numbers = np.empty(0, dtype=np.uint64)
        self.table = SlotTable(self.rehash)
        self.rehashed: list[int] = []
        """How many slots were asked for, call by call."""

    def rehash(self, slots: Slots) -> Numbers:
        self.rehashed.append(len(slots))
        return self.held.take(slots)

    def slots_of(self, keys: Numbers) -> list[int]:
        def equal(slots: Slots, rows: Rows | None) -> npt.NDArray[np.bool_]:
            if len(self.held) == 0:
                return np.zeros(len(slots), dtype=np.bool_)
            return self.held.take(slots, mode="clip") == (keys if rows is None else keys[rows])

        def append(rows: Rows) -> None:
            self.held = np.concatenate([self.held, keys[rows]])

        return self.table.find_or_add(keys, equal, append).tolist()


_SPREAD: Numbers = np.unique(np.random.default_rng(1).integers(0, 2**64, 450_000, dtype=np.uint64))
np.random.default_rng(2).shuffle(_SPREAD)


def spread(first: int, end: int) -> Numbers:
    """Hashes as good ones are: without any order."""
    return _SPREAD[first:end]


def test_every_key_keeps_its_slot_while_the_table_grows() -> None:
    keys = Keys()
    slots: dict[int, int] = {}
    for first in range(0, 200_000, 7_000):
        new = spread(first, first + 7_000)
        slots |= dict(zip(new.tolist(), keys.slots_of(new), strict=True))
        old = spread(0, first + 7_000)[::97]
        assert keys.slots_of(old) == [slots[key] for key in old.tolist()]
    assert sorted(slots.values()) == list(range(len(slots)))


def test_a_call_moves_few_keys_however_many_there_are() -> None:
    """A table that is rebuilt as a whole holds the mailbox for a second, with some millions of keys."""
    keys = Keys()
    moved = []
    for first in range(0, 400_000, 1_000):
        keys.rehashed.clear()
        keys.slots_of(spread(first, first + 1_000))
        moved.append(sum(keys.rehashed))
        # One that waits for its split is never so full that it must be split at once.
        assert keys.table._keys.max() <= slot_table._SEGMENT_KEYS_LIMIT
    assert max(moved) <= slot_table._MOVES_SAVED_MAX + slot_table._MOVED_PER_KEY * 1_000
    # All segments are full at about the same time: their keys are moved by many calls, not by a few.
    assert np.count_nonzero(moved) > 50


def test_a_batch_that_is_much_larger_than_the_table_finds_room() -> None:
    keys = Keys()
    assert sorted(keys.slots_of(spread(0, 100_000))) == list(range(100_000))
    assert keys.slots_of(spread(0, 100_000)) == keys.slots_of(spread(0, 100_000))


def test_copies_of_a_new_key_get_one_slot() -> None:
    keys = Keys()
    assert keys.slots_of(np.array([7, 7, 9, 7, 9], dtype=np.uint64)) in ([0, 0, 1, 0, 1], [1, 1, 0, 1, 0])


@settings(max_examples=50, deadline=None)
@given(st.lists(st.lists(st.integers(0, 2**64 - 1), min_size=1, max_size=60), max_size=30), st.integers(0, 63))
def test_keys_that_crowd_in_one_place_are_told_apart(batches: list[list[int]], shift: int) -> None:
    """Hashes that agree in many bits are in one segment, and the directory does not grow for them alone."""
    keys = Keys()
    slots: dict[int, int] = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(slot_table, "_SEGMENT_KEYS_MAX", 3)
        for batch in batches:
            given_keys = np.array([key >> shift for key in batch], dtype=np.uint64)
            found = keys.slots_of(given_keys)
            for key, slot in zip(given_keys.tolist(), found, strict=True):
                assert slots.setdefault(key, slot) == slot
    assert sorted(slots.values()) == list(range(len(slots)))
    assert len(keys.table._directory) <= 256 * len(keys.table._depths)


def test_more_keys_with_one_hash_than_a_segment_holds_are_an_error() -> None:
    keys = Keys()
    with pytest.raises(OverflowError, match="nearly the same hash"):
        keys.slots_of(np.arange(5_000, dtype=np.uint64) << np.uint64(45))
