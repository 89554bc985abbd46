"""Operators of the simulated pipelines. Each looks at every record it gets."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.columnar.hashing import key_groups
from penstock.operators.contract import Emit, Operator, OperatorContext
from penstock.state.aggregates.accumulators import Aggregate
from tests.simulation.records import Numbers, batch_of, numbers_of
from tests.simulation.world import World

SKIPPED = 7
"""The filter drops every number that is 3 modulo this."""
KEYS = 100


class Check(Operator):
    """Passes records on, after a look at each; `us` is how long it takes for one."""

    def __init__(self, world: World, us: int = 0, place: str | None = None) -> None:
        self.world = world
        self.us = us
        self.place = place

    def open(self, context: OperatorContext) -> None:
        if self.place:
            self.world.fail_here(f"{self.place}.open")

    def process(self, batch: pa.RecordBatch, source: int, emit: Emit) -> None:
        numbers_of(batch)
        if self.place:
            self.world.fail_here(self.place)
        self.world.spend(self.us * batch.num_rows)
        emit(batch)


class Keep(Operator):
    """Drops every seventh number."""

    def process(self, batch: pa.RecordBatch, source: int, emit: Emit) -> None:
        emit(batch_of(kept(numbers_of(batch))))


def kept(numbers: Numbers) -> Numbers:
    return numbers[numbers % SKIPPED != 3]


class KeyBy(Operator):
    """Adds the key column `k`."""

    def __init__(self, key: Callable[[Numbers], Numbers]) -> None:
        self.key = key

    def process(self, batch: pa.RecordBatch, source: int, emit: Emit) -> None:
        numbers = numbers_of(batch)
        emit(pa.RecordBatch.from_arrays([batch.column("v"), pa.array(self.key(numbers))], names=["v", "k"]))


def modulo(keys: int) -> Callable[[Numbers], Numbers]:
    return lambda numbers: numbers % keys


class KeyedOperator(Operator):
    """Base of the keyed ones: every record must belong to a key group of this subtask (I9)."""

    def __init__(self, world: World, us: int = 0) -> None:
        self.world = world
        self.us = us

    def open(self, context: OperatorContext) -> None:
        self.context = context

    def check_owned(self, batch: pa.RecordBatch) -> None:
        groups = key_groups(batch, ["k"], self.context.max_parallelism)
        own = self.context.key_groups
        if not ((groups >= own.start) & (groups < own.stop)).all():
            self.world.violation(f"{self.context.operator}[{self.context.subtask}] got records of other key groups")


class Count(KeyedOperator):
    """Counts the records of each key in columnar state, and passes them on."""

    def __init__(self, world: World, us: int = 0, state_version: int = 1) -> None:
        super().__init__(world, us)
        self.state_version = state_version
        """Another version asks for another state."""

    def open(self, context: OperatorContext) -> None:
        super().open(context)
        kept = Aggregate("count", None, "n") if self.state_version == 1 else Aggregate("sum", "v", "n")
        self.counts: Any = context.keyed.aggregate("counts", ["k"], [kept])

    def process(self, batch: pa.RecordBatch, source: int, emit: Emit) -> None:
        self.check_owned(batch)
        self.world.spend(self.us * batch.num_rows)
        self.counts.fold(batch)
        emit(batch.select(["v"]))


class Ordered(KeyedOperator):
    """Records of one key and one source split must come in rising order (I2); the last one is keyed state."""

    def __init__(self, world: World, splits: int, us: int = 0, state_version: int = 1) -> None:
        super().__init__(world, us)
        self.splits = splits
        self.state_version = state_version
        """Another version asks for another schema."""

    def open(self, context: OperatorContext) -> None:
        super().open(context)
        context.keyed.declare_key(pa.schema([("k", pa.int64())]))
        kind = pa.int64() if self.state_version == 1 else pa.string()
        self.newest: Any = context.keyed.value("newest", pa.schema([("v", kind)]))

    def process(self, batch: pa.RecordBatch, source: int, emit: Emit) -> None:
        self.check_owned(batch)
        self.world.spend(self.us * batch.num_rows)
        numbers = numbers_of(batch)
        groups = key_groups(batch, ["k"], self.context.max_parallelism)
        # The key of this operator is the split a number came from, so that order is a property of each key.
        for key in np.unique(numbers % self.splits):
            mine = numbers[numbers % self.splits == key]
            first = int(np.argmax(numbers % self.splits == key))
            self.context.keyed.set_key(int(groups[first]), (int(key),))
            before = self.newest.get()[0] if self.newest.exists() else -1
            steps = np.diff(np.concatenate([[before], mine]))
            if (steps <= 0).any():
                self.world.violation(f"{self.context.operator}: {mine[:5]} of split {key} after {before}: out of order")
            self.newest.update((int(mine[-1]),))
        emit(batch.select(["v"]))


class Meet(KeyedOperator):
    """Emits a number when it has come on all of `inputs` inputs; those that have not wait in the state."""

    def __init__(self, world: World, inputs: int, us: int = 0) -> None:
        super().__init__(world, us)
        self.inputs = inputs

    def open(self, context: OperatorContext) -> None:
        super().open(context)
        self.waiting = [Rows(context, f"input{number}") for number in range(self.inputs)]

    def process(self, batch: pa.RecordBatch, source: int, emit: Emit) -> None:
        self.check_owned(batch)
        self.world.spend(self.us * batch.num_rows)
        self.waiting[source].append(batch.select(["v", "k"]))
        held = [state.numbers() for state in self.waiting]
        met = held[0]
        for numbers in held[1:]:
            met = np.intersect1d(met, numbers)
        if len(met):
            for state, numbers in zip(self.waiting, held, strict=True):
                state.keep(~np.isin(numbers, met))
            emit(batch_of(met))


class Broadcasting(Operator):
    """Input 0 passes through; input 1 comes to every subtask, whole, and is counted in broadcast state."""

    def __init__(self, world: World, us: int = 0) -> None:
        self.world = world
        self.us = us

    def open(self, context: OperatorContext) -> None:
        self.context = context
        self.seen = context.broadcast_state("seen")

    def process(self, batch: pa.RecordBatch, source: int, emit: Emit) -> None:
        self.world.spend(self.us * batch.num_rows)
        if source == 0:
            emit(batch.select(["v"]))
            return
        numbers = numbers_of(batch)
        before = self.seen.get()
        total = int(before[0].column("count")[0].as_py()) if before else 0
        self.seen.put([pa.record_batch({"count": [total + len(numbers)], "sum": [0]})])


class Rows:
    """Numbers that wait in keyed state."""

    def __init__(self, context: OperatorContext, name: str) -> None:
        self.state = context.keyed.rows(name, ["k"])

    def append(self, batch: pa.RecordBatch) -> None:
        self.state.append(batch)

    def numbers(self) -> Numbers:
        return np.concatenate([np.empty(0, np.int64), *map(numbers_of, self.state.get())])

    def keep(self, wanted: npt.NDArray[np.bool_]) -> None:
        rows = pa.Table.from_batches(self.state.get()).filter(pa.array(wanted))
        self.state.put(rows.to_batches())
