"""One worker, frame by frame: data, credit, watermarks, ends and failures. Its checkpoints have a file of their own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import pytest

from penstock.connectors.source import SplitReader
from penstock.errors import PipelineError, ProtocolViolation, RestoreError, UserCodeError
from penstock.ids import Generation, SubtaskId, WorkerId
from penstock.mailbox.frames import (
    AcknowledgeFrame,
    BarrierFrame,
    BatchFrame,
    BusyFrame,
    CompletedFrame,
    CreditFrame,
    EndedFrame,
    EndFrame,
    FailedFrame,
    HeartbeatFrame,
    ReadyFrame,
    StopFrame,
    TriggerFrame,
    WatermarkFrame,
)
from penstock.metrics.samples import Metrics
from penstock.metrics.standard import IS_BACK_PRESSURED, LATE
from penstock.model.event_time import MAX_WATERMARK
from penstock.protocol.barrier import BarrierFlag
from penstock.protocol.manifest import Partitioning, StateKind
from penstock.worker.settings import MIB
from penstock.worker.sources.source_stage import LISTINGS_FAILED_MAX
from penstock.worker.worker import _SLICES_PER_SOURCE, Worker, _Turns
from tests.unit.mailbox.fake_ports import (
    GENERATION,
    LEFT,
    MAP,
    MAP_1,
    READ,
    RIGHT,
    WRITE,
    Bench,
    NumberReader,
    Numbers,
    Seen,
    Staging,
    Told,
    barrier,
    join,
    read,
    rows,
    to_coordinator,
    told,
    values,
)

OLDER, NEWER = Generation(GENERATION - 1), Generation(GENERATION + 1)
ROW = rows(1).nbytes


class Hiccuping(Numbers):
    """Splits may appear, and its listing may fail."""

    splits_may_appear = True
    fails = False

    def splits(self) -> Sequence[str]:
        if self.fails:
            raise OSError("503 slow down")
        return super().splits()


class TestStarting:
    def test_it_hosts_its_share_of_the_subtasks_and_nothing_else(self) -> None:
        assert set(Bench(join(Seen())).started().worker.subtasks) == {MAP_1}
        assert set(Bench(read(Numbers({}))).started().worker.subtasks) == {SubtaskId(READ, 1)}

    def test_it_is_ready_when_every_subtask_is_restored_and_not_before(self) -> None:
        bench = Bench(join(Seen()), worker=0)
        bench.worker.start()
        subtasks = len(bench.worker.subtasks)
        assert subtasks == 4
        for _ in range(subtasks):
            assert bench.transport.of(ReadyFrame) == []
            bench.background.run_one()
        assert to_coordinator(bench.transport, ReadyFrame) == [ReadyFrame(GENERATION, WorkerId(0))]

    def test_a_worker_without_subtasks_is_ready_at_once(self) -> None:
        bench = Bench(join(Seen()), worker=7)
        bench.worker.start()
        assert bench.transport.of(ReadyFrame) == [ReadyFrame(GENERATION, WorkerId(7))]
        assert not bench.worker.work()

    def test_a_sign_of_life_tells_of_late_records(self) -> None:
        seen = Seen()
        bench = Bench(join(seen), heartbeat_ms=50).started()
        late = seen.context.metrics.counter(LATE)
        late.add(3)
        late.add(4)
        bench.pass_time(50)
        assert told(bench.transport.take(HeartbeatFrame), LATE) == [0, 7]

    def test_it_gives_a_sign_of_life_at_once_and_again_and_again(self) -> None:
        bench = Bench(join(Seen()), heartbeat_ms=50).started()
        assert len(bench.transport.take(HeartbeatFrame)) == 1
        for _ in range(3):
            bench.pass_time(49)
            assert bench.transport.take(HeartbeatFrame) == []
            bench.pass_time(1)
            assert len(bench.transport.take(HeartbeatFrame)) == 1

    def test_a_mailbox_that_is_in_one_call_owes_a_sign_of_life_and_another_thread_can_give_it(self) -> None:
        busy: list[BusyFrame] = []

        class Slow(Seen):
            def process(self, batch: Any, source: int, emit: Any) -> None:
                for ms in (50, 1, 2_000):
                    bench.clock.advance(ms)
                    if bench.worker.overdue_ms is not None:
                        busy.append(bench.worker.busy_frame(bench.worker.overdue_ms, "jobs.py:31 in score"))

        bench = Bench(join(Slow()), heartbeat_ms=50).started()
        assert bench.worker.overdue_ms is None
        bench.batch(LEFT, 1)
        bench.work()
        where = "operator 'map', subtask 1", "jobs.py:31 in score"
        assert busy == [BusyFrame(GENERATION, WorkerId(1), ms, *where) for ms in (51, 2_051)]
        bench.worker.fire_timers()
        assert bench.worker.overdue_ms is None, "it has given one itself"
        bench.clock.advance(60)
        assert bench.worker.busy_frame(60).doing == "the mailbox itself"
        bench.worker.stop()
        assert bench.worker.overdue_ms is None

    def test_a_worker_that_was_busy_does_not_take_that_for_the_silence_of_the_driver(self) -> None:
        bench = Bench(join(Seen()), heartbeat_ms=50, driver_silence_ms=1_000).started()
        bench.pass_time(5_000)
        assert not bench.worker.has_stopped, "words of the driver may still be waiting"
        for _ in range(20):
            bench.pass_time(50)
        failure = str(bench.worker.failure)
        assert "no message from the driver for 1050 ms" in failure, "silence is found all the same"

    def test_checkpoints_bring_fresh_figures_but_not_one_frame_each_and_the_last_one_final_ones(self) -> None:
        bench = Bench(join(Seen()), heartbeat_ms=10_000).started()
        assert len(bench.transport.take(HeartbeatFrame)) == 1

        def beats_at(number: int, flags: BarrierFlag = BarrierFlag.NONE) -> int:
            bench.trigger(barrier(number, flags))
            return len(bench.transport.take(HeartbeatFrame))

        bench.pass_time(99)
        assert beats_at(1) == 0, "figures are fresh enough"
        bench.pass_time(1)
        assert beats_at(2) == 1
        assert beats_at(3) == 0
        assert beats_at(4, BarrierFlag.DRAIN) == 1

    def test_a_subtask_that_is_not_restored_does_not_work_but_takes_what_arrives(self) -> None:
        seen = Seen()
        bench = Bench(join(seen))
        bench.worker.start()
        bench.batch(LEFT, 1)
        assert not bench.worker.can_work
        assert not bench.worker.work()
        bench.background.run()
        bench.work()
        assert seen.processed == [1]


class _Idle:
    """A subtask as far as taking turns goes."""

    def __init__(self) -> None:
        self.can_work = True


class TestTurns:
    def worker(self, sources: int, others: int) -> tuple[Worker, list[str]]:
        worker, worked = Bench(join(Seen())).worker, []
        worker._sources, worker._others = _Turns(), _Turns()
        for name, turns, count in (("source", worker._sources, sources), ("other", worker._others, others)):
            for number in range(count):
                subtask = _Idle()
                subtask.work = lambda label=f"{name} {number}": worked.append(label)  # type: ignore[attr-defined]
                turns.subtasks.append(subtask)  # type: ignore[arg-type]
        return worker, worked

    def test_what_was_read_is_finished_before_more_is_read(self) -> None:
        worker, worked = self.worker(sources=1, others=1)
        for _ in range(3):
            assert worker.work()
        worker._others.subtasks[0].can_work = False  # type: ignore[misc]
        assert worker.work()
        assert worked == ["other 0"] * 3 + ["source 0"]

    def test_but_a_source_is_never_forgotten(self) -> None:
        worker, worked = self.worker(sources=2, others=2)
        for _ in range(4 * (_SLICES_PER_SOURCE + 1)):
            assert worker.work()
        assert [worked.count(f"source {number}") for number in range(2)] == [2, 2]
        assert [worked.count(f"other {number}") for number in range(2)] == [16, 16]

    def test_if_nobody_has_anything_to_do_nothing_is_done(self) -> None:
        worker, _ = self.worker(sources=0, others=0)
        assert not worker.work()


class TestData:
    def test_records_go_through_the_chain_and_out_again(self) -> None:
        seen = Seen()
        bench = Bench(join(seen)).started()
        bench.batch(LEFT, 1, 2)
        bench.batch(RIGHT, 3)
        bench.work()
        assert seen.processed == [1, 2, 3]
        assert values([frame.batch for frame in bench.transport.of(BatchFrame)]) == [1, 2, 3]

    def test_channels_are_read_in_turn(self) -> None:
        seen = Seen()
        # A call that takes one row does not take more of the channel than that.
        bench = Bench(join(seen), slice_rows_max=1).started()
        for number in range(3):
            bench.batch(LEFT, number)
        bench.batch(RIGHT, 10)
        bench.work()
        assert seen.processed == [0, 10, 1, 2]

    def test_a_large_batch_is_worked_on_in_slices_and_its_price_comes_back_with_the_last(self) -> None:
        seen = Seen()
        bench = Bench(join(seen), slice_rows_max=2).started()
        bench.batch(LEFT, 1, 2, 3, 4, 5)
        for numbers in ([1, 2], [3, 4]):
            assert bench.worker.work()
            assert seen.log[-1] == ("process", numbers)
            assert bench.transport.of(CreditFrame) == []
        bench.work()
        assert bench.transport.of(CreditFrame) == [CreditFrame(GENERATION, bench.channel(LEFT), 5 * ROW, MIB)]

    def test_a_slow_operator_gets_shorter_slices(self) -> None:
        seen = Seen()
        bench = Bench(join(seen), slice_us=1_000).started()
        seen.clock, seen.us_per_row = bench.clock, 100
        bench.batch(LEFT, *range(2_000))
        bench.work()
        slices = [len(detail) for what, detail in seen.log if what == "process"]
        assert slices[0] == 1_024
        assert max(slices[1:]) == 10

    def test_time_for_which_others_had_the_core_does_not_make_slices_shorter(self) -> None:
        seen = Seen()
        bench = Bench(join(seen), slice_us=1_000).started()
        seen.clock, seen.us_per_row, seen.delay_us_per_row = bench.clock, 1, 99
        bench.batch(LEFT, *range(5_024))
        bench.work()
        assert seen.calls == [1_024, 1_000, 1_000, 1_000, 1_000], "1 µs for a record, whatever the others took"

    def test_nor_does_it_make_a_source_read_less_at_once(self) -> None:
        source = Numbers({"a": [], "b": list(range(5_024))}, chunk=5_024)
        bench = Bench(read(source), slice_us=1_000).started()
        asked: list[int] = []
        reading = NumberReader.read

        def slowly(reader: NumberReader, rows_max: int) -> object:
            batch = reading(reader, rows_max)
            asked.append(rows_max)
            bench.clock.us += rows_max
            bench.clock.delay(99 * rows_max)
            return batch

        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(NumberReader, "read", slowly)
            bench.work(5)
        assert asked[:5] == [1_024, 1_000, 1_000, 1_000, 1_000]

    def test_a_grant_is_not_held_back_behind_a_watermark(self) -> None:
        bench = Bench(join(Seen())).started()
        bench.batch(LEFT, 1, cost=10)
        bench.watermark(LEFT, 5)
        bench.worker.work()
        assert bench.transport.of(CreditFrame) == [CreditFrame(GENERATION, bench.channel(LEFT), 10, MIB)]

    def test_credit_goes_to_the_worker_of_the_sender(self) -> None:
        bench = Bench(join(Seen())).started()
        bench.batch(LEFT, 1)
        bench.work()
        assert [to for to, frame in bench.transport.sent if isinstance(frame, CreditFrame)] == [WorkerId(0)]

    def test_a_subtask_does_not_work_while_an_output_is_full_and_works_when_it_has_credit(self) -> None:
        seen = Seen()
        bench = Bench(join(seen), credit_limit_bytes=ROW, output_bytes_max=ROW).started()
        for number in range(4):
            bench.batch(LEFT, number, cost=1)
        bench.work()
        assert seen.processed == [0, 1]
        assert not bench.worker.can_work
        bench.worker.deliver(CreditFrame(GENERATION, bench.channel(MAP, WRITE), ROW, ROW))
        bench.work()
        assert seen.processed == [0, 1, 2]

    def test_its_time_is_busy_back_pressured_or_idle_and_adds_up(self) -> None:
        class Slow(Seen):
            def process(self, batch: Any, source: int, emit: Any) -> None:
                super().process(batch, source, emit)
                # The output may be full by now: this is work all the same.
                bench.clock.advance(2)

        seen = Slow()
        bench = Bench(join(seen), credit_limit_bytes=ROW, output_bytes_max=ROW).started()
        bench.clock.advance(5)
        for number in range(4):
            bench.batch(LEFT, number, cost=1)
        bench.work()
        slices = len(seen.calls)
        bench.clock.advance(30)

        def times() -> list[float]:
            metrics = Metrics(bench.worker._services.metrics.samples())
            names = "busy_time_ms", "back_pressured_time_ms", "idle_time_ms"
            return [metrics.value(name, "map") or 0 for name in names]

        assert times() == [2 * slices, 30, 5]
        output = bench.subtask.outputs[bench.channel(MAP, WRITE)]
        bench.worker.deliver(CreditFrame(GENERATION, output.channel.id, ROW, output.credit.credit_limit_bytes))
        assert not bench.subtask.is_backpressured
        bench.clock.advance(8)
        assert times() == [2 * slices, 30, 13]
        metrics = Metrics(bench.worker._services.metrics.samples())
        assert metrics.of("slice_time_s", "map")[0].count >= slices

    def test_a_full_output_shows_in_the_sign_of_life(self) -> None:
        bench = Bench(join(Seen()), credit_limit_bytes=ROW, output_bytes_max=ROW, heartbeat_ms=10).started()
        for number in range(4):
            bench.batch(LEFT, number, cost=1)
        bench.work()
        bench.pass_time(10)
        assert told(bench.transport.of(HeartbeatFrame), IS_BACK_PRESSURED) == [0, 1]

    def test_an_operator_that_wants_no_input_lets_it_wait_in_the_channels(self) -> None:
        seen = Seen()
        bench = Bench(join(seen)).started()
        bench.batch(LEFT, 1)
        seen.wants_input = False
        bench.work()
        assert seen.processed == []
        seen.wants_input = True
        bench.work()
        assert seen.processed == [1]


class TestSources:
    def test_a_source_emits_its_splits_then_its_end(self) -> None:
        bench = Bench(read(Numbers({"a": [0], "b": [1, 2, 3]}))).started()
        bench.work()
        assert values([frame.batch for frame in bench.transport.of(BatchFrame)]) == [1, 2, 3]
        assert [frame.watermark for frame in bench.transport.of(WatermarkFrame)] == [2, 3]
        assert len(bench.transport.of(EndFrame)) == 1
        assert bench.transport.of(EndedFrame) == [EndedFrame(GENERATION, SubtaskId(READ, 1))]

    def test_a_source_without_records_is_left_alone_for_longer_and_longer(self) -> None:
        source = Numbers({"a": [], "b": []}, is_bounded=False)
        bench = Bench(read(source), source_retry_ms=5).started()
        assert [self.rest_ms(bench) for _ in range(6)] == [1, 2, 4, 5, 5, 5]
        source.contents = {"a": [], "b": [1]}
        bench.work()
        assert values([frame.batch for frame in bench.transport.of(BatchFrame)]) == [1]
        assert self.rest_ms(bench) == 1, "it had a record since"

    def rest_ms(self, bench: Bench) -> int:
        """How long the source rests after this."""
        bench.work()
        for ms in range(1, 100):
            assert not bench.worker.can_work
            bench.pass_time(1)
            if bench.worker.can_work:
                return ms
        raise AssertionError("it rests for ever")

    @pytest.mark.parametrize(("asked", "at_once"), [(10, [1, 2]), (2, [1, 2, 3, 4])])
    def test_a_source_that_had_fewer_records_than_it_was_asked_for_rests(self, asked: int, at_once: list[int]) -> None:
        bench = Bench(read(Numbers({"a": [], "b": [1, 2, 3, 4]})), source_rows_max=asked, source_rest_ms=1).started()
        bench.work()
        assert values([frame.batch for frame in bench.transport.of(BatchFrame)]) == at_once
        bench.pass_time(1)
        bench.work()
        assert values([frame.batch for frame in bench.transport.of(BatchFrame)]) == [1, 2, 3, 4]

    @pytest.mark.parametrize(("chunk", "is_read_at_once"), [(9_000, True), (4_000, False)])
    def test_but_not_one_that_had_a_large_batch(self, chunk: int, is_read_at_once: bool) -> None:
        numbers = list(range(40_000))
        bench = Bench(read(Numbers({"a": [], "b": numbers}, chunk=chunk)), source_rest_ms=1).started()
        bench.work()
        found = values([frame.batch for frame in bench.transport.of(BatchFrame)])
        assert (found == numbers) is is_read_at_once

    def test_splits_that_appear_are_found_after_a_while(self) -> None:
        class Appearing(Numbers):
            splits_may_appear = True

        source = Appearing({})
        bench = Bench(read(source), source_discovery_ms=100, source_retry_ms=1).started()
        bench.work()
        source.contents = {f"split {number}": [number] for number in range(8)}
        for _ in range(2):
            bench.pass_time(100)
            bench.background.run()
            bench.work()
        mine = {int(split.split()[1]) for split, _ in source.opened}
        assert mine and set(values([frame.batch for frame in bench.transport.of(BatchFrame)])) == mine

    def test_a_listing_of_splits_that_fails_for_a_while_is_a_warning_and_is_tried_again(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        source = Hiccuping({})
        bench = Bench(read(source), source_discovery_ms=100, source_retry_ms=1).started()
        for _ in range(2):
            # In a row, and then again: one that succeeds makes up for those before it.
            source.fails = True
            for _ in range(LISTINGS_FAILED_MAX):
                bench.pass_time(100)
                bench.background.run()
            source.fails = False
            bench.pass_time(100)
            bench.background.run()
        assert bench.transport.of(FailedFrame) == []
        warnings = [each.getMessage() for each in caplog.records]
        assert len(warnings) == 2 * LISTINGS_FAILED_MAX
        assert f"cannot list its splits and tries again (1 of {LISTINGS_FAILED_MAX}): OSError" in warnings[0]
        source.contents = {f"split {number}": [number] for number in range(8)}
        bench.pass_time(100)
        bench.background.run()
        assert source.opened

    def test_a_source_that_cannot_list_its_splits_any_more_fails_the_worker(self) -> None:
        source = Hiccuping({})
        bench = Bench(read(source), source_discovery_ms=100).started()
        source.fails = True
        for _ in range(LISTINGS_FAILED_MAX):
            bench.pass_time(100)
            bench.background.run()
        assert not bench.worker.has_stopped
        bench.pass_time(100)
        bench.background.run()
        assert len(bench.transport.of(FailedFrame)) == 1
        assert bench.worker.has_stopped

    def test_a_batch_is_not_larger_than_a_channel_may_hold(self) -> None:
        class Greedy(Numbers):
            """Makes as many as it is asked for, and notes how many that is."""

            asked: ClassVar[list[int]] = []

            def open(self, split: str, offset: bytes | None) -> SplitReader:
                reader = super().open(split, offset)
                read, Greedy.asked = reader.read, []

                def noted(rows_max: int) -> Any:
                    Greedy.asked.append(rows_max)
                    self.chunk = rows_max
                    return read(rows_max)

                reader.read = noted  # type: ignore[method-assign]
                return reader

        bench = Bench(read(Greedy({"a": [], "b": list(range(5000))})), output_bytes_max=800).started()
        bench.work()
        assert Greedy.asked[0] <= 800 // 8, "nothing is known of the rows yet"
        assert set(Greedy.asked[1:]) == {100}, "a row has eight bytes"

    def test_a_source_hears_of_a_durable_checkpoint_by_the_notice(self) -> None:
        told = Told({"a": [0], "b": [1, 2, 3]})
        bench = Bench(read(told)).started()
        bench.work()
        bench.trigger(barrier(1))
        assert told.durable == []
        bench.worker.deliver(CompletedFrame(GENERATION, barrier(1).checkpoint))
        assert told.durable == [("b", b"3")]

    def test_or_else_by_the_next_barrier(self) -> None:
        told = Told({"a": [0], "b": [1, 2, 3]})
        bench = Bench(read(told)).started()
        bench.trigger(barrier(1))
        bench.acknowledged()
        bench.trigger(barrier(2, completed=1))
        assert told.durable == [("b", b"0")]


class TestWatermarks:
    def test_the_slowest_channel_decides(self) -> None:
        seen = Seen()
        bench = Bench(join(seen)).started()
        bench.watermark(LEFT, 10)
        bench.work()
        assert seen.watermarks == []
        bench.watermark(RIGHT, 7)
        bench.work()
        bench.watermark(RIGHT, 20)
        bench.work()
        assert seen.watermarks == [7, 10]
        assert [frame.watermark for frame in bench.transport.of(WatermarkFrame)] == [7, 10]

    def test_a_watermark_keeps_its_place_among_the_records(self) -> None:
        seen = Seen()
        bench = Bench(join(seen)).started()
        bench.watermark(RIGHT, 100)
        bench.work()
        bench.batch(LEFT, 1)
        bench.watermark(LEFT, 5)
        bench.batch(LEFT, 2)
        bench.work()
        assert [entry for entry in seen.log if entry[0] in ("process", "on_watermark")] == [
            ("process", [1]),
            ("on_watermark", 5),
            ("process", [2]),
        ]
        sent = [type(frame) for _, frame in bench.transport.sent if isinstance(frame, BatchFrame | WatermarkFrame)]
        assert sent == [BatchFrame, WatermarkFrame, BatchFrame]

    def test_a_channel_that_is_finished_holds_nothing_back(self) -> None:
        seen = Seen()
        bench = Bench(join(seen)).started()
        bench.watermark(LEFT, 10)
        bench.end(RIGHT)
        bench.work()
        assert seen.watermarks == [10]

    def test_time_does_not_go_back(self) -> None:
        seen = Seen()
        bench = Bench(join(seen)).started()
        bench.end(RIGHT)
        for watermark in (10, 4, 11):
            bench.watermark(LEFT, watermark)
        bench.work()
        assert seen.watermarks == [10, 11]

    def test_the_last_watermark_closes_every_window_here_and_the_end_says_so_downstream(self) -> None:
        seen = Seen()
        bench = Bench(join(seen)).started()
        bench.end(LEFT)
        bench.end(RIGHT)
        bench.work()
        assert seen.watermarks == [MAX_WATERMARK]
        assert seen.log[-1] == ("on_end", None)
        assert bench.transport.of(WatermarkFrame) == []

    def test_a_watermark_that_is_held_back_is_passed_on_when_it_is_released(self) -> None:
        seen = Seen()
        bench = Bench(join(seen)).started()
        seen.holds_watermarks = True
        bench.end(RIGHT)
        bench.watermark(LEFT, 10)
        bench.work()
        assert bench.transport.of(WatermarkFrame) == []
        seen.context.release_watermark(10)
        assert [frame.watermark for frame in bench.transport.of(WatermarkFrame)] == [10]


class TestEnds:
    def test_all_inputs_must_have_ended(self) -> None:
        seen = Seen()
        bench = Bench(join(seen)).started()
        bench.end(LEFT)
        bench.work()
        assert bench.transport.of(EndedFrame) == []
        bench.batch(RIGHT, 1)
        bench.end(RIGHT)
        bench.work()
        assert seen.log[-2:] == [("on_watermark", MAX_WATERMARK), ("on_end", None)]
        assert bench.transport.of(EndedFrame) == [EndedFrame(GENERATION, MAP_1)]
        assert bench.transport.of(EndFrame) == [EndFrame(GENERATION, bench.channel(MAP, WRITE))]

    def test_the_end_waits_for_records_that_are_worked_on_in_the_background(self) -> None:
        seen = Seen()
        bench = Bench(join(seen)).started()
        seen.is_idle = False
        bench.end(LEFT)
        bench.end(RIGHT)
        bench.work()
        for _ in range(3):
            bench.pass_time(1)
            bench.work()
        assert bench.transport.of(EndedFrame) == []
        seen.is_idle = True
        bench.pass_time(1)
        bench.work()
        assert len(bench.transport.of(EndedFrame)) == 1


class TestFailures:
    @pytest.mark.parametrize("what", ["process", "on_watermark", "on_end"])
    def test_an_exception_of_user_code_names_operator_and_subtask(self, what: str) -> None:
        seen = Seen()
        bench = Bench(join(seen)).started()
        seen.failing.add(what)
        bench.batch(LEFT, 1)
        for sender in (LEFT, RIGHT):
            bench.watermark(sender, 5)
            bench.end(sender)
        bench.work()
        (frame,) = to_coordinator(bench.transport, FailedFrame)
        assert frame.error.startswith(f"operator 'map', subtask 1 of 2: {what} raised ValueError: {what} is broken")
        assert "fake_ports.py:" in frame.error
        assert (frame.worker, frame.subtask) == (WorkerId(1), MAP_1)
        assert isinstance(bench.worker.failure, UserCodeError)
        assert isinstance(bench.worker.failure.__cause__, ValueError)

    def test_an_operator_that_cannot_be_opened_is_named(self) -> None:
        seen = Seen()
        seen.failing.add("open")
        bench = Bench(join(seen))
        bench.worker.start()
        (frame,) = bench.transport.of(FailedFrame)
        assert "operator 'map', subtask 1 of 2: open raised ValueError: open is broken" in frame.error
        assert bench.worker.has_stopped
        assert bench.transport.of(ReadyFrame) == []

    def test_an_operator_that_fails_when_its_state_is_back_is_named(self) -> None:
        seen = Seen()
        seen.failing.add("on_restored")
        bench = Bench(join(seen)).started()
        (frame,) = bench.transport.of(FailedFrame)
        assert "operator 'map', subtask 1 of 2: on_restored raised ValueError" in frame.error

    def test_the_failing_operator_of_a_chain_is_named_and_not_its_first_one(self) -> None:
        sink = Staging()
        sink.failing.add("write")
        bench = Bench(join(Seen(), sink=sink, is_chained=True)).started()
        bench.batch(LEFT, 1)
        bench.work()
        (frame,) = bench.transport.of(FailedFrame)
        assert "operator 'write', subtask 1 of 2: process raised ValueError: cannot write" in frame.error
        assert (frame.subtask, frame.operator, frame.index) == (MAP_1, "write", 1)

    def test_a_call_back_that_fails_names_its_operator_which_no_subtask_does(self) -> None:
        seen = Seen()
        bench = Bench(join(seen)).started()
        seen.failing.add("done")
        seen.context.submit(lambda: 1, lambda outcome: seen._call("done", None))
        bench.background.run()
        (frame,) = bench.transport.of(FailedFrame)
        assert (frame.subtask, frame.operator, frame.index) == (None, "map", 1)

    def test_a_source_that_fails_is_named_with_its_story(self) -> None:
        source = Numbers({"a": [1], "b": [2]})
        bench = Bench(read(source)).started()
        source.contents = {}
        bench.work()
        (frame,) = bench.transport.of(FailedFrame)
        assert frame.subtask == SubtaskId(READ, 1)
        assert "source 'read', subtask 1 of 2: read raised KeyError: 'b'" in frame.error

    def test_a_failure_closes_everything_and_is_reported_once(self) -> None:
        seen = Seen()
        bench = Bench(join(seen)).started()
        seen.failing = {"process", "close"}
        bench.batch(LEFT, 1)
        bench.batch(LEFT, 2)
        bench.work()
        assert len(bench.transport.of(FailedFrame)) == 1
        assert seen.log[-1] == ("close", None)
        assert isinstance(bench.worker.failure, UserCodeError), "the first failure is the cause, not the closing"

    def test_a_timer_of_user_code_that_fails_ends_the_worker(self) -> None:
        seen = Seen()
        bench = Bench(join(seen)).started()
        seen.context.call_at(bench.clock.wall_ms() + 10, lambda: seen._call("timer", None))
        seen.failing.add("timer")
        bench.pass_time(9)
        assert not bench.worker.has_stopped
        bench.pass_time(1)
        (frame,) = bench.transport.of(FailedFrame)
        assert "ValueError: timer is broken" in frame.error

    def test_more_credit_than_the_window_is_a_violation_and_not_ignored(self) -> None:
        bench = Bench(join(Seen())).started()
        bench.worker.deliver(CreditFrame(GENERATION, bench.channel(MAP, WRITE), 1, MIB))
        (frame,) = bench.transport.of(FailedFrame)
        assert frame.error.startswith("credit above the window")
        assert frame.subtask == MAP_1
        assert isinstance(bench.worker.failure, ProtocolViolation)

    def test_a_state_that_cannot_be_read_fails_the_worker_and_never_starts_empty(self) -> None:
        bench = Bench(join(Seen())).started()
        bench.batch(LEFT, 1)
        bench.work()
        bench.trigger(barrier(1))
        for sender in (LEFT, RIGHT):
            bench.barrier(sender, barrier(1))
        manifest = bench.manifest(1)
        for path in bench.store.blobs:
            bench.store.blobs[path] = b"x" * len(bench.store.blobs[path])
        seen = Seen()
        again = Bench(join(seen), store=bench.store, manifest=manifest).started()
        (frame,) = again.transport.of(FailedFrame)
        assert frame.error.startswith("map[1] cannot be restored from checkpoint 1:")
        assert frame.subtask == MAP_1
        assert isinstance(again.worker.failure, RestoreError)
        assert ("on_restored", []) not in seen.log
        assert again.transport.of(ReadyFrame) == []


class TestContext:
    def test_keyed_state_needs_a_keyed_input(self) -> None:
        seen = Seen()
        Bench(join(seen)).started()
        with pytest.raises(PipelineError, match="operator 'map' asks for keyed state, but its input is not keyed"):
            _ = seen.context.keyed

    def test_a_keyed_operator_knows_its_key_groups_and_columns(self) -> None:
        seen = Seen()
        Bench(join(seen, Partitioning.HASH)).started()
        assert (seen.context.key, seen.context.key_groups) == (("v",), range(64, 128))
        assert seen.context.keyed is seen.context.keyed

    def test_one_name_is_one_kind_of_state(self) -> None:
        seen = Seen()
        Bench(join(seen)).started()
        assert seen.context.list_state("seen") is seen.state
        with pytest.raises(PipelineError, match="operator 'map' uses 'seen' as list and as broadcast state"):
            seen.context.broadcast_state("seen")

    def test_a_state_that_the_operator_does_not_have_any_more_is_an_error(self) -> None:
        seen = Seen()
        Bench(join(seen)).started()
        for name, kind in (("lost", StateKind.LIST), ("seen", StateKind.BROADCAST)):
            with pytest.raises(RestoreError, match=f"the checkpoint has {kind.value} state '{name}' of operator 'map'"):
                seen.context.restore(name, kind, [])  # type: ignore[attr-defined]

    def test_background_work_comes_back_on_the_mailbox_and_not_after_the_end(self) -> None:
        seen = Seen()
        bench = Bench(join(seen)).started()
        outcomes: list[object] = []
        seen.context.submit(lambda: 1 // 1, outcomes.append)
        seen.context.submit(lambda: 1 // 0, outcomes.append)
        bench.background.run()
        assert outcomes[0] == 1 and isinstance(outcomes[1], ZeroDivisionError)
        seen.context.submit(lambda: 3, outcomes.append)
        bench.worker.stop()
        bench.background.run()
        assert len(outcomes) == 2


class TestFencing:
    @pytest.mark.parametrize("generation", [OLDER, NEWER])
    def test_frames_of_another_generation_change_nothing(self, generation: Generation) -> None:
        seen = Seen()
        bench = Bench(join(seen)).started()
        bench.transport.sent.clear()
        left = bench.channel(LEFT)
        frames = [
            BatchFrame(generation, left, rows(1), 8),
            WatermarkFrame(generation, left, 5),
            BarrierFrame(generation, left, barrier(1)),
            EndFrame(generation, left),
            CreditFrame(generation, bench.channel(MAP, WRITE), 10**9, 1),
            TriggerFrame(generation, barrier(1)),
            StopFrame(generation),
        ]
        for frame in frames:
            bench.worker.deliver(frame)
        bench.work()
        bench.background.run()
        assert bench.worker.frames_fenced == len(frames)
        assert (seen.processed, bench.transport.sent, bench.worker.has_stopped) == ([], [], False)

    def test_a_worker_that_stopped_ignores_everything(self) -> None:
        seen = Seen()
        bench = Bench(join(seen)).started()
        bench.batch(LEFT, 1)
        bench.worker.deliver(StopFrame(GENERATION))
        bench.transport.sent.clear()
        calls = len(seen.log)
        bench.batch(LEFT, 2)
        bench.trigger(barrier(1))
        bench.barrier(LEFT, barrier(1))
        bench.end(LEFT)
        bench.work()
        bench.pass_time(100_000)
        bench.background.run()
        bench.worker.stop()
        assert (bench.transport.sent, len(seen.log)) == ([], calls)
        assert (bench.worker.can_work, bench.worker.next_timer_at_ms) == (False, None)

    def test_a_worker_that_is_stopped_while_it_restores_never_begins(self) -> None:
        seen = Seen()
        bench = Bench(join(seen))
        bench.worker.start()
        bench.worker.stop()
        bench.background.run()
        assert not any(what == "on_restored" for what, _ in seen.log)
        assert bench.transport.of(ReadyFrame) == []

    def test_stopping_closes_every_operator_once(self) -> None:
        seen = Seen()
        bench = Bench(join(seen)).started()
        bench.worker.stop()
        bench.worker.stop()
        assert [what for what, _ in seen.log].count("close") == 1

    def test_what_is_not_for_a_worker_is_ignored(self) -> None:
        bench = Bench(join(Seen())).started()
        bench.transport.sent.clear()
        bench.worker.deliver(ReadyFrame(GENERATION, WorkerId(0)))
        assert (bench.transport.sent, bench.worker.has_stopped) == ([], False)
        assert bench.transport.of(AcknowledgeFrame) == []
