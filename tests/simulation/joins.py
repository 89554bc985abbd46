"""What stands behind a join, or frames, in the simulator, and the models of their results."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from penstock.operators.contract import Emit, Operator
from tests.simulation.functions import window_keys
from tests.simulation.records import Numbers, batch_of, numbers_of
from tests.simulation.world import World

_BITS = 18
_ALONE = (1 << _BITS) - 1
"""Stands for the partner of a row that has none."""


def pair_number(left: Any, right: Any) -> Any:
    return left << _BITS | right


def pairs_within(numbers: Numbers, times: Numbers, lower: int, upper: int) -> list[int]:
    """The model: a number for each pair of a left join with itself, and for each left row without a partner."""
    rows = list(zip(numbers.tolist(), window_keys(numbers).tolist(), times.tolist(), strict=True))
    found = []
    for number, key, at in rows:
        partners = [other for other, theirs, later in rows if theirs == key and lower <= later - at <= upper]
        found += [pair_number(number, other) for other in partners or [_ALONE]]
    return found


class PairNumbers(Operator):
    """Each joined row as one number. No time in it may be behind the watermark that came before it."""

    def __init__(self, world: World, us: int = 0) -> None:
        self.world = world
        self.us = us
        self.reached: int | None = None

    def process(self, batch: pa.RecordBatch, source: int, emit: Emit) -> None:
        self.world.spend(self.us * batch.num_rows)
        for column in {"t", "t_right"} & set(batch.schema.names):
            times = batch.column(column).drop_null().to_numpy()
            if self.reached is not None and len(times) and times.min() < self.reached:
                self.world.violation(
                    f"a joined row of {times.min()} in '{column}' is behind the watermark {self.reached}"
                )
        left = numbers_of(batch.select(["v"]))
        alone = batch.column("v_right").is_null().to_numpy(zero_copy_only=False)
        partners = np.full(len(left), _ALONE)
        partners[~alone] = numbers_of(pa.RecordBatch.from_arrays([batch.column("v_right").drop_null()], names=["v"]))
        emit(batch_of(pair_number(left, partners)))

    def on_watermark(self, watermark: int, emit: Emit) -> bool | None:
        self.reached = watermark
        return None


def frames_within(numbers: Numbers, times: Numbers, reach: int) -> list[int]:
    """The model: for each number, how many of its key are from `reach` before it up to its time."""
    rows = list(zip(numbers.tolist(), window_keys(numbers).tolist(), times.tolist(), strict=True))
    return [
        pair_number(number, sum(theirs == key and at - reach <= other <= at for _, theirs, other in rows))
        for number, key, at in rows
    ]


class FrameNumbers(Operator):
    """Each record and the size of its frame as one number. Records are in the order of time, before the watermark."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.reached: int | None = None

    def process(self, batch: pa.RecordBatch, source: int, emit: Emit) -> None:
        times = batch.column("t").to_numpy()
        if (np.diff(times) < 0).any() or (self.reached is not None and times.min() < self.reached):
            self.world.violation(f"frames of the times {times.tolist()} come behind the watermark {self.reached}")
        emit(batch_of(pair_number(numbers_of(batch.select(["v"])), batch.column("n").to_numpy())))

    def on_watermark(self, watermark: int, emit: Emit) -> bool | None:
        self.reached = watermark
        return None
