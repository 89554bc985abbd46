"""The disk: a memory store that fails, loses power in the middle of things, and rots."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

from penstock.errors import StorageError
from penstock.storage import paths
from penstock.storage.memory import MemoryStore
from penstock.storage.port import TEMPORARY_AGE_S, Data, is_never_over


class Disk:
    """The shared, durable part. `history` notes every creation and deletion, for the checkers."""

    def __init__(self) -> None:
        self.store = MemoryStore()
        self.history: list[tuple[str, str]] = []
        self.on_created: Callable[[str, bytes], None] = lambda path, data: None

    def rot(self, rng: random.Random, path: str) -> None:
        """Flip one bit of a file."""
        data = bytearray(self.store.read(path))
        if data:
            data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
            self.store.write(path, [bytes(data)])


class DiskView:
    """The store port of one process. `fault` is asked before each operation and may raise."""

    def __init__(self, disk: Disk, fault: Callable[[str, str], None], killed_after: Callable[[str, str], None]) -> None:
        self._disk = disk
        self._fault = fault
        self._killed_after = killed_after

    def create(self, path: str, data: Data) -> bool:
        self._fault("create", path)
        created = self._disk.store.create(path, data)
        if created:
            self._disk.history.append(("create", path))
            self._disk.on_created(path, bytes(data))
        self._killed_after("create", path)
        return created

    def write(self, path: str, parts: Sequence[Data]) -> None:
        self._fault("write", path)
        self._disk.store.write(path, parts)
        self._disk.history.append(("write", path))
        self._killed_after("write", path)

    def read(self, path: str, offset: int = 0, length: int | None = None) -> bytes:
        self._fault("read", path)
        return self._disk.store.read(path, offset, length)

    def list(self, prefix: str) -> list[str]:
        return self._disk.store.list(prefix)

    def delete(self, *doomed: str) -> None:
        # A process may die, or the disk fail, between any two of them.
        for path in doomed:
            self._fault("delete", path)
            self._disk.store.delete(path)
            self._disk.history.append(("delete", path))
            self._killed_after("delete", path)

    def sweep_temporary(self, age_s: float = TEMPORARY_AGE_S, is_over: Callable[[str], bool] = is_never_over) -> int:
        return self._disk.store.sweep_temporary(age_s, is_over)


def write_error(path: str) -> StorageError:
    return StorageError(f"{path}: no space left on the simulated disk")


def blobs(disk: Disk) -> list[str]:
    return [path for path in disk.store.list(paths.CHECKPOINTS) if paths.kind_of(path) is paths.PathKind.BLOB]
