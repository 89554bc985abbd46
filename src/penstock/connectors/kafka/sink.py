"""Kafka topics as a sink: exactly once by an outbox, or at least once without one.

Kafka's client cannot go on with a transaction that another process has prepared. So the output of a checkpoint is
staged in a file, which is its committable, and is published when the checkpoint is durable: by the driver, in one
transaction, together with a marker (`publisher.py`).
"""

from __future__ import annotations

import json
import os
import re
import secrets
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import pyarrow as pa

from penstock.connectors.files.filesystem import Place, address_of, place_of
from penstock.connectors.kafka.by_registry import ByRegistry
from penstock.connectors.kafka.client import (
    Complaints,
    kafka,
    require_choice,
    require_free,
    require_servers,
    require_topic,
    told,
)
from penstock.connectors.kafka.encoding import SCHEMA, Encoder, encoder_of
from penstock.connectors.kafka.formats import require_fitting
from penstock.connectors.kafka.protobuf.message_types import MessageType, message_type
from penstock.connectors.kafka.publisher import Publisher, produce, staged_name
from penstock.connectors.kafka.registry import SchemaRegistry, registry_of
from penstock.connectors.sink import Committer, Prepared, Sink, SinkWriter
from penstock.errors import PipelineError, StorageError
from penstock.ids import Generation

Guarantee = Literal["exactly-once", "at-least-once"]

MARKER_TOPIC = "penstock-commits-{transactional_id}"

_RESERVED = {
    "bootstrap.servers": "set servers=",
    "transactional.id": "set transactional_id=",
    "enable.idempotence": "both guarantees need it",
    "acks": "both guarantees need all replicas to answer",
}
_WAITING_MAX = 200_000
"""Messages that a client has in hand, at least once: beyond it the sink wants no input."""
_FLUSH_SECONDS = 5.0
_NAME = re.compile(r"[A-Za-z0-9._-]{1,200}")


