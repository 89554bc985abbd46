"""What lies in a checkpoint directory, as facts: for taking over, for retention, and for people who look at it.

Reservations and outcomes are created once and never replaced, so what was read of them once is remembered for as long
as they are there, which is looked up anew each time. Of a manifest only what retention must know is kept: the state
that travels in it may be large. What was damaged is read again: the fault may pass.

Any operation of a store may fail, or succeed and not say so. Therefore:

- Damage is `CorruptBlob`, or a file that a listing shows to be gone. Any other `StorageError` says nothing about what
  lies there, and is raised: whoever asked tries again.
- Whether a file was created is told by its content (`create_or_read`), never by the reply alone.
"""

from __future__ import annotations

from penstock.errors import CorruptBlob, RestoreError, StorageError
from penstock.ids import CheckpointId, Generation
from penstock.protocol.manifest import Manifest, blobs_of
from penstock.protocol.manifest.codec import decode_manifest_or_tombstone, decode_reservation
from penstock.protocol.ownership import Listing, Outcome, Reservation, Tombstone, unreadable_reservation
from penstock.protocol.retention import Blob, CompletedCheckpoint, Contents
from penstock.storage import paths
from penstock.storage.port import Store


def is_gone(store: Store, path: str) -> bool:
    """Whether there certainly is no such file. Raises `StorageError` if that cannot be known."""
    return path not in store.list(path)


def read_if_there(store: Store, path: str) -> bytes | None:
    """The content; None if there certainly is no such file."""
    try:
        return store.read(path)
    except StorageError:
        if is_gone(store, path):
            return None
        raise


def create_or_read(store: Store, path: str, data: bytes) -> bytes | None:
    """Create `path` unless it is there; returns what it holds then, or None if somebody has deleted it since.

    Equal to `data`: it is ours, whatever the store replied. Raises `StorageError` if that is not known; the trap: the
    file may still appear later, so that whoever tries again must do it with the same bytes.
    """
    try:
        if store.create(path, data):
            return data
    except StorageError:
        found = read_if_there(store, path)
        if found is None:
            raise
        return found
    return read_if_there(store, path)


class Directory:
    """Reads one checkpoint directory. Runs in the background."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._reservations: dict[CheckpointId, Reservation] = {}
        self._outcomes: dict[CheckpointId, tuple[Outcome, CompletedCheckpoint | None]] = {}

    def ids(self, kind: paths.PathKind) -> list[CheckpointId]:
        """The checkpoints that have a file of this kind, in rising order."""
        return [checkpoint for checkpoint, found, _ in self._files() if found is kind]

    def listing(self) -> Listing:
        """Who has reserved which ids, and which have an outcome. A damaged outcome is one too: the id is spent."""
        reservations, outcomes = [], []
        for checkpoint, kind, _ in self._files():
            if kind is paths.PathKind.RESERVED and (reservation := self._reservation(checkpoint)) is not None:
                reservations.append(reservation)
            elif kind is paths.PathKind.MANIFEST and (outcome := self._outcome(checkpoint)) is not None:
                outcomes.append(outcome[0])
        return Listing(tuple(reservations), tuple(outcomes))

    def contents(self) -> Contents:
        """All that retention must know; who owns the directory is read last."""
        completed: list[CompletedCheckpoint] = []
        blobs: list[Blob] = []
        committed: set[CheckpointId] = set()
        for checkpoint, kind, path in self._files():
            if kind is paths.PathKind.COMMITTED:
                committed.add(checkpoint)
            elif kind is paths.PathKind.BLOB and (name := paths.parse_blob(path)) is not None:
                blobs.append(Blob(path, checkpoint, name.generation))
            elif kind is paths.PathKind.MANIFEST:
                outcome = self._outcome(checkpoint)
                if outcome is not None and outcome[1] is not None:
                    completed.append(outcome[1])
        return Contents(tuple(completed), tuple(blobs), self.listing(), frozenset(committed))

    def manifest_or_tombstone(self, checkpoint: CheckpointId) -> Manifest | Tombstone | None:
        """The outcome itself; None if it is gone. Raises `CorruptBlob`, `RestoreError` or `StorageError`."""
        data = read_if_there(self._store, paths.manifest(checkpoint))
        return None if data is None else decode_manifest_or_tombstone(data)

    def newest_with_lineage(self) -> Manifest | None:
        """The newest manifest that can tell which others are strays, by `protocol.strays`. Raises `StorageError`."""
        for checkpoint in reversed(self.ids(paths.PathKind.MANIFEST)):
            try:
                found = self.manifest_or_tombstone(checkpoint)
            except (CorruptBlob, RestoreError):
                continue
            if isinstance(found, Manifest) and found.first:
                return found
        return None

    def _files(self) -> list[tuple[CheckpointId, paths.PathKind, str]]:
        found = []
        for path in self._store.list(paths.CHECKPOINTS):
            checkpoint, kind = paths.checkpoint_of(path), paths.kind_of(path)
            if checkpoint is not None and kind is not None:
                found.append((checkpoint, kind, path))
        self._forget_all_but(found)
        return found

    def _forget_all_but(self, found: list[tuple[CheckpointId, paths.PathKind, str]]) -> None:
        # Not only to save memory: a driver that was asleep may create a deleted reservation anew (`ownership`).
        reserved = {checkpoint for checkpoint, kind, _ in found if kind is paths.PathKind.RESERVED}
        settled = {checkpoint for checkpoint, kind, _ in found if kind is paths.PathKind.MANIFEST}
        self._reservations = {each: known for each, known in self._reservations.items() if each in reserved}
        self._outcomes = {each: known for each, known in self._outcomes.items() if each in settled}

    def _reservation(self, checkpoint: CheckpointId) -> Reservation | None:
        known = self._reservations.get(checkpoint)
        if known is not None:
            return known
        data = read_if_there(self._store, paths.reserved(checkpoint))
        if data is None:
            # Deleted since it was listed: retention of a former owner.
            return None
        try:
            reservation = decode_reservation(data)
        except CorruptBlob:
            reservation = unreadable_reservation(checkpoint)
        self._reservations[checkpoint] = reservation
        return reservation

    def _outcome(self, checkpoint: CheckpointId) -> tuple[Outcome, CompletedCheckpoint | None] | None:
        known = self._outcomes.get(checkpoint)
        if known is not None:
            return known
        try:
            found = self.manifest_or_tombstone(checkpoint)
        except (CorruptBlob, RestoreError):
            # Not every `StorageError`: for a manifest that could not be read, retention would delete blobs that
            # belong to earlier checkpoints and that only this one still refers to.
            return Outcome(checkpoint, Generation(0)), CompletedCheckpoint(checkpoint, None)
        if found is None:
            return None
        return self.remember(found)

    def remember(self, found: Manifest | Tombstone) -> tuple[Outcome, CompletedCheckpoint | None]:
        """What counts of an outcome that was read, or was just written: then it need not be read."""
        checkpoint = found.checkpoint
        outcome = Outcome(checkpoint, found.generation, isinstance(found, Tombstone))
        completed = None
        if isinstance(found, Manifest):
            completed = CompletedCheckpoint(
                checkpoint, blobs_of(found), found.is_savepoint, found.is_stop, found.first, found.older
            )
        self._outcomes[checkpoint] = outcome, completed
        return outcome, completed
