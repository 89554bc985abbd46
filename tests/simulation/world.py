"""What all processes of a simulation touch from outside: published output, injected failures, the running process."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence

import numpy as np

from penstock.connectors.sink import Committer, Prepared, Sink, SinkWriter
from penstock.connectors.source import END_OF_SPLIT, Source, SplitReader
from penstock.ids import CheckpointId, Generation
from tests.simulation.records import Numbers, batch_of, numbers_of
from tests.simulation.scheduler import Scheduler


class InjectedFailure(Exception):
    """An exception of user code, planned by the seed."""


class World:
    """The outside world of a simulation."""

    def __init__(self, rng: random.Random, scheduler: Scheduler) -> None:
        self.rng = rng
        self.scheduler = scheduler
        self.staged: dict[str, list[Numbers]] = {}
        self.published: dict[str, list[Numbers]] = {}
        self.commits: list[tuple[CheckpointId, tuple[str, ...]]] = []
        self.failures: Counter[str] = Counter()
        """How often user code is still to fail at each place."""
        self.violations: list[str] = []
        self.is_pumping = True
        self.slow_us = 0

    def spend(self, us: int) -> None:
        self.scheduler.spend(us)

    def fail_here(self, place: str) -> None:
        if self.failures[place] > 0:
            self.failures[place] -= 1
            raise InjectedFailure(f"planned failure in {place}")

    def violation(self, text: str) -> None:
        self.violations.append(text)

    def sink(self, name: str) -> Sink:
        return ListSink(self, name)


class NumberSource(Source):
    """Split i of n emits i, i+n, i+2n …, `count` numbers in all; `offset` is how many."""

    def __init__(self, world: World, splits: int, count: int, rows: int, idle: float) -> None:
        self.world = world
        self.split_count = splits
        self.count = count
        self.rows = rows
        self.idle = idle

    def splits(self) -> Sequence[str]:
        return [str(split) for split in range(self.split_count)]

    def open(self, split: str, offset: bytes | None) -> SplitReader:
        return NumberReader(self, int(split), int(offset or b"0"))

    def numbers(self) -> Numbers:
        """All numbers that this source emits."""
        return np.arange(self.split_count * self.count)


class NumberReader(SplitReader):
    def __init__(self, source: NumberSource, split: int, position: int) -> None:
        self.source = source
        self.split = split
        self.position = position

    def read(self, rows_max: int) -> object:  # type: ignore[override]
        source, world = self.source, self.source.world
        if self.position >= source.count:
            return END_OF_SPLIT
        if world.rng.random() < source.idle or not world.is_pumping:
            return None
        rows = min(rows_max, world.rng.randint(1, source.rows), source.count - self.position)
        numbers = np.arange(self.position, self.position + rows) * source.split_count + self.split
        self.position += rows
        world.spend(5 * rows)
        return batch_of(numbers)

    def offset(self) -> bytes:
        return str(self.position).encode()

    def watermark(self) -> int | None:
        return self.position // 64 * 64


class ListSink(Sink):
    """Stages lists of numbers under a name, publishes them by that name."""

    def __init__(self, world: World, name: str) -> None:
        self.world = world
        self.name = name

    def writer(self, subtask: int, generation: Generation) -> SinkWriter:
        return ListWriter(self.world, f"{self.name}/g{generation}-{subtask}")

    def committer(self) -> Committer:
        return ListCommitter(self.world, self.name)


class ListWriter(SinkWriter):
    def __init__(self, world: World, prefix: str) -> None:
        self.world = world
        self.prefix = prefix
        self.part = 0
        self.held: list[Numbers] = []

    def write(self, batch: object) -> None:
        self.world.spend(self.world.slow_us * batch.num_rows)  # type: ignore[attr-defined]
        self.held.append(numbers_of(batch))

    def prepare(self) -> Prepared:
        self.world.fail_here("snapshot")
        if not self.held:
            return list
        held, self.held = self.held, []
        self.part += 1
        name = f"{self.prefix}-{self.part}"

        def stage() -> list[bytes]:
            self.world.staged[name] = held
            return [name.encode()]

        return stage

    def close(self) -> None:
        self.world.fail_here("close")


class ListCommitter(Committer):
    def __init__(self, world: World, name: str) -> None:
        self.world = world
        self.name = name

    def commit(self, checkpoint: CheckpointId, committables: Sequence[bytes]) -> None:
        names = tuple(payload.decode() for payload in committables)
        self.world.commits.append((checkpoint, names))
        for name in names:
            if name not in self.world.published:
                if name not in self.world.staged:
                    self.world.violation(f"checkpoint {checkpoint} commits '{name}', which was never staged")
                    continue
                self.world.published[name] = self.world.staged[name]

    def sweep(self, generation: Generation) -> None:
        for name in list(self.world.staged):
            made = int(name.split("/g")[1].split("-")[0])
            if name.startswith(self.name + "/") and made < generation and name not in self.world.published:
                del self.world.staged[name]
