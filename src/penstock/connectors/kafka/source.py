"""Kafka topics as a source: a split for each partition, positions in the checkpoint.

The group of consumers that Kafka knows has no part in it: partitions are dealt out by Penstock, and positions are those
of the checkpoint. A group may be told of positions when a checkpoint is complete, so that monitors see the lag.
"""

from __future__ import annotations

import json
import logging
import re
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, TypeAlias

import pyarrow as pa

from penstock.connectors.dead_letters import DeadLetter, batch_of
from penstock.connectors.kafka.client import (
    GROUP,
    Complaints,
    kafka,
    listed,
    partitions_of,
    require_choice,
    require_free,
    require_servers,
    unreachable,
)
from penstock.connectors.kafka.fetcher import Fetched, Fetcher, Inbox
from penstock.connectors.kafka.formats import Decoder, decoder_of, metadata_names
from penstock.connectors.kafka.positions import BEGINNING, Bound, checked, partition_of, resolved, split_of
from penstock.connectors.kafka.registry import SchemaRegistry, registry_of
from penstock.connectors.source import END_OF_SPLIT, Backlog, Portion, Source, SplitReader
from penstock.errors import DataError, PipelineError, StorageError
from penstock.ids import DEAD_LETTERS

_log = logging.getLogger("penstock")

Format: TypeAlias = Literal["json", "avro", "protobuf", "raw"] | Callable[[pa.RecordBatch], pa.RecordBatch]

_RESERVED = {
    "bootstrap.servers": "set servers=",
    "group.id": "set group=",
    "enable.auto.commit": "positions are in the checkpoint, and group= is told of them when it is complete",
    "enable.auto.offset.store": "positions are in the checkpoint",
    "auto.offset.reset": "set start= and on_lost_offsets=",
    "enable.partition.eof": "the source needs it to know whether a partition is idle",
    "isolation.level": "set isolation=",
}
_WAYS_ON = 'To go on without it, set on_error="skip", or on_error="dead_letter" and give dead_letters() a sink'


