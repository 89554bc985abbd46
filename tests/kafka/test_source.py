"""The source against a real broker: every record once, from the position that a checkpoint has."""

from __future__ import annotations

import datetime
import json
import pickle
import time
from typing import Any

import pyarrow as pa
import pytest

from penstock import Pipeline
from penstock.connectors.kafka import KafkaSource, fetcher
from penstock.connectors.source import END_OF_SPLIT, Portion
from penstock.errors import DataError, PenstockError, PipelineError, StorageError, UserCodeError
from penstock.testing import CollectSink, run
from tests.kafka.kit import SCHEMA, Topics, encoded, row, until


def ids_of(source: KafkaSource, **options: Any) -> tuple[list[int], Any]:
    output = CollectSink()
    pipeline = Pipeline("read")
    pipeline.source(source, name="kafka").sink(output, name="out")
    result = run(pipeline, **options)
    return sorted(each["id"] for each in output.rows()), result


def read_all(reader: Any, rows_max: int = 1000, seconds: float = 60.0) -> list[Any]:
    """What a bounded reader returns until its end."""
    found: list[Any] = []
    deadline = time.monotonic() + seconds
    while (part := reader.read(rows_max)) is not END_OF_SPLIT:
        assert time.monotonic() < deadline, "the split has no end"
        if part is None:
            time.sleep(0.005)
        else:
            found.append(part)
    return found


def test_every_record_of_every_partition_is_read_once_although_all_workers_are_killed(
    topics: Topics, monkeypatch: pytest.MonkeyPatch
) -> None:
    # So little room that every partition is paused and resumed many times.
    monkeypatch.setattr(fetcher, "_BUFFER_BYTES", 1)
    monkeypatch.setattr(fetcher, "_INBOX_BYTES_MIN", 2000)
    monkeypatch.setattr(fetcher, "MESSAGES_MAX", 100)
    name = topics.new(partitions=3)
    for partition in range(3):
        topics.produce(name, encoded(range(partition, 6000, 3)), partition)
    source = KafkaSource(topics.servers, name, schema=SCHEMA, stop="latest", group=f"group-{name}")
    found, result = ids_of(source, parallelism=2, crash_after_checkpoints=[2, 5])
    assert found == list(range(6000))
    assert result.restarts == 2
    until(lambda: topics.committed(f"group-{name}", name, 0) == 2000, "the group was told of the last position")


def test_partitions_and_topics_that_appear_are_read_from_their_first_record(topics: Topics) -> None:
    family = topics.unused()
    name = topics.new(name=f"{family}-a")
    topics.produce(name, encoded(range(10)))
    seen: list[int] = []

    def note(batch: pa.RecordBatch) -> pa.RecordBatch:
        seen.extend(batch["id"].to_pylist())
        return batch

    steps = iter(
        [
            lambda: topics.produce(name, encoded(range(10, 20))),
            lambda: (topics.grow(name, 2), topics.produce(name, encoded(range(20, 30)), 1)),
            lambda: topics.produce(topics.new(name=f"{family}-b"), encoded(range(30, 40))),
        ]
    )
    expected = [10]

    def go_on() -> bool:
        if len(seen) < expected[0] - 10:
            return False
        step = next(steps, None)
        if step is None:
            return len(seen) >= 30
        step()
        expected[0] += 10
        return False

    output = CollectSink()
    pipeline = Pipeline("appear")
    source = KafkaSource(topics.servers, pattern=f"{family}-.*", schema=SCHEMA, start="latest")
    pipeline.source(source, name="kafka").map(note).sink(output, name="out")
    run(pipeline, parallelism=2, until=go_on)
    assert sorted(each["id"] for each in output.rows()) == list(range(10, 40))


def test_a_partition_that_appeared_while_the_pipeline_was_down_is_read_from_its_first_record(topics: Topics) -> None:
    name = topics.new()
    source = KafkaSource(topics.servers, name, schema=SCHEMA, start="latest")
    seen: list[int] = []
    output = CollectSink()
    pipeline = Pipeline("down")
    pipeline.source(source, name="kafka").map(lambda batch: (seen.extend(batch["id"].to_pylist()), batch)[1]).sink(
        output
    )
    graph = pipeline.graph()
    topics.produce(name, encoded(range(5)))
    result = run(graph, until=lambda: len(seen) >= 5)
    topics.grow(name, 2)
    topics.produce(name, encoded(range(5, 10)), 1)
    # Another driver settles "latest" anew, behind these records.
    source._starts = None
    run(graph, store=result.store, until=lambda: len(seen) >= 10)
    assert sorted(each["id"] for each in output.rows()) == list(range(10))


def test_start_and_stop_are_offsets_times_or_words(topics: Topics) -> None:
    name = topics.new(partitions=2)
    first, day = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC), datetime.timedelta(days=1)
    times = [int((first + number * day).timestamp() * 1000) for number in range(10)]
    for number, at in enumerate(times):
        topics.produce(name, encoded([number]), 0, timestamp=at)
    topics.produce(name, encoded(range(10, 13)), 1, timestamp=times[3])

    def ids(**bounds: Any) -> list[int]:
        return ids_of(KafkaSource(topics.servers, name, schema=SCHEMA, **bounds))[0]

    assert ids(start={0: 7}, stop={0: 9, 1: 1}) == [7, 8, 10]
    assert ids(start="2026-01-07", stop="latest") == [6, 7, 8, 9]
    assert ids(start=first + 2 * day, stop=times[3]) == [2]
    assert ids(start="latest", stop="latest") == []


