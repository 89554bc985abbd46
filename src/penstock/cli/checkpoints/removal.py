"""Deleting a checkpoint by hand: what speaks against it, what goes with it, and in which order.

The manifest goes first, then the mark of its commit, then the blobs that no other manifest refers to: a crash in
between leaves files that nobody refers to, never a checkpoint with holes (I3). Reservations stay: they fence (I6).

While a driver runs on the directory, blobs are left to it. The checkpoint that it takes just now may refer to them
and nobody but it can tell; its own retention finds and removes what is not referred to after its next checkpoint.
"""

from __future__ import annotations

from dataclasses import dataclass

from penstock.driver.control import is_driven
from penstock.ids import CheckpointId
from penstock.protocol.retention import CompletedCheckpoint, Contents
from penstock.storage import paths
from penstock.storage.directory import Directory
from penstock.storage.port import Store


@dataclass(frozen=True, slots=True)
class Removal:
    """What deleting `checkpoint` means. With `objections` it takes somebody who insists."""

    checkpoint: CheckpointId
    objections: tuple[str, ...]
    blobs: tuple[str, ...]
    is_driven: bool

    @property
    def stages(self) -> tuple[tuple[str, ...], ...]:
        """In the order in which they must go, each durably before the next."""
        return (paths.manifest(self.checkpoint),), (paths.committed(self.checkpoint),), self.blobs


def plan_removal(store: Store, checkpoint: CheckpointId) -> Removal:
    """What would go, and what speaks against it. The checkpoint must exist."""
    contents, driven = Directory(store).contents(), is_driven(store)
    objections = decide_objections(contents, checkpoint, driven)
    return Removal(checkpoint, objections, () if driven else decide_blobs(contents, checkpoint), driven)


def remove(store: Store, removal: Removal) -> None:
    for doomed in removal.stages:
        store.delete(*doomed)


def decide_objections(contents: Contents, checkpoint: CheckpointId, driven: bool) -> tuple[str, ...]:
    ids = sorted(each.checkpoint for each in contents.completed)
    objections = []
    if checkpoint == ids[-1]:
        before = f"from checkpoint {ids[-2]}" if len(ids) > 1 else "from the beginning"
        objections.append(
            f"it is the newest one: the pipeline would go on {before} and publish again what it has published since"
        )
    if driven and checkpoint == _restored_from(contents):
        objections.append("it is in use: the pipeline that is running was started from it, and may still read it")
    return tuple(objections)


def _restored_from(contents: Contents) -> CheckpointId | None:
    """The newest one of an earlier generation than that which runs now."""
    generation_of = {outcome.checkpoint: outcome.generation for outcome in contents.listing.outcomes}
    current = contents.listing.newest_generation
    earlier = [each.checkpoint for each in contents.completed if generation_of.get(each.checkpoint, 0) < current]
    return max(earlier, default=None)


def decide_blobs(contents: Contents, checkpoint: CheckpointId) -> tuple[str, ...]:
    """Blobs of the checkpoint that no other manifest refers to; none if there is one that nobody can read."""
    others = [each for each in contents.completed if each.checkpoint != checkpoint]
    if any(each.blobs is None for each in others):
        return ()
    kept = {path for each in others for path in each.blobs or ()}
    return tuple(sorted(_blobs_of(contents, checkpoint) - kept))


def _blobs_of(contents: Contents, checkpoint: CheckpointId) -> frozenset[str]:
    """What it refers to, and what was written for it and is in its manifest no more."""
    named = next(each for each in contents.completed if each.checkpoint == checkpoint)
    written = {blob.path for blob in contents.blobs if blob.checkpoint == checkpoint}
    return _existing(contents, named) | written


def _existing(contents: Contents, named: CompletedCheckpoint) -> frozenset[str]:
    return frozenset(blob.path for blob in contents.blobs) & (named.blobs or frozenset())
