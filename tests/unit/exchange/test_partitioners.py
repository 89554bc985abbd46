"""Partitioners: nothing lost, nothing twice, order kept, and equal keys in one place."""

from __future__ import annotations

import random

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.columnar.hashing import key_groups
from penstock.errors import PipelineError
from penstock.exchange.partitioners import (
    Broadcast,
    Forward,
    Global,
    HashPartitioner,
    Partitioner,
    Rebalance,
    Rescale,
    Shuffle,
    partitioner_for,
    rescale_receivers,
    split_by_receiver,
)
from penstock.ids import KeyGroup
from penstock.protocol.key_groups import owner_of
from penstock.protocol.manifest import Partitioning
from tests.unit.columnar.test_gather import Celsius

EMPTY = pa.record_batch({"k": pa.array([], pa.int64())})


def batch_of(rows: int) -> pa.RecordBatch:
    return pa.record_batch({"row": np.arange(rows), "text": pa.array([str(row) for row in range(rows)])})


def rows_of(batch: pa.RecordBatch) -> list[int]:
    batch.validate(full=True)
    assert batch.column("text").to_pylist() == [str(row) for row in batch.column("row").to_pylist()]
    rows: list[int] = batch.column("row").to_pylist()
    return rows


@given(st.data(), st.sampled_from([1, 2, 3, 5, 8, 200, 300, 70_000]), st.booleans())
def test_a_split_holds_every_row_once_in_its_order(data: st.DataObject, n: int, is_sliced: bool) -> None:
    receivers = data.draw(st.lists(st.integers(0, n - 1), max_size=60))
    whole = batch_of(len(receivers) + 5)
    batch = whole.slice(5) if is_sliced else whole.slice(0, len(receivers))
    first = 5 if is_sliced else 0
    split = split_by_receiver(batch, np.array(receivers, dtype=np.int64), n)
    model: dict[int, list[int]] = {}
    for row, receiver in enumerate(receivers):
        model.setdefault(receiver, []).append(row + first)
    assert [(receiver, rows_of(part)) for receiver, part in split] == sorted(model.items())


