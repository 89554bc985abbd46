"""Messages to Arrow, a whole poll in one call.

A decoder takes the messages of one partition, in order, and gives one row for each, or raises one of `BAD` if there
is a bad one among them; then the caller searches for it by halves. The verdict on a message does not depend on its
neighbours: after a restart polls are cut elsewhere (I1).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa

from penstock.columnar.schemas.schema_ddl import SchemaLike, as_schema
from penstock.connectors.files.formats.json_lines import parsed
from penstock.connectors.files.formats.pieces import BAD
from penstock.connectors.kafka.avro.messages import AvroDecoder
from penstock.connectors.kafka.by_registry import ByRegistry
from penstock.connectors.kafka.client import kafka
from penstock.connectors.kafka.framing import Messages, values_of
from penstock.connectors.kafka.protobuf.message_types import message_type
from penstock.connectors.kafka.protobuf.messages import ProtobufDecoder
from penstock.connectors.kafka.registry import SchemaRegistry
from penstock.errors import DataError, PenstockError, PipelineError
from penstock.user_code import user_code_error

Decode: TypeAlias = Callable[[Messages], pa.RecordBatch]

METADATA: dict[str, pa.DataType] = {
    "topic": pa.string(),
    "partition": pa.int32(),
    "offset": pa.int64(),
    "timestamp": pa.timestamp("ms", "UTC"),
    "key": pa.binary(),
    "headers": pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())])),
}
"""The columns that a message has beside its value, as Spark names them."""

_NO_TIMESTAMP = 0
_BLANK = b" \t\r\n"


def metadata_names(metadata: Sequence[str] | Mapping[str, str], taken: Sequence[str]) -> dict[str, str]:
    """The wished columns of `METADATA`, with the names that they get."""
    names = dict(metadata) if isinstance(metadata, Mapping) else {name: name for name in metadata}
    for column, name in names.items():
        if column not in METADATA:
            raise PipelineError(f"KafkaSource: metadata has {column!r}: it must be one of {', '.join(METADATA)}")
        if name in taken or list(names.values()).count(name) > 1:
            raise PipelineError(
                f"KafkaSource: there are two columns '{name}': give that of the message another name, with "
                f"metadata={{{column!r}: 'kafka_{column}'}}"
            )
    return names


class Decoder:
    """Decodes messages by one format, and adds the wished columns of the messages themselves."""

    def __init__(self, decode: Decode | ByRegistry, metadata: Mapping[str, str]) -> None:
        self._format = decode
        self._metadata = metadata

    @property
    def by_registry(self) -> ByRegistry | None:
        return self._format if isinstance(self._format, ByRegistry) else None

    def started(self, reader_id: int | None, is_closed: Callable[[], bool]) -> Decode:
        """For one thread, which may wait for a registry until it is closed."""
        decode = self._format.decoder(reader_id, is_closed) if isinstance(self._format, ByRegistry) else self._format
        return _Running(decode, self._metadata)


class _Running:
    def __init__(self, decode: Decode, metadata: Mapping[str, str]) -> None:
        self._decode = decode
        self._metadata = metadata

    def __call__(self, messages: Messages) -> pa.RecordBatch:
        batch = self._decode(messages)
        for column, name in self._metadata.items():
            batch = batch.append_column(pa.field(name, METADATA[column]), metadata_column(column, messages))
        return batch


def metadata_column(column: str, messages: Messages) -> pa.Array:
    values = list(map(getattr(kafka().Message, column), messages))
    if column == "timestamp":
        stamps = np.array(values, np.int64).reshape(-1, 2)
        return pa.array(stamps[:, 1], mask=stamps[:, 0] == _NO_TIMESTAMP).cast(METADATA[column])
    if column == "headers":
        values = [None if each is None else [{"key": k, "value": v} for k, v in each] for each in values]
    return pa.array(values, METADATA[column])


# --- the formats ---


def decoder_of(
    format: Any, schema: Any, message: Any, registry: SchemaRegistry | None
) -> tuple[Decode | ByRegistry, Sequence[str]]:
    """The decoder of a format, and the names of its columns as far as they are known."""
    require_fitting("KafkaSource", format, message, registry)
    if callable(format):
        return Decoded(format), []
    if format == "raw":
        return raw, ["value"]
    if format == "json":
        if schema is None:
            raise PipelineError(
                "KafkaSource: format='json' needs schema=, such as schema='id bigint, user string': messages of two "
                "polls would have different columns without it"
            )
        declared = _arrow_schema(schema)
        return JsonDecoder(declared), list(declared.names)
    if registry is not None:
        by_registry = ByRegistry("KafkaSource", format, registry, schema, message)
        return by_registry, by_registry.names
    if format == "avro":
        avro = AvroDecoder("KafkaSource", schema)
        return avro, list(avro.schema.names)
    protobuf = ProtobufDecoder(message_type("KafkaSource", message, schema))
    return protobuf, list(protobuf.schema.names)


def require_fitting(where: str, format: Any, message: Any, registry: SchemaRegistry | None) -> None:
    """Raise for a format that does not exist, and for arguments that are not for it."""
    if not callable(format) and format not in ("json", "avro", "protobuf", "raw"):
        raise PipelineError(
            f"{where}: format is {format!r}: it must be 'json', 'avro', 'protobuf', 'raw', or a function of a batch"
        )
    shown = "a function" if callable(format) else repr(format)
    if registry is not None and format not in ("avro", "protobuf"):
        raise PipelineError(f"{where}: registry= is for format='avro' and 'protobuf', and the format is {shown}")
    if message is not None and format != "protobuf":
        raise PipelineError(f"{where}: message= is for format='protobuf', and the format is {shown}")


def _arrow_schema(schema: SchemaLike) -> pa.Schema:
    return as_schema(schema)


def raw(messages: Messages) -> pa.RecordBatch:
    """The value as it is, in the column `value`."""
    return pa.record_batch([pa.array(values_of(messages), pa.binary())], ["value"])


class Decoded:
    """A function of the user's: it gets the message with all of its columns, and returns one row for each."""

    def __init__(self, function: Callable[[pa.RecordBatch], pa.RecordBatch]) -> None:
        self._function = function

    def __call__(self, messages: Messages) -> pa.RecordBatch:
        batch = raw(messages)
        for column in METADATA:
            batch = batch.append_column(column, metadata_column(column, messages))
        name = getattr(self._function, "__name__", type(self._function).__name__)
        try:
            decoded = self._function(batch)
        except (*BAD, PenstockError):
            raise
        except Exception as error:
            raise user_code_error(f"KafkaSource: format function '{name}'", error) from error
        if not isinstance(decoded, pa.RecordBatch) or decoded.num_rows != batch.num_rows:
            got = f"{decoded.num_rows} rows" if isinstance(decoded, pa.RecordBatch) else type(decoded).__name__
            raise DataError(
                f"KafkaSource: format function '{name}' got a batch of {batch.num_rows} messages and returned {got}: "
                f"it must return a RecordBatch with one row for each message. Filter behind the source"
            )
        return decoded


