"""The contract of keyed state: what a kind of state is, and what its container and its backend ask of it.

A kind of state is one class of states and one class of descriptors, in one file. `KeyedState.register` takes the
descriptor and gives the state back, with its own type; the container makes it part of every checkpoint. So a new kind
is added without an edit here, in the container, or in the worker.

Rescaling has no method of its own: a state cuts its rows into pieces between key groups, and `restore` keeps those of
the key groups that its subtask owns now (I9), whoever wrote them.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol, TypeVar, runtime_checkable

import pyarrow as pa

from penstock.state.pieces import KeyedPiece
from penstock.state.rows.cursor import KeyCursor


class StateSnapshot(Protocol):
    """One state at the moment of a snapshot: references only, until it is encoded in the background."""

    @property
    def version(self) -> int:
        """Grows with every change: equal versions of one state in one generation mean equal contents."""
        ...

    def encode(self, target_bytes: int) -> list[KeyedPiece]:
        """The rows with their key groups, in pieces of about this size. May run while the state changes on."""
        ...


class KeyedStateLike(Protocol):
    """One state of one subtask."""

    @property
    def name(self) -> str: ...

    @property
    def declared(self) -> str:
        """How it was asked for, as a checkpoint records it: a state that was asked for otherwise is another one."""
        ...

    @property
    def state_bytes(self) -> int:
        """About how much memory it holds. Asked every now and then: it may not look at every key."""
        ...

    def snapshot(self) -> StateSnapshot:
        """References to the contents of this moment. Its time does not depend on the number of keys."""
        ...

    def restore(self, batches: Iterable[pa.RecordBatch]) -> int:
        """Add the rows of a checkpoint that belong to this subtask (I9), and return how many that were.

        Raises `RestoreError` if they do not fit (I8).
        """
        ...


@runtime_checkable
class HeldByFunction(Protocol):
    """A state whose handle a user's function may hold after it has removed the state."""

    def disown(self) -> None:
        """The state was removed: a change to it would be lost, so every use of it is a `DataError` from now on."""
        ...


S = TypeVar("S", bound=KeyedStateLike)
S_co = TypeVar("S_co", bound=KeyedStateLike, covariant=True)


class StateDescriptor(Protocol[S_co]):
    """Which state is asked for: its kind is the class, its name and its types are the fields of a frozen dataclass.

    Equal descriptors mean the same state, so that it may be asked for twice.
    """

    @property
    def name(self) -> str:
        """The name in the manifest, unique within an operator."""
        ...

    def create(self, owner: StateOwner) -> S_co:
        """An empty state in the memory of the subtask. Parts with their own name are registered with the owner."""
        ...


class StateOwner(Protocol):
    """What a descriptor may ask of the container: the key groups of the subtask, and its current key."""

    @property
    def key_groups(self) -> range: ...

    @property
    def max_parallelism(self) -> int: ...

    @property
    def cursor(self) -> KeyCursor:
        """The key that all states by single keys are at."""
        ...

    def register(self, descriptor: StateDescriptor[S]) -> S:
        """The state of another descriptor: it comes before this one in a checkpoint."""
        ...
