"""How far event time has come for the windows of one operator, by key group.

It is separate state, because the clock of a subtask is not enough: after a rescale a subtask may have keys from one
that had emitted a window and from one that had not. Until its own clock has passed both, each key group goes by the
clock under which its windows were emitted, so that no window is emitted twice.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.columnar.fixed_width import fixed_width_values
from penstock.errors import RestoreError
from penstock.model.event_time import MIN_WATERMARK
from penstock.model.windows import WindowKind
from penstock.state.contract import StateOwner
from penstock.state.pieces import KEY, KEY_GROUP, VALUE, KeyedPiece, struct_of

_WATERMARK = "watermark_ms"

CLOCK_SUFFIX = ".clock"
"""End of the name of a clock's state, behind the name of the state of its windows."""


@dataclass(frozen=True, slots=True)
class ClockDescriptor:
    """The clock of the windows of one operator."""

    name: str
    kind: WindowKind

    def create(self, owner: StateOwner) -> WindowClock:
        return WindowClock(self.name, self.kind, owner.key_groups)


class WindowClock:
    """The watermark of each key group of a subtask, and the windows that were emitted by it."""

    def __init__(self, name: str, kind: WindowKind, owned: range) -> None:
        self.name = name
        self.kind = kind
        self.version = 0
        self._owned = owned
        self._by_group = np.full(len(owned), MIN_WATERMARK, dtype=np.int64)
        self._recompute()

    def of(self, groups: npt.NDArray[np.int32], function: Callable[[int], int]) -> npt.NDArray[np.int64]:
        """What `function` makes of the watermark of each of these key groups; called once for each watermark."""
        distinct, places = np.unique(self._by_group, return_inverse=True)
        made = np.array([function(watermark_ms) for watermark_ms in distinct.tolist()], dtype=np.int64)
        return made[places[groups - self._owned.start]]

    @property
    def declared(self) -> str:
        return str(self.kind)

    @property
    def state_bytes(self) -> int:
        return self._by_group.nbytes

    @property
    def is_even(self) -> bool:
        """Whether all key groups have come equally far."""
        return self.slowest_ms == self.fastest_ms

    def advance(self, watermark_ms: int) -> None:
        """No key group goes back."""
        if watermark_ms > self.slowest_ms:
            self._by_group = np.maximum(self._by_group, watermark_ms)
            self._recompute()

    def snapshot(self) -> ClockSnapshot:
        return ClockSnapshot(self, self.version, self._by_group)

    def restore(self, batches: Iterable[pa.RecordBatch]) -> int:
        """Take over the key groups of a checkpoint that are ours (I9)."""
        restored = 0
        for batch in batches:
            groups, clocks = self._checked(batch)
            rows = np.flatnonzero((groups >= self._owned.start) & (groups < self._owned.stop))
            # A copy, since a snapshot may have the other one.
            self._by_group = self._by_group.copy()
            self._by_group[groups[rows] - self._owned.start] = clocks[rows]
            restored += len(rows)
        self._recompute()
        return restored

    def encode(self, by_group: npt.NDArray[np.int64]) -> list[KeyedPiece]:
        groups = pa.array(np.arange(self._owned.start, self._owned.stop, dtype=np.int32))
        parameters = self.kind.parameters
        values = [pa.array(np.full(len(by_group), number, dtype=np.int64)) for number in parameters.values()]
        value = struct_of([pa.array(by_group), *values], [_WATERMARK, *parameters])
        arrays = [groups, struct_of([groups], [KEY_GROUP]), value]
        batch = pa.RecordBatch.from_arrays(arrays, names=[KEY_GROUP, KEY, VALUE])
        return [KeyedPiece(self.name, self._owned.start, self._owned.stop, batch, batch.num_rows)]

    def _checked(self, batch: pa.RecordBatch) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int64]]:
        value = batch.schema.types[-1]
        names = [field.name for field in value] if pa.types.is_struct(value) else []
        if batch.schema.names != [KEY_GROUP, KEY, VALUE] or names[:1] != [_WATERMARK]:
            raise RestoreError(f"state '{self.name}' is a clock, and the checkpoint has something else for it")
        clocks, *spans = batch.column(VALUE).flatten()
        rows = zip(*(span.to_pylist() for span in spans), strict=True) if spans else [()]
        for row in set(rows):
            stored = dict(zip(names[1:], row, strict=True))
            if stored != self.kind.parameters:
                raise RestoreError(
                    f"the checkpoint has windows with {_shown(stored)}, and the pipeline has {self.kind}, with "
                    f"{_shown(self.kind.parameters)}: the state of the former cannot be used for the latter; give the "
                    f"operator another name to start without it"
                )
        return fixed_width_values(batch.column(0), np.int32), fixed_width_values(clocks, np.int64)

    def _recompute(self) -> None:
        # A subtask may own no key group, if there are fewer of them than subtasks.
        self.slowest_ms = int(self._by_group.min()) if len(self._owned) else MIN_WATERMARK
        self.fastest_ms = int(self._by_group.max()) if len(self._owned) else MIN_WATERMARK
        self.version += 1


def _shown(parameters: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {number}" for name, number in parameters.items()) or "no parameters"


class ClockSnapshot:
    """The clocks of one moment. They are replaced and never changed."""

    def __init__(self, clock: WindowClock, version: int, by_group: npt.NDArray[np.int64]) -> None:
        self._clock = clock
        self.version = version
        self._by_group = by_group

    def encode(self, target_bytes: int) -> list[KeyedPiece]:
        return self._clock.encode(self._by_group) if len(self._by_group) else []