class KafkaSource(Source):
    """Topics of Kafka: those named, or all whose names a `pattern` fits.

    Example:

        schema = "id bigint, customer string, amount double"
        KafkaSource("kafka:9092", pattern="orders-.*", format="raw", metadata=["topic", "timestamp"])
        KafkaSource("kafka:9092", "orders", start="2026-01-01T00:00:00Z", stop="latest", schema=schema)
        everything = KafkaSource("kafka:9092", "orders", schema=schema)
        assert everything.is_endless

    `format`: `"json"` (one object per message; needs `schema`), `"avro"` (records written with `schema`), `"protobuf"`
    (`message` is a generated class, or a name in `schema`, which is a descriptor set or `.proto` text), `"raw"` (the
    column `value`), or a function that gets a batch with the columns value, topic, partition, offset, timestamp, key
    and headers and returns a batch with one row for each message. `metadata` adds some of these to the other formats,
    under names of your own if it is a mapping.

    `registry`, a URL or a `SchemaRegistry`: each message begins with the id of the schema that it was written with. All
    are read as columns of one schema: that of `schema` or `message`, or else the newest of the subject when the
    pipeline is first started, which is kept in the checkpoint. Fields that were added have their defaults, fields that
    were removed are left out, numbers are promoted. A message that cannot be read so is subject to `on_error`.

    `start` and `stop` are `"earliest"`, `"latest"`, a time, or offsets by partition (`{0: 17}`, `{"orders/0": 17}`;
    partitions that it does not name are read from their first record). With `stop` the source ends. Without it, new
    partitions, and with a pattern new topics, are read from their first record when they appear. A checkpoint has
    precedence over `start`.

    `group` is told of the positions whenever a checkpoint is complete, for monitors of lag. Nothing is read from it.
    `isolation="read_committed"` leaves out what transactions have not committed.

    `on_error`: a message that cannot be decoded ends the pipeline (`"fail"`), is counted (`"skip"`), or goes to the
    stream `dead_letters()` (`"dead_letter"`), with topic/partition as its path and its offset.
    `on_lost_offsets="earliest"` goes on with the first record that is left where records were deleted before they were
    read; they are counted as skipped. `options` are settings of librdkafka, such as those of security.

    The trap: `start="latest"` is the end at the moment when the pipeline is started, not when it first reads.
    """

    def __init__(
        self,
        servers: str | Sequence[str],
        topics: str | Sequence[str] | None = None,
        *,
        pattern: str | None = None,
        start: Bound = "earliest",
        stop: Bound | None = None,
        format: Format = "json",
        schema: Any = None,
        message: Any = None,
        registry: str | SchemaRegistry | None = None,
        metadata: Sequence[str] | Mapping[str, str] = (),
        group: str | None = None,
        isolation: Literal["read_committed", "read_uncommitted"] = "read_committed",
        on_error: Literal["fail", "skip", "dead_letter"] = "fail",
        on_lost_offsets: Literal["fail", "earliest"] = "fail",
        options: Mapping[str, Any] | None = None,
    ) -> None:
        self.servers = require_servers("KafkaSource", servers)
        if (topics is None) == (pattern is None):
            raise PipelineError("KafkaSource: give either topics, or a pattern for their names")
        self.topics = () if topics is None else (topics,) if isinstance(topics, str) else tuple(topics)
        if pattern is None and not self.topics:
            raise PipelineError("KafkaSource: topics is empty: name at least one")
        self.pattern = pattern
        require_choice("KafkaSource", "isolation", isolation, "read_committed", "read_uncommitted")
        require_choice("KafkaSource", "on_error", on_error, "fail", "skip", "dead_letter")
        require_choice("KafkaSource", "on_lost_offsets", on_lost_offsets, "fail", "earliest")
        self.options = dict(options or {})
        require_free("KafkaSource", self.options, _RESERVED)
        self.start = checked("start", start, ("earliest", "latest"), self.topics)
        self.stop = checked("stop", stop, ("latest",), self.topics)
        decode, names = decoder_of(format, schema, message, registry_of("KafkaSource", registry))
        self.format = format if isinstance(format, str) else "function"
        self.metadata = metadata
        self.decode = Decoder(decode, metadata_names(metadata, names))
        self.group = group
        self.isolation = isolation
        self.on_error = on_error
        self.on_lost_offsets = on_lost_offsets
        self.splits_may_appear = self.is_endless = stop is None
        self.side_outputs = (DEAD_LETTERS,) if on_error == "dead_letter" else ()
        self._starts: dict[str, int] | None = None
        self._stops: dict[str, int] = {}
        self._listing: list[str] = []
        self._is_restored = False
        self._schema_id: int | None = None
        """That of the checkpoint, by which its columns were read."""
        self._process = _Process()
        kafka()

    def __getstate__(self) -> dict[str, Any]:
        self._settle()
        return {**vars(self), "_is_restored": False, "_schema_id": None}

    @property
    def where(self) -> str:
        return f"KafkaSource of {self._shown}"

    @property
    def _shown(self) -> str:
        return f"'{self.pattern}'" if self.pattern is not None else ", ".join(f"'{topic}'" for topic in self.topics)

    def identity(self) -> Mapping[str, str]:
        # Without the servers: brokers move, and the offsets stay.
        what = {"pattern": self.pattern} if self.pattern is not None else {"topics": ", ".join(self.topics)}
        return {**super().identity(), **what}

    def settings(self) -> dict[str, Any]:
        """Those of the client."""
        return {
            # The client waits this long when it has enough in hand. Its own default, a second, costs two thirds of
            # the throughput (docs/connectors/kafka.md).
            "fetch.queue.backoff.ms": 10,
            "log_level": 2,
            **self.options,
            "bootstrap.servers": self.servers,
            "group.id": self.group or GROUP,
            "enable.auto.commit": False,
            "enable.auto.offset.store": False,
            "auto.offset.reset": "error",
            "enable.partition.eof": True,
            "isolation.level": self.isolation,
        }

    # --- splits ---

    def splits(self) -> Sequence[str]:
        self._settle()
        return self._list() if self.splits_may_appear else self._listing

    def _settle(self) -> None:
        """Fix, once, where to begin and to stop, for all workers and all restarts of this driver."""
        if self._starts is not None:
            return
        by_registry = self.decode.by_registry
        if by_registry is not None:
            names = by_registry.settle_reader(self.topics[0] if len(self.topics) == 1 else None)
            metadata_names(self.metadata, names)
        self._listing = self._list()
        consumer = self._process.consumer(self)
        try:
            starts = resolved("start", consumer, self.start, self._listing)
            if self.stop is not None:
                stops = resolved("stop", consumer, self.stop, self._listing)
                # One that is not named is read as far as it goes now.
                others = [split for split in self._listing if split not in stops]
                self._stops = stops | resolved("stop", consumer, "latest", others)
        except kafka().KafkaException as error:
            raise unreachable(self.where, self.servers, error, self._process.complaints) from error
        self._starts = starts

    def _list(self) -> list[str]:
        found = self._listed_by_pattern() if self.pattern is not None else self._listed_by_name()
        if not found:
            text = f"{self.where}: no topic of {self.servers} has a name that fits"
            if not self.splits_may_appear:
                raise StorageError(f"{text}: create one, or correct the pattern")
            self._process.say_once(f"{text} yet; waiting for one")
        return [split_of(topic, number) for topic in sorted(found) for number in sorted(found[topic])]

    def _listed_by_pattern(self) -> dict[str, list[int]]:
        try:
            fits = re.compile(self.pattern or "")
        except re.error as error:
            raise PipelineError(
                f"KafkaSource: pattern {self.pattern!r} is not a regular expression: {error}"
            ) from error
        consumer = self._process.consumer(self)
        return {
            name: list(topic.partitions)
            for name, topic in listed(self.where, self.servers, consumer, self._process.complaints).items()
            if fits.fullmatch(name) and not name.startswith("__") and topic.error is None
        }

    def _listed_by_name(self) -> dict[str, list[int]]:
        consumer, complaints = self._process.consumer(self), self._process.complaints
        return {name: partitions_of(self.where, self.servers, consumer, complaints, name) for name in self.topics}

    # --- reading ---

    def on_restore(self, splits: Mapping[str, bytes]) -> None:
        self._is_restored = self._is_restored or bool(splits)
        ids = {json.loads(offset).get("schema") for offset in splits.values()} - {None}
        newest = None if self.decode.by_registry is None else self.decode.by_registry.id
        if not ids or newest is None:
            return
        self._schema_id = max(ids)
        if self._schema_id != newest:
            self._process.say_once(
                f"{self.where}: the checkpoint was read with schema {self._schema_id}, and so are later messages. The "
                f"newest is schema {newest}: to have its columns, declare it with schema="
            )

    @property
    def schema_id(self) -> int | None:
        """That of the schema with which messages are read; None if it is declared, or there is no registry."""
        by_registry = self.decode.by_registry
        return None if by_registry is None or by_registry.id is None else self._schema_id or by_registry.id

    def open(self, split: str, offset: bytes | None) -> SplitReader:
        if offset is not None:
            begin = int(json.loads(offset)["next"])
        else:
            # A partition that a checkpoint does not know has appeared since: all of its records are new.
            begin = BEGINNING if self._is_restored else (self._starts or {}).get(split, BEGINNING)
        partition_of(split)
        return KafkaReader(self, split, begin, self._stops.get(split))

    def join(self, inbox: Inbox) -> Fetcher:
        """The fetcher of this process, from now on with one partition more."""
        fetcher = self._process.fetcher
        if fetcher is None or not fetcher.can_join(inbox.split):
            schema_id = self.schema_id
            fetcher = self._process.fetcher = Fetcher(
                self.where,
                self.servers,
                self.settings(),
                lambda is_closed: self.decode.started(schema_id, is_closed),
                self.on_lost_offsets,
                self.group,
            )
        fetcher.join(inbox)
        return fetcher


