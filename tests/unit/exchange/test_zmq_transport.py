"""The transport: who has the secrets gets through, nobody else does or does any harm."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterator
from dataclasses import replace

import msgspec
import numpy as np
import pyarrow as pa
import pytest
import zmq

from penstock.exchange.wire import BrokenLink, Decoder, Encoder, WireError
from penstock.exchange.zmq_transport import Secrets, ZmqTransport, make_secrets
from penstock.ids import ChannelId, CheckpointId, Generation, OperatorName, SubtaskId, WorkerId
from penstock.mailbox.frames import BarrierFrame, BatchFrame, CreditFrame, EndFrame, FailedFrame, Frame, WatermarkFrame
from penstock.protocol.barrier import Barrier

G, C = Generation(3), ChannelId(7)
SECRETS = make_secrets()


@pytest.fixture
def open_transport() -> Iterator[Callable[..., ZmqTransport]]:
    opened: list[ZmqTransport] = []

    def make(worker: int, secrets: Secrets = SECRETS, address: str | None = None) -> ZmqTransport:
        opened.append(ZmqTransport(WorkerId(worker), secrets, address))
        return opened[-1]

    yield make
    for transport in opened:
        transport.close()


def receive(transport: ZmqTransport, count: int, seconds: float = 60.0) -> list[Frame]:
    frames: list[Frame] = []
    until = time.monotonic() + seconds
    while len(frames) < count and time.monotonic() < until:
        transport.wait(50)
        frames += transport.receive()
    return frames


def batch(rows: int = 5) -> pa.RecordBatch:
    return pa.record_batch({"a": np.arange(rows), "s": [str(i) for i in range(rows)]})


@pytest.mark.parametrize("is_remote", [False, True], ids=["socket file", "tcp with curve"])
def test_frames_arrive_in_their_order(open_transport: Callable[..., ZmqTransport], is_remote: bool) -> None:
    one, two = open_transport(0), open_transport(1, address="127.0.0.1")
    endpoint = replace(two.endpoint, host="elsewhere") if is_remote else two.endpoint
    one.connect(WorkerId(1), endpoint)
    sent: list[Frame] = [
        BatchFrame(G, C, batch(), 80),
        WatermarkFrame(G, C, 12),
        BatchFrame(G, C, batch(30_000), 80),
        BarrierFrame(G, C, Barrier(CheckpointId(4), G, alignment_timeout_ms=9, age_ms=2).overtaking()),
        CreditFrame(G, C, 100, 200),
        EndFrame(G, C),
    ]
    for frame in sent:
        one.send(WorkerId(1), frame)
    assert receive(two, len(sent)) == sent


def test_frames_to_itself_need_no_socket(open_transport: Callable[..., ZmqTransport]) -> None:
    own = open_transport(0)
    own.send(WorkerId(0), EndFrame(G, C))
    assert receive(own, 1) == [EndFrame(G, C)]


@pytest.mark.parametrize("is_remote", [False, True], ids=["socket file", "tcp with curve"])
def test_a_client_without_the_secrets_gets_nothing_through(
    open_transport: Callable[..., ZmqTransport], is_remote: bool
) -> None:
    server = open_transport(1, address="127.0.0.1")
    endpoint = replace(server.endpoint, host="elsewhere") if is_remote else server.endpoint
    stranger, friend = open_transport(0, make_secrets()), open_transport(2)
    stranger.connect(WorkerId(1), endpoint)
    for _ in range(10):
        stranger.send(WorkerId(1), EndFrame(G, C))
    friend.connect(WorkerId(1), endpoint)
    friend.send(WorkerId(1), CreditFrame(G, C, 1, 2))
    assert receive(server, 1) == [CreditFrame(G, C, 1, 2)]
    assert receive(server, 1, seconds=0.5) == []


def test_sending_to_one_who_has_refused_us_returns_at_once(open_transport: Callable[..., ZmqTransport]) -> None:
    server, stranger = open_transport(1), open_transport(0, make_secrets())
    stranger.connect(WorkerId(1), server.endpoint)
    outbox = stranger._outlets[WorkerId(1)]._socket
    was_refused = outbox.get_monitor_socket(zmq.EVENT_HANDSHAKE_FAILED_AUTH).poll(60_000)
    outbox.disable_monitor()
    assert was_refused
    for _ in range(10):
        stranger.send(WorkerId(1), BatchFrame(G, C, batch(30_000), 80))
        stranger.send(WorkerId(1), EndFrame(G, C))
    assert receive(server, 1, seconds=0.5) == []


def test_a_client_that_knows_the_server_key_but_has_no_client_key_is_refused(
    open_transport: Callable[..., ZmqTransport],
) -> None:
    server = open_transport(1, address="127.0.0.1")
    public, secret = zmq.curve_keypair()
    half = replace(SECRETS, client_public=public, client_secret=secret)
    stranger = open_transport(0, half)
    stranger.connect(WorkerId(1), replace(server.endpoint, host="elsewhere"))
    stranger.send(WorkerId(1), EndFrame(G, C))
    assert receive(server, 1, seconds=1.0) == []


def test_garbage_on_the_sockets_disturbs_nothing(open_transport: Callable[..., ZmqTransport]) -> None:
    server, friend = open_transport(1, address="127.0.0.1"), open_transport(0)
    port = int(server.endpoint.remote.rsplit(":", 1)[1])
    path = server.endpoint.local.removeprefix("ipc://")
    for family, address in ((socket.AF_INET, ("127.0.0.1", port)), (socket.AF_UNIX, path)):
        for garbage in (b"GET / HTTP/1.1\r\n\r\n", b"\xff" * 4096, b"\xff\0\0\0\0\0\0\0\1\x7f\3\0NULL" + b"\0" * 48):
            with socket.socket(family, socket.SOCK_STREAM) as client:
                client.connect(address)
                client.sendall(garbage)
    friend.connect(WorkerId(1), server.endpoint)
    friend.send(WorkerId(1), EndFrame(G, C))
    assert receive(server, 1) == [EndFrame(G, C)]


def test_a_gap_in_a_link_is_an_error_and_not_a_lost_record() -> None:
    encoder, decoder = Encoder(0), Decoder()
    decoder.decode(encoder.encode(BatchFrame(G, C, batch(), 1)))
    encoder.encode(BatchFrame(G, C, batch(), 1))
    with pytest.raises(BrokenLink, match="message 2 of generation 3 came from worker 0 where 1 was due"):
        decoder.decode(encoder.encode(EndFrame(G, C)))


@pytest.mark.parametrize(
    "parts",
    [
        [],
        [b""],
        [b"half"],
        [b"\0" * 64],
        Encoder(0).encode(EndFrame(G, C)) * 2,
        [Encoder(0).encode(CreditFrame(G, C, 1, 2))[0][:-1]],
        [Encoder(0).encode(BatchFrame(G, C, batch(), 1))[0], b"no records"],
    ],
)
def test_half_a_frame_is_refused(parts: list[bytes]) -> None:
    with pytest.raises(WireError):
        Decoder().decode(parts)


def test_a_changed_schema_and_dictionaries_travel_too() -> None:
    encoder, decoder = Encoder(0), Decoder()
    batches = [
        batch(),
        batch(2),
        pa.record_batch({"b": [1.5]}),
        pa.record_batch({"d": pa.array(["x", "y", "x"]).dictionary_encode()}),
        batch(3).slice(1),
    ]
    for number, one in enumerate(batches):
        received = decoder.decode([memoryview(part) for part in encoder.encode(BatchFrame(G, C, one, number))])
        assert received.frame == BatchFrame(G, C, one, number)


def test_a_failure_without_a_word_on_its_being_final_is_not() -> None:
    old = {"generation": 1, "worker": 0, "error": "no room", "subtask": ["read", 1]}
    (head,) = Encoder(0).encode(FailedFrame(Generation(1), WorkerId(0), "no room"))
    header = head[: -len(msgspec.msgpack.encode(FailedFrame(Generation(1), WorkerId(0), "no room")))]
    frame = Decoder().decode([header + msgspec.msgpack.encode(old)]).frame
    assert frame == FailedFrame(Generation(1), WorkerId(0), "no room", SubtaskId(OperatorName("read"), 1))
