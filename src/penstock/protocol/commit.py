"""When sinks may publish: only what a durable manifest names, and all of it, at least once (I4).

A `CommitPermit` is the one thing a committer accepts, and the functions here are the only way to get one; each of
them asks for the fact that a manifest is durable. Nothing else can be published by accident.

After a commit the committer creates a `committed` marker for the checkpoint. A crash in between leaves a committed
checkpoint without its marker, so after a restart the restored checkpoint is committed again unless it has one:
commits are idempotent. The coordinator triggers no checkpoint while the last one has output that is not committed.
Therefore only the newest completed checkpoint can lack its marker, and commits happen in the ascending order of
checkpoints.
"""

from __future__ import annotations

from dataclasses import InitVar, dataclass
from typing import Final

from penstock.errors import ProtocolViolation
from penstock.ids import CheckpointId, Generation
from penstock.protocol.manifest import Committable, Manifest, committables_of

_SEAL: Final = object()


@dataclass(frozen=True, slots=True)
class ManifestDurable:
    """A fact: the store confirmed that it created the manifest of `checkpoint`, or gave it back when asked.

    Trap: "the write was submitted" and "the write timed out" are not this fact.
    """

    checkpoint: CheckpointId
    generation: Generation
    """Of the manifest, which may be older than the one that commits."""


@dataclass(frozen=True, slots=True)
class CommitPermit:
    """Publish these committables of `checkpoint`. Made by this module alone; anybody else gets an error."""

    checkpoint: CheckpointId
    generation: Generation
    """Of the one that commits: an older one's permit is worth nothing (I6)."""
    committables: tuple[Committable, ...]
    batch: CheckpointId
    """The id that the sinks are told. Differs from `checkpoint` where that was imported (`Manifest.batch`)."""
    seal: InitVar[object] = None

    def __post_init__(self, seal: object) -> None:
        if seal is not _SEAL:
            raise ProtocolViolation(f"a permit to commit checkpoint {self.checkpoint} was made without its manifest")


def decide_commit(manifest: Manifest, durable: ManifestDurable, generation: Generation) -> CommitPermit | None:
    """The permit of `generation` to publish a checkpoint; None if it has nothing to publish.

    Raises `ProtocolViolation` if the fact is about another manifest, or the manifest comes from the future.
    """
    if (manifest.checkpoint, manifest.generation) != (durable.checkpoint, durable.generation):
        raise ProtocolViolation(
            f"checkpoint {manifest.checkpoint} of generation {manifest.generation} is to be committed, "
            f"but the durable one is {durable.checkpoint} of generation {durable.generation}"
        )
    if manifest.generation > generation:
        raise ProtocolViolation(
            f"checkpoint {manifest.checkpoint} is of generation {manifest.generation}: {generation} cannot commit it"
        )
    committables = committables_of(manifest)
    if not committables:
        return None
    return CommitPermit(manifest.checkpoint, generation, committables, manifest.batch, _SEAL)


def decide_recommit(restored: Manifest, generation: Generation, *, is_committed: bool) -> CommitPermit | None:
    """What `generation` must publish of the checkpoint it restored, before it publishes its own output.

    None only where the marker says that it was done, or where there is nothing to publish. Having read the manifest
    is the fact that it is durable.
    """
    if is_committed:
        return None
    return decide_commit(restored, ManifestDurable(restored.checkpoint, restored.generation), generation)
