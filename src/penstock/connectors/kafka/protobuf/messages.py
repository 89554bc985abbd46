"""Messages of Protobuf: of the type that the pipeline names, or each with the id of its schema in a registry."""

from __future__ import annotations

import base64
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.columnar.ragged import encoded_longs
from penstock.connectors.kafka.avro.encoding import binary_rows
from penstock.connectors.kafka.framing import (
    Messages,
    Values,
    by_schema,
    framed,
    message_indexes,
    unframed,
    values_joined,
    values_of,
    with_nulls,
)
from penstock.connectors.kafka.protobuf.evolution import incompatibility
from penstock.connectors.kafka.protobuf.message_types import MessageType, files_of_text, named, protobuf
from penstock.connectors.kafka.registry import Registered, RegistryClient
from penstock.errors import PipelineError


def _decoded(message: MessageType, values: Values) -> pa.RecordBatch:
    """Raises `ValueError` if one of them is no such message."""
    found = message.handler.array_to_record_batch(values.binary())
    return pa.RecordBatch.from_arrays(found.columns, schema=message.schema)


class ProtobufDecoder:
    """One message of the given type per message of Kafka."""

    def __init__(self, message: MessageType) -> None:
        self.message = message
        self.schema = message.schema

    def __getstate__(self) -> dict[str, Any]:
        return {"message": self.message, "schema": self.schema}

    def __call__(self, messages: Messages) -> pa.RecordBatch:
        values = values_joined(values_of(messages))
        try:
            return with_nulls(_decoded(self.message, values), values)
        except ValueError as error:
            raise ValueError(f"no message '{self.message.name}': {error}") from error


class ProtobufByRegistry:
    """Messages of any schema of the registry, as columns of one type: that of the reader."""

    def __init__(
        self, where: str, client: RegistryClient, reader: MessageType | None, reader_id: int | None, name: str | None
    ) -> None:
        self._where = where
        self._client = client
        self._message = reader
        self._reader_id = reader_id
        self._name = name
        self._verdicts: dict[tuple[int, ...], str] = {}
        """Why messages of a schema and a place in it cannot be read; empty if they can."""

    def __call__(self, messages: Messages) -> pa.RecordBatch:
        if self._message is None:
            assert self._reader_id is not None
            self._message = registered_message(self._where, self._client.schema(self._reader_id), self._name)
        message = self._message
        values = values_joined(values_of(messages))
        if not len(values.at):
            return pa.RecordBatch.from_pylist([{}] * values.count, schema=message.schema)
        ids, behind = unframed(values)
        indexes, behind = message_indexes(behind)

        def part(key: tuple[int, ...], rows: Values) -> pa.RecordBatch:
            reason = self._verdict(key, message)
            if reason:
                raise ValueError(reason)
            try:
                return _decoded(message, rows)
            except ValueError as error:
                raise ValueError(f"schema {key[0]}: no message '{message.name}': {error}") from error

        return with_nulls(by_schema(np.column_stack([ids, indexes]), behind, part), values)

    def _verdict(self, key: tuple[int, ...], message: MessageType) -> str:
        found = self._verdicts.get(key)
        if found is None:
            found = self._verdicts[key] = self._compared(key, message)
        return found

    def _compared(self, key: tuple[int, ...], message: MessageType) -> str:
        number, *place = key
        registered = self._client.schema(number)
        wanted = f"'{message.name}'" if self._reader_id is None else f"'{message.name}' of schema {self._reader_id}"
        try:
            written = registered_message(self._where, registered, None)
            descriptor = _at(written.descriptor.file, [each for each in place if each >= 0])
        except (PipelineError, ValueError) as error:
            return f"schema {number}: {error}"
        # One message may be renamed or moved; another message that happens to fit is not that message.
        if descriptor.name != message.descriptor.name:
            return f"schema {number} is message '{descriptor.full_name}', and {wanted} is to be read"
        reason = incompatibility(descriptor, message.descriptor)
        return f"schema {number} cannot be read as {wanted}: {reason}" if reason else ""


def _at(file: Any, place: list[int]) -> Any:
    """The message at a place: numbers of messages, each within the one before."""
    names = list(file.message_types_by_name.values())
    found = None
    for number in place:
        if not 0 <= number < len(names):
            raise ValueError(f"there is no message at {place} of the schema")
        found = names[number]
        names = list(found.nested_types)
    return found


