"""The bytes of a text file: as they lie there, or decompressed, or from an encoding that cannot be cut at a byte.

Whatever the file is, it is a stream of bytes in which a line ends with the byte 10, and a position is a place in that
stream. A stream that has to be decoded can only be read from its beginning: going back to a place means to read again.
"""

from __future__ import annotations

import bz2
import codecs
import lzma
import zlib
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Any

import pyarrow as pa

_RAW_BYTES = 1 << 16
_ARROW_BYTES = 1 << 14
"""Arrow loses what it has decoded of a damaged stream in the call that finds the damage: calls are small."""

BROKEN = (pa.ArrowException, OSError, EOFError, KeyError, ValueError, zlib.error, lzma.LZMAError)
"""What is raised for a file that is not what its name says."""


class Decoded:
    """A file that is decoded while it is read: like an open file, in which nobody goes back behind the last `seek`.

    If the file is damaged, everything in front of the damage is read before the error is raised.
    """

    def __init__(self, open_file: Callable[[], Any], codec: str | None, encoding: str | None) -> None:
        self._open_file = open_file
        self._codec = codec
        self._encoding = encoding
        self._begin()

    def _begin(self) -> None:
        self._file = self._open_file()
        chunks = _chunks(self._file, self._codec)
        self._chunks = chunks if self._encoding is None else _transcoded(chunks, self._encoding)
        self._damage: Exception | None = None
        self._kept = bytearray()
        self._kept_from = 0
        self._place = 0

    def seek(self, place: int) -> None:
        if place < self._kept_from:
            self.close()
            self._begin()
        self._place = place
        self._forget(place)

    def _forget(self, place: int) -> None:
        count = min(place - self._kept_from, len(self._kept))
        del self._kept[:count]
        self._kept_from += count

    def read(self, size: int) -> bytes:
        """Up to `size` bytes; fewer only at the end, or in front of damage."""
        while self._damage is None and len(self._kept) < self._place - self._kept_from + size:
            try:
                chunk = next(self._chunks, None)
            except BROKEN as error:
                self._damage = error
                break
            if chunk is None:
                break
            self._kept += chunk
            if self._kept_from + len(self._kept) <= self._place:
                # Still in front of the place that was asked for.
                self._forget(self._place)
        start = self._place - self._kept_from
        data = bytes(self._kept[start : start + size])
        if not data and self._damage is not None:
            raise self._damage
        self._place += len(data)
        return data

    def close(self) -> None:
        self._file.close()

    def __enter__(self) -> Decoded:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()


_STANDARD: dict[str, Callable[[], Any]] = {
    "gz": lambda: zlib.decompressobj(16 + zlib.MAX_WBITS),
    "bz2": bz2.BZ2Decompressor,
    "xz": lzma.LZMADecompressor,
}
_ARROW = {"zst": "zstd", "zstd": "zstd", "lz4": "lz4"}


def codec_of(name: str) -> str | None:
    """How a file is compressed, by the end of its name."""
    ending = name.rpartition(".")[2].lower()
    return ending if ending in _STANDARD or ending in _ARROW else None


def _chunks(file: Any, codec: str | None) -> Iterator[bytes]:
    if codec in _ARROW:
        return _by_arrow(file, _ARROW[codec])
    raw = iter(lambda: file.read(_RAW_BYTES), b"")
    return raw if codec is None else _decompressed(raw, _STANDARD[codec])


def _by_arrow(file: Any, codec: str) -> Iterator[bytes]:
    source = file if isinstance(file, pa.NativeFile) else pa.PythonFile(file, "r")
    stream = pa.CompressedInputStream(source, codec)
    while data := stream.read(_ARROW_BYTES):
        yield data


def _decompressed(raw: Iterator[bytes], make: Callable[[], Any]) -> Iterator[bytes]:
    """One or more compressed streams, one after the other."""
    current = None
    for chunk in raw:
        rest = chunk
        # Some writers fill up the last block with zeros.
        while rest and (current is not None or rest.strip(b"\0")):
            current = current or make()
            if data := current.decompress(rest):
                yield data
            rest = current.unused_data if current.eof else b""
            current = None if current.eof else current
    if current is not None:
        raise EOFError("it ends in the middle of its compressed data")


def _transcoded(chunks: Iterator[bytes], encoding: str) -> Iterator[bytes]:
    decoder = codecs.getincrementaldecoder(encoding)()
    for chunk in chunks:
        yield decoder.decode(chunk).encode()
    decoder.decode(b"", final=True)
