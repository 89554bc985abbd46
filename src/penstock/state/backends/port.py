"""The interface of a state backend."""

from __future__ import annotations

from typing import Protocol

from penstock.state.contract import KeyedStateLike, S, StateDescriptor, StateOwner


class StateBackend(Protocol):
    """Makes the states of the operators of one worker, on its mailbox thread.

    The trap: a state that a backend makes must give the same pieces as that of any other backend, because the next
    start may read them with another one.
    """

    @property
    def name(self) -> str: ...

    def create(self, descriptor: StateDescriptor[S], owner: StateOwner) -> S:
        """An empty state. A backend that does not know the kind of the descriptor lets it make its own."""
        ...

    def state_bytes(self, state: KeyedStateLike) -> int:
        """About how many bytes a state that this backend has made takes, wherever it lives."""
        ...
