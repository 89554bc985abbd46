"""Latency markers: they wait where records wait, and neither checkpoints nor anybody else wait for them."""

from __future__ import annotations

import logging

import pytest

from penstock.exchange.input_channel import InputChannel
from penstock.exchange.items import BarrierItem, BatchItem, Item, MarkerItem, WatermarkItem
from penstock.exchange.wire import Decoder, Encoder
from penstock.graph.logical import Graph, LogicalEdge, Node
from penstock.graph.physical import Channel, PhysicalEdge
from penstock.ids import ChannelId, CheckpointId, EdgeId, Generation, OperatorName, SubtaskId
from penstock.mailbox.frames import BarrierFrame, BatchFrame, EndFrame, MarkerFrame
from penstock.metrics.samples import Metrics
from penstock.pipeline import Pipeline
from penstock.protocol.barrier import BarrierFlag
from penstock.protocol.manifest import Partitioning
from penstock.testing import CollectSink, ListSource, run
from penstock.worker.settings import WorkerSettings
from tests.unit.mailbox.fake_ports import (
    GENERATION,
    LEFT,
    MAP,
    READ,
    RIGHT,
    WRITE,
    Bench,
    ManualClock,
    Numbers,
    Seen,
    Staging,
    barrier,
    join,
    read,
    rows,
    unaligned,
)

EDGE = PhysicalEdge(EdgeId(READ, MAP, 0), READ, MAP, 0, Partitioning.REBALANCE)
CHANNEL = Channel(ChannelId(5), EDGE, SubtaskId(READ, 0), SubtaskId(MAP, 0))
NOW_MS = ManualClock().wall_ms()
ROW = rows(1).nbytes


def marker(source: str = "left", emitted_ms: int = NOW_MS) -> MarkerItem:
    return MarkerItem(source, emitted_ms)


def waiting(number: int) -> BarrierItem:
    return BarrierItem(barrier(number), since_ms=0)


def batch() -> BatchItem:
    return BatchItem(rows(1), ROW, ROW)


def channel(*items: Item) -> InputChannel:
    made = InputChannel(CHANNEL, 1_000)
    for each in items:
        made.receive(each)
    return made


def kinds(items: object) -> list[type]:
    return [type(each) for each in items]  # type: ignore[attr-defined]


def mark(bench: Bench, sender: OperatorName, age_ms: int = 0) -> None:
    emitted_ms = bench.clock.wall_ms() - age_ms
    bench.worker.deliver(MarkerFrame(GENERATION, bench.channel(sender), sender, emitted_ms))


def measured(bench: Bench) -> Metrics:
    return Metrics(bench.worker._services.metrics.samples())


class TestChannels:
    def test_a_barrier_comes_to_the_front_as_if_there_were_no_markers(self) -> None:
        found = channel(batch(), marker("a"), marker("b"), waiting(1))
        assert kinds(found.queue) == [BatchItem, BarrierItem, MarkerItem, MarkerItem]
        assert kinds(channel(marker(), batch(), waiting(1)).queue) == [MarkerItem, BatchItem, BarrierItem]

    def test_a_queue_of_markers_counts_as_empty(self) -> None:
        found = channel(marker())
        assert found.is_empty and found.is_readable and not found.has_items
        found.receive(WatermarkItem(1))
        assert not found.is_empty
        found.pop()
        found.pop()
        assert found.is_empty and not found.is_readable

    def test_no_marker_is_captured(self) -> None:
        found = channel(marker(), batch(), marker(), WatermarkItem(1), marker("other"), waiting(1))
        captured = found.in_front_of_barrier(CheckpointId(1))
        assert kinds(captured) == [BatchItem, WatermarkItem]
        found.capturing = captured
        found.receive(marker("third"))
        found.receive(batch())
        assert kinds(captured) == [BatchItem, WatermarkItem, BatchItem]

    def test_a_channel_that_is_not_read_holds_one_marker_of_each_source_between_records(self) -> None:
        found = channel(batch())
        found.blocked = True
        for number in range(1_000):
            for source in ("a", "b"):
                found.receive(marker(source, NOW_MS + number))
            found.receive(WatermarkItem(number))
        assert kinds(found.queue) == [BatchItem, MarkerItem, MarkerItem, WatermarkItem]
        assert [each.emitted_ms for each in found.queue if isinstance(each, MarkerItem)] == [NOW_MS, NOW_MS]
        found.receive(batch())
        found.receive(marker("a"))
        assert found.queued_markers == 3


class TestWire:
    def test_a_marker_has_a_number_behind_all_older_frames_and_these_bytes(self) -> None:
        frame = MarkerFrame(Generation(3), ChannelId(7), "orders", 1_700_000_000_123)
        (sent,) = Encoder(2).encode(frame)
        assert sent[:2] == bytes([0x50, 19])
        assert sent[30:] == (
            b"\x84\xaageneration\x03\xa7channel\x07\xa6source\xa6orders\xaaemitted_ms\xcf\x00\x00\x01\x8b\xcf\xe5h{"
        )
        assert Decoder().decode([sent]).frame == frame


