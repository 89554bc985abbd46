"""The bytes of a manifest, a tombstone and a reservation, and nothing that could run while they are read.

Each is one JSON object `{"format", "kind", "sha256", "body"}`. The checksum covers the kind and the bytes of the
body as they stand, so that it is checked before the body is understood. Decoding looks at format, checksum and
schema, in that order:

    not this JSON object, cut short, or a wrong checksum   CorruptBlob    the file is damaged
    another format                                         RestoreError   another version of Penstock wrote it
    a manifest that contradicts itself                     CorruptBlob    whoever wrote it was not Penstock

Whether a checkpoint fits the pipeline that is being started is decided in `protocol.manifest.compatibility`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import TypeVar

import msgspec

from penstock.errors import CorruptBlob, RestoreError
from penstock.protocol.manifest.values import FORMAT, Manifest, Segment, segments_of
from penstock.protocol.ownership import Reservation, Tombstone, block_ids_max

T = TypeVar("T")

_MANIFEST = "manifest"
_VOID = "void"
_RESERVATION = "reservation"


class _Envelope(msgspec.Struct):
    format: int
    kind: str
    sha256: str
    body: msgspec.Raw


class _FormatOnly(msgspec.Struct):
    """The one field that every format, past and future, must have."""

    format: int


def encode_manifest(manifest: Manifest) -> bytes:
    """The bytes to create a completed checkpoint's outcome with."""
    return _seal(_MANIFEST, msgspec.json.encode(manifest))


def encode_tombstone(tombstone: Tombstone) -> bytes:
    """The bytes to create an outcome with, so that no manifest can ever take its place."""
    return _seal(_VOID, msgspec.json.encode(tombstone))


def encode_reservation(reservation: Reservation) -> bytes:
    """The bytes to create a reservation with."""
    return _seal(_RESERVATION, msgspec.json.encode(reservation))


def decode_manifest(data: bytes) -> Manifest:
    """The manifest in `data`; a tombstone in its place is a `RestoreError`, because it is no checkpoint."""
    outcome = decode_manifest_or_tombstone(data)
    if isinstance(outcome, Tombstone):
        raise RestoreError(
            f"checkpoint {outcome.checkpoint} never completed: generation {outcome.generation} wrote its tombstone. "
            "Restore from another checkpoint."
        )
    return outcome


def decode_manifest_or_tombstone(data: bytes) -> Manifest | Tombstone:
    """The outcome of a checkpoint id. Raises `CorruptBlob` or `RestoreError`."""
    envelope = _open(data)
    if envelope.kind == _VOID:
        return _decode_body(envelope, Tombstone)
    if envelope.kind != _MANIFEST:
        raise CorruptBlob(f"expected a manifest and found a {envelope.kind!r}: files were moved or renamed. {_WAY_OUT}")
    manifest = _decode_body(envelope, Manifest)
    if problem := next(_problems_of(manifest), None):
        raise CorruptBlob(f"the manifest of checkpoint {manifest.checkpoint} contradicts itself: {problem}. {_WAY_OUT}")
    return manifest


def decode_reservation(data: bytes) -> Reservation:
    """The reservation in `data`. Raises `CorruptBlob` or `RestoreError`."""
    envelope = _open(data)
    if envelope.kind != _RESERVATION:
        raise CorruptBlob(f"expected a reservation and found a {envelope.kind!r}. {_WAY_OUT}")
    reservation = _decode_body(envelope, Reservation)
    # A takeover gives every id of the block an outcome: it must not be sent to do that for a billion of them.
    if reservation.checkpoint < 1 or not 1 <= reservation.count <= block_ids_max(reservation.checkpoint):
        block = f"{reservation.count} ids from {reservation.checkpoint} on"
        raise CorruptBlob(f"a reservation of {block} is not one that Penstock makes. {_WAY_OUT}")
    return reservation


_WAY_OUT = "Bring the file back from a copy, or name the checkpoint to start from."


def _seal(kind: str, body: bytes) -> bytes:
    return msgspec.json.encode(_Envelope(FORMAT, kind, _digest(kind, body), msgspec.Raw(body)))


def _digest(kind: str, body: bytes | msgspec.Raw) -> str:
    digest = hashlib.sha256(kind.encode() + b"\n")
    # Not joined: a body may hold a mebibyte of state.
    digest.update(body)
    return digest.hexdigest()


def _open(data: bytes) -> _Envelope:
    try:
        envelope = _decode(data, _Envelope)
    except CorruptBlob:
        # Another format may have another envelope, and is no damage.
        _check_format(_decode(data, _FormatOnly).format)
        raise
    _check_format(envelope.format)
    if _digest(envelope.kind, envelope.body) != envelope.sha256:
        raise CorruptBlob(f"a {envelope.kind[:20]!r} file does not match its checksum: it is damaged. {_WAY_OUT}")
    return envelope


def _check_format(found: int) -> None:
    if found != FORMAT:
        raise RestoreError(
            f"this checkpoint has format {found} and this version of Penstock reads format {FORMAT}: "
            "start the pipeline with the version that wrote it, or restore from another checkpoint."
        )


def _decode_body(envelope: _Envelope, shape: type[T]) -> T:
    return _decode(envelope.body, shape)


def _decode(data: bytes | msgspec.Raw, shape: type[T]) -> T:
    try:
        return msgspec.json.decode(data, type=shape)
    # Nesting too deep to follow is one more way of not being a manifest.
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise CorruptBlob(f"not a file of a checkpoint, or a damaged one ({error}). {_WAY_OUT}") from error


def _problems_of(manifest: Manifest) -> Iterator[str]:
    """What a checksum cannot see: values that no coordinator writes."""
    if manifest.checkpoint < 1 or manifest.generation < 1:
        yield "its id and generation must be positive"
    if manifest.batch_offset < 0 or manifest.published_as < 0:
        yield "its batch id must not be negative"
    if not 0 <= manifest.first <= manifest.checkpoint:
        yield "its id must not be below the first one of its generation"
    subtasks = [report.subtask for report in manifest.reports]
    if len(set(subtasks)) != len(subtasks):
        yield "a subtask reported twice"
    yield from filter(None, map(_problem_of, segments_of(manifest)))


def _problem_of(segment: Segment) -> str | None:
    if (segment.path is None) == (segment.inline is None):
        return "a segment must have either a path or its bytes"
    if segment.length < 0 or segment.offset < 0:
        return "a segment has a negative length or offset"
    # A path that leaves the checkpoint directory would let a hostile manifest read, and retention delete, anything.
    if segment.path is not None and (segment.path.startswith("/") or ".." in segment.path.split("/")):
        return f"the path {segment.path!r} leads out of the checkpoint directory"
    return None
