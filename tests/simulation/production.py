"""Topologies of operators as users have them: windows, timers, map_async, several sinks. Only for the simulator."""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Callable, Iterator

import numpy as np
import pyarrow as pa

from penstock.api.stream import Stream
from penstock.graph.edges import resolved
from penstock.graph.logical import Graph, OperatorFactory
from penstock.operators.async_map.operator import MapAsyncOperator
from penstock.operators.side_outputs import SideOutput
from penstock.pipeline import Pipeline
from tests.simulation.async_calls import simulated
from tests.simulation.functions import (
    Alarms,
    AsOfNumbers,
    BothInOrder,
    Echoes,
    InOrder,
    Slowly,
    Stamp,
    Unfolded,
    WindowNumbers,
    as_of_numbers,
    echo_times,
    sessions_of,
    window_keys,
    windows_of,
)
from tests.simulation.joins import FrameNumbers, PairNumbers, frames_within, pair_number, pairs_within
from tests.simulation.operators import KEYS, Check, Count, KeyBy, Ordered, kept, modulo
from tests.simulation.records import Numbers, batch_of, numbers_of
from tests.simulation.sources import AppearingSource, NumberSource
from tests.simulation.topologies import TOPOLOGIES, Load, Topology
from tests.simulation.world import World

_SECOND = 1 << 36
"""Numbers of the second sink have this bit."""


class Build:
    """A pipeline in the making: the public API, and operators of the simulator in between."""

    def __init__(self, world: World, load: Load) -> None:
        self.world = world
        self.load = load
        self.pipeline = Pipeline("simulated", max_parallelism=64)

    def source(self, splits: int | None = None, count: int | None = None, tick: int = 64) -> NumberSource:
        load = self.load
        return NumberSource(self.world, splits or load.source_splits, count or load.count, load.rows, load.idle, tick)

    def read(self, source: NumberSource, parallelism: int | None = None) -> Stream:
        return self.pipeline.source(source, name="source", parallelism=parallelism)

    def then(self, stream: Stream, name: str, made: OperatorFactory, parallelism: int | None = None) -> Stream:
        return stream._node(name, made, name, parallelism)

    def sink(self, stream: Stream, name: str = "sink") -> None:
        stream.sink(self.world.sink(name), name=name)

    def finish(self, stream: Stream) -> None:
        """The part that can fail, and the sink."""
        self.sink(self.then(stream, "fragile", lambda: Check(self.world, place="map")))

    def graph(self) -> Graph:
        """Without a look whether functions can travel: these hold the whole simulation."""
        pipeline = self.pipeline
        nodes = [dataclasses.replace(node, operator=self._virtual(node.operator)) for node in pipeline._nodes]
        return Graph(
            pipeline.name, tuple(nodes), tuple(resolved(nodes, pipeline._pending_edges)), pipeline.max_parallelism
        )

    def _virtual(self, made: OperatorFactory | None) -> OperatorFactory | None:
        is_async = isinstance(made, functools.partial) and made.func is MapAsyncOperator
        return simulated(self.world, made) if is_async else made


def _windowed(
    build: Build,
    source: NumberSource,
    stamp: Stamp,
    size: int,
    every: int,
    ends_at: int,
    model: Callable[[Numbers, Numbers, int, int], dict[int, int]] = windows_of,
) -> Topology:
    """The topology of `build`, and the windows that must come out of it: those of each life on their own.

    The end of input completes all windows. So the source does not end before the windows that event time alone has
    completed are there for all to see.
    """
    load, world = build.load, build.world
    expected: list[int] = []
    lives = [0, *load.ended_at, load.count]
    ends: dict[int, int] = {}
    for first, end in itertools.pairwise(lives):
        numbers = np.arange(source.split_count * first, source.split_count * end)
        ends = model(numbers, stamp.times(numbers), size, every)
        expected += ends
    complete = {number for number, end in ends.items() if end <= ends_at}
    # Back before the end of an earlier life, past a rotten checkpoint, windows of both lives are one.
    source.may_end = lambda: complete <= world.visible or world.is_rotten
    return Topology(build.graph(), np.array(expected))


