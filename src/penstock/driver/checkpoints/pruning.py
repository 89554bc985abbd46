"""Deleting what no retained checkpoint can reach: reads the facts, asks `protocol.retention`, deletes in its order.

One call to the store for each kind of file: it is durable when it returns, so that no file of the next kind goes
before every file of this one is gone for good (I3, I6).
"""

from __future__ import annotations

import logging
import threading

from penstock.ids import CheckpointId
from penstock.mailbox.ports import Background
from penstock.mailbox.timers import Timers
from penstock.protocol.retention import RetentionBound, decide_retention
from penstock.storage import paths
from penstock.storage.directory import Directory
from penstock.storage.port import Store


def prune(store: Store, directory: Directory, bound: RetentionBound) -> int:
    """Delete what may go; returns how many files. Runs in the background; a crash in between does no harm."""
    decision = decide_retention(directory.contents(), bound)
    stages = (
        tuple(map(paths.manifest, decision.manifests)),
        tuple(map(paths.committed, decision.committed)),
        decision.blobs,
        tuple(map(paths.reserved, decision.reservations)),
        # A call for each: the order among them is an order on the disk (`ownership`).
        *((paths.reserved(licence),) for licence in decision.licences),
        tuple(map(paths.manifest, decision.tombstones)),
    )
    for doomed in filter(None, stages):
        store.delete(*doomed)
    return sum(map(len, stages))


def sweep(store: Store, first: CheckpointId) -> int:
    """Remove the temporary files of killed writers; returns how many. `first` is the first id of this generation.

    Blobs of lower ids are written by older generations alone, whose checkpoints are decided: their files go at once,
    also those of a writer that is still alive (I6). Everything else goes by age: the current generation writes there.
    """

    def is_over(path: str) -> bool:
        checkpoint = paths.checkpoint_of(path)
        return checkpoint is not None and checkpoint < first and path.startswith(paths.blob_prefix(checkpoint))

    return store.sweep_temporary(is_over=is_over)


_log = logging.getLogger("penstock")

_PAUSE_MS = 500
"""From the end of one pruning to the next: to read the directory once for many checkpoints is cheaper."""


_SAID_EVERY = 60
"""A failure that goes on is said again after this number of attempts."""


class Pruner:
    """Prunings one after the other, for one generation; lives in the mailbox.

    Checkpoints may complete faster than files can be deleted. What is asked for while a pruning is under way, or was
    until just now, waits, and only the newest bound is kept: what may go by an older one may go by it too.
    """

    def __init__(self, store: Store, directory: Directory, background: Background, timers: Timers) -> None:
        self._store = store
        self._directory = directory
        self._background = background
        self._timers = timers
        self._is_under_way = False
        self._is_pausing = False
        self._waiting: RetentionBound | None = None
        self._last: RetentionBound | None = None
        """The bound at the end of the pipeline, for the pruning that was under way then."""
        self._takes_last = False
        self._failures = 0
        """Prunings in a row that failed."""
        self._is_stopped = False
        self._lock = threading.Lock()
        """Guards these two: nobody reads the mailbox of a pipeline that has ended, so the thread itself goes on."""

    def sweep(self, first: CheckpointId) -> None:
        """Begin the generation whose first id is `first`: older ones may have been killed in the middle of a write."""
        store = self._store
        self._background.submit(lambda: sweep(store, first), self._on_swept)

    def _on_swept(self, outcome: int | Exception) -> None:
        if isinstance(outcome, Exception) and not self._is_stopped:
            text = (
                "temporary files of earlier runs could not be removed from %r; they use space till the next start: %s"
            )
            _log.warning(text, self._store, outcome)

    def ask(self, bound: RetentionBound) -> None:
        """Delete what may go by `bound`, now or after the pruning before it and a pause."""
        self._waiting = bound
        self._begin()

    def finish(self) -> None:
        """The pipeline has ended by itself: what waits is done without a pause, and without the mailbox."""
        self._is_pausing = False
        with self._lock:
            if self._takes_last:
                self._last, self._waiting = self._waiting, None
                return
        # The thread is through; at most its word is still on the way.
        self._is_under_way = False
        self._begin()

    def stop(self) -> None:
        """Begin no further one: the directory may belong to another generation by now."""
        self._waiting = None
        self._is_stopped = True

    def _begin(self) -> None:
        bound = self._waiting
        if bound is None or self._is_under_way or self._is_pausing:
            return
        self._waiting = None
        self._is_under_way = True
        self._takes_last = True
        self._background.submit(lambda: self._prune(bound), self._on_over)

    def _prune(self, bound: RetentionBound) -> int:
        """Runs in the background."""
        next_one: RetentionBound | None = bound
        count = 0
        try:
            while next_one is not None:
                count += prune(self._store, self._directory, next_one)
                next_one = self._take_last()
        finally:
            self._takes_last = False
        return count

    def _take_last(self) -> RetentionBound | None:
        with self._lock:
            last, self._last = self._last, None
            self._takes_last = last is not None
            return last

    def _on_over(self, outcome: int | Exception) -> None:
        """One that failed is made up for by the next; nothing depends on it but the space that is left."""
        if not isinstance(outcome, Exception):
            self._failures = 0
        elif not self._is_stopped:
            # The store refuses an attempt that is over; the next attempt prunes instead.
            if self._failures % _SAID_EVERY == 0:
                text = "old checkpoints could not be deleted from %r, and use space until that works (tried again): %s"
                _log.warning(text, self._store, outcome)
            self._failures += 1
        self._is_under_way = False
        self._is_pausing = True
        self._timers.after(_PAUSE_MS, self._on_paused)

    def _on_paused(self) -> None:
        self._is_pausing = False
        self._begin()
