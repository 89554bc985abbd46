"""Schemas by a real registry: what other clients write is read, and what is written other clients read."""

from __future__ import annotations

import json
import logging
import pickle
import struct
import threading
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka.schema_registry import Schema, SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroDeserializer, AvroSerializer
from confluent_kafka.schema_registry.protobuf import ProtobufSerializer
from confluent_kafka.serialization import MessageField, SerializationContext

from penstock import KafkaSink, KafkaSource, Pipeline, SchemaRegistry
from penstock.connectors.kafka import registry as registry_module
from penstock.connectors.kafka.protobuf.message_types import message_type
from penstock.errors import DataError, PipelineError, StorageError
from penstock.ids import Generation
from penstock.testing import CollectSink, run
from tests.kafka.kit import Topics, until
from tests.kafka.registry_server import Gate, RegistryServer

V1: dict[str, Any] = {
    "type": "record",
    "name": "Order",
    "fields": [{"name": "id", "type": "int"}, {"name": "old", "type": "string"}],
}
V2: dict[str, Any] = {
    "type": "record",
    "name": "Order",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "old", "type": "string", "default": ""},
        {"name": "note", "type": ["null", "string"], "default": None},
    ],
}
V3: dict[str, Any] = {"type": "record", "name": "Order", "fields": [{"name": "id", "type": "long"}, V2["fields"][2]]}
PROTO = """
syntax = "proto3"; package shop;
import "google/protobuf/timestamp.proto";
message Zebra { int32 stripes = 1; }
// The order, which is not the first message, nor the first by name.
message Order {
  enum Kind { NEW = 0; PAID = 1; }
  int64 id = 1;
  Kind kind = 2;
  optional string note = 3;
  repeated string tags = 4;
  map<string, int32> counts = 5;
  google.protobuf.Timestamp at = 6;
}
"""


def client_of(gate: Gate) -> SchemaRegistryClient:
    return SchemaRegistryClient({"url": gate.url})


def avro(gate: Gate, topic: str, schema: Any, *rows: dict[str, Any]) -> list[bytes]:
    """As Confluent's own serializer writes them; registers the schema."""
    write = AvroSerializer(client_of(gate), json.dumps(schema))
    return [write(row, SerializationContext(topic, MessageField.VALUE)) for row in rows]


def proto(gate: Gate, topic: str, message: Any, *rows: dict[str, Any]) -> list[bytes]:
    from google.protobuf.message_factory import GetMessageClass

    made = GetMessageClass(message.descriptor)
    write = ProtobufSerializer(made, client_of(gate), {"use.deprecated.format": False})
    return [write(made(**row), SerializationContext(topic, MessageField.VALUE)) for row in rows]


def rows_of(source: KafkaSource, **options: Any) -> list[dict[str, Any]]:
    output = CollectSink()
    pipeline = Pipeline("read")
    pipeline.source(source, name="kafka").sink(output, name="out")
    run(pipeline, **options)
    return list(output.rows())


def source_of(topics: Topics, gate: Gate, topic: str, format: Any = "avro", **more: Any) -> KafkaSource:
    return KafkaSource(topics.servers, topic, format=format, **{"registry": gate.url, "stop": "latest", **more})


# --- Avro ---


def test_messages_of_several_schemas_in_one_poll_become_columns_of_one(topics: Topics, gate: Gate) -> None:
    topic = topics.new()
    first = avro(gate, topic, V1, {"id": 1, "old": "x"}, {"id": 4, "old": "y"})
    second = avro(gate, topic, V2, {"id": 2, "old": "z", "note": "two"}, {"id": 5, "old": "", "note": None})
    third = avro(gate, topic, V3, {"id": 3, "note": "three"})
    topics.produce(topic, [first[0], second[0], third[0], None, first[1], second[1]])
    rows = rows_of(source_of(topics, gate, topic))
    assert rows == [
        {"id": 1, "note": None},
        {"id": 2, "note": "two"},
        {"id": 3, "note": "three"},
        {"id": None, "note": None},
        {"id": 4, "note": None},
        {"id": 5, "note": None},
    ]
    assert len([path for path in gate.asked if path.startswith("/schemas/ids/")]) == 3
    declared = rows_of(source_of(topics, gate, topic, schema=V2, metadata=["offset"]))
    assert [row["old"] for row in declared] == ["x", "z", "", None, "y", ""]
    assert [row["offset"] for row in declared] == list(range(6))