class KafkaSink(Sink):
    """Writes to a topic, or to the one that a column of each row names.

    Example:

        KafkaSink("kafka:9092", "totals", key="customer", transactional_id="totals", staging="/data/outbox")
        at_once = KafkaSink("kafka:9092", "totals", guarantee="at-least-once")
        assert isinstance(at_once, Sink)

    `format`: `"json"` (the row as an object), `"avro"` (with `schema`), `"protobuf"` (`message` is a generated class,
    or a name in `schema`, which is a descriptor set or `.proto` text), `"raw"` (the columns `value` and, if there is
    one, `key`), or a function that gets the batch and returns one of as many rows with the columns `value` and, if
    wished, `key`. `registry`, a URL or a `SchemaRegistry`: the schema is registered when the pipeline starts, or is the
    newest of the subject if none is given, and each message begins with its id.

    `key` names the column that decides the partition, hashed as by Kafka's Java clients; text and binary as they are,
    other types as text. `topic_column` names the column with the topic; it is not part of the value.

    **Exactly once** for readers with `isolation.level=read_committed`: output appears with each checkpoint, in one
    transaction. It is staged in `staging` until then, a directory or URL that the driver and all workers reach.
    `transactional_id` names this sink among all that write to the cluster, and stays the same over restarts. Markers of
    transactions are in `marker_topic` (`penstock-commits-…`), which is created, compacted, if it is not there.

    **At least once** writes at once and needs neither: less latency, and after a failure some records come twice.

    The traps: two sinks that run at the same time under one `transactional_id` fence each other. A topic must exist.
    All output passes through the driver.
    """

    def __init__(
        self,
        servers: str | Sequence[str],
        topic: str | None = None,
        *,
        topic_column: str | None = None,
        key: str | None = None,
        format: Any = "json",
        schema: Any = None,
        message: Any = None,
        registry: str | SchemaRegistry | None = None,
        guarantee: Guarantee = "exactly-once",
        transactional_id: str | None = None,
        staging: str | os.PathLike[str] | None = None,
        marker_topic: str | None = None,
        options: Mapping[str, Any] | None = None,
    ) -> None:
        self.servers = require_servers("KafkaSink", servers)
        if (topic is None) == (topic_column is None):
            raise PipelineError("KafkaSink: name either the topic, or with topic_column= the column that has it")
        require_choice("KafkaSink", "guarantee", guarantee, "exactly-once", "at-least-once")
        self.topic, self.topic_column, self.key = topic, topic_column, key
        self.guarantee = guarantee
        self.format, self.schema = format, schema
        settings = registry_of("KafkaSink", registry)
        require_fitting("KafkaSink", format, message, settings)
        self.message: MessageType | None = None
        """Of Protobuf without a registry. A class would not travel: workers need not have it."""
        if format == "protobuf" and settings is None:
            self.message = message_type("KafkaSink", message, schema)
        self.by_registry = None if settings is None else ByRegistry("KafkaSink", format, settings, schema, message)
        self.options = dict(options or {})
        require_free("KafkaSink", self.options, _RESERVED)
        self.transactional_id = transactional_id or ""
        self.marker_topic = marker_topic or MARKER_TOPIC.format(transactional_id=transactional_id)
        self.staging = ""
        if guarantee == "exactly-once":
            self._require_outbox(transactional_id, staging)
        encoder_of(self)
        kafka()
        self._is_checked = False

    def __getstate__(self) -> dict[str, Any]:
        # In the driver, before anything starts: a client finds out later, and by timeouts.
        if not self._is_checked:
            require_topic(self.where, self.servers, self.asking(), self.topic)
            if self.by_registry is not None:
                self.by_registry.settle_writer(self.topic)
            self._is_checked = True
        return dict(vars(self))

    def asking(self) -> dict[str, Any]:
        """Settings of a client that asks. One that only producers have would be a warning each time."""
        shared = {name: value for name, value in self.options.items() if name.startswith(("security", "sasl", "ssl"))}
        return {"log_level": 2, **shared, "bootstrap.servers": self.servers}

    def _require_outbox(self, transactional_id: str | None, staging: str | os.PathLike[str] | None) -> None:
        if transactional_id is None or staging is None:
            raise PipelineError(
                "KafkaSink: exactly-once needs transactional_id=, a name that no other sink uses, "
                "and staging=, a directory or URL that the driver and all workers reach, such as one "
                'beside the checkpoints; or set guarantee="at-least-once"'
            )
        if not _NAME.fullmatch(transactional_id):
            raise PipelineError(f"KafkaSink: transactional_id is {transactional_id!r}: letters, digits, '.', '_', '-'")
        text = os.fspath(staging)
        if "://" not in text:
            # A relative path would be another directory in another process.
            text = os.path.abspath(os.path.expanduser(text))
        self.staging = f"{text.rstrip('/')}/{transactional_id}"
        place_of(self.staging)

    def identity(self) -> Mapping[str, str]:
        where = {"topic": self.topic} if self.topic is not None else {"topic column": str(self.topic_column)}
        outbox = {"transactional_id": self.transactional_id, "staging": address_of(self.staging)}
        return {**super().identity(), **where, **(outbox if self.guarantee == "exactly-once" else {})}

    @property
    def where(self) -> str:
        return f"KafkaSink to {self.topic or f'the topics of column {self.topic_column!r}'}"

    def settings(self) -> dict[str, Any]:
        """Those of the client."""
        return {
            "linger.ms": 5,
            # As Kafka's Java clients do, so that a key has one partition whoever writes it.
            "partitioner": "murmur2_random",
            "queue.buffering.max.messages": 1_000_000,
            "log_level": 2,
            **self.options,
            "bootstrap.servers": self.servers,
            "enable.idempotence": True,
            "acks": "all",
        }

    def writer(self, subtask: int, generation: Generation) -> SinkWriter:
        if self.guarantee == "at-least-once":
            return DirectWriter(self)
        return OutboxWriter(self, subtask, generation)

    def committer(self) -> Committer | None:
        return Publisher(self) if self.guarantee == "exactly-once" else None