def test_what_transactions_have_not_committed_is_not_read_and_the_position_passes_over_their_marks(
    topics: Topics,
) -> None:
    name = topics.new()
    topics.in_transaction(name, encoded(range(5)), commit=True)
    topics.in_transaction(name, encoded(range(100, 105)), commit=False)
    topics.in_transaction(name, encoded(range(5, 8)), commit=True)
    source = KafkaSource(topics.servers, name, schema=SCHEMA, stop="latest")
    reader = source.open(source.splits()[0], None)
    assert [number for part in read_all(reader, 2) for number in part["id"].to_pylist()] == list(range(8))
    # 13 records and 3 marks.
    assert json.loads(reader.offset()) == {"next": 16}
    reader.close()


def test_a_position_lies_behind_each_part_that_was_returned(topics: Topics) -> None:
    name = topics.new()
    topics.produce(name, encoded(range(50)))
    source = KafkaSource(topics.servers, name, schema=SCHEMA, stop="latest")
    (split,) = source.splits()
    found: list[int] = []
    offset = None
    while len(found) < 50:
        reader = source.open(split, offset)
        until(lambda: (part := reader.read(7)) is not None and not found.extend(part["id"].to_pylist()), "a record")  # noqa: B023
        offset = reader.offset()
        reader.close()
    assert found == list(range(50))


def test_a_split_is_caught_up_only_when_its_end_was_seen(topics: Topics) -> None:
    name = topics.new()
    topics.produce(name, encoded(range(3)))
    source = KafkaSource(topics.servers, name, schema=SCHEMA)
    reader = source.open(source.splits()[0], None)
    assert not reader.is_caught_up
    until(lambda: reader.read(10) is not None, "the records")
    until(lambda: reader.read(10) is None and reader.is_caught_up, "the end")
    reader.close()


def test_columns_of_the_message_are_there_if_they_are_wished_for(topics: Topics) -> None:
    name = topics.new()
    topics.produce(name, encoded([1]), key=b"k", headers=[("h", b"v")], timestamp=1000)
    topics.produce(name, [None], key=b"gone", timestamp=2000)
    wished = {"timestamp": "at", "key": "key", "headers": "headers", "partition": "p", "offset": "o", "topic": "t"}
    source = KafkaSource(topics.servers, name, schema=SCHEMA, metadata=wished, stop="latest")
    reader = source.open(source.splits()[0], None)
    first, second = (each for part in read_all(reader) for each in part.to_pylist())
    at = datetime.datetime(1970, 1, 1, 0, 0, 1, tzinfo=datetime.UTC)
    headers = [{"key": "h", "value": b"v"}]
    assert first == {**row(1), "at": at, "key": b"k", "headers": headers, "p": 0, "o": 0, "t": name}
    assert (second["id"], second["key"], second["o"]) == (None, b"gone", 1)
    reader.close()


AVRO = {
    "type": "record",
    "name": "order",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "user", "type": ["null", "string"]},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
    ],
}


def test_avro_raw_and_functions_are_formats_too(topics: Topics) -> None:
    import io

    import fastavro

    name = topics.new()
    at = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)
    rows = [{"id": number, "user": None if number % 2 else "u", "at": at} for number in range(4)]
    for each in rows:
        data = io.BytesIO()
        fastavro.schemaless_writer(data, fastavro.parse_schema(AVRO), each)
        topics.produce(name, [data.getvalue()])

    def read(**options: Any) -> list[dict[str, Any]]:
        source = pickle.loads(pickle.dumps(KafkaSource(topics.servers, name, stop="latest", **options)))
        reader = source.open(source.splits()[0], None)
        found = [each for part in read_all(reader) for each in part.to_pylist()]
        reader.close()
        return found

    assert read(format="avro", schema=json.dumps(AVRO)) == rows
    assert [each["value"][:1] for each in read(format="raw")] == [b"\x00", b"\x02", b"\x04", b"\x06"]
    assert [each["offset"] for each in read(format=only_offsets)] == [0, 1, 2, 3]


def only_offsets(batch: pa.RecordBatch) -> pa.RecordBatch:
    return batch.select(["offset"])


def failing_at_five(batch: pa.RecordBatch) -> pa.RecordBatch:
    if 5 in batch["offset"].to_pylist():
        raise KeyError("five")
    return batch.select(["offset"])


def test_nothing_behind_a_function_that_fails_is_returned(topics: Topics, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetcher, "MESSAGES_MAX", 2)
    name = topics.new()
    topics.produce(name, encoded(range(30)))
    source = KafkaSource(topics.servers, name, format=failing_at_five, stop="latest")
    reader = source.open(source.splits()[0], None)
    until(lambda: reader.read(1) is not None, "the first record")
    # All that is there was polled before the failure is looked at.
    until(lambda: reader._inbox.failed is not None, "the failure")
    time.sleep(0.5)
    with pytest.raises(UserCodeError, match="'failing_at_five' raised KeyError"):
        read_all(reader)
    assert json.loads(reader.offset())["next"] <= 5
    reader.close()


