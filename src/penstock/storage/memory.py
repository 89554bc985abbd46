"""A store in memory, for tests and as the base of the simulator's disk."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

from penstock.errors import StorageError
from penstock.storage import paths
from penstock.storage.port import TEMPORARY_AGE_S, Data, is_never_over


class MemoryStore:
    """A dictionary behind a lock. Nothing outlives the process."""

    def __init__(self) -> None:
        self.blobs: dict[str, bytes] = {}
        """What is stored. Tests look at it, and damage it, at will."""
        self._lock = threading.Lock()

    def create(self, path: str, data: Data) -> bool:
        paths.require_valid(path)
        content = bytes(data)
        with self._lock:
            if path in self.blobs:
                return False
            self.blobs[path] = content
            return True

    def write(self, path: str, parts: Sequence[Data]) -> None:
        paths.require_valid(path)
        content = b"".join(parts)
        with self._lock:
            self.blobs[path] = content

    def read(self, path: str, offset: int = 0, length: int | None = None) -> bytes:
        paths.require_valid(path)
        paths.require_range(path, offset, length)
        with self._lock:
            content = self.blobs.get(path)
        if content is None:
            raise StorageError(f"there is no {path!r} in this store")
        end = len(content) if length is None else offset + length
        if max(offset, end) > len(content):
            raise paths.short_read(path, offset, length, len(content))
        return content[offset:end]

    def list(self, prefix: str) -> list[str]:
        paths.require_valid_prefix(prefix)
        with self._lock:
            return sorted(path for path in self.blobs if path.startswith(prefix))

    def delete(self, *doomed: str) -> None:
        for path in doomed:
            paths.require_valid(path)
        with self._lock:
            for path in doomed:
                self.blobs.pop(path, None)

    def sweep_temporary(self, age_s: float = TEMPORARY_AGE_S, is_over: Callable[[str], bool] = is_never_over) -> int:
        return 0
