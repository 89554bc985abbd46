"""The head of a source's chain: splits in turn, positions exactly behind what was read."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pytest

from penstock.api.operator import MAX_WATERMARK, MIN_WATERMARK
from penstock.connectors.generator import GeneratorSource
from penstock.ids import CheckpointId, OperatorName
from penstock.protocol.manifest import SplitState
from penstock.runtime.source_stage import SourceStage, owned_splits
from tests.unit.runtime.fake_ports import Numbers, Told, values

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
    assert reading.watermark() == 0
    reading.read(100)
    assert reading.watermark() == 0
    reading.read(100)
    assert reading.watermark() == 1
    drained(reading)
    assert reading.watermark() == MAX_WATERMARK


def test_splits_that_ended_hold_nothing_back() -> None:
    reading = stage(Numbers({"a": [], "b": [1, 2, 3, 4, 5, 6]}))
    reading.read(100)
    assert reading.watermark() == 2


def test_a_source_that_waits_for_splits_knows_nothing_of_time() -> None:
    assert stage(Appearing({})).watermark() == MIN_WATERMARK


def test_a_split_that_knows_nothing_of_time_holds_everybody_back() -> None:
    reading = stage(Numbers({"a": [1, 2], "b": [3, 4]}))
    reading.read(100)
    reading._readers["b"].watermark = lambda: None  # type: ignore[method-assign]
    assert reading.watermark() == MIN_WATERMARK


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
        self.stage.on_durable(CheckpointId(1))
        assert dict(self.source.durable) == noted != positions(self.stage)

    def test_they_are_told_once_whether_by_the_notice_or_by_the_next_barrier(self) -> None:
        self.snapshot(1)
        self.stage.on_durable(CheckpointId(1))
        self.snapshot(2, completed=1)
        assert len(self.source.durable) == 2
        self.snapshot(3, completed=2)
        assert len(self.source.durable) == 4

    def test_nobody_is_told_of_a_checkpoint_that_failed(self) -> None:
        self.snapshot(1)
        self.stage.read(100)
        noted = self.snapshot(2, completed=0)
        self.stage.on_durable(CheckpointId(2))
        assert self.source.durable == list(noted.items())
        self.stage.on_durable(CheckpointId(1))
        assert self.source.durable == list(noted.items())

    def test_news_of_a_checkpoint_may_come_behind_the_barrier_of_the_next_one(self) -> None:
        first = self.snapshot(1)
        self.stage.read(100)
        second = self.snapshot(2, completed=0)
        self.stage.on_durable(CheckpointId(1))
        assert self.source.durable == list(first.items())
        self.stage.on_durable(CheckpointId(2))
        assert self.source.durable == [*first.items(), *second.items()]

    def test_however_many_fail_only_two_are_remembered(self) -> None:
        for number in range(1, 10):
            noted = self.snapshot(number)
        self.stage.on_durable(CheckpointId(7))
        assert self.source.durable == []
        self.stage.on_durable(CheckpointId(9))
        assert self.source.durable == list(noted.items())

    def test_nobody_is_told_of_the_checkpoint_that_was_restored(self) -> None:
        self.snapshot(8, completed=7)
        self.stage.on_durable(CheckpointId(7))
        assert self.source.durable == []


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
