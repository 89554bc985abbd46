"""A kind of state that only this file knows is registered, captured, restored, rescaled and counted like our own."""

from __future__ import annotations

import functools
from collections.abc import Iterable
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from penstock import DataError, Pipeline
from penstock.columnar.hashing import key_groups
from penstock.errors import PipelineError
from penstock.graph.names import Keeps
from penstock.model.aggregates import Aggregate
from penstock.model.windows import FixedWindows
from penstock.operators.contract import Emit
from penstock.operators.named import NamedOperator
from penstock.protocol.key_groups import key_groups_of
from penstock.state import KeyedState
from penstock.state.contract import StateOwner
from penstock.state.pieces import KEY, KEY_GROUP, VALUE, KeyedPiece, cut, own_rows
from penstock.testing import CHECKPOINT, CollectSink, ListSource, run

GROUPS = 16
NUMBER = pa.schema([("n", pa.int64())])


@dataclass(frozen=True, slots=True)
class DistinctDescriptor:
    """The distinct keys that have come, as a set."""

    name: str
    key: str

    def create(self, owner: StateOwner) -> DistinctState:
        return DistinctState(self.name, self.key, owner.key_groups, owner.max_parallelism)


class DistinctState:
    def __init__(self, name: str, key: str, owned: range, max_parallelism: int) -> None:
        self.name = name
        self.version = 0
        self._key = key
        self._owned = owned
        self._max_parallelism = max_parallelism
        self._keys: frozenset[int] = frozenset()

    @property
    def declared(self) -> str:
        return f"distinct {self._key}"

    @property
    def state_bytes(self) -> int:
        return 8 * len(self._keys)

    def add(self, keys: Iterable[int]) -> set[int]:
        """Those that are new."""
        new = set(keys) - self._keys
        self._keys |= new
        self.version += 1
        return new

    def snapshot(self) -> DistinctSnapshot:
        return DistinctSnapshot(self, self.version, self._keys)

    def restore(self, batches: Iterable[pa.RecordBatch]) -> int:
        restored = 0
        for batch in batches:
            mine = own_rows(self.name, batch, self._owned, self._max_parallelism, lambda _: [self._key])
            self.add(mine.column(1).field(0).to_pylist())
            restored += mine.num_rows
        return restored

    def encode(self, keys: frozenset[int], target_bytes: int) -> list[KeyedPiece]:
        batch = pa.record_batch({self._key: pa.array(sorted(keys), pa.int64())})
        groups = pa.array(key_groups(batch, [self._key], self._max_parallelism))
        table = pa.table({KEY_GROUP: groups, KEY: batch.to_struct_array(), VALUE: pa.nulls(len(groups))})
        return cut(self.name, table.sort_by(KEY_GROUP), target_bytes)


class DistinctSnapshot:
    def __init__(self, state: DistinctState, version: int, keys: frozenset[int]) -> None:
        self.version = version
        self._state = state
        self._keys = keys

    def encode(self, target_bytes: int) -> list[KeyedPiece]:
        return self._state.encode(self._keys, target_bytes)


def test_a_kind_of_a_test_is_captured_and_restored_by_key_group() -> None:
    keyed = KeyedState(range(GROUPS), GROUPS)
    state = keyed.register(DistinctDescriptor("seen", "k"))
    state.add(range(100))
    taken = keyed.snapshot()
    state.add([1_000])
    pieces = taken.encode(64)
    assert len(pieces) > 1
    halves = [KeyedState(key_groups_of(index, 2, GROUPS), GROUPS) for index in range(2)]
    restored = [half.register(DistinctDescriptor("seen", "k")) for half in halves]
    for piece in pieces:
        for half in halves:
            half.restore(piece.name, [piece.batch])
    # I9: each key is in one of them, so the other one does not know it; and the key behind the snapshot is in none.
    unknown = [each.add([*range(100), 1_000]) for each in restored]
    assert unknown[0] & unknown[1] == {1_000}
    assert unknown[0] | unknown[1] == {*range(100), 1_000}
    assert 1 < len(unknown[0]) < 100
    assert keyed.state_bytes == 8 * 101
    assert keyed.declared == {"seen": "distinct k"}


def test_equal_descriptors_mean_one_state_and_others_of_its_name_are_refused() -> None:
    keyed = KeyedState(range(GROUPS), GROUPS)
    state = keyed.register(DistinctDescriptor("seen", "k"))
    assert keyed.register(DistinctDescriptor("seen", "k")) is state
    with pytest.raises(PipelineError, match="'seen' is used twice"):
        keyed.register(DistinctDescriptor("seen", "other"))
    with pytest.raises(PipelineError, match="'seen' is used twice"):
        keyed.value("seen", NUMBER)


def test_a_state_may_be_asked_for_in_types_that_are_kept_alike() -> None:
    keyed = KeyedState(range(GROUPS), GROUPS, NUMBER)
    encoded = pa.schema([("text", pa.dictionary(pa.int32(), pa.string()))])
    assert keyed.value("v", encoded) is keyed.value("v", pa.schema([("text", pa.string())]))


