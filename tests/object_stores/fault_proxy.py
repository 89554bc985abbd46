"""An HTTP proxy on loopback that throttles, refuses, delays and loses answers, in front of an object store."""

from __future__ import annotations

import contextlib
import http.client
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Literal, TypeAlias

Fault: TypeAlias = Literal["throttle", "lose the answer", "delay", "refuse"]
Plan: TypeAlias = Callable[[int, str, str], Fault | None]
"""Of the number of a request, its method and its path: the fault that it meets."""

_DELAY_S = 0.05


@dataclass(frozen=True, slots=True)
class Throttled:
    """How a store says that it is asked too much."""

    headers: dict[str, str]
    body: bytes


S3 = Throttled(
    {"Content-Type": "application/xml"},
    b'<?xml version="1.0" encoding="UTF-8"?><Error><Code>SlowDown</Code>'
    b"<Message>Please reduce your request rate.</Message></Error>",
)
AZURE = Throttled(
    {"Content-Type": "application/xml", "x-ms-error-code": "ServerBusy"},
    b'<?xml version="1.0" encoding="utf-8"?><Error><Code>ServerBusy</Code><Message>Busy.</Message></Error>',
)
GOOGLE = Throttled(
    {"Content-Type": "application/json"},
    b'{"error": {"code": 503, "message": "We encountered an internal error. Please try again.", "errors": '
    b'[{"domain": "global", "reason": "backendError"}]}}',
)


class FaultProxy:
    """Forwards every request to `port`, unless the plan says otherwise. Counts the faults that took place."""

    def __init__(self, port: int, throttled: Throttled = S3) -> None:
        self.target = port
        self.throttled = throttled
        self.plan: Plan = lambda number, method, path: None
        self.requests = 0
        self.faults: Counter[str] = Counter()
        self.seen: list[str] = []
        """Method and path of every request."""
        self.lock = threading.Lock()
        self.creating = threading.Lock()
        """Held for each conditional put: it is atomic on S3, and moto looks and stores in two steps."""
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        self._server.daemon_threads = True
        threading.Thread(target=self._server.serve_forever, name="fault-proxy", daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def fault_of(self, method: str, path: str) -> Fault | None:
        with self.lock:
            self.requests += 1
            self.seen.append(f"{method} {path}")
            fault = self.plan(self.requests, method, path)
            if fault is not None:
                self.faults[fault] += 1
            return fault

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


def _handler(proxy: FaultProxy) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, format: str, *arguments: Any) -> None:
            pass

        def _forward(self) -> None:
            length = int(self.headers.get("Content-Length") or 0)
            body = self.rfile.read(length)
            fault = proxy.fault_of(self.command, self.path)
            if fault == "throttle":
                self._answer(503, proxy.throttled.headers, proxy.throttled.body)
                return
            if fault == "refuse":
                # Not worth another try.
                self._answer(403, {"Content-Type": "text/plain"}, b"forbidden")
                return
            if fault == "delay":
                time.sleep(_DELAY_S)
            is_conditional = self.command == "PUT" and "If-None-Match" in self.headers
            connection = http.client.HTTPConnection("127.0.0.1", proxy.target, timeout=60)
            with proxy.creating if is_conditional else contextlib.nullcontext():
                connection.request(self.command, self.path, body, dict(self.headers.items()))
                response = connection.getresponse()
                content = response.read()
            connection.close()
            if fault == "lose the answer":
                # The server has done it, and nobody hears of it.
                self.close_connection = True
                self.connection.close()
                return
            kept = {name: value for name, value in response.getheaders() if name.lower() not in _HOP_BY_HOP}
            if "Location" in kept:
                # Where the parts of an upload go: they too come this way.
                kept["Location"] = kept["Location"].replace(f"http://127.0.0.1:{proxy.target}", proxy.url)
            length_of_head = response.getheader("Content-Length") if self.command == "HEAD" else None
            self._answer(response.status, kept, content, length_of_head)

        def _answer(self, status: int, headers: dict[str, str], content: bytes, length: str | None = None) -> None:
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", length or str(len(content)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(content)

        do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = _forward

    return Handler


_HOP_BY_HOP = {"connection", "content-length", "transfer-encoding", "date", "server"}
