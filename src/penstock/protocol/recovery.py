"""From which checkpoint to start: the newest valid one, and never silently from less than there was (I8).

The caller has taken the directory over (`protocol.ownership`), so the candidates are final, and has verified them from
the newest down. Each comes with its verdict:

    Valid      manifest and blobs are what was written, and fit this pipeline
    Damaged    something cannot be read, or is not what was written
    Foreign    readable, but of another pipeline, another version or another max_parallelism

Going back past a damaged checkpoint n repeats the input that n had covered. If the sinks published n, that output is
then published twice (I4). A `committed` marker proves that they did; *no* marker proves nothing, because the crash
may have come between the commit and the marker. So the way back is free only if n had nothing to publish: its
manifest is readable and names no committables, or the pipeline has no sink that commits. Otherwise `FallBack.SAFE`
refuses, and `FallBack.ALLOW_DUPLICATES` is the user's word that twice is better than not at all.

Going back past a foreign checkpoint is never right: it is not damaged, somebody is using the wrong directory or
has changed what may not be changed.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TypeAlias, assert_never

from penstock.ids import CheckpointId


class FallBack(enum.Enum):
    """What to do when the newest checkpoint is damaged and its output may have been published."""

    SAFE = "safe"
    """Refuse: somebody must decide."""
    ALLOW_DUPLICATES = "allow duplicates"
    """Go back, and publish some output twice."""


@dataclass(frozen=True, slots=True)
class Valid:
    pass


@dataclass(frozen=True, slots=True)
class Damaged:
    reason: str


@dataclass(frozen=True, slots=True)
class Foreign:
    reason: str


Verdict: TypeAlias = Valid | Damaged | Foreign


@dataclass(frozen=True, slots=True)
class Candidate:
    """A completed checkpoint, that is an outcome that is not a tombstone, and what its verification found."""

    checkpoint: CheckpointId
    verdict: Verdict
    has_committables: bool | None = None
    """None if its manifest cannot be read, so that nobody knows."""


@dataclass(frozen=True, slots=True)
class Skipped:
    """A checkpoint that was passed over, and why; users want to hear of it."""

    checkpoint: CheckpointId
    reason: str


@dataclass(frozen=True, slots=True)
class StartEmpty:
    """There never was a completed checkpoint."""


@dataclass(frozen=True, slots=True)
class RestoreFrom:
    checkpoint: CheckpointId
    skipped: tuple[Skipped, ...] = ()
    """Newest first."""


@dataclass(frozen=True, slots=True)
class Refuse:
    """Do not start. `reason` names what was tried and the way out."""

    reason: str
    skipped: tuple[Skipped, ...] = ()
    is_foreign: bool = False
    """Whether the newest checkpoint is of another pipeline, or version, than this one."""


Decision: TypeAlias = StartEmpty | RestoreFrom | Refuse


def decide_restore(
    candidates: Iterable[Candidate],
    *,
    committed: frozenset[CheckpointId] = frozenset(),
    has_committing_sinks: bool,
    fall_back: FallBack = FallBack.SAFE,
) -> Decision:
    """Choose the restore point. `committed` are the ids with a marker.

    Trap: a marker without a manifest is a checkpoint that somebody removed, not one that never was.
    """
    known = {candidate.checkpoint: candidate for candidate in candidates}
    lost = {checkpoint: Candidate(checkpoint, _GONE) for checkpoint in committed - known.keys()}
    skipped: list[Skipped] = []
    for checkpoint, candidate in sorted((known | lost).items(), reverse=True):
        match candidate.verdict:
            case Valid():
                return RestoreFrom(checkpoint, tuple(skipped))
            case Foreign(reason):
                return Refuse(_foreign_text(checkpoint, reason), tuple(skipped), is_foreign=True)
            case Damaged(reason):
                skipped.append(Skipped(checkpoint, reason))
            case _:
                assert_never(candidate.verdict)
        if fall_back is FallBack.SAFE and has_committing_sinks and candidate.has_committables is not False:
            return Refuse(_duplicates_text(skipped[-1], is_committed=checkpoint in committed), tuple(skipped))
    return Refuse(_nothing_left_text(skipped), tuple(skipped)) if skipped else StartEmpty()


_GONE = Damaged("its manifest is gone, although its output was committed")


def _foreign_text(checkpoint: CheckpointId, reason: str) -> str:
    return (
        f"the pipeline cannot continue from checkpoint {checkpoint}: {reason}. Penstock does not go back to an older "
        "checkpoint, because that would lose the state of this one. To start over, use an empty checkpoint directory."
    )


def _duplicates_text(skipped: Skipped, *, is_committed: bool) -> str:
    known = "was" if is_committed else "may have been"
    return (
        f"checkpoint {skipped.checkpoint} cannot be restored: {skipped.reason}. Its output {known} published, and "
        "an older checkpoint would publish it a second time. Bring the files of the checkpoint back from a copy, or "
        "allow duplicates with allow_output_twice=True."
    )


def _nothing_left_text(skipped: list[Skipped]) -> str:
    tried = "; ".join(f"{each.checkpoint}: {each.reason}" for each in skipped)
    return (
        f"none of the checkpoints can be restored ({tried}). Starting without them would lose their state. "
        "Bring their files back from a copy, or start over with an empty checkpoint directory."
    )
