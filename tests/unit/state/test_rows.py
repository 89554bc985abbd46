"""Row states: the interface of PySpark, snapshots that stand still, and restoring at any parallelism."""

from __future__ import annotations

import datetime
import inspect
import itertools
import math
import threading
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.columnar.hashing import key_groups
from penstock.errors import DataError, PipelineError, ProtocolViolation, RestoreError
from penstock.protocol.key_groups import key_groups_of
from penstock.state import KeyedPiece, KeyedState, ListState, MapState, ValueState
from penstock.state.rows.tuples import TupleType

GROUPS = 16
KEY = pa.schema([("k", pa.int64())])
VALUE = pa.schema([("a", pa.int64()), ("b", pa.string())])
NUMBER = pa.schema([("n", pa.int64())])
KINDS = ["value", "list", "map"]


def group_of(key: int, groups: int = GROUPS) -> int:
    return int(key_groups(pa.record_batch({"k": [key]}), ["k"], groups)[0])


def at(keyed: KeyedState, key: int) -> None:
    keyed.set_key(group_of(key, keyed.max_parallelism), (key,))


def new_state(owned: range = range(GROUPS)) -> KeyedState:
    return KeyedState(owned, GROUPS, KEY)


def registered(keyed: KeyedState, kind: str) -> Any:
    if kind == "value":
        return keyed.value("s", NUMBER)
    return keyed.list("s", NUMBER) if kind == "list" else keyed.map("s", NUMBER, NUMBER)


def put(state: Any, number: int) -> None:
    """One change that depends on what is there."""
    if isinstance(state, ValueState):
        state.update((number,))
    elif isinstance(state, ListState):
        state.append_value((number,))
    else:
        state.update_value((number % 3,), (number,))


def content(keyed: KeyedState, state: Any, keys: range) -> dict[int, Any]:
    found: dict[int, Any] = {}
    for key in keys:
        if group_of(key) in keyed.key_groups:
            at(keyed, key)
            if state.exists():
                found[key] = sorted(state.iterator()) if isinstance(state, MapState) else list(state.get())
    return found


def pieces_of(keyed: KeyedState, target_bytes: int = 1 << 20) -> list[KeyedPiece]:
    return keyed.snapshot().encode(target_bytes)


def through_ipc(batch: pa.RecordBatch) -> pa.RecordBatch:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    (read,) = pa.ipc.open_stream(sink.getvalue())
    return read


# --- the interface ---


@pytest.mark.parametrize(
    ("ours", "theirs"), [(ValueState, "ValueState"), (ListState, "ListState"), (MapState, "MapState")]
)
def test_every_method_of_the_pyspark_handle_is_here_with_its_parameters(ours: type, theirs: str) -> None:
    processor = pytest.importorskip("pyspark.sql.streaming.stateful_processor")
    for name, method in vars(getattr(processor, theirs)).items():
        if not name.startswith("_"):
            wanted = list(inspect.signature(method).parameters)
            assert len(inspect.signature(getattr(ours, name)).parameters) == len(wanted), name


def test_a_value_is_kept_by_key() -> None:
    keyed = new_state()
    state = keyed.value("s", VALUE)
    at(keyed, 1)
    assert (state.exists(), state.get()) == (False, None)
    state.update((1, "x"))
    at(keyed, 2)
    assert (state.exists(), state.get()) == (False, None)
    state.update((2, None))
    state.update((3, None))
    assert state.get() == (3, None)
    at(keyed, 1)
    assert (state.exists(), state.get()) == (True, (1, "x"))
    state.clear()
    state.clear()
    assert (state.exists(), state.get()) == (False, None)