class _Process:
    """What a source holds in one process: a client that asks about topics, and the fetcher of its partitions."""

    def __init__(self) -> None:
        self.fetcher: Fetcher | None = None
        self.complaints = Complaints("KafkaSource")
        self._consumer: Any = None
        self._said: set[str] = set()
        self._lock = threading.Lock()

    def __reduce__(self) -> tuple[type[_Process], tuple[()]]:
        return _Process, ()

    def say_once(self, text: str) -> None:
        if text not in self._said:
            self._said.add(text)
            _log.warning(text)

    def consumer(self, source: KafkaSource) -> Any:
        # Subtasks of one process list their splits in several threads.
        with self._lock:
            if self._consumer is None:
                self.complaints.where = source.where
                try:
                    self._consumer = kafka().Consumer({**source.settings(), "error_cb": self.complaints})
                except (kafka().KafkaException, ValueError, TypeError) as error:
                    raise PipelineError(f"{source.where}: the client rejects its options: {error}") from error
        return self._consumer


class KafkaReader(SplitReader):
    """Takes what the fetcher has of one partition, and knows the position behind what it has returned."""

    def __init__(self, source: KafkaSource, split: str, begin: int, stop: int | None) -> None:
        self._source = source
        self._next = begin
        self._stop = stop
        self._inbox = Inbox(split, begin, stop)
        self._fetcher: Fetcher | None = None
        self._entry: Fetched | None = None
        self._row = 0
        self.is_bounded = stop is not None

    @property
    def is_caught_up(self) -> bool:  # type: ignore[override]
        return self._inbox.is_caught_up

    def read(self, rows_max: int) -> Any:
        if self._stop is not None and self._next >= self._stop:
            return END_OF_SPLIT
        if self._fetcher is None:
            self._fetcher = self._source.join(self._inbox)
        while self._entry is None:
            # In this order: the thread ends, or fails, after its last entry.
            failed, has_ended = self._inbox.failed, self._inbox.has_ended
            if not self._inbox.entries:
                if failed is not None:
                    raise failed
                if has_ended:
                    self._next = max(self._next, self._stop or 0)
                    return END_OF_SPLIT
                return None
            entry = self._inbox.entries.popleft()
            if entry.piece is not None:
                self._require_good(entry)
                self._entry, self._row = entry, 0
                break
            self._next = entry.end
            if entry.lost:
                return Portion(None, {}, rows_skipped=entry.lost, example=f"{self._inbox.split}: deleted by Kafka")
        return self._part(self._entry, rows_max)

    def _part(self, entry: Fetched, rows_max: int) -> Any:
        piece, first = entry.piece, self._row
        assert piece is not None and entry.offsets is not None and self._fetcher is not None
        end = min(first + rows_max, piece.records)
        self._row, self._next = end, int(entry.offsets[end - 1]) + 1
        if end == piece.records:
            self._entry, self._next = None, entry.end
            self._inbox.bytes_taken += entry.size
            self._fetcher.took(self._inbox)
        batch, letters = piece.part(first, end)
        if not letters:
            return batch
        if self._source.on_error == "dead_letter":
            return Portion(batch, {DEAD_LETTERS: batch_of(letters)})
        return Portion(batch, {}, rows_skipped=len(letters), example=self._told(letters[0]))

    def _require_good(self, entry: Fetched) -> None:
        if entry.piece is not None and entry.piece.letters and self._source.on_error == "fail":
            raise DataError(f"{self._source.where}: {self._told(entry.piece.letters[0])}. {_WAYS_ON}")

    def _told(self, letter: DeadLetter) -> str:
        topic, partition = partition_of(letter.path or "")
        return f"topic '{topic}', partition {partition}, offset {letter.offset} cannot be read: {letter.reason}"

    def backlog(self) -> Backlog | None:
        end = self._inbox.end if self._stop is None else self._stop
        return None if end is None else Backlog(rows=max(0, end - self._next))

    def offset(self) -> bytes:
        schema = self._source.schema_id
        return json.dumps({"next": self._next} | ({} if schema is None else {"schema": schema})).encode()

    def on_checkpoint_complete(self, offset: bytes) -> None:
        if self._fetcher is not None:
            self._fetcher.commit(self._inbox.split, json.loads(offset)["next"])

    def close(self) -> None:
        if self._fetcher is not None:
            self._fetcher.leave(self._inbox)
