"""Records of every Arrow type pass every part of the engine: exchanges, state, capture, and all that at another
parallelism. Whatever Arrow itself cannot do with a type is done in `columnar`."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from penstock import GeneratorSource, Pipeline
from penstock.columnar.grouping import group
from penstock.errors import DataError
from penstock.exchange.codec import decode_items, encode_batches, encode_items
from penstock.exchange.items import BatchItem, WatermarkItem
from penstock.exchange.partitioners import HashPartitioner
from penstock.exchange.recovered_channel import RecoveredBatch, load
from penstock.ids import EdgeId, OperatorName
from penstock.operators.keyed.functions import KeyedFunction, TwoInputFunction
from penstock.protocol.coordinator.state import Mode, Policy
from penstock.protocol.key_groups import key_groups_of
from penstock.protocol.manifest import ChannelSegment, Side
from penstock.protocol.manifest.codec import decode_manifest_or_tombstone
from penstock.state.rows.rows import RowsState
from penstock.storage import MemoryStore
from penstock.storage.blob import inline_segments
from penstock.testing import CollectSink, run
from tests.unit.columnar.arrays import NAMES, columns

ROWS = 60
GROUPS = 16
COLUMNS = columns(ROWS)
EDGE = EdgeId(OperatorName("a"), OperatorName("b"), 0)
each_type = pytest.mark.parametrize("name", NAMES)


def records(name: str) -> pa.RecordBatch:
    return pa.record_batch({"k": [n % 20 for n in range(ROWS)], "n": range(ROWS), "x": COLUMNS[name]})


def by_number(batches: list[pa.RecordBatch]) -> str:
    """All rows in the order of their numbers, as text."""
    for batch in batches:
        batch.validate(full=True)
    return repr(sorted((row for batch in batches for row in batch.to_pylist()), key=lambda row: row["n"]))


def owned_by(subtask: int, parallelism: int) -> range:
    return key_groups_of(subtask, parallelism, GROUPS)


@each_type
def test_an_exchange_by_key(name: str) -> None:
    batch = records(name)
    pieces = HashPartitioner(["k"], 7, GROUPS).split(batch)
    assert len(pieces) > 3
    assert by_number([piece for _, piece in pieces]) == by_number([batch])
    assert all(piece.schema == batch.schema for _, piece in pieces)


@each_type
def test_grouping(name: str) -> None:
    batch = records(name)
    groups = group(batch, ["k"], "op")
    assert by_number([groups.batch]) == by_number([batch])
    assert groups.batch.column("k").to_pylist() == sorted(batch.column("k").to_pylist())


@each_type
def test_rows_state_at_another_parallelism(name: str) -> None:
    batch = records(name)
    pieces = []
    for subtask, rows in HashPartitioner(["k"], 2, GROUPS).split(batch):
        state = RowsState("s", ["k"], owned_by(subtask, 2), GROUPS)
        state.append(rows.slice(0, 5))
        state.append(rows.slice(5))
        pieces += state.snapshot().encode(500)
    stored = [pa.ipc.open_stream(encode_batches([piece.batch])).read_next_batch() for piece in pieces]
    restored: list[pa.RecordBatch] = []
    for subtask in range(3):
        state = RowsState("s", ["k"], owned_by(subtask, 3), GROUPS)
        state.restore(stored)
        restored += state.get()
    assert by_number(restored) == by_number([batch])
    assert all(each.schema.types == batch.schema.types for each in restored)


@each_type
def test_records_in_flight_at_another_parallelism(name: str) -> None:
    batch = records(name)
    items = [BatchItem(batch.slice(0, 25), 0, 0), WatermarkItem(7), BatchItem(batch.slice(25), 0, 0)]
    (segment,) = inline_segments([[memoryview(encode_items(items))]])
    found: list[pa.RecordBatch] = []
    for subtask in range(3):
        own = owned_by(subtask, 3)
        held = ChannelSegment(
            EDGE, 0, subtask, Side.RECEIVER, segment, ROWS, key_group_first=own.start, key_group_end=own.stop
        )
        pieces, _ = load(MemoryStore(), held, ("k",), GROUPS, lambda: 0)
        found += [piece.batch for piece in pieces if isinstance(piece, RecoveredBatch)]
        assert sum(isinstance(piece, WatermarkItem) for piece in pieces) == 1
    assert by_number(found) == by_number([batch])


@each_type
def test_a_watermark_behind_records_and_in_front_of_them(name: str) -> None:
    batch = records(name)
    items = [WatermarkItem(1), BatchItem(batch, 0, 0), WatermarkItem(2), WatermarkItem(3), BatchItem(batch, 0, 0)]
    found = decode_items(bytes(encode_items(items)))
    assert [item.watermark if isinstance(item, WatermarkItem) else "records" for item in found] == [
        *(1, "records", 2, 3, "records")
    ]
    assert by_number([item.batch for item in found if isinstance(item, BatchItem)]) == by_number([batch, batch])


def test_a_watermark_does_not_write_the_values_of_the_records_in_front_of_it_again() -> None:
    for name in NAMES:
        batch = pa.record_batch({"x": columns(4_000)[name]})
        alone = encode_items([BatchItem(batch, 0, 0)]).size
        assert encode_items([BatchItem(batch, 0, 0), WatermarkItem(2)]).size < alone + 20_000, name


# --- whole pipelines ---


HASHED = [
    name for name in NAMES if not any(word in name for word in ("list", "map", "union", "interval", "of all", "[ns]"))
]


class Last(KeyedFunction):
    """Emits how often its key has come."""

    def open(self, context: Any) -> None:
        self.seen = context.value("seen", "n bigint")

    def process(self, key: Any, rows: Any, context: Any) -> Any:
        (before,) = self.seen.get() or (0,)
        self.seen.update((before + rows.num_rows,))
        return rows.select(["n"])


@pytest.mark.parametrize("name", HASHED)
def test_keys_of_every_type_that_has_a_hash(name: str) -> None:
    batch = pa.record_batch({"n": range(ROWS), "x": COLUMNS[name]})
    pipeline, out, counts = Pipeline("p"), CollectSink(), CollectSink()
    source = pipeline.source(GeneratorSource(batch.slice, rows=ROWS))
    keyed = source.key_by("x", nulls="group")
    keyed.process(Last(), name="last").sink(out)
    keyed.count(name="count").sink(counts)
    run(pipeline, parallelism=3, crash_after_checkpoints=1)
    assert sorted(row["n"] for row in out.rows()) == list(range(ROWS))
    last: dict[str, int] = {}
    for row in counts.rows():
        last[repr(row["x"])] = max(last.get(repr(row["x"]), 0), row["count"])
    assert sum(last.values()) == ROWS


def test_a_key_that_python_cannot_hold_is_refused_with_its_name_and_type() -> None:
    batch = pa.record_batch({"n": range(ROWS), "x": COLUMNS["time64[ns]"]})
    pipeline = Pipeline("p")
    source = pipeline.source(GeneratorSource(batch.slice, rows=ROWS))
    source.key_by("x", nulls="group").process(Last(), name="last").sink(CollectSink())
    with pytest.raises(DataError, match=r"operator 'last': the key column 'x' is time64\[ns\]"):
        run(pipeline, restarts=0)


class Hold(TwoInputFunction):
    """Keeps the rows of its left side, and emits them all at the end of the right one."""

    def open(self, context: Any) -> None:
        self.held = context.rows("held", "left")

    def process_left(self, batch: pa.RecordBatch, context: Any) -> Any:
        self.held.append(batch)

    def process_right(self, batch: pa.RecordBatch, context: Any) -> Iterator[pa.RecordBatch]:
        keys = set(batch["k"].to_pylist())
        for held in self.held.get():
            chosen = [n for key, n in zip(held["k"].to_pylist(), held["n"].to_pylist(), strict=True) if key in keys]
            yield pa.record_batch({"n": pa.array(chosen, pa.int64())})


def manifests(store: MemoryStore) -> list[Any]:
    paths = [path for path in store.list("checkpoints/") if path.endswith("manifest.json")]
    found = [decode_manifest_or_tombstone(store.read(path)) for path in sorted(paths)]
    return [each for each in found if hasattr(each, "reports")]


class Killed(BaseException):
    pass


def test_records_of_all_types_in_flight_survive_a_rescale() -> None:
    rows = 2_000
    whole = {name: column for name, column in columns(rows).items() if name != "struct of all"}

    def make(start: int, count: int) -> pa.RecordBatch:
        batch = pa.record_batch({"k": range(start, start + count), "n": range(start, start + count)})
        for name, column in whole.items():
            batch = batch.append_column(name, column.slice(start, count))
        return batch

    def slow(batch: pa.RecordBatch) -> pa.RecordBatch:
        time.sleep(0.0002 * batch.num_rows)
        return batch

    def pipeline(out: CollectSink) -> Pipeline:
        made = Pipeline("p")
        source = made.source(GeneratorSource(make, rows=rows, splits=2), name="src")
        source.filter(pc.field("n") >= 0).key_by("k").map(slow, name="slow").sink(out, name="out")
        return made

    store, out = MemoryStore(), CollectSink()
    policy = Policy(interval_ms=10, backoff_ms=5, mode=Mode.UNALIGNED)

    def until() -> bool:
        if any(c.rows for m in manifests(store)[-1:] for r in m.reports for c in r.channels):
            raise Killed
        return False

    with pytest.raises(Killed):
        run(pipeline(out), store=store, until=until, parallelism=2, workers=2, policy=policy)
    run(pipeline(out), store=store, parallelism=3, workers=2, policy=policy)
    found = {row["n"]: row for row in out.rows()}
    assert sorted(found) == list(range(rows))
    for name, column in whole.items():
        assert repr([found[n][name] for n in range(rows)]) == repr(column.to_pylist()), name


@pytest.mark.parametrize("kind", [pa.string_view(), pa.binary_view()])
def test_views_are_reduced_and_held_back(kind: pa.DataType) -> None:
    def make(start: int, count: int) -> pa.RecordBatch:
        texts = pa.array([f"value number {n}" for n in range(start, start + count)]).cast(kind)
        return pa.record_batch(
            {"k": [n % 10 for n in range(start, start + count)], "n": range(start, start + count), "s": texts}
        )

    pipeline, reduced, held = Pipeline("p"), CollectSink(), CollectSink()
    left = pipeline.source(GeneratorSource(make, rows=1_000), name="left")
    right = pipeline.source(GeneratorSource(make, rows=10), name="right")
    left.key_by("k").reduce(lambda a, b: b, name="reduce").sink(reduced, name="reduced")
    left.key_by("k").connect(right.key_by("k")).process(Hold(), name="hold").sink(held, name="held")
    run(pipeline, parallelism=2, crash_after_checkpoints=2)
    assert held.rows()
    last = {row["k"]: row["s"] for row in reduced.rows()}
    assert last == {k: pa.scalar(f"value number {990 + k}").cast(kind).as_py() for k in range(10)}


def test_a_type_that_arrow_cannot_make_from_rows_is_refused_with_its_column() -> None:
    batch = pa.record_batch({"k": [1, 1], "u": COLUMNS["dense union"].slice(0, 2)})
    pipeline = Pipeline("p")
    source = pipeline.source(GeneratorSource(batch.slice, rows=2))
    source.key_by("k").reduce(lambda a, b: b, name="reduce").sink(CollectSink())
    with pytest.raises(DataError, match="operator 'reduce': Arrow cannot make the column 'u' of type dense_union"):
        run(pipeline, restarts=0)


def test_a_declared_type_that_arrow_cannot_make_from_rows_is_refused_before_the_first_record() -> None:
    pipeline, calls = Pipeline("p"), list[int]()
    source = pipeline.source(GeneratorSource(lambda start, count: calls.append(start), rows=2))
    schema = pa.schema([("u", COLUMNS["sparse union"].type)])
    source.map(lambda row: row, format="rows", schema=schema, name="map").sink(CollectSink())
    with pytest.raises(DataError, match="operator 'map': Arrow cannot make the column 'u' of type sparse_union"):
        run(pipeline, restarts=0)
    assert calls == []