def test_a_list_is_put_appended_to_and_cleared() -> None:
    keyed = new_state()
    state = keyed.list("s", NUMBER)
    at(keyed, 1)
    assert (state.exists(), list(state.get())) == (False, [])
    state.append_value((1,))
    state.append_list([(2,), (3,)])
    state.appendValue((4,))
    state.appendList([(5,)])
    assert list(state.get()) == [(1,), (2,), (3,), (4,), (5,)]
    state.put([(9,)])
    assert (state.exists(), list(state.get())) == (True, [(9,)])
    state.clear()
    assert (state.exists(), list(state.get())) == (False, [])


def test_a_list_may_be_appended_to_while_it_is_read() -> None:
    keyed = new_state()
    state = keyed.list("s", NUMBER)
    at(keyed, 1)
    state.put([(1,), (2,)])
    for row in state.get():
        state.append_value(row)
    assert list(state.get()) == [(1,), (2,), (1,), (2,)]


def test_an_empty_list_is_refused_as_in_spark() -> None:
    keyed = new_state()
    state = keyed.list("s", NUMBER)
    at(keyed, 1)
    for change in (state.put, state.append_list):
        with pytest.raises(DataError, match="list state 's' takes a list with elements"):
            change([])


def test_a_map_is_read_and_changed_by_user_key() -> None:
    keyed = new_state()
    state = keyed.map("s", NUMBER, VALUE)
    at(keyed, 1)
    assert (state.exists(), state.get_value((1,)), state.contains_key((1,))) == (False, None, False)
    state.update_value((1,), (1, "x"))
    state.updateValue((2,), (2, "y"))
    assert (state.exists(), state.getValue((2,)), state.containsKey((1,))) == (True, (2, "y"), True)
    assert list(state.iterator()) == [((1,), (1, "x")), ((2,), (2, "y"))]
    assert (list(state.keys()), list(state.values())) == ([(1,), (2,)], [(1, "x"), (2, "y")])
    state.remove_key((1,))
    state.removeKey((7,))
    assert list(state.keys()) == [(2,)]
    for key in list(state.keys()):
        state.remove_key(key)
    assert not state.exists()
    state.update_value((1,), (1, "x"))
    state.clear()
    assert not state.exists()


def test_a_nan_is_found_again_as_a_key() -> None:
    keyed = KeyedState(range(GROUPS), GROUPS, pa.schema([("k", pa.float64())]))
    state = keyed.map("s", pa.schema([("f", pa.float32())]), NUMBER)
    keyed.set_key(3, (float("nan"),))
    state.update_value((float("nan"),), (1,))
    keyed.set_key(3, (float("-nan"),))
    assert state.get_value((-math.nan,)) == (1,)


WRONG: list[Callable[[KeyedState], Any]] = [
    lambda keyed: keyed.value("name", VALUE).update((1.5, "x")),
    lambda keyed: keyed.value("name", VALUE).update(("1", "x")),
    lambda keyed: keyed.value("name", VALUE).update((True, "x")),
    lambda keyed: keyed.value("name", VALUE).update((2**63, "x")),
    lambda keyed: keyed.value("name", VALUE).update((1, b"x")),
    lambda keyed: keyed.value("name", VALUE).update((1,)),
    lambda keyed: keyed.value("name", VALUE).update((1, "x", 2)),
    lambda keyed: keyed.value("name", VALUE).update(7),  # type: ignore[arg-type]
    lambda keyed: keyed.value("name", pa.schema([pa.field("a", pa.int8(), nullable=False)])).update((None,)),
    lambda keyed: keyed.value("name", pa.schema([("a", pa.int8())])).update((300,)),
    lambda keyed: keyed.list("name", VALUE).append_value((1, 2)),
    lambda keyed: keyed.list("name", VALUE).put([(1, "x"), (1, 2)]),
    lambda keyed: keyed.list("name", VALUE).put(5),  # type: ignore[arg-type]
    lambda keyed: keyed.map("name", NUMBER, VALUE).update_value(("x",), (1, "x")),
    lambda keyed: keyed.map("name", NUMBER, VALUE).update_value((1,), (1, 1)),
    lambda keyed: keyed.map("name", NUMBER, VALUE).get_value(("x",)),
]


