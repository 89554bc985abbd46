"""The owner's note in a checkpoint directory: a live driver tells others to stay away.

Safety does not rest on it (see `protocol.ownership`): a second driver would fence the first. The note is there so that
starting a pipeline twice by mistake is an error for the second, instead of the end of the first.
"""

from __future__ import annotations

import json
import os
import socket
import threading
import time
from dataclasses import dataclass

from penstock.errors import OptionError, StorageError
from penstock.storage import paths
from penstock.storage.port import Store

BEAT_MS = 2_000
_STALE_MS = 10_000


@dataclass(frozen=True, slots=True)
class Owner:
    """What the note says of its driver, and whether that lives, as far as can be known from here."""

    pipeline: str
    host: str
    process: int
    beat_ms: int
    """Of the driver's wall clock."""
    is_alive: bool
    page: str | None = None
    """Address of its page, as the driver's own host sees it; None if it has none."""


def owner_of(store: Store) -> Owner | None:
    """The driver whose note is in the directory. A driver that comes to its end takes its note back."""
    note = _read(store)
    if note is None:
        return None
    process, beat_ms = note.get("pid"), note.get("beat_ms")
    return Owner(
        str(note.get("pipeline")),
        str(note.get("host")),
        process if isinstance(process, int) else 0,
        beat_ms if isinstance(beat_ms, int) else 0,
        _is_alive(note),
        page if isinstance(page := note.get("page"), str) else None,
    )


class Lease:
    """One driver's note."""

    def __init__(self, store: Store, pipeline: str) -> None:
        self._store = store
        self._note: dict[str, object] = {"pipeline": pipeline, "host": socket.gethostname(), "pid": os.getpid()}
        self._lock = threading.Lock()
        self._is_released = False

    def check(self) -> None:
        """Raise `OptionError` if another driver that lives owns the directory."""
        owner = owner_of(self._store)
        if owner is None or not owner.is_alive:
            return
        who = f"pipeline '{owner.pipeline}' in process {owner.process} on {owner.host}"
        raise OptionError(
            f"the checkpoint directory is in use by {who}: stop that one first, or give this pipeline its own "
            f"directory. (If that process is gone, wait {_STALE_MS // 1000} seconds.)"
        )

    def note_page(self, address: str) -> None:
        """The driver's page is at this address: the next beat says so."""
        self._note = {**self._note, "page": address}

    def beat(self) -> None:
        """Renew the note. Runs in the background."""
        content = json.dumps({**self._note, "beat_ms": time.time_ns() // 1_000_000}).encode()
        with self._lock:
            if not self._is_released:
                self._store.write(paths.OWNER, [content])

    def release(self) -> None:
        """Take the note back for good: a beat that is still under way must not bring it back."""
        # Before the lock: a beat that hangs holds it.
        self._is_released = True
        with self._lock:
            self._store.delete(paths.OWNER)


def _read(store: Store) -> dict[str, object] | None:
    if paths.OWNER not in store.list(paths.OWNER):
        return None
    try:
        note = json.loads(store.read(paths.OWNER))
    except (StorageError, ValueError):
        return None
    return note if isinstance(note, dict) else None


def _is_alive(note: dict[str, object]) -> bool:
    beat_ms, pid = note.get("beat_ms"), note.get("pid")
    if not isinstance(beat_ms, int) or time.time_ns() // 1_000_000 - beat_ms > _STALE_MS:
        return False
    if note.get("host") != socket.gethostname() or not isinstance(pid, int):
        return True
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
