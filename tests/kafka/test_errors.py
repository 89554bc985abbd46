"""Errors that users meet first, provoked on the broker: each names the place, the reason and the cure."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from penstock import KafkaSink, KafkaSource, Pipeline
from penstock.connectors.kafka import client, publisher
from penstock.errors import PenstockError
from penstock.ids import CheckpointId, Generation
from penstock.testing import CollectSink, run
from tests.kafka.kit import SCHEMA, Topics, encoded, row


def failure_of_read(reading: KafkaSource) -> str:
    pipeline = Pipeline("read")
    pipeline.source(reading, name="kafka").sink(CollectSink(), name="out")
    with pytest.raises(PenstockError) as failed:
        run(pipeline, timeout=100)
    return str(failed.value)


def failure_of_publication(sink: KafkaSink) -> str:
    with pytest.raises(PenstockError) as failed:
        copied = pickle.loads(pickle.dumps(sink))
        writer = copied.writer(0, Generation(1))
        writer.write(pa.RecordBatch.from_pylist([row(1)]))
        copied.committer().commit(CheckpointId(1), writer.prepare()())
    return str(failed.value)


def test_a_wrong_host_is_said_with_the_reason(topics: Topics, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (client, publisher):
        monkeypatch.setattr(module, "ANSWER_SECONDS", 2.0)
    for servers, reason in (("127.0.0.1:9", "Connection refused"), ("no-such-host.invalid:9092", "resolve")):
        told = failure_of_read(KafkaSource(servers, "orders", schema=SCHEMA, stop="latest"))
        assert f"no broker of '{servers}' answered" in told and reason in told and "Check servers=" in told
        told = failure_of_publication(KafkaSink(servers, "out", transactional_id="t", staging=tmp_path))
        assert f"no broker of '{servers}' answered" in told and "Check servers=" in told


def test_a_missing_topic_is_said_with_the_one_that_was_meant(topics: Topics, tmp_path: Path) -> None:
    wrong = topics.unused()
    name = topics.new(name=f"{wrong}s")
    told = failure_of_read(KafkaSource(topics.servers, wrong, schema=SCHEMA, stop="latest"))
    assert f"topic '{wrong}' does not exist on {topics.servers}: create it" in told
    assert f"did you mean '{name}'?" in told
    told = failure_of_publication(KafkaSink(topics.servers, wrong, transactional_id="t", staging=tmp_path))
    assert f"did you mean '{name}'?" in told


@pytest.mark.parametrize("operation", ["READ", "ALL"])
def test_no_permission_to_read_is_said_with_the_permission(topics: Topics, operation: str) -> None:
    name = topics.new()
    topics.produce(name, encoded(range(3)))
    with topics.denied("TOPIC", name, operation):
        told = failure_of_read(KafkaSource(topics.servers, name, schema=SCHEMA, stop={0: 3}))
    assert f"no permission for topic '{name}' on {topics.servers}" in told
    assert "grant this user Read and Describe for a source" in told


def test_no_permission_to_write_is_said_with_the_permission(topics: Topics, tmp_path: Path) -> None:
    name = topics.new()
    sink = KafkaSink(topics.servers, name, transactional_id=name, staging=tmp_path)
    with topics.denied("TOPIC", name, "WRITE"):
        told = failure_of_publication(sink)
        assert f"no permission for topic '{name}' on {topics.servers}" in told and "Write and Describe" in told
    with topics.denied("TRANSACTIONAL_ID", name, "ALL"):
        told = failure_of_publication(sink)
        assert f"no permission for the transactional id '{name}'" in told and "Write and Describe" in told
    with topics.denied("TOPIC", sink.marker_topic, "ALL"):
        told = failure_of_publication(sink)
        assert f"topic '{sink.marker_topic}'" in told and "grant this user" in told
    once = KafkaSink(topics.servers, name, guarantee="at-least-once")
    copied = pickle.loads(pickle.dumps(once)).writer(0, Generation(1))
    with topics.denied("TOPIC", name, "WRITE"), pytest.raises(PenstockError, match="no permission for topic"):
        copied.write(pa.RecordBatch.from_pylist([row(1)]))
        copied.prepare()()


def test_a_wrong_schema_is_said_with_message_and_column(topics: Topics) -> None:
    name = topics.new()
    topics.produce(name, [b'{"id": 1}', b'{"id": "one"}'])
    told = failure_of_read(KafkaSource(topics.servers, name, schema=SCHEMA, stop="latest"))
    assert f"topic '{name}', partition 0, offset 1 cannot be read" in told and "id" in told
    assert 'on_error="skip"' in told


def test_deleted_offsets_are_said_with_what_is_left(topics: Topics) -> None:
    name = topics.new()
    topics.produce(name, encoded(range(10)))
    topics.delete_records(name, 6)
    told = failure_of_read(KafkaSource(topics.servers, name, schema=SCHEMA, start={0: 2}, stop={0: 10}))
    assert f"topic '{name}', partition 0 has offsets 6 to 10 but the next one to read is 2" in told
    assert 'on_lost_offsets="earliest"' in told


def test_settings_that_the_client_does_not_take_are_said(topics: Topics, tmp_path: Path) -> None:
    wrong: dict[str, Any] = {"no.such.setting": 1}
    told = failure_of_read(KafkaSource(topics.servers, "orders", schema=SCHEMA, stop="latest", options=wrong))
    assert "the client rejects its options" in told and "no.such.setting" in told