def test_a_restart_reads_the_columns_of_its_checkpoint_although_a_newer_schema_is_registered(
    topics: Topics, gate: Gate, caplog: pytest.LogCaptureFixture
) -> None:
    topic = topics.new()
    topics.produce(topic, avro(gate, topic, V1, {"id": 1, "old": "x"}))
    seen: list[int] = []
    output = CollectSink()

    def graph() -> Any:
        pipeline = Pipeline("restart")
        stream = pipeline.source(source_of(topics, gate, topic, stop=None), name="kafka")
        stream.map(lambda batch: (seen.extend(batch["id"].to_pylist()), batch)[1]).sink(output, name="out")
        return pipeline.graph()

    result = run(graph(), until=lambda: len(seen) >= 1)
    # A partition of which the checkpoint knows nothing has the same columns as the others.
    topics.grow(topic, 2)
    schema = {**V1, "fields": [*V1["fields"], V2["fields"][2]]}
    newer = avro(gate, topic, schema, {"id": 2, "old": "y", "note": "new"}, {"id": 3, "old": "z", "note": "new"})
    topics.produce(topic, newer[:1], 0)
    topics.produce(topic, newer[1:], 1)
    with caplog.at_level(logging.WARNING):
        run(graph(), store=result.store, parallelism=2, until=lambda: len(seen) >= 3)
    assert sorted(output.rows(), key=lambda row: row["id"]) == [
        {"id": 1, "old": "x"},
        {"id": 2, "old": "y"},
        {"id": 3, "old": "z"},
    ]
    assert "the checkpoint was read with schema" in caplog.text


def test_a_message_that_the_reader_cannot_take_is_named_with_its_schema_or_goes_by_on_error(
    topics: Topics, gate: Gate
) -> None:
    topic = topics.new()
    other = {"type": "record", "name": "Order", "fields": [{"name": "id", "type": "string"}]}
    good = avro(gate, topic, V1, {"id": 1, "old": "x"}, {"id": 2, "old": "y"})
    bad = avro(gate, f"other-{topic}", other, {"id": "text"})
    number = struct.unpack(">I", bad[0][1:5])[0]
    unknown = b"\0" + struct.pack(">I", 999_999) + b"\x02"
    topics.produce(topic, [good[0], bad[0], b"no frame", unknown, good[1], good[0][:-1]])
    reader = {"schema": V1}
    with pytest.raises(DataError) as failed:
        rows_of(source_of(topics, gate, topic, **reader))
    assert f"topic '{topic}', partition 0, offset 1 cannot be read: schema {number} cannot be read with" in str(
        failed.value
    )
    assert "field 'id' is written as string and read as int" in str(failed.value)

    output, letters = CollectSink(), CollectSink()
    pipeline = Pipeline("letters")
    stream = pipeline.source(source_of(topics, gate, topic, on_error="dead_letter", **reader), name="kafka")
    stream.dead_letters().sink(letters, name="letters")
    stream.sink(output, name="out")
    run(pipeline)
    assert [row["id"] for row in output.rows()] == [1, 2]
    found = {row["offset"]: row["reason"] for row in letters.rows()}
    assert sorted(found) == [1, 2, 3, 5]
    assert "written without a registry" in found[2]
    assert "schema 999999 is not in the registry" in found[3]
    assert "ends in the middle" in found[5]


