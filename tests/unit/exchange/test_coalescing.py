"""Which batches can be put together, and that nothing is changed by it."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from penstock.exchange.coalescing import Joining, can_join
from penstock.mailbox.frames import BatchFrame
from penstock.operators.contract import Emit
from tests.unit.mailbox.fake_ports import GENERATION, LEFT, Bench, Seen, join

WORDS = pa.dictionary(pa.int8(), pa.string())

JOINED: dict[str, tuple[pa.DataType, list[Any]]] = {
    "int": (pa.int64(), [1, None, 3]),
    "float": (pa.float32(), [0.5, None, 1.5]),
    "bool": (pa.bool_(), [True, None, False]),
    "null": (pa.null(), [None, None, None]),
    "string": (pa.string(), ["a", None, ""]),
    "large string": (pa.large_string(), ["a", None, "ccc"]),
    "string view": (pa.string_view(), ["a", None, "longer than it would be inline"]),
    "binary": (pa.binary(), [b"a", None, b""]),
    "fixed binary": (pa.binary(2), [b"ab", None, b"cd"]),
    "decimal": (pa.decimal128(5, 2), [None, None, None]),
    "timestamp": (pa.timestamp("us", "UTC"), [None, None, None]),
    "struct": (pa.struct([("a", pa.int64()), ("b", pa.string())]), [{"a": 1, "b": "x"}, None, {"a": None, "b": "y"}]),
    "list": (pa.list_(pa.int64()), [[1, 2], None, []]),
    "large list": (pa.large_list(pa.string()), [["a"], None, ["b", None]]),
    "fixed list": (pa.list_(pa.int64(), 2), [[1, 2], None, [3, 4]]),
    "map": (pa.map_(pa.string(), pa.int64()), [[("a", 1)], None, [("b", 2), ("c", None)]]),
    "nested": (pa.list_(pa.struct([("m", pa.map_(pa.string(), pa.int64()))])), [[{"m": [("a", 1)]}], None, []]),
}

APART: dict[str, pa.Array] = {
    "dictionary": pa.array(["a", "b", "a"], WORDS),
    "dictionary in a list": pa.array([["a"], None, ["b"]], pa.list_(WORDS)),
    "dictionary in a struct": pa.array([{"w": "a"}, None, {"w": "b"}], pa.struct([("n", pa.int64()), ("w", WORDS)])),
    "dictionary in a map": pa.array([[("a", "x")], None, []], pa.map_(pa.string(), WORDS)),
    "dictionary far below": pa.array([[[{"w": "a"}]], None, []], pa.list_(pa.list_(pa.struct([("w", WORDS)])))),
    "runs": pa.RunEndEncodedArray.from_arrays(pa.array([2, 3], pa.int32()), pa.array([7, 8])),
    "dense union": pa.UnionArray.from_dense(
        pa.array([0, 1, 0], pa.int8()), pa.array([0, 0, 1], pa.int32()), [pa.array([1, 2]), pa.array(["a"])]
    ),
    "sparse union": pa.UnionArray.from_sparse(
        pa.array([0, 1, 0], pa.int8()), [pa.array([1, 2, 3]), pa.array(["a", "b", "c"])]
    ),
    "extension": pa.ExtensionArray.from_storage(pa.uuid(), pa.array([bytes(16)] * 3, pa.binary(16))),
    "extension in a list": pa.ListArray.from_arrays(
        pa.array([0, 1, 1, 2], pa.int32()),
        pa.ExtensionArray.from_storage(pa.uuid(), pa.array([bytes(16)] * 2, pa.binary(16))),
    ),
}


class Kept(Seen):
    """Keeps the batches themselves."""

    def __init__(self) -> None:
        super().__init__()
        self.batches: list[pa.RecordBatch] = []

    def process(self, batch: pa.RecordBatch, source: int, emit: Emit) -> None:
        self.batches.append(batch)


def called_with(batches: list[pa.RecordBatch]) -> list[pa.RecordBatch]:
    """What an operator is given if these wait on one channel."""
    kept = Kept()
    bench = Bench(join(kept)).started()
    for batch in batches:
        bench.worker.deliver(BatchFrame(GENERATION, bench.channel(LEFT), batch, 1))
    bench.work()
    assert bench.worker.failure is None
    return kept.batches


@pytest.mark.parametrize("name", JOINED)
def test_what_is_joined_equals_its_parts_one_after_the_other(name: str) -> None:
    kind, numbers = JOINED[name]
    whole = pa.record_batch({"v": pa.array([1, 2, 3]), "c": pa.array(numbers, kind)})
    assert can_join(whole.schema)
    # Slices too: they begin somewhere in the buffers of another batch.
    parts = [whole, whole.slice(1), whole.slice(0, 0), whole.slice(1, 1), whole]
    (joined,) = called_with(parts)
    joined.validate(full=True)
    assert joined.schema == whole.schema
    assert joined.to_pylist() == [row for part in parts for row in part.to_pylist()]


@pytest.mark.parametrize("name", APART)
def test_what_cannot_be_joined_is_given_as_it_came(name: str) -> None:
    batch = pa.record_batch({"v": pa.array([1, 2, 3]), "c": APART[name]})
    assert not can_join(batch.schema)
    given = called_with([batch, batch.slice(1), batch])
    assert [each.to_pylist() for each in given] == [each.to_pylist() for each in (batch, batch.slice(1), batch)]


def test_one_column_decides_for_all_of_them() -> None:
    assert can_join(pa.schema([("a", pa.int64()), ("b", pa.string())]))
    assert not can_join(pa.schema([("a", pa.int64()), ("b", WORDS)]))
    assert can_join(pa.schema([]))


def test_the_answer_is_that_of_the_schema_that_is_asked_for() -> None:
    joining = Joining()
    plain, encoded = pa.schema([("a", pa.string())]), pa.schema([("a", WORDS)])
    assert [joining.fits(schema) for schema in (plain, plain, encoded, encoded, plain)] == [
        True,
        True,
        False,
        False,
        True,
    ]
