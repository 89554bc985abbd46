"""A generator of flat_map that goes on while the mailbox has its turns: no checkpoint sees a part of a record."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.exchange.codec import decode_items
from penstock.exchange.items import BatchItem
from penstock.graph.logical import Graph, LogicalEdge, Node
from penstock.mailbox.frames import BarrierFrame, BatchFrame, CreditFrame, WatermarkFrame
from penstock.operators.flat_map import FlatMapOperator
from penstock.protocol.manifest import Partitioning
from penstock.storage.blob import read_segment
from tests.unit.mailbox.fake_ports import (
    GENERATION,
    LEFT,
    MAP,
    READ,
    REBALANCE,
    RIGHT,
    WRITE,
    Bench,
    Numbers,
    Seen,
    Staging,
    Told,
    barrier,
    unaligned,
    values,
)

FORMATS = "rows", "arrow"


class Repeated:
    """Each number as often as it says; every output takes a slice."""

    bench: Bench
    slices = 1

    def of_row(self, row: dict[str, int]) -> Iterator[dict[str, int]]:
        for _ in range(row["v"]):
            self.bench.clock.us += self.slices * 4_000
            yield row

    def of_batch(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        numbers = batch["v"].to_pylist()
        for number in numbers:
            for _ in range(number):
                self.bench.clock.us += self.slices * 4_000
                yield pa.record_batch({"v": pa.array([number], pa.int64())})


def operator(function: Repeated, format: str) -> Any:
    made = function.of_row if format == "rows" else function.of_batch
    return functools.partial(FlatMapOperator, made, format, None)


def behind_exchange(function: Repeated, format: str) -> Graph:
    """left, right -> flat_map -> write, with the flat_map first in its chain."""
    return Graph(
        "first",
        (
            *(Node(name, source=Numbers({}), parallelism=1) for name in (LEFT, RIGHT)),
            Node(MAP, operator=operator(function, format), parallelism=2),
            Node(WRITE, sink=Staging(), parallelism=1),
        ),
        (*(LogicalEdge(name, MAP, REBALANCE) for name in (LEFT, RIGHT)), LogicalEdge(MAP, WRITE, REBALANCE)),
    )


def in_the_middle(function: Repeated, format: str, seen: Seen) -> Graph:
    """The same, with the flat_map behind another operator of its chain."""
    return Graph(
        "middle",
        (
            *(Node(name, source=Numbers({}), parallelism=1) for name in (LEFT, RIGHT)),
            Node(MAP, operator=lambda: seen, parallelism=2),
            Node("unfold", operator=operator(function, format), parallelism=2),
            Node(WRITE, sink=Staging(), parallelism=1),
        ),
        (
            *(LogicalEdge(name, MAP, REBALANCE) for name in (LEFT, RIGHT)),
            LogicalEdge(MAP, "unfold", Partitioning.FORWARD),
            LogicalEdge("unfold", WRITE, REBALANCE),
        ),
    )


def behind_source(function: Repeated, format: str, source: Any) -> Graph:
    nodes = (
        Node(READ, source=source, parallelism=2),
        Node("unfold", operator=operator(function, format), parallelism=2),
        Node(WRITE, sink=Staging(), parallelism=1),
    )
    edges = LogicalEdge(READ, "unfold", Partitioning.FORWARD), LogicalEdge("unfold", WRITE, REBALANCE)
    return Graph("read", nodes, edges)


def started(graph: Any, format: str, *more: Any, **options: int) -> Bench:
    function = Repeated()
    function.bench = Bench(graph(function, format, *more), **options)
    return function.bench.started()


def sent(bench: Bench) -> list[int]:
    return values([frame.batch for frame in bench.transport.of(BatchFrame)])


def captured(bench: Bench) -> list[int]:
    (frame,) = bench.acknowledged()
    found: list[int] = []
    for segment in frame.report.channels:
        items = decode_items(read_segment(bench.store, segment.segment))
        found += values([item.batch for item in items if isinstance(item, BatchItem)])
    return found


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("place", [behind_exchange, in_the_middle])
def test_the_mailbox_has_its_turn_in_the_middle_of_a_generator_and_the_output_so_far_has_left(
    place: Any, format: str
) -> None:
    bench = started(place, format, *([Seen()] if place is in_the_middle else []))
    bench.batch(LEFT, 5)
    for made in range(1, 5):
        bench.work(1)
        assert sent(bench) == [5] * made
    bench.work()
    assert sent(bench) == [5] * 5


@pytest.mark.parametrize("format", FORMATS)
def test_a_source_waits_while_a_generator_behind_it_goes_on(format: str) -> None:
    bench = started(behind_source, format, Numbers({"a": [], "b": [3, 2, 4]}, chunk=1))
    bench.work(2)
    assert sent(bench) == [3, 3]
    bench.work()
    assert sent(bench) == [3] * 3 + [2] * 2 + [4] * 4


@pytest.mark.parametrize("format", FORMATS)
class TestACheckpointInTheMiddleOfAGenerator:
    def test_waits_for_the_record_and_holds_all_behind_it_as_data_in_flight(self, format: str) -> None:
        bench = started(behind_exchange, format)
        if format == "arrow":
            bench.subtask._in_hand._calls.rows_max = 1
        bench.batch(LEFT, 4)
        bench.batch(LEFT, 2, 3)
        bench.work(1)
        assert bench.subtask.is_mid_record
        bench.barrier(LEFT, unaligned(1))
        bench.barrier(RIGHT, unaligned(1))
        assert not bench.transport.of(BarrierFrame), "a part of the record would be in no checkpoint"
        while not bench.transport.of(BarrierFrame):
            bench.work(1)
        assert sent(bench) == [4] * 4
        assert captured(bench) == [2, 3]

    def test_does_not_hold_what_came_behind_its_barrier(self, format: str) -> None:
        bench = started(behind_exchange, format)
        bench.batch(LEFT, 3)
        bench.work(1)
        bench.barrier(LEFT, unaligned(1))
        bench.batch(LEFT, 2)
        bench.barrier(RIGHT, unaligned(1))
        bench.batch(RIGHT, 1)
        bench.work()
        assert captured(bench) == []
        assert sorted(sent(bench)) == [1, 2, 2, 3, 3, 3]

    def test_that_is_aligned_waits_too(self, format: str) -> None:
        bench = started(behind_exchange, format)
        bench.batch(LEFT, 3)
        bench.work(1)
        bench.barrier(LEFT, barrier(1))
        bench.barrier(RIGHT, barrier(1))
        bench.batch(RIGHT, 1)
        bench.work(1)
        assert not bench.transport.of(BarrierFrame)
        bench.work()
        kinds = [type(frame) for _, frame in bench.transport.sent if isinstance(frame, BatchFrame | BarrierFrame)]
        assert kinds == [BatchFrame] * 3 + [BarrierFrame, BatchFrame]

    def test_of_a_source_waits_too(self, format: str) -> None:
        bench = started(behind_source, format, Numbers({"a": [], "b": [3, 2]}, chunk=1))
        bench.work(1)
        bench.trigger(unaligned(1))
        assert not bench.transport.of(BarrierFrame)
        while not bench.transport.of(BarrierFrame):
            bench.work(1)
        assert sent(bench) == [3] * 3
        (frame,) = bench.acknowledged()
        assert [split.offset for split in frame.report.splits if split.split == "b"] == [b"1"]

    def test_in_the_middle_of_a_chain_waits_for_the_batch(self, format: str) -> None:
        bench = started(in_the_middle, format, Seen())
        bench.batch(LEFT, 3, 2)
        bench.work(1)
        bench.barrier(LEFT, unaligned(1))
        bench.barrier(RIGHT, unaligned(1))
        assert not bench.transport.of(BarrierFrame)
        bench.work()
        assert captured(bench) == []
        assert sent(bench) == [3, 3, 3, 2, 2]

    @pytest.mark.parametrize("place", [behind_exchange, in_the_middle])
    def test_whose_barrier_came_right_behind_the_record_waits_too(self, place: Any, format: str) -> None:
        bench = started(place, format, *([Seen()] if place is in_the_middle else []))
        bench.barrier(RIGHT, barrier(1))
        bench.batch(LEFT, 3)
        bench.barrier(LEFT, barrier(1))
        bench.work(1)
        assert bench.subtask.is_mid_record
        assert not bench.transport.of(BarrierFrame), "a part of the record would be in no checkpoint"
        bench.work()
        kinds = [type(frame) for _, frame in bench.transport.sent if isinstance(frame, BatchFrame | BarrierFrame)]
        assert kinds == [BatchFrame] * 3 + [BarrierFrame]

    def test_that_is_late_by_its_timer_waits_too(self, format: str) -> None:
        bench = started(behind_exchange, format)
        bench.barrier(RIGHT, barrier(1, timeout_ms=1))
        bench.batch(LEFT, 3)
        bench.work(1)
        bench.pass_time(10)
        assert not bench.transport.of(BarrierFrame)
        bench.work()
        assert bench.transport.of(BarrierFrame)


def test_a_watermark_does_not_overtake_the_rest_of_a_record() -> None:
    bench = started(behind_source, "rows", Told({"a": [], "b": [3, 2]}))
    bench.work()
    order = [
        frame.batch["v"][0].as_py() if isinstance(frame, BatchFrame) else -frame.watermark
        for _, frame in bench.transport.sent
        if isinstance(frame, BatchFrame | WatermarkFrame)
    ]
    for position, number in enumerate(order):
        if number < 0:
            assert all(later != -number for later in order[position + 1 :] if later > 0)


def test_credit_is_not_held_up_by_a_record() -> None:
    """Its output needs it: the record would never end."""
    bench = started(behind_exchange, "rows", output_bytes_max=8, credit_limit_bytes=16)
    bench.batch(LEFT, 50)
    bench.work()
    assert bench.subtask.is_mid_record and bench.subtask.is_backpressured
    waiting = len(sent(bench))
    assert waiting < 50
    (output,) = bench.subtask.outputs
    for _ in range(50):
        bench.worker.deliver(CreditFrame(GENERATION, output, 16, 16))
        bench.work()
    assert sent(bench) == [50] * 50


@settings(max_examples=60, deadline=None)
@given(
    batches=st.lists(st.tuples(st.sampled_from([LEFT, RIGHT]), st.lists(st.integers(0, 4), max_size=4)), max_size=6),
    works=st.lists(st.integers(0, 5), min_size=6, max_size=6),
    at=st.integers(0, 6),
    format=st.sampled_from(FORMATS),
)
def test_whenever_a_checkpoint_comes_output_and_data_in_flight_are_all_and_nothing_twice(
    batches: list[tuple[Any, list[int]]], works: list[int], at: int, format: str
) -> None:
    bench = started(behind_exchange, format)
    for number, (sender, numbers) in enumerate(batches):
        if number == at:
            bench.barrier(LEFT, unaligned(1))
            bench.barrier(RIGHT, unaligned(1))
        bench.batch(sender, *numbers)
        bench.work(works[number])
    if at >= len(batches):
        bench.barrier(LEFT, unaligned(1))
        bench.barrier(RIGHT, unaligned(1))
    bench.work()
    position = next(n for n, (_, frame) in enumerate(bench.transport.sent) if isinstance(frame, BarrierFrame))
    frames = [frame for _, frame in bench.transport.sent[:position] if isinstance(frame, BatchFrame)]
    before = values([frame.batch for frame in frames])
    held = captured(bench)
    unfolded = [number for number in held for _ in range(number)]
    expected = [n for _, numbers in batches[:at] for number in numbers for n in [number] * number]
    assert sorted(before + unfolded) == sorted(expected)
    everything = [n for _, numbers in batches for number in numbers for n in [number] * number]
    assert sorted(sent(bench)) == sorted(everything)
