"""All keyed state of one operator in one subtask.

The container makes a snapshot complete by construction: whatever is registered is in it. A snapshot holds only
references and costs the same at a thousand keys and at a million (in the number of keys; the row states cost a
reference per key group); what takes time is `encode`, which runs in the background while the state changes on.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any, cast

import pyarrow as pa

from penstock.columnar.hashing import key_groups
from penstock.errors import IncompatibleCheckpoint, PipelineError
from penstock.model.aggregates import Aggregate
from penstock.model.windows import ON_CLOSE, Emission, SessionWindows, WindowKind
from penstock.state.aggregates.state import AggregateDescriptor, AggregateState
from penstock.state.backends.memory import MemoryBackend
from penstock.state.backends.port import StateBackend
from penstock.state.contract import HeldByFunction, KeyedStateLike, S, StateDescriptor, StateSnapshot
from penstock.state.pieces import KeyedPiece
from penstock.state.rows.base import RowState
from penstock.state.rows.cursor import KeyCursor
from penstock.state.rows.descriptors import ListDescriptor, MapDescriptor, RowsDescriptor, ValueDescriptor
from penstock.state.rows.rows import RowsState
from penstock.state.rows.states import ListState, MapState, ValueState
from penstock.state.windows.sessions import SessionDescriptor, SessionState
from penstock.state.windows.state import WindowDescriptor, WindowState


class KeyedState:
    """The states of one subtask, which owns the range `key_groups`.

    `key_schema` or `declare_key` says what the key's columns are, before the first `set_key`. `register` adds a state
    of any kind; `backend` makes it.
    """

    def __init__(
        self,
        key_groups: range,
        max_parallelism: int,
        key_schema: pa.Schema | None = None,
        backend: StateBackend | None = None,
    ) -> None:
        self.key_groups = key_groups
        self.max_parallelism = max_parallelism
        self.cursor = KeyCursor(key_groups, max_parallelism)
        self._backend = MemoryBackend() if backend is None else backend
        self._descriptors: dict[str, StateDescriptor[KeyedStateLike]] = {}
        self._states: dict[str, KeyedStateLike] = {}
        self._removed: set[str] = set()
        self.set_key: Callable[[int, tuple[Any, ...]], None] = self.cursor.move
        """Move all row states to `key`, a tuple of the key's columns, in a key group."""
        if key_schema is not None:
            self.cursor.declare(key_schema)

    def declare_key(self, schema: pa.Schema) -> None:
        """Settle the columns of the key for the row states. Raises `PipelineError` if they are others already."""
        self.cursor.declare(schema)

    def leave_key(self) -> None:
        """Move all row states to no key."""
        self.cursor.leave()

    def hold(self) -> Callable[[], None]:
        """A function that undoes all changes of row states from now on, as long as they stay at the current key.

        The trap: to keep a map as it is, the first change after this copies it.
        """
        held = [(state, state.hold()) for state in self._states.values() if isinstance(state, RowState)]

        def undo() -> None:
            for state, entry in held:
                state.put_back(entry)

        return undo

    def groups_of(self, keys: pa.RecordBatch) -> list[int]:
        """The key group of each row of `keys`, which has the key's columns in their order and no others."""
        groups: list[int] = key_groups(keys, keys.schema.names, self.max_parallelism).tolist()
        return groups

    def register(self, descriptor: StateDescriptor[S]) -> S:
        """The state that a descriptor describes: a new one, or that of an equal descriptor.

        Raises `PipelineError` if its name belongs to a state of another kind or of other types.
        """
        known = self._descriptors.get(descriptor.name)
        if known is None:
            state = self._backend.create(descriptor, self)
            self._descriptors[descriptor.name] = descriptor
            self._states[descriptor.name] = state
            return state
        if known != descriptor:
            raise PipelineError(f"state '{descriptor.name}' is used twice, and not in the same way")
        # Equal descriptors are of one class, and make states of one class.
        return cast(S, self._states[descriptor.name])

    # --- the kinds that operators ask for most ---

    def value(self, name: str, schema: pa.Schema) -> ValueState:
        return self.register(ValueDescriptor(name, schema))

    def list(self, name: str, schema: pa.Schema) -> ListState:
        return self.register(ListDescriptor(name, schema))

    def map(self, name: str, user_key_schema: pa.Schema, value_schema: pa.Schema) -> MapState:
        return self.register(MapDescriptor(name, user_key_schema, value_schema))

    def aggregate(
        self,
        name: str,
        key: Sequence[str],
        aggregates: Sequence[Aggregate],
        partitioned_by: Sequence[str] | None = None,
    ) -> AggregateState:
        """Columnar aggregates by the columns `key`.

        `partitioned_by` are the first of them, if the input is partitioned by fewer columns than the key has.
        """
        by = tuple(key if partitioned_by is None else partitioned_by)
        return self.register(AggregateDescriptor(name, tuple(key), tuple(aggregates), by))

    def windows(
        self,
        name: str,
        key: Sequence[str],
        aggregates: Sequence[Aggregate],
        kind: WindowKind,
        on: str,
        emission: Emission = ON_CLOSE,
    ) -> WindowState:
        """Columnar aggregates by key and window, and their clock. The input is partitioned by `key`."""
        return self.register(WindowDescriptor(name, tuple(key), tuple(aggregates), kind, on, emission))

    def sessions(
        self, name: str, key: Sequence[str], aggregates: Sequence[Aggregate], kind: SessionWindows, on: str
    ) -> SessionState:
        """Columnar aggregates by key and session, and their clock. The input is partitioned by `key`."""
        return self.register(SessionDescriptor(name, tuple(key), tuple(aggregates), kind, on))

    def rows(self, name: str, key: Sequence[str]) -> RowsState:
        """Whole rows, as batches, by the columns `key` that the input is partitioned by."""
        return self.register(RowsDescriptor(name, tuple(key)))

    @property
    def key_schema(self) -> pa.Schema:
        """The columns of the key."""
        assert self.cursor.key_type is not None
        return self.cursor.key_type.schema

    def remove(self, name: str) -> None:
        """Forget a state and all that it holds, here and in the checkpoint, if there is one of this name.

        Whoever holds the state gets an error from it: nothing that is written to it would be kept.
        """
        self._descriptors.pop(name, None)
        state: object = self._states.pop(name, None)
        if isinstance(state, HeldByFunction):
            state.disown()
        self._removed.add(name)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self._states)

    @property
    def declared(self) -> dict[str, str]:
        """How each state was asked for, by name."""
        return {name: state.declared for name, state in self._states.items()}

    @property
    def state_bytes(self) -> int:
        """About how many bytes all states take, as their backend counts them."""
        return sum(self._backend.state_bytes(state) for state in self._states.values())

    @property
    def removed(self) -> frozenset[str]:
        """The states that are to be forgotten, here and in the checkpoint."""
        return frozenset(self._removed - set(self._states))

    def snapshot(self) -> KeyedSnapshot:
        """All states as they are now. Takes references; see `KeyedSnapshot.encode`."""
        return KeyedSnapshot({name: state.snapshot() for name, state in self._states.items()})

    def restore(self, name: str, batches: Iterable[pa.RecordBatch]) -> int:
        """Add rows of a checkpoint to a registered state, and return how many were added.

        Of the rows only those of our own key groups are kept (I9). May be called for several pieces, each once.
        Raises `RestoreError` if there is no such state or the rows do not fit it (I8).
        """
        state = self._states.get(name)
        if state is None and name in self._removed:
            return 0
        if state is None:
            raise IncompatibleCheckpoint(
                f"the checkpoint has keyed state '{name}', which the operator does not have any more: "
                "give it one of that name, or rename the operator to start without its state"
            )
        return state.restore(batches)


class KeyedSnapshot:
    """All keyed states of one moment."""

    def __init__(self, states: dict[str, StateSnapshot]) -> None:
        self._states = states

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self._states)

    def version(self, name: str) -> int:
        """Grows with every change: equal versions of one state in one generation mean equal contents."""
        return self._states[name].version

    def encode(self, target_segment_bytes: int, only: Collection[str] | None = None) -> list[KeyedPiece]:
        """The contents, in pieces of about that size: of all states, or of those in `only`.

        May run in a background thread while the states change, and more than once. A state without rows has none.
        """
        chosen = [state for name, state in self._states.items() if only is None or name in only]
        return [piece for state in chosen for piece in state.encode(target_segment_bytes)]
