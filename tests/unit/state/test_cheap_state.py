"""State that costs little: tuples are stored as the objects they are, and copied only where a snapshot holds them."""

from __future__ import annotations

import datetime
import math
import threading
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.errors import DataError
from penstock.state import KeyedState, ListState, MapState, ValueState
from penstock.state.rows.base import CONVERTED_ROWS
from penstock.state.rows.tuples import TupleType
from tests.unit.state.test_rows import KEY, NUMBER, at, new_state

DAY = datetime.date(2026, 1, 2)
NOON = datetime.datetime(2026, 1, 2, 12)
AS_THEY_ARE: list[tuple[pa.DataType, Any]] = [
    *[(kind, 127) for kind in (pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint64())],
    (pa.int64(), -(2**63)),
    (pa.uint64(), 2**64 - 1),
    (pa.float64(), 1.5),
    (pa.bool_(), True),
    (pa.string(), "text"),
    (pa.large_string(), "text"),
    (pa.binary(), b"bytes"),
    (pa.date32(), DAY),
    (pa.timestamp("us"), NOON),
    (pa.string(), None),
]
ODD: list[Any] = [None, True, 0, -1, 128, 2**31, 2**63, 2**64, 1.0, 1.5, math.nan, -0.0, "a", b"a", bytearray(b"a")]
ODD += [DAY, NOON, NOON.replace(fold=1), NOON.replace(tzinfo=datetime.UTC), NOON.replace(microsecond=7), [1], {"a": 1}]
TYPES = [kind for kind, _ in AS_THEY_ARE] + [pa.float32(), pa.timestamp("ms"), pa.timestamp("us", "UTC"), pa.int8()]


@pytest.mark.parametrize(("kind", "value"), AS_THEY_ARE, ids=repr)
def test_a_tuple_is_stored_as_the_object_it_is(kind: pa.DataType, value: Any) -> None:
    given_tuple = (value, value)
    stored = TupleType("here", pa.schema([("a", kind), ("b", kind)])).freeze(given_tuple)
    assert stored is given_tuple


@settings(max_examples=500, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(TYPES), st.sampled_from(ODD), st.booleans()), max_size=3))
def test_the_compiled_check_stores_what_a_look_at_each_value_stores(fields: list[tuple[Any, Any, bool]]) -> None:
    schema = pa.schema([pa.field(f"f{n}", kind, nullable) for n, (kind, _, nullable) in enumerate(fields)])
    kind, value = TupleType("here", schema), tuple(value for _, value, _ in fields)
    try:
        expected = kind._frozen(value)
    except DataError as error:
        with pytest.raises(DataError) as raised:
            kind.freeze(value)
        assert str(raised.value) == str(error)
        return
    assert repr(kind.freeze(value)) == repr(expected)
    assert all(type(one) is type(other) for one, other in zip(kind.freeze(value), expected, strict=True))


def test_all_nans_are_stored_as_one_object() -> None:
    kind = TupleType("here", pa.schema([("a", pa.float64())]))
    # Python finds a NaN in a dictionary only if it is the same object.
    assert len({id(kind.freeze((each,))[0]) for each in (math.nan, float("nan"), -float("nan"))}) == 1


def test_a_list_is_appended_to_without_a_copy_and_its_snapshots_stand_still() -> None:
    keyed = new_state()
    state = keyed.list("s", NUMBER)
    at(keyed, 1)
    snapshots = []
    lists = set()
    for number in range(50):
        state.append_value((number,))
        state.append_list([(number,), (number,)])
        lists.add(id(state._read().items))
        snapshots.append(keyed.snapshot())
    assert len(lists) == 1
    for number, snapshot in enumerate(snapshots):
        (piece,) = snapshot.encode(1 << 20)
        assert [row["n"] for row in piece.batch.column("value").to_pylist()] == [
            each for each in range(number + 1) for _ in range(3)
        ]


def test_a_map_is_copied_once_after_a_snapshot_and_never_without_one() -> None:
    keyed = new_state()
    state = keyed.map("s", NUMBER, NUMBER)
    at(keyed, 1)
    maps = []
    for _ in range(3):
        for number in range(50):
            state.update_value((number,), (number,))
            maps.append(state._read().items)
        keyed.snapshot()
    assert len({id(each) for each in maps}) == 3


def test_a_list_that_is_being_read_is_not_changed_by_another_one_in_its_place() -> None:
    keyed = new_state()
    state = keyed.list("s", NUMBER)
    at(keyed, 1)
    state.put([(1,), (2,)])
    reading = state.get()
    state.append_value((3,))
    state.put([(9,)])
    state.clear()
    assert list(reading) == [(1,), (2,)]


# --- random changes, while snapshots are encoded in another thread ---

