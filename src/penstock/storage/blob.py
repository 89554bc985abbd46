"""Segments: many pieces of state in one blob, each with its own length and checksum.

A subtask writes one blob however many states and channels it has, because a file costs a round trip and a sync.
Pieces that are few bytes altogether travel in the manifest itself and need no file at all.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence

from penstock.errors import CorruptBlob
from penstock.protocol.manifest import Segment
from penstock.storage.port import Data, Store

VERIFY_BYTES_MAX = 8 * 2**20
"""How much of a segment is in memory at a time while it is only checked."""


def write_segments(store: Store, path: str, parts: Sequence[Sequence[Data]], inline_bytes_max: int) -> list[Segment]:
    """Write each of `parts`, a list of buffers, as one segment; returns the segments in the same order.

    All go into one blob at `path`, or, if they are at most `inline_bytes_max` bytes together, into the segments
    themselves, and nothing is written. Buffers are neither joined nor copied on the way to the store.
    The trap: the blob is replaced if it exists, so a path belongs to one writer.
    """
    lengths = [sum(memoryview(buffer).nbytes for buffer in part) for part in parts]
    if sum(lengths) <= inline_bytes_max:
        return inline_segments(parts)
    checksums = [_checksum(part) for part in parts]
    store.write(path, [buffer for part in parts for buffer in part])
    segments = []
    offset = 0
    for length, crc32 in zip(lengths, checksums, strict=True):
        segments.append(Segment(length, crc32, path, offset))
        offset += length
    return segments


def inline_segments(parts: Sequence[Sequence[Data]]) -> list[Segment]:
    """Each of `parts` as a segment that holds its bytes itself."""
    joined = [b"".join(part) for part in parts]
    return [Segment(len(content), zlib.crc32(content), inline=content) for content in joined]


def read_segment(store: Store, segment: Segment) -> bytes:
    """The bytes of `segment`. Raises `CorruptBlob` if they are not those that were written.

    A blob that is gone is a `StorageError`: it may have been pruned, where damage never is.
    """
    content = segment.inline if segment.inline is not None else store.read(*_place(segment), segment.length)
    _require_intact(segment, len(content), zlib.crc32(content))
    return content


def verify_segment(store: Store, segment: Segment) -> None:
    """Raise what `read_segment` would, without ever holding the whole of a large segment."""
    if segment.inline is not None or segment.length <= VERIFY_BYTES_MAX:
        read_segment(store, segment)
        return
    path, offset = _place(segment)
    crc32 = done = 0
    while done < segment.length:
        content = store.read(path, offset + done, min(VERIFY_BYTES_MAX, segment.length - done))
        crc32 = zlib.crc32(content, crc32)
        done += len(content)
    _require_intact(segment, done, crc32)


def _checksum(buffers: Sequence[Data]) -> int:
    crc32 = 0
    for buffer in buffers:
        crc32 = zlib.crc32(buffer, crc32)
    return crc32


def _place(segment: Segment) -> tuple[str, int]:
    if segment.path is None:
        raise CorruptBlob(f"a segment of {segment.length} bytes names no blob and holds no bytes itself")
    return segment.path, segment.offset


def _require_intact(segment: Segment, length: int, crc32: int) -> None:
    where = "inline segment" if segment.inline is not None else f"{segment.path!r} at offset {segment.offset}"
    if length != segment.length:
        raise CorruptBlob(f"{where}: expected {segment.length} bytes, got {length}")
    if crc32 != segment.crc32:
        raise CorruptBlob(
            f"{where}: expected checksum {segment.crc32:#010x} over {segment.length} bytes, got {crc32:#010x}. "
            "The bytes were damaged or replaced: restore them from a copy, or start from another checkpoint."
        )
