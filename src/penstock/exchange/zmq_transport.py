"""The transport on ZeroMQ: one inbox per process, one authenticated connection to each other process.

On one host frames travel through a socket file in a directory that only this user can open, and a client must know
the attempt's password: nobody can listen there, so nothing needs to be encrypted. Between hosts they travel through
TCP with CURVE, authenticated and encrypted with keys made for the attempt. Whoever lacks the secrets gets nothing
and disturbs nothing. (Encryption costs most of the throughput: 0.14 instead of 1.1 GB/s on the machine where this
was measured, see the decision record on the transport.)

There is no high-water mark: credit bounds what is on the way, and control frames must never wait. Nor does a send ever
wait for a peer: a socket that cannot take a frame at once has no connection left, because the peer has refused us.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import time
import weakref
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

import zmq
from zmq.auth.thread import ThreadAuthenticator

from penstock.exchange.socket_directory import SocketDirectory, host_id
from penstock.exchange.wire import Decoder, Encoder
from penstock.ids import COORDINATOR, WorkerId
from penstock.mailbox.frames import Endpoint, Frame

_COPY_BYTES_MAX = 16_384
"""Smaller messages are copied: keeping track of a buffer costs more."""
_USER = "penstock"


@dataclass(frozen=True, slots=True)
class Secrets:
    """What one attempt's processes know, and nobody else. Travels in Spark's closure."""

    password: str
    server_public: bytes
    server_secret: bytes
    client_public: bytes
    client_secret: bytes

    def __repr__(self) -> str:
        return "Secrets(…)"


def make_secrets() -> Secrets:
    server, client = zmq.curve_keypair(), zmq.curve_keypair()
    return Secrets(secrets.token_urlsafe(32), *server, *client)


_PULSE = 0x8000_0000
"""Set or cleared in the number of a sender whose other connection this is: each one counts its own messages."""


def _sender(own: WorkerId) -> int:
    return own if own != COORDINATOR else 0xFFFFFFFF


class _Keys:
    """Admits exactly the attempt's client key."""

    def __init__(self, client_public: bytes) -> None:
        self._client_public = client_public

    def callback(self, domain: str, key: bytes) -> bool:
        return secrets.compare_digest(key, self._client_public)


class Outlet:
    """The way to one other process: one connection. Used by the thread that has made it."""

    def __init__(self, made: zmq.Socket[bytes], sender: int) -> None:
        self._socket = made
        self._encoder = Encoder(sender)
        self._is_refused = False

    def send(self, frame: Frame) -> None:
        """Hand over and return at once. A frame to one that is dead, or has refused us, is lost, silently."""
        if self._is_refused:
            return
        parts = self._encoder.encode(frame)
        try:
            if len(parts) == 1:
                self._socket.send(parts[0], zmq.NOBLOCK)
            else:
                is_large = parts[1].size > _COPY_BYTES_MAX
                self._socket.send(parts[0], zmq.NOBLOCK | zmq.SNDMORE)
                self._socket.send(memoryview(parts[1]), zmq.NOBLOCK, copy=not is_large)
        except zmq.Again:
            # Without a high-water mark only a socket without a connection is full, and it never gets one again. What
            # follows is lost too, so that nothing can arrive behind a gap.
            self._is_refused = True

    def close(self, linger_ms: int | None = None) -> None:
        self._socket.close(linger_ms)

    def linger(self, timeout_ms: int) -> None:
        self._socket.setsockopt(zmq.LINGER, timeout_ms)


