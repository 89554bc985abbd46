"""Segments come back as they went, or not at all."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import replace

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import CorruptBlob, StorageError
from penstock.protocol.manifest import Segment
from penstock.storage import Data, MemoryStore, blob
from penstock.storage.blob import read_segment, verify_segment, write_segments

PATH = "checkpoints/00000000000000000001/blobs/g1-map-0-state"
part_lists = st.lists(st.lists(st.binary(max_size=60), max_size=4), min_size=1, max_size=6)


class RecordingStore(MemoryStore):
    """Keeps the very objects that it was handed, to show that nobody copied them."""

    handed: Sequence[Data] = ()

    def write(self, path: str, parts: Sequence[Data]) -> None:
        self.handed = parts
        super().write(path, parts)


@given(part_lists, st.sampled_from([0, 50, 4096]))
def test_segments_are_read_back_as_they_were_written(parts: list[list[bytes]], inline_bytes_max: int) -> None:
    store = MemoryStore()
    segments = write_segments(store, PATH, parts, inline_bytes_max)
    assert [read_segment(store, segment) for segment in segments] == [b"".join(part) for part in parts]
    for segment in segments:
        verify_segment(store, segment)


def test_segments_lie_one_behind_the_other_in_one_blob() -> None:
    store = MemoryStore()
    segments = write_segments(store, PATH, [[b"ab", b"c"], [], [b"defg"]], inline_bytes_max=0)
    assert store.blobs == {PATH: b"abcdefg"}
    assert segments == [
        Segment(3, zlib.crc32(b"abc"), PATH, 0),
        Segment(0, 0, PATH, 3),
        Segment(4, zlib.crc32(b"defg"), PATH, 3),
    ]


@pytest.mark.parametrize(("total", "is_inline"), [(4096, True), (4097, False)])
def test_few_bytes_are_inline_and_need_no_file(total: int, is_inline: bool) -> None:
    store = MemoryStore()
    segments = write_segments(store, PATH, [[b"x" * 4000], [b"y" * (total - 4000)]], 4096)
    assert [segment.inline is not None for segment in segments] == [is_inline, is_inline]
    assert [segment.path is None for segment in segments] == [is_inline, is_inline]
    assert bool(store.blobs) is not is_inline


def test_no_segments_at_all_write_no_file() -> None:
    store = MemoryStore()
    assert write_segments(store, PATH, [], inline_bytes_max=0) == []
    assert store.blobs == {}


def test_the_buffers_reach_the_store_uncopied() -> None:
    store = RecordingStore()
    buffers = [b"a" * 3000, memoryview(bytearray(3000)), pa.py_buffer(b"c" * 3000)]
    segments = write_segments(store, PATH, [buffers[:1], buffers[1:]], 4096)
    assert all(handed is buffer for handed, buffer in zip(store.handed, buffers, strict=True))
    assert [segment.length for segment in segments] == [3000, 6000]


@given(part_lists.filter(lambda parts: any(b"".join(part) for part in parts)), st.data())
def test_a_flipped_bit_is_found_in_its_segment_and_only_there(parts: list[list[bytes]], data: st.DataObject) -> None:
    store = MemoryStore()
    segments = write_segments(store, PATH, parts, inline_bytes_max=0)
    damaged = bytearray(store.blobs[PATH])
    position = data.draw(st.integers(0, len(damaged) - 1))
    damaged[position] ^= 1 << data.draw(st.integers(0, 7))
    store.blobs[PATH] = bytes(damaged)
    for segment, part in zip(segments, parts, strict=True):
        if segment.offset <= position < segment.offset + segment.length:
            with pytest.raises(CorruptBlob, match=f"{PATH}.*offset {segment.offset}: .*{segment.crc32:#010x}"):
                read_segment(store, segment)
            with pytest.raises(CorruptBlob):
                verify_segment(store, segment)
        else:
            assert read_segment(store, segment) == b"".join(part)


@given(st.binary(min_size=1, max_size=50), st.data())
def test_a_flipped_bit_in_an_inline_segment_is_found(content: bytes, data: st.DataObject) -> None:
    [segment] = write_segments(MemoryStore(), PATH, [[content]], 4096)
    damaged = bytearray(content)
    damaged[data.draw(st.integers(0, len(content) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    with pytest.raises(CorruptBlob, match="inline segment"):
        read_segment(MemoryStore(), replace(segment, inline=bytes(damaged)))


def test_a_blob_that_was_cut_short_is_corrupt() -> None:
    store = MemoryStore()
    [first, second] = write_segments(store, PATH, [[b"abc"], [b"defg"]], inline_bytes_max=0)
    store.blobs[PATH] = b"abcde"
    assert read_segment(store, first) == b"abc"
    with pytest.raises(CorruptBlob, match=f"{PATH}.*only 5 bytes.*4 bytes at 3"):
        read_segment(store, second)


def test_a_length_that_lies_is_found_in_inline_segments_too() -> None:
    with pytest.raises(CorruptBlob, match="expected 2 bytes, got 3"):
        read_segment(MemoryStore(), Segment(2, zlib.crc32(b"abc"), inline=b"abc"))


def test_a_blob_that_is_gone_is_an_error_but_not_damage() -> None:
    with pytest.raises(StorageError, match=PATH) as raised:
        read_segment(MemoryStore(), Segment(3, 0, PATH))
    assert not isinstance(raised.value, CorruptBlob)


def test_a_segment_without_place_or_bytes_is_corrupt() -> None:
    with pytest.raises(CorruptBlob, match="names no blob"):
        read_segment(MemoryStore(), Segment(3, 0))


@pytest.mark.parametrize("path", ["../../etc/passwd", "/etc/passwd"])
def test_a_hostile_manifest_cannot_read_outside_the_store(path: str) -> None:
    with pytest.raises(StorageError, match="refused path"):
        read_segment(MemoryStore(), Segment(3, 0, path))


def test_a_large_segment_is_verified_piece_by_piece(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blob, "VERIFY_BYTES_MAX", 10)
    store = MemoryStore()
    [_, segment] = write_segments(store, PATH, [[b"-"], [b"0123456789" * 3 + b"!"]], inline_bytes_max=0)
    lengths = []
    read = store.read

    def recording_read(path: str, offset: int = 0, length: int | None = None) -> bytes:
        lengths.append(length)
        return read(path, offset, length)

    monkeypatch.setattr(store, "read", recording_read)
    verify_segment(store, segment)
    assert lengths == [10, 10, 10, 1]
    store.blobs[PATH] = store.blobs[PATH][:-1] + b"?"
    with pytest.raises(CorruptBlob, match="expected checksum"):
        verify_segment(store, segment)