_keys = st.integers(0, 5)
_changes = st.lists(
    st.tuples(st.sampled_from(["put", "put", "append", "clear", "remove", "snapshot"]), _keys, _keys),
    max_size=60,
)


class Model:
    """Three states as plain dictionaries."""

    def __init__(self, keyed: KeyedState) -> None:
        self.value: ValueState = keyed.value("v", NUMBER)
        self.list: ListState = keyed.list("l", NUMBER)
        self.map: MapState = keyed.map("m", NUMBER, NUMBER)
        self.keyed = keyed
        self.expected: dict[str, dict[int, Any]] = {"v": {}, "l": {}, "m": {}}

    def change(self, what: str, key: int, number: int) -> None:
        at(self.keyed, key)
        values, lists, maps = self.expected.values()
        match what:
            case "put":
                self.value.update((number,))
                self.list.put([(number,)])
                self.map.update_value((number,), (key,))
                values[key], lists[key] = number, [number]
                maps.setdefault(key, {})[number] = key
            case "append":
                self.list.append_value((number,))
                lists.setdefault(key, []).append(number)
            case "clear":
                for state in (self.value, self.list, self.map):
                    state.clear()
                for expected in (values, lists, maps):
                    expected.pop(key, None)
            case "remove":
                self.map.remove_key((number,))
                if key in maps:
                    maps[key].pop(number, None)
                    if not maps[key]:
                        del maps[key]

    def found(self) -> dict[str, dict[int, Any]]:
        found: dict[str, dict[int, Any]] = {"v": {}, "l": {}, "m": {}}
        for key in range(6):
            at(self.keyed, key)
            if (row := self.value.get()) is not None:
                found["v"][key] = row[0]
            if self.list.exists():
                found["l"][key] = [number for (number,) in self.list.get()]
            if self.map.exists():
                found["m"][key] = {number: value for (number,), (value,) in self.map.iterator()}
        return found


def _copied(expected: dict[str, dict[int, Any]]) -> dict[str, dict[int, Any]]:
    return {
        "v": dict(expected["v"]),
        "l": {key: list(each) for key, each in expected["l"].items()},
        "m": {key: dict(each) for key, each in expected["m"].items()},
    }


@settings(max_examples=60, deadline=None)
@given(_changes)
def test_snapshots_hold_the_state_of_their_moment_while_it_changes(changes: list[tuple[str, int, int]]) -> None:
    model = Model(new_state())
    taken: list[tuple[Any, dict[str, dict[int, Any]], list[Any]]] = []
    threads = []
    for what, key, number in changes:
        if what == "snapshot":
            snapshot, pieces = model.keyed.snapshot(), list[Any]()
            taken.append((snapshot, _copied(model.expected), pieces))
            threads.append(threading.Thread(target=lambda s=snapshot, p=pieces: p.extend(s.encode(64))))
            threads[-1].start()
        else:
            model.change(what, key, number)
    for thread in threads:
        thread.join()
    assert model.found() == model.expected
    for snapshot, expected, pieces in taken:
        for encoded in (pieces, snapshot.encode(1 << 20)):
            restored = Model(KeyedState(range(16), 16, KEY))
            for piece in encoded:
                restored.keyed.restore(piece.name, [piece.batch])
            assert restored.found() == expected


def test_many_keys_and_one_large_entry_are_encoded_in_small_parts_and_come_back_whole() -> None:
    many = range(2 * CONVERTED_ROWS + 5)
    keyed = KeyedState(range(1), 1, KEY)
    model = Model(keyed)
    for key in many:
        keyed.set_key(0, (key,))
        model.value.update((key,))
    keyed.set_key(0, (4,))
    model.list.put([(number,) for number in many])
    for number in many:
        model.map.update_value((number,), (number + 1,))
    keyed.set_key(0, (6,))
    model.list.append_value((7,))
    model.map.update_value((7,), (8,))
    restored = Model(KeyedState(range(1), 1, KEY))
    for state, copy in zip(
        (model.value, model.list, model.map), (restored.value, restored.list, restored.map), strict=True
    ):
        blocks = list(state._blocks(state._groups))
        assert [len(block.keys) for block in blocks[:-1]] and max(len(block.keys) for block in blocks) <= CONVERTED_ROWS
        copy.restore([batch for block in blocks for batch in state._batches(block)])
        for (number, key), (same_number, same_key) in zip(state.keys_held(), copy.keys_held(), strict=True):
            assert (number, key) == (same_number, same_key)
    for each in (model, restored):
        each.keyed.set_key(0, (4,))
    assert list(restored.list.get()) == [(number,) for number in many]
    assert list(restored.map.iterator()) == list(model.map.iterator())
    restored.keyed.set_key(0, (6,))
    assert (restored.value.get(), list(restored.list.get())) == ((6,), [(7,)])
