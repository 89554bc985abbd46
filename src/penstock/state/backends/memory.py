"""The backend `memory`: each state lies in the memory of its worker, in the form that its kind has chosen."""

from __future__ import annotations

from penstock.state.contract import KeyedStateLike, S, StateDescriptor, StateOwner


class MemoryBackend:
    """Bounded by the memory of the worker: a checkpoint holds a copy, and a failed worker loses nothing else."""

    name = "memory"

    def create(self, descriptor: StateDescriptor[S], owner: StateOwner) -> S:
        return descriptor.create(owner)

    def state_bytes(self, state: KeyedStateLike) -> int:
        return state.state_bytes
