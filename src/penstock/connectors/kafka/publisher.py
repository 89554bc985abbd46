"""Publishing the output of a checkpoint in one transaction with a marker, so that a repetition finds the marker (I4).

The order is the proof. `init_transactions` comes first: it ends what another process has begun under the same id, and
fences that process, which cannot commit any more. Then the marker is read, and nobody but this process can change it.
If the marker names these committables, they were published: their files are removed. Else the files are opened, and
their messages and the marker are committed together. The files are removed after that, and before the next checkpoint
is published. So of all checkpoints that were published, only the newest can still have files, and the marker names
that one: an older driver that comes late finds no files, and publishes nothing (I6).

The marker is compared by the names of the files, which are unique, and not by the number of the checkpoint: a pipeline
that starts anew in another directory counts from one again, and is not to be mistaken for a repetition.
"""

from __future__ import annotations

import hashlib
import importlib
import json
import logging
import re
import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from penstock.connectors.files.filesystem import place_of
from penstock.connectors.kafka.client import ANSWER_SECONDS, GROUP, Complaints, kafka, told, unreachable
from penstock.connectors.sink import Committer
from penstock.errors import PenstockError, StorageError
from penstock.ids import CheckpointId, Generation

if TYPE_CHECKING:
    from penstock.connectors.kafka.sink import KafkaSink

_STAGED = re.compile(r"g(\d+)-\d+-[0-9a-f]+-\d+\.arrow")
_INIT_SECONDS = 30.0
_COMMIT_SECONDS = 60.0
_TRANSACTION_MS = 300_000
"""The broker ends a transaction that takes longer. Readers wait no longer than this for a driver that never returns."""
_POLL_EVERY = 10_000

_log = logging.getLogger("penstock")


def staged_name(generation: int, subtask: int, token: str, count: int) -> str:
    return f"g{generation}-{subtask}-{token}-{count}.arrow"


def produce(producer: Any, messages: pa.RecordBatch, topic: str | None) -> None:
    """Hand messages over to the client; waits where it has no room."""
    keys, values = messages.column("key").to_pylist(), messages.column("value").to_pylist()
    topics = [topic] * len(values) if topic is not None else messages.column("topic").to_pylist()
    send = producer.produce
    for number, (key, value, to) in enumerate(zip(keys, values, topics, strict=True)):
        while True:
            try:
                send(to, value, key)
                break
            except BufferError:
                producer.poll(0.1)
        if number % _POLL_EVERY == 0:
            producer.poll(0)
    producer.poll(0)


class Publisher(Committer):
    """Publishes staged files, in the driver."""

    def __init__(self, sink: KafkaSink) -> None:
        self._sink = sink
        self._place = place_of(sink.staging)
        self._complaints = Complaints(sink.where)
        self._producer: Any = None
        self._marker: _Marker | None = None
        """The newest that was committed, as long as the producer is the one that knows it."""

    def commit(self, checkpoint: CheckpointId, committables: Sequence[bytes]) -> None:
        files = [json.loads(payload) for payload in committables]
        for file in files:
            if not _STAGED.fullmatch(file["staged"]):
                raise StorageError(
                    f"checkpoint {checkpoint} is to publish '{file['staged']}', which "
                    "is no name of this sink: its manifest was edited or damaged"
                )
        wanted = _Marker(int(checkpoint), _digest(files))
        try:
            self._begin()
            if self._marker is not None and self._marker.digest == wanted.digest:
                _log.info("%s: checkpoint %d was published before", self._sink.where, checkpoint)
            elif self._is_there(checkpoint, files):
                self._publish(wanted, files)
        except kafka().KafkaException as error:
            self._give_up()
            raise self._told(error) from error
        except BaseException:
            self._give_up()
            raise
        for file in files:
            self._place.remove(file["staged"])

    def _begin(self) -> None:
        """Fence all others of this id, and learn what was published."""
        if self._producer is not None:
            return
        sink = self._sink
        settings = {"transaction.timeout.ms": _TRANSACTION_MS, **sink.settings(), "error_cb": self._complaints}
        producer = kafka().Producer({**settings, "transactional.id": sink.transactional_id})
        producer.init_transactions(_INIT_SECONDS)
        self._marker = Markers(sink, self._complaints).newest()
        self._producer = producer

    def _is_there(self, checkpoint: CheckpointId, files: Sequence[dict[str, Any]]) -> bool:
        missing = [file["staged"] for file in files if self._place.size(file["staged"]) != file["bytes"]]
        if not missing:
            return True
        if self._marker is not None and self._marker.checkpoint >= checkpoint and len(missing) == len(files):
            # Only who has published a file removes it. This is an older driver, or an older copy of a checkpoint.
            _log.warning(
                "%s: checkpoint %d is older than checkpoint %d, which was published: it is not published again",
                self._sink.where,
                checkpoint,
                self._marker.checkpoint,
            )
            return False
        raise StorageError(
            f"{self._sink.where}: checkpoint {checkpoint} is to publish "
            f"{self._sink.staging}/{missing[0]}, which was removed, or is not whole. Put it back, or "
            "start from another checkpoint with restore=…"
        )

    def _publish(self, marker: _Marker, files: Sequence[dict[str, Any]]) -> None:
        producer, sink = self._producer, self._sink
        producer.begin_transaction()
        for file in files:
            for batch in self._batches(file["staged"]):
                produce(producer, batch, sink.topic)
        producer.produce(sink.marker_topic, marker.encoded(), sink.transactional_id.encode(), partition=0)
        producer.commit_transaction(_COMMIT_SECONDS)
        self._marker = marker

    def _batches(self, name: str) -> Iterator[pa.RecordBatch]:
        with self._place.open(name) as file, pa.ipc.open_stream(file) as stream:
            yield from stream

    def _give_up(self) -> None:
        """The outcome may be unknown: the next call fences this producer, and reads the marker again."""
        producer, self._producer, self._marker = self._producer, None, None
        if producer is not None:
            producer.purge()

    def _told(self, error: Exception) -> PenstockError:
        reason, codes = error.args[0], kafka().KafkaError
        sink = self._sink
        if reason.code() in {codes._FENCED, codes.PRODUCER_FENCED, codes.INVALID_PRODUCER_EPOCH}:
            return StorageError(
                f"{sink.where}: another process has since used the transactional id "
                f"'{sink.transactional_id}': another driver of this pipeline, or another sink, which "
                "needs a different transactional_id"
            )
        if reason.code() in {codes._TIMED_OUT, codes._TRANSPORT, codes._ALL_BROKERS_DOWN}:
            return unreachable(sink.where, sink.servers, error, self._complaints)
        if reason.code() == codes.TRANSACTIONAL_ID_AUTHORIZATION_FAILED:
            return StorageError(
                f"{sink.where}: no permission for the transactional id '{sink.transactional_id}' on {sink.servers}: "
                f'grant this user Write and Describe for it, or set guarantee="at-least-once"'
            )
        return told(sink.where, sink.servers, reason, sink.topic or f"of column {sink.topic_column}")

    def discard_uncommitted(self, generation: Generation) -> None:
        for name in self._place.files():
            match = _STAGED.fullmatch(name)
            if match is not None and int(match[1]) < generation:
                self._place.remove(name)


