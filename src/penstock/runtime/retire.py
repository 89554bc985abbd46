"""Deleting what no retained checkpoint can reach: reads the facts, asks `protocol.retention`, deletes in its order."""

from __future__ import annotations

from penstock.errors import PenstockError
from penstock.ids import CheckpointId
from penstock.protocol.claims import Void
from penstock.protocol.manifest import blobs_of
from penstock.protocol.manifest_codec import decode_manifest_or_void
from penstock.protocol.retention import Blob, CompletedCheckpoint, Contents, Horizon, decide_retention
from penstock.runtime.takeover import read_listing
from penstock.storage import paths
from penstock.storage.port import Store


def retire(store: Store, horizon: Horizon) -> int:
    """Delete what may go; returns how many files. Runs in the background; a crash in between does no harm."""
    decision = decide_retention(read_contents(store), horizon)
    doomed = [
        *map(paths.manifest, decision.manifests),
        *map(paths.committed, decision.committed),
        *decision.blobs,
        *map(paths.reserved, decision.reservations),
    ]
    for path in doomed:
        store.delete(path)
    return len(doomed)


def read_contents(store: Store) -> Contents:
    """All that lies in the directory; who owns it is read last."""
    completed: list[CompletedCheckpoint] = []
    blobs: list[Blob] = []
    committed: set[CheckpointId] = set()
    for path in store.list(paths.CHECKPOINTS):
        checkpoint, kind = paths.checkpoint_of(path), paths.kind_of(path)
        if checkpoint is None:
            continue
        if kind is paths.PathKind.MANIFEST:
            found = _completed(store, checkpoint)
            if found is not None:
                completed.append(found)
        elif kind is paths.PathKind.COMMITTED:
            committed.add(checkpoint)
        elif kind is paths.PathKind.BLOB and (name := paths.parse_blob(path)) is not None:
            blobs.append(Blob(path, checkpoint, name.generation))
    return Contents(tuple(completed), tuple(blobs), read_listing(store), frozenset(committed))


def _completed(store: Store, checkpoint: CheckpointId) -> CompletedCheckpoint | None:
    try:
        outcome = decode_manifest_or_void(store.read(paths.manifest(checkpoint)))
    except PenstockError:
        return CompletedCheckpoint(checkpoint, None)
    if isinstance(outcome, Void):
        return None
    return CompletedCheckpoint(checkpoint, blobs_of(outcome), outcome.is_savepoint)
