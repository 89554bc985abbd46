"""JSON lines, exactly once."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from penstock.connectors.files.sink import Encoder, FileSink


class JsonLinesSink(FileSink):
    """Writes files of JSON lines into a directory, exactly once: readers find each record in one file.

        stream.sink(JsonLinesSink("/data/alerts"))

    Times are written in ISO 8601, binary in base64, decimals as text; NaN and infinity become null, because JSON has no
    words for them. Output appears with each checkpoint. See `FileSink` for the trap.

    Example:

        orders.sink(JsonLinesSink("totals"))
        run(pipeline)
        assert sum(len(file.read_text().splitlines()) for file in Path("totals").glob("*.jsonl")) == 3
    """

    suffix = "jsonl"

    def encoder(self, file: Any, schema: pa.Schema) -> Encoder:
        return _JsonEncoder(file, schema)


class _JsonEncoder(Encoder):
    def __init__(self, file: Any, schema: pa.Schema) -> None:
        import msgspec

        super().__init__(file, schema)
        self._encoder = msgspec.json.Encoder(enc_hook=str)

    def write(self, batch: pa.RecordBatch) -> None:
        self.file.write(self._encoder.encode_lines(batch.to_pylist()))

    def finish(self) -> None:
        return
