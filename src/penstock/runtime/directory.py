"""What lies in a checkpoint directory, as facts: for taking over, for retention, and for people who look at it.

Reservations and outcomes are created once and never replaced, so what was read of them once is remembered for as long
as they are there, which is looked up anew each time. Of a manifest only what retention must know is kept: the state
that travels in it may be large. What could not be read is read again: the fault may pass.
"""

from __future__ import annotations

from penstock.errors import CorruptBlob, PenstockError, StorageError
from penstock.ids import CheckpointId, Generation
from penstock.protocol.claims import Listing, Outcome, Reservation, Void, unreadable_reservation
from penstock.protocol.manifest import Manifest, blobs_of
from penstock.protocol.manifest_codec import decode_manifest_or_void, decode_reservation
from penstock.protocol.retention import Blob, CompletedCheckpoint, Contents
from penstock.storage import paths
from penstock.storage.port import Store


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

    def manifest_or_void(self, checkpoint: CheckpointId) -> Manifest | Void | None:
        """The outcome itself; None if it is gone. Raises `CorruptBlob`, `RestoreError` or `StorageError`."""
        data = self._read(paths.manifest(checkpoint))
        return None if data is None else decode_manifest_or_void(data)

    def _files(self) -> list[tuple[CheckpointId, paths.PathKind, str]]:
        found = []
        for path in self._store.list(paths.CHECKPOINTS):
            checkpoint, kind = paths.checkpoint_of(path), paths.kind_of(path)
            if checkpoint is not None and kind is not None:
                found.append((checkpoint, kind, path))
        self._forget_all_but(found)
        return found

    def _forget_all_but(self, found: list[tuple[CheckpointId, paths.PathKind, str]]) -> None:
        # Not only to save memory: a driver that was asleep may create a reservation anew that was deleted (`claims`).
        reserved = {checkpoint for checkpoint, kind, _ in found if kind is paths.PathKind.RESERVED}
        settled = {checkpoint for checkpoint, kind, _ in found if kind is paths.PathKind.MANIFEST}
        self._reservations = {each: known for each, known in self._reservations.items() if each in reserved}
        self._outcomes = {each: known for each, known in self._outcomes.items() if each in settled}

    def _read(self, path: str) -> bytes | None:
        """The content, or None if the file was deleted since it was listed: retention of a former owner."""
        try:
            return self._store.read(path)
        except StorageError:
            if path in self._store.list(path):
                raise
            return None

    def _reservation(self, checkpoint: CheckpointId) -> Reservation | None:
        known = self._reservations.get(checkpoint)
        if known is not None:
            return known
        data = self._read(paths.reserved(checkpoint))
        if data is None:
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
            found = self.manifest_or_void(checkpoint)
        except PenstockError:
            return Outcome(checkpoint, Generation(0)), CompletedCheckpoint(checkpoint, None)
        if found is None:
            return None
        return self.remember(found)

    def remember(self, found: Manifest | Void) -> tuple[Outcome, CompletedCheckpoint | None]:
        """What counts of an outcome that was read, or was just written: then it need not be read."""
        checkpoint = found.checkpoint
        outcome = Outcome(checkpoint, found.generation, isinstance(found, Void))
        completed = None
        if isinstance(found, Manifest):
            completed = CompletedCheckpoint(checkpoint, blobs_of(found), found.is_savepoint)
        self._outcomes[checkpoint] = outcome, completed
        return outcome, completed
