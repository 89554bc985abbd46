"""Files of lines. A piece is a block of whole lines, named after its first byte.

A block is parsed in one call. Where that fails, or does not give one record for each line, the block is searched for
its bad lines, a few hundred records at a time: the mailbox must not wait for the search of a whole block.
"""

from __future__ import annotations

import codecs
import re
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.connectors.dead_letters import DeadLetter
from penstock.connectors.files.formats.pieces import BAD, Piece, sorted_out
from penstock.connectors.files.formats.streams import Decoded, codec_of
from penstock.connectors.files.options import UTF8
from penstock.connectors.files.reader import FileReader, Pieces
from penstock.errors import DataError

BLOCK_BYTES = 1 << 20
LINE_BYTES_MAX = 1 << 30
"""The longest line of a text file. A line is one record, which is in memory as a whole several times over."""
_SEARCHED_RECORDS = 256
_INFERRED = ". Its schema was taken from its beginning: declare one"
_ROW_OF_ARROW = re.compile(r" in row \d+|Row #\d+: |(?<=columns, got )(\d+): .*", re.DOTALL)
"""Arrow counts the rows of what it is given, which is a part of the file; and it repeats the line."""
_IS_OF_TYPES = re.compile("conver|changed from|unexpected field")
"""Reasons that a declared schema might do away with."""
_NEWLINE, _RETURN = 10, 13
_INT64_END = 2.0**63


@dataclass(frozen=True, slots=True)
class Line:
    """A record with its place: its first byte, and the number of lines in front of it."""

    data: bytes
    place: int
    lines_before: int


