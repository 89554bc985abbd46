"""Deleting what no retained checkpoint can reach: reads the facts, asks `protocol.retention`, deletes in its order.

One call to the store for each kind of file: it is durable when it returns, so that no file of the next kind goes
before every file of this one is gone for good (I3).
"""

from __future__ import annotations

from penstock.protocol.retention import Horizon, decide_retention
from penstock.runtime.directory import Directory
from penstock.storage import paths
from penstock.storage.port import Store


def retire(store: Store, directory: Directory, horizon: Horizon) -> int:
    """Delete what may go; returns how many files. Runs in the background; a crash in between does no harm."""
    decision = decide_retention(directory.contents(), horizon)
    stages = (
        tuple(map(paths.manifest, decision.manifests)),
        tuple(map(paths.committed, decision.committed)),
        decision.blobs,
        tuple(map(paths.reserved, decision.reservations)),
    )
    for doomed in filter(None, stages):
        store.delete(*doomed)
    return sum(map(len, stages))