def test_a_name_is_free_again_when_its_state_is_removed() -> None:
    keyed = KeyedState(range(GROUPS), GROUPS, NUMBER)
    keyed.value("v", NUMBER)
    keyed.remove("v")
    assert keyed.register(DistinctDescriptor("v", "n")).add([1]) == {1}
    assert keyed.removed == frozenset()


def test_rows_of_a_state_that_was_removed_cannot_be_used() -> None:
    keyed = KeyedState(range(GROUPS), GROUPS)
    rows = keyed.rows("r", ["k"])
    rows.append(pa.record_batch({"k": [1]}))
    keyed.remove("r")
    for use in (rows.get, lambda: rows.put([]), lambda: rows.append(pa.record_batch({"k": [1]}))):
        with pytest.raises(DataError, match="state 'r' was deleted"):
            use()


class Distinct(NamedOperator):
    """Lets the first record of each key pass."""

    def setup(self) -> None:
        self._seen = self.context.keyed.register(DistinctDescriptor("seen", "k"))

    def work(self, batch: pa.RecordBatch, source: int, emit: Emit) -> None:
        new = self._seen.add(batch.column("k").to_pylist())
        emit(pa.record_batch({"k": pa.array(sorted(new), pa.int64())}))


def test_an_operator_with_a_kind_of_a_test_survives_crashes_and_a_rescale() -> None:
    rows = [{"k": n % 97} for n in range(3_000)]
    marked = [item for n in range(0, 3_000, 250) for item in (*rows[n : n + 250], CHECKPOINT)]
    pipeline, sink = Pipeline("p"), CollectSink()
    keyed = pipeline.source(ListSource(marked, splits=4, batch_rows=20)).key_by("k")
    keyed._node("distinct", functools.partial(Distinct), "distinct", None, keeps=Keeps.KEYS).sink(sink)
    first = run(pipeline, parallelism=2, workers=2, crash_after_checkpoints=[1], until=lambda: len(sink.rows()) > 50)
    assert first.restarts == 1
    run(pipeline, parallelism=3, workers=3, store=first.store)
    assert sorted(row["k"] for row in sink.rows()) == list(range(97))


# --- bytes ---


def test_every_kind_of_ours_counts_its_bytes() -> None:
    keyed = KeyedState(range(GROUPS), GROUPS, NUMBER)
    total = [Aggregate("sum", "v", "total")]
    batch = pa.record_batch({"k": range(5_000), "v": range(5_000), "t": [n // 10 for n in range(5_000)]})
    sizes = {"nothing": keyed.state_bytes}
    keyed.aggregate("a", ["k"], total).update(batch)
    sizes["aggregate"] = keyed.state_bytes - sum(sizes.values())
    keyed.windows("w", ["k"], total, FixedWindows(100, 10), "t").add(batch)
    sizes["windows"] = keyed.state_bytes - sum(sizes.values())
    keyed.rows("r", ["k"]).append(batch)
    sizes["rows"] = keyed.state_bytes - sum(sizes.values())
    value, many, entries = keyed.value("v", NUMBER), keyed.list("l", NUMBER), keyed.map("m", NUMBER, NUMBER)
    groups = key_groups(batch.select(["k"]), ["k"], GROUPS).tolist()
    for key, group in enumerate(groups):
        keyed.set_key(group, (key,))
        value.update((key,))
    sizes["value"] = keyed.state_bytes - sum(sizes.values())
    keyed.set_key(groups[0], (0,))
    many.append_list([(n,) for n in range(10_000)])
    sizes["list"] = keyed.state_bytes - sum(sizes.values())
    entries.update_value((1,), (2,))
    sizes["map"] = keyed.state_bytes - sum(sizes.values())
    # The numbers and the keys alone are 16 bytes for each of 5,000 rows; a tuple of Python takes far more.
    assert sizes["nothing"] == 0
    assert sizes["aggregate"] >= 80_000 and sizes["windows"] >= 80_000 and sizes["value"] >= 5_000 * 80
    assert sizes["rows"] == pc.sum(pa.array([column.nbytes for column in batch.columns])).as_py()
    assert sizes["list"] >= 10_000 * 40
    assert 100 <= sizes["map"] <= 5_000


def test_bytes_of_single_keys_are_estimated_from_a_few_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    keyed = KeyedState(range(GROUPS), GROUPS, NUMBER)
    value = keyed.value("v", NUMBER)
    for key in range(4_000):
        keyed.set_key(key % GROUPS, (key,))
        value.update((key,))
    looks = []
    from penstock.state.rows import memory

    whole = memory.object_bytes
    monkeypatch.setattr(memory, "object_bytes", lambda each: looks.append(each) or whole(each))
    assert keyed.state_bytes > 4_000 * 80
    assert len(looks) < 1_000
    for key in range(4_000):
        keyed.set_key(key % GROUPS, (key,))
        value.clear()
    assert keyed.state_bytes == 0
