"""Messages to Arrow, a whole poll in one call.

A decoder takes the messages of one partition, in order, and gives one row for each, or raises one of `BAD` if there
is a bad one among them; then the caller searches for it by halves. The verdict on a message does not depend on its
neighbours: after a restart polls are cut elsewhere (I1).
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa

from penstock.columnar.schema_ddl import SchemaLike, as_schema
from penstock.connectors.files.formats.json_lines import parsed
from penstock.connectors.files.formats.pieces import BAD
from penstock.connectors.kafka.client import kafka
from penstock.errors import DataError, PenstockError, PipelineError
from penstock.user_code import user_code_error

Messages: TypeAlias = Sequence[Any]
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

    def __init__(self, decode: Decode, metadata: Mapping[str, str]) -> None:
        self._decode = decode
        self._metadata = metadata

    def __call__(self, messages: Messages) -> pa.RecordBatch:
        batch = self._decode(messages)
        for column, name in self._metadata.items():
            batch = batch.append_column(pa.field(name, METADATA[column]), metadata_column(column, messages))
        return batch


def values_of(messages: Messages) -> list[bytes | None]:
    return list(map(kafka().Message.value, messages))


def metadata_column(column: str, messages: Messages) -> pa.Array:
    values = list(map(getattr(kafka().Message, column), messages))
    if column == "timestamp":
        stamps = np.array(values, np.int64).reshape(-1, 2)
        return pa.array(stamps[:, 1], mask=stamps[:, 0] == _NO_TIMESTAMP).cast(METADATA[column])
    if column == "headers":
        values = [None if each is None else [{"key": k, "value": v} for k, v in each] for each in values]
    return pa.array(values, METADATA[column])


# --- the formats ---


def decoder_of(format: Any, schema: Any) -> tuple[Decode, list[str]]:
    """The decoder of a format, and the names of its columns as far as they are known."""
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
    if format == "avro":
        avro = AvroDecoder(schema)
        return avro, list(avro.schema.names)
    raise PipelineError(
        f"KafkaSource: format is {format!r}: it must be 'json', 'avro', 'raw', or a function of a batch"
    )


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


class AvroDecoder:
    """One Avro record per message, all written with the schema that was given; without a registry."""

    def __init__(self, schema: Any) -> None:
        self.avro = avro_schema("KafkaSource", schema)
        self.schema = pa.schema([(each["name"], arrow_type(each["type"])) for each in self.avro["fields"]])

    def __call__(self, messages: Messages) -> pa.RecordBatch:
        import fastavro

        read: Any = fastavro.schemaless_reader
        schema = self.avro
        rows: list[dict[str, Any]] = []
        for value in values_of(messages):
            if value is None:
                rows.append({})
                continue
            data = io.BytesIO(value)
            try:
                rows.append(read(data, schema))
            except Exception as error:
                confluent = value[:1] == b"\0" and len(value) > 5
                hint = ". It may begin with the id of a schema registry, which is not supported" if confluent else ""
                raise ValueError(f"no Avro record of the schema: {str(error) or type(error).__name__}{hint}") from error
            if data.tell() != len(value):
                raise ValueError(f"the Avro record ends at byte {data.tell()} of {len(value)}: the schema does not fit")
        return pa.RecordBatch.from_pylist(rows, schema=self.schema)


def avro_schema(where: str, schema: Any) -> Any:
    """A parsed record schema of Avro, from a mapping or JSON text."""
    try:
        import fastavro
    except ImportError as error:
        raise PipelineError(
            f"{where}: format='avro' needs the package fastavro: pip install 'penstock[kafka]'"
        ) from error
    try:
        parsed_schema: Any = fastavro.parse_schema(json.loads(schema) if isinstance(schema, str) else schema)
        is_record = parsed_schema["type"] == "record"
    except Exception as error:
        raise PipelineError(
            f"{where}: format='avro' needs schema=, an Avro schema as a mapping or JSON: {error}"
        ) from error
    if not is_record:
        raise PipelineError(f"{where}: the Avro schema must be that of a record")
    return parsed_schema


_PRIMITIVES = {
    "null": pa.null(),
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "bytes": pa.binary(),
    "string": pa.string(),
}
_LOGICAL = {
    "date": pa.date32(),
    "timestamp-millis": pa.timestamp("ms", "UTC"),
    "timestamp-micros": pa.timestamp("us", "UTC"),
    "local-timestamp-millis": pa.timestamp("ms"),
    "local-timestamp-micros": pa.timestamp("us"),
    "time-millis": pa.time32("ms"),
    "time-micros": pa.time64("us"),
    "uuid": pa.string(),
}


def arrow_type(avro: Any) -> pa.DataType:
    """The Arrow type of an Avro type. Raises `PipelineError` for those that have none."""
    if isinstance(avro, list):
        others = [each for each in avro if each != "null"]
        if len(others) == 1:
            return arrow_type(others[0])
    elif isinstance(avro, str) and avro in _PRIMITIVES:
        return _PRIMITIVES[avro]
    elif isinstance(avro, dict):
        logical = avro.get("logicalType")
        if logical == "decimal":
            return pa.decimal128(avro["precision"], avro.get("scale", 0))
        if logical in _LOGICAL:
            return _LOGICAL[logical]
        nested = {
            "record": lambda: pa.struct([(each["name"], arrow_type(each["type"])) for each in avro["fields"]]),
            "array": lambda: pa.list_(arrow_type(avro["items"])),
            "map": lambda: pa.map_(pa.string(), arrow_type(avro["values"])),
            "enum": pa.string,
            "fixed": lambda: pa.binary(avro["size"]),
        }.get(avro["type"])
        return nested() if nested is not None else arrow_type(avro["type"])
    raise PipelineError(f"KafkaSource: the Avro type {avro!r} has no Arrow type: decode it with a function as format=")