@pytest.mark.parametrize("change", WRONG)
def test_a_value_of_another_type_is_refused_by_the_name_of_its_state(change: Callable[[KeyedState], Any]) -> None:
    keyed = new_state()
    at(keyed, 1)
    with pytest.raises(DataError, match="state 'name'"):
        change(keyed)
    assert pieces_of(keyed) == []


def test_a_value_reads_the_same_before_and_after_a_restore() -> None:
    schema = pa.schema(
        [("f", pa.float32()), ("t", pa.timestamp("us", "UTC")), ("l", pa.list_(pa.int32())), ("b", pa.binary())]
    )
    keyed, again = new_state(), new_state()
    moment = datetime.datetime(2024, 1, 2, 3, 4, 5, 6, datetime.UTC)
    state, restored = keyed.value("s", schema), again.value("s", schema)
    at(keyed, 1)
    state.update((0.1, moment, [1, 2], bytearray(b"x")))
    before = state.get()
    again.restore("s", [piece.batch for piece in pieces_of(keyed)])
    at(again, 1)
    assert restored.get() == before
    assert before is not None
    assert before[1:] == (moment, [1, 2], b"x")


def test_keys_and_values_of_views_are_restored_by_another_subtask() -> None:
    schema = pa.schema([("k", pa.string_view())])
    keyed = KeyedState(range(GROUPS), GROUPS, schema)
    for key in map(str, range(40)):
        keyed.set_key(int(key_groups(pa.record_batch({"k": [key]}), ["k"], GROUPS)[0]), (key,))
        keyed.value("s", schema).update((key * 9,))
    restored = KeyedState(range(3, 9), GROUPS, schema)
    state = restored.value("s", schema)
    assert 0 < restored.restore("s", [piece.batch for piece in pieces_of(keyed)]) < 40
    own = next(key for key in map(str, range(40)) if key_groups(pa.record_batch({"k": [key]}), ["k"], GROUPS)[0] == 5)
    restored.set_key(5, (own,))
    assert state.get() == (own * 9,)


def test_changing_a_nested_value_that_was_read_changes_no_state() -> None:
    keyed = new_state()
    state = keyed.value("s", pa.schema([("l", pa.list_(pa.int32()))]))
    at(keyed, 1)
    mine = [1]
    state.update((mine,))
    mine.append(2)
    got = state.get()
    assert got is not None
    got[0].append(3)
    assert state.get() == ([1],)


# --- against a model ---

changes = st.lists(
    st.tuples(st.integers(0, 12), st.sampled_from(["put", "put", "put", "clear", "reset"]), st.integers(0, 99))
)


def apply(keyed: KeyedState, state: Any, model: dict[int, Any], change: tuple[int, str, int]) -> None:
    """Change state and model alike; the model is plain Python."""
    key, what, number = change
    at(keyed, key)
    if what == "clear":
        state.clear()
        model.pop(key, None)
    elif isinstance(state, ValueState):
        state.update((number,))
        model[key] = [number]
    elif isinstance(state, ListState):
        if what == "reset":
            state.put([(number,)])
            model[key] = [(number,)]
        else:
            state.append_value((number,))
            model[key] = [*model.get(key, []), (number,)]
    elif what == "reset":
        state.remove_key((number % 3,))
        left = [entry for entry in model.pop(key, []) if entry[0] != (number % 3,)]
        if left:
            model[key] = left
    else:
        state.update_value((number % 3,), (number,))
        entries = dict(model.get(key, [])) | {(number % 3,): (number,)}
        model[key] = sorted(entries.items())


