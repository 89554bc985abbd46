"""The disk: a memory store that fails, answers too late or not at all, and rots."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

from penstock.errors import StorageError
from penstock.storage import paths
from penstock.storage.memory import MemoryStore
from penstock.storage.port import TEMPORARY_AGE_S, Data, is_never_over
from tests.simulation.scheduler import Scheduler

_SOMETIMES = 0.3
"""How often an operation fails, or its reply is lost, while such faults last."""


class DiskFailure(StorageError):
    """A failure of the store that the seed has planned."""


class Disk:
    """The shared, durable part. `history` notes every creation and deletion, for the checkers."""

    def __init__(self, scheduler: Scheduler, rng: random.Random) -> None:
        self.scheduler = scheduler
        self.rng = rng
        self.store = MemoryStore()
        self.history: list[tuple[str, str]] = []
        self.on_created: Callable[[str, bytes], None] = lambda path, data: None
        self.writes_fail_until_us = 0
        self.reads_fail_until_us = 0
        self.replies_are_lost_until_us = 0

    def rot(self, rng: random.Random, path: str) -> None:
        """Flip one bit of a file."""
        data = bytearray(self.store.read(path))
        if data:
            data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
            self.store.write(path, [bytes(data)])

    def blobs(self) -> list[str]:
        return [path for path in self.store.list(paths.CHECKPOINTS) if paths.kind_of(path) is paths.PathKind.BLOB]

    def may_fail(self, what: str, path: str) -> None:
        """Raise before the operation has had any effect, if that is planned."""
        now_us = self.scheduler.now_us
        if what in ("create", "write", "delete") and now_us < self.writes_fail_until_us:
            raise DiskFailure(f"{path}: no space left on the simulated disk")
        if what in ("read", "list") and now_us < self.reads_fail_until_us and self.rng.random() < _SOMETIMES:
            raise DiskFailure(f"{path}: the simulated disk cannot be read right now")

    def loses_reply(self) -> bool:
        """Whether the answer to an operation that has taken effect does not arrive."""
        return self.scheduler.now_us < self.replies_are_lost_until_us and self.rng.random() < _SOMETIMES


class DiskView:
    """The store port of one process. `killed` is told of each operation, before and after it, and may raise."""

    def __init__(self, disk: Disk, killed: Callable[[str, str, bool], None] = lambda what, path, is_before: None):
        self._disk = disk
        self._killed = killed

    def create(self, path: str, data: Data) -> bool:
        self._before("create", path)
        created = self._disk.store.create(path, data)
        if created:
            self._disk.history.append(("create", path))
            self._disk.on_created(path, bytes(data))
        self._killed("create", path, False)
        if self._disk.loses_reply():
            if self._disk.rng.random() < 0.5:
                # The client has asked again by itself, and found the file that it had made.
                return False
            raise self._lost("create", path)
        return created

    def write(self, path: str, parts: Sequence[Data]) -> None:
        self._before("write", path)
        self._disk.store.write(path, parts)
        self._disk.history.append(("write", path))
        self._after("write", path)

    def read(self, path: str, offset: int = 0, length: int | None = None) -> bytes:
        self._disk.may_fail("read", path)
        return self._disk.store.read(path, offset, length)

    def list(self, prefix: str) -> list[str]:
        self._disk.may_fail("list", prefix)
        return self._disk.store.list(prefix)

    def delete(self, *doomed: str) -> None:
        # A process may die, or the disk fail, between any two of them.
        for path in doomed:
            self._before("delete", path)
            self._disk.store.delete(path)
            self._disk.history.append(("delete", path))
            self._after("delete", path)

    def sweep_temporary(self, age_s: float = TEMPORARY_AGE_S, is_over: Callable[[str], bool] = is_never_over) -> int:
        return self._disk.store.sweep_temporary(age_s, is_over)

    def _before(self, what: str, path: str) -> None:
        self._disk.may_fail(what, path)
        self._killed(what, path, True)
        self._disk.scheduler.hangs.here("store")

    def _after(self, what: str, path: str) -> None:
        self._killed(what, path, False)
        if self._disk.loses_reply():
            raise self._lost(what, path)

    def _lost(self, what: str, path: str) -> DiskFailure:
        return DiskFailure(f"{path}: the simulated disk did not answer to {what}")
