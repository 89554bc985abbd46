"""Reading one file: positions, changes, and the way past bad input.

A file is read in pieces, and a position is the piece and the number of the record in it. Bad records count, so that a
position means the same whatever `on_error` says (I1).
"""

from __future__ import annotations

import functools
import json
from abc import abstractmethod
from collections.abc import Generator, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import pyarrow as pa

from penstock.connectors.dead_letters import DeadLetter, batch_of
from penstock.connectors.files.filesystem import Stamp
from penstock.connectors.files.formats.pieces import Piece
from penstock.connectors.files.formats.streams import BROKEN
from penstock.connectors.files.listing import changed
from penstock.connectors.files.partitions import partition_column, partition_values, without
from penstock.connectors.source import END_OF_SPLIT, Backlog, Portion, SplitReader
from penstock.errors import DataError, StorageError
from penstock.ids import DEAD_LETTERS

if TYPE_CHECKING:
    from penstock.connectors.files.source import FileSource

Pieces: TypeAlias = Generator[Piece, None, None]

_COPIED_BYTES = 1 << 20
_WAYS_ON = 'To go on without it, set on_error="skip", or on_error="dead_letter" and give dead_letters() a sink'


class FileReader(SplitReader):
    """Reads one file in pieces; a position is the piece and the record in it."""

    is_bounded = True

    def __init__(self, source: FileSource, split: str, position: Any) -> None:
        self.source = source
        self.split = split
        self._at: dict[str, Any] = position or {"piece": None, "row": 0}
        self._piece: Piece | None = None
        self._pieces: Pieces | None = None
        self._surplus = 0
        """Records of the position that lie behind the piece it names."""
        self._partition = partition_values(split)
        schema = source.schema
        self.file_schema = schema if schema is None else without(schema, self._partition)
        """That of the file itself, if it is declared."""
        if "of" in self._at:
            source.was_read(split, Stamp(*self._at["of"]))

    @abstractmethod
    def pieces(self, first: Any) -> Pieces:
        """The file from the piece named `first` on (None: from the beginning)."""

    def hint(self, error: Exception) -> str:
        """What to do about a file that cannot be read."""
        return ""

    def record_hint(self, reason: str) -> str:
        """What to do about a record that cannot be read."""
        return ""

    @property
    def path(self) -> str:
        return self.source.path_of(self.split)

    @property
    def _what(self) -> str:
        return f"the file '{self.split}' of {self.source.path}"

    # --- reading ---

    def read(self, rows_max: int) -> Any:
        if self._at.get("end"):
            return END_OF_SPLIT
        if self._piece is None:
            failed = self._next()
            if self._piece is None:
                return failed or END_OF_SPLIT
        piece, first = self._piece, self._at["row"]
        end = min(first + rows_max, piece.records)
        self._at["row"] = end
        if end == piece.records:
            self._piece = None
        batch, letters = piece.part(first, end)
        return self._portion(batch, letters) if letters else batch

    def _portion(self, batch: pa.RecordBatch | None, letters: Sequence[DeadLetter], files: int = 0) -> Portion:
        if self.source.on_error == "dead_letter":
            return Portion(batch, {DEAD_LETTERS: batch_of(letters)})
        return Portion(batch, {}, 0 if files else len(letters), files, str(letters[0]))

    def _next(self) -> Portion | None:
        """Go on to the next piece that has records. If the file has ended, or is given up, there is no such piece."""
        try:
            if self._pieces is None:
                self._check()
                self._check_partition()
                self._pieces = self.pieces(self._at["piece"])
            for piece in self._pieces:
                row = self._at["row"] if piece.name == self._at["piece"] else self._surplus
                # A piece may be cut shorter than when the position was taken.
                self._surplus = max(0, row - piece.records)
                if row < piece.records:
                    self._require_good(piece)
                    self._at = {**self._at, "piece": piece.name, "row": row} | piece.lines_before
                    self._piece = piece
                    return None
        except FileNotFoundError as error:
            return self._missing(error)
        except BROKEN as error:
            return self._broken(error)
        self._check()
        self._end()
        return None

    def _end(self) -> None:
        self._at = {"end": True} | {key: value for key, value in self._at.items() if key == "of"}
        self.close()

    # --- what cannot be read ---

    def _require_good(self, piece: Piece) -> None:
        if piece.letters and self.source.on_error == "fail":
            letter = piece.letters[0]
            raise DataError(
                f"{self._what} cannot be read: {self.place_name} {letter.line}: {letter.reason}"
                f"{self.record_hint(letter.reason)}. {_WAYS_ON}"
            )

    place_name = "line"

    def _missing(self, error: FileNotFoundError) -> Portion:
        where = "" if self._at["piece"] is None else ", and a part of it was not read yet"
        reason = f"it is gone{where}"
        if self.source.on_missing == "fail":
            raise DataError(
                f'{self._what} cannot be read: {reason}. Put it back; or set on_missing="skip" to go on without the '
                f"rest of it; or drop it from the checkpoint with: penstock checkpoints drop-split DIR '{self.split}'"
            ) from error
        self._end()
        return Portion(None, {}, 0, 1, str(DeadLetter(self.path, reason)))

    def _broken(self, error: Exception) -> Portion:
        if not self._is_content(error):
            raise StorageError(f"{self._what} cannot be read: {error}") from error
        reason = str(error).rstrip(".")
        if self.source.on_error == "fail":
            raise DataError(f"{self._what} cannot be read: {reason}{self.hint(error)}. {_WAYS_ON}") from error
        begun = "" if self._at["piece"] is None else "the rest of the file cannot be read: "
        self._end()
        return self._portion(None, [DeadLetter(self.path, f"{begun}{reason}")], files=1)

    def _is_content(self, error: Exception) -> bool:
        """Whether the content of the file is at fault. A disk or network that fails is no reason to skip a file."""
        if not isinstance(error, OSError):
            return True
        if error.errno is not None:
            return False
        # Arrow has one exception for bad data and for a failing store: read it all, and see.
        try:
            with self.source.file(self.split) as file:
                while file.read(_COPIED_BYTES):
                    pass
        except OSError:
            return False
        return True

    def _check(self) -> None:
        """The file is the one that the position is a place of."""
        stamp = self.source.stamp(self.split)
        if stamp is None:
            return
        if "of" not in self._at:
            self._at["of"] = [stamp.size, stamp.modified_ns]
            self.source.was_read(self.split, stamp)
        before = Stamp(*self._at["of"])
        # A copy of the file elsewhere has another time.
        is_same = stamp == before or (self.source.moved_from is not None and stamp.size == before.size)
        if not is_same and self.source.on_change == "fail":
            raise DataError(changed(self.split, self.source.path, before, stamp))

    # --- positions ---

    def backlog(self) -> Backlog | None:
        size = self._at["of"][0] if "of" in self._at else self.source.sizes.get(self.split)
        if self._at.get("end"):
            return Backlog(bytes=0)
        return None if size is None else Backlog(bytes=max(0, size - self.bytes_read(self._at["piece"])))

    def bytes_read(self, piece: Any) -> int:
        """Bytes of the file in front of a piece, as far as its name says; 0 if it does not."""
        return 0

    def offset(self) -> bytes:
        return json.dumps(self._at).encode()

    @property
    def may_leave(self) -> bool:  # type: ignore[override]
        return self._piece is None

    def pause(self) -> None:
        # The position is that of the next record, so what is let go of here is read again.
        self._piece = None
        self.close()

    def close(self) -> None:
        pieces, self._pieces = self._pieces, None
        if pieces is not None:
            pieces.close()

    # --- columns ---

    def _check_partition(self) -> None:
        try:
            for column, value in self._partition.items():
                partition_column(column, value, self._partition_type(column), 0, self._what)
        except DataError as error:
            raise ValueError(str(error)) from error

    def _partition_type(self, column: str) -> pa.DataType:
        schema = self.source.schema
        if schema is not None and schema.get_field_index(column) >= 0:
            return schema.field(column).type
        return self.source.partition_types().get(column, pa.string())

    def require_columns(self, names: Sequence[str]) -> None:
        """Raise unless the file has all the columns that the declared schema has."""
        missing = [name for name in (self.file_schema or pa.schema([])).names if name not in names]
        if missing:
            raise ValueError(f"it has no column '{missing[0]}', which the schema declares; it has {', '.join(names)}")

    def fitted(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The batch with the columns of its path, in the declared schema: its columns, in their order and types."""
        schema = self.source.schema
        for column, value in self._partition.items():
            values = partition_column(column, value, self._partition_type(column), batch.num_rows, self._what)
            position = batch.schema.get_field_index(column)
            added = batch.append_column if position < 0 else functools.partial(batch.set_column, position)
            batch = added(column, values)
        if schema is None or batch.schema.equals(schema):
            return batch
        return pa.RecordBatch.from_arrays([batch.column(f.name).cast(f.type) for f in schema], schema=schema)
