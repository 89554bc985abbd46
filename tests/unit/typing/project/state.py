"""An operator with state, and parts of the user's own behind each seam: state, windows, backend."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import assert_type

import pyarrow as pa

from penstock.model.event_time import Ticks
from penstock.model.windows import FixedWindows, WindowGrid, WindowKind
from penstock.operators.contract import OperatorContext
from penstock.state import Aggregate, AggregateState, KeyedPiece, KeyedState, ListState, MapState, ValueState
from penstock.state.backends import StateBackend, backend_of
from penstock.state.contract import StateDescriptor, StateOwner, StateSnapshot
from penstock.state.rows.rows import RowsState
from penstock.state.windows.state import WindowState


def states(context: OperatorContext, schema: pa.Schema) -> int:
    keyed = context.keyed
    assert_type(keyed, KeyedState)
    assert_type(keyed.value("v", schema), ValueState)
    assert_type(keyed.list("l", schema), ListState)
    assert_type(keyed.map("m", schema, schema), MapState)
    assert_type(keyed.rows("r", ["k"]), RowsState)
    assert_type(keyed.aggregate("a", ["k"], [Aggregate("count", None, "n")]), AggregateState)
    assert_type(keyed.windows("w", ["k"], [], FixedWindows(1_000, 1_000), "at"), WindowState)
    assert_type(keyed.register(Counted("c")), Counts)
    assert_type(keyed.value("v", schema).exists(), bool)
    assert_type(keyed.state_bytes, int)
    return keyed.register(Counted("c")).total


class Counts:
    """A kind of state of a user: one number."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.declared = "counts"
        self.state_bytes = 8
        self.total = 0

    def snapshot(self) -> StateSnapshot:
        return Taken()

    def restore(self, batches: Iterable[pa.RecordBatch]) -> int:
        return 0


class Taken:
    version = 1

    def encode(self, target_bytes: int) -> list[KeyedPiece]:
        return []


@dataclass(frozen=True)
class Counted:
    name: str

    def create(self, owner: StateOwner) -> Counts:
        return Counts(f"{self.name} of {len(owner.key_groups)}")


@dataclass(frozen=True)
class Days:
    """A kind of windows of a user, on top of ours."""

    zone: str

    @property
    def parameters(self) -> Mapping[str, int]:
        return {"days": 1}

    def on(self, ticks: Ticks) -> WindowGrid | None:
        return FixedWindows(86_400_000, 86_400_000).on(ticks)


descriptor: StateDescriptor[Counts] = Counted("c")
kinds: list[WindowKind] = [Days("UTC"), FixedWindows(1_000, 1_000)]
backend: StateBackend = backend_of("memory")
