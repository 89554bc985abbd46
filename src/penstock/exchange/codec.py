"""Channel state and operator state as bytes: Arrow IPC streams, one behind the other.

A watermark is a batch without rows and with a note on it, so that it keeps its place among the records. A change of
schema starts another stream. Reading can raise, never run code: there is no pickle here.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
import pyarrow as pa

from penstock.columnar.gather import owned, take
from penstock.errors import CorruptBlob
from penstock.exchange.items import BatchItem, Captured, WatermarkItem

_WATERMARK = b"penstock.watermark"
_NO_ROWS = np.empty(0, dtype=np.intp)
_NO_RECORDS = pa.RecordBatch.from_arrays([], schema=pa.schema([]))
_OPTIONS = pa.ipc.IpcWriteOptions()


def encode_batches(batches: Iterable[pa.RecordBatch]) -> pa.Buffer:
    """Batches of any schemas, in order."""
    return encode_items(BatchItem(batch, 0, 0) for batch in batches)


def encode_items(items: Iterable[Captured]) -> pa.Buffer:
    """Records and watermarks of one channel, in order."""
    out = pa.BufferOutputStream()
    writer: pa.RecordBatchStreamWriter | None = None
    before = _NO_RECORDS
    for item in items:
        batch = owned(item.batch) if isinstance(item, BatchItem) else _without_rows(before)
        if writer is None or batch.schema != before.schema:
            if writer is not None:
                writer.close()
            writer = pa.ipc.new_stream(out, batch.schema, options=_OPTIONS)
        note = None if isinstance(item, BatchItem) else {_WATERMARK: str(item.watermark).encode()}
        writer.write_batch(batch, custom_metadata=note)
        before = batch
    if writer is not None:
        writer.close()
    return out.getvalue()


def _without_rows(batch: pa.RecordBatch) -> pa.RecordBatch:
    """A batch of the same schema, whatever its types: Arrow can make none from a schema with a union."""
    # A dictionary stays what it is, because another one would be written, and then this one again.
    columns = [
        column.slice(0, 0) if pa.types.is_dictionary(column.type) else take(column, _NO_ROWS)
        for column in batch.columns
    ]
    return pa.RecordBatch.from_arrays(columns, schema=batch.schema)


def decode_batches(data: bytes) -> list[pa.RecordBatch]:
    return [item.batch for item in decode_items(data) if isinstance(item, BatchItem)]


def decode_items(data: bytes) -> list[Captured]:
    """The inverse of `encode_items`; recovered records have no price in credit."""
    try:
        return list(_items(pa.BufferReader(data)))
    except (pa.ArrowInvalid, OSError, EOFError) as error:
        raise CorruptBlob(f"{len(data)} bytes of recovered state are not an Arrow stream: {error}") from error


def _items(source: pa.BufferReader) -> Iterator[Captured]:
    while source.tell() < source.size():
        reader = pa.ipc.open_stream(source)
        while True:
            try:
                batch, note = reader.read_next_batch_with_custom_metadata()
            except StopIteration:
                break
            if note is not None and _WATERMARK in note:
                yield WatermarkItem(int(note[_WATERMARK]))
            else:
                yield BatchItem(batch, 0, batch.nbytes)
