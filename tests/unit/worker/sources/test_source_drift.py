"""Sources wait for the slowest one of all workers (`max_drift`)."""

from __future__ import annotations

import functools

from penstock.exchange.wire import Decoder, Encoder
from penstock.graph.logical import Graph, LogicalEdge, Node
from penstock.ids import OperatorName, WorkerId
from penstock.mailbox.frames import BatchFrame, ClocksFrame, Frame, HeartbeatFrame, ReadyFrame, SlowestFrame
from penstock.model.event_time import MIN_WATERMARK
from penstock.operators.event_time import EventTimeOperator
from penstock.pipeline import Pipeline
from penstock.protocol.manifest import Partitioning
from penstock.testing import CollectSink, ListSource, Schedule, run
from penstock.worker.sources.source_stage import DRIFT_WAIT, SPLITS_HELD
from tests.unit.mailbox.fake_ports import GENERATION, READ, WRITE, Bench, Numbers, Staging, told, values

TIME = OperatorName("time")


def graph(source: Numbers, max_drift_ms: int | None = 20) -> Graph:
    """read, time -> write. Worker 1 hosts the second subtask of the source and nothing else."""
    timed = functools.partial(EventTimeOperator, "v", 0, max_drift_ms=max_drift_ms)
    nodes = (
        Node(READ, source=source, parallelism=2),
        Node(TIME, operator=timed, parallelism=2),
        Node(WRITE, sink=Staging(), parallelism=1),
    )
    edges = LogicalEdge(READ, TIME, Partitioning.FORWARD), LogicalEdge(TIME, WRITE, Partitioning.REBALANCE)
    return Graph("read", nodes, edges)


def bench_of(*times: int, is_bounded: bool = True) -> Bench:
    """Worker 1 reads the second split."""
    source = Numbers({"other": [], "mine": list(times)}, 1, is_bounded)
    return Bench(graph(source), heartbeat_ms=50, drift_interval_ms=100).started()


def clocks(bench: Bench) -> list[int | None]:
    return [frame.slowest[READ] for frame in bench.transport.take(ClocksFrame)]


def reads(bench: Bench, turns: int = 20) -> list[int]:
    """The records that leave within some turns."""
    for _ in range(turns):
        bench.worker.work()
        bench.pass_time(5)
    return values([frame.batch for frame in bench.transport.take(BatchFrame)])


def hear(bench: Bench, slowest: int | None) -> None:
    bench.worker.deliver(SlowestFrame(GENERATION, {READ: slowest}))


def test_a_source_reads_its_first_records_and_then_waits_until_it_has_heard_of_the_others() -> None:
    bench = bench_of(100, 110, 120, 130)
    assert reads(bench) == [100]
    hear(bench, MIN_WATERMARK)
    assert reads(bench) == [], "another one has not begun"
    hear(bench, 95)
    assert reads(bench) == [110, 120], "one that is not too far ahead is read, whatever its next record is"
    hear(bench, 100)
    assert reads(bench) == [130]


def test_a_source_is_not_held_up_by_itself_nor_if_nobody_else_has_to_be_waited_for() -> None:
    bench = bench_of(100, 200, 300, 1_000)
    hear(bench, 5_000)
    assert reads(bench) == [100, 200, 300, 1_000]
    bench = bench_of(100, 200, 300, 1_000)
    hear(bench, None)
    assert reads(bench) == [100, 200, 300, 1_000]


def test_a_worker_tells_the_driver_how_far_it_is_before_it_is_ready_and_when_that_has_changed() -> None:
    bench = bench_of(100, 110)
    kinds = [type(frame) for _, frame in bench.transport.sent if isinstance(frame, ClocksFrame | ReadyFrame)]
    assert kinds == [ClocksFrame, ReadyFrame]
    assert clocks(bench) == [MIN_WATERMARK]
    bench.pass_time(100)
    assert clocks(bench) == [], "nothing has changed"
    bench.worker.work()
    bench.pass_time(100)
    assert clocks(bench) == [100]
    hear(bench, 100)
    for _ in range(20):
        bench.worker.work()
        bench.pass_time(20)
    assert clocks(bench)[-1] is None, "nobody waits for a source that has ended"


def test_nobody_waits_for_a_source_that_has_no_first_record() -> None:
    bench = bench_of(is_bounded=False)
    bench.worker.work()
    bench.pass_time(100)
    assert clocks(bench) == [MIN_WATERMARK, None]


def test_the_time_that_a_source_has_waited_is_a_metric() -> None:
    bench = bench_of(100, 110, 200)
    hear(bench, 80)
    for _ in range(20):
        bench.worker.work()
        bench.pass_time(5)
    signs = bench.transport.take(HeartbeatFrame)
    assert told(signs, SPLITS_HELD)[-1] == 1
    assert told(signs, DRIFT_WAIT)[-1] >= 50


def test_both_frames_travel() -> None:
    frames: list[Frame] = [
        ClocksFrame(GENERATION, WorkerId(1), {READ: None, TIME: MIN_WATERMARK}),
        SlowestFrame(GENERATION, {READ: 12}),
    ]
    encoder, decoder = Encoder(1), Decoder()
    assert [decoder.decode(encoder.encode(frame)).frame for frame in frames] == frames


def test_sources_on_several_workers_that_wait_for_each_other_come_to_their_end() -> None:
    output, pipeline = CollectSink(), Pipeline("waiting")
    fast = ListSource([{"at": at} for at in range(0, 4_000, 10)], splits=2, batch_rows=20)
    slow = ListSource([{"at": at} for at in range(0, 4_000, 100)], batch_rows=1)
    streams = [
        pipeline.source(source, name=name).with_watermark("at", 0, max_drift="1 s", name=f"time of {name}")
        for name, source in (("fast", fast), ("slow", slow))
    ]
    streams[0].union(streams[1]).key_by().window("1 s", late="error").count().sink(output)
    run(pipeline, parallelism=2, workers=2, crash_after_checkpoints=1, schedule=Schedule(1))
    assert sorted(row["count"] for row in output.rows()) == [110] * 4
