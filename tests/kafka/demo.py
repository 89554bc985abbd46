"""The demonstration with Kafka: a broker, a producer, a pipeline on local Spark, kills, and an independent check.

`make demo-kafka` runs it. Orders come in from one topic, are added up by customer, and go out to another, exactly once.
Meanwhile one worker of the pipeline, and then the broker, is killed with SIGKILL.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from penstock import Pipeline
from penstock.connectors.kafka import KafkaSink, KafkaSource
from tests.kafka.broker import Broker, NoBroker
from tests.kafka.kit import Topics, until

CUSTOMERS = 50
_QUEUE_MAX = 50_000
SCHEMA = "id bigint, customer bigint, amount bigint"


def say(text: str) -> None:
    print(text, flush=True)


class Orders:
    """A producer in a thread: order number n is of customer n % 50, over n % 97."""

    def __init__(self, topics: Topics, name: str, rate: int) -> None:
        self.sent = 0
        self._topics = topics
        self._name = name
        self._rate = rate
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        from confluent_kafka import Producer

        producer = Producer({**self._topics.broker.settings, "enable.idempotence": True, "linger.ms": 5})
        while not self._is_over.wait(0.1):
            for number in range(self.sent, self.sent + self._rate // 10):
                order = {"id": number, "customer": number % CUSTOMERS, "amount": number % 97}
                # While the broker is gone the queue fills up: the rest of the orders waits.
                while len(producer) > _QUEUE_MAX and not self._is_over.is_set():
                    producer.poll(0.1)
                producer.produce(self._name, json.dumps(order).encode(), partition=number % 2)
            self.sent += self._rate // 10
            producer.poll(0)
        producer.flush(60)

    def stop(self) -> int:
        self._is_over.set()
        self._thread.join(90)
        return self.sent


def pipeline(topics: Topics, read: str, write: str, root: Path) -> Pipeline:
    made = Pipeline("orders")
    source = KafkaSource(topics.servers, read, schema=SCHEMA, group=f"lag-of-{read}")
    sink = KafkaSink(topics.servers, write, key="customer", transactional_id=write, staging=root / "outbox")
    (
        made.source(source, name="orders")
        .key_by("customer")
        .aggregate(orders="count", total=("sum", "amount"))
        .sink(sink, name="totals")
    )
    return made


def verdict(topics: Topics, write: str, sent: int) -> str:
    """What an independent reader of the committed output finds wrong; empty if nothing."""
    newest: dict[int, tuple[int, int]] = {}
    for value in topics.values(write):
        update = json.loads(value)
        before = newest.get(update["customer"], (0, 0))
        if update["orders"] <= before[0]:
            return (
                f"customer {update['customer']} has {update['orders']} orders after {before[0]}: an update came twice"
            )
        newest[update["customer"]] = update["orders"], update["total"]
    expected = {
        customer: (len(range(customer, sent, CUSTOMERS)), sum(n % 97 for n in range(customer, sent, CUSTOMERS)))
        for customer in range(CUSTOMERS)
    }
    wrong = [customer for customer in expected if newest.get(customer) != expected[customer]]
    return f"{len(wrong)} of {CUSTOMERS} customers have a wrong total" if wrong else ""


def play(topics: Topics, spark: Any, root: Path, *, seconds: float, rate: int, kill_broker: bool) -> int:
    """Run, kill, stop, and judge; 0 if all is right."""
    read, write = topics.new(partitions=2), topics.new(partitions=2)
    orders = Orders(topics, read, rate)
    job = pipeline(topics, read, write, root).start(
        spark, checkpoints=str(root / "checkpoints"), parallelism=2, checkpoint_interval=0.5
    )
    until(lambda: topics.values(write), "the first output", 120)
    say(f"Output appears: {len(topics.values(write)):,} updates.")
    time.sleep(seconds / 2)
    worker, process = next(iter(job.worker_processes.items()))
    say(f">>> kill -9 {process}, which is worker {worker}")
    os.kill(process, signal.SIGKILL)
    until(lambda: job.status.restarts >= 1, "the restart", 120)
    if kill_broker:
        say(">>> kill -9 of the broker, and a new one on its data")
        topics.broker.kill()
        topics.broker.start()
    time.sleep(seconds / 2)
    sent = orders.stop()
    say(f"The producer has sent {sent:,} orders. Waiting until all of them are in the output.")
    until(lambda: topics.committed(f"lag-of-{read}", read, 0) >= sent // 2, "the end of the input", 180)
    until(lambda: topics.committed(f"lag-of-{read}", read, 1) >= sent // 2, "the end of the input", 180)
    # With a savepoint: the last checkpoint may be complete, and not published yet.
    job.stop(drain=True, timeout=120)
    problem = verdict(topics, write, sent)
    say(problem or f"{len(topics.values(write)):,} updates, {job.status.restarts} restarts: everything exactly once.")
    return 1 if problem else 0


@contextmanager
def session() -> Iterator[Any]:
    from tests.spark.conftest import make_session

    spark = make_session("local[2]", log_level="OFF")
    try:
        yield spark
    finally:
        spark.stop()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=20.0, help="how long the pipeline runs")
    parser.add_argument("--rate", type=int, default=20_000, help="orders per second")
    arguments = parser.parse_args()
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    with tempfile.TemporaryDirectory(prefix="penstock-demo-kafka-") as directory:
        root = Path(directory)
        broker = Broker(root / "kafka")
        say("Starting Kafka and Spark.")
        try:
            broker.start()
        except NoBroker as reason:
            raise SystemExit(f"Kafka cannot be started: {reason}") from reason
        try:
            with session() as spark:
                options = {"seconds": arguments.seconds, "rate": arguments.rate, "kill_broker": True}
                return play(Topics(broker), spark, root, **options)
        finally:
            broker.stop()


if __name__ == "__main__":
    sys.exit(main())