class ZmqTransport:
    """The inbox of one process and its way to the others. Used by one thread, `wake` excepted."""

    def __init__(self, own: WorkerId, access: Secrets, address: str | None = None) -> None:
        self._own = own
        self._access = access
        self._context = zmq.Context()
        self._authenticator = ThreadAuthenticator(self._context)
        self._authenticator.start()
        self._authenticator.configure_plain(domain="*", passwords={_USER: access.password})
        self._authenticator.configure_curve_callback(domain="*", credentials_provider=_Keys(access.client_public))
        self._directory = SocketDirectory()
        self._inboxes = [self._bind_local()]
        remote = ""
        if address is not None:
            self._inboxes.append(self._bind_remote(address))
            remote = f"tcp://{address}:{self._inboxes[-1].getsockopt_string(zmq.LAST_ENDPOINT).rsplit(':', 1)[1]}"
        self.endpoint = Endpoint(host_id(), f"ipc://{self._directory.path}/inbox", remote)
        self._outlets: dict[WorkerId, Outlet] = {}
        self._to_self: deque[Frame] = deque()
        self._decoder = Decoder()
        self._wake_in, self._wake_out = os.pipe()
        os.set_blocking(self._wake_in, False)
        os.set_blocking(self._wake_out, False)
        self._poller = zmq.Poller()
        for inbox in self._inboxes:
            self._poller.register(inbox, zmq.POLLIN)
        self._poller.register(self._wake_in, zmq.POLLIN)

    def _socket(self, kind: int) -> zmq.Socket[bytes]:
        made: zmq.Socket[bytes] = self._context.socket(kind)
        made.setsockopt(zmq.LINGER, 0)
        made.setsockopt(zmq.SNDHWM, 0)
        made.setsockopt(zmq.RCVHWM, 0)
        return made

    def _bind_local(self) -> zmq.Socket[bytes]:
        inbox = self._socket(zmq.PULL)
        inbox.plain_server = True
        inbox.bind(f"ipc://{self._directory.path}/inbox")
        return inbox

    def _bind_remote(self, address: str) -> zmq.Socket[bytes]:
        inbox = self._socket(zmq.PULL)
        inbox.curve_server = True
        inbox.curve_secretkey = self._access.server_secret
        inbox.bind(f"tcp://{address}:*")
        return inbox

    # --- the transport port ---

    def connect(self, to: WorkerId, endpoint: Endpoint) -> None:
        """Open the way to another process."""
        self._outlets[to] = self._outlet(endpoint, _sender(self._own))

    def pulse(self, endpoint: Endpoint) -> Outlet:
        """A second connection to another process, for the thread that calls this. It must be closed before `close`."""
        return self._outlet(endpoint, _sender(self._own) ^ _PULSE)

    def _outlet(self, endpoint: Endpoint, sender: int) -> Outlet:
        """A connection to another process; through its socket file if that is on this host."""
        outbox = self._socket(zmq.PUSH)
        if endpoint.host == host_id():
            outbox.plain_username = _USER.encode()
            outbox.plain_password = self._access.password.encode()
            outbox.connect(endpoint.local)
        else:
            outbox.curve_serverkey = self._access.server_public
            outbox.curve_publickey = self._access.client_public
            outbox.curve_secretkey = self._access.client_secret
            outbox.connect(endpoint.remote)
        return Outlet(outbox, sender)

    def send(self, to: WorkerId, frame: Frame) -> None:
        if to == self._own:
            self._to_self.append(frame)
            return
        outlet = self._outlets.get(to)
        if outlet is not None:
            outlet.send(frame)

    # --- the inbox ---

    def receive(self, frames_max: int = 256) -> Iterator[Frame]:
        """What has arrived, without waiting. Raises `BrokenLink`, or `WireError`.

        Only who has the secrets gets this far, so a message that cannot be read is never a stranger's and never to
        be passed over: it may have been records.
        """
        for _ in range(min(len(self._to_self), frames_max)):
            yield self._to_self.popleft()
        for inbox in self._inboxes:
            for _ in range(frames_max):
                try:
                    parts = inbox.recv_multipart(zmq.NOBLOCK, copy=False)
                except zmq.Again:
                    break
                yield self._decoder.decode([part.buffer for part in parts]).frame

    def receive_own(self, frames_max: int = 256) -> Iterator[Frame]:
        """What this process has sent to itself, and sends while it is being delivered."""
        for _ in range(frames_max):
            if not self._to_self:
                return
            yield self._to_self.popleft()

    def wait(self, timeout_ms: int | None) -> None:
        """Sleep until something arrives, somebody calls `wake`, or the time is up."""
        if self._to_self:
            return
        for ready, _ in self._poller.poll(timeout_ms):
            if ready == self._wake_in:
                os.read(self._wake_in, 4096)

    def wake(self) -> None:
        """End a `wait`, from any thread."""
        # If the pipe is full, a wake-up call is waiting already.
        with contextlib.suppress(BlockingIOError):
            os.write(self._wake_out, b"!")

    def flush(self, timeout_ms: int = 500) -> None:
        """Let what was sent leave before the sockets close."""
        for outlet in self._outlets.values():
            outlet.linger(timeout_ms)

    def close(self) -> None:
        self._authenticator.stop()
        for outlet in self._outlets.values():
            outlet.close()
        for inbox in self._inboxes:
            inbox.close()
        self._context.term()
        os.close(self._wake_in)
        os.close(self._wake_out)
        self._directory.close()


_SCHEDULE = "/proc/thread-self/schedstat"
"""In nanoseconds: for how long the thread has run, and for how long it was ready to run and had to wait."""


class RealClock:
    """Time as it passes. `own_us` is that of the thread which is the first to ask for it."""

    def __init__(self) -> None:
        self._own_us = 0
        self._schedule: int | None = None
        """What Linux says about when this thread has run: an open file, or -1 where Linux says nothing."""

    def now_ms(self) -> int:
        return time.monotonic_ns() // 1_000_000

    def now_us(self) -> int:
        return time.monotonic_ns() // 1_000

    def own_us(self) -> int:
        now_us = self.now_us()
        # A delay between the two readings counts in the second one only: time must not go back for that.
        self._own_us = max(self._own_us, now_us - self._delayed_ns() // 1_000)
        return self._own_us

    def _delayed_ns(self) -> int:
        """For how long this thread could have run and did not, since it began."""
        if self._schedule is None:
            self._schedule = self._open_schedule()
        return int(os.pread(self._schedule, 100, 0).split()[1]) if self._schedule >= 0 else 0

    def _open_schedule(self) -> int:
        try:
            opened = os.open(_SCHEDULE, os.O_RDONLY)
        except OSError:
            return -1
        weakref.finalize(self, os.close, opened)
        return opened

    def wall_ms(self) -> int:
        return time.time_ns() // 1_000_000
