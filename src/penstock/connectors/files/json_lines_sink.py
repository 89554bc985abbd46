"""JSON lines, exactly once."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from penstock.connectors.files.sink import ROLL_SIZE, Encoder, FileSink, require_codec
from penstock.model.units import Size

COMPRESSED_ENDS = {"bz2": "bz2", "gzip": "gz", "lz4": "lz4", "zstd": "zst"}
"""The end of the name by which readers know a compression."""


class JsonLinesSink(FileSink):
    """Writes files of JSON lines into a directory, exactly once: readers find each record in one file.

        stream.sink(JsonLinesSink("/data/alerts"))

    Times are written in ISO 8601, binary in base64, decimals as text; NaN and infinity become null, because JSON has no
    words for them. `compression` is gzip, zstd, bz2 or lz4; names of files end accordingly, with which readers know it.
    Output appears with each checkpoint. See `FileSink` for the trap.

    Example:

        orders.sink(JsonLinesSink("totals"))
        run(pipeline)
        assert sum(len(file.read_text().splitlines()) for file in Path("totals").glob("*.jsonl")) == 3
    """

    suffix = "jsonl"

    def __init__(
        self,
        directory: str | os.PathLike[str],
        *,
        roll_size: Size = ROLL_SIZE,
        compression: str | None = None,
        partition_by: str | Sequence[str] = (),
        upsert: str | Sequence[str] | None = None,
        by: str | None = None,
    ) -> None:
        super().__init__(directory, roll_size=roll_size, partition_by=partition_by, upsert=upsert, by=by)
        self.compression = compression
        if compression is not None:
            require_codec("JsonLinesSink", compression, sorted(COMPRESSED_ENDS))
            self.suffix = f"jsonl.{COMPRESSED_ENDS[compression]}"

    def encoder(self, file: Any, schema: pa.Schema) -> Encoder:
        return _JsonEncoder(file, schema, self.compression)


class _JsonEncoder(Encoder):
    def __init__(self, file: Any, schema: pa.Schema, compression: str | None) -> None:
        import msgspec

        super().__init__(file, schema)
        self._encoder = msgspec.json.Encoder(enc_hook=str)
        self._compressed = None
        if compression is not None:
            self._compressed = pa.CompressedOutputStream(pa.PythonFile(_LeftOpen(file), "w"), compression)

    def write(self, batch: pa.RecordBatch) -> None:
        (self._compressed or self.file).write(self._encoder.encode_lines(batch.to_pylist()))

    def finish(self) -> None:
        if self._compressed is not None:
            self._compressed.close()

    def discard(self) -> None:
        # Left to the garbage collector it would write its end into a file that is closed.
        self.finish()


class _LeftOpen:
    """A file that Arrow writes to and does not close: it is synced first, by others."""

    closed = False

    def __init__(self, file: Any) -> None:
        self.write = file.write
        self.tell = file.tell

    def flush(self) -> None:
        return

    def close(self) -> None:
        return