def test_a_registry_that_is_down_or_slow_is_waited_for_beside_the_mailbox_and_nothing_is_lost(
    topics: Topics, gate: Gate, caplog: pytest.LogCaptureFixture
) -> None:
    topic = topics.new()
    topics.produce(topic, avro(gate, topic, V1, *({"id": number, "old": ""} for number in range(10))))
    source = source_of(topics, gate, topic, schema=V1)
    # Settled: from here on only the workers ask.
    copied = pickle.loads(pickle.dumps(source))
    gate.status, gate.slow_seconds, before = 503, 0.05, len(gate.asked)
    reader = copied.open(copied.splits()[0], None)
    with caplog.at_level(logging.WARNING):
        until(lambda: reader.read(100) is None and len(gate.asked) > before + 2, "the registry was asked again")
    assert "does not answer" in caplog.text and "none is lost" in caplog.text
    gate.status = 0
    found: list[Any] = []

    def has_all() -> bool:
        part = reader.read(100)
        if isinstance(part, pa.RecordBatch):
            found.extend(part["id"].to_pylist())
        return len(found) == 10

    until(has_all, "all records")
    assert found == list(range(10))
    reader.close()


def test_a_reader_that_is_closed_stops_asking(topics: Topics, gate: Gate) -> None:
    topic = topics.new()
    topics.produce(topic, avro(gate, topic, V1, {"id": 1, "old": ""}))
    source = source_of(topics, gate, topic, schema=V1)
    before = len(gate.asked)
    gate.status = 503
    reader = source.open(source.splits()[0], None)
    until(lambda: reader.read(100) is None and len(gate.asked) > before, "the registry was asked")
    threads = [each for each in threading.enumerate() if each.name == "penstock-kafka" and each.is_alive()]
    reader.close()
    until(lambda: not any(each.is_alive() for each in threads), "the thread has ended")


def test_a_wrong_address_no_permission_and_no_subject_are_said_at_the_start(
    topics: Topics, gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registry_module, "ANSWER_SECONDS", 0.5)
    topic = topics.new()
    avro(gate, topic, V1, {"id": 1, "old": ""})

    def refused(**more: Any) -> str:
        with pytest.raises((StorageError, PipelineError)) as failed:
            pickle.dumps(source_of(topics, gate, topic, **more))
        return str(failed.value)

    assert "did not answer within" in refused(registry="http://127.0.0.1:9")
    assert "Check registry=" in refused(registry="http://127.0.0.1:9")
    wrong = refused(registry=SchemaRegistry(gate.url, subject=f"{topic}-valu"))
    assert f"has no subject '{topic}-valu'; did you mean '{topic}-value'?" in wrong
    assert "the address may lack a path" in refused(registry=f"{gate.url}/wrong")
    gate.password = "reader:secret"
    assert "no permission (401" in refused()
    assert "secret" not in refused(registry=SchemaRegistry(gate.url, user="reader", password="secret?"))
    source = source_of(topics, gate, topic, registry=SchemaRegistry(gate.url, user="reader", password="secret"))
    pickle.dumps(source)
    with pytest.raises(PipelineError, match="more than one topic, so the registry needs a subject"):
        pickle.dumps(
            KafkaSource(
                topics.servers, pattern=f"{topic}.*", format="avro", registry=source.decode.by_registry.registry
            )
        )  # type: ignore[union-attr]


def test_permission_that_is_taken_away_ends_the_attempt_and_skips_nothing(topics: Topics, gate: Gate) -> None:
    topic = topics.new()
    topics.produce(topic, avro(gate, topic, V1, {"id": 1, "old": ""}))
    source = source_of(topics, gate, topic, schema=V1, on_error="skip")
    gate.status = 403
    with pytest.raises(StorageError, match="no permission"):
        rows_of(source)
    gate.status = 0
    assert [row["id"] for row in rows_of(source_of(topics, gate, topic, on_error="skip"))] == [1]


