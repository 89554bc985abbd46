"""Taking over a checkpoint directory, and choosing where to start: the blocking part, for the background.

What is decided lies in `protocol.claims`, `protocol.recovery` and `protocol.commit`; here the facts are read from
the store and the decisions carried out.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from penstock.errors import CorruptBlob, FencedError, NoReadableCheckpoint, RestoreError, StorageError
from penstock.ids import CheckpointId, Generation
from penstock.protocol.claims import Takeover, Void, confirm, decide_takeover, is_fenced
from penstock.protocol.commit import CommitPermit, decide_recommit
from penstock.protocol.compatibility import check_fits
from penstock.protocol.manifest import Manifest, PipelineShape, committables_of, segments_of
from penstock.protocol.manifest_codec import encode_reservation, encode_void
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
from penstock.runtime.directory import Directory
from penstock.storage import paths
from penstock.storage.blob import verify_segment
from penstock.storage.port import Store

_TRIES = 16
"""How often a lost race for the next id is tried again: each loss means that somebody else is starting."""


@dataclass(frozen=True, slots=True)
class RestoreOptions:
    """What the user allows when a checkpoint does not fit as it is."""

    fall_back: FallBack = FallBack.SAFE
    allow_dropped_state: bool = False


@dataclass(frozen=True, slots=True)
class Claimed:
    """The directory is ours: this generation may use ids from `first` on, and starts from `manifest`."""

    generation: Generation
    first: CheckpointId
    manifest: Manifest | None = None
    recommit: CommitPermit | None = None
    skipped: tuple[Skipped, ...] = ()


def take_over(
    store: Store,
    shape: PipelineShape,
    *,
    has_committing_sinks: bool,
    options: RestoreOptions | None = None,
    former: Generation | None = None,
    reserved: Callable[[Generation], None] = lambda generation: None,
) -> Claimed:
    """Own the directory and choose the restore point.

    `former` is the generation that this driver had before, if it is restarting: should somebody else have taken
    over since, it must not take the directory back (I6). `reserved` is told of the new one as soon as the store knows
    it: what fails after that, fails under this generation, and a further try must not take it for somebody else's.

    Raises `FencedError` if somebody else keeps winning, `NoReadableCheckpoint` or `RestoreError` if there is
    something to restore and it cannot be (I8).
    """
    options = options or RestoreOptions()
    directory = Directory(store)
    takeover = _claim(store, directory, former, reserved)
    for checkpoint in takeover.void:
        store.create(paths.manifest(checkpoint), encode_void(Void(checkpoint, takeover.generation)))
    outcomes = _Outcomes(store, directory)
    committed = frozenset(directory.ids(paths.PathKind.COMMITTED))

    def check(manifest: Manifest) -> None:
        is_committed = manifest.checkpoint in committed
        check_fits(manifest, shape, allow_dropped_state=options.allow_dropped_state, is_committed=is_committed)

    candidates = outcomes.candidates(check)
    decision = decide_restore(
        candidates, committed=committed, has_committing_sinks=has_committing_sinks, fall_back=options.fall_back
    )
    match decision:
        case StartEmpty():
            return Claimed(takeover.generation, takeover.first)
        case Refuse(reason, _):
            raise NoReadableCheckpoint(reason)
        case RestoreFrom(checkpoint, skipped):
            manifest = outcomes.manifests[checkpoint]
            recommit = decide_recommit(manifest, takeover.generation, is_committed=checkpoint in committed)
            return Claimed(takeover.generation, takeover.first, manifest, recommit, skipped)


def _claim(
    store: Store, directory: Directory, former: Generation | None, reserved: Callable[[Generation], None]
) -> Takeover:
    for _ in range(_TRIES):
        listing = directory.listing()
        if former is not None and is_fenced(listing, former):
            raise FencedError(
                f"generation {listing.newest_generation} of another driver has taken this checkpoint directory over "
                f"since generation {former} of this one ran: this driver stops, the other one goes on"
            )
        takeover = decide_takeover(listing)
        created = store.create(paths.reserved(takeover.first), encode_reservation(takeover.reservation))
        if not created:
            continue
        reserved(takeover.generation)
        # While we looked the other way, the id may have been used, spent and forgotten: then this was not the next one.
        if (confirmed := confirm(takeover, directory.listing())) is not None:
            return confirmed
    raise FencedError(
        f"{_TRIES} times somebody else claimed this checkpoint directory first: another driver is starting on it. "
        f"Stop one of them, or give each pipeline a directory of its own."
    )


class _Outcomes:
    """The manifests of a directory, read and verified."""

    def __init__(self, store: Store, directory: Directory) -> None:
        self._store = store
        self._directory = directory
        self.manifests: dict[CheckpointId, Manifest] = {}

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
            outcome = self._directory.manifest_or_void(checkpoint)
        except (CorruptBlob, StorageError) as error:
            return Candidate(checkpoint, Damaged(str(error)))
        except RestoreError as error:
            return Candidate(checkpoint, Foreign(str(error)))
        if outcome is None or isinstance(outcome, Void):
            return None
        self.manifests[checkpoint] = outcome
        has_committables = bool(committables_of(outcome))
        try:
            check(outcome)
        except RestoreError as error:
            return Candidate(checkpoint, Foreign(str(error)), has_committables)
        try:
            for segment in segments_of(outcome):
                verify_segment(self._store, segment)
        except StorageError as error:
            return Candidate(checkpoint, Damaged(str(error)), has_committables)
        return Candidate(checkpoint, Valid(), has_committables)
