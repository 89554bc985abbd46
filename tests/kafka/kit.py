"""Topics of the tests' broker: made, filled and read by clients that have nothing to do with Penstock."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from tests.kafka.broker import Broker

SCHEMA = "id bigint, user string, amount double"
_numbers = itertools.count()


def row(number: int) -> dict[str, Any]:
    return {"id": number, "user": f"user-{number % 7}", "amount": number / 4}


def encoded(numbers: Iterable[int]) -> list[bytes]:
    return [json.dumps(row(number)).encode() for number in numbers]


class Topics:
    """What a test does to the broker."""

    def __init__(self, broker: Broker) -> None:
        from confluent_kafka.admin import AdminClient

        self.broker = broker
        self.servers = broker.servers
        self._admin = AdminClient(broker.settings)

    def new(self, partitions: int = 1, name: str = "", **config: str) -> str:
        from confluent_kafka.admin import NewTopic

        name = name or self.unused()
        self._admin.create_topics([NewTopic(name, partitions, 1, config=config)])[name].result(30)
        until(lambda: self._partitions(name) == partitions, f"topic {name}")
        return name

    def unused(self) -> str:
        """A name that no topic has: numbers of processes come again, and many may share a broker."""
        return f"t{os.getpid()}-{time.time_ns():x}-{next(_numbers)}"

    def _partitions(self, name: str) -> int:
        found = self._admin.list_topics(timeout=10).topics
        return len(found[name].partitions) if name in found else 0

    @contextlib.contextmanager
    def denied(self, kind: str, name: str, operation: str) -> Iterator[None]:
        """Nobody may do that to the topic, group or transactional id, for a while."""
        from confluent_kafka import admin

        place = getattr(admin.ResourceType, kind), name, admin.ResourcePatternType.LITERAL, "User:ANONYMOUS", "*"
        rule = *place, getattr(admin.AclOperation, operation), admin.AclPermissionType.DENY
        for done in self._admin.create_acls([admin.AclBinding(*rule)]).values():
            done.result(30)
        wanted = admin.AclBindingFilter(*rule)
        # The broker has a rule, or has forgotten it, a moment after it says so.
        until(lambda: self._admin.describe_acls(wanted).result(30), "the rule")
        try:
            yield
        finally:
            for done in self._admin.delete_acls([wanted]).values():
                done.result(30)
            until(lambda: not self._admin.describe_acls(wanted).result(30), "the end of the rule")

    def grow(self, name: str, partitions: int) -> None:
        from confluent_kafka.admin import NewPartitions

        self._admin.create_partitions([NewPartitions(name, partitions)])[name].result(30)
        until(lambda: self._partitions(name) == partitions, f"partitions of {name}")

    def delete_records(self, name: str, before: int, partition: int = 0) -> None:
        from confluent_kafka import TopicPartition

        place = TopicPartition(name, partition, before)
        self._admin.delete_records([place])[place].result(30)

    def produce(self, name: str, values: Sequence[bytes | None], partition: int = 0, **more: Any) -> None:
        from confluent_kafka import Producer

        producer = Producer(self.broker.settings)
        for value in values:
            producer.produce(name, value=value, partition=partition, **more)
        assert producer.flush(30) == 0

    def in_transaction(self, name: str, values: Sequence[bytes], *, commit: bool) -> None:
        from confluent_kafka import Producer

        producer = Producer({**self.broker.settings, "transactional.id": f"test-{name}"})
        producer.init_transactions(30)
        producer.begin_transaction()
        for value in values:
            producer.produce(name, value=value, partition=0)
        producer.flush(30)
        producer.commit_transaction(30) if commit else producer.abort_transaction(30)

    def committed(self, group: str, name: str, partition: int = 0) -> int:
        from confluent_kafka import Consumer, TopicPartition

        consumer = Consumer({**self.broker.settings, "group.id": group})
        try:
            return int(consumer.committed([TopicPartition(name, partition)], timeout=30)[0].offset)
        finally:
            consumer.close()

    def messages(self, name: str) -> list[Any]:
        """All that an independent consumer sees which reads only what is committed, in the order of each partition."""
        from confluent_kafka import Consumer, KafkaError, TopicPartition

        settings = {"group.id": "judge", "isolation.level": "read_committed", "enable.partition.eof": True}
        consumer = Consumer({**self.broker.settings, **settings, "enable.auto.commit": False})
        partitions = range(self._partitions(name))
        consumer.assign([TopicPartition(name, number, 0) for number in partitions])
        found, ended = [], set()
        deadline = time.monotonic() + 60
        while len(ended) < len(partitions):
            assert time.monotonic() < deadline, f"{name} has no end within a minute"
            for message in consumer.consume(10_000, 0.2):
                if message.error() is None:
                    found.append(message)
                elif message.error().code() == KafkaError._PARTITION_EOF:
                    ended.add(message.partition())
        consumer.close()
        return found

    def values(self, name: str) -> list[bytes]:
        return [message.value() for message in self.messages(name)]


def until(condition: Callable[[], object], what: str, seconds: float = 60.0) -> None:
    """Wait for something that must happen."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"{what} did not happen within {seconds} s"
        time.sleep(0.02)