def tumbling(world: World, load: Load) -> Topology:
    """Windows by the watermarks of the source."""
    build = Build(world, load)
    source = build.source(tick=4)
    stamp = Stamp(source.split_count)
    stamped = build.then(build.read(source), "stamp", lambda: stamp)
    windows = stamped.key_by("k").window("16 ms", on="t", late="error")
    counted = windows.aggregate(n="count", name="windows", parallelism=load.parallelism + 1)
    build.finish(build.then(counted, "numbers", lambda: WindowNumbers(16)).rebalance())
    return _windowed(build, source, stamp, 16, 16, source.last_watermark)


def sessions(world: World, load: Load) -> Topology:
    """Sessions by the watermarks of the source, some of a few records and some of many."""
    build = Build(world, load)
    source = build.source(tick=4)
    stamp = Stamp(source.split_count)
    stamped = build.then(build.read(source), "stamp", lambda: stamp)
    counted = stamped.key_by("k").session("6 ms", on="t", late="error").aggregate(n="count", name="windows")
    build.finish(build.then(counted, "numbers", lambda: WindowNumbers(4)).rebalance())
    return _windowed(build, source, stamp, 6, 4, source.last_watermark, sessions_of)


def sliding(world: World, load: Load) -> Topology:
    """Windows that overlap, by the event time of records that are a little out of order, from one split."""
    build = Build(world, load)
    source = build.source(splits=1)
    stamp = Stamp(1, jitter=4)
    stamped = build.then(build.read(source, parallelism=1), "stamp", lambda: stamp, 1)
    timed = stamped.with_watermark("t", "4 ms", name="event time", parallelism=1)
    slow = build.then(timed.rebalance(), "slow", lambda: Check(world, load.slow_us // 4))
    windows = slow.key_by("k").window("24 ms", every="8 ms", late="error").aggregate(n="count", name="windows")
    build.finish(build.then(windows, "numbers", lambda: WindowNumbers(8)))
    # The newest of all is not the last one: they come in fours, turned round.
    return _windowed(build, source, stamp, 24, 8, (source.count - 4) // 4 * 4 - 1)


_FAR = 256
"""A gap between splits that is longer than any of them."""


def split_times(world: World, load: Load) -> Topology:
    """Several splits for each subtask, far apart in event time: the slowest one is the watermark."""
    build = Build(world, load)
    source = build.source(splits=3 * load.source_splits)
    stamp = Stamp(source.split_count, gap=_FAR)
    stamped = build.then(build.read(source), "stamp", lambda: stamp)
    timed = stamped.with_watermark("t", 0, name="event time")
    windows = timed.key_by("k").window("16 ms", late="error")
    counted = windows.aggregate(n="count", name="windows", parallelism=load.parallelism + 1)
    build.finish(build.then(counted, "numbers", lambda: WindowNumbers(16)).rebalance())
    return _windowed(build, source, stamp, 16, 16, source.count - 1)


def idle_split(world: World, load: Load) -> Topology:
    """Two splits: the second one says nothing before the first is read, and its windows are published."""
    build = Build(world, load)
    source = build.source(splits=2)
    # One that has records and does not give them for long is idle, and they are late.
    source.idle = 0
    stamp = Stamp(2, gap=_FAR)
    stamped = build.then(build.read(source), "stamp", lambda: stamp)
    timed = stamped.with_watermark("t", 0, idle_after="4 ms", name="event time")
    windows = timed.key_by("k").window("16 ms", late="error").aggregate(n="count", name="windows")
    build.finish(build.then(windows, "numbers", lambda: WindowNumbers(16)).rebalance())
    numbers = np.arange(0, 2 * source.count, 2)
    ends = windows_of(numbers, stamp.times(numbers), 16, 16)
    before = {number for number, end in ends.items() if end < source.count}
    source.may_begin = lambda split: split == 0 or (source.is_read(0) and before <= world.visible)
    topology = _windowed(build, source, stamp, 16, 16, _FAR + source.count - 1)
    topology.may_idle = True
    return topology


def appearing(world: World, load: Load) -> Topology:
    """Splits that appear while the pipeline runs, some of them while it is down."""
    build = Build(world, load)
    source = AppearingSource(world, 3 * load.source_splits, load.count, load.rows, load.idle)
    keyed = build.then(build.read(source), "key", lambda: KeyBy(modulo(KEYS))).key_by("k")
    counted = build.then(
        keyed, "count", lambda: Count(world, load.slow_us // 2, load.state_version), load.parallelism + 1
    )
    build.finish(counted.rebalance())
    numbers = source.numbers()
    return Topology(build.graph(), numbers, True, {"count": numbers}, is_endless=True)  # type: ignore[dict-item]


def timers(world: World, load: Load) -> Topology:
    build = Build(world, load)
    source = build.source()
    keyed = build.then(build.read(source), "key", lambda: KeyBy(modulo(12))).key_by("k")
    alarms = keyed.process(Alarms(world, load.slow_us // 4), name="alarms", parallelism=load.parallelism + 1)
    build.finish(alarms.rebalance())
    return Topology(build.graph(), source.numbers())


def event_timers(world: World, load: Load) -> Topology:
    """Timers by the watermarks of the source, and behind them windows that take no late record."""
    build = Build(world, load)
    source = build.source(tick=4)
    stamp = EchoStamp(source.split_count)
    stamped = build.then(build.read(source), "stamp", lambda: Stamp(source.split_count))
    echoes = stamped.key_by("k").process(
        Echoes(world, load.slow_us // 4), time_mode="event", name="echoes", parallelism=load.parallelism + 1
    )
    windows = echoes.key_by("k").window("16 ms", on="t", late="error").aggregate(n="count", name="windows")
    build.finish(build.then(windows, "numbers", lambda: WindowNumbers(16)).rebalance())
    topology = _windowed(build, source, stamp, 16, 16, source.last_watermark)
    topology.holding = frozenset({"echoes"})
    return topology


def by_key(world: World, load: Load) -> Topology:
    """A function that costs by the call: it gets many records, and is interrupted between two keys."""
    build = Build(world, load)
    source = build.source()
    keyed = build.then(build.read(source), "key", lambda: KeyBy(modulo(12))).key_by("k")
    ordered = keyed.process(
        InOrder(world, source.split_count, 2 * load.slow_us), name="in order", parallelism=load.parallelism + 1
    )
    build.finish(build.then(ordered.rebalance(), "slow", lambda: Check(world, load.slow_us // 4)))
    return Topology(build.graph(), source.numbers(), True)


def by_key_times(world: World, load: Load) -> Topology:
    """The same, and event time follows from its output: records that wait while later ones are done are not late."""
    build = Build(world, load)
    source = build.source(splits=1)
    stamp = Stamp(1, jitter=4)
    stamped = build.then(build.read(source, parallelism=1), "stamp", lambda: stamp, 1)
    ordered = stamped.key_by("k").process(InOrder(world, 1, 2 * load.slow_us), name="in order", parallelism=1)
    timed = ordered.with_watermark("t", "4 ms", name="event time", parallelism=1)
    windows = timed.key_by("k").window("24 ms", every="8 ms", late="error").aggregate(n="count", name="windows")
    build.finish(build.then(windows, "numbers", lambda: WindowNumbers(8)))
    topology = _windowed(build, source, stamp, 24, 8, (source.count - 4) // 4 * 4 - 1)
    topology.timing = frozenset({"in order"})
    return topology


def two_by_key(world: World, load: Load) -> Topology:
    """A function of two inputs that costs by the key: records of both sides are sorted, and it is interrupted."""
    build = Build(world, load)
    source = build.source()
    splits = source.split_count
    keyed = build.then(build.read(source), "key", lambda: KeyBy(modulo(12)))
    left = keyed.flat_map(functools.partial(_sides, splits), side_outputs={"right": "v bigint, k bigint"}, name="sides")
    right = left.side_output("right").key_by("k")
    both = (
        left.key_by("k")
        .connect(right)
        .process(BothInOrder(world, splits, 2 * load.slow_us), name="in order", parallelism=load.parallelism + 1)
    )
    build.finish(build.then(both.rebalance(), "slow", lambda: Check(world, load.slow_us // 4)))
    return Topology(build.graph(), source.numbers(), True)


def unfolded(world: World, load: Load) -> Topology:
    """Generators in three places: behind a source, first behind an exchange, and in the middle of a chain."""
    build = Build(world, load)
    source = build.source()
    made = Unfolded(world, load.slow_us)
    first = build.read(source).flat_map(made.row, format="rows", schema="v bigint", name="behind the source")
    second = first.rebalance().flat_map(made.row, format="rows", schema="v bigint", name="first")
    checked = build.then(second.shuffle(), "checked", lambda: Check(world, load.slow_us // 4), load.parallelism + 1)
    third = checked.flat_map(made.batch, name="in the middle", parallelism=load.parallelism + 1)
    build.finish(third.rebalance())
    numbers = 8 * source.numbers()
    return Topology(build.graph(), np.concatenate([numbers + number for number in range(8)]))


def _sides(splits: int, batch: pa.RecordBatch) -> Iterator[object]:
    is_right = numbers_of(batch) // splits % 2 == 1
    yield SideOutput("right", batch.filter(pa.array(is_right)))
    yield batch.filter(pa.array(~is_right))


class EchoStamp(Stamp):
    """The times at which records come out of the timers."""

    def times(self, numbers: Numbers) -> Numbers:
        return echo_times(numbers, super().times(numbers))


def async_ordered(world: World, load: Load) -> Topology:
    """Keyed, so that the records of one key keep their order, whatever happens."""
    build = Build(world, load)
    source = build.source()
    splits = source.split_count
    keyed = build.then(build.read(source), "key", lambda: KeyBy(modulo(splits))).key_by("k")
    called = keyed.map_async(Slowly(world), concurrency=2, batch_rows=8, name="call", parallelism=load.parallelism + 1)
    ordered = build.then(called.key_by("k"), "ordered", lambda: Ordered(world, splits, load.slow_us // 4))
    build.finish(ordered)
    return Topology(build.graph(), source.numbers(), True, holding=frozenset({"call"}))


def async_unordered(world: World, load: Load) -> Topology:
    build = Build(world, load)
    source = build.source()
    called = (
        build.read(source).rebalance().map_async(Slowly(world), concurrency=3, batch_rows=8, ordered=False, name="call")
    )
    counted = build.then(
        build.then(called, "key", lambda: KeyBy(modulo(KEYS))).key_by("k"),
        "count",
        lambda: Count(world, load.slow_us // 4, load.state_version),
        load.parallelism + 1,
    )
    build.finish(counted.rebalance())
    numbers = source.numbers()
    return Topology(build.graph(), numbers, True, {"count": numbers}, frozenset({"call"}))  # type: ignore[dict-item]


def two_sinks(world: World, load: Load) -> Topology:
    build = Build(world, load)
    source = build.source()
    spread = build.then(build.read(source).rebalance(), "spread", lambda: Check(world, load.slow_us // 4))
    second = build.then(spread.shuffle(), "mark", Mark)
    build.sink(second, "second")
    build.finish(spread.rebalance())
    numbers = source.numbers()
    return Topology(build.graph(), np.concatenate([numbers, kept(numbers) | _SECOND]))


def ranked(world: World, load: Load) -> Topology:
    """The largest two of each key and window, of records of which a part goes to a side output before."""
    build = Build(world, load)
    source = build.source(tick=4)
    stamp = Stamp(source.split_count)
    stamped = build.then(build.read(source), "stamp", lambda: stamp)
    split = stamped.flat_map(split_off, side_outputs={"second": "v bigint"}, name="split")
    build.sink(build.then(split.side_output("second"), "checked", lambda: Check(world)), "second")
    windows = split.key_by("k").window("16 ms", on="t", late="error")
    largest = windows.top(2, by="v", name="windows", parallelism=load.parallelism + 1)
    build.finish(largest.select("v", name="numbers").rebalance())
    lives = [0, *load.ended_at, load.count]
    expected: list[Numbers] = []
    ends: dict[int, int] = {}
    for first, end in itertools.pairwise(lives):
        numbers = np.arange(source.split_count * first, source.split_count * end)
        ends = largest_of(numbers[numbers % 4 > 0], stamp, 16)
        expected += [np.array(list(ends), dtype=np.int64), numbers[numbers % 4 == 0] | _SECOND]
    complete = {number for number, end in ends.items() if end <= source.last_watermark}
    # As for other windows: the end of the input would complete them all.
    source.may_end = lambda: complete <= world.visible or world.is_rotten
    return Topology(build.graph(), np.concatenate(expected))


def split_off(batch: pa.RecordBatch) -> Iterator[object]:
    is_second = numbers_of(batch) % 4 == 0
    yield SideOutput("second", batch_of(numbers_of(batch)[is_second] | _SECOND))
    yield batch.filter(pa.array(~is_second))


def largest_of(numbers: Numbers, stamp: Stamp, size: int) -> dict[int, int]:
    """The model: the numbers that must come out, and the end of the window of each."""
    by_window: dict[tuple[int, int], list[int]] = {}
    for number, key, at in zip(
        numbers.tolist(), window_keys(numbers).tolist(), stamp.times(numbers).tolist(), strict=True
    ):
        by_window.setdefault((key, at // size), []).append(number)
    return {number: (window + 1) * size for (_, window), held in by_window.items() for number in sorted(held)[-2:]}


class Mark(Check):
    """Drops some of the numbers, and marks the others."""

    def __init__(self) -> None:
        self.place = None

    def process(self, batch: object, source: int, emit: Callable[[object], None]) -> None:  # type: ignore[override]
        numbers: Numbers = kept(numbers_of(batch))
        if len(numbers):
            emit(batch_of(numbers | _SECOND))


def deduplicated(world: World, load: Load) -> Topology:
    """Each record comes twice, on two ways, and is forgotten soon after that."""
    build = Build(world, load)
    source = build.source()
    stamped = build.then(build.read(source), "stamp", lambda: Stamp(source.split_count))
    timed = stamped.with_watermark("t", 0, name="event time")
    slow = build.then(timed.rebalance(), "slow", lambda: Check(world, load.slow_us // 4))
    once = timed.union(slow).drop_duplicates("v", "k", within="8 ms", name="once", parallelism=load.parallelism + 1)
    build.finish(once.rebalance())
    return Topology(build.graph(), source.numbers())


def as_of(world: World, load: Load) -> Topology:
    """Each record and the newest version of its key at its time, whichever of the two comes first."""
    build = Build(world, load)
    source, rates = build.source(), build.source(splits=1)
    stamped = build.then(build.read(source), "stamp", lambda: Stamp(source.split_count))
    versions = build.then(build.pipeline.source(rates, name="rates", parallelism=1), "stamp rates", lambda: Stamp(1), 1)
    left = stamped.with_watermark("t", 0, name="event time")
    right = versions.with_watermark("t", 0, name="time of rates", parallelism=1)
    joined = left.key_by("k").join_as_of(
        right.key_by("k"),
        how="left",
        right_schema="v bigint, k bigint, t bigint",
        name="as of",
        parallelism=load.parallelism + 1,
    )
    build.finish(build.then(joined, "numbers", AsOfNumbers).rebalance())
    numbers = source.numbers()
    expected = as_of_numbers(numbers, Stamp(source.split_count).times(numbers))
    return Topology(build.graph(), expected, holding=frozenset({"as of"}))


DRIFT_MS = 6


def drifting(world: World, load: Load) -> Topology:
    """Two sources, one much slower than the other: neither runs further ahead than `max_drift`, on any worker."""
    build = Build(world, load)
    source, slow = build.source(), build.source(splits=1)
    slow.idle = 0.6
    # Whoever has nothing for a moment has more, and everybody waits for its first record.
    source.is_caught_up = slow.is_caught_up = False
    stamped = build.then(build.read(source), "stamp", lambda: Stamp(source.split_count))
    versions = build.then(build.pipeline.source(slow, name="slow", parallelism=1), "stamp slow", lambda: Stamp(1), 1)
    drift = f"{DRIFT_MS} ms"
    left = stamped.with_watermark("t", 0, max_drift=drift, name="event time")
    right = versions.with_watermark("t", 0, max_drift=drift, name="slow time", parallelism=1)
    joined = left.key_by("k").join_as_of(
        right.key_by("k"), how="left", right_schema="v bigint, k bigint, t bigint", name="as of"
    )
    build.finish(build.then(joined, "numbers", AsOfNumbers).rebalance())
    numbers = source.numbers()
    expected = as_of_numbers(numbers, Stamp(source.split_count).times(numbers))
    return Topology(build.graph(), expected, holding=frozenset({"as of"}), is_aligned=True)


def joined(world: World, load: Load) -> Topology:
    """An interval join of a stream with itself, and rows without a partner: none is late for whoever reads them."""
    build = Build(world, load)
    source = build.source(tick=4)
    stamp = Stamp(source.split_count)
    stamped = build.then(build.read(source), "stamp", lambda: stamp).key_by("k")
    pairs = stamped.join(
        stamped,
        between=("1 ms", "2 ms"),
        how="left",
        on="t",
        late="error",
        name="join",
        parallelism=load.parallelism + 1,
    )
    build.finish(build.then(pairs, "numbers", lambda: PairNumbers(world), load.parallelism + 1).rebalance())
    expected: list[int] = []
    lives = [0, *load.ended_at, load.count]
    for first, end in itertools.pairwise(lives):
        # The end of input makes it certain that no partner comes.
        numbers = np.arange(source.split_count * first, source.split_count * end)
        expected += pairs_within(numbers, stamp.times(numbers), 1, 2)
    return Topology(build.graph(), np.array(expected), holding=frozenset({"join"}))


def joined_by_key(world: World, load: Load) -> Topology:
    """A regular join of a stream with itself: each number meets the other of its pair, and itself, in both roles."""
    build = Build(world, load)
    source = build.source()
    keyed = build.then(build.read(source), "key", lambda: KeyBy(lambda numbers: numbers // 2)).key_by("k")
    pairs = keyed.join(keyed, state_ttl="1 day", name="join", parallelism=load.parallelism + 1)
    slow = build.then(pairs, "numbers", lambda: PairNumbers(world, load.slow_us // 4), load.parallelism + 1)
    build.finish(slow.rebalance())
    numbers = source.numbers()
    known = set(numbers.tolist())
    expected = [pair_number(a, b) for a in known for b in (a, a ^ 1) if b in known]
    return Topology(build.graph(), np.array(expected))


def framed(world: World, load: Load) -> Topology:
    """Frames of a stretch of event time, in small portions: rows wait for the watermark and hold it."""
    build = Build(world, load)
    source = build.source(tick=4)
    stamp = Stamp(source.split_count)
    stamped = build.then(build.read(source), "stamp", lambda: stamp).key_by("k")
    frames = stamped.over(range="6 ms", on="t", late="error")
    counted = frames.aggregate(n="count", name="frames", parallelism=load.parallelism + 1)
    build.finish(build.then(counted, "numbers", lambda: FrameNumbers(world), load.parallelism + 1).rebalance())
    expected: list[int] = []
    for first, end in itertools.pairwise([0, *load.ended_at, load.count]):
        # At the end of input all frames are emitted, and later ones begin anew.
        numbers = np.arange(source.split_count * first, source.split_count * end)
        expected += frames_within(numbers, stamp.times(numbers), 6)
    return Topology(build.graph(), np.array(expected), holding=frozenset({"frames"}))


SIMULATED: dict[str, Callable[[World, Load], Topology]] = TOPOLOGIES | {
    build.__name__: build
    for build in (
        tumbling,
        sessions,
        sliding,
        split_times,
        idle_split,
        appearing,
        timers,
        event_timers,
        by_key,
        by_key_times,
        two_by_key,
        unfolded,
        async_ordered,
        async_unordered,
        two_sinks,
        deduplicated,
        as_of,
        drifting,
        ranked,
        joined,
        joined_by_key,
        framed,
    )
}
