"""The store port: the six things that checkpoints ask of a directory or bucket.

Every call blocks until its effect is durable, so the mailbox never calls it: the runtime does, on its
background port. Paths are relative to the root of the store and come from `storage.paths` alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol, TypeAlias

Data: TypeAlias = bytes | memoryview
"""Anything contiguous that can be written as it is."""

TEMPORARY_AGE_S = 3600.0
"""A temporary file that was not written to for this long was left by a crash."""


def is_never_over(path: str) -> bool:
    """For a sweep that goes by age alone."""
    return False


class Store(Protocol):
    """A flat space of named blobs. Raises `StorageError` with the path and the cause."""

    def create(self, path: str, data: Data) -> bool:
        """Write `path` if nothing is there: True, or False and nothing changed. All of it or nothing.

        The one primitive on which ownership rests (I3, I6): of two callers exactly one gets True.
        """
        ...

    def write(self, path: str, parts: Sequence[Data]) -> None:
        """Write the concatenation of `parts` to `path`, durably and all or nothing; replaces what was there."""
        ...

    def read(self, path: str, offset: int = 0, length: int | None = None) -> bytes:
        """Bytes of `path`; fewer than asked for, or no such path, is a `StorageError`."""
        ...

    def list(self, prefix: str) -> list[str]:
        """Every path that starts with `prefix`, sorted. Never the remains of a write that failed."""
        ...

    def delete(self, *doomed: str) -> None:
        """Remove all of these paths, durably; no error for one that is gone already.

        One call for many costs far less than many calls. In which order they go is not promised, and a crash or an
        error leaves some of them: what must be gone before something else goes has its own call.
        """
        ...

    def sweep_temporary(self, age_s: float = TEMPORARY_AGE_S, is_over: Callable[[str], bool] = is_never_over) -> int:
        """Remove what killed writers have left, and the directories that are empty then; returns the number of files.

        A temporary file goes if it is older than `age_s`, or at once if `is_over` says of its path that no writer there
        can still complete. The trap: with too small an age it takes the file of a write that is under way, which then
        fails.
        """
        ...