def registered_message(where: str, registered: Registered, name: str | None) -> MessageType:
    """Raises `PipelineError` if it is no Protobuf schema, or has no such message."""
    if registered.kind != "PROTOBUF":
        raise PipelineError(f"{where}: schema {registered.id} is {registered.kind}: set format= for it")
    try:
        return named(files_of_text(registered.text, registered.references), name)
    except Exception as error:
        raise PipelineError(f"{where}: schema {registered.id} cannot be used: {error}") from error


def text_for_registry(where: str, message: MessageType) -> str:
    """The file of a message as a registry takes it. Raises `PipelineError` if it imports files that need a subject."""
    file = protobuf().FileDescriptorProto.FromString(message.files[-1])
    others = [name for name in file.dependency if not name.startswith("google/")]
    if others:
        raise PipelineError(
            f"{where}: the message '{message.name}' imports '{others[0]}', which must have a subject itself: register "
            f"both, and leave message= and schema= out"
        )
    return base64.b64encode(message.files[-1]).decode()


def indexes_of(message: MessageType) -> bytes:
    """The place of a message in its file, as in front of each value."""
    place: list[int] = []
    each = message.descriptor
    while each.containing_type is not None:
        place.insert(0, list(each.containing_type.nested_types).index(each))
        each = each.containing_type
    place.insert(0, list(each.file.message_types_by_name.values()).index(each))
    numbers = [0] if place == [0] else [len(place), *place]
    return encoded_longs(np.array(numbers, np.int64)).data.tobytes()


def protobuf_encoder(message: MessageType, number: int | None) -> Callable[[pa.RecordBatch], pa.Array]:
    """Values of messages; with the id of the schema in front if it has one. Raises `ValueError`."""
    indexes = b"" if number is None else indexes_of(message)

    def encode(batch: pa.RecordBatch) -> pa.Array:
        found = message.handler.record_batch_to_array(_fitted(message, batch))
        found = found.cast(pa.binary())
        return found if number is None else framed(number, binary_rows(found), indexes)

    return encode


def _fitted(message: MessageType, batch: pa.RecordBatch) -> pa.RecordBatch:
    """The columns of the type, in its order. Nothing that the message has no room for is left out in silence."""
    wanted = message.handler.schema()
    unknown = [name for name in batch.schema.names if name not in wanted.names]
    if unknown:
        raise ValueError(
            f"column '{unknown[0]}' is not in the message '{message.name}', whose fields are "
            f"{', '.join(wanted.names)}: drop it in front of the sink"
        )
    columns = []
    for field in wanted:
        if field.name not in batch.schema.names:
            if not field.nullable and not pa.types.is_nested(field.type):
                raise ValueError(f"column '{field.name}' is missing for the message '{message.name}'")
            columns.append(_absent(field, batch.num_rows))
            continue
        column = _cast(batch.column(field.name), field)
        _require_symbols(message.descriptor.fields_by_name[field.name], column)
        columns.append(column)
    return pa.RecordBatch.from_arrays(columns, schema=wanted)


def _absent(field: pa.Field, rows: int) -> pa.Array:
    if field.nullable:
        return pa.nulls(rows, field.type)
    return pa.array([[]] * rows, field.type)


def _cast(column: pa.Array, field: pa.Field) -> pa.Array:
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    if column.null_count and not field.nullable:
        raise ValueError(
            f"{field.name}: {column.null_count} values are null, and the field is not optional: fill them, or declare "
            f"it optional"
        )
    try:
        return column.cast(field.type)
    except pa.ArrowException as error:
        raise ValueError(f"{field.name}: {error}") from error


def _require_symbols(field: Any, column: pa.Array) -> None:
    if field.enum_type is None or not (pa.types.is_string(column.type)):
        return
    names = [value.name for value in field.enum_type.values]
    unknown = column.filter(pc.invert(pc.is_in(column, pa.array(names, pa.string()), skip_nulls=False)))
    unknown = unknown.drop_null()
    if len(unknown):
        raise ValueError(f"{field.name}: '{unknown[0].as_py()}' is not one of {', '.join(names)}")
