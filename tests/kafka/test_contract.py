"""The contracts of a source and of a sink, tried out on Kafka with a schema registry."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroDeserializer, AvroSerializer
from confluent_kafka.schema_registry.protobuf import ProtobufDeserializer, ProtobufSerializer
from confluent_kafka.serialization import MessageField, SerializationContext
from google.protobuf.message_factory import GetMessageClass

from penstock import KafkaSink, KafkaSource
from penstock.connectors.kafka.protobuf.message_types import message_type
from penstock.testing import check_sink, check_source
from tests.kafka.kit import Topics
from tests.kafka.registry_server import Gate

FORMATS = ("avro", "protobuf")
PARTITIONS = 3
ROWS = 120
OLD, NEW = (
    {
        "type": "record",
        "name": "Row",
        "fields": [{"name": "n", "type": kind}, {"name": "text", "type": "string"}, *more],
    }
    for kind, more in (("int", []), ("long", [{"name": "note", "type": ["null", "string"], "default": None}]))
)
OLD_PROTO, NEW_PROTO = (
    f'syntax = "proto3"; message Row {{ int64 n = 1; string text = 2; {more} }}'
    for more in ("", "optional string note = 3;")
)


def rows_of(start: int, count: int) -> list[dict[str, Any]]:
    return [{"n": n, "text": f"row {n}"} for n in range(start, start + count)]


def messages(gate: Gate, topic: str, format: str, is_new: bool, rows: list[dict[str, Any]]) -> list[bytes]:
    """As Confluent's own serializers write them, who register what they write."""
    client, context = SchemaRegistryClient({"url": gate.url}), SerializationContext(topic, MessageField.VALUE)
    if format == "avro":
        write = AvroSerializer(client, json.dumps(NEW if is_new else OLD))
        return [write(row, context) for row in rows]
    made = GetMessageClass(message_type("test", "Row", NEW_PROTO if is_new else OLD_PROTO).descriptor)
    encode = ProtobufSerializer(made, client, {"use.deprecated.format": False})
    return [encode(made(**row), context) for row in rows]


@pytest.mark.parametrize(("format", "is_bounded"), [("avro", True), ("avro", False), ("protobuf", True)])
def test_the_source_keeps_the_contract_while_writers_change_the_schema(
    format: str, is_bounded: bool, topics: Topics, gate: Gate
) -> None:
    topic = topics.new(partitions=PARTITIONS)
    for partition in range(PARTITIONS):
        mine = rows_of(partition * ROWS, ROWS)
        # Of two schemas in turn, also within one poll.
        for start in range(0, ROWS, 10):
            is_new = start // 10 % 2 == 1
            part = [{**row, "note": "new"} if is_new else row for row in mine[start : start + 10]]
            topics.produce(topic, messages(gate, topic, format, is_new, part), partition)
    expected = [{**row, "note": "new" if row["n"] % ROWS // 10 % 2 else None} for row in rows_of(0, PARTITIONS * ROWS)]
    reader: dict[str, Any] = {"schema": NEW} if format == "avro" else {"schema": NEW_PROTO, "message": "Row"}
    if is_bounded:
        reader["stop"] = "latest"

    def make() -> KafkaSource:
        return KafkaSource(topics.servers, topic, format=format, registry=gate.url, **reader)  # type: ignore[arg-type]

    batch = pa.RecordBatch.from_pylist(
        expected, pa.schema([("n", pa.int64()), ("text", pa.string()), ("note", pa.string())])
    )
    check_source(make, batch, rows=None if is_bounded else batch.num_rows, batch_rows=11)


@pytest.mark.parametrize("format", FORMATS)
def test_the_sink_keeps_the_contract_and_others_read_what_it_writes(
    format: str, topics: Topics, gate: Gate, tmp_path: Path
) -> None:
    schema: dict[str, Any] = {"schema": OLD} if format == "avro" else {"schema": OLD_PROTO, "message": "Row"}
    if format == "avro":
        schema = {"schema": {**OLD, "fields": [{"name": "n", "type": "long"}, OLD["fields"][1]]}}
    family = topics.unused()
    made: set[str] = set()

    def make(name: str) -> KafkaSink:
        topic = f"{family}-{name}"
        if topic not in made:
            made.add(topics.new(2, topic))
        staging = tmp_path / name
        return KafkaSink(
            *(topics.servers, topic),
            **{"format": format, "registry": gate.url, "transactional_id": topic, "staging": staging, **schema},
        )

    def read_back(name: str) -> list[dict[str, Any]]:
        topic = f"{family}-{name}"
        if topic not in made:
            return []
        context = SerializationContext(topic, MessageField.VALUE)
        if format == "avro":
            read = AvroDeserializer(SchemaRegistryClient({"url": gate.url}))
            return [read(value, context) for value in topics.values(topic)]
        row = GetMessageClass(message_type("test", "Row", OLD_PROTO).descriptor)
        decode = ProtobufDeserializer(row, {"use.deprecated.format": False})
        found = [decode(value, context) for value in topics.values(topic)]
        return [{"n": one.n, "text": one.text} for one in found]

    check_sink(make, read_back, rows=60, deaths_max=4)
