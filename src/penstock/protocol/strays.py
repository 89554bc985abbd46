"""Stray manifests: those that took effect after their checkpoints had been given up, and nobody reads them.

A write of a manifest may hang for any time. Its checkpoint gets a tombstone, by which the write fails when it goes on.
But tombstones do not stay for good: they go when a newer generation has completed a checkpoint (`protocol.ownership`).
A write that goes on even later creates the manifest. Its blobs are gone by then, or are about to go.

Every manifest names the checkpoints that its generation found when it took the directory over. At that moment each
lower id had its outcome, so that a manifest of a lower id that is not among them is a stray. There is always one to
tell: the tombstone was deleted after a checkpoint of the newer generation had completed, and that one is replaced by
later ones, which tell as well.

A stray is never restored, is none of the checkpoints that retention counts, and is removed by the next pruning, unless
it is a savepoint that somebody asked for. Manifests of earlier versions and copies say nothing about others.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Protocol

from penstock.ids import CheckpointId

STRAY = "it was given up, and its manifest was written after a newer run had taken the directory over"
"""For those who look at one."""


class HasLineage(Protocol):
    """What a manifest says about the checkpoints before its generation."""

    @property
    def checkpoint(self) -> CheckpointId: ...

    @property
    def first(self) -> CheckpointId: ...

    @property
    def older(self) -> tuple[CheckpointId, ...]: ...


def is_stray(checkpoint: CheckpointId, newest: HasLineage | None) -> bool:
    """Whether a manifest of this id appeared too late, by the newest manifest that can tell."""
    return newest is not None and checkpoint < newest.first and checkpoint not in newest.older


def newest_of(manifests: Iterable[HasLineage]) -> HasLineage | None:
    """The newest one that knows its generation's first id: only that one can tell."""
    return max((each for each in manifests if each.first), key=lambda each: each.checkpoint, default=None)


def strays_among(manifests: Collection[HasLineage]) -> frozenset[CheckpointId]:
    newest = newest_of(manifests)
    return frozenset(each.checkpoint for each in manifests if is_stray(each.checkpoint, newest))
