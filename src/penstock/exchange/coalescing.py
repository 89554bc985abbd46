"""Putting small batches together: a call costs the same for few records as for many.

Smaller windows mean smaller batches, and the more channels a subtask reads, the smaller they are. So one call gets what
waits in front of several of them. Within a channel the order is kept (I2), and nothing but batches is taken: whatever
else comes to the front of a queue is looked at when the call is over.
"""

from __future__ import annotations

from collections.abc import Iterable

import pyarrow as pa

from penstock.exchange.input_channel import InputChannel
from penstock.exchange.items import BatchItem

SMALL_BYTES = 262_144
"""Batches up to this are put together: copying one takes some 10 µs, and a call hundreds."""


class Joining:
    """Takes batches off the channels of one subtask. Remembers whether those of the last schema can be put together."""

    __slots__ = ("_batch_bytes_max", "_bytes_max", "_can_join", "_cuts", "_schema")

    def __init__(self, batch_bytes_max: int = SMALL_BYTES, bytes_max: int | None = None, cuts: bool = False) -> None:
        self._batch_bytes_max = batch_bytes_max
        """Larger batches are left alone."""
        self._bytes_max = bytes_max
        """Of all that is put together; None for as much as the rows are."""
        self._cuts = cuts
        """Whether the last batch is cut, so that there are as many rows as there may be."""
        self._schema: pa.Schema | None = None
        self._can_join = False

    def take(
        self, first: InputChannel, others: Iterable[InputChannel], rows_max: int
    ) -> list[tuple[InputChannel, BatchItem]]:
        """The next records of `first`; if they are few, more of it and of those of `others` that fit to them."""
        item = first.take_slice(rows_max)
        taken = [(first, item)]
        batch_bytes_max, bytes_max = self._batch_bytes_max, self._bytes_max
        if item.size > batch_bytes_max:
            return taken
        schema, rows, size = item.batch.schema, item.batch.num_rows, item.size
        for channel in (first, *others):
            if channel.recovered is not None or channel.channel.edge.input != first.channel.edge.input:
                continue
            while channel.is_readable and isinstance(front := channel.queue[0], BatchItem):
                rows += front.batch.num_rows
                size += front.size
                if front.size > batch_bytes_max or front.batch.schema != schema:
                    return taken
                if bytes_max is not None and size > bytes_max:
                    return taken
                room = rows_max - rows + front.batch.num_rows
                if (rows > rows_max and not (self._cuts and room)) or not self.fits(schema):
                    return taken
                taken.append((channel, channel.take_slice(room)))
                if rows > rows_max:
                    return taken
        return taken

    def fits(self, schema: pa.Schema) -> bool:
        """Whether batches of `schema` can be put together. Asked for every batch, and it hardly ever changes."""
        if self._schema is None or schema != self._schema:
            self._schema, self._can_join = schema, can_join(schema)
        return self._can_join


def joined(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    """One batch of all of them, in order."""
    return batches[0] if len(batches) == 1 else pa.concat_batches(batches)


def can_join(schema: pa.Schema) -> bool:
    """Whether batches of `schema` can be put together as they are.

    Not with dictionaries, each batch having its own, nor with unions and runs.
    """
    return all(_is_plain(kind) for kind in schema.types)


def _is_plain(kind: pa.DataType) -> bool:
    if pa.types.is_nested(kind):
        is_known = pa.types.is_struct(kind) or pa.types.is_map(kind) or _is_list(kind)
        return is_known and all(_is_plain(kind.field(number).type) for number in range(kind.num_fields))
    is_encoded = pa.types.is_dictionary(kind) or pa.types.is_run_end_encoded(kind)
    return not is_encoded and not isinstance(kind, pa.BaseExtensionType)


def _is_list(kind: pa.DataType) -> bool:
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind))
