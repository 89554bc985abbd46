"""The head of a source's chain: splits in turn, positions exactly behind what was read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pyarrow as pa
import pytest

from penstock.connectors.generator import GeneratorSource
from penstock.ids import CheckpointId, OperatorName
from penstock.model.event_time import IDLE_WATERMARK, MAX_WATERMARK, MIN_WATERMARK
from penstock.protocol.manifest import SplitState
from penstock.worker.event_time.event_clocks import EventClocks
from penstock.worker.sources.source_stage import SourceStage, owned_splits
from tests.unit.mailbox.fake_ports import NumberReader, Numbers, Told, values

READ = OperatorName("read")


def stage(source: Numbers, index: int = 0, parallelism: int = 1, **restored: str) -> SourceStage:
    made = SourceStage(READ, source, index, parallelism)
    made.restore({name: SplitState(READ, name, offset.encode()) for name, offset in restored.items()})
    made.discover(source.splits())
    return made


def drained(reading: SourceStage, calls: int = 20) -> list[list[int]]:
    read = [reading.read(100) for _ in range(calls)]
    return [values([batch]) for batch in read if batch is not None]


def positions(reading: SourceStage) -> dict[str, bytes]:
    return {split.split: split.offset for split in reading.positions()}


class Appearing(Numbers):
    splits_may_appear = True


def test_splits_are_read_in_turn() -> None:
    reading = stage(Numbers({"a": [1, 2, 3], "b": [10], "c": [20, 21, 22]}))
    assert drained(reading) == [[1, 2], [10], [20, 21], [3], [22]]
    assert reading.has_ended


def test_a_split_without_records_right_now_holds_up_nobody() -> None:
    reading = stage(Numbers({"a": [], "b": [1, 2, 3]}, is_bounded=False))
    assert drained(reading) == [[1, 2], [3]]
    assert not reading.has_ended


def test_all_splits_may_end_in_one_call() -> None:
    reading = stage(Numbers({"a": [], "b": [], "c": []}))
    assert reading.read(10) is None
    assert reading.has_ended


def test_a_source_without_splits_has_ended_unless_some_may_appear() -> None:
    assert stage(Numbers({})).has_ended
    assert not stage(Appearing({})).has_ended


def test_positions_are_exactly_behind_what_was_read_and_those_of_ended_splits_stay() -> None:
    reading = stage(Numbers({"a": [1, 2, 3], "b": [10]}))
    assert positions(reading) == {"a": b"0", "b": b"0"}
    reading.read(100)
    assert positions(reading) == {"a": b"2", "b": b"0"}
    drained(reading)
    assert positions(reading) == {"a": b"3", "b": b"1"}


def test_a_restored_split_goes_on_behind_its_position() -> None:
    source = Numbers({"a": [1, 2, 3], "b": [10]})
    reading = stage(source, a="2")
    assert source.opened == [("a", b"2"), ("b", None)]
    assert drained(reading) == [[3], [10]]


@pytest.mark.parametrize("kind", [Numbers, Appearing])
@pytest.mark.parametrize("parallelism", [1, 2, 3, 7])
def test_every_split_has_exactly_one_reader(kind: type[Numbers], parallelism: int) -> None:
    names = [f"split {number}" for number in range(20)]
    source = kind({name: [] for name in names})
    owned = [owned_splits(source, names, index, parallelism) for index in range(parallelism)]
    assert sorted(name for part in owned for name in part) == sorted(names)
    if kind is Numbers:
        assert max(map(len, owned)) - min(map(len, owned)) <= 1


def test_where_splits_may_appear_the_owner_does_not_depend_on_what_else_there_is() -> None:
    source = Appearing({})
    alone = [index for index in range(3) if owned_splits(source, ["x"], index, 3)]
    among = [index for index in range(3) if "x" in owned_splits(source, ["a", "b", "x"], index, 3)]
    assert alone == among


def test_a_restored_split_that_is_not_listed_any_more_is_still_read() -> None:
    # I1: its position is in the checkpoint, and what lies behind it was never emitted.
    source = Numbers({"a": [1], "gone": [5, 6]})

    def listed() -> Sequence[str]:
        return ["a"]

    source.splits = listed  # type: ignore[method-assign]
    assert drained(stage(source, gone="1")) == [[1], [6]]


def test_splits_that_have_appeared_are_opened_once() -> None:
    source = Appearing({"a": [1]})
    reading = stage(source)
    source.contents = {"a": [1], "b": [2]}
    assert reading.discover(source.splits()) is True
    assert reading.discover(source.splits()) is False
    assert [split for split, _ in source.opened] == ["a", "b"]


def test_the_slowest_open_split_is_the_watermark() -> None:
    reading = stage(Numbers({"a": [1, 2, 3], "b": [10]}))
    assert reading.watermark(0) == 0
    reading.read(100)
    assert reading.watermark(0) == 0
    reading.read(100)
    assert reading.watermark(0) == 1
    drained(reading)
    assert reading.watermark(0) == MAX_WATERMARK


def test_splits_that_ended_hold_nothing_back() -> None:
    reading = stage(Numbers({"a": [], "b": [1, 2, 3, 4, 5, 6]}))
    reading.read(100)
    assert reading.watermark(0) == 2


def test_a_source_that_waits_for_splits_knows_nothing_of_time() -> None:
    reading = stage(Appearing({}))
    assert reading.watermark(1_000) == reading.watermark(10_999) == MIN_WATERMARK
    assert reading.watermark(11_000) == IDLE_WATERMARK


def test_a_split_that_knows_nothing_of_time_holds_everybody_back() -> None:
    reading = stage(Numbers({"a": [1, 2], "b": [3, 4]}))
    reading.read(100)
    reading._readers["b"].watermark = lambda: None  # type: ignore[method-assign]
    assert reading.watermark(0) == MIN_WATERMARK


def test_all_readers_are_closed() -> None:
    source = Numbers({"a": [], "b": []})
    reading = stage(source)
    reading.read(10)
    reading.close()
    assert source.closed == ["a", "b"]


class TestWhatIsDurable:
    def setup_method(self) -> None:
        self.source = Told({"a": [1, 2, 3], "b": [10]})
        self.stage = stage(self.source)

    def snapshot(self, checkpoint: int, completed: int = 0) -> dict[str, bytes]:
        self.stage.prepare(CheckpointId(checkpoint), CheckpointId(completed))
        return positions(self.stage)

    def test_the_readers_are_told_the_offsets_of_the_checkpoint_that_is_durable_and_not_those_of_now(
        self,
    ) -> None:
        self.stage.read(100)
        noted = self.snapshot(1)
        self.stage.read(100)
        assert self.source.durable == []
        self.stage.on_checkpoint_complete(CheckpointId(1))
        assert dict(self.source.durable) == noted != positions(self.stage)

    def test_they_are_told_once_whether_by_the_notice_or_by_the_next_barrier(self) -> None:
        self.snapshot(1)
        self.stage.on_checkpoint_complete(CheckpointId(1))
        self.snapshot(2, completed=1)
        assert len(self.source.durable) == 2
        self.snapshot(3, completed=2)
        assert len(self.source.durable) == 4

    def test_nobody_is_told_of_a_checkpoint_that_failed(self) -> None:
        self.snapshot(1)
        self.stage.read(100)
        noted = self.snapshot(2, completed=0)
        self.stage.on_checkpoint_complete(CheckpointId(2))
        assert self.source.durable == list(noted.items())
        self.stage.on_checkpoint_complete(CheckpointId(1))
        assert self.source.durable == list(noted.items())

    def test_news_of_a_checkpoint_may_come_behind_the_barrier_of_the_next_one(self) -> None:
        first = self.snapshot(1)
        self.stage.read(100)
        second = self.snapshot(2, completed=0)
        self.stage.on_checkpoint_complete(CheckpointId(1))
        assert self.source.durable == list(first.items())
        self.stage.on_checkpoint_complete(CheckpointId(2))
        assert self.source.durable == [*first.items(), *second.items()]

    def test_however_many_fail_only_two_are_remembered(self) -> None:
        for number in range(1, 10):
            noted = self.snapshot(number)
        self.stage.on_checkpoint_complete(CheckpointId(7))
        assert self.source.durable == []
        self.stage.on_checkpoint_complete(CheckpointId(9))
        assert self.source.durable == list(noted.items())

    def test_nobody_is_told_of_the_checkpoint_that_was_restored(self) -> None:
        self.snapshot(8, completed=7)
        self.stage.on_checkpoint_complete(CheckpointId(7))
        assert self.source.durable == []


# --- event time by split ---


class Timed(Numbers):
    """Each number is its own event time. Notes which splits are paused."""

    def __init__(self, splits: dict[str, list[int]], is_bounded: bool = True, chunk: int = 2) -> None:
        super().__init__(splits, chunk, is_bounded)
        self.paused: list[str] = []

    def open(self, split: str, offset: bytes | None) -> TimedReader:
        self.opened.append((split, offset))
        return TimedReader(self, split, int(offset or b"0"))


class TimedReader(NumberReader):
    source: Timed

    def pause(self) -> None:
        self.source.paused.append(self.split)


class AppearingTimed(Timed):
    splits_may_appear = True


def timed(
    source: Timed, restored: dict[str, SplitState] | None = None, idle_after_ms: int | None = None
) -> SourceStage:
    made = SourceStage(READ, source, 0, 1)
    made.clocks = EventClocks(idle_after_ms)
    made.restore(restored or {})
    made.discover(source.splits(), 0)
    return made


def advance(reading: SourceStage, now_ms: int = 0) -> tuple[str | None, int]:
    """Read once and report the time, as an operator of the chain does; the split, and the watermark afterwards."""
    batch = reading.read(100, now_ms)
    if batch is not None:
        assert reading.clocks is not None and reading.current is not None
        reading.clocks.saw(reading.current, max(values([batch])), now_ms)
    return reading.current, reading.watermark(now_ms)


def test_the_watermark_waits_until_every_split_has_begun_and_then_follows_the_slowest() -> None:
    reading = timed(Timed({"b": [100, 110, 120, 130], "a": [1, 2, 3, 4]}))
    assert advance(reading) == ("b", MIN_WATERMARK)
    assert advance(reading) == ("a", 2)
    assert advance(reading) == ("a", 4)
    assert advance(reading) == ("b", 130)
    assert advance(reading) == (None, MAX_WATERMARK)


def test_the_split_that_is_furthest_behind_is_read_first() -> None:
    hours = {f"{hour:02d}": list(range(hour * 10, hour * 10 + 10)) for hour in reversed(range(5))}
    reading = timed(Timed(hours))
    read = [advance(reading)[0] for _ in range(25)]
    assert read[:5] == list(hours)
    assert read[5:] == sorted(read[5:])


def test_a_split_that_would_have_to_be_read_again_is_not_left() -> None:
    source = Timed({"a": [1, 2, 30, 31, 32, 33], "b": [10, 11, 12, 13]})
    reading = timed(source)
    assert [advance(reading)[0] for _ in range(3)] == ["a", "b", "a"]
    reading._readers["a"].may_leave = False
    assert advance(reading)[0] == "a"
    reading._readers["a"].may_leave = True
    assert advance(reading)[0] == "b"


def test_the_clock_of_a_split_is_in_its_position_and_goes_on_from_there() -> None:
    source = Timed({"a": [1, 2, 3, 4], "b": [50, 60], "c": [7]})
    first = timed(source)
    advance(first)
    advance(first)
    states = {split.split: split for split in first.positions()}
    assert {name: split.reached_ms for name, split in states.items()} == {"a": 2, "b": 60, "c": None}
    again = timed(source, states)
    assert again.watermark(0) == MIN_WATERMARK
    assert advance(again) == ("c", 2)


def test_an_ended_split_has_no_clock_in_its_position() -> None:
    reading = timed(Timed({"a": [1, 2], "b": [5, 6, 7]}))
    while reading.watermark(0) < 7:
        advance(reading)
    advance(reading)
    assert {split.split: split.reached_ms for split in reading.positions()} == {"a": None, "b": None}


def test_a_split_that_appears_holds_the_watermark_at_once_and_is_read_after_the_next_look() -> None:
    source = AppearingTimed({"a": [100, 101]}, is_bounded=False)
    reading = timed(source)
    assert advance(reading) == ("a", 101)
    source.contents = {"a": [100, 101, 200], "b": [150]}
    reading.discover(source.splits(), 0)
    assert advance(reading) == ("a", MIN_WATERMARK)
    assert advance(reading) == (None, MIN_WATERMARK)
    reading.discover(source.splits(), 0)
    assert advance(reading) == ("b", 150)


def test_a_split_with_nothing_for_long_holds_nobody_up_until_it_has_a_record() -> None:
    source = Timed({"a": [1], "b": [5, 6, 7, 8]}, is_bounded=False)
    reading = timed(source, idle_after_ms=100)
    advance(reading, 10)
    assert advance(reading, 20) == ("b", 1)
    assert advance(reading, 35) == ("b", 1)
    assert [advance(reading, now_ms)[1] for now_ms in (60, 85, 109)] == [1, 1, 1]
    assert advance(reading, 110) == (None, 8)
    assert [advance(reading, now_ms)[1] for now_ms in (130, 150)] == [8, IDLE_WATERMARK]
    source.contents = {"a": [1, 7], "b": [5, 6, 7, 8]}
    assert advance(reading, 600) == ("a", 7)


def test_a_split_that_nobody_asked_for_long_is_not_idle() -> None:
    """Under backpressure no split is read, and what has come meanwhile waits in all of them."""
    source = Timed({"a": [1], "b": [5, 6, 7, 8]}, is_bounded=False)
    reading = timed(source, idle_after_ms=100)
    advance(reading, 10)
    assert advance(reading, 20) == ("b", 1)
    assert advance(reading, 10_000) == ("b", 1)
    source.contents = {"a": [1, 7], "b": [5, 6, 7, 8]}
    assert advance(reading, 20_000) == ("a", 7)


def test_after_a_restart_with_nothing_more_to_read_the_split_that_came_furthest_has_the_word() -> None:
    source = Timed({"a": [1], "b": [5, 6]}, is_bounded=False)
    before = timed(source, idle_after_ms=100)
    advance(before, 10)
    advance(before, 20)
    positions = {split.split: split for split in before.positions()}
    after = timed(source, positions, idle_after_ms=100)
    assert [advance(after, now_ms) for now_ms in (25, 50, 75, 100)][-1] == (None, IDLE_WATERMARK)
    assert before.clocks is not None and after.clocks is not None
    assert after.clocks.newest == before.clocks.newest == 6


def test_a_split_with_a_known_end_is_never_idle() -> None:
    source = Timed({"a": [1], "b": [5, 6]}, is_bounded=False)
    source.open = lambda split, offset: BoundedReader(source, split, 0)  # type: ignore[method-assign]
    reading = timed(source, idle_after_ms=100)
    advance(reading, 10)
    advance(reading, 20)
    assert [advance(reading, now_ms)[1] for now_ms in range(30, 1_000, 20)][-1] == 1


class BoundedReader(TimedReader):
    is_bounded = True


def test_only_a_few_readers_hold_files_at_a_time() -> None:
    source = Timed({f"{n:02d}": [n, n + 1, n + 2] for n in range(20)})
    reading = timed(source)
    for _ in range(20):
        advance(reading)
    assert source.paused == [f"{n:02d}" for n in range(12)]


class InOrder(Timed):
    in_order = True


def test_without_event_time_splits_of_a_source_in_order_are_read_one_after_the_other() -> None:
    reading = stage(InOrder({"b": [1, 2, 3], "a": [4, 5, 6]}))
    assert drained(reading) == [[1, 2], [3], [4, 5], [6]]


def test_a_slice_of_a_large_dictionary_counts_for_what_it_is() -> None:
    values = pa.array([f"value {n:020}" for n in range(100_000)])
    whole = pa.record_batch({"d": pa.DictionaryArray.from_arrays(pa.array(range(1_000), pa.int32()), values)})
    reading = SourceStage(READ, GeneratorSource(whole.slice, rows=1_000), 0, 1)
    reading.discover(["0/1"])
    batch = reading.read(10)
    assert batch is not None
    assert batch.to_pylist() == whole.slice(0, 10).to_pylist()
    # By this the next reads are sized: with the whole dictionary they would shrink to a record each.
    assert batch.nbytes < 1_000


def test_a_split_that_is_known_to_have_more_is_not_idle_however_long_its_records_take() -> None:
    source = Timed({"a": [1], "b": [5, 6]}, is_bounded=False)
    behind = TimedReader(source, "a", 0)
    behind.is_caught_up = False
    source.open = lambda split, offset: behind if split == "a" else TimedReader(source, split, 0)  # type: ignore[method-assign]
    reading = timed(source, idle_after_ms=100)
    advance(reading, 10)
    advance(reading, 20)
    assert [advance(reading, now_ms)[1] for now_ms in range(30, 1_000, 20)][-1] == 1
    behind.is_caught_up = True
    assert [advance(reading, now_ms)[1] for now_ms in range(1_000, 1_200, 20)][-1] == IDLE_WATERMARK


def test_a_source_is_told_which_splits_a_checkpoint_has_before_it_opens_any() -> None:
    source = Numbers({"a": [1], "b": [2]})
    told: list[tuple[Mapping[str, bytes], int]] = []
    source.on_restore = lambda positions: told.append((positions, len(source.opened)))  # type: ignore[method-assign]
    stage(source, a="1")
    assert told == [({"a": b"1"}, 0)]


def held(reading: SourceStage) -> int:
    return len(list(reading._open)) - len(list(reading._not_ahead(reading._order(None))))


def test_a_split_that_is_too_far_ahead_of_the_slowest_waits() -> None:
    reading = timed(Timed({"b": [100, 110, 120, 130], "a": [1, 2, 90, 95, 115, 116]}))
    reading.max_drift_ms = 20
    assert [advance(reading)[0] for _ in range(2)] == ["b", "a"]
    assert held(reading) == 1
    assert [advance(reading)[0] for _ in range(2)] == ["a", "a"]
    # Now both are near each other again.
    assert (held(reading), advance(reading)[0]) == (0, "b")


def test_a_split_ahead_waits_for_one_that_has_nothing_until_that_one_is_idle() -> None:
    reading = timed(Timed({"b": [100, 110, 120, 130], "a": [1]}, is_bounded=False), idle_after_ms=100)
    reading.max_drift_ms = 20
    assert [advance(reading)[0] for _ in range(2)] == ["b", "a"]
    assert advance(reading, 10) == (None, 1)
    assert held(reading) == 1
    for now_ms in range(20, 400, 20):
        if advance(reading, now_ms)[0] == "b":
            break
    else:
        raise AssertionError("b is held for ever")
    assert held(reading) == 0


def test_nobody_waits_for_a_split_that_has_not_begun() -> None:
    reading = timed(Timed({"b": [100, 110, 120, 130], "a": []}, is_bounded=False))
    reading.max_drift_ms = 0
    assert [advance(reading)[0] for _ in range(3)] == ["b", None, "b"], "it was asked, and has no first record"


def test_a_split_that_may_have_a_first_record_is_waited_for_and_one_that_appears_later_is_not() -> None:
    source = Appearing({"b": [100, 110, 120, 130, 140, 150], "a": []}, is_bounded=False)
    behind = NumberReader(source, "a", 0)
    behind.is_caught_up = False
    source.open = lambda split, offset: behind if split == "a" else NumberReader(source, split, 0)  # type: ignore[method-assign]
    reading = timed(source)  # type: ignore[arg-type]
    reading.max_drift_ms = 0
    assert [advance(reading)[0] for _ in range(3)] == ["b", None, None]
    behind.is_caught_up = True
    assert [advance(reading)[0] for _ in range(2)] == [None, "b"]
    source.contents = {**source.contents, "c": []}
    reading.discover(source.splits())
    assert advance(reading)[0] == "b"