@pytest.mark.parametrize("kind", KINDS)
@given(first=changes, second=changes)
def test_a_snapshot_stands_still_while_the_state_goes_on(
    kind: str, first: list[tuple[int, str, int]], second: list[tuple[int, str, int]]
) -> None:
    keyed = new_state()
    state = registered(keyed, kind)
    model: dict[int, Any] = {}
    for change in first:
        apply(keyed, state, model, change)
    then = dict(model)
    snapshot = keyed.snapshot()
    for change in second:
        apply(keyed, state, model, change)
    assert content(keyed, state, range(13)) == model

    restored = new_state()
    copy = registered(restored, kind)
    restored.restore("s", [through_ipc(piece.batch) for piece in snapshot.encode(200)])
    assert content(restored, copy, range(13)) == then


@pytest.mark.parametrize("kind", KINDS)
@given(changes=changes, old=st.integers(1, 5), new=st.integers(1, 7))
def test_restored_at_any_parallelism_each_row_has_one_owner(
    kind: str, changes: list[tuple[int, str, int]], old: int, new: int
) -> None:
    model: dict[int, Any] = {}
    pieces: list[KeyedPiece] = []
    for index in range(old):
        keyed = new_state(key_groups_of(index, old, GROUPS))
        state = registered(keyed, kind)
        for change in changes:
            if group_of(change[0]) in keyed.key_groups:
                apply(keyed, state, model, change)
        pieces += pieces_of(keyed, 60)

    union: dict[int, Any] = {}
    for index in range(new):
        restored = new_state(key_groups_of(index, new, GROUPS))
        state = registered(restored, kind)
        rows = restored.restore("s", [through_ipc(piece.batch) for piece in pieces])
        mine = content(restored, state, range(13))
        assert rows == sum(len(entry) for entry in mine.values())
        assert not mine.keys() & union.keys()
        union |= mine
    assert union == model


@pytest.mark.parametrize("kind", KINDS)
def test_a_snapshot_is_encoded_in_a_thread_while_the_mailbox_writes(kind: str) -> None:
    keyed = new_state()
    state = registered(keyed, kind)
    for round_ in range(5):
        for key in range(300):
            at(keyed, key)
            put(state, round_)
        then = content(keyed, state, range(300))
        snapshot = keyed.snapshot()
        found: list[list[KeyedPiece]] = []
        thread = threading.Thread(target=lambda into, what: into.append(what.encode(1_000)), args=(found, snapshot))
        thread.start()
        for key in range(300):
            at(keyed, key)
            if key % 5 == 0:
                state.clear()
            put(state, 1_000 + key)
        thread.join()
        restored = new_state()
        copy = registered(restored, kind)
        restored.restore("s", [piece.batch for piece in found[0]])
        assert content(restored, copy, range(300)) == then


# --- pieces ---


@given(st.integers(1, 2_000), st.integers(0, 120))
def test_pieces_are_cut_between_key_groups_and_sorted(target_bytes: int, keys: int) -> None:
    keyed = new_state()
    state = keyed.list("s", NUMBER)
    for key in range(keys):
        at(keyed, key)
        state.append_list([(number,) for number in range(key % 4 + 1)])
    pieces = pieces_of(keyed, target_bytes)
    stored = [group for piece in pieces for group in piece.batch.column("key_group").to_pylist()]
    assert stored == sorted(stored)
    assert len(stored) == sum(piece.rows for piece in pieces) == sum(key % 4 + 1 for key in range(keys))
    for piece in pieces:
        groups = piece.batch.column("key_group").to_pylist()
        assert (piece.first, piece.end, piece.rows) == (groups[0], groups[-1] + 1, piece.batch.num_rows)
    assert all(left.end <= right.first for left, right in itertools.pairwise(pieces))