class JsonDecoder:
    """One JSON object per message. A message without a value is a row of nulls."""

    def __init__(self, schema: pa.Schema) -> None:
        self.schema = schema

    def __call__(self, messages: Messages) -> pa.RecordBatch:
        values = [b"{}" if value is None else value for value in values_of(messages)]
        text = b"\n".join(values)
        _require_objects(values, text)
        if not text.isascii():
            # Arrow does not look, and an operator behind would fail where nobody can tell which message it was.
            text.decode()
        batch = parsed(text, self.schema, "ignore")
        # No object can go on in the next message: two of them meet as `}` line break `{`. So the number decides.
        if batch.num_rows != len(values):
            raise ValueError("the message is not one JSON object")
        if batch.schema.equals(self.schema):
            return batch
        columns = [batch.column(field.name).cast(field.type) for field in self.schema]
        return pa.RecordBatch.from_arrays(columns, schema=self.schema)


def _require_objects(values: Sequence[bytes], text: bytes) -> None:
    """Each message begins with `{` and ends with `}`: Arrow takes objects wherever they end."""
    data = np.frombuffer(text, np.uint8)
    lengths = np.fromiter(map(len, values), np.int64, len(values))
    ends = np.cumsum(lengths + 1) - 2
    starts = ends - lengths + 1
    if lengths.all() and (data[starts] == ord("{")).all() and (data[ends] == ord("}")).all():
        return
    for value in values:
        stripped = value.strip(_BLANK)
        if not (stripped.startswith(b"{") and stripped.endswith(b"}")):
            raise ValueError("the message is not one JSON object")