def test_a_schema_that_refers_to_another_is_read(topics: Topics, gate: Gate) -> None:
    topic = topics.new()
    address = {"type": "record", "name": "Address", "fields": [{"name": "city", "type": "string"}]}
    order = {"type": "record", "name": "Order", "fields": [{"name": "to", "type": "Address"}]}
    client = client_of(gate)
    from confluent_kafka.schema_registry import SchemaReference

    client.register_schema(f"{topic}-address", Schema(json.dumps(address), "AVRO"))
    reference = SchemaReference("Address", f"{topic}-address", 1)
    number = client.register_schema(f"{topic}-value", Schema(json.dumps(order), "AVRO", [reference]))
    topics.produce(topic, [b"\0" + struct.pack(">I", number) + b"\x08Rome"])
    assert rows_of(source_of(topics, gate, topic)) == [{"to": {"city": "Rome"}}]


# --- writing ---


def written(sink: KafkaSink, batch: pa.RecordBatch) -> None:
    writer = pickle.loads(pickle.dumps(sink)).writer(0, Generation(1))
    writer.write(batch)
    writer.prepare()()


def sink_of(topics: Topics, gate: Gate, topic: str, format: str = "avro", **more: Any) -> KafkaSink:
    return KafkaSink(topics.servers, topic, format=format, registry=gate.url, guarantee="at-least-once", **more)


def test_avro_that_is_written_is_registered_and_read_by_others(topics: Topics, gate: Gate) -> None:
    topic = topics.new()
    batch = pa.record_batch({"id": [1, 2], "old": ["a", "b"], "note": [None, "n"]})
    written(sink_of(topics, gate, topic, schema=V2), batch)
    read = AvroDeserializer(client_of(gate))
    context = SerializationContext(topic, MessageField.VALUE)
    assert [read(value, context) for value in topics.values(topic)] == batch.to_pylist()
    # Without a schema: the newest that is registered.
    written(sink_of(topics, gate, topic), batch.slice(1))
    assert [read(value, context) for value in topics.values(topic)][2:] == batch.slice(1).to_pylist()
    with pytest.raises(DataError, match="column 'more' is not in the Avro schema"):
        written(sink_of(topics, gate, topic), batch.append_column("more", pa.array([1, 2])))


def test_a_schema_that_the_subject_does_not_take_ends_the_start(
    topics: Topics, gate: Gate, registry: RegistryServer
) -> None:
    topic = topics.new()
    pickle.dumps(sink_of(topics, gate, topic, schema=V1))
    SchemaRegistryClient({"url": registry.url}).set_compatibility(f"{topic}-value", "BACKWARD")
    with pytest.raises(PipelineError, match=f"not compatible with the versions of subject '{topic}-value'"):
        pickle.dumps(sink_of(topics, gate, topic, schema={**V1, "fields": [{"name": "id", "type": "string"}]}))


def test_avro_goes_through_a_pipeline_exactly_once(topics: Topics, gate: Gate, tmp_path: Path) -> None:
    read, write = topics.new(partitions=2), topics.new()
    for partition in range(2):
        rows = ({"id": number, "old": "x"} for number in range(partition, 2000, 2))
        topics.produce(read, avro(gate, read, V1, *rows), partition)
    sink = KafkaSink(
        *(topics.servers, write),
        **{"format": "avro", "registry": gate.url, "schema": V2, "transactional_id": write, "staging": tmp_path},
    )
    pipeline = Pipeline("through")
    pipeline.source(source_of(topics, gate, read), name="in").sink(sink, name="out")
    run(pipeline, parallelism=2, crash_after_checkpoints=[1, 2])
    assert sorted(row["id"] for row in rows_of(source_of(topics, gate, write))) == list(range(2000))


# --- Protobuf ---


