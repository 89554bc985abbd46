"""The topic that all contenders read, and the judge of the topic that they write."""

from __future__ import annotations

import contextlib
import json
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from benchmarks.work import WrongAnswer
from penstock.connectors.kafka.avro.messages import avro_encoder
from penstock.connectors.kafka.avro.schemas import avro_schema
from tests.kafka.broker import Broker, NoBroker
from tests.kafka.kit import Topics

KEYS = 10_000
PARTITIONS = 2
READ, WRITE = "input", "output"
AVRO = {
    "type": "record",
    "name": "Event",
    "fields": [{"name": name, "type": kind} for name, kind in (("k", "long"), ("v", "long"), ("pad", "string"))],
}
_CHUNK_ROWS = 50_000
_BYTES = {"json": 100, "avro": 100}
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


def events(start: int, count: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Keys and values of rows by their numbers."""
    mixed = np.arange(start, start + count, dtype=np.uint64) * _GOLDEN
    key = ((mixed >> np.uint64(40)) % np.uint64(KEYS)).view(np.int64)
    return key, (mixed & np.uint64(1023)).view(np.int64)


def expected(rows: int) -> dict[int, int]:
    totals = np.zeros(KEYS, np.int64)
    for start in range(0, rows, _CHUNK_ROWS):
        key, value = events(start, min(_CHUNK_ROWS, rows - start))
        np.add.at(totals, key, value)
    keys = np.unique(np.concatenate([events(s, min(_CHUNK_ROWS, rows - s))[0] for s in range(0, rows, _CHUNK_ROWS)]))
    return {int(key): int(totals[key]) for key in keys}


def messages(format: str, start: int, count: int) -> list[bytes]:
    """Messages of about a hundred bytes."""
    key, value = events(start, count)
    if format == "json":
        rows = [b'{"k":%d,"v":%d,"pad":"' % pair for pair in zip(key.tolist(), value.tolist(), strict=True)]
        return [row + b"x" * (_BYTES["json"] - len(row) - 2) + b'"}' for row in rows]
    pad = pa.array(["x" * (_BYTES["avro"] - 6)] * count)
    encode = avro_encoder("benchmark", avro_schema("benchmark", AVRO), None)
    found: list[bytes] = encode(pa.record_batch([pa.array(key), pa.array(value), pad], ["k", "v", "pad"])).to_pylist()
    return found


@contextlib.contextmanager
def filled(format: str, rows: int) -> Iterator[Topics]:
    """A broker whose topic `READ` has the rows, and whose topic `WRITE` is empty. Raises `SystemExit` 3 without one."""
    from confluent_kafka import Producer

    with tempfile.TemporaryDirectory(prefix="penstock-kafka-") as directory:
        broker = Broker(Path(directory))
        try:
            broker.start()
        except NoBroker as reason:
            print(reason)
            raise SystemExit(3) from reason
        try:
            topics = Topics(broker)
            for name in (READ, WRITE):
                topics.new(PARTITIONS, name)
            settings = {"linger.ms": 20, "queue.buffering.max.messages": 1_000_000, "delivery.report.only.error": True}
            producer = Producer({**broker.settings, **settings})
            for number, start in enumerate(range(0, rows, _CHUNK_ROWS)):
                for value in messages(format, start, min(_CHUNK_ROWS, rows - start)):
                    producer.produce(READ, value, partition=number % PARTITIONS)
                producer.poll(0)
                producer.flush(120)
            yield topics
        finally:
            broker.stop()


def judge(topics: Topics, rows: int) -> None:
    """The last committed total of each key is the sum of its values. Raises `WrongAnswer`."""
    newest: dict[int, int] = {}
    for value in topics.values(WRITE):
        update = json.loads(value)
        newest[update["k"]] = update["total"]
    wanted = expected(rows)
    if newest != wanted:
        wrong = next((key for key in wanted if newest.get(key) != wanted[key]), None)
        raise WrongAnswer(f"{len(newest)} keys instead of {len(wanted)}; key {wrong}: {newest.get(wrong or 0)}")
