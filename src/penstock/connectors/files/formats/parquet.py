"""Parquet files. A piece is a stretch of a row group, named after both their numbers."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa

from penstock.connectors.dead_letters import DeadLetter
from penstock.connectors.files.formats.pieces import BAD, Piece, sorted_out
from penstock.connectors.files.reader import FileReader, Pieces


class ParquetReader(FileReader):
    STRETCH_ROWS = 1 << 16  # part of what a position means: do not change
    place_name = "row"
    _is_last = True
    """Whether the stretch at hand is the last one of its row group: another one would have to be decoded again."""

    @property
    def may_leave(self) -> bool:  # type: ignore[override]
        return self._piece is None and self._is_last

    def hint(self, error: Exception) -> str:
        if "magic bytes" in str(error) or "file size is" in str(error):
            return (
                '. If it is no Parquet file, name its format, such as format="jsonl"; or read only the Parquet files, '
                "with a pattern such as '*.parquet'"
            )
        return ""

    def pieces(self, first: Any) -> Pieces:
        import pyarrow.parquet

        group_first, stretch_first = first or (0, 0)
        with self.source.file(self.split) as opened, pyarrow.parquet.ParquetFile(opened) as file:
            self.require_columns(file.schema_arrow.names)
            columns = self.file_schema.names if self.file_schema is not None else None
            groups = [file.metadata.row_group(group).num_rows for group in range(file.metadata.num_row_groups)]
            for group in range(group_first, len(groups)):
                batches = file.iter_batches(self.STRETCH_ROWS, row_groups=[group], columns=columns)
                for stretch, batch in enumerate(batches):
                    self._is_last = stretch >= (groups[group] - 1) // self.STRETCH_ROWS
                    if group > group_first or stretch >= stretch_first:
                        row = sum(groups[:group]) + stretch * self.STRETCH_ROWS
                        yield self._piece_of([group, stretch], batch, row)

    def _piece_of(self, name: list[int], batch: pa.RecordBatch, row: int) -> Piece:
        """`row` rows lie in front of this batch."""
        try:
            return Piece(name, self.fitted(batch))
        except BAD:
            good, bad = sorted_out(batch.num_rows, lambda first, end: self.fitted(batch.slice(first, end - first)))
        letters = [
            DeadLetter(self.path, str(error).rstrip("."), row + number + 1, None, _shown(batch.slice(number, 1)))
            for number, error in bad
        ]
        whole = pa.concat_batches(good) if good else pa.RecordBatch.from_pylist([], schema=self.source.schema)
        return Piece(name, whole, [number for number, _ in bad], letters)


def _shown(row: pa.RecordBatch) -> str:
    return json.dumps(row.to_pylist()[0], default=str)
