"""Rows to messages: a batch of any columns becomes one of keys, values and topics."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from penstock.connectors.kafka.avro.messages import avro_encoder
from penstock.connectors.kafka.avro.schemas import arrow_schema, avro_schema
from penstock.connectors.kafka.protobuf.messages import protobuf_encoder
from penstock.errors import DataError
from penstock.user_code import user_code_error

if TYPE_CHECKING:
    from penstock.connectors.kafka.sink import KafkaSink

SCHEMA = pa.schema([("key", pa.binary()), ("value", pa.binary()), ("topic", pa.string())])
"""A message: staged files have it too. `topic` is null if all go to one."""

Encoder: TypeAlias = Callable[[pa.RecordBatch], pa.RecordBatch]
Values: TypeAlias = Callable[[pa.RecordBatch], tuple[pa.Array, pa.Array | None]]
"""The values of the rows, and their keys if the format has them."""


def encoder_of(sink: KafkaSink) -> Encoder:
    values = _values_of(sink)

    def encode(batch: pa.RecordBatch) -> pa.RecordBatch:
        topic = _column(sink, batch, sink.topic_column) if sink.topic_column is not None else None
        payload = batch if sink.topic_column is None else batch.drop_columns([sink.topic_column])
        encoded, keys = values(payload)
        if sink.key is not None:
            keys = _as_binary(_column(sink, batch, sink.key))
        if topic is not None and topic.null_count:
            raise DataError(f"{sink.where}: {topic.null_count} rows have no topic: filter them, or fill the column")
        rows = batch.num_rows
        columns = [
            pa.nulls(rows, pa.binary()) if keys is None else keys,
            encoded,
            pa.nulls(rows, pa.string()) if topic is None else topic.cast(pa.string()),
        ]
        return pa.RecordBatch.from_arrays(columns, schema=SCHEMA)

    return encode


def _column(sink: KafkaSink, batch: pa.RecordBatch, name: str) -> pa.Array:
    if batch.schema.get_field_index(name) < 0:
        raise DataError(f"{sink.where}: column '{name}' not found; the columns are {', '.join(batch.schema.names)}")
    return batch.column(name)


def _as_binary(array: pa.Array) -> pa.Array:
    if pa.types.is_dictionary(array.type):
        array = array.dictionary_decode()
    if pa.types.is_binary(array.type) or pa.types.is_large_binary(array.type):
        return array.cast(pa.binary())
    return pc.cast(array, pa.string()).cast(pa.binary())


def _values_of(sink: KafkaSink) -> Values:
    if callable(sink.format):
        return _function(sink)
    if sink.format == "json":
        return _json
    if sink.format == "raw":
        return _raw(sink)
    return _by_schema(sink)


def _by_schema(sink: KafkaSink) -> Values:
    """Avro and Protobuf. With a registry the schema is settled when the sink travels: the writer has it."""
    encode: Callable[[pa.RecordBatch], pa.Array] | None = None
    if sink.by_registry is None and sink.format == "avro":
        avro = avro_schema("KafkaSink", sink.schema)
        arrow_schema("KafkaSink", avro)
        encode = avro_encoder("KafkaSink", avro, None)
    elif sink.message is not None:
        encode = protobuf_encoder(sink.message, None)

    def values(batch: pa.RecordBatch) -> tuple[pa.Array, None]:
        nonlocal encode
        if encode is None:
            assert sink.by_registry is not None
            encode = sink.by_registry.encoder()
        try:
            return encode(batch), None
        except (ValueError, pa.ArrowException) as error:
            raise DataError(f"{sink.where}: rows do not fit the schema: {error}") from error

    return values


def _json(batch: pa.RecordBatch) -> tuple[pa.Array, None]:
    import msgspec

    # A line for each row, and the line breaks are where the values end: JSON has none inside.
    lines = msgspec.json.Encoder(enc_hook=str).encode_lines(batch.to_pylist())
    return pa.array(lines.split(b"\n")[: batch.num_rows], pa.binary()), None


def _raw(sink: KafkaSink) -> Values:
    def values(batch: pa.RecordBatch) -> tuple[pa.Array, pa.Array | None]:
        keys = _as_binary(batch.column("key")) if "key" in batch.schema.names else None
        return _as_binary(_column(sink, batch, "value")), keys

    return values


def _function(sink: KafkaSink) -> Values:
    function: Any = sink.format
    raw = _raw(sink)

    def values(batch: pa.RecordBatch) -> tuple[pa.Array, pa.Array | None]:
        name = getattr(function, "__name__", type(function).__name__)
        try:
            made = function(batch)
        except Exception as error:
            raise user_code_error(f"{sink.where}: format function '{name}'", error) from error
        if not isinstance(made, pa.RecordBatch) or made.num_rows != batch.num_rows:
            raise DataError(f"{sink.where}: format function '{name}' must return a RecordBatch with as many rows")
        return raw(made)

    return values
