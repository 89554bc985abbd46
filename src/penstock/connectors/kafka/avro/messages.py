"""Messages of Avro: with the schema of the pipeline, or each with the id of its schema in a registry."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa

from penstock.connectors.kafka.avro.decoding import Records, decode
from penstock.connectors.kafka.avro.encoding import encoded_rows
from penstock.connectors.kafka.avro.resolution import Incompatible, record_reader
from penstock.connectors.kafka.avro.schemas import arrow_schema, avro_schema
from penstock.connectors.kafka.framing import (
    HEADER_BYTES,
    Messages,
    as_binary,
    by_schema,
    framed,
    unframed,
    values_joined,
    values_of,
    with_nulls,
)
from penstock.connectors.kafka.registry import Registered, RegistryClient
from penstock.errors import PipelineError


class AvroDecoder:
    """One Avro record per message, all written with the schema that was given; without a registry."""

    def __init__(self, where: str, schema: Any) -> None:
        self.avro = avro_schema(where, schema)
        self.schema = arrow_schema(where, self.avro)
        self._reader = record_reader(where, self.avro, self.avro)

    def __call__(self, messages: Messages) -> pa.RecordBatch:
        values = values_joined(values_of(messages))
        try:
            batch = decode(self._reader, self.schema, values.data, values.at, values.end)
        except ValueError as error:
            hint = ""
            if len(values.at) == 1 and values.count == 1 and self._is_framed(values.data.tobytes()):
                hint = ". It may begin with the id of a schema in a registry: set registry="
            raise ValueError(f"not an Avro record of the schema: {error}{hint}") from error
        return with_nulls(batch, values)

    @staticmethod
    def _is_framed(value: bytes) -> bool:
        return value[:1] == b"\0" and len(value) > HEADER_BYTES


class AvroByRegistry:
    """Records of any schema of the registry, as columns of one: that of the reader."""

    def __init__(self, where: str, client: RegistryClient, reader: Any | None, reader_id: int | None) -> None:
        """The schema of the reader was declared, or has an id."""
        self._where = where
        self._client = client
        self._reader_id = reader_id
        self._avro = reader
        self._schema: pa.Schema | None = None
        self._readers: dict[int, Records | Incompatible] = {}

    def __call__(self, messages: Messages) -> pa.RecordBatch:
        avro = self._reader()
        assert self._schema is not None
        schema = self._schema
        values = values_joined(values_of(messages))
        if not len(values.at):
            return pa.RecordBatch.from_pylist([{}] * values.count, schema=schema)
        ids, behind = unframed(values)

        def part(key: tuple[int, ...], rows: Any) -> pa.RecordBatch:
            reader = self._reader_of(key[0], avro)
            try:
                return decode(reader, schema, rows.data, rows.at, rows.end)
            except (ValueError, pa.ArrowException) as error:
                raise ValueError(f"schema {key[0]}: {error}") from error

        return with_nulls(by_schema(ids[:, None], behind, part), values)

    def _reader(self) -> Any:
        if self._avro is None:
            assert self._reader_id is not None
            self._avro = registered_avro(self._where, self._client.schema(self._reader_id))
        if self._schema is None:
            self._schema = arrow_schema(self._where, self._avro)
        return self._avro

    def _reader_of(self, number: int, avro: Any) -> Records:
        found = self._readers.get(number)
        if found is None:
            found = self._readers[number] = self._resolved(number, avro)
        if isinstance(found, Incompatible):
            raise found
        return found

    def _resolved(self, number: int, avro: Any) -> Records | Incompatible:
        registered = self._client.schema(number)
        try:
            return record_reader(self._where, registered_avro(self._where, registered), avro)
        except (Incompatible, PipelineError) as error:
            wanted = "the declared schema" if self._reader_id is None else f"schema {self._reader_id}"
            return Incompatible(f"schema {number} cannot be read with {wanted}: {error}")


def registered_avro(where: str, registered: Registered) -> Any:
    """Raises `PipelineError` if it is no Avro record."""
    if registered.kind != "AVRO":
        raise PipelineError(f"{where}: schema {registered.id} is {registered.kind}: set format= for it")
    import fastavro

    names: dict[str, Any] = {}
    for text in registered.references.values():
        fastavro.parse_schema(json.loads(text), names)
    return avro_schema(f"{where}: schema {registered.id}", registered.text, names)


def avro_encoder(where: str, avro: Any, number: int | None) -> Callable[[pa.RecordBatch], pa.Array]:
    """Values of messages; with the id of the schema in front if it has one. Raises `ValueError`."""

    def encode(batch: pa.RecordBatch) -> pa.Array:
        rows = encoded_rows(where, avro, batch)
        return as_binary(rows) if number is None else framed(number, rows)

    return encode


def column_names(avro: Any) -> Sequence[str]:
    return [each["name"] for each in avro["fields"]]