class _Marker:
    """What was published last under a transactional id."""

    def __init__(self, checkpoint: int, digest: str) -> None:
        self.checkpoint = checkpoint
        self.digest = digest

    def encoded(self) -> bytes:
        return json.dumps({"checkpoint": self.checkpoint, "committables": self.digest}).encode()


def _digest(files: Sequence[dict[str, Any]]) -> str:
    names = "\n".join(sorted(file["staged"] for file in files))
    return hashlib.sha256(names.encode()).hexdigest()


class Markers:
    """The topic of markers: compacted, with one partition, a key for each transactional id.

    By default each sink has its own. Where several share one, an open transaction of another sink hides all that lies
    behind it, also a marker of ours: so the topic is read as far as it reached after the others were fenced.
    """

    def __init__(self, sink: KafkaSink, complaints: Complaints) -> None:
        self._sink = sink
        self._settings = {**sink.asking(), "error_cb": complaints}

    def newest(self) -> _Marker | None:
        self._create()
        try:
            end = self._end()
        except kafka().KafkaException as error:
            raise told(self._sink.where, self._sink.servers, error.args[0], self._sink.marker_topic) from error
        consumer = kafka().Consumer(
            {
                **self._settings,
                "group.id": GROUP,
                "enable.auto.commit": False,
                "isolation.level": "read_committed",
                "enable.partition.eof": True,
                "auto.offset.reset": "earliest",
            }
        )
        try:
            return self._last(consumer, end)
        finally:
            consumer.close()

    def _end(self) -> int:
        """The offset behind the last record, committed or not."""
        consumer = kafka().Consumer({**self._settings, "group.id": GROUP, "isolation.level": "read_uncommitted"})
        try:
            place = kafka().TopicPartition(self._sink.marker_topic, 0)
            return int(consumer.get_watermark_offsets(place, timeout=ANSWER_SECONDS)[1])
        finally:
            consumer.close()

    def _last(self, consumer: Any, end: int) -> _Marker | None:
        consumer.assign([kafka().TopicPartition(self._sink.marker_topic, 0, 0)])
        key, found = self._sink.transactional_id.encode(), None
        heard_at = time.monotonic()
        while time.monotonic() - heard_at < _INIT_SECONDS:
            for message in consumer.consume(10_000, 0.05):
                error = message.error()
                if error is None:
                    heard_at = time.monotonic()
                    found = json.loads(message.value()) if message.key() == key else found
                elif error.code() == kafka().KafkaError._PARTITION_EOF:
                    if message.offset() >= end:
                        return None if found is None else _Marker(found["checkpoint"], found["committables"])
                elif not error.retriable():
                    raise told(self._sink.where, self._sink.servers, error, self._sink.marker_topic)
        raise StorageError(
            f"{self._sink.where}: the topic '{self._sink.marker_topic}' of {self._sink.servers} "
            f"cannot be read to its end: no message arrived for {_INIT_SECONDS:g} s. A transaction of "
            "another sink with this marker_topic may be open"
        )

    def _create(self) -> None:
        api: Any = importlib.import_module("confluent_kafka.admin")
        admin, name = api.AdminClient(self._settings), self._sink.marker_topic
        if name in admin.list_topics(timeout=ANSWER_SECONDS).topics:
            return
        # Small and short segments: only closed ones are compacted, and all of the topic is read at each start.
        config = {"cleanup.policy": "compact", "segment.ms": "600000", "min.cleanable.dirty.ratio": "0.1"}
        # -1: as the broker replicates by default.
        future = admin.create_topics([api.NewTopic(name, 1, -1, config=config)])[name]
        try:
            future.result(_INIT_SECONDS)
        except kafka().KafkaException as error:
            if error.args[0].code() != kafka().KafkaError.TOPIC_ALREADY_EXISTS:
                raise told(self._sink.where, self._sink.servers, error.args[0], name) from error