class TestSources:
    def test_a_source_marks_the_first_read_and_then_one_in_each_interval(self) -> None:
        bench = Bench(read(Numbers({"a": [], "b": range(100)}, chunk=1)), latency_interval_ms=100).started()
        bench.work(3)
        assert kinds(bench.transport.of(BatchFrame | MarkerFrame)) == [BatchFrame, MarkerFrame, BatchFrame, BatchFrame]  # type: ignore[arg-type]
        bench.clock.advance(99)
        bench.work(1)
        assert len(bench.transport.of(MarkerFrame)) == 1
        bench.clock.advance(1)
        bench.work(1)
        assert [each.emitted_ms - NOW_MS for each in bench.transport.of(MarkerFrame)] == [0, 100]

    def test_a_source_without_records_marks_too(self) -> None:
        bench = Bench(read(Numbers({"a": [], "b": []}, is_bounded=False))).started()
        bench.work()
        assert [each.source for each in bench.transport.of(MarkerFrame)] == [READ]

    def test_the_work_of_the_chain_of_a_source_counts(self) -> None:
        seen = Seen()
        graph = Graph(
            "chained",
            (
                Node(READ, source=Numbers({"a": [], "b": [1]}, is_bounded=False), parallelism=2),
                Node(MAP, operator=lambda: seen, parallelism=2),
                Node(WRITE, sink=Staging(), parallelism=1),
            ),
            (LogicalEdge(READ, MAP, Partitioning.FORWARD), LogicalEdge(MAP, WRITE, Partitioning.REBALANCE)),
        )
        bench = Bench(graph).started()
        seen.clock, seen.us_per_row = bench.clock, 70_000
        bench.work()
        assert measured(bench).value("source_latency_s", MAP) == pytest.approx(0.07)

    def test_nothing_follows_the_end_of_a_source(self) -> None:
        bench = Bench(read(Numbers({"a": [], "b": [1]})), latency_interval_ms=1).started()
        for _ in range(5):
            bench.work(1)
            bench.pass_time(10)
        sent = bench.transport.of(MarkerFrame | EndFrame)  # type: ignore[arg-type]
        assert kinds(sent)[-1] is EndFrame and kinds(sent).count(EndFrame) == 1

    def test_an_interval_of_zero_means_no_markers(self) -> None:
        bench = Bench(read(Numbers({"a": [], "b": range(9)})), latency_interval_ms=0).started()
        bench.work()
        assert not bench.transport.of(MarkerFrame) and not measured(bench).of("source_latency_s")

    def test_a_marker_takes_turns_among_the_channels_of_an_edge(self) -> None:
        graph = Graph(
            "spread",
            (
                Node(READ, source=Numbers({"a": [], "b": []}, is_bounded=False), parallelism=2),
                Node(WRITE, sink=Staging(), parallelism=2),
            ),
            (LogicalEdge(READ, WRITE, Partitioning.REBALANCE),),
        )
        bench = Bench(graph, latency_interval_ms=1).started()
        for _ in range(4):
            bench.work()
            bench.pass_time(100)
        assert len({each.channel for each in bench.transport.of(MarkerFrame)}) == 2
        assert len(bench.transport.of(MarkerFrame)) == 4