def test_a_pattern_that_fits_no_topic_is_an_error_if_nothing_can_be_waited_for(topics: Topics) -> None:
    assert KafkaSource(topics.servers, pattern="none-.*", schema=SCHEMA).splits() == []
    with pytest.raises(StorageError, match=r"no topic of .* has a name that fits: create one"):
        KafkaSource(topics.servers, pattern="none-.*", schema=SCHEMA, stop="latest").splits()


BAD = [b'{"id": 3', b'{"id": 4}{"id": 5}', b"", b'[{"id": 6}]', b'{"id": "seven"}', b'{"id": 8, "user": "\xff"}', b"9"]


def test_bad_messages_are_found_alone_and_named_with_topic_partition_and_offset(topics: Topics) -> None:
    name = topics.new()
    good = encoded(range(20))
    topics.produce(name, [*good[:10], *BAD, *good[10:], b' {"id": 20}\n'])
    source = KafkaSource(topics.servers, name, schema=SCHEMA, stop="latest", on_error="skip")
    found, result = ids_of(source)
    assert found == list(range(21))
    assert result.rows_skipped == len(BAD)
    source = KafkaSource(topics.servers, name, schema=SCHEMA, stop="latest", on_error="dead_letter")
    reader = source.open(source.splits()[0], None)
    parts = read_all(reader, 3)
    letters = [each for part in parts if isinstance(part, Portion) for each in part.side["dead_letters"].to_pylist()]
    assert [(each["path"], each["offset"]) for each in letters] == [(f"{name}/0", n) for n in range(10, 17)]
    assert letters[0]["raw"] == BAD[0].decode()
    reader.close()
    source = KafkaSource(topics.servers, name, schema=SCHEMA, stop="latest")
    with pytest.raises(DataError, match=f"topic '{name}', partition 0, offset 10 cannot be read: .*on_error=\"skip\""):
        ids_of(source, restarts=0)


def test_deleted_offsets_are_an_error_or_counted(topics: Topics) -> None:
    name = topics.new()
    topics.produce(name, encoded(range(10)))
    topics.delete_records(name, 6)
    position = json.dumps({"next": 2}).encode()

    def opened(**options: Any) -> Any:
        source = KafkaSource(topics.servers, name, schema=SCHEMA, stop="latest", **options)
        return source.open(source.splits()[0], position)

    reader = opened()
    with pytest.raises(
        DataError, match=r"has offsets 6 to 10 but the next one to read is 2.*on_lost_offsets=\"earliest\""
    ):
        read_all(reader)
    reader.close()
    reader = opened(on_lost_offsets="earliest")
    lost, *parts = read_all(reader)
    assert lost.rows_skipped == 4
    assert [number for part in parts for number in part["id"].to_pylist()] == [6, 7, 8, 9]
    reader.close()


def test_a_wrong_host_and_a_missing_topic_are_told_with_the_cure(
    topics: Topics, monkeypatch: pytest.MonkeyPatch
) -> None:
    from penstock.connectors.kafka import client

    wrong = topics.unused()
    name = topics.new(name=f"{wrong}s")
    with pytest.raises(StorageError, match=rf"topic '{wrong}' does not exist.*create it.*did you mean '{name}'"):
        KafkaSource(topics.servers, wrong, schema=SCHEMA).splits()
    monkeypatch.setattr(client, "ANSWER_SECONDS", 2.0)
    pipeline = Pipeline("nowhere")
    pipeline.source(KafkaSource("127.0.0.1:1", name, schema=SCHEMA)).sink(CollectSink())
    with pytest.raises(PenstockError, match=r"no broker of '127.0.0.1:1' answered.*Connection refused.*Check servers="):
        pipeline.graph()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({}, "needs schema="),
        ({"format": "xml"}, "must be 'json', 'avro', 'protobuf', 'raw'"),
        ({"schema": SCHEMA, "start": "first"}, "start is 'first'"),
        ({"schema": SCHEMA, "start": {0: -1}}, "offset -1"),
        ({"schema": SCHEMA, "metadata": ["id"]}, "must be one of topic, partition"),
        ({"schema": "key string", "metadata": ["key"]}, "two columns 'key'.*'kafka_key'"),
        ({"schema": SCHEMA, "options": {"group.id": "g"}}, "set group="),
        ({"schema": SCHEMA, "on_error": "drop"}, "'fail' or 'skip' or 'dead_letter'"),
        ({"schema": SCHEMA, "pattern": "x"}, "either topics, or a pattern"),
    ],
)
def test_wrong_arguments_are_refused_where_they_are_written(options: dict[str, Any], said: str) -> None:
    pytest.importorskip("confluent_kafka")
    with pytest.raises(PipelineError, match=said):
        KafkaSource("kafka:9092", "orders", **options)
