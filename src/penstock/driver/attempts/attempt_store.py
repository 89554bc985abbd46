"""The store of one attempt: nothing of an attempt that is over begins to change the directory (I6)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from penstock.errors import StorageError
from penstock.storage.port import TEMPORARY_AGE_S, Data, Store, is_never_over

T = TypeVar("T")


class AttemptStore:
    """A store that can be closed, and that counts the calls that have returned.

    Closing refuses every further call. The trap: a call that is under way may still take effect, at any time later.
    Safety does not rest on this (`protocol.ownership`): it keeps an old attempt from getting into the way of the next.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._is_closed = False
        self.returned = 0
        """Calls that have come back, whatever they brought: by this others see that the store answers."""

    def __repr__(self) -> str:
        return repr(self._store)

    def close(self) -> None:
        self._is_closed = True

    def create(self, path: str, data: Data) -> bool:
        return self._call(lambda: self._store.create(path, data))

    def write(self, path: str, parts: Sequence[Data]) -> None:
        self._call(lambda: self._store.write(path, parts))

    def read(self, path: str, offset: int = 0, length: int | None = None) -> bytes:
        return self._call(lambda: self._store.read(path, offset, length))

    def list(self, prefix: str) -> list[str]:
        return self._call(lambda: self._store.list(prefix))

    def delete(self, *doomed: str) -> None:
        self._call(lambda: self._store.delete(*doomed))

    def sweep_temporary(self, age_s: float = TEMPORARY_AGE_S, is_over: Callable[[str], bool] = is_never_over) -> int:
        return self._call(lambda: self._store.sweep_temporary(age_s, is_over))

    def _call(self, call: Callable[[], T]) -> T:
        if self._is_closed:
            raise StorageError("the attempt that asks this of the store is over")
        try:
            return call()
        finally:
            self.returned += 1
