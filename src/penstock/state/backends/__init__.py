"""State backends: where keyed state lives between two checkpoints.

A backend is chosen by name, with the setting `state_backend`. `port` is the interface; there is a file for each
backend. What a checkpoint holds does not depend on the backend, so a pipeline may change it at a restart.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from penstock.errors import OptionError
from penstock.state.backends.memory import MemoryBackend
from penstock.state.backends.port import StateBackend

BACKENDS: Mapping[str, Callable[[], StateBackend]] = {"memory": MemoryBackend}
"""The known backends. An instance is made for each worker."""

DEFAULT_BACKEND = "memory"


def backend_of(name: str) -> StateBackend:
    """The backend of this name. Raises `OptionError` with the known ones."""
    check_backend(name)
    return BACKENDS[name]()


def check_backend(name: object) -> None:
    """Raise `OptionError` unless there is a backend of this name."""
    if not isinstance(name, str) or name not in BACKENDS:
        known = ", ".join(repr(each) for each in BACKENDS)
        raise OptionError(f"state_backend is {name!r}: unknown backend; the backends are: {known}")


__all__ = ["BACKENDS", "DEFAULT_BACKEND", "StateBackend", "backend_of", "check_backend"]