@pytest.mark.parametrize("n", [256, 257, 65_536, 65_537])
def test_receivers_with_large_numbers_are_told_apart(n: int) -> None:
    receivers = np.array([n - 1, 0, n // 2, 1, n - 1, n - 2, 0])
    split = split_by_receiver(batch_of(7), receivers, n)
    model = [(0, [1, 6]), (1, [3]), (n // 2, [2]), (n - 2, [5]), (n - 1, [0, 4])]
    assert [(receiver, rows_of(part)) for receiver, part in split] == model


def test_a_batch_for_one_receiver_is_handed_over_as_it_is() -> None:
    batch = batch_of(10)
    ((receiver, part),) = split_by_receiver(batch, np.full(10, 3), 7)
    assert receiver == 3
    assert part is batch


def test_the_parts_of_a_split_share_one_copy() -> None:
    parts = [part for _, part in split_by_receiver(batch_of(1_000), np.arange(1_000) % 6, 6)]
    assert len({part.column("row").buffers()[1].address for part in parts}) == 1


@pytest.mark.parametrize("kind", [pa.string_view(), pa.binary_view()])
def test_a_batch_with_views_is_split_without_changing_its_schema(kind: pa.DataType) -> None:
    texts = pa.array(["a", "b" * 50, None, ""]).cast(kind)
    batch = pa.record_batch({"text": texts, "row": np.arange(4)})
    (_, left), (_, right) = split_by_receiver(batch, np.array([1, 0, 1, 0]), 2)
    assert left.schema == right.schema == batch.schema
    assert [*left.column("text"), *right.column("text")] == [texts[1], texts[3], texts[0], texts[2]]


def test_a_batch_with_a_type_that_has_no_hash_is_split() -> None:
    batch = pa.record_batch({"degrees": pa.ExtensionArray.from_storage(Celsius(), pa.array([20, 21, 22]))})
    (_, left), (_, right) = split_by_receiver(batch, np.array([1, 0, 1]), 2)
    assert left.schema == right.schema == batch.schema
    assert [*left.column(0).to_pylist(), *right.column(0).to_pylist()] == [21, 20, 22]


@given(st.lists(st.none() | st.integers(0, 50), max_size=80), st.integers(1, 9), st.integers(9, 128))
def test_every_row_goes_to_the_owner_of_its_key_group(keys: list[int | None], parallelism: int, groups: int) -> None:
    batch = pa.record_batch({"k": pa.array(keys, pa.int64()), "row": np.arange(len(keys))})
    split = HashPartitioner(["k"], parallelism, groups).split(batch)
    for receiver, part in split:
        owners = {owner_of(KeyGroup(group), parallelism, groups) for group in key_groups(part, ["k"], groups).tolist()}
        assert owners == {receiver}
        assert part.column("row").to_pylist() == sorted(part.column("row").to_pylist())
    assert sorted(row for _, part in split for row in part.column("row").to_pylist()) == list(range(len(keys)))


def test_more_subtasks_than_key_groups_are_refused() -> None:
    with pytest.raises(PipelineError, match="more than the 4 key groups"):
        HashPartitioner(["k"], 5, 4)


def receivers_of(partitioner: Partitioner, batches: int) -> list[list[int]]:
    batch = batch_of(3)
    splits = [partitioner.split(batch) for _ in range(batches)]
    assert all(part is batch for split in splits for _, part in split)
    return [[receiver for receiver, _ in split] for split in splits]


def test_rebalance_takes_turns_from_its_start() -> None:
    assert receivers_of(Rebalance(3, start=4), 5) == [[1], [2], [0], [1], [2]]


def test_an_empty_batch_does_not_take_a_turn() -> None:
    rebalance = Rebalance(3)
    assert rebalance.split(EMPTY) == []
    assert receivers_of(rebalance, 2) == [[0], [1]]


def test_shuffle_reaches_all_and_repeats_with_its_seed() -> None:
    first, again = (receivers_of(Shuffle(4, random.Random(7)), 60) for _ in range(2))
    assert first == again
    assert {receiver for (receiver,) in first} == {0, 1, 2, 3}


def test_broadcast_sends_one_batch_to_all() -> None:
    assert receivers_of(Broadcast(3), 2) == [[0, 1, 2], [0, 1, 2]]


def test_forward_and_global_have_one_receiver() -> None:
    assert receivers_of(Forward(2), 2) == [[2], [2]]
    assert receivers_of(Global(), 2) == [[0], [0]]


def test_rescale_takes_turns_among_its_own_receivers() -> None:
    assert receivers_of(Rescale(1, 2, 5), 4) == [[2], [3], [4], [2]]
    assert receivers_of(Rescale(3, 4, 2), 2) == [[1], [1]]


@given(st.integers(1, 20), st.integers(1, 20))
def test_rescale_reaches_every_receiver_with_as_few_connections_as_possible(senders: int, receivers: int) -> None:
    edges = {(s, r) for s in range(senders) for r in rescale_receivers(s, senders, receivers)}
    assert {s for s, _ in edges} == set(range(senders))
    assert {r for _, r in edges} == set(range(receivers))
    assert len(edges) == max(senders, receivers)


@pytest.mark.parametrize("partitioning", Partitioning)
def test_every_partitioning_has_a_partitioner_that_drops_empty_batches(partitioning: Partitioning) -> None:
    made = partitioner_for(partitioning, sender=1, senders=3, receivers=3, columns=["k"], max_parallelism=16, seed=5)
    assert made.split(EMPTY) == []
    split = made.split(pa.record_batch({"k": np.arange(50)}))
    assert sum(part.num_rows for _, part in split) == (150 if partitioning is Partitioning.BROADCAST else 50)
    assert {receiver for receiver, _ in split} <= {0, 1, 2}


def test_a_forward_edge_between_unequal_parallelism_is_refused() -> None:
    with pytest.raises(PipelineError, match="not 2 to 3"):
        partitioner_for(Partitioning.FORWARD, sender=0, senders=2, receivers=3)


def test_an_edge_without_receivers_is_refused() -> None:
    with pytest.raises(PipelineError, match="at least one receiver"):
        Rebalance(0)
