"""Taking over a checkpoint directory, and choosing where to start: the blocking part, for the background.

What is decided lies in `protocol.ownership`, `protocol.recovery` and `protocol.commit`; here the facts are read from
the store and the decisions carried out. A store that fails is an error of this takeover and says nothing about the
checkpoints: the supervisor tries again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from penstock.errors import (
    CorruptBlob,
    FencedError,
    IncompatibleCheckpoint,
    NoReadableCheckpoint,
    RestoreError,
    StorageError,
)
from penstock.ids import CheckpointId, Generation, OperatorName
from penstock.protocol.commit import CommitPermit, decide_recommit
from penstock.protocol.manifest import Manifest, PipelineShape, committables_of, segments_of
from penstock.protocol.manifest.codec import encode_reservation, encode_tombstone
from penstock.protocol.manifest.compatibility import check_fits
from penstock.protocol.manifest.former_names import with_derived_names
from penstock.protocol.ownership import (
    Reservation,
    Takeover,
    Tombstone,
    confirm,
    decide_takeover,
    has_reserved,
    is_taken,
)
from penstock.protocol.recovery import (
    Candidate,
    Damaged,
    FallBack,
    Foreign,
    Refuse,
    RestoreFrom,
    Skipped,
    StartEmpty,
    Valid,
    decide_restore,
)
from penstock.protocol.strays import is_stray
from penstock.storage import paths
from penstock.storage.blob import verify_segment
from penstock.storage.directory import Directory, create_or_read, is_gone
from penstock.storage.port import Store

_TRIES = 16
"""How often a lost race for the next id is tried again: each loss means that somebody else is starting."""


@dataclass(frozen=True, slots=True)
class RestoreOptions:
    """What the user allows when a checkpoint does not fit as it is."""

    fall_back: FallBack = FallBack.SAFE
    allow_dropped_state: bool = False


@dataclass(frozen=True, slots=True)
class Ownership:
    """The directory is ours: this generation may use ids from `first` on, and starts from `manifest`."""

    generation: Generation
    first: CheckpointId
    manifest: Manifest | None = None
    recommit: CommitPermit | None = None
    skipped: tuple[Skipped, ...] = ()
    token: str = ""
    older: tuple[CheckpointId, ...] = ()
    """The checkpoints below `first`, those that cannot be read included, and stray manifests not."""

    @property
    def reservation(self) -> Reservation:
        """With which this generation began."""
        return Reservation(self.first, self.generation, token=self.token)


def take_over(
    store: Store,
    shape: PipelineShape,
    *,
    token: str,
    has_owned: bool = False,
    has_committing_sinks: bool,
    options: RestoreOptions | None = None,
    former_names: Mapping[OperatorName, OperatorName] | None = None,
) -> Ownership:
    """Own the directory and choose the restore point.

    `token` is this driver's own. One that is in the directory already belongs to a driver that restarts: should
    somebody else have taken over since, it must not take the directory back (I6). `has_owned`: this driver has had it,
    although the next owner may have removed every trace of that. `former_names` are those that version 0.1.0 gave to
    operators without a name of the user's.

    Raises `FencedError` if somebody else owns it or keeps winning, `IncompatibleCheckpoint` if the newest checkpoint is
    of another pipeline, `NoReadableCheckpoint` if there is something to restore and it cannot be read (I8), and
    `StorageError` if the store fails: then nothing is known, and a further try with the same token finds what this one
    has created.
    """
    options = options or RestoreOptions()
    directory = Directory(store)
    takeover = _own(store, directory, token, has_owned)
    for checkpoint in takeover.tombstone:
        tombstone = Tombstone(checkpoint, takeover.generation)
        wanted = encode_tombstone(tombstone)
        if create_or_read(store, paths.manifest(checkpoint), wanted) == wanted:
            directory.remember(tombstone)
    outcomes = _Outcomes(store, directory, lambda manifest: with_derived_names(manifest, shape, former_names or {}))
    committed = frozenset(directory.ids(paths.PathKind.COMMITTED))

    def check(manifest: Manifest) -> None:
        is_committed = manifest.checkpoint in committed
        check_fits(manifest, shape, allow_dropped_state=options.allow_dropped_state, is_committed=is_committed)

    candidates = outcomes.candidates(check)
    older = tuple(
        outcome.checkpoint
        for outcome in directory.listing().outcomes
        if outcome.checkpoint < takeover.first
        and not outcome.is_tombstone
        and not is_stray(outcome.checkpoint, outcomes.newest)
    )
    decision = decide_restore(
        candidates, committed=committed, has_committing_sinks=has_committing_sinks, fall_back=options.fall_back
    )
    match decision:
        case StartEmpty():
            return Ownership(takeover.generation, takeover.first, token=token, older=older)
        case Refuse(reason, _, is_foreign):
            raise (IncompatibleCheckpoint if is_foreign else NoReadableCheckpoint)(reason)
        case RestoreFrom(checkpoint, skipped):
            manifest = outcomes.manifests[checkpoint]
            recommit = decide_recommit(manifest, takeover.generation, is_committed=checkpoint in committed)
            return Ownership(takeover.generation, takeover.first, manifest, recommit, skipped, token, older)


def _own(store: Store, directory: Directory, token: str, has_owned: bool) -> Takeover:
    listing = directory.listing()
    is_restart = has_owned or has_reserved(listing, token)
    for _ in range(_TRIES):
        if is_restart and is_taken(listing, token):
            raise FencedError(
                f"generation {listing.newest_generation} of another driver has since taken this "
                "checkpoint directory over: this driver stops, and the other one continues"
            )
        takeover = decide_takeover(listing, token)
        wanted = encode_reservation(takeover.reservation)
        is_ours = create_or_read(store, paths.reserved(takeover.first), wanted) == wanted
        listing = directory.listing()
        # While we looked the other way, the id may have been used, spent and forgotten: then this was not the next one.
        if is_ours and (confirmed := confirm(takeover, listing)) is not None:
            return confirmed
    raise FencedError(
        f"another driver took this checkpoint directory over first, {_TRIES} times in a row: it is "
        "starting on the same directory. Stop one of them, or give each pipeline its own directory."
    )


class _Outcomes:
    """The manifests of a directory, read and verified."""

    def __init__(self, store: Store, directory: Directory, named: Callable[[Manifest], Manifest]) -> None:
        self._store = store
        self._directory = directory
        self._named = named
        self.manifests: dict[CheckpointId, Manifest] = {}
        self.newest: Manifest | None = None
        """The newest one that can tell which others are strays."""

    def candidates(self, check: Callable[[Manifest], None]) -> list[Candidate]:
        """Verified from the newest down, to the first valid one: what is older does not matter then."""
        found: list[Candidate] = []
        for checkpoint in reversed(self._directory.ids(paths.PathKind.MANIFEST)):
            candidate = self._candidate(checkpoint, check)
            if candidate is not None:
                found.append(candidate)
                if isinstance(candidate.verdict, Valid | Foreign):
                    break
        return found

    def _candidate(self, checkpoint: CheckpointId, check: Callable[[Manifest], None]) -> Candidate | None:
        try:
            outcome = self._directory.manifest_or_tombstone(checkpoint)
        except CorruptBlob as error:
            return Candidate(checkpoint, Damaged(str(error)))
        except RestoreError as error:
            return Candidate(checkpoint, Foreign(str(error)))
        if outcome is None or isinstance(outcome, Tombstone):
            return None
        if is_stray(checkpoint, self.newest):
            # As if its tombstone were there: it was given up, and is no checkpoint that anybody could have lost.
            return None
        if self.newest is None and outcome.first:
            self.newest = outcome
        self.manifests[checkpoint] = outcome = self._named(outcome)
        has_committables = bool(committables_of(outcome))
        try:
            check(outcome)
        except RestoreError as error:
            return Candidate(checkpoint, Foreign(str(error)), has_committables)
        damage = self._damage_of(outcome)
        return Candidate(checkpoint, Damaged(damage) if damage else Valid(), has_committables)

    def _damage_of(self, manifest: Manifest) -> str | None:
        """What is wrong with the blobs. Raises `StorageError` if one can neither be read nor is gone for certain."""
        for segment in segments_of(manifest):
            try:
                verify_segment(self._store, segment)
            except CorruptBlob as error:
                return str(error)
            except StorageError as error:
                if segment.path is None or not is_gone(self._store, segment.path):
                    raise
                return str(error)
        return None
