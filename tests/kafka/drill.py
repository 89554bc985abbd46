"""A pipeline from Kafka to Kafka that kills itself: `python -m tests.kafka.drill SERVERS FROM TO ROOT`.

Each line of the standard input is one of `MOMENTS`, or "never": the pipeline runs until then, in a process that is
forked off, and its exit code is the line of output. Driver and workers are one process here, so that SIGKILL takes all.
"""

from __future__ import annotations

import os
import signal
import sys
import time
import traceback
from collections.abc import Callable
from typing import Any

import pyarrow as pa

from penstock import Pipeline
from penstock.connectors.kafka import KafkaSink, KafkaSource, fetcher, publisher, sink
from penstock.storage import paths
from penstock.storage.local import LocalStore
from penstock.testing import run
from tests.kafka.kit import SCHEMA

MOMENTS = (
    "output staged",
    "manifest written",
    "others fenced",
    "messages sent",
    "transaction committed",
    "files removed",
)
"""In the order in which a checkpoint comes past them."""


def die(*_: Any) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def after(owner: Any, name: str, act: Callable[..., None]) -> None:
    """Let `act` run whenever the method has returned, with its arguments."""
    method = getattr(owner, name)

    def wrapped(*arguments: Any, **named: Any) -> Any:
        result = method(*arguments, **named)
        act(*arguments)
        return result

    setattr(owner, name, wrapped)


def on_second(act: Callable[..., None]) -> Callable[..., None]:
    """The first checkpoint is left alone: a transaction of the same client is to be in front of the one that dies."""
    calls = []

    def counted(*arguments: Any) -> None:
        calls.append(1)
        if len(calls) >= 2:
            act(*arguments)

    return counted


def arm(moment: str) -> None:
    match moment:
        case "output staged":
            after(sink._Part, "finish", on_second(die))
        case "manifest written":
            after(LocalStore, "create", on_second_manifest())
        case "others fenced":
            after(publisher.Publisher, "_begin", on_second(die))
        case "messages sent":
            # Some of the messages are at the broker, within a transaction that nobody ends.
            after(publisher, "produce", on_second(lambda producer, *_: (producer.flush(30), die())))
        case "transaction committed":
            after(publisher.Publisher, "_publish", on_second(die))
        case "files removed":
            after(publisher.Publisher, "commit", on_second(die))


def on_second_manifest() -> Callable[..., None]:
    act = on_second(die)

    def look(store: Any, path: str, *_: Any) -> None:
        if paths.kind_of(path) is paths.PathKind.MANIFEST:
            act()

    return look


def slowly(batch: pa.RecordBatch) -> pa.RecordBatch:
    """So that a few hundred records last for several checkpoints."""
    time.sleep(0.01)
    return batch


def pipeline(servers: str, read: str, write: str, root: str) -> Pipeline:
    made = Pipeline("drill")
    output = KafkaSink(servers, write, key="user", transactional_id=write, staging=f"{root}/outbox")
    source = KafkaSource(servers, read, schema=SCHEMA, stop="latest")
    made.source(source, name="in").map(slowly, name="slowly").sink(output, name="out")
    return made


def main(servers: str, read: str, write: str, root: str) -> None:
    for line in sys.stdin:
        # Forked before any client of Kafka has threads.
        child = os.fork()
        if child == 0:
            arm(line.strip())
            fetcher.MESSAGES_MAX = 20
            try:
                run(pipeline(servers, read, write, root), parallelism=2, store=f"{root}/checkpoints", timeout=120)
                os._exit(0)
            except BaseException:
                traceback.print_exc()
                os._exit(1)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
