"""Channel state and operator state as bytes: Arrow IPC streams, one behind the other.

A watermark is an empty batch with a note on it, so that it keeps its place among the records. A change of
schema starts another stream. Reading can raise, never run code: there is no pickle here.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import pyarrow as pa

from penstock.errors import CorruptBlob
from penstock.runtime.items import BatchItem, Captured, WatermarkItem

_WATERMARK = b"penstock.watermark"
_EMPTY = pa.schema([])
_OPTIONS = pa.ipc.IpcWriteOptions()


def encode_batches(batches: Iterable[pa.RecordBatch]) -> pa.Buffer:
    """Batches of any schemas, in order."""
    return encode_items(BatchItem(batch, 0, 0) for batch in batches)


def encode_items(items: Iterable[Captured]) -> pa.Buffer:
    """Records and watermarks of one channel, in order."""
    out = pa.BufferOutputStream()
    writer: pa.RecordBatchStreamWriter | None = None
    schema = _EMPTY
    for item in items:
        wanted = item.batch.schema if isinstance(item, BatchItem) else schema
        if writer is None or wanted != schema:
            if writer is not None:
                writer.close()
            schema, writer = wanted, pa.ipc.new_stream(out, wanted, options=_OPTIONS)
        if isinstance(item, BatchItem):
            writer.write_batch(item.batch)
        else:
            note = {_WATERMARK: str(item.watermark).encode()}
            writer.write_batch(pa.RecordBatch.from_pylist([], schema=schema), custom_metadata=note)
    if writer is not None:
        writer.close()
    return out.getvalue()


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
