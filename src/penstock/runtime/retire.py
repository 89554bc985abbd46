"""Deleting what no retained checkpoint can reach: reads the facts, asks `protocol.retention`, deletes in its order."""

from __future__ import annotations

from penstock.protocol.retention import Horizon, decide_retention
from penstock.runtime.directory import Directory
from penstock.storage import paths
from penstock.storage.port import Store


def retire(store: Store, directory: Directory, horizon: Horizon) -> int:
    """Delete what may go; returns how many files. Runs in the background; a crash in between does no harm."""
    decision = decide_retention(directory.contents(), horizon)
    doomed = [
        *map(paths.manifest, decision.manifests),
        *map(paths.committed, decision.committed),
        *decision.blobs,
        *map(paths.reserved, decision.reservations),
    ]
    for path in doomed:
        store.delete(path)
    return len(doomed)
