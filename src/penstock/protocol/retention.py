"""Which files may go: whatever no retained checkpoint can reach.

A file is deleted for one reason only: nothing that can still be restored, or can still complete, refers to it.

- The newest `retained` checkpoints stay, and those in use. Savepoints that somebody asked for belong to their users:
  they always stay and do not count. Of those that stops have taken, the newest `stops_retained` stay. A manifest that
  cannot be read stays: nobody knows what it refers to.
- A stray manifest (`protocol.strays`) does not count, and goes at once.
- Manifests go before the blobs that only they referred to. A crash in between leaves orphans, which the next round
  finds; the other way round it would leave a checkpoint with holes (I3).
- Blobs are judged by reachability, never by age: a later checkpoint may refer to an early one's blob.
- What was begun after the newest completed checkpoint is left alone, and so is all of a newer generation. A generation
  that is fenced deletes nothing at all (I6).
- A reservation may go once every id of its block is spent, unless it is the licence of this generation. The
  newest completed checkpoint keeps its own, so that ids grow on from there whatever is deleted (I5).
- Tombstones of older generations' ids may go when this generation has completed a checkpoint, after all their
  licences: a former owner that creates an outcome in the place of a marker finds its licence gone (I6). Those of this
  generation's own ids stay: a write of it that hangs may still arrive.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from penstock.ids import NO_CHECKPOINT, CheckpointId, Generation
from penstock.protocol.ownership import Listing, Outcome, Reservation, is_fenced
from penstock.protocol.strays import strays_among

STOPS_RETAINED = 3
"""Number of savepoints of stops that stay, by default."""


@dataclass(frozen=True, slots=True)
class CompletedCheckpoint:
    """A manifest in the directory, and what it refers to; `blobs` is None if it cannot be read."""

    checkpoint: CheckpointId
    blobs: frozenset[str] | None
    is_savepoint: bool = False
    is_stop: bool = False
    """Whether it is the savepoint of a stop with drain: nobody asked for it by itself."""
    first: CheckpointId = NO_CHECKPOINT
    """The first id of its generation, if that is known."""
    older: tuple[CheckpointId, ...] = ()
    """The checkpoints that its generation found."""


@dataclass(frozen=True, slots=True)
class Blob:
    """A blob in the directory, and the attempt that wrote it."""

    path: str
    checkpoint: CheckpointId
    generation: Generation


@dataclass(frozen=True, slots=True)
class Contents:
    """All that lies in the directory. Read the listing last: it says whether this generation may delete at all."""

    completed: tuple[CompletedCheckpoint, ...] = ()
    blobs: tuple[Blob, ...] = ()
    listing: Listing = field(default_factory=Listing)
    committed: frozenset[CheckpointId] = frozenset()


@dataclass(frozen=True, slots=True)
class RetentionBound:
    """What the coordinator knew when it asked: nothing newer than `newest` may be touched."""

    generation: Generation
    newest: CheckpointId
    retained: int
    in_use: frozenset[CheckpointId] = frozenset()
    """Restored from, or being looked at."""
    first: CheckpointId = NO_CHECKPOINT
    """The first id of `generation`: the reservation of that name is its licence."""
    stops_retained: int = STOPS_RETAINED


@dataclass(frozen=True, slots=True)
class Pruning:
    """What to delete, in the order of the fields, each before the next one begins."""

    manifests: tuple[CheckpointId, ...] = ()
    committed: tuple[CheckpointId, ...] = ()
    """Markers: after the manifests, for a manifest without its marker counts as possibly uncommitted."""
    blobs: tuple[str, ...] = ()
    reservations: tuple[CheckpointId, ...] = ()
    """Of this generation."""
    licences: tuple[CheckpointId, ...] = ()
    """Reservations of others. Each must be gone for good before the next one goes: see `protocol.ownership`."""
    tombstones: tuple[CheckpointId, ...] = ()


def decide_retention(contents: Contents, bound: RetentionBound) -> Pruning:
    """What may be deleted; nothing if this generation is fenced."""
    if is_fenced(contents.listing, bound.generation):
        return Pruning()
    manifests = _pruned_manifests(contents.completed, bound)
    kept = tuple(each for each in contents.completed if each.checkpoint not in manifests)
    spent = _spent_reservations(contents.listing.reservations, bound)
    return Pruning(
        manifests=tuple(sorted(manifests)),
        committed=_spent_markers(contents.committed, kept, bound),
        blobs=_unreachable(contents.blobs, kept, bound),
        reservations=tuple(each.checkpoint for each in spent if each.generation == bound.generation),
        licences=tuple(each.checkpoint for each in spent if each.generation != bound.generation),
        tombstones=_spent_tombstones(contents.listing.outcomes, bound),
    )


def _pruned_manifests(completed: Iterable[CompletedCheckpoint], bound: RetentionBound) -> frozenset[CheckpointId]:
    known = sorted(
        (each for each in completed if each.blobs is not None and each.checkpoint <= bound.newest),
        key=lambda each: each.checkpoint,
    )
    strays = strays_among(known)
    checkpoints = [each.checkpoint for each in known if not each.is_savepoint and each.checkpoint not in strays]
    stops = [each.checkpoint for each in known if each.is_stop and each.checkpoint not in strays]
    # A savepoint that somebody asked for is not removed, whatever it is: the command line says what it is.
    useless = {
        each.checkpoint for each in known if each.checkpoint in strays and (each.is_stop or not each.is_savepoint)
    }
    return frozenset(checkpoints[: -bound.retained] + stops[: -bound.stops_retained]) - bound.in_use | useless


def _spent_markers(
    markers: frozenset[CheckpointId], kept: Iterable[CompletedCheckpoint], bound: RetentionBound
) -> tuple[CheckpointId, ...]:
    spent = markers - {each.checkpoint for each in kept}
    return tuple(sorted(checkpoint for checkpoint in spent if checkpoint <= bound.newest))


def _unreachable(blobs: Iterable[Blob], kept: Iterable[CompletedCheckpoint], bound: RetentionBound) -> tuple[str, ...]:
    reachable = {path for each in kept for path in each.blobs or ()}
    unreadable = {each.checkpoint for each in kept if each.blobs is None}
    return tuple(
        sorted(
            blob.path
            for blob in blobs
            if blob.path not in reachable and blob.checkpoint not in unreadable and _is_over(blob, bound)
        )
    )


def _is_over(blob: Blob, bound: RetentionBound) -> bool:
    """Whether the attempt that wrote the blob can no longer complete.

    An older generation's cannot: the takeover gave every id of it an outcome.
    """
    return blob.generation < bound.generation or (
        blob.generation == bound.generation and blob.checkpoint <= bound.newest
    )


def _spent_reservations(reservations: Iterable[Reservation], bound: RetentionBound) -> list[Reservation]:
    spent = [each for each in reservations if each.last < bound.newest and each.checkpoint != bound.first]
    return sorted(spent, key=lambda each: each.checkpoint)


def _spent_tombstones(outcomes: Iterable[Outcome], bound: RetentionBound) -> tuple[CheckpointId, ...]:
    if bound.newest < bound.first:
        # The licences of generations since the restored checkpoint are still there.
        return ()
    return tuple(
        sorted(
            each.checkpoint
            for each in outcomes
            if each.is_tombstone and each.checkpoint < bound.first and each.generation <= bound.generation
        )
    )