def test_protobuf_by_a_registry_is_read_and_written_with_all_its_types(topics: Topics, gate: Gate) -> None:
    topic, again = topics.new(), topics.new()
    order = message_type("test", "Order", PROTO)
    made = {"id": 7, "kind": 1, "note": "n", "tags": ["a", "b"], "counts": {"x": 1}}
    topics.produce(topic, proto(gate, topic, order, made, {"id": 8}))
    rows = rows_of(source_of(topics, gate, topic, "protobuf", message="Order"))
    assert rows == [
        {"id": 7, "kind": "PAID", "note": "n", "tags": ["a", "b"], "counts": [("x", 1)], "at": None},
        {"id": 8, "kind": "NEW", "note": None, "tags": [], "counts": [], "at": None},
    ]
    schema = order.schema
    sink = sink_of(topics, gate, again, "protobuf", schema=PROTO, message="shop.Order")
    written(sink, pa.RecordBatch.from_pylist(rows, schema=schema))
    assert rows_of(source_of(topics, gate, again, "protobuf", message="Order")) == rows
    # The same bytes as Confluent's serializer writes behind the id: place in the file and message.
    assert [value[5:] for value in topics.values(again)] == [value[5:] for value in topics.values(topic)]


def test_protobuf_evolves_by_numbers_and_a_changed_type_is_an_error_and_not_a_default(
    topics: Topics, gate: Gate
) -> None:
    topic = topics.new()

    def order(fields: str) -> Any:
        return message_type("test", "Order", f'syntax = "proto3"; message Order {{ {fields} }}')

    topics.produce(topic, proto(gate, f"a{topic}", order("int32 id = 1; string gone = 2;"), {"id": 1, "gone": "x"}))
    topics.produce(topic, proto(gate, f"b{topic}", order("int64 id = 1; double added = 3;"), {"id": 2, "added": 0.5}))
    topics.produce(topic, proto(gate, f"c{topic}", order("string id = 1;"), {"id": "three"}))
    reader = {"message": "Order", "schema": 'syntax = "proto3"; message Order { int64 id = 1; double added = 3; }'}
    with pytest.raises(DataError, match=r"offset 2 .*field 'id' \(number 1\) is written as string and read as int64"):
        rows_of(source_of(topics, gate, topic, "protobuf", **reader))
    rows = rows_of(source_of(topics, gate, topic, "protobuf", on_error="skip", **reader))
    assert rows == [{"id": 1, "added": 0.0}, {"id": 2, "added": 0.5}]


def test_protobuf_without_a_registry_is_a_class_a_descriptor_set_or_text(topics: Topics) -> None:
    from google.protobuf.descriptor_pb2 import FileDescriptorProto, FileDescriptorSet
    from google.protobuf.message_factory import GetMessageClass

    topic, again = topics.new(), topics.new()
    order = message_type("test", "shop.Order", PROTO)
    made = GetMessageClass(order.descriptor)
    topics.produce(topic, [made(id=1, tags=["t"]).SerializeToString(), None, made(id=2).SerializeToString()])
    whole = FileDescriptorSet(file=[FileDescriptorProto.FromString(each) for each in order.files]).SerializeToString()
    rows: list[Any] = []
    for how in ({"message": made}, {"message": "Order", "schema": whole}, {"message": "Order", "schema": PROTO}):
        source = KafkaSource(topics.servers, topic, format="protobuf", stop="latest", **how)
        rows = rows_of(pickle.loads(pickle.dumps(source)))
        assert [row["id"] for row in rows] == [1, None, 2]
        assert [row["tags"] for row in rows] == [["t"], None, []]
    sink = KafkaSink(topics.servers, again, format="protobuf", message=made, guarantee="at-least-once")
    written(sink, pa.RecordBatch.from_pylist([rows[0], rows[2]], schema=order.schema))
    assert topics.values(again) == [value for value in topics.values(topic) if value]
    with pytest.raises(DataError, match="id: 1 values are null, and the field is not optional"):
        written(sink, pa.RecordBatch.from_pylist(rows, schema=order.schema))
    wrong = pa.RecordBatch.from_pylist([{**rows[0], "kind": "LOST"}], schema=order.schema)
    with pytest.raises(DataError, match="kind: 'LOST' is not one of NEW, PAID"):
        written(sink, wrong)
    topics.produce(topic, [b"\x08"])
    with pytest.raises(DataError, match=r"offset 3 cannot be read: no message 'shop.Order': "):
        rows_of(KafkaSource(topics.servers, topic, format="protobuf", message=made, stop="latest"))
