"""Checkpoints that travel: copying one out of its directory, and making one the newest of a directory.

A checkpoint taken out is complete in itself: its blobs are copied beside its manifest. One brought in, or an older
one of the same directory, becomes the newest under a new id, so that ids only grow (I5) and every later restart
finds it. What it had to publish and was published stays behind; what was not is published by whoever starts from it.
"""

from __future__ import annotations

from dataclasses import replace

from penstock.errors import RestoreError
from penstock.ids import CheckpointId
from penstock.protocol.claims import confirm, decide_takeover
from penstock.protocol.manifest import Manifest, Segment, blobs_of, segments_of
from penstock.protocol.manifest_codec import decode_manifest, encode_manifest, encode_reservation
from penstock.runtime.directory import Directory
from penstock.storage import open_store, paths
from penstock.storage.blob import verify_segment
from penstock.storage.port import Store


def read_manifest(store: Store, checkpoint: CheckpointId) -> Manifest:
    """The manifest of a checkpoint; `RestoreError` if there is none of this id."""
    if paths.manifest(checkpoint) not in store.list(paths.manifest(checkpoint)):
        known = ", ".join(str(id) for id in Directory(store).ids(paths.PathKind.MANIFEST)) or "none"
        raise RestoreError(f"there is no checkpoint {checkpoint}: there are {known}")
    return decode_manifest(store.read(paths.manifest(checkpoint)))


def verify(store: Store, manifest: Manifest) -> None:
    """Read everything that a checkpoint refers to; raises what is wrong with it."""
    for segment in segments_of(manifest):
        verify_segment(store, segment)


def export_checkpoint(store: Store, checkpoint: CheckpointId, to: Store) -> None:
    """Copy a checkpoint with all its blobs; the manifest last (I3)."""
    manifest = read_manifest(store, checkpoint)
    for path in sorted(blobs_of(manifest)):
        to.write(path, [store.read(path)])
    to.create(paths.manifest(checkpoint), encode_manifest(manifest))
    if paths.committed(checkpoint) in store.list(paths.committed(checkpoint)):
        to.create(paths.committed(checkpoint), b"{}")


def import_checkpoint(
    store: Store, restore: str | int, storage_options: dict[str, object] | None = None
) -> CheckpointId:
    """Make a checkpoint of this directory, or the newest one at another path, the newest of this directory."""
    source, checkpoint = _locate(store, restore, storage_options)
    # Before the manifest and again at the end: an old driver may be deleting it, first the manifest, then the marker.
    was_committed = _is_committed(source, checkpoint)
    manifest = read_manifest(source, checkpoint)
    verify(source, manifest)
    takeover = decide_takeover(Directory(store).listing())
    is_ours = store.create(paths.reserved(takeover.first), encode_reservation(takeover.reservation))
    if not is_ours or confirm(takeover, Directory(store).listing()) is None:
        raise RestoreError("somebody else is starting on this checkpoint directory: try again")
    moved: dict[str, str] = {}
    for number, path in enumerate(sorted(blobs_of(manifest))):
        moved[path] = f"{paths.blob_prefix(takeover.first)}g{takeover.generation}-imported-{number}-state"
        store.write(moved[path], [source.read(path)])
    is_committed = was_committed or _is_committed(source, checkpoint)
    renamed = _renamed(manifest, takeover.first, moved, keeps_committables=not is_committed)
    store.create(paths.manifest(takeover.first), encode_manifest(replace(renamed, generation=takeover.generation)))
    if is_committed:
        store.create(paths.committed(takeover.first), b"{}")
    return takeover.first


def _is_committed(store: Store, checkpoint: CheckpointId) -> bool:
    return paths.committed(checkpoint) in store.list(paths.committed(checkpoint))


def _locate(store: Store, restore: str | int, storage_options: dict[str, object] | None) -> tuple[Store, CheckpointId]:
    if isinstance(restore, int) or restore.isdigit():
        return store, CheckpointId(int(restore))
    source = open_store(restore, check=False, storage_options=storage_options)
    found = Directory(source).ids(paths.PathKind.MANIFEST)
    if not found:
        raise RestoreError(f"there is no checkpoint or savepoint at {restore}: name its directory, or an id")
    return source, found[-1]


def _renamed(
    manifest: Manifest, checkpoint: CheckpointId, moved: dict[str, str], *, keeps_committables: bool
) -> Manifest:
    def at(segment: Segment) -> Segment:
        return segment if segment.path is None else replace(segment, path=moved[segment.path])

    reports = tuple(
        replace(
            report,
            states=tuple(replace(state, segment=at(state.segment)) for state in report.states),
            channels=tuple(replace(channel, segment=at(channel.segment)) for channel in report.channels),
            committables=report.committables if keeps_committables else (),
        )
        for report in manifest.reports
    )
    return replace(manifest, checkpoint=checkpoint, reports=reports, is_savepoint=False)
