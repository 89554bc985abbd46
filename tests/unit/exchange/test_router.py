"""The router: only the columns travel that somebody reads, and a missing one is for the reader to report."""

from __future__ import annotations

import pyarrow as pa
import pytest

from penstock.connectors.collect import CollectSink
from penstock.connectors.memory import ListSource
from penstock.errors import DataError
from penstock.exchange.codec import encode_batches
from penstock.exchange.output_channel import OutputChannel
from penstock.exchange.router import Router
from penstock.graph.physical import PhysicalPlan, plan
from penstock.ids import ChannelId, Generation, SubtaskId, WorkerId
from penstock.mailbox.frames import BatchFrame
from penstock.pipeline import Pipeline
from penstock.testing import run
from tests.unit.mailbox.fake_ports import ListTransport, ManualClock

ORDERS = [{"customer": n % 3, "amount": n, "at": n, "note": "x" * 100} for n in range(60)]
WHOLE = pa.RecordBatch.from_pylist(ORDERS)


def described(*, with_window: bool = False, splits: int = 1) -> tuple[Pipeline, CollectSink]:
    output = CollectSink()
    pipeline = Pipeline("orders")
    stream = pipeline.source(ListSource(ORDERS, splits=splits, batch_rows=7), name="read")
    if with_window:
        windowed = stream.with_watermark("at", 0).key_by("customer").window("1000 ms")
        windowed.aggregate(total=("sum", "amount"), orders="count", name="sum").sink(output, name="write")
    else:
        keyed = stream.key_by("customer")
        keyed.aggregate(total=("sum", "amount"), orders="count", name="sum").sink(output, name="write")
    return pipeline, output


def planned(pipeline: Pipeline, parallelism: int = 2) -> PhysicalPlan:
    return plan(pipeline.graph(), parallelism)


def sent_by(physical: PhysicalPlan, *batches: pa.RecordBatch) -> list[pa.RecordBatch]:
    """What the first subtask of the source puts on the wire for these batches."""
    sender, transport = SubtaskId(physical.edges[0].upstream, 0), ListTransport()
    full: set[ChannelId] = set()
    outputs = {
        channel.id: OutputChannel(
            channel,
            to=WorkerId(1),
            generation=Generation(1),
            credit_limit_bytes=1 << 20,
            bytes_max=1 << 20,
            transport=transport,
            clock=ManualClock(),
            departed=lambda *_: None,
            full=full,
        )
        for channels in physical.outputs[sender].values()
        for channel in channels
    }
    router = Router(sender, physical, outputs)
    for batch in batches:
        router.emit(batch)
    return [frame.batch for _, frame in transport.sent if isinstance(frame, BatchFrame)]


def test_the_plan_says_which_columns_an_aggregate_reads() -> None:
    assert [edge.columns for edge in planned(described()[0]).edges] == [("customer", "amount")]
    assert [edge.columns for edge in planned(described(with_window=True)[0]).edges] == [("customer", "at", "amount")]


def test_a_selection_behind_an_exchange_gets_what_it_selects_and_other_functions_get_all() -> None:
    pipeline = Pipeline("p")
    stream = pipeline.source(ListSource(ORDERS))
    stream.rebalance().select("amount", "at").sink(CollectSink())
    stream.rebalance().map(lambda batch: batch).sink(CollectSink())
    assert [edge.columns for edge in planned(pipeline).edges] == [("amount", "at"), None]


def test_only_the_columns_that_are_read_travel_and_no_row_is_lost() -> None:
    sent = sent_by(planned(described()[0]), WHOLE)
    assert {tuple(batch.schema.names) for batch in sent} == {("customer", "amount")}
    together = pa.concat_batches(sent).sort_by("amount")
    assert together.equals(WHOLE.select(["customer", "amount"]))


def test_a_batch_of_another_schema_is_looked_at_anew() -> None:
    other = WHOLE.select(["note", "amount", "customer"])
    sent = sent_by(planned(described()[0], 1), WHOLE, other)
    assert [batch.schema.names for batch in sent] == [["customer", "amount"], ["amount", "customer"]]


@pytest.mark.parametrize(
    "batch",
    [
        pytest.param(WHOLE.select(["customer", "at", "note"]), id="one is missing"),
        pytest.param(WHOLE.append_column("amount", WHOLE.column("at")), id="one is there twice"),
    ],
)
def test_a_batch_without_a_column_travels_as_it_is(batch: pa.RecordBatch) -> None:
    (sent,) = sent_by(planned(described()[0], 1), batch)
    assert sent.equals(batch)


def test_the_reader_reports_a_column_that_is_missing() -> None:
    pipeline = Pipeline("p")
    stream = pipeline.source(ListSource(ORDERS)).key_by("customer")
    stream.aggregate(total=("sum", "price"), name="sum").sink(CollectSink())
    with pytest.raises(DataError, match=r"'sum'.*needs the column 'price', which is not in \['customer', 'amount'"):
        run(pipeline, restarts=0)


@pytest.mark.parametrize("with_window", [False, True])
def test_nothing_is_missing_after_a_crash_with_records_in_flight(with_window: bool) -> None:
    pipeline, output = described(with_window=with_window, splits=2)
    result = run(pipeline, parallelism=2, workers=2, crash_after_checkpoints=1)
    totals = {row["customer"]: row for row in output.rows()}
    assert result.restarts == 1
    assert {customer: row["orders"] for customer, row in totals.items()} == {0: 20, 1: 20, 2: 20}
    assert totals[1]["total"] == sum(range(1, 60, 3))


def with_a_large_dictionary(rows: int) -> pa.RecordBatch:
    values = pa.array([f"value {n:020}" for n in range(100_000)])
    codes = pa.array([(n * 7919) % 100_000 for n in range(rows)], pa.int32())
    return pa.record_batch({"k": range(rows), "d": pa.DictionaryArray.from_arrays(codes, values)})


@pytest.mark.parametrize("exchange", ["key", "rebalance", "broadcast"])
def test_a_piece_carries_the_values_of_its_own_records_and_not_the_whole_dictionary(exchange: str) -> None:
    pipeline, whole = Pipeline("p"), with_a_large_dictionary(6_400)
    stream = pipeline.source(ListSource([{"k": 1}]), parallelism=1)
    exchanged = {"key": lambda: stream.key_by("k"), "rebalance": stream.rebalance, "broadcast": stream.broadcast}
    exchanged[exchange]().map(lambda batch: batch).sink(CollectSink())  # type: ignore[operator]
    sent = sent_by(planned(pipeline, 64), whole)
    copies = 64 if exchange == "broadcast" else 1
    assert sum(batch.num_rows for batch in sent) == copies * 6_400
    assert all(batch.schema == whole.schema for batch in sent), "the type stays what it is"
    assert sum(batch.nbytes for batch in sent) < copies * 600_000
    assert sum(encode_batches([batch]).size for batch in sent) < copies * 700_000
    if exchange == "broadcast":
        assert len({batch.column("d").dictionary.buffers()[2].address for batch in sent}) == 1, "cut once, for all"
    if exchange != "broadcast":
        found = {row["k"]: row["d"] for batch in sent for row in batch.to_pylist()}
        assert found == {row["k"]: row["d"] for row in whole.to_pylist()}
