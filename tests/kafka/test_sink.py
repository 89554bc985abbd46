"""The sink against a real broker: an independent reader of what is committed finds every record once."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from penstock import Pipeline
from penstock.connectors.kafka import KafkaSink, KafkaSource
from penstock.connectors.kafka.publisher import Publisher
from penstock.errors import DataError, PenstockError, PipelineError, StorageError
from penstock.ids import CheckpointId, Generation
from penstock.testing import run
from tests.kafka.drill import MOMENTS
from tests.kafka.kit import SCHEMA, Topics, encoded, row, until

ROOT = Path(__file__).parents[2]


def ids_in(topics: Topics, name: str) -> list[int]:
    return sorted(json.loads(value)["id"] for value in topics.values(name))


def test_a_pipeline_killed_at_every_step_of_a_commit_publishes_every_record_once(
    topics: Topics, tmp_path: Path
) -> None:
    read, write = topics.new(partitions=2), topics.new(partitions=2)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)])}
    command = [sys.executable, "-m", "tests.kafka.drill", topics.servers, read, write, str(tmp_path)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    count = 0
    with subprocess.Popen(command, **pipes, text=True, env=environment) as drill:  # type: ignore[call-overload]
        for moment in (*MOMENTS, "never"):
            for partition in range(2):
                topics.produce(read, encoded(range(count, count + 300)), partition)
                count += 300
            print(moment, file=drill.stdin, flush=True)
            code = drill.stdout.readline().strip()
            if code != ("0" if moment == "never" else "-9"):
                drill.stdin.close()
                pytest.fail(f"{moment}: {code}: {drill.stderr.read()[-2000:]}")
        drill.stdin.close()
    assert ids_in(topics, write) == list(range(count))
    # What was staged and never committed is removed by the first generation that has nothing left to commit.
    sink = KafkaSink(topics.servers, write, transactional_id=write, staging=tmp_path / "outbox")
    Publisher(sink).discard_uncommitted(Generation(100))
    assert list((tmp_path / "outbox" / write).iterdir()) == []


def test_a_broker_that_is_killed_and_comes_back_loses_and_repeats_nothing(
    mortal_topics: Topics, tmp_path: Path
) -> None:
    topics = mortal_topics
    read, write = topics.new(), topics.new()
    topics.produce(read, encoded(range(1000)))
    seen: list[int] = []

    def note(batch: pa.RecordBatch) -> pa.RecordBatch:
        seen.extend(batch["id"].to_pylist())
        return batch

    pipeline = Pipeline("broker")
    sink = KafkaSink(topics.servers, write, transactional_id=write, staging=tmp_path / "outbox")
    pipeline.source(KafkaSource(topics.servers, read, schema=SCHEMA), name="in").map(note).sink(sink, name="out")
    outcome: list[Any] = []

    def work() -> None:
        try:
            outcome.append(run(pipeline, store=tmp_path / "checkpoints", until=lambda: 1999 in seen, timeout=200))
        except BaseException as error:
            outcome.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    until(lambda: topics.values(write), "the first output")
    topics.broker.kill()
    topics.broker.start()
    topics.produce(read, encoded(range(1000, 2000)))
    thread.join(200)
    assert outcome and not isinstance(outcome[0], BaseException), outcome
    assert ids_in(topics, write) == list(range(2000))


def staged(sink: KafkaSink, numbers: Sequence[int], generation: int = 1) -> Sequence[bytes]:
    writer = sink.writer(0, Generation(generation))
    writer.write(pa.RecordBatch.from_pylist([row(number) for number in numbers]))
    return writer.prepare()()


def test_an_older_driver_that_comes_late_publishes_nothing(topics: Topics, tmp_path: Path) -> None:
    name = topics.new()
    sink = KafkaSink(topics.servers, name, transactional_id=name, staging=tmp_path)
    one, two, three = (staged(sink, [number]) for number in (1, 2, 3))
    older, newer = Publisher(sink), Publisher(sink)
    older.commit(CheckpointId(1), one)
    newer.commit(CheckpointId(1), one)
    newer.commit(CheckpointId(2), two)
    with pytest.raises(StorageError, match="another process has since used the transactional id"):
        older.commit(CheckpointId(3), three)
    # It tries again, as after any error, and has the id for itself now; but what it has was published.
    older.commit(CheckpointId(1), one)
    older.commit(CheckpointId(2), two)
    newer = Publisher(sink)
    newer.commit(CheckpointId(3), three)
    newer.commit(CheckpointId(3), three)
    assert ids_in(topics, name) == [1, 2, 3]


def test_files_that_are_gone_and_were_never_published_are_an_error(topics: Topics, tmp_path: Path) -> None:
    name = topics.new()
    sink = KafkaSink(topics.servers, name, transactional_id=name, staging=tmp_path)
    committables = staged(sink, [1])
    (file,) = (tmp_path / name).iterdir()
    file.unlink()
    with pytest.raises(StorageError, match=r"checkpoint 1 is to publish .*which was removed"):
        Publisher(sink).commit(CheckpointId(1), committables)


def test_a_pipeline_that_starts_anew_under_an_old_id_is_not_taken_for_a_repetition(
    topics: Topics, tmp_path: Path
) -> None:
    name = topics.new()
    sink = KafkaSink(topics.servers, name, transactional_id=name, staging=tmp_path)
    Publisher(sink).commit(CheckpointId(70), staged(sink, [1]))
    Publisher(sink).commit(CheckpointId(1), staged(sink, [2]))
    assert ids_in(topics, name) == [1, 2]


def test_a_marker_behind_an_open_transaction_of_another_sink_is_found(topics: Topics, tmp_path: Path) -> None:
    from confluent_kafka import Producer

    name, markers = topics.new(), topics.new()
    sink = KafkaSink(topics.servers, name, transactional_id=name, staging=tmp_path, marker_topic=markers)
    first = Publisher(sink)
    first.commit(CheckpointId(1), staged(sink, [1]))
    other = Producer({**topics.broker.settings, "transactional.id": f"other-{name}"})
    other.init_transactions(30)
    other.begin_transaction()
    other.produce(markers, b"{}", b"other", partition=0)
    other.flush(30)
    committables = staged(sink, [2])
    (file,) = (tmp_path / name).iterdir()
    content = file.read_bytes()
    first.commit(CheckpointId(2), committables)
    # As a crash between the transaction and the removal of the files leaves it.
    file.write_bytes(content)
    again = threading.Thread(target=lambda: Publisher(sink).commit(CheckpointId(2), committables))
    again.start()
    again.join(3.0)
    other.commit_transaction(30)
    again.join(60)
    assert ids_in(topics, name) == [1, 2]
    assert not file.exists()


def test_at_least_once_loses_nothing_and_a_checkpoint_waits_for_the_broker(topics: Topics) -> None:
    read, write = topics.new(), topics.new()
    topics.produce(read, encoded(range(2000)))
    pipeline = Pipeline("direct")
    sink = KafkaSink(topics.servers, write, guarantee="at-least-once")
    pipeline.source(KafkaSource(topics.servers, read, schema=SCHEMA, stop="latest"), name="in").sink(sink, name="out")
    result = run(pipeline, crash_after_checkpoints=1)
    assert result.restarts == 1
    assert set(ids_in(topics, write)) == set(range(2000))
    writer = sink.writer(0, Generation(1))
    writer.write(pa.RecordBatch.from_pylist([row(7)]))
    assert writer.prepare()() == []
    assert ids_in(topics, write).count(7) >= 2
    assert writer.prepare() is list
    writer.close()


def test_keys_topics_and_formats_of_the_output(topics: Topics, tmp_path: Path) -> None:
    import io

    import fastavro

    first, second = topics.new(partitions=3), topics.new()
    rows = [{"to": second if number == 2 else first, "n": number % 2, "v": number} for number in range(5)]
    batch = pa.RecordBatch.from_pylist(rows)

    def written(batch: pa.RecordBatch, **options: Any) -> None:
        writer = KafkaSink(topics.servers, guarantee="at-least-once", **options).writer(0, Generation(1))
        writer.write(batch)
        writer.prepare()()
        writer.close()

    written(batch, topic_column="to", key="n")
    (only,) = topics.messages(second)
    assert (only.key(), json.loads(only.value())) == (b"0", {"n": 0, "v": 2})
    others = topics.messages(first)
    assert sorted(json.loads(each.value())["v"] for each in others) == [0, 1, 3, 4]
    assert len({(each.key(), each.partition()) for each in others}) == 2

    avro = {"type": "record", "name": "r", "fields": [{"name": "v", "type": "long"}]}
    third = topics.new()
    written(batch.select(["v"]), topic=third, format="avro", schema=avro)
    read = [
        fastavro.schemaless_reader(io.BytesIO(value), fastavro.parse_schema(avro)) for value in topics.values(third)
    ]
    assert read == [{"v": number} for number in range(5)]

    fourth = topics.new()
    written(pa.record_batch({"key": ["a"], "value": [b"\0\1"]}), topic=fourth, format="raw")
    (only,) = topics.messages(fourth)
    assert (only.key(), only.value()) == (b"a", b"\0\1")
    with pytest.raises(DataError, match="column 'key_of' not found; the columns are to, n, v"):
        written(batch, topic=fourth, key="key_of")


def test_a_missing_topic_is_told_before_anything_starts(topics: Topics, tmp_path: Path) -> None:
    pipeline = Pipeline("missing")
    source = KafkaSource(topics.servers, topics.new(), schema=SCHEMA)
    sink = KafkaSink(topics.servers, "no-such-topic", transactional_id="x", staging=tmp_path)
    pipeline.source(source).sink(sink)
    with pytest.raises(PenstockError, match=r"KafkaSink to no-such-topic: topic 'no-such-topic' does not.*create it"):
        pipeline.graph()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"topic": "t"}, "needs transactional_id=.*staging=.*at-least-once"),
        ({}, "either the topic, or with topic_column="),
        ({"topic": "t", "guarantee": "once"}, "guarantee is 'once'"),
        ({"topic": "t", "transactional_id": "a/b", "staging": "/tmp"}, "letters, digits"),
        ({"topic": "t", "guarantee": "at-least-once", "format": "xml"}, "format is 'xml'"),
        ({"topic": "t", "guarantee": "at-least-once", "options": {"acks": 1}}, "may not set 'acks'"),
    ],
)
def test_wrong_arguments_of_a_sink_are_refused_where_they_are_written(options: dict[str, Any], said: str) -> None:
    pytest.importorskip("confluent_kafka")
    with pytest.raises(PipelineError, match=said):
        KafkaSink("kafka:9092", **options)