class OutboxWriter(SinkWriter):
    """Stages the messages of one subtask, encoded, in one file for each checkpoint."""

    def __init__(self, sink: KafkaSink, subtask: int, generation: Generation) -> None:
        self._sink = sink
        self._encoder: Encoder = encoder_of(sink)
        self._place: Place = place_of(sink.staging)
        self._prefix = generation, subtask, secrets.token_hex(8)
        self._count = 0
        self._part: _Part | None = None

    def write(self, batch: pa.RecordBatch) -> None:
        if not batch.num_rows:
            return
        if self._part is None:
            self._count += 1
            self._part = _Part(self._place, staged_name(*self._prefix, self._count), self._sink.where)
        self._part.write(self._encoder(batch))

    def prepare(self) -> Prepared:
        part, self._part = self._part, None
        return list if part is None else part.finish

    def close(self) -> None:
        part, self._part = self._part, None
        if part is not None:
            part.discard()


class _Part:
    """One staged file in the making."""

    def __init__(self, place: Place, name: str, where: str) -> None:
        self._place = place
        self._name = name
        self._where = where
        self._file = place.create(name)
        self._stream = pa.ipc.new_stream(self._file, SCHEMA, options=pa.ipc.IpcWriteOptions(compression="lz4"))
        self._rows = 0
        self._error: Exception | None = None

    def write(self, batch: pa.RecordBatch) -> None:
        self._stream.write_batch(batch)
        self._rows += batch.num_rows

    def finish(self) -> Sequence[bytes]:
        """Make it durable, in the background."""
        if self._error is not None:
            # Half a file was closed: closing it again would pass it off as a whole one.
            raise self._error
        try:
            self._stream.close()
            self._place.close_durably(self._file)
            size = self._place.size(self._name)
        except Exception as error:
            self._error = StorageError(f"{self._where}: {self._name} cannot be staged: {error}")
            raise self._error from error
        return [json.dumps({"staged": self._name, "rows": self._rows, "bytes": size}).encode()]

    def discard(self) -> None:
        self._stream.close()
        self._file.close()
        self._place.remove(self._name)


class DirectWriter(SinkWriter):
    """Writes at once; a checkpoint waits until the broker has all that was written before it."""

    def __init__(self, sink: KafkaSink) -> None:
        self._sink = sink
        self._encoder: Encoder = encoder_of(sink)
        self._failed: str | None = None
        self._is_flushing = False
        settings = {**sink.settings(), "delivery.report.only.error": True, "error_cb": Complaints(sink.where)}
        try:
            self._producer = kafka().Producer({**settings, "on_delivery": self._on_delivery})
        except (kafka().KafkaException, ValueError, TypeError) as error:
            raise PipelineError(f"{sink.where}: the client rejects its options: {error}") from error

    def _on_delivery(self, error: Any, message: Any) -> None:
        if error is not None and self._failed is None:
            self._failed = str(told(self._sink.where, self._sink.servers, error, message.topic()))

    def _check(self) -> None:
        if self._failed is not None:
            raise StorageError(
                f"{self._failed}. The message was not accepted; the pipeline goes back to its last checkpoint and "
                f"writes it again"
            )

    def write(self, batch: pa.RecordBatch) -> None:
        self._check()
        produce(self._producer, self._encoder(batch), self._sink.topic)

    @property
    def wants_input(self) -> bool:
        # A flush comes back when nothing is left: records that went on being written would keep it.
        return not self._is_flushing and len(self._producer) < _WAITING_MAX

    def prepare(self) -> Prepared:
        self._check()
        if not len(self._producer):
            return list
        return self._flush

    def _flush(self) -> Sequence[bytes]:
        self._is_flushing = True
        try:
            while self._producer.flush(_FLUSH_SECONDS):
                self._check()
        finally:
            self._is_flushing = False
        self._check()
        return []

    def close(self) -> None:
        self._producer.purge()
