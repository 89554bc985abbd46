"""Parquet files, exactly once."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from penstock.connectors.files.sink import ROLL_SIZE, Encoder, FileSink, require_codec
from penstock.model.units import Size

_CODECS = ("brotli", "gzip", "lz4", "none", "snappy", "zstd")
_GROUP_ROWS = 1 << 17
_GROUP_BYTES = 8 * 1024 * 1024
"""A row group is encoded on the mailbox thread, so it must not become large."""


class ParquetSink(FileSink):
    """Writes Parquet files into a directory, exactly once: readers find each record in one file.

        stream.sink(ParquetSink("/data/totals"))
        spark.read.parquet("/data/totals")

    Output appears with each checkpoint: its interval is the delay of what is read. See `FileSink` for the trap.

    Example:

        orders.sink(ParquetSink("totals"))
        run(pipeline)
        assert pq.read_table("totals").num_rows == 3

    In directories by customer, `ParquetSink("totals", partition_by="customer")`, or by the hour of a time,
    `partition_by="hour(at)"`.
    """

    suffix = "parquet"

    def __init__(
        self,
        directory: str | os.PathLike[str],
        *,
        roll_size: Size = ROLL_SIZE,
        compression: str = "snappy",
        partition_by: str | Sequence[str] = (),
        upsert: str | Sequence[str] | None = None,
        by: str | None = None,
    ) -> None:
        super().__init__(directory, roll_size=roll_size, partition_by=partition_by, upsert=upsert, by=by)
        require_codec("ParquetSink", compression, _CODECS)
        self.compression = compression

    def encoder(self, file: Any, schema: pa.Schema) -> Encoder:
        return _ParquetEncoder(file, schema, self.compression)


class _ParquetEncoder(Encoder):
    def __init__(self, file: Any, schema: pa.Schema, compression: str) -> None:
        import pyarrow.parquet

        super().__init__(file, schema)
        self._writer = pyarrow.parquet.ParquetWriter(file, schema, compression=compression)
        self._held: list[pa.RecordBatch] = []
        self._rows = self._bytes = 0

    def write(self, batch: pa.RecordBatch) -> None:
        # Small batches would make small row groups, which are slow to read.
        self._held.append(batch)
        self._rows += batch.num_rows
        self._bytes += batch.nbytes
        if self._rows >= _GROUP_ROWS or self._bytes >= _GROUP_BYTES:
            self._flush()

    def _flush(self) -> None:
        if self._held:
            self._writer.write_table(pa.Table.from_batches(self._held, self.schema))
        self._held = []
        self._rows = self._bytes = 0

    def finish(self) -> None:
        self._flush()
        self._writer.close()

    def discard(self) -> None:
        # Left to the garbage collector it would write its end into a file that is closed.
        self._writer.close()
