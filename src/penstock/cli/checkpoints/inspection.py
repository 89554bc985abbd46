"""Looking into a checkpoint directory: what is there, how large it is, whether it is whole. Changes nothing."""

from __future__ import annotations

import datetime
from dataclasses import dataclass

from penstock.errors import OptionError, PenstockError
from penstock.ids import CheckpointId
from penstock.protocol.manifest import Cut, Manifest, committables_of
from penstock.protocol.ownership import Void
from penstock.storage import open_store, paths
from penstock.storage.copies import verify
from penstock.storage.directory import Directory
from penstock.storage.port import Store


@dataclass(frozen=True, slots=True)
class Summary:
    """One checkpoint, as a line of a list. Without a `manifest` it cannot be read, and `damage` says why."""

    checkpoint: CheckpointId
    manifest: Manifest | None
    damage: str | None
    is_committed: bool

    @property
    def kind(self) -> str:
        if self.manifest is None:
            return "damaged"
        if self.manifest.is_savepoint:
            return "savepoint"
        return "final" if self.manifest.is_final else "checkpoint"

    @property
    def completed_at(self) -> datetime.datetime | None:
        """When it was complete, by the clock of its driver, in the time zone of whoever looks."""
        if self.manifest is None:
            return None
        return datetime.datetime.fromtimestamp(self.manifest.completed_at_ms / 1000).astimezone()

    @property
    def published(self) -> str:
        """Whether the output of this checkpoint was committed, where it has any."""
        if self.manifest is None or not committables_of(self.manifest):
            return "-"
        return "yes" if self.is_committed else "not yet"


def open_directory(place: str) -> Store:
    """The store at `place`. Raises `PenstockError` if there is none, or if it holds nothing of Penstock's."""
    store = open_store(place, check=False)
    known = (paths.PathKind.RESERVED, paths.PathKind.MANIFEST)
    is_owned = paths.OWNER in store.list(paths.OWNER)
    if not is_owned and not any(paths.kind_of(path) in known for path in store.list(paths.CHECKPOINTS)):
        raise OptionError(
            f"{place} is not a checkpoint directory: there is no checkpoint in it, and no pipeline runs on it. "
            f"Name what was given to --checkpoints, or to savepoint --to."
        )
    return store


def summaries(store: Store) -> list[Summary]:
    """All checkpoints, oldest first; without those that never completed."""
    directory = Directory(store)
    committed = frozenset(directory.ids(paths.PathKind.COMMITTED))
    found = [
        _summary(directory, checkpoint, checkpoint in committed)
        for checkpoint in directory.ids(paths.PathKind.MANIFEST)
    ]
    return [summary for summary in found if summary is not None]


def summary_of(store: Store, checkpoint: CheckpointId) -> Summary:
    """One checkpoint. Raises `PenstockError` if there is none of this id."""
    directory = Directory(store)
    ids = directory.ids(paths.PathKind.MANIFEST)
    if checkpoint in ids:
        summary = _summary(directory, checkpoint, checkpoint in directory.ids(paths.PathKind.COMMITTED))
        if summary is not None:
            return summary
        raise OptionError(f"checkpoint {checkpoint} never completed: only the mark is there that its id is used up")
    known = ", ".join(str(summary.checkpoint) for summary in summaries(store)) or "none"
    raise OptionError(f"there is no checkpoint {checkpoint}: there are {known}")


def newest_of(store: Store, place: str) -> Summary:
    """The newest checkpoint, also one that is damaged. Raises `PenstockError` if there is none yet."""
    found = summaries(store)
    if not found:
        raise OptionError(f"there is no checkpoint in {place} yet: `penstock status {place}` says whether it runs")
    return found[-1]


def damage_of(store: Store, summary: Summary) -> str | None:
    """What is wrong with a checkpoint after everything it refers to was read; None if nothing is."""
    if summary.manifest is None:
        return summary.damage
    try:
        verify(store, summary.manifest)
    except PenstockError as error:
        return str(error)
    return None


def state_bytes(manifest: Manifest) -> int:
    return sum(state.segment.length for report in manifest.reports for state in report.states)


def inflight_bytes(manifest: Manifest) -> int:
    return sum(channel.segment.length for report in manifest.reports for channel in report.channels)


def is_unaligned(manifest: Manifest) -> bool:
    return any(report.cut is not Cut.ALIGNED for report in manifest.reports)


def _summary(directory: Directory, checkpoint: CheckpointId, is_committed: bool) -> Summary | None:
    manifest, damage = None, None
    try:
        found = directory.manifest_or_void(checkpoint)
    except PenstockError as error:
        damage = str(error)
    else:
        if found is None or isinstance(found, Void):
            return None
        manifest = found
    return Summary(checkpoint, manifest, damage, is_committed)
