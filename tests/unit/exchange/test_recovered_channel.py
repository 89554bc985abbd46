"""Recovered in-flight data: read in pieces, consumed in any slices, referred to by every checkpoint meanwhile (I10)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.columnar.hashing import key_groups
from penstock.errors import RestoreError
from penstock.exchange.input_channel import InputChannel
from penstock.exchange.items import BatchItem, Captured, WatermarkItem
from penstock.exchange.recovered_channel import RecoveredChannel, load
from penstock.ids import CheckpointId, Generation, OperatorName, SubtaskId
from penstock.mailbox.journal import Story
from penstock.protocol.manifest import ChannelSegment, Side
from penstock.storage.memory import MemoryStore
from penstock.worker.checkpointing.snapshot import CapturedChannel, inline_channels, write_channels
from penstock.worker.recovery.channel_reader import LOADS_MAX, RecoveredChannelReader
from penstock.worker.scheduling.budget import Budget
from penstock.worker.services import Services
from penstock.worker.settings import WorkerSettings
from tests.unit.mailbox.fake_ports import ManualClock

MAX_PARALLELISM = 16
KEY = ("k",)


def rows(first: int, count: int) -> pa.RecordBatch:
    numbers = np.arange(first, first + count)
    return pa.record_batch({"v": numbers, "k": numbers * 7919 % 23})


def numbers_of(items: list[Captured]) -> list[int]:
    return [value for item in items if isinstance(item, BatchItem) for value in item.batch.column("v").to_pylist()]


@st.composite
def captured(draw: st.DrawFn) -> list[Captured]:
    """Batches of consecutive numbers, with watermarks among them."""
    items: list[Captured] = []
    first = 0
    for count in draw(st.lists(st.integers(0, 9), min_size=1, max_size=12)):
        if count:
            items.append(BatchItem(rows(first, count), 0, 16 * count))
            first += count
        else:
            items.append(WatermarkItem(first))
    return items


def written(store: MemoryStore, items: list[Captured], segment_bytes: int, inline: int) -> list[ChannelSegment]:
    held = CapturedChannel(_Channel(), Side.RECEIVER, items)  # type: ignore[arg-type]
    subtask = SubtaskId(OperatorName("b"), 0)
    if inline:
        return inline_channels([held], segment_bytes)
    return write_channels(store, CheckpointId(1), Generation(1), subtask, [held], segment_bytes)


class _Edge:
    def __init__(self, id: str) -> None:
        self.id, self.key = id, KEY


class _Channel:
    """As much of a channel as is looked at here."""

    def __init__(self, id: int = 0, edge: str = "a->b") -> None:
        self.id, self.edge = id, _Edge(edge)
        self.sender = self.receiver = SubtaskId(OperatorName("b"), id)


def read(store: MemoryStore, recovered: RecoveredChannel, slices: Callable[[], int], rows_max: int) -> list[Captured]:
    """Consume until about `rows_max` rows are read, or all."""
    found: list[Captured] = []
    while recovered and len(numbers_of(found)) < rows_max:
        entry = recovered.next_to_load()
        if entry is not None and not recovered.is_loaded:
            pieces, _ = load(store, entry.segment, KEY, MAX_PARALLELISM, lambda: 0)
            entry.pieces = type(recovered._entries)(pieces)
            recovered.drop_finished()
            continue
        found.append(recovered.take(slices()))
        recovered.drop_finished()
    return found


@settings(max_examples=200, deadline=None)
@given(
    data=st.data(),
    items=captured(),
    segment_bytes=st.integers(1, 400),
    inline=st.sampled_from([0, 4096]),
    own=st.tuples(st.integers(0, MAX_PARALLELISM), st.integers(0, MAX_PARALLELISM)).map(sorted),
)
def test_whatever_is_interrupted_whenever_every_row_is_read_once_and_in_order(
    data: st.DataObject, items: list[Captured], segment_bytes: int, inline: int, own: list[int]
) -> None:
    store = MemoryStore()
    segments = written(store, items, segment_bytes, inline)
    if own[0] < own[1]:
        segments = [replace(segment, key_group_first=own[0], key_group_end=own[1]) for segment in segments]
    found: list[Captured] = []
    while segments:
        # Each turn is a recovery that fails after a checkpoint.
        recovered = RecoveredChannel(segments)
        found += read(store, recovered, lambda: data.draw(st.integers(1, 5)), data.draw(st.integers(1, 20)))
        segments = recovered.remaining()
    whole = pa.Table.from_batches([item.batch for item in items if isinstance(item, BatchItem)] or [rows(0, 0)])
    whole = whole.combine_chunks()
    groups = key_groups(whole.to_batches()[0], KEY, MAX_PARALLELISM) if whole.num_rows else np.empty(0, int)
    counts = (groups >= own[0]) & (groups < own[1]) if own[0] < own[1] else groups >= 0
    assert numbers_of(found) == np.asarray(whole.column("v"))[counts].tolist()
    # A watermark may be heard again after a restore, but never ahead of a row that was in front of it.
    seen = -1
    for item in found:
        if isinstance(item, BatchItem):
            seen = item.batch.column("v")[-1].as_py()
        elif not counts.all():
            continue
        else:
            assert item.watermark <= seen + 1


def test_watermarks_of_senders_that_are_gone_are_left_out() -> None:
    store = MemoryStore()
    (segment,) = written(store, [WatermarkItem(5), BatchItem(rows(0, 2), 0, 32)], 1000, 0)
    pieces, _ = load(store, replace(segment, has_watermarks=False), KEY, MAX_PARALLELISM, lambda: 0)
    assert not any(isinstance(piece, WatermarkItem) for piece in pieces)
    assert len(pieces) == 1


class Reading:
    """A reader with loads that finish when they are told to."""

    def __init__(self, channels: dict[int, list[ChannelSegment]], store: MemoryStore, budget: int) -> None:
        self.store = store
        self.loads: list[tuple[Callable[[], object], Callable[[object], None]]] = []
        self.readable: list[int] = []
        self.budget = Budget(budget)
        services = Services(
            generation=Generation(1),
            settings=WorkerSettings(),
            clock=ManualClock(),
            transport=None,  # type: ignore[arg-type]
            background=self,  # type: ignore[arg-type]
            store=store,
            timers=None,  # type: ignore[arg-type]
            capture_budget=Budget(1),
            recovery_budget=self.budget,
            inline_bytes_max=0,
            slice_budget=None,  # type: ignore[arg-type]
            story=Story(ManualClock()),
        )
        self.inputs = {id: InputChannel(_Channel(id), 100) for id in channels}  # type: ignore[arg-type]
        self.reader = RecoveredChannelReader(SubtaskId(OperatorName("b"), 0), MAX_PARALLELISM, services)
        self.reader.begin(
            self.inputs.values(),
            {id: segments for id, segments in channels.items() if segments},  # type: ignore[misc]
            lambda channel: self.readable.append(int(channel.channel.id)),
        )

    def submit(self, work: Callable[[], object], done: Callable[[object], None]) -> None:
        self.loads.append((work, done))

    def finish(self, number: int = 0) -> None:
        work, done = self.loads.pop(number)
        done(work())

    def take(self, id: int) -> list[int]:
        recovered = self.inputs[id].recovered
        assert recovered is not None and self.inputs[id].is_readable
        found = numbers_of([recovered.take(100)])
        self.reader.after_read(self.inputs[id])
        return found


def segments_of(store: MemoryStore, first: int, count: int, age: int = 1) -> list[ChannelSegment]:
    """Segments of one row each."""
    items: list[Captured] = [BatchItem(rows(first + number, 1), 0, 16) for number in range(count)]
    blob = written(store, items, 1, 1 << 20)
    return [replace(segment, age=age) for segment in blob]


class TestReader:
    def test_something_of_each_channel_is_read_ahead_but_not_too_much_at_a_time(self) -> None:
        store = MemoryStore()
        reading = Reading({0: segments_of(store, 0, 9), 1: segments_of(store, 100, 9)}, store, 1 << 20)
        assert len(reading.loads) == LOADS_MAX
        for _ in range(2):
            reading.finish()
        assert sorted(reading.readable) == [0, 1]

    def test_beyond_the_budget_only_what_is_needed_to_go_on_is_read(self) -> None:
        store = MemoryStore()
        reading = Reading({0: segments_of(store, 0, 3), 1: segments_of(store, 100, 3)}, store, 1)
        found = []
        while not reading.reader.is_done:
            assert len(reading.loads) == 1
            reading.finish()
            (id,) = [id for id, channel in reading.inputs.items() if channel.is_readable]
            found += reading.take(id)
        assert sorted(found) == [0, 1, 2, 100, 101, 102]
        assert reading.budget.bytes_held == 0

    def test_what_it_holds_is_counted_and_given_back(self) -> None:
        store = MemoryStore()
        segments = segments_of(store, 0, 2)
        reading = Reading({0: segments}, store, 1 << 20)
        assert reading.budget.bytes_held == sum(segment.segment.length for segment in segments)
        assert reading.reader.bytes_left == reading.budget.bytes_held
        reading.finish()
        reading.finish()
        reading.take(0)
        assert reading.budget.bytes_held == segments[1].segment.length == reading.reader.bytes_left
        reading.take(0)
        assert reading.budget.bytes_held == 0
        assert reading.reader.is_done

    def test_segments_may_come_back_in_any_order_and_are_read_in_theirs(self) -> None:
        store = MemoryStore()
        reading = Reading({0: segments_of(store, 0, 3)}, store, 1 << 20)
        reading.finish(2)
        reading.finish(1)
        assert not reading.inputs[0].is_readable
        reading.finish()
        assert [*reading.take(0), *reading.take(0), *reading.take(0)] == [0, 1, 2]

    def test_the_older_records_of_an_edge_come_first_on_whichever_channel_they_are(self) -> None:
        store = MemoryStore()
        old, young = segments_of(store, 0, 1, age=2), segments_of(store, 100, 1, age=1)
        reading = Reading({0: [*old, *young], 1: segments_of(store, 200, 1, age=1), 2: []}, store, 1 << 20)
        assert [channel.held for channel in reading.inputs.values()] == [False, True, True]
        while reading.loads:
            reading.finish()
        assert reading.take(0) == [0]
        assert [channel.held for channel in reading.inputs.values()] == [False, False, True]
        while reading.loads:
            reading.finish()
        assert reading.take(1) == [200]
        assert reading.inputs[2].held, "what is live waits for everything that was recovered"
        assert reading.take(0) == [100]
        assert not any(channel.held for channel in reading.inputs.values())
        assert reading.reader.is_done

    def test_reading_ahead_to_a_younger_age_does_not_starve_the_older_one(self) -> None:
        # Channel 0 has taken the whole budget for records whose turn has not come.
        store = MemoryStore()
        old, young = segments_of(store, 0, 1, age=2), segments_of(store, 100, 1, age=1)
        reading = Reading({0: [*old, *young], 1: segments_of(store, 200, 3, age=2)}, store, 1)
        found = []
        for _ in range(5):
            reading.finish()
            (id,) = [id for id, channel in reading.inputs.items() if channel.is_readable]
            found += reading.take(id)
        assert sorted(found[:4]) == [0, 200, 201, 202]
        assert found[4] == 100

    def test_a_segment_of_which_no_row_counts_is_passed_over(self) -> None:
        store = MemoryStore()
        first, second = segments_of(store, 0, 2)
        none = replace(first, first_row=1)
        reading = Reading({0: [none, second]}, store, 1 << 20)
        reading.finish()
        reading.finish()
        assert reading.take(0) == [1]
        assert reading.reader.is_done

    def test_if_nothing_counts_the_live_records_go_on(self) -> None:
        store = MemoryStore()
        (segment,) = segments_of(store, 0, 1)
        reading = Reading({0: [replace(segment, first_row=1)], 1: []}, store, 1 << 20)
        assert reading.inputs[1].held
        reading.finish()
        assert reading.reader.is_done
        assert not reading.inputs[1].held
        assert set(reading.readable) == {0, 1}

    def test_what_cannot_be_read_back_is_an_error_that_says_where(self) -> None:
        store = MemoryStore()
        (segment,) = written(store, [BatchItem(rows(0, 2), 0, 32)], 1000, 0)
        reading = Reading({0: [replace(segment, age=1)]}, store, 1 << 20)
        assert segment.segment.path is not None
        store.delete(segment.segment.path)
        work, done = reading.loads.pop()
        try:
            work()
        except Exception as error:
            outcome = error
        with pytest.raises(RestoreError, match=r"b\[0\] cannot read back its records in flight on the edge a->b"):
            done(outcome)