class LineReader(FileReader):
    """Reads blocks of whole lines."""

    schema: pa.Schema | None = None
    """Of the records in the file: declared, or taken from its beginning."""

    # --- what a format decides ---

    @abstractmethod
    def parse(self, text: bytes) -> pa.RecordBatch:
        """Records of UTF-8 lines in one call. Raises one of `BAD`."""

    @abstractmethod
    def begin(self, file: Any, start: int) -> int:
        """Settle the schema; the byte at which the records begin, `start` if there is no header."""

    @abstractmethod
    def count(self, text: bytes) -> int | None:
        """The number of records, as lines tell it. None if `parse` might take other parts of it for records."""

    def obviously_bad(self, lines: Sequence[bytes]) -> Iterable[tuple[int, str]]:
        """Numbers and reasons of lines that `parse` would refuse, as far as they can be found at little cost."""
        return ()

    def is_blank(self, line: bytes) -> bool:
        """Whether a line holds no record."""
        return not line.strip(b"\r\n")

    def cutter(self) -> Callable[[bytes], int]:
        """Takes one part of a block after the other, and says where the last whole record ends, or 0."""
        return lambda part: part.rfind(b"\n") + 1

    def divided(self, block: bytes) -> Iterable[bytes]:
        """The lines of a block, with their ends."""
        return _lines_of(block)

    # --- pieces ---

    def opened(self) -> Any:
        codec, encoding = codec_of(self.split), self._stream_encoding
        if codec is None and encoding is None:
            return self.source.file(self.split)
        return Decoded(lambda: self.source.file(self.split), codec, encoding)

    @property
    def _stream_encoding(self) -> str | None:
        """The encoding from which the whole stream is decoded, if it cannot be cut at a byte."""
        options = self.source.format_options
        return None if options.is_cut_by_bytes else options.encoding

    def bytes_read(self, piece: Any) -> int:
        # A place in a file that is decompressed or recoded is none in the file itself.
        is_plain = codec_of(self.split) is None and self._stream_encoding is None
        return int(piece) if is_plain and piece is not None else 0

    def pieces(self, first: Any) -> Pieces:
        with self.opened() as file:
            mark = codecs.BOM_UTF8
            start = self.begin(file, len(mark) if self._read_at(file, 0, len(mark)) == mark else 0)
            place = start if first is None else first
            lines_before = self._lines_before(file, place, first)
            while block := self.block(file, place):
                yield from self._pieces_of(block, place, lines_before)
                place += len(block)
                lines_before += breaks_in(block)

    def _lines_before(self, file: Any, place: int, first: Any) -> int:
        """The number of lines in front of a place. Positions of older versions do not hold it."""
        if first is not None and "line" in self._at:
            return int(self._at["line"])
        count = at = 0
        while at < place and (part := self._read_at(file, at, min(BLOCK_BYTES, place - at))):
            count += breaks_in(part)
            at += len(part)
        return count

    def _read_at(self, file: Any, place: int, size: int) -> bytes:
        file.seek(place)
        return bytes(file.read(size))

    def block(self, file: Any, place: int) -> bytes:
        """About a megabyte of whole lines, or one longer line; the same bytes whenever it is asked for."""
        file.seek(place)
        parts: list[bytes] = []
        length = 0
        end_of = self.cutter()
        while part := file.read(BLOCK_BYTES):
            end = end_of(part)
            parts.append(part[:end] if end else part)
            length += len(parts[-1])
            if end:
                break
            if length > LINE_BYTES_MAX:
                raise ValueError(
                    f"the line that begins at byte {place} is longer than {LINE_BYTES_MAX} bytes: break it into "
                    f"several records, or keep such large values in separate files and their names in the records"
                )
        return b"".join(parts)

    def _pieces_of(self, block: bytes, place: int, lines_before: int) -> Iterator[Piece]:
        try:
            yield Piece(place, self._good(block), line=lines_before)
            return
        except BAD:
            lines = list(self.lines(block, place, lines_before))
        # Blank lines in front belong to the first piece: a position must find it under its name again.
        if lines:
            yield from self._halved(lines, Line(b"", place, lines_before))

    def _halved(self, lines: Sequence[Line], first: Line) -> Iterator[Piece]:
        """Pieces of lines that are not all good. They are named after `first`, which lies where they begin."""
        if len(lines) <= _SEARCHED_RECORDS:
            yield self._searched(lines, first)
            return
        middle = len(lines) // 2
        for some, start in ((lines[:middle], first), (lines[middle:], lines[middle])):
            try:
                piece = Piece(start.place, self._good(b"".join(line.data for line in some)), line=start.lines_before)
            except BAD:
                yield from self._halved(some, start)
            else:
                yield piece

    def lines(self, block: bytes, place: int, lines_before: int) -> Iterator[Line]:
        """The records of a block, blank lines left out."""
        for data in self.divided(block):
            if not self.is_blank(data):
                yield Line(data, place, lines_before)
            place += len(data)
            lines_before += data.count(b"\n")

    def _searched(self, lines: Sequence[Line], first: Line) -> Piece:
        bad = dict(self.obviously_bad([line.data for line in lines]))
        others = [number for number in range(len(lines)) if number not in bad]
        data = [lines[number].data for number in others]
        good, found = sorted_out(len(data), lambda start, end: self._good(b"".join(data[start:end])))
        bad |= {others[number]: self._reason(error) for number, error in found}
        letters = [self._letter(lines[number], bad[number]) for number in sorted(bad)]
        whole = pa.concat_batches(good) if good else pa.RecordBatch.from_pylist([], schema=pa.schema([]))
        return Piece(first.place, whole, sorted(bad), letters, first.lines_before)

    def _good(self, data: bytes) -> pa.RecordBatch:
        """The records of these lines, if all of them are good."""
        text = self.text(data)
        count = self.count(text)
        if count == 0:
            return pa.RecordBatch.from_pylist([], schema=pa.schema([]))
        batch = self.parse(text)
        if batch.num_rows != count:
            raise ValueError("the line is not one record")
        return self.fitted(batch)

    def text(self, data: bytes) -> bytes:
        """Lines in UTF-8. Raises `UnicodeDecodeError`."""
        if data.isascii():
            return data
        encoding = self.source.format_options.encoding
        if encoding == UTF8 or self._stream_encoding is not None:
            data.decode()
            return data
        return data.decode(encoding).encode()

    def require_exact(self, sample: pa.Table | pa.RecordBatch) -> None:
        """Raise for whole numbers that fit no 64 bits: Arrow infers floats, and different ones would become equal."""
        for name, column in zip(sample.schema.names, sample.columns, strict=True):
            if pa.types.is_float64(column.type) and _is_rounded(column.drop_null().to_numpy()):
                raise DataError(
                    f"{self._what} has whole numbers beyond 64 bits in column '{name}', which would be rounded to "
                    f"floats: declare a schema, with '{name} decimal(38,0)' to keep them, or '{name} double' if "
                    f"rounding is fine"
                )

    # --- what is said of bad lines ---

    def _letter(self, line: Line, reason: str) -> DeadLetter:
        encoding = UTF8 if self._stream_encoding is not None else self.source.format_options.encoding
        raw = line.data[: 1 << 16].decode(encoding, "backslashreplace").rstrip("\r\n")
        place = line.place if self._stream_encoding is None else None
        return DeadLetter(self.path, reason, line.lines_before + 1, place, raw)

    def _reason(self, error: Exception) -> str:
        if isinstance(error, UnicodeDecodeError):
            byte = error.object[error.start]
            other = "latin1" if error.encoding == "utf-8" else "utf-8"
            return f'the byte 0x{byte:02x} is no {error.encoding}: name the encoding, such as encoding="{other}"'
        return _ROW_OF_ARROW.sub(r"\1", str(error)).rstrip(".")

    def record_hint(self, reason: str) -> str:
        return _INFERRED if self.source.schema is None and _IS_OF_TYPES.search(reason) else ""


