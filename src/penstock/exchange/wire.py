"""Frames as bytes: what crosses a socket, and nothing of it can run code.

A message has a fixed header, a body, and for records a payload. The header says who sent it and the how many-th it
is on its link: a connection that breaks and comes back may have lost messages, and a gap must be an error, never
a lost record. Records travel as Arrow IPC; their schema is sent when it is new on the channel. Everything else is
msgpack with a schema.

Batches are neither copied on the way in (they refer to the received message) nor, if they are large, on the way out.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import msgspec
import pyarrow as pa

from penstock.errors import PenstockError
from penstock.exchange.codec import decode_batches, encode_batches
from penstock.ids import ChannelId, Generation
from penstock.mailbox.frames import (
    AcknowledgeFrame,
    BarrierFrame,
    BatchFrame,
    BusyFrame,
    ClocksFrame,
    CompletedFrame,
    CreditFrame,
    DeclineFrame,
    EndedFrame,
    EndFrame,
    FailedFrame,
    Frame,
    HeartbeatFrame,
    HelloFrame,
    MarkerFrame,
    ProfiledFrame,
    ProfileFrame,
    ReadyFrame,
    SlowestFrame,
    StopFrame,
    TriggerFrame,
    WatermarkFrame,
    WelcomeFrame,
)

Parts: TypeAlias = list[Any]
"""The parts of one message: bytes or buffers."""

_MAGIC = 0x50
_HEADER = struct.Struct("<BBIqqq")
"""Magic, kind, sender, number on the link, generation, channel (or -1)."""
_COST = struct.Struct("<qI")
"""Cost in credit, length of the schema in front of the records (0: as before)."""

_KINDS: tuple[type[Any], ...] = (
    BatchFrame,
    CreditFrame,
    WatermarkFrame,
    BarrierFrame,
    EndFrame,
    TriggerFrame,
    CompletedFrame,
    StopFrame,
    ReadyFrame,
    AcknowledgeFrame,
    DeclineFrame,
    EndedFrame,
    FailedFrame,
    HeartbeatFrame,
    HelloFrame,
    WelcomeFrame,
    BusyFrame,
    ProfileFrame,
    ProfiledFrame,
    MarkerFrame,
    ClocksFrame,
    SlowestFrame,
)
"""A frame's number on the wire is its place here: new ones come last."""
_KIND_OF = {kind: number for number, kind in enumerate(_KINDS)}
_BATCH, _CREDIT = _KIND_OF[BatchFrame], _KIND_OF[CreditFrame]
_DECODERS = [None if kind is BatchFrame else msgspec.msgpack.Decoder(kind) for kind in _KINDS]
_ENCODER = msgspec.msgpack.Encoder()


class WireError(PenstockError):
    """A message that cannot be read. It came from one of ours, so it is a bug, and the attempt cannot go on."""


class BrokenLink(PenstockError):
    """Messages are missing between two processes; the attempt cannot go on."""


@dataclass(frozen=True, slots=True)
class Received:
    """A decoded message and where it came from."""

    sender: int
    frame: Frame


class Encoder:
    """Encodes what one process sends on one link."""

    def __init__(self, sender: int) -> None:
        self._sender = sender
        self._number = 0
        self._schemas: dict[ChannelId, pa.Schema] = {}

    def encode(self, frame: Frame) -> Parts:
        kind = _KIND_OF[type(frame)]
        channel = getattr(frame, "channel", -1)
        header = _HEADER.pack(_MAGIC, kind, self._sender, self._number, frame.generation, channel)
        self._number += 1
        if isinstance(frame, BatchFrame):
            return self._encode_batch(header, frame)
        return [header + _ENCODER.encode(frame)]

    def _encode_batch(self, header: bytes, frame: BatchFrame) -> Parts:
        schema = frame.batch.schema
        if _has_dictionaries(schema):
            # Dictionaries travel with their stream, so such a batch is a stream by itself.
            return [header + _COST.pack(frame.cost, 0xFFFFFFFF), encode_batches([frame.batch])]
        if self._schemas.get(frame.channel) is schema or self._schemas.get(frame.channel) == schema:
            return [header + _COST.pack(frame.cost, 0), frame.batch.serialize()]
        self._schemas[frame.channel] = schema
        described = schema.serialize().to_pybytes()
        return [header + _COST.pack(frame.cost, len(described)) + described, frame.batch.serialize()]


class Decoder:
    """Decodes what one process receives, from everybody. Raises `WireError` or `BrokenLink`."""

    def __init__(self) -> None:
        self._numbers: dict[tuple[int, int], int] = {}
        self._schemas: dict[tuple[int, int], pa.Schema] = {}

    def decode(self, parts: Sequence[Any]) -> Received:
        if not parts or len(parts[0]) < _HEADER.size:
            raise WireError("a message without a header")
        head = bytes(parts[0])
        magic, kind, sender, number, generation, channel = _HEADER.unpack_from(head)
        if magic != _MAGIC or kind >= len(_KINDS) or (len(parts) == 2) != (kind == _BATCH):
            raise WireError("a message with a header that is not ours")
        self._check_number(sender, generation, number)
        if kind == _BATCH:
            return Received(sender, self._decode_batch(head, parts[1], sender, generation, channel))
        decoder = _DECODERS[kind]
        assert decoder is not None
        try:
            return Received(sender, decoder.decode(head[_HEADER.size :]))
        except (msgspec.DecodeError, ValueError) as error:
            raise WireError(f"a {_KINDS[kind].__name__} that cannot be read: {error}") from error

    def _check_number(self, sender: int, generation: int, number: int) -> None:
        link = sender, generation
        wanted = self._numbers.get(link, 0)
        if number != wanted:
            raise BrokenLink(
                f"message {number} of generation {generation} came from worker {sender} where {wanted} was due: "
                f"the connection broke and messages were lost"
            )
        self._numbers[link] = number + 1

    def _decode_batch(self, head: bytes, payload: Any, sender: int, generation: int, channel: int) -> BatchFrame:
        try:
            cost, described = _COST.unpack_from(head, _HEADER.size)
            buffer = pa.py_buffer(payload)
            if described == 0xFFFFFFFF:
                (batch,) = decode_batches(buffer)
            else:
                batch = pa.ipc.read_record_batch(buffer, self._schema(head, described, (generation, channel)))
        except (struct.error, pa.ArrowInvalid, KeyError, ValueError, OSError) as error:
            raise WireError(f"records from worker {sender} that cannot be read: {error}") from error
        return BatchFrame(Generation(generation), ChannelId(channel), batch, cost)

    def _schema(self, head: bytes, described: int, channel: tuple[int, int]) -> pa.Schema:
        if described:
            start = _HEADER.size + _COST.size
            self._schemas[channel] = pa.ipc.read_schema(pa.py_buffer(head[start : start + described]))
        return self._schemas[channel]


def _has_dictionaries(schema: pa.Schema) -> bool:
    return any(_is_dictionary(kind) for kind in schema.types)


def _is_dictionary(kind: pa.DataType) -> bool:
    if pa.types.is_dictionary(kind):
        return True
    return any(_is_dictionary(kind.field(i).type) for i in range(kind.num_fields))
