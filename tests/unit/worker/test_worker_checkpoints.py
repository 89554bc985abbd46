"""One worker's part in checkpoints: what it captures, when it acknowledges, why it declines, how it comes back.

Where a defect of the documents that this goes back to needs queues and files to be seen, its sentence is here.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import replace
from unittest import mock

import pyarrow as pa
import pytest

from penstock.errors import StorageError
from penstock.exchange.codec import decode_batches, decode_items
from penstock.exchange.items import BatchItem
from penstock.graph.logical import Graph
from penstock.graph.physical import plan
from penstock.ids import CheckpointId, SubtaskId
from penstock.mailbox.frames import (
    AcknowledgeFrame,
    BarrierFrame,
    BatchFrame,
    CreditFrame,
    DeclineFrame,
    EndFrame,
    FailedFrame,
    HeartbeatFrame,
    WatermarkFrame,
)
from penstock.mailbox.recovery_stats import RecoveryStats
from penstock.model.event_time import MIN_WATERMARK
from penstock.operators.contract import Emit, OperatorContext
from penstock.protocol.barrier import BarrierFlag
from penstock.protocol.declines import DeclineReason
from penstock.protocol.manifest import Committable, Manifest, Partitioning, Side, SnapshotKind, SubtaskReport
from penstock.storage.blob import read_segment
from penstock.storage.memory import MemoryStore
from penstock.worker.checkpointing.checkpoint_metrics import STATE_BYTES
from penstock.worker.context import Piece
from penstock.worker.recovery.restore import Restored, restore
from tests.unit.mailbox.fake_ports import (
    GENERATION,
    LEFT,
    MAP,
    MAP_1,
    READ,
    RIGHT,
    WRITE,
    Bench,
    Numbers,
    Seen,
    Staging,
    barrier,
    join,
    read,
    rows,
    told,
    unaligned,
    values,
)

ROW = rows(1).nbytes


def reports(bench: Bench) -> dict[int, SubtaskReport]:
    return {int(frame.checkpoint): frame.report for frame in bench.acknowledged()}


def reasons(bench: Bench) -> list[tuple[int, DeclineReason]]:
    return [(int(frame.checkpoint), frame.reason) for frame in bench.transport.of(DeclineFrame)]


def in_flight(bench: Bench, report: SubtaskReport) -> dict[tuple[str, Side], list[object]]:
    """The captured records and watermarks of each edge and side."""
    found: dict[tuple[str, Side], list[object]] = {}
    for segment in report.channels:
        held, row = found.setdefault((str(segment.edge), segment.side), []), 0
        for item in decode_items(read_segment(bench.store, segment.segment)):
            if isinstance(item, BatchItem):
                unprocessed = item.batch.slice(max(0, segment.first_row - row))
                held += [values([unprocessed])] if unprocessed.num_rows else []
                row += item.batch.num_rows
            else:
                held.append(item.watermark)
    return found


def in_state(bench: Bench, report: SubtaskReport) -> list[int]:
    return [
        value for state in report.states for value in values(decode_batches(read_segment(bench.store, state.segment)))
    ]


def forwarded(bench: Bench) -> list[tuple[int, bool]]:
    return [(int(each.barrier.checkpoint), each.barrier.is_unaligned) for each in bench.transport.of(BarrierFrame)]


LEFT_IN, RIGHT_IN = ("left->map", Side.RECEIVER), ("right->map#1", Side.RECEIVER)
OUT = ("map->write", Side.SENDER)


class TestAligned:
    def test_what_came_before_the_barriers_is_in_the_state_and_what_came_behind_is_not(self) -> None:
        bench = Bench(join(Seen())).started()
        bench.trigger(barrier(1))
        bench.batch(LEFT, 1)
        bench.barrier(LEFT, barrier(1))
        bench.batch(LEFT, 2)
        bench.batch(RIGHT, 10)
        bench.work()
        assert forwarded(bench) == []
        bench.barrier(RIGHT, barrier(1))
        bench.work()
        report = reports(bench)[1]
        assert (report.cut, report.channels, in_state(bench, report)) == (SnapshotKind.ALIGNED, (), [1, 10])
        sent = [frame for _, frame in bench.transport.sent if isinstance(frame, BatchFrame | BarrierFrame)]
        assert [values([frame.batch]) if isinstance(frame, BatchFrame) else "barrier" for frame in sent] == [
            [1],
            [10],
            "barrier",
            [2],
        ]

    def test_records_behind_a_barrier_are_drained_in_order_and_not_dropped(self) -> None:
        # Defects elsewhere: buffered records were cleared, or sorted by timestamp.
        seen = Seen()
        bench = Bench(join(seen)).started()
        bench.barrier(LEFT, barrier(1))
        for number in (5, 3, 4):
            bench.batch(LEFT, number)
        bench.work()
        assert seen.processed == []
        bench.barrier(RIGHT, barrier(1))
        bench.work()
        assert seen.processed == [5, 3, 4]

    def test_a_barrier_of_the_next_checkpoint_on_a_blocked_channel_is_not_lost(self) -> None:
        bench = Bench(join(Seen())).started()
        bench.barrier(LEFT, barrier(1))
        bench.barrier(LEFT, barrier(2))
        bench.barrier(RIGHT, barrier(2))
        assert reasons(bench) == [(1, DeclineReason.SUPERSEDED)]
        assert list(reports(bench)) == [2]

    def test_an_end_counts_as_the_barrier_of_its_channel(self) -> None:
        bench = Bench(join(Seen())).started()
        bench.barrier(LEFT, barrier(1))
        bench.batch(RIGHT, 1)
        bench.end(RIGHT)
        bench.work()
        assert in_state(bench, reports(bench)[1]) == [1]

    def test_a_subtask_at_its_end_is_cut_by_the_trigger_alone(self) -> None:
        seen, sink = Seen(), Staging()
        bench = Bench(join(seen, sink=sink, is_chained=True)).started()
        bench.batch(LEFT, 1)
        bench.end(LEFT)
        bench.end(RIGHT)
        bench.work()
        bench.trigger(barrier(1))
        assert reports(bench)[1].committables == (Committable(WRITE, 1, b"1"),)

    def test_the_report_has_the_figures_that_users_look_for(self) -> None:
        bench = Bench(join(Seen())).started()
        bench.batch(LEFT, 1, 2)
        bench.work()
        bench.barrier(LEFT, barrier(1).aged(30))
        bench.clock.advance(12)
        bench.barrier(RIGHT, barrier(1))
        bench.clock.advance(5)
        figures = reports(bench)[1].figures
        assert (figures.start_delay_ms, figures.alignment_ms, figures.asynchronous_ms) == (30, 12, 5)
        assert figures.state_bytes == sum(state.segment.length for state in reports(bench)[1].states) > 0
        assert (figures.inflight_bytes, figures.inflight_rows) == (0, 0)

    def test_the_watermark_is_recorded_with_the_same_cut(self) -> None:
        bench = Bench(join(Seen())).started()
        for sender, watermark in ((LEFT, 10), (RIGHT, 7)):
            bench.watermark(sender, watermark)
            bench.barrier(sender, barrier(1))
        bench.watermark(RIGHT, 9)
        bench.work()
        assert reports(bench)[1].watermarks == ((MAP, 7),)

    def test_a_barrier_that_is_forwarded_is_older_by_the_time_it_waited_here(self) -> None:
        bench = Bench(join(Seen())).started()
        bench.barrier(LEFT, barrier(1).aged(30))
        bench.clock.advance(12)
        bench.barrier(RIGHT, barrier(1).aged(99))
        assert [frame.barrier.age_ms for frame in bench.transport.of(BarrierFrame)] == [42]


class TestUnaligned:
    def test_a_forced_trigger_captures_what_waits_and_all_that_still_arrives_before_the_barriers(self) -> None:
        bench = Bench(join(Seen())).started()
        bench.batch(LEFT, 1)
        bench.watermark(LEFT, 3)
        bench.trigger(unaligned(1))
        assert forwarded(bench) == [(1, True)]
        bench.batch(LEFT, 2)
        bench.batch(RIGHT, 10)
        bench.work()
        bench.barrier(LEFT, unaligned(1))
        bench.batch(LEFT, 3)
        bench.batch(RIGHT, 11)
        assert reports(bench) == {}
        bench.barrier(RIGHT, unaligned(1))
        bench.batch(RIGHT, 12)
        report = reports(bench)[1]
        assert in_flight(bench, report) == {LEFT_IN: [[1], 3, [2]], RIGHT_IN: [[10], [11]]}
        assert (report.cut, in_state(bench, report)) == (SnapshotKind.FORCED, [])
        assert (report.figures.inflight_rows, report.figures.inflight_bytes) == (
            4,
            sum(segment.segment.length for segment in report.channels),
        )

    def test_what_was_captured_is_processed_all_the_same(self) -> None:
        seen = Seen()
        bench = Bench(join(seen)).started()
        bench.batch(LEFT, 1)
        bench.trigger(unaligned(1))
        bench.batch(LEFT, 2)
        bench.work()
        assert seen.processed == [1, 2]

    def test_on_timeout_the_records_in_front_of_the_barriers_are_captured(self) -> None:
        bench = Bench(join(Seen())).started()
        bench.trigger(barrier(1, timeout_ms=100))
        bench.barrier(LEFT, barrier(1, timeout_ms=100).aged(20))
        bench.batch(LEFT, 9)
        bench.batch(RIGHT, 1)
        bench.barrier(RIGHT, barrier(1, timeout_ms=100).aged(20))
        bench.batch(RIGHT, 2)
        bench.pass_time(99)
        assert forwarded(bench) == []
        bench.pass_time(1)
        assert forwarded(bench) == [(1, True)]
        report = reports(bench)[1]
        assert (report.cut, in_flight(bench, report)) == (SnapshotKind.TIMED_OUT, {RIGHT_IN: [[1]]})

    def test_an_unaligned_barrier_passes_a_full_output(self) -> None:
        # I11: neither credit nor backpressure holds it up, and what it passed on its way out is captured here.
        bench = Bench(join(Seen()), credit_limit_bytes=ROW, output_bytes_max=ROW).started()
        for number in range(5):
            bench.batch(LEFT, number, cost=0)
        bench.work()
        assert not bench.worker.can_work
        for sender in (LEFT, RIGHT):
            bench.barrier(sender, unaligned(1))
        assert forwarded(bench) == [(1, True)]
        report = reports(bench)[1]
        assert in_flight(bench, report) == {LEFT_IN: [[2], [3], [4]], OUT: [[1]]}
        assert in_state(bench, report) == [0, 1]

    def test_an_unaligned_barrier_passes_a_blocked_channel(self) -> None:
        # A barrier that overtakes must pass a blocked channel.
        bench = Bench(join(Seen())).started()
        bench.barrier(LEFT, barrier(1))
        bench.batch(LEFT, 1)
        bench.barrier(LEFT, unaligned(2))
        assert forwarded(bench) == [(2, True)]
        bench.barrier(RIGHT, unaligned(2))
        assert in_flight(bench, reports(bench)[2]) == {LEFT_IN: [[1]]}

    def test_a_barrier_that_turned_unaligned_upstream_passes_the_records_that_wait_here(self) -> None:
        bench = Bench(join(Seen())).started()
        bench.trigger(barrier(1, timeout_ms=10_000))
        bench.batch(LEFT, 1)
        bench.barrier(LEFT, barrier(1, timeout_ms=10_000).overtaking())
        assert forwarded(bench) == [(1, True)]
        bench.barrier(RIGHT, barrier(1, timeout_ms=10_000))
        report = reports(bench)[1]
        assert (report.cut, in_flight(bench, report)) == (SnapshotKind.OVERTAKEN, {LEFT_IN: [[1]]})

    def test_a_barrier_that_waits_in_a_full_queue_past_the_timeout_turns_unaligned_there(self) -> None:
        bench = Bench(join(Seen()), credit_limit_bytes=3 * ROW).started()
        for number in range(5):
            bench.batch(LEFT, number, cost=0)
        bench.work()
        for sender in (LEFT, RIGHT):
            bench.barrier(sender, barrier(1, timeout_ms=100))
        bench.batch(LEFT, 7, cost=0)
        bench.work()
        assert (forwarded(bench), reports(bench)) == ([], {})
        bench.pass_time(100)
        assert forwarded(bench) == [(1, True)]
        report = reports(bench)[1]
        assert (report.cut, in_flight(bench, report)) == (SnapshotKind.ALIGNED, {OUT: [[3], [4]]})

    def test_a_barrier_that_leaves_in_its_turn_captures_nothing_and_only_then_is_acknowledged(self) -> None:
        bench = Bench(join(Seen()), credit_limit_bytes=ROW).started()
        for number in range(2):
            bench.batch(LEFT, number, cost=0)
        bench.work()
        for sender in (LEFT, RIGHT):
            bench.barrier(sender, barrier(1, timeout_ms=100))
        assert reports(bench) == {}
        bench.worker.deliver(CreditFrame(GENERATION, bench.channel(MAP, WRITE), ROW, ROW))
        assert forwarded(bench) == [(1, False)]
        assert reports(bench)[1].channels == ()
        bench.pass_time(100)
        assert forwarded(bench) == [(1, False)]

    def test_an_input_that_must_be_aligned_is_never_captured(self) -> None:
        seen = Seen()
        bench = Bench(join(seen, Partitioning.BROADCAST)).started()
        bench.batch(LEFT, 1)
        bench.trigger(unaligned(1))
        for sender in (LEFT, RIGHT):
            bench.barrier(sender, unaligned(1))
        assert forwarded(bench) == []
        bench.work()
        report = reports(bench)[1]
        assert (report.cut, report.channels, in_state(bench, report)) == (SnapshotKind.ALIGNED, (), [1])
        assert forwarded(bench) == [(1, True)]

    def test_the_end_of_a_late_channel_completes_it_and_is_not_captured(self) -> None:
        bench = Bench(join(Seen())).started()
        bench.trigger(unaligned(1))
        bench.batch(LEFT, 1)
        bench.end(LEFT)
        bench.barrier(RIGHT, unaligned(1))
        assert in_flight(bench, reports(bench)[1]) == {LEFT_IN: [[1]]}

    def test_a_checkpoint_behind_an_end_that_waits_for_credit_captures_what_is_in_front_of_it(self) -> None:
        bench = Bench(join(Seen()), credit_limit_bytes=5 * ROW, slice_rows_max=1).started()
        for number in range(7):
            bench.batch(LEFT, number, cost=0)
        bench.end(LEFT)
        bench.end(RIGHT)
        bench.work()
        assert bench.transport.of(EndFrame) == []
        bench.trigger(unaligned(1))
        assert forwarded(bench) == [(1, True)]
        assert in_flight(bench, reports(bench)[1]) == {OUT: [[5], [6]]}
        for _ in range(2):
            bench.worker.deliver(CreditFrame(GENERATION, bench.channel(MAP, WRITE), ROW, 5 * ROW))
        assert len(bench.transport.of(EndFrame)) == 1

    def test_an_aligned_barrier_leaves_in_front_of_an_end_that_waits_for_credit(self) -> None:
        bench = Bench(join(Seen()), credit_limit_bytes=3 * ROW).started()
        for number in range(4):
            bench.batch(LEFT, number, cost=0)
        bench.end(LEFT)
        bench.end(RIGHT)
        bench.work()
        bench.trigger(barrier(1))
        assert reports(bench) == {}
        bench.worker.deliver(CreditFrame(GENERATION, bench.channel(MAP, WRITE), ROW, 3 * ROW))
        sent = [type(frame) for _, frame in bench.transport.sent if isinstance(frame, BarrierFrame | EndFrame)]
        assert sent == [BarrierFrame, EndFrame]
        assert list(reports(bench)) == [1]

    def test_nothing_is_forwarded_behind_an_end_and_the_checkpoint_is_acknowledged_all_the_same(self) -> None:
        bench = Bench(join(Seen())).started()
        bench.end(LEFT)
        bench.end(RIGHT)
        bench.work()
        bench.trigger(unaligned(1))
        assert (forwarded(bench), list(reports(bench))) == ([], [1])


class TestBounds:
    def test_captured_bytes_are_counted_until_the_acknowledgement(self) -> None:
        bench = Bench(join(Seen())).started()
        bench.batch(LEFT, 1, 2)
        bench.trigger(unaligned(1))
        assert bench.worker.captured_bytes == 2 * ROW
        bench.batch(RIGHT, 3)
        assert bench.worker.captured_bytes == 3 * ROW
        for sender in (LEFT, RIGHT):
            bench.barrier(sender, unaligned(1))
        assert bench.worker.captured_bytes == 3 * ROW
        assert list(reports(bench)) == [1]
        assert bench.worker.captured_bytes == 0

    @pytest.mark.parametrize("how", ["cancel", "supersede", "late"])
    def test_captured_bytes_are_given_back_when_the_checkpoint_is_given_up(self, how: str) -> None:
        bench = Bench(join(Seen()), late_barrier_timeout_ms=500).started()
        bench.batch(LEFT, 1)
        bench.trigger(unaligned(1))
        assert bench.worker.captured_bytes == ROW
        match how:
            case "cancel":
                bench.trigger(unaligned(1).cancelled())
            case "supersede":
                bench.trigger(barrier(2))
            case "late":
                bench.pass_time(500)
        assert bench.worker.captured_bytes == 0
        bench.batch(LEFT, 2)
        bench.background.run()
        assert (bench.worker.captured_bytes, reports(bench)) == (0, {})
        assert not any(channel.capturing for channel in bench.subtask.inputs.values())

    @pytest.mark.parametrize("arrives", ["before", "after"])
    def test_more_than_the_bound_declines_with_that_reason_and_reports_nothing_else(self, arrives: str) -> None:
        bench = Bench(join(Seen()), inflight_bytes_max=3 * ROW).started()
        if arrives == "before":
            bench.batch(LEFT, 1, 2, 3, 4)
        bench.trigger(unaligned(1))
        if arrives == "after":
            bench.batch(LEFT, 1, 2, 3)
            assert reasons(bench) == []
            bench.batch(LEFT, 4)
        assert reasons(bench) == [(1, DeclineReason.CAPTURE_OVERFLOW)]
        for sender in (LEFT, RIGHT):
            bench.barrier(sender, unaligned(1))
        assert (reports(bench), bench.worker.captured_bytes) == ({}, 0)
        assert reasons(bench) == [(1, DeclineReason.CAPTURE_OVERFLOW)]

    def test_the_bound_counts_both_sides_of_a_subtask(self) -> None:
        bench = Bench(join(Seen()), credit_limit_bytes=3 * ROW, inflight_bytes_max=3 * ROW).started()
        for number in range(5):
            bench.batch(LEFT, number, cost=0)
        bench.work()
        bench.batch(LEFT, 5, 6, cost=0)
        bench.trigger(unaligned(1))
        assert reasons(bench) == [(1, DeclineReason.CAPTURE_OVERFLOW)]

    def test_after_an_overflow_the_next_checkpoint_works(self) -> None:
        bench = Bench(join(Seen()), inflight_bytes_max=ROW).started()
        bench.batch(LEFT, 1, 2)
        bench.trigger(unaligned(1))
        bench.work()
        bench.trigger(unaligned(2))
        for sender in (LEFT, RIGHT):
            bench.barrier(sender, unaligned(1))
            bench.barrier(sender, unaligned(2))
        assert in_state(bench, reports(bench)[2]) == [1, 2]

    def test_a_late_barrier_that_never_comes_is_given_up(self) -> None:
        bench = Bench(join(Seen()), late_barrier_timeout_ms=500).started()
        bench.trigger(unaligned(1))
        bench.pass_time(499)
        assert reasons(bench) == []
        bench.pass_time(1)
        assert reasons(bench) == [(1, DeclineReason.LATE_BARRIER_TIMEOUT)]

    def test_late_barriers_that_came_in_time_stop_the_clock(self) -> None:
        bench = Bench(join(Seen()), late_barrier_timeout_ms=500).started()
        bench.trigger(unaligned(1))
        for sender in (LEFT, RIGHT):
            bench.barrier(sender, unaligned(1))
        bench.pass_time(500)
        assert (reasons(bench), list(reports(bench))) == ([], [1])


def _broken(segment_bytes: int) -> Callable[[], list[Piece]]:
    raise ValueError("no snapshot")


class FailingStore(MemoryStore):
    """A store that cannot write while `is_full`."""

    is_full = False

    def write(self, path: str, parts: object) -> None:
        if self.is_full:
            raise StorageError(f"no room for {path}")
        super().write(path, parts)  # type: ignore[arg-type]


class TestFailures:
    def aligned(self, bench: Bench, number: int, completed: int = 0) -> None:
        sent = barrier(number, completed=completed)
        bench.trigger(sent)
        for sender in (LEFT, RIGHT):
            bench.barrier(sender, sent)

    def snapshots_fail(self, bench: Bench) -> contextlib.AbstractContextManager[object]:
        chain = bench.worker.subtasks[MAP_1].chain
        return mock.patch.object(chain, "snapshot", side_effect=ValueError("no snapshot"))

    def test_a_writer_that_cannot_prepare_ends_the_worker_because_it_may_have_cut_its_output(self) -> None:
        sink = Staging()
        bench = Bench(join(Seen(), sink=sink, is_chained=True)).started()
        bench.batch(LEFT, 1)
        bench.work()
        sink.failing.add("prepare")
        self.aligned(bench, 1)
        (failed,) = bench.transport.of(FailedFrame)
        assert "operator 'write'" in failed.error and "prepare raised ValueError: cannot prepare" in failed.error
        assert bench.transport.of(DeclineFrame) == [] and not reports(bench)

    def test_a_snapshot_that_fails_declines_and_later_checkpoints_work(self) -> None:
        sink = Staging()
        bench = Bench(join(Seen(), sink=sink, is_chained=True)).started()
        bench.batch(LEFT, 1)
        bench.work()
        with self.snapshots_fail(bench):
            self.aligned(bench, 1)
        (frame,) = bench.transport.of(DeclineFrame)
        assert (frame.reason, frame.detail, frame.subtask) == (
            DeclineReason.SNAPSHOT_FAILED,
            "ValueError: no snapshot",
            MAP_1,
        )
        self.aligned(bench, 2)
        assert list(reports(bench)) == [2]
        assert bench.transport.of(FailedFrame) == []

    def test_an_unaligned_snapshot_that_fails_leaves_nothing_behind(self) -> None:
        sink = Staging()
        bench = Bench(join(Seen(), sink=sink, is_chained=True)).started()
        bench.batch(LEFT, 1)
        bench.barrier(LEFT, barrier(1, timeout_ms=50))
        with self.snapshots_fail(bench):
            bench.pass_time(50)
        assert reasons(bench) == [(1, DeclineReason.SNAPSHOT_FAILED)]
        bench.trigger(barrier(1).cancelled())
        bench.batch(RIGHT, 2)
        bench.work()
        assert bench.worker.captured_bytes == 0
        self.aligned(bench, 2)
        report = reports(bench)[2]
        assert report.committables == (Committable(WRITE, 1, b"1,2"),)
        assert reasons(bench) == [(1, DeclineReason.SNAPSHOT_FAILED)]

    @pytest.mark.parametrize("what", ["state", "channels"])
    def test_a_write_that_fails_declines_and_later_checkpoints_work(self, what: str) -> None:
        store = FailingStore()
        bench = Bench(join(Seen()), store=store).started()
        bench.batch(LEFT, 1)
        if what == "state":
            bench.work()
        store.is_full = True
        bench.trigger(unaligned(1))
        for sender in (LEFT, RIGHT):
            bench.barrier(sender, unaligned(1))
        bench.background.run()
        assert reasons(bench) == [(1, DeclineReason.STORAGE_FAILED)]
        assert "no room for" in bench.transport.of(DeclineFrame)[0].detail
        assert bench.worker.captured_bytes == 0
        store.is_full = False
        bench.work()
        self.aligned(bench, 2)
        assert in_state(bench, reports(bench)[2]) == [1]

    def test_both_writes_may_fail_and_it_is_declined_once(self) -> None:
        store = FailingStore()
        bench = Bench(join(Seen()), store=store).started()
        bench.batch(LEFT, 1)
        bench.work()
        bench.batch(LEFT, 2)
        store.is_full = True
        bench.trigger(unaligned(1))
        for sender in (LEFT, RIGHT):
            bench.barrier(sender, unaligned(1))
        bench.background.run()
        assert reasons(bench) == [(1, DeclineReason.STORAGE_FAILED)]

    def test_what_the_background_brings_for_a_checkpoint_that_was_cancelled_is_ignored(self) -> None:
        bench = Bench(join(Seen())).started()
        bench.batch(LEFT, 1)
        bench.trigger(unaligned(1))
        for sender in (LEFT, RIGHT):
            bench.barrier(sender, unaligned(1))
        bench.trigger(unaligned(1).cancelled())
        assert (reports(bench), reasons(bench)) == ({}, [])

    def test_a_subtask_that_is_not_restored_declines_once_and_takes_part_in_the_next(self) -> None:
        bench = Bench(join(Seen()))
        bench.worker.start()
        self.aligned(bench, 1)
        bench.batch(LEFT, 1)
        assert reasons(bench) == [(1, DeclineReason.SUBTASK_NOT_READY)]
        bench.background.run()
        bench.work()
        self.aligned(bench, 2)
        assert in_state(bench, reports(bench)[2]) == [1]
        assert reasons(bench) == [(1, DeclineReason.SUBTASK_NOT_READY)]

    def test_a_snapshot_that_fails_with_full_queues_captures_for_nobody(self) -> None:
        bench = Bench(join(Seen()), credit_limit_bytes=3 * ROW).started()
        for number in range(5):
            bench.batch(LEFT, number, cost=0)
        bench.work()
        bench.subtask.chain.snapshot = _broken  # type: ignore[method-assign]
        bench.trigger(unaligned(1))
        assert reasons(bench) == [(1, DeclineReason.SNAPSHOT_FAILED)]
        assert forwarded(bench) == [(1, True)], "those downstream must not wait for it"
        assert not bench.subtask.checkpointer.has_pending
        assert (bench.worker.captured_bytes, reports(bench)) == (0, {})

    def test_a_cancelled_alignment_frees_its_channels(self) -> None:
        seen = Seen()
        bench = Bench(join(seen)).started()
        bench.barrier(LEFT, barrier(1))
        bench.batch(LEFT, 1)
        bench.work()
        assert seen.processed == []
        bench.trigger(barrier(1).cancelled())
        bench.work()
        assert (seen.processed, reasons(bench)) == ([1], [])


class Stateless(Seen):
    """Passes records on and remembers nothing."""

    def open(self, context: OperatorContext) -> None: ...

    def process(self, batch: pa.RecordBatch, source: int, emit: Emit) -> None:
        emit(batch)

    def on_restored(self, emit: Emit) -> None: ...


class TestInline:
    """What is small travels inside the manifest, and nobody waits for a file."""

    def captured(self, rows_each: int, batches: int = 1, **options: int) -> tuple[Bench, SubtaskReport]:
        """A checkpoint with an empty state and so much in flight."""
        bench = Bench(join(Seen()), **options).started()
        for number in range(batches):
            bench.batch(LEFT, *range(number * rows_each, (number + 1) * rows_each))
        for sender in (LEFT, RIGHT):
            bench.barrier(sender, unaligned(1))
        return bench, reports(bench)[1]

    def test_in_flight_data_up_to_the_share_of_the_subtask_are_in_the_manifest_and_more_in_a_file(self) -> None:
        share = 10_000
        options = {"inline_bytes_max": share * len(Bench(join(Seen())).plan.subtasks)}
        small, large = (self.captured(count, **options) for count in (share // ROW - 100, share // ROW + 100))
        for (bench, report), is_inline in ((small, True), (large, False)):
            (segment,) = report.channels
            assert (segment.segment.inline is not None, segment.segment.path is None) == (is_inline, is_inline)
            assert list(bench.store.blobs) == ([] if is_inline else [segment.segment.path])
            assert in_flight(bench, report) == {LEFT_IN: [list(range(segment.rows))]}

    def test_the_share_is_that_of_all_subtasks_of_the_pipeline(self) -> None:
        bench = Bench(join(Seen()), inline_bytes_max=1_000).started()
        assert len(bench.plan.subtasks) == 5
        assert bench.worker._services.inline_bytes_max == 200

    def test_many_tiny_batches_are_as_much_as_they_will_be_in_the_manifest(self) -> None:
        share = 10_000
        _, report = self.captured(1, batches=100, inline_bytes_max=5 * share)
        assert 100 * ROW < share < sum(segment.segment.length for segment in report.channels)
        assert all(segment.segment.inline is None for segment in report.channels)
        _, report = self.captured(1, batches=20, inline_bytes_max=5 * share)
        assert all(segment.segment.inline is not None for segment in report.channels)
        assert sum(segment.segment.length for segment in report.channels) < share

    def test_both_sides_of_a_subtask_count(self) -> None:
        bench = Bench(join(Seen()), credit_limit_bytes=3 * ROW, inline_bytes_max=5 * 1_000).started()
        for number in range(5):
            bench.batch(LEFT, number, cost=0)
        bench.work()
        bench.batch(RIGHT, 7, cost=0)
        for sender in (LEFT, RIGHT):
            bench.barrier(sender, unaligned(1))
        report = reports(bench)[1]
        assert in_flight(bench, report) == {RIGHT_IN: [[7]], OUT: [[3], [4]]}
        assert all(segment.segment.path is not None for segment in report.channels), "each of them would fit"

    def test_what_is_inline_needs_no_background_and_what_is_not_does(self) -> None:
        for inline_bytes_max, jobs in ((10**6, 1), (0, 2)):
            bench = Bench(join(Seen()), inline_bytes_max=inline_bytes_max).started()
            bench.batch(LEFT, 1)
            for sender in (LEFT, RIGHT):
                bench.barrier(sender, unaligned(1))
            assert len(bench.background.jobs) == jobs, "one for the state"
            assert bench.transport.of(AcknowledgeFrame) == []
            assert in_flight(bench, reports(bench)[1]) == {LEFT_IN: [[1]]}

    def test_a_chain_without_state_and_sink_is_acknowledged_at_once(self) -> None:
        bench = Bench(join(Stateless()), inline_bytes_max=10**6).started()
        bench.batch(LEFT, 1)
        for sender in (LEFT, RIGHT):
            bench.barrier(sender, unaligned(1))
        (frame,) = bench.transport.of(AcknowledgeFrame)
        assert not bench.background.jobs
        assert (frame.report.states, in_flight(bench, frame.report)) == ((), {LEFT_IN: [[1]]})
        assert bench.worker.captured_bytes == 0

    def test_so_is_a_source_with_its_positions(self) -> None:
        bench = Bench(read(Numbers({"a": [], "b": list(range(10))}))).started()
        bench.work(1)
        bench.trigger(barrier(1))
        (frame,) = bench.transport.of(AcknowledgeFrame)
        assert [split.offset for split in frame.report.splits] == [b"2"]

    def test_a_sink_is_not_before_what_it_has_staged_is_durable(self) -> None:
        bench = Bench(join(Stateless(), is_chained=True)).started()
        bench.batch(LEFT, 1)
        bench.work()
        for sender in (LEFT, RIGHT):
            bench.barrier(sender, barrier(1))
        assert bench.transport.of(AcknowledgeFrame) == []
        assert reports(bench)[1].committables == (Committable(WRITE, 1, b"1"),)


class TestSinks:
    def test_the_committables_of_a_checkpoint_that_failed_are_handed_over_again(self) -> None:
        bench = Bench(join(Seen(), is_chained=True)).started()
        bench.batch(LEFT, 1)
        bench.work()
        checkpoints = TestFailures()
        checkpoints.aligned(bench, 1)
        bench.background.run()
        bench.trigger(barrier(1).cancelled())
        bench.batch(LEFT, 2)
        bench.work()
        checkpoints.aligned(bench, 2)
        bench.background.run()
        bench.batch(LEFT, 3)
        bench.work()
        checkpoints.aligned(bench, 3, completed=2)
        handed_over = {number: [each.payload for each in made.committables] for number, made in reports(bench).items()}
        assert handed_over == {1: [b"1"], 2: [b"1", b"2"], 3: [b"3"]}

    def test_a_sink_may_be_unaligned_because_its_committables_travel_with_the_acknowledgement(self) -> None:
        bench = Bench(join(Seen(), is_chained=True)).started()
        bench.batch(LEFT, 1)
        bench.work()
        bench.batch(LEFT, 2)
        for sender in (LEFT, RIGHT):
            bench.barrier(sender, unaligned(1))
        report = reports(bench)[1]
        assert [each.payload for each in report.committables] == [b"1"]
        assert in_flight(bench, report) == {LEFT_IN: [[2]]}


class TestSources:
    def test_positions_are_those_of_the_cut_and_not_of_the_acknowledgement(self) -> None:
        # A defect elsewhere: source offsets were always empty.
        bench = Bench(read(Numbers({"a": [], "b": list(range(10))}))).started()
        bench.work(1)
        bench.trigger(barrier(1))
        bench.work(1)
        (split,) = reports(bench)[1].splits
        assert (split.operator, split.split, split.offset) == (READ, "b", b"2")

    def test_the_barrier_is_behind_what_was_emitted_and_in_front_of_the_rest(self) -> None:
        bench = Bench(read(Numbers({"a": [], "b": list(range(4))}))).started()
        bench.work(1)
        bench.trigger(barrier(1))
        bench.work(1)
        kinds = [type(frame) for _, frame in bench.transport.sent if isinstance(frame, BatchFrame | BarrierFrame)]
        assert kinds == [BatchFrame, BarrierFrame, BatchFrame]

    def test_a_source_stops_after_a_drain_barrier_and_resumes_when_that_is_cancelled(self) -> None:
        bench = Bench(read(Numbers({"a": [], "b": list(range(6))}))).started()
        bench.work(1)
        drain = barrier(1, BarrierFlag.DRAIN)
        bench.trigger(drain)
        bench.work()
        assert values([frame.batch for frame in bench.transport.of(BatchFrame)]) == [0, 1]
        assert list(reports(bench)) == [1]
        bench.work()
        assert not bench.worker.can_work
        bench.trigger(drain.cancelled())
        bench.work()
        assert values([frame.batch for frame in bench.transport.of(BatchFrame)]) == list(range(6))

    def test_a_source_resumes_too_when_a_newer_checkpoint_that_is_no_drain_fails_elsewhere(self) -> None:
        bench = Bench(read(Numbers({"a": [], "b": list(range(6))}))).started()
        bench.trigger(barrier(1, BarrierFlag.DRAIN))
        bench.trigger(barrier(2).cancelled())
        assert bench.worker.can_work

    def test_the_trigger_of_a_checkpoint_is_heard_by_every_source_of_a_worker(self) -> None:
        # A defect elsewhere: one handle of several claimed the barrier, and the others never saw it.
        bench = Bench(join(Seen()), worker=0).started()
        bench.trigger(barrier(1))
        assert {str(frame.report.subtask) for frame in bench.acknowledged()} == {"left[0]", "right[0]"}


class TestRestoring:
    def interrupted(self, **settings: int) -> tuple[Manifest, MemoryStore]:
        """Checkpoint 1: [1] in the state, [2, 3], [4] and a watermark in flight on the left, [9] on the right."""
        bench = Bench(join(Seen()), **settings).started()
        bench.batch(LEFT, 1)
        bench.watermark(LEFT, 50)
        bench.watermark(RIGHT, 40)
        bench.work()
        bench.batch(LEFT, 2, 3)
        bench.watermark(LEFT, 60)
        bench.batch(LEFT, 4)
        bench.batch(RIGHT, 9)
        for sender in (LEFT, RIGHT):
            bench.barrier(sender, unaligned(1))
        return bench.manifest(1), bench.store

    def test_event_time_does_not_go_back_behind_what_was_restored(self) -> None:
        manifest, store = self.interrupted()
        seen = Seen()
        bench = Bench(join(seen), store=store, manifest=manifest).started()
        bench.watermark(RIGHT, 35)
        bench.work()
        assert seen.watermarks == [], "40 was reached before"

    @pytest.mark.parametrize("inline_bytes_max", [0, 10**6])
    def test_state_comes_back_and_recovered_records_come_before_live_ones(self, inline_bytes_max: int) -> None:
        manifest, store = self.interrupted(inline_bytes_max=inline_bytes_max)
        assert bool(store.blobs) is not bool(inline_bytes_max)
        seen = Seen()
        bench = Bench(join(seen), store=store, manifest=manifest)
        bench.worker.start()
        bench.batch(LEFT, 100)
        bench.batch(RIGHT, 200)
        bench.background.run()
        bench.work()
        assert ("on_restored", [1]) in seen.log
        assert [number for number in seen.processed if number not in (9, 200)] == [2, 3, 4, 100]
        assert [number for number in seen.processed if number in (9, 200)] == [9, 200]

    def test_nobody_gets_credit_for_recovered_records(self) -> None:
        manifest, store = self.interrupted()
        bench = Bench(join(Seen()), store=store, manifest=manifest).started()
        bench.work()
        assert bench.transport.of(CreditFrame) == []

    def test_event_time_goes_on_where_it_was_and_everybody_downstream_is_told(self) -> None:
        manifest, store = self.interrupted()
        seen = Seen()
        bench = Bench(join(seen), store=store, manifest=manifest).started()
        assert [frame.watermark for frame in bench.transport.of(WatermarkFrame)] == [40]
        bench.watermark(RIGHT, 55)
        bench.work()
        assert seen.watermarks == [55], "60 came back with the records of the left, so 55 is the slowest now"

    def test_a_checkpoint_during_recovery_holds_each_unconsumed_record_once(self) -> None:
        # I10: a recovered buffer must not be persisted at the start of the checkpoint and again when it is read.
        manifest, store = self.interrupted()
        bench = Bench(join(Seen()), store=store, manifest=manifest, slice_rows_max=1).started()
        bench.work(1)
        bench.trigger(unaligned(2))
        bench.batch(LEFT, 100)
        bench.work()
        for sender in (LEFT, RIGHT):
            bench.barrier(sender, unaligned(2))
        report = reports(bench)[2]
        held = in_flight(bench, report)
        assert held == {LEFT_IN: [[3], 60, [4], [100]], RIGHT_IN: [[9]]}
        assert in_state(bench, report) == [1, 2]

    def test_the_steps_of_a_recovery_are_timed(self) -> None:
        manifest, store = self.interrupted()
        bench = Bench(join(Seen()), store=store, manifest=manifest, slice_rows_max=1, heartbeat_ms=1000)
        bench.worker.start()
        assert bench.subtask.recovery() == RecoveryStats()
        bench.clock.advance(5)
        bench.background.run()
        left = sum(channel.segment.length for report in manifest.reports for channel in report.channels)
        state = sum(piece.segment.length for report in manifest.reports for piece in report.states)
        assert state > 0
        assert bench.subtask.recovery() == RecoveryStats(5, 0, None, None, left, state, state)
        bench.clock.advance(2)
        bench.work(1)
        bench.clock.advance(3)
        assert bench.subtask.recovery() == RecoveryStats(5, 0, 7, None, left, state, state)
        bench.work()
        assert bench.subtask.recovery() == RecoveryStats(5, 0, 7, 10, 0, state, state)

    def test_the_size_of_the_state_is_known_as_soon_as_it_is_restored(self) -> None:
        manifest, store = self.interrupted()
        state = sum(piece.segment.length for report in manifest.reports for piece in report.states)
        bench = Bench(join(Seen()), store=store, manifest=manifest, heartbeat_ms=1000)
        bench.worker.start()
        bench.background.run()
        bench.clock.advance(1000)
        bench.worker.fire_timers()
        sizes = told(bench.transport.of(HeartbeatFrame), STATE_BYTES)
        assert sizes[0] == 0 and sizes[-1] == state > 0, "unknown while it is read, then what was read"

    def test_time_for_which_others_had_the_core_does_not_shorten_its_slices(self) -> None:
        store = MemoryStore()
        before = Bench(join(Seen()), store=store).started()
        before.batch(LEFT, *range(5_024))
        before.batch(LEFT, 1)
        for sender in (LEFT, RIGHT):
            before.barrier(sender, unaligned(1))
        seen = Seen()
        bench = Bench(join(seen), store=store, manifest=before.manifest(1), slice_us=1_000).started()
        seen.clock, seen.us_per_row, seen.delay_us_per_row = bench.clock, 1, 99
        bench.work()
        assert seen.calls[:4] == [1_024, 1_000, 1_000, 1_000]

    def test_an_aligned_checkpoint_during_recovery_waits_for_the_recovered_records(self) -> None:
        # The end of a restore is when recovered records are consumed, not when they are read.
        manifest, store = self.interrupted()
        bench = Bench(join(Seen()), store=store, manifest=manifest).started()
        for sender in (LEFT, RIGHT):
            bench.barrier(sender, barrier(2))
        assert reports(bench) == {}
        bench.work()
        report = reports(bench)[2]
        assert (sorted(in_state(bench, report)), report.channels) == ([1, 2, 3, 4, 9], ())

    def test_each_input_goes_over_to_live_records_on_its_own(self) -> None:
        # Waiting for all of them deadlocks an operator that reads selectively.
        manifest, store = self.interrupted()
        seen = Seen()
        bench = Bench(join(seen), store=store, manifest=manifest, slice_rows_max=1).started()
        bench.batch(RIGHT, 200)
        while seen.processed[-1:] != [200]:
            assert bench.worker.work()
        assert bench.subtask.inputs[bench.channel(LEFT)].recovered

    def test_sources_go_on_behind_their_positions(self) -> None:
        first = Bench(read(Numbers({"a": [], "b": list(range(6))}))).started()
        first.work(1)
        first.trigger(barrier(1))
        source = Numbers({"a": [], "b": list(range(6))})
        again = Bench(read(source), store=first.store, manifest=first.manifest(1)).started()
        again.work()
        assert source.opened == [("b", b"2")]
        assert values([frame.batch for frame in again.transport.of(BatchFrame)]) == [2, 3, 4, 5]

    def test_a_subtask_that_was_at_its_end_comes_to_its_end_again(self) -> None:
        first = Bench(read(Numbers({"a": [], "b": [1]}))).started()
        first.work()
        first.trigger(barrier(1))
        again = Bench(read(Numbers({"a": [], "b": [1]})), store=first.store, manifest=first.manifest(1)).started()
        again.work()
        assert again.transport.of(BatchFrame) == []
        assert len(again.transport.of(EndFrame)) == 1

    def test_the_last_watermark_is_said_by_the_end_and_by_nothing_else_after_a_restore_too(self) -> None:
        # What is emitted on the way to the end would be late otherwise.
        class Last(Seen):
            def on_end(self, emit: Emit) -> None:
                emit(rows(77))

        first = Bench(join(Last())).started()
        first.trigger(barrier(1))
        first.end(LEFT)
        first.end(RIGHT)
        first.work()
        manifest = first.manifest(1)
        assert [report.watermarks for report in manifest.reports if report.watermarks] == [((MAP, MIN_WATERMARK),)]
        again = Bench(join(Last()), store=first.store, manifest=manifest).started()
        again.end(LEFT)
        again.end(RIGHT)
        again.work()
        sent = [frame for _, frame in again.transport.sent if isinstance(frame, BatchFrame | WatermarkFrame | EndFrame)]
        assert [type(frame) for frame in sent] == [BatchFrame, EndFrame]

    def test_rows_of_other_owners_are_left_out_after_a_rescale(self) -> None:
        # I9: what one receiver held is dealt out by the key groups of the new parallelism.
        seen = Seen()
        first = Bench(join(seen, Partitioning.HASH)).started()
        first.batch(LEFT, *range(100))
        first.barrier(LEFT, unaligned(1))
        first.barrier(RIGHT, unaligned(1))
        manifest = first.manifest(1)
        (held,) = [segment for report in manifest.reports for segment in report.channels]
        assert held.rows == 100
        taken = []
        for index in range(3):
            graph = join(Seen(), Partitioning.HASH)
            nodes = tuple(replace(node, parallelism=3) if node.name == MAP else node for node in graph.nodes)
            wider = plan(Graph(graph.name, nodes, graph.edges), 1, workers=2)
            taken.append(recovered(restore(first.store, manifest, wider, SubtaskId(MAP, index), lambda *piece: None)))
        owned = {number for part in taken for number in part}
        assert sum(map(len, taken)) == len(owned)
        assert taken[0] == [], "the lower third of the key groups never belonged to this receiver"


def recovered(restored: Restored) -> list[int]:
    items = [item for channel in restored.channels.values() for item in channel]
    return values([item.batch for item in items if isinstance(item, BatchItem)])


def test_what_is_captured_is_written_from_references_and_not_from_copies() -> None:
    bench = Bench(join(Seen())).started()
    sent: pa.RecordBatch = bench.batch(LEFT, 1)
    bench.trigger(unaligned(1))
    pending = bench.subtask.checkpointer._pending
    assert pending is not None
    (item,) = pending.inputs[bench.channel(LEFT)].items
    assert isinstance(item, BatchItem) and item.batch is sent
    assert pending.checkpoint == CheckpointId(1)
    assert bench.transport.of(AcknowledgeFrame) == []