def _is_rounded(values: npt.NDArray[np.float64]) -> bool:
    """Whether floats that were inferred are integers of which one is too large for 64 bits."""
    finite = values[np.isfinite(values)]
    return len(finite) > 0 and bool(np.abs(finite).max() >= _INT64_END) and bool((finite == np.floor(finite)).all())


def _lines_of(block: bytes) -> Iterator[bytes]:
    start = 0
    while start < len(block):
        end = block.find(b"\n", start) + 1 or len(block)
        yield block[start:end]
        start = end


def bounds(text: bytes, ends: npt.NDArray[np.intp]) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.intp]]:
    """First and last byte of each line that is not empty; `ends` are the places of the line breaks."""
    data = np.frombuffer(text, np.uint8)
    if not len(ends) or ends[-1] != len(text) - 1:
        ends = np.append(ends, len(text))
    starts = np.concatenate([np.zeros(1, np.intp), ends[:-1] + 1])
    lasts = ends - 1
    lasts = lasts - ((lasts >= starts) & (data[np.maximum(lasts, 0)] == _RETURN))
    filled = lasts >= starts
    return starts[filled], lasts[filled]


def filled_lines(text: bytes) -> int:
    """The number of lines that are not empty."""
    data = np.frombuffer(text, np.uint8)
    is_break = data == _NEWLINE
    if bool((data == _RETURN).any()):
        return len(bounds(text, np.flatnonzero(is_break))[0])
    empty = np.count_nonzero(is_break[1:] & is_break[:-1]) + text.startswith(b"\n")
    return int(np.count_nonzero(is_break) - empty) + (not text.endswith(b"\n"))


def breaks_in(data: bytes) -> int:
    """The number of line breaks. Faster than `bytes.count`."""
    return int(np.count_nonzero(np.frombuffer(data, np.uint8) == _NEWLINE))


def line_breaks(text: bytes) -> npt.NDArray[np.intp]:
    return np.flatnonzero(np.frombuffer(text, np.uint8) == _NEWLINE)
