"""The topologies of the test design, small enough that thousands of them run in minutes.

Each returns the graph and what must come out of it: every number of `expected`, exactly once.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from penstock.graph.logical import Graph, LogicalEdge, Node
from penstock.ids import OperatorName
from penstock.protocol.manifest import Partitioning
from tests.simulation.operators import (
    KEYS,
    Broadcasting,
    Check,
    Count,
    Keep,
    KeyBy,
    Meet,
    Ordered,
    kept,
    modulo,
)
from tests.simulation.records import Numbers
from tests.simulation.sources import NumberSource
from tests.simulation.world import World

F, H, R, S = Partitioning.FORWARD, Partitioning.HASH, Partitioning.REBALANCE, Partitioning.SHUFFLE


@dataclass(frozen=True, slots=True)
class Load:
    """How much, how fast, how slow."""

    parallelism: int
    """Of the operators; changes when a pipeline is rescaled."""
    count: int
    rows: int
    idle: float
    slow_us: int
    splits: int = 0
    """Of the sources; stays what it was. 0: as many as the parallelism."""
    ended_at: tuple[int, ...] = ()
    """The counts with which earlier runs on the same directory have come to their end."""
    state_version: int = 1
    """Of functions with state: another version asks for another schema."""

    @property
    def source_splits(self) -> int:
        return self.splits or self.parallelism


@dataclass(slots=True)
class Topology:
    """A pipeline and what it must produce."""

    graph: Graph
    expected: Numbers
    is_linear: bool = False
    """Every record is in one place at a time, so that a checkpoint can be taken stock of (I1)."""
    counted: dict[OperatorName, Numbers] = field(default_factory=dict)
    """For each counting operator, the numbers that it must have counted in the end."""
    holding: frozenset[str] = frozenset()
    """Operators whose state holds records on their way, which count as in flight (I1)."""
    is_endless: bool = False
    """The sources never end: when all of `expected` is published, somebody stops the pipeline with a savepoint."""
    timing: frozenset[str] = frozenset()
    """Chains behind an exchange that make watermarks from the times of their records: their senders have none."""
    is_aligned: bool = False
    """All sources have the same `max_drift`, and begin at time 0."""
    may_idle: bool = False
    """A source may have nothing to say for a while, and event time goes on without it."""


class Build:
    """A graph in the making."""

    def __init__(self, world: World, load: Load) -> None:
        self.world = world
        self.load = load
        self.nodes: list[Node] = []
        self.edges: list[LogicalEdge] = []

    def source(
        self, name: str, parallelism: int | None = None, count: int | None = None, splits: int | None = None
    ) -> NumberSource:
        load = self.load
        source = NumberSource(self.world, splits or load.source_splits, count or load.count, load.rows, load.idle)
        self.nodes.append(Node(OperatorName(name), source=source, parallelism=parallelism))
        return source

    def add(
        self,
        name: str,
        operator: Callable[[], object],
        *inputs: tuple[str, Partitioning, int],
        parallelism: int | None = None,
    ) -> str:
        self.nodes.append(Node(OperatorName(name), operator=operator, parallelism=parallelism))  # type: ignore[arg-type]
        self._connect(name, inputs)
        return name

    def sink(self, upstream: str, how: Partitioning = F, parallelism: int | None = None) -> None:
        self.nodes.append(Node(OperatorName("sink"), sink=self.world.sink("sink"), parallelism=parallelism))
        self._connect("sink", ((upstream, how, 0),))

    def _connect(self, name: str, inputs: tuple[tuple[str, Partitioning, int], ...]) -> None:
        for upstream, how, number in inputs:
            key = ("k",) if how is H else ()
            self.edges.append(LogicalEdge(OperatorName(upstream), OperatorName(name), how, number, key))

    def graph(self) -> Graph:
        return Graph("simulated", tuple(self.nodes), tuple(self.edges), max_parallelism=64)


def pipeline(world: World, load: Load) -> Topology:
    p, build = load.parallelism, Build(world, load)
    source = build.source("source")
    build.add("filter", Keep, ("source", F, 0))
    build.add("global", lambda: Check(world), ("filter", Partitioning.GLOBAL, 0), parallelism=1)
    build.add("widen", lambda: Check(world, load.slow_us // 8), ("global", R, 0), parallelism=p + 1)
    build.add("double", lambda: Check(world), ("widen", S, 0), parallelism=2 * p)
    build.add("key", lambda: KeyBy(modulo(KEYS)), ("double", S, 0), parallelism=p + 1)
    build.add("count", lambda: Count(world, load.slow_us // 8, load.state_version), ("key", H, 0))
    build.add("spread", lambda: Check(world), ("count", Partitioning.RESCALE, 0), parallelism=max(p + 1, 3 * p // 2))
    build.add("fragile", lambda: Check(world, load.slow_us // 4, "map"), ("spread", S, 0))
    build.sink("fragile", F)
    expected = kept(source.numbers())
    return Topology(build.graph(), expected, True, {OperatorName("count"): expected})


def keyed(world: World, load: Load) -> Topology:
    build = Build(world, load)
    source = build.source("source")
    build.add("key", lambda: KeyBy(modulo(KEYS)), ("source", F, 0))
    build.add(
        "count", lambda: Count(world, load.slow_us, load.state_version), ("key", H, 0), parallelism=load.parallelism + 1
    )
    build.add("fragile", lambda: Check(world, place="map"), ("count", R, 0))
    build.sink("fragile")
    return Topology(build.graph(), source.numbers(), True, {OperatorName("count"): source.numbers()})


def ordered(world: World, load: Load) -> Topology:
    p, build = load.parallelism, Build(world, load)
    source = build.source("source")
    splits, version = source.split_count, load.state_version
    build.add("key", lambda: KeyBy(modulo(splits)), ("source", F, 0))
    build.add("first", lambda: Ordered(world, splits, load.slow_us // 4, version), ("key", H, 0), parallelism=p + 1)
    build.add("again", lambda: KeyBy(modulo(splits)), ("first", F, 0), parallelism=p + 1)
    build.add("second", lambda: Ordered(world, splits, load.slow_us, version), ("again", H, 0))
    build.add("fragile", lambda: Check(world, place="map"), ("second", F, 0))
    build.sink("fragile", R)
    return Topology(build.graph(), source.numbers(), True)


def part_empty(world: World, load: Load) -> Topology:
    build = Build(world, load)
    source = build.source("source")
    build.add("key", lambda: KeyBy(lambda numbers: numbers * 0 + 7), ("source", R, 0))
    build.add(
        "count",
        lambda: Count(world, load.slow_us // 2, load.state_version),
        ("key", H, 0),
        parallelism=load.parallelism + 2,
    )
    build.add("fragile", lambda: Check(world, place="map"), ("count", R, 0))
    build.sink("fragile")
    return Topology(build.graph(), source.numbers(), True)


def multi_input(world: World, load: Load) -> Topology:
    build = Build(world, load)
    sources = [build.source(name) for name in ("a", "b", "c")]
    for name in ("a", "b", "c"):
        build.add(f"key-{name}", lambda: KeyBy(modulo(KEYS)), (name, F, 0))
    build.add("meet", lambda: Meet(world, 2, load.slow_us // 4), ("key-a", H, 0), ("key-b", H, 1))
    build.add("key-meet", lambda: KeyBy(modulo(KEYS)), ("meet", F, 0))
    build.add("meet-again", lambda: Meet(world, 2, load.slow_us // 4), ("key-meet", H, 0), ("key-c", H, 1))
    build.add("fragile", lambda: Check(world, place="map"), ("meet-again", R, 0))
    build.sink("fragile")
    return Topology(build.graph(), sources[0].numbers())


def union(world: World, load: Load) -> Topology:
    build = Build(world, load)
    source = build.source("a")
    build.source("b")
    build.source("c")
    for name in ("a", "b", "c"):
        build.add(f"key-{name}", lambda: KeyBy(modulo(KEYS)), (name, F, 0))
    inputs = [("key-a", H, 0), ("key-b", H, 0), ("key-c", H, 0)]
    build.add("count", lambda: Count(world, load.slow_us // 3, load.state_version), *inputs)
    build.add("fragile", lambda: Check(world, place="map"), ("count", S, 0))
    build.sink("fragile")
    three_times = np.repeat(source.numbers(), 3)
    return Topology(build.graph(), three_times, True, {OperatorName("count"): three_times})


def keyed_different(world: World, load: Load) -> Topology:
    p, build = load.parallelism, Build(world, load)
    narrow, narrower = max(1, p // 2), max(1, p // 3)
    build.source("a", parallelism=narrow)
    build.source("b", parallelism=narrower)
    build.add("key-a", lambda: KeyBy(modulo(KEYS)), ("a", F, 0), parallelism=narrow)
    build.add("key-b", lambda: KeyBy(modulo(KEYS)), ("b", F, 0), parallelism=narrower)
    build.add("meet", lambda: Meet(world, 2, load.slow_us // 4), ("key-a", H, 0), ("key-b", H, 1))
    build.add("fragile", lambda: Check(world, place="map"), ("meet", R, 0))
    build.sink("fragile")
    return Topology(build.graph(), np.arange(load.count * load.source_splits))


def broadcast(world: World, load: Load) -> Topology:
    build = Build(world, load)
    source = build.source("source")
    build.source("rules", parallelism=1, count=load.count // 4 + 1, splits=1)
    build.add("wide", lambda: Check(world, load.slow_us // 4), ("source", R, 0))
    inputs = [("wide", R, 0), ("rules", Partitioning.BROADCAST, 1)]
    build.add("apply", lambda: Broadcasting(world, load.slow_us // 2), *inputs, parallelism=2 * load.parallelism)
    build.add("fragile", lambda: Check(world, place="map"), ("apply", R, 0))
    build.sink("fragile")
    return Topology(build.graph(), source.numbers())


def keyed_broadcast(world: World, load: Load) -> Topology:
    build = Build(world, load)
    source = build.source("source")
    build.add("key", lambda: KeyBy(modulo(KEYS)), ("source", R, 0))
    inputs: list[tuple[str, Partitioning, int]] = [("key", H, 0)]
    for name in ("x", "y", "z"):
        build.source(name, parallelism=1, count=load.count // 8 + 1, splits=1)
        inputs.append((name, Partitioning.BROADCAST, 1))
    build.add("apply", lambda: Broadcasting(world, load.slow_us // 3), *inputs, parallelism=load.parallelism + 2)
    build.add("fragile", lambda: Check(world, load.slow_us // 4, "map"), ("apply", R, 0))
    build.sink("fragile")
    return Topology(build.graph(), source.numbers())


TOPOLOGIES: dict[str, Callable[[World, Load], Topology]] = {
    build.__name__: build
    for build in (
        pipeline,
        keyed,
        ordered,
        part_empty,
        multi_input,
        union,
        keyed_different,
        broadcast,
        keyed_broadcast,
    )
}
