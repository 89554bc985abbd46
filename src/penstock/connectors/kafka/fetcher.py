"""One consumer for all partitions that a process reads of a source, in a thread beside the mailbox.

The thread polls, decodes, and puts the result into the inbox of each partition. An inbox that is full pauses its
partition alone: the mailbox may wait for another one, which must go on. Partitions are assigned and never subscribed
to, so there is no rebalancing; a partition is assigned once in the life of a consumer, so no message of an earlier
assignment can be taken for one of the next.

Measured (docs/connectors/kafka.md): `poll` for the first message and `consume(n, 0)` for those that are there already
is as fast as `consume(n, timeout)`, and does not wait for a full batch.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.connectors.dead_letters import DeadLetter
from penstock.connectors.files.formats.pieces import Piece, sorted_out
from penstock.connectors.kafka.client import Complaints, kafka, told
from penstock.connectors.kafka.formats import Decode
from penstock.connectors.kafka.framing import Messages
from penstock.connectors.kafka.positions import known_end, partition_of, split_of, watermarks_of
from penstock.errors import DataError, PenstockError, StorageError

MESSAGES_MAX = 4096
"""Messages of one poll: more are not faster, and are decoded later."""
_BUFFER_BYTES = 64 << 20
_INBOX_BYTES_MIN = 256 << 10
_POLL_SECONDS = 0.1
_PAUSED_POLL_SECONDS = 0.01
"""While a partition is paused: nothing can interrupt a poll, and the mailbox may have made room."""
_JOIN_SECONDS = 0.1

_log = logging.getLogger("penstock")


@dataclass(frozen=True, slots=True)
class Fetched:
    """Messages of one partition, decoded."""

    end: int
    """The position behind all of them."""
    piece: Piece | None = None
    """None if there are no messages: the position has moved over records that are not for users."""
    offsets: npt.NDArray[np.int64] | None = None
    """That of each record of the piece, good or bad."""
    size: int = 0
    lost: int = 0
    """Records that the broker has deleted before they were read."""


class Inbox:
    """What was fetched of one partition. The thread puts, the mailbox takes."""

    def __init__(self, split: str, begin: int, stop: int | None) -> None:
        self.split = split
        self.topic, self.partition = partition_of(split)
        self.next = begin
        """The next offset that is expected: records in front of it were put already."""
        self.stop = stop
        self.entries: deque[Fetched] = deque()
        self.is_caught_up = False
        """Whether the end of the partition was seen, and no record since."""
        self.end: int | None = None
        """The end of the partition when records of it came last; None if it is not known."""
        self.has_ended = False
        self.failed: Exception | None = None
        self.is_paused = False
        # Each is written by one thread only, so that neither needs a lock.
        self.bytes_put = 0
        self.bytes_taken = 0

    @property
    def bytes_waiting(self) -> int:
        return self.bytes_put - self.bytes_taken

    def put(self, fetched: Fetched) -> None:
        if self.failed is not None:
            # I1: what lies behind a failure must not be returned, or the position would pass over it.
            return
        self.bytes_put += fetched.size
        self.next = fetched.end
        self.entries.append(fetched)
        if self.stop is not None and self.next >= self.stop:
            self.has_ended = True


class Fetcher:
    """The thread and its consumer. It begins with the first inbox and ends when the last one has left."""

    def __init__(
        self,
        where: str,
        servers: str,
        settings: Mapping[str, Any],
        decode: Callable[[Callable[[], bool]], Decode],
        on_lost_offsets: str,
        group: str | None,
    ) -> None:
        self.where = where
        self.is_closed = False
        self._servers = servers
        self._complaints = Complaints(where)
        self._settings = dict(settings)
        self._decode = decode(lambda: self.is_closed)
        self._on_lost_offsets = on_lost_offsets
        self._group = group
        self._inboxes: dict[str, Inbox] = {}
        self._former: set[str] = set()
        self._commands: deque[Callable[[Any], None]] = deque()
        self._commits: dict[str, int] = {}
        self._has_warned_of_commits = False
        self._wake = threading.Event()
        self._thread = threading.Thread(target=self._run, name="penstock-kafka", daemon=True)

    # --- for the mailbox ---

    def can_join(self, split: str) -> bool:
        return not self.is_closed and split not in self._former

    def join(self, inbox: Inbox) -> None:
        self._former.add(inbox.split)
        self._inboxes[inbox.split] = inbox
        self._commands.append(lambda consumer: self._assign(consumer, inbox))
        if self._thread.ident is None:
            self._thread.start()
        self._wake.set()

    def leave(self, inbox: Inbox) -> None:
        if self._inboxes.pop(inbox.split, None) is None:
            return
        self._commands.append(lambda consumer: self._unassign(consumer, inbox))
        self.is_closed = not self._inboxes
        self._wake.set()
        if self.is_closed:
            self._thread.join(_JOIN_SECONDS)

    def commit(self, split: str, offset: int) -> None:
        """Tell the group, for monitors of lag. Positions are in the checkpoint."""
        if self._group is not None and offset >= 0:
            self._commits[split] = offset

    def took(self, inbox: Inbox) -> None:
        if inbox.is_paused:
            self._wake.set()

    # --- the thread ---

    def _run(self) -> None:
        try:
            consumer = kafka().Consumer({**self._settings, "error_cb": self._complaints, "on_commit": self._on_commit})
        except Exception as error:
            self._fail(StorageError(f"{self.where}: the client rejects its settings: {error}"))
            return
        try:
            while not self.is_closed:
                self._do_commands(consumer)
                self._take(consumer, self._polled(consumer))
                self._pause_and_resume(consumer)
            self._do_commands(consumer)
        except Exception as error:  # a thread that dies in silence would be a pipeline that stands still
            self._fail(error if isinstance(error, PenstockError) else StorageError(f"{self.where}: {error!r}"))
        finally:
            consumer.close()

    def _fail(self, error: Exception) -> None:
        self.is_closed = True
        for inbox in list(self._inboxes.values()):
            inbox.failed = error

    def _do_commands(self, consumer: Any) -> None:
        while self._commands:
            self._commands.popleft()(consumer)
        commits, self._commits = self._commits, {}
        if commits:
            offsets = [kafka().TopicPartition(*partition_of(split), offset) for split, offset in commits.items()]
            try:
                consumer.commit(offsets=offsets, asynchronous=not self.is_closed)
            except kafka().KafkaException as error:
                self._on_commit(error, offsets)

    def _on_commit(self, error: Any, partitions: Any) -> None:
        if error is not None and not self._has_warned_of_commits:
            self._has_warned_of_commits = True
            _log.warning(
                "%s: positions could not be committed to group '%s': %s. Only lag monitors fall "
                "behind; the pipeline takes its positions from its checkpoints",
                self.where,
                self._group,
                error,
            )

    def _assign(self, consumer: Any, inbox: Inbox) -> None:
        if inbox.split in self._inboxes:
            consumer.incremental_assign([kafka().TopicPartition(inbox.topic, inbox.partition, inbox.next)])

    def _unassign(self, consumer: Any, inbox: Inbox) -> None:
        if any((each.topic, each.partition) == (inbox.topic, inbox.partition) for each in consumer.assignment()):
            consumer.incremental_unassign([kafka().TopicPartition(inbox.topic, inbox.partition)])

    def _polled(self, consumer: Any) -> Messages:
        inboxes = list(self._inboxes.values())
        paused = sum(inbox.is_paused for inbox in inboxes)
        if paused and paused == len(inboxes):
            self._wake.wait(_POLL_SECONDS)
            self._wake.clear()
        first = consumer.poll(_PAUSED_POLL_SECONDS if paused else _POLL_SECONDS)
        return [] if first is None else [first, *consumer.consume(MESSAGES_MAX - 1, 0)]

    def _pause_and_resume(self, consumer: Any) -> None:
        inboxes = list(self._inboxes.values())
        limit = max(_INBOX_BYTES_MIN, _BUFFER_BYTES // max(1, len(inboxes)))
        for inbox in inboxes:
            # One that has ended stays until it is closed: the last checkpoint is still to be told to the group.
            wants = not inbox.has_ended and inbox.bytes_waiting < (limit // 2 if inbox.is_paused else limit)
            if wants == inbox.is_paused:
                inbox.is_paused = not wants
                place = [kafka().TopicPartition(inbox.topic, inbox.partition)]
                consumer.resume(place) if wants else consumer.pause(place)

    # --- what was polled ---

    def _take(self, consumer: Any, messages: Messages) -> None:
        for split, run in _runs(messages):
            inbox = self._inboxes.get(split)
            if run[0].error() is not None:
                self._on_error(consumer, inbox, run[0])
            elif inbox is not None and not inbox.has_ended:
                inbox.is_caught_up = False
                try:
                    self._put(inbox, run)
                except PenstockError as error:
                    inbox.failed = error
                inbox.end = known_end(consumer, inbox.split)

    def _put(self, inbox: Inbox, messages: Messages) -> None:
        offsets = np.fromiter(map(kafka().Message.offset, messages), np.int64, len(messages))
        # Offsets grow; a consumer that was resumed may repeat some, and a bounded partition has some behind its end.
        first = int(np.searchsorted(offsets, inbox.next))
        end = len(offsets) if inbox.stop is None else int(np.searchsorted(offsets, inbox.stop))
        if first < end:
            messages, taken = messages[first:end], offsets[first:end]
            size = sum(map(len, messages))
            piece = decoded(inbox.split, messages, self._decode)
            inbox.put(Fetched(int(taken[-1]) + 1, piece, taken, size))
        if end < len(offsets):
            inbox.has_ended = True

    def _on_error(self, consumer: Any, inbox: Inbox | None, message: Any) -> None:
        error, codes = message.error(), kafka().KafkaError
        if error.code() == codes._PARTITION_EOF:
            if inbox is not None:
                self._at_end(inbox, message.offset())
        elif error.fatal() or inbox is None:
            if error.fatal():
                raise StorageError(f"{self.where}: the client has failed: {error.str()}")
        elif error.code() in {codes._AUTO_OFFSET_RESET, codes.OFFSET_OUT_OF_RANGE}:
            self._on_lost(consumer, inbox, error)
        elif error.retriable():
            self._complaints(error)
        else:
            inbox.failed = told(self.where, self._servers, error, inbox.topic)

    def _at_end(self, inbox: Inbox, end: int) -> None:
        if end > inbox.next:
            # The records between are marks of transactions. A monitor of lag counts them.
            inbox.put(Fetched(end))
        inbox.is_caught_up = True
        inbox.end = end

    def _on_lost(self, consumer: Any, inbox: Inbox, error: Any) -> None:
        low, high = watermarks_of(consumer, inbox.split)
        place = f"topic '{inbox.topic}', partition {inbox.partition}"
        if self._on_lost_offsets == "fail":
            inbox.failed = DataError(
                f"{self.where}: {place} has offsets {low} to {high} but the next one to read is "
                f"{inbox.next}: the records were deleted by retention, or the topic was created anew "
                f"({error.str()}). To continue with the first one that is left, set "
                'on_lost_offsets="earliest"; to begin elsewhere, give the source another name'
            )
            return
        lost = max(0, low - inbox.next)
        _log.warning(
            "%s: %s continues at offset %d instead of %d: %d offsets are lost", self.where, place, low, inbox.next, lost
        )
        inbox.put(Fetched(low, lost=lost))
        # The client refuses to seek in a partition that it has given up. Nothing of it is under way.
        consumer.incremental_unassign([kafka().TopicPartition(inbox.topic, inbox.partition)])
        consumer.incremental_assign([kafka().TopicPartition(inbox.topic, inbox.partition, low)])


def _runs(messages: Messages) -> Iterator[tuple[str, Messages]]:
    """Messages by partition, in order; errors and the end of a partition are alone."""
    if not messages:
        return
    message = kafka().Message
    partitions = list(map(message.partition, messages))
    topics = list(map(message.topic, messages))
    errors = list(map(message.error, messages))
    groups: dict[tuple[Any, Any], list[Any]] = {}
    for number, place in enumerate(zip(topics, partitions, strict=True)):
        if errors[number] is None:
            groups.setdefault(place, []).append(messages[number])
        else:
            if place in groups:
                yield split_of(*place), groups.pop(place)
            yield split_of(*place), [messages[number]]
    for place, group in groups.items():
        yield split_of(*place), group


def decoded(split: str, messages: Sequence[Any], decode: Decode) -> Piece:
    """Good and bad messages apart."""
    good, bad = sorted_out(len(messages), lambda first, end: decode(messages[first:end]))
    letters = [_letter(split, messages[number], error) for number, error in bad]
    batch = good[0] if len(good) == 1 else pa.concat_batches(good) if good else _NOTHING
    return Piece(None, batch, [number for number, _ in bad], letters)


_NOTHING = pa.RecordBatch.from_pylist([], schema=pa.schema([]))


def _letter(split: str, message: Any, error: Exception) -> DeadLetter:
    return DeadLetter(split, str(error).rstrip("."), offset=message.offset(), raw=message.value())
