"""The source of the simulated pipelines: numbers that say from which split they are, and where in it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from penstock.connectors.source import END_OF_SPLIT, Portion, Source, SplitReader
from tests.simulation.records import Numbers, batch_of
from tests.simulation.world import World

_BAD_EVERY = 5
"""Behind each fifth number of a split stands a line that cannot be read, and is skipped."""


def skipped_before(position: int) -> int:
    """Lines that were skipped in front of a position of a split."""
    return position // _BAD_EVERY


class NumberSource(Source):
    """Split i of n emits i, i+n, i+2n …, `count` numbers in all; `offset` is how many.

    Some lines between the numbers are bad: they are skipped, and counted.
    """

    def __init__(self, world: World, splits: int, count: int, rows: int, idle: float, tick: int = 64) -> None:
        self.world = world
        self.split_count = splits
        self.count = count
        self.rows = rows
        self.idle = idle
        self.tick = tick
        """Watermarks are multiples of this."""
        self.is_caught_up = True
        """What its readers say of themselves."""
        self.may_end: Callable[[], bool] = lambda: True
        """An end of input hides much: one that has everything to say may wait until it has been dealt with."""
        self.may_begin: Callable[[int], bool] = lambda split: True
        self.readers: dict[int, NumberReader] = {}
        """The reader of each split that was opened last."""

    def splits(self) -> Sequence[str]:
        return [str(split) for split in range(self.split_count)]

    def open(self, split: str, offset: bytes | None) -> SplitReader:
        self.readers[int(split)] = reader = NumberReader(self, int(split), int(offset or b"0"))
        return reader

    def is_read(self, split: int) -> bool:
        """Whether the last reader of a split is at its end."""
        return split in self.readers and self.readers[split].position >= self.count

    def numbers(self, first: int = 0) -> Numbers:
        """All numbers that this source emits, from a position on."""
        return np.arange(self.split_count * first, self.split_count * self.count)

    @property
    def last_watermark(self) -> int:
        return self.count // self.tick * self.tick


class AppearingSource(NumberSource):
    """Its splits appear one after the other, and there may always be another one: it never ends."""

    splits_may_appear = True
    EVERY_US = 3_000

    def splits(self) -> Sequence[str]:
        there = 1 + self.world.scheduler.now_us // self.EVERY_US
        return super().splits()[:there]


class NumberReader(SplitReader):
    def __init__(self, source: NumberSource, split: int, position: int) -> None:
        self.source = source
        self.split = split
        self.position = position
        self.is_caught_up = source.is_caught_up

    def read(self, rows_max: int) -> object:  # type: ignore[override]
        source, world = self.source, self.source.world
        if self.position >= source.count:
            return END_OF_SPLIT if source.may_end() else None
        if world.rng.random() < source.idle or not world.is_pumping or not source.may_begin(self.split):
            return None
        rows = min(rows_max, world.rng.randint(1, source.rows), source.count - self.position)
        numbers = np.arange(self.position, self.position + rows) * source.split_count + self.split
        skipped = skipped_before(self.position + rows) - skipped_before(self.position)
        self.position += rows
        world.spend(5 * rows)
        return Portion(batch_of(numbers), rows_skipped=skipped) if skipped else batch_of(numbers)

    def offset(self) -> bytes:
        return str(self.position).encode()

    def watermark(self) -> int | None:
        return self.position // self.source.tick * self.source.tick