def test_a_small_target_makes_a_piece_of_each_key_group_and_a_large_one_a_single_piece() -> None:
    keyed = new_state()
    state = keyed.value("s", NUMBER)
    for key in range(500):
        at(keyed, key)
        state.update((key,))
    assert len(pieces_of(keyed, 1)) == GROUPS
    assert len(pieces_of(keyed, 1 << 30)) == 1
    total = sum(piece.batch.nbytes for piece in pieces_of(keyed, 1))
    assert 3 <= len(pieces_of(keyed, total // 4)) <= 5


def test_more_rows_than_one_block_are_encoded_in_order() -> None:
    keyed = new_state()
    state = keyed.list("s", NUMBER)
    at(keyed, 1)
    state.put([(number,) for number in range(10_000)])
    at(keyed, 2)
    state.put([(number,) for number in range(5_000)])
    restored = new_state()
    again = restored.list("s", NUMBER)
    assert restored.restore("s", [piece.batch for piece in pieces_of(keyed)]) == 15_000
    at(restored, 1)
    assert list(again.get()) == [(number,) for number in range(10_000)]


# --- the container ---


def test_the_version_changes_with_the_state_and_only_then() -> None:
    keyed = new_state()
    first, second = keyed.value("first", NUMBER), keyed.list("second", NUMBER)
    at(keyed, 1)
    first.update((1,))
    second.append_value((1,))
    before = keyed.snapshot()
    first.get()
    list(second.get())
    at(keyed, 2)
    first.clear()
    second.append_value((2,))
    after = keyed.snapshot()
    assert after.names == ("first", "second")
    assert after.version("first") == before.version("first")
    assert after.version("second") != before.version("second")
    assert {piece.name for piece in after.encode(100, only={"second"})} == {"second"}


def test_asking_twice_for_a_state_returns_the_same_one() -> None:
    keyed = new_state()
    assert keyed.value("v", NUMBER) is keyed.value("v", NUMBER)
    assert keyed.map("m", NUMBER, VALUE) is keyed.map("m", NUMBER, VALUE)
    for other in (
        lambda: keyed.value("v", VALUE),
        lambda: keyed.list("v", NUMBER),
        lambda: keyed.map("m", NUMBER, NUMBER),
    ):
        with pytest.raises(PipelineError, match="used twice"):
            other()


def test_a_removed_state_is_gone() -> None:
    keyed = new_state()
    at(keyed, 1)
    keyed.value("s", NUMBER).update((1,))
    keyed.remove("s")
    keyed.remove("s")
    assert pieces_of(keyed) == []
    assert not keyed.value("s", NUMBER).exists()


def test_a_key_of_another_subtask_is_a_bug() -> None:
    keyed = new_state(range(4, 8))
    with pytest.raises(ProtocolViolation, match="key group 8 is not among 4 … 7"):
        keyed.set_key(8, (1,))


def test_a_write_without_a_key_is_a_bug() -> None:
    keyed = new_state()
    with pytest.raises(DataError, match="was changed where there is no key, such as in init"):
        keyed.value("s", NUMBER).update((1,))
    with pytest.raises(ProtocolViolation, match="before its columns were declared"):
        KeyedState(range(GROUPS), GROUPS).set_key(1, (1,))


def test_the_key_may_be_declared_later_and_by_what_is_restored() -> None:
    keyed = new_state()
    at(keyed, 1)
    keyed.value("s", NUMBER).update((7,))
    restored = KeyedState(range(GROUPS), GROUPS)
    state = restored.value("s", NUMBER)
    restored.restore("s", [piece.batch for piece in pieces_of(keyed)])
    restored.declare_key(KEY)
    at(restored, 1)
    assert state.get() == (7,)
    with pytest.raises(PipelineError, match="cannot have"):
        restored.declare_key(VALUE)


# --- what cannot be restored is an error (I8) ---


def one_piece() -> pa.RecordBatch:
    keyed = new_state()
    for key in range(50):
        at(keyed, key)
        keyed.value("s", NUMBER).update((key,))
    (piece,) = pieces_of(keyed)
    return piece.batch


def test_a_state_that_the_operator_has_no_more_cannot_be_restored() -> None:
    with pytest.raises(RestoreError, match="'s'"):
        new_state().restore("s", [one_piece()])


def test_a_state_of_another_kind_or_type_cannot_be_restored() -> None:
    for register in (
        lambda keyed: keyed.value("s", VALUE),
        lambda keyed: keyed.map("s", NUMBER, NUMBER),
        lambda keyed: keyed.value("s", pa.schema([("n", pa.int32())])),
    ):
        keyed = new_state()
        register(keyed)
        with pytest.raises(RestoreError, match="state 's' cannot be restored"):
            keyed.restore("s", [one_piece()])


def test_a_key_of_another_type_cannot_be_restored() -> None:
    keyed = KeyedState(range(GROUPS), GROUPS, pa.schema([("k", pa.int32())]))
    keyed.value("s", NUMBER)
    with pytest.raises(RestoreError, match="state 's' cannot be restored"):
        keyed.restore("s", [one_piece()])


def test_a_checkpoint_with_other_key_groups_cannot_be_restored() -> None:
    keyed = KeyedState(range(32), 32, KEY)
    keyed.value("s", NUMBER)
    with pytest.raises(RestoreError, match="another max_parallelism than 32"):
        keyed.restore("s", [one_piece()])


def test_a_key_that_comes_twice_cannot_be_restored() -> None:
    for kind in ("value", "map"):
        keyed, again = new_state(), new_state()
        at(keyed, 1)
        put(registered(keyed, kind), 5)
        registered(again, kind)
        batches = [piece.batch for piece in pieces_of(keyed)]
        again.restore("s", batches)
        with pytest.raises(RestoreError, match="twice"):
            again.restore("s", batches)


@pytest.mark.parametrize(
    "damage",
    [
        lambda batch: batch.select(["key", "value"]),
        lambda batch: batch.set_column(0, "key_group", pa.nulls(batch.num_rows, pa.int32())),
        lambda batch: batch.set_column(0, "key_group", batch.column(0).cast(pa.int64())),
        lambda batch: batch.set_column(1, "key", pa.nulls(batch.num_rows, batch.schema.types[1])),
        lambda batch: batch.set_column(1, "key", batch.column(0)),
    ],
)
def test_a_batch_that_is_not_of_our_making_cannot_be_restored(
    damage: Callable[[pa.RecordBatch], pa.RecordBatch],
) -> None:
    keyed = new_state()
    keyed.value("s", NUMBER)
    with pytest.raises(RestoreError, match="'s'"):
        keyed.restore("s", [damage(one_piece())])


def test_restoring_after_a_snapshot_leaves_the_snapshot_as_it_was() -> None:
    keyed, more = new_state(), new_state()
    state, other = keyed.list("s", NUMBER), more.list("s", NUMBER)
    at(keyed, 1)
    state.append_value((1,))
    at(more, 1)
    other.append_value((2,))
    snapshot = keyed.snapshot()
    keyed.restore("s", [piece.batch for piece in pieces_of(more)])
    assert list(state.get()) == [(1,), (2,)]
    assert sum(piece.rows for piece in snapshot.encode(100)) == 1


# --- more than fits into one batch ---


def restored_into(keyed: KeyedState, pieces: list[KeyedPiece]) -> KeyedState:
    for piece in pieces:
        keyed.restore(piece.name, [through_ipc(piece.batch)])
    return keyed


@pytest.fixture
def small_batches(monkeypatch: pytest.MonkeyPatch) -> int:
    """Batches of a few hundred bytes stand for those of two gigabytes."""
    monkeypatch.setattr("penstock.state.pieces.PIECE_BYTES_MAX", 500)
    return 500


def test_a_key_group_of_rows_that_does_not_fit_into_one_batch_is_cut_into_several(small_batches: int) -> None:
    keyed = KeyedState(range(0, 2), 2)
    rows = keyed.rows("s", ["k"])
    for n in range(40):
        rows.append(pa.record_batch({"k": [n % 7], "n": [n], "text": ["x" * 50]}))
    pieces = keyed.snapshot().encode(1 << 20)
    assert len(pieces) > 3
    assert all(piece.batch.nbytes <= 2 * small_batches for piece in pieces)
    firsts = [piece.first for piece in pieces]
    assert firsts != sorted(firsts), "no more rows are sorted at once than fit into a batch"
    again = KeyedState(range(0, 2), 2)
    again.rows("s", ["k"])
    restored_into(again, pieces)
    found = [row for batch in again.rows("s", ["k"]).get() for row in batch.to_pylist()]
    for k in range(7):
        assert [row["n"] for row in found if row["k"] == k] == [n for n in range(40) if n % 7 == k], "in order (I2)"


def test_a_key_group_of_values_that_does_not_fit_into_one_batch_is_cut_into_several(small_batches: int) -> None:
    def made() -> tuple[KeyedState, ValueState]:
        keyed = KeyedState(range(0, 1), 1, pa.schema([("k", pa.string())]))
        return keyed, keyed.value("s", pa.schema([("text", pa.string())]))

    keyed, value = made()
    for n in range(9_000):
        keyed.set_key(0, (f"key {n}",))
        value.update((f"{n}",))
    pieces = keyed.snapshot().encode(1 << 30)
    assert len(pieces) > 1
    again, values = made()
    restored_into(again, pieces)
    for n in range(9_000):
        again.set_key(0, (f"key {n}",))
        assert values.get() == (f"{n}",)


def test_values_of_a_block_that_do_not_fit_into_one_column_are_written_in_several(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    keyed = KeyedState(range(0, 1), 1, pa.schema([("k", pa.int64())]))
    state = keyed.map("s", pa.schema([("u", pa.int64())]), pa.schema([("text", pa.string())]))
    for n in range(30):
        keyed.set_key(0, (n,))
        state.update_value((n,), (f"{n}",))
    whole = TupleType.array

    def array(self: TupleType, rows: Any) -> Any:
        """As Arrow does beyond 2 GiB: an array in chunks, which no batch takes."""
        made = whole(self, rows)
        return made if len(rows) <= 4 else pa.chunked_array([made])

    monkeypatch.setattr(TupleType, "array", array)
    pieces = keyed.snapshot().encode(1 << 20)
    monkeypatch.undo()
    again = KeyedState(range(0, 1), 1, pa.schema([("k", pa.int64())]))
    state = again.map("s", pa.schema([("u", pa.int64())]), pa.schema([("text", pa.string())]))
    restored_into(again, pieces)
    for n in range(30):
        again.set_key(0, (n,))
        assert list(state.iterator()) == [((n,), (f"{n}",))]


def test_adding_a_batch_does_not_copy_those_that_are_there() -> None:
    rows = KeyedState(range(0, 1), 1).rows("s", ["k"])
    batch = pa.record_batch({"k": [1]})
    held = rows._batches
    snapshots = []
    for _ in range(100):
        rows.append(batch)
        snapshots.append(rows.snapshot())
    assert rows._batches is held
    assert [sum(piece.rows for piece in snapshot.encode(1 << 20)) for snapshot in snapshots] == list(range(1, 101))


def test_rows_that_are_replaced_stay_in_the_snapshot_of_before() -> None:
    rows = KeyedState(range(0, 1), 1).rows("s", ["k"])
    rows.append(pa.record_batch({"k": [1, 2]}))
    snapshot = rows.snapshot()
    rows.append(pa.record_batch({"k": [3]}))
    rows.put([pa.record_batch({"k": [4, 5, 6, 7]})])
    assert [piece.rows for piece in snapshot.encode(1 << 20)] == [2]
    assert [piece.rows for piece in rows.snapshot().encode(1 << 20)] == [4]


def test_rows_of_another_subtasks_key_groups_are_not_written() -> None:
    rows = KeyedState(range(0, 1), 128).rows("s", ["k"])
    rows.append(pa.record_batch({"k": list(range(50))}))
    with pytest.raises(ProtocolViolation, match="but its subtask owns 0 … 0"):
        rows.snapshot().encode(1 << 20)