class TestReceivers:
    def test_it_waits_behind_records_and_their_time_counts(self) -> None:
        seen = Seen()
        bench = Bench(join(seen)).started()
        seen.wants_input = False
        bench.batch(LEFT, 1)
        mark(bench, LEFT)
        bench.work()
        assert not bench.transport.of(MarkerFrame)
        bench.clock.advance(3_000)
        seen.wants_input = True
        bench.work()
        assert kinds(bench.transport.of(BatchFrame | MarkerFrame)) == [BatchFrame, MarkerFrame]  # type: ignore[arg-type]
        (passed_on,) = bench.transport.of(MarkerFrame)
        assert (passed_on.source, passed_on.emitted_ms) == (LEFT, NOW_MS)
        (sample,) = measured(bench).of("source_latency_s")
        assert (sample.operator, sample.source, sample.value, sample.count) == (MAP, LEFT, 3.0, 1)

    def test_each_source_has_a_distribution(self) -> None:
        bench = Bench(join(Seen())).started()
        for sender, age_ms in ((LEFT, 20), (LEFT, 400), (RIGHT, 3)):
            mark(bench, sender, age_ms)
            bench.work()
        found = measured(bench)
        assert [(each.source, each.count) for each in found.of("source_latency_s")] == [(LEFT, 2), (RIGHT, 1)]
        assert found.quantile("source_latency_s", 1.0, MAP) == 0.5
        assert {LEFT, RIGHT, ""} == set(found.to_pydict()["source"])

    def test_a_barrier_behind_a_marker_is_reached_although_the_outputs_are_full(self) -> None:
        bench = Bench(join(Seen()), credit_limit_bytes=ROW, output_bytes_max=ROW).started()
        for number in range(4):
            bench.batch(LEFT, number, cost=1)
        bench.work()
        assert bench.subtask.is_backpressured
        mark(bench, RIGHT)
        bench.barrier(RIGHT, barrier(1))
        assert bench.subtask.inputs[bench.channel(RIGHT)].blocked
        bench.work()
        assert not bench.transport.of(MarkerFrame), "behind the barrier it waits as records do"

    def test_a_blocked_channel_keeps_its_marker_until_it_is_read_again(self) -> None:
        bench = Bench(join(Seen())).started()
        bench.trigger(barrier(1))
        bench.barrier(LEFT, barrier(1))
        mark(bench, LEFT)
        bench.clock.advance(40)
        bench.work()
        assert not bench.transport.of(MarkerFrame)
        bench.barrier(RIGHT, barrier(1))
        bench.work()
        assert kinds(bench.transport.of(BarrierFrame | MarkerFrame)) == [BarrierFrame, MarkerFrame]  # type: ignore[arg-type]
        assert measured(bench).value("source_latency_s") == pytest.approx(0.04)

    @pytest.mark.parametrize("sent", [barrier(1), unaligned(1)], ids=["aligned", "unaligned"])
    def test_checkpoints_hold_no_marker_and_a_restored_worker_has_none(self, sent: object) -> None:
        bench = Bench(join(Seen())).started()
        for sender in (LEFT, RIGHT):
            bench.batch(sender, 1)
            mark(bench, sender)
        bench.trigger(sent)  # type: ignore[arg-type]
        for sender in (LEFT, RIGHT):
            bench.barrier(sender, sent)  # type: ignore[arg-type]
        bench.work()
        (acknowledged,) = bench.acknowledged()
        again = Bench(join(Seen()), store=bench.store, manifest=bench.manifest(1)).started()
        again.work()
        assert acknowledged.checkpoint == 1 and not again.transport.of(MarkerFrame)

    def test_an_end_behind_a_marker_ends_the_channel(self) -> None:
        bench = Bench(join(Seen())).started()
        for sender in (LEFT, RIGHT):
            mark(bench, sender)
            bench.end(sender)
        bench.work()
        assert kinds(bench.transport.of(MarkerFrame | EndFrame)) == [MarkerFrame, MarkerFrame, EndFrame]  # type: ignore[arg-type]

    def test_a_marker_from_the_future_counts_as_no_time_and_is_warned_of_once(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        bench = Bench(join(Seen())).started()
        with caplog.at_level(logging.WARNING, "penstock"):
            for _ in range(3):
                mark(bench, LEFT, age_ms=-5_000)
                bench.work()
        assert measured(bench).value("source_latency_s") == 0
        assert len(caplog.messages) == 1 and "NTP" in caplog.text and "5000 ms" in caplog.text


def test_a_draining_source_emits_no_marker_behind_its_barrier() -> None:
    bench = Bench(read(Numbers({"a": [], "b": range(100)}, is_bounded=False)), latency_interval_ms=1).started()
    bench.work(2)
    bench.transport.sent.clear()
    bench.trigger(barrier(1, BarrierFlag.DRAIN))
    bench.pass_time(100)
    bench.work()
    assert bench.transport.of(BarrierFrame) and not bench.transport.of(MarkerFrame)


def test_a_pipeline_has_the_latency_from_each_source_to_each_sink_whatever_is_killed() -> None:
    pipeline, output = Pipeline("latency"), CollectSink()
    left = pipeline.source(ListSource([{"k": n % 7, "n": n} for n in range(2_000)], batch_rows=20), name="left")
    right = pipeline.source(ListSource([{"k": n % 7, "n": n} for n in range(2_000)], batch_rows=20), name="right")
    left.union(right).key_by("k").sum("n", name="sums").sink(output, name="out")
    settings = WorkerSettings(latency_interval_ms=1, driver_silence_ms=10**9, heartbeat_ms=1)
    result = run(pipeline, parallelism=2, workers=2, crash_after_checkpoints=(1, 2), worker_settings=settings)
    assert (result.restarts, result.rows_in) == (2, 4_000)
    assert {row["k"]: row["n"] for row in output.rows()} == {k: 2 * sum(range(k, 2_000, 7)) for k in range(7)}
    found = result.metrics.of("source_latency_s")
    assert {(each.source, each.operator) for each in found} >= {("left", "out"), ("right", "out")}
    assert all(each.count > 0 for each in found)
