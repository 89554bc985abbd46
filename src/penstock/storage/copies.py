"""Checkpoints that travel: copying one out of its directory, and making one the newest of a directory.

Export copies a checkpoint to another store. The copy is complete in itself: its blobs lie beside its manifest.

- Blobs are copied first and verified in place; the manifest is created last (I3). A copy that was interrupted is not a
  checkpoint, and repeating it completes it.
- The names of copied blobs contain a digest of the manifest. Ids and generations begin at 1 in every directory, so
  without it the blobs of two checkpoints of one id would have the same names, and one copy would replace the other's.
- Where another checkpoint of that id lies, nothing is written.

Import makes a checkpoint of this or another directory the newest one of this directory, under a new id, so that ids
only grow (I5) and every later restart finds it. Output that was published stays behind. Output that may not have been
is published by the pipeline that starts from the copy, under the batch id of the original: a sink that knows batches by
their ids would otherwise publish it twice (I4). Later batch ids continue behind the original's (decision 30).
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

from penstock.errors import CorruptBlob, RestoreError, StorageError
from penstock.ids import NO_CHECKPOINT, CheckpointId
from penstock.protocol.manifest import Manifest, Segment, blobs_of, segments_of
from penstock.protocol.manifest.codec import (
    decode_manifest,
    decode_manifest_or_tombstone,
    encode_manifest,
    encode_reservation,
)
from penstock.protocol.ownership import Tombstone, confirm, decide_takeover
from penstock.protocol.strays import STRAY, is_stray
from penstock.storage import open_store, paths
from penstock.storage.blob import verify_segment
from penstock.storage.directory import Directory, create_or_read
from penstock.storage.port import Store


def read_manifest(store: Store, checkpoint: CheckpointId) -> Manifest:
    """The manifest of a checkpoint; `RestoreError` if no checkpoint has this id."""
    if not _exists(store, paths.manifest(checkpoint)):
        known = ", ".join(str(id) for id in Directory(store).ids(paths.PathKind.MANIFEST)) or "none"
        raise RestoreError(f"checkpoint {checkpoint} does not exist; the existing ones are {known}")
    return decode_manifest(store.read(paths.manifest(checkpoint)))


def verify(store: Store, manifest: Manifest) -> None:
    """Read everything that a checkpoint refers to; raises what is wrong with it."""
    _verify_all(store, segments_of(manifest))


# --- out of a directory ---


def export_checkpoint(store: Store, checkpoint: CheckpointId, to: Store) -> None:
    """Copy a checkpoint with all its blobs. Raises `StorageError` if another one of that id lies there.

    Repeating it is safe: whatever is missing from the copy, or damaged, is copied again.
    """
    manifest = read_manifest(store, checkpoint)
    names = _names_in_copy(manifest)
    copy = _with_blobs_at(manifest, names)
    found = _outcome(to, checkpoint)
    if found == manifest:
        # Its own directory.
        names, copy = {path: path for path in names}, manifest
    elif found != copy:
        _require_free(store, manifest, to, found)
    _copy_blobs(store, to, manifest, names)
    verify(to, copy)
    if not to.create(paths.manifest(checkpoint), encode_manifest(copy)):
        found = _outcome(to, checkpoint)
        if found != copy:
            raise _occupied(store, manifest, to, found)
    # After the manifest: a marker that came first could be taken for another checkpoint's.
    if _exists(store, paths.committed(checkpoint)):
        to.create(paths.committed(checkpoint), b"{}")


def _names_in_copy(manifest: Manifest) -> dict[str, str]:
    digest = hashlib.sha256(encode_manifest(manifest)).hexdigest()[:24]
    prefix = f"{paths.blob_prefix(manifest.checkpoint)}g{manifest.generation}-copied.{digest}"
    return {path: f"{prefix}-{number}-state" for number, path in enumerate(sorted(blobs_of(manifest)))}


def _require_free(store: Store, manifest: Manifest, to: Store, found: Manifest | Tombstone | None) -> None:
    if found is not None:
        raise _occupied(store, manifest, to, found)
    if Directory(to).ids(paths.PathKind.RESERVED):
        raise StorageError(
            f"checkpoint {manifest.checkpoint} of {store!r} cannot be copied to {to!r}: that is the "
            "checkpoint directory of a pipeline, which assigns this id itself. Copy to a directory "
            "without checkpoints; the original is complete and stays where it is."
        )


def _occupied(store: Store, manifest: Manifest, to: Store, found: Manifest | Tombstone | None) -> StorageError:
    there = f"checkpoint {manifest.checkpoint} of pipeline '{found.shape.name}'" if isinstance(found, Manifest) else ""
    return StorageError(
        f"checkpoint {manifest.checkpoint} of pipeline '{manifest.shape.name}' in {store!r} cannot be "
        f"copied to {to!r}, which already has {there or 'a tombstone'} under that id. Copy to another "
        "directory, or delete the one there first. The original is complete and stays where it is."
    )


# --- into a directory ---


def import_checkpoint(
    store: Store,
    restore: str | int,
    storage_options: dict[str, object] | None = None,
    change: Callable[[Manifest], Manifest] = lambda manifest: manifest,
) -> CheckpointId:
    """Make a checkpoint of this directory, or the newest one at another path, the newest of this directory.

    `change` makes the copy differ from the original. It must leave the segments as they are.
    Raises `RestoreError`. Everything is verified before an id is taken: taking one ends a driver that still runs here.
    """
    source, checkpoint = _locate(store, restore, storage_options)
    # Before the manifest and again at the end: an old driver may be deleting it, first the manifest, then the marker.
    was_committed = _exists(source, paths.committed(checkpoint))
    manifest = read_manifest(source, checkpoint)
    if is_stray(checkpoint, Directory(source).newest_with_lineage()):
        raise RestoreError(f"checkpoint {checkpoint} of {source!r} cannot be restored: {STRAY}")
    try:
        verify(source, manifest)
    except StorageError as error:
        raise RestoreError(
            f"checkpoint {checkpoint} of {source!r} cannot be restored: {error} {_way_out(checkpoint)}"
        ) from error
    offset = max(manifest.batch_offset, *_batch_offsets(store), 0)
    takeover = decide_takeover(Directory(store).listing(), secrets.token_hex(16))
    first, wanted = takeover.first, encode_reservation(takeover.reservation)
    is_ours = create_or_read(store, paths.reserved(first), wanted) == wanted
    if not is_ours or confirm(takeover, Directory(store).listing()) is None:
        raise _raced()
    prefix = f"{paths.blob_prefix(first)}g{takeover.generation}-imported"
    names = {path: f"{prefix}-{number}-state" for number, path in enumerate(sorted(blobs_of(manifest)))}
    _copy_blobs(source, store, manifest, names)
    is_committed = was_committed or _exists(source, paths.committed(checkpoint))
    imported = replace(
        change(_with_blobs_at(manifest if not is_committed else _without_committables(manifest), names)),
        checkpoint=first,
        generation=takeover.generation,
        is_savepoint=False,
        published_as=manifest.batch,
        batch_offset=max(offset, manifest.batch - first),
    )
    verify(store, imported)
    if not store.create(paths.manifest(first), encode_manifest(imported)) and _outcome(store, first) != imported:
        raise _raced()
    # The licence, as for every creation (`ownership`).
    if not _exists(store, paths.reserved(first)):
        raise _raced()
    if is_committed:
        store.create(paths.committed(first), b"{}")
    return first


def check_restore(store: Store, restore: str | int) -> None:
    """Raise what `import_checkpoint` would raise for a checkpoint that is not there, or whose manifest is damaged.

    It reads one file, and not everything that the checkpoint refers to.
    """
    source, checkpoint = _locate(store, restore, None)
    read_manifest(source, checkpoint)


def _raced() -> RestoreError:
    return RestoreError("another driver is starting on this checkpoint directory: try again when it runs, or has ended")


def _locate(store: Store, restore: str | int, storage_options: dict[str, object] | None) -> tuple[Store, CheckpointId]:
    if isinstance(restore, int) or restore.isdigit():
        return store, CheckpointId(int(restore))
    try:
        source = open_store(restore, check=False, storage_options=storage_options)
    except StorageError as error:
        raise RestoreError(f"restore={restore!r} is neither the id of a checkpoint nor a savepoint: {error}") from error
    checkpoint = newest_completed(source)
    if checkpoint is None:
        raise RestoreError(f"no checkpoint or savepoint found at {restore}: name its directory, or an id")
    return source, checkpoint


def newest_completed(store: Store) -> CheckpointId | None:
    """The highest id that has a manifest and not a tombstone.

    A damaged outcome may be a manifest: it is a `RestoreError`, never passed over (I8).
    """
    directory = Directory(store)
    for checkpoint in reversed(directory.ids(paths.PathKind.MANIFEST)):
        try:
            outcome = directory.manifest_or_tombstone(checkpoint)
        except CorruptBlob as error:
            raise RestoreError(
                f"the newest checkpoint of {store!r}, {checkpoint}, is damaged: {error} {_way_out(checkpoint)}"
            ) from error
        if isinstance(outcome, Manifest):
            return checkpoint
    return None


def _way_out(checkpoint: CheckpointId) -> str:
    return f"To start from an older one, delete it there: penstock checkpoints delete DIR {checkpoint} --force."


def _batch_offsets(store: Store) -> Iterable[int]:
    """Of every checkpoint here that can be read: later batch ids must pass all that were used in this directory."""
    directory = Directory(store)
    for checkpoint in directory.ids(paths.PathKind.MANIFEST):
        try:
            outcome = directory.manifest_or_tombstone(checkpoint)
        except (CorruptBlob, RestoreError):
            continue
        if isinstance(outcome, Manifest):
            yield outcome.batch_offset


def _without_committables(manifest: Manifest) -> Manifest:
    return replace(manifest, reports=tuple(replace(report, committables=()) for report in manifest.reports))


# --- both ---


def _copy_blobs(source: Store, to: Store, manifest: Manifest, names: Mapping[str, str]) -> None:
    """Copy every blob to its new name, unless all that the manifest refers to is there already."""
    segments: dict[str, list[Segment]] = {}
    for segment in segments_of(_with_blobs_at(manifest, names)):
        if segment.path is not None:
            segments.setdefault(segment.path, []).append(segment)
    for path, name in names.items():
        if not _is_whole(to, segments[name]):
            to.write(name, [source.read(path)])


def _is_whole(store: Store, segments: Iterable[Segment]) -> bool:
    try:
        _verify_all(store, segments)
    except StorageError:
        return False
    return True


def _verify_all(store: Store, segments: Iterable[Segment]) -> None:
    for segment in segments:
        verify_segment(store, segment)


def _outcome(store: Store, checkpoint: CheckpointId) -> Manifest | Tombstone | None:
    if not _exists(store, paths.manifest(checkpoint)):
        return None
    return decode_manifest_or_tombstone(store.read(paths.manifest(checkpoint)))


def _exists(store: Store, path: str) -> bool:
    return path in store.list(path)


def _with_blobs_at(manifest: Manifest, names: Mapping[str, str]) -> Manifest:
    def at(segment: Segment) -> Segment:
        return segment if segment.path is None else replace(segment, path=names[segment.path])

    reports = tuple(
        replace(
            report,
            states=tuple(replace(state, segment=at(state.segment)) for state in report.states),
            channels=tuple(replace(channel, segment=at(channel.segment)) for channel in report.channels),
        )
        for report in manifest.reports
    )
    # A copy says nothing about what lies beside it: see `protocol.strays`.
    return replace(manifest, reports=reports, first=NO_CHECKPOINT, older=())
