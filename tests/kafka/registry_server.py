"""A real schema registry for the tests: Apicurio, in memory, on loopback, by its Confluent-compatible API.

It comes from Maven, once, into a cache outside of the repository: `python -m tests.kafka.registry_server` fills it. A
`Gate` stands in front of it, which can be closed, slow, or ask for a password.
"""

from __future__ import annotations

import base64
import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from tests.components import bound
from tests.kafka.broker import NoBroker, fetched, free_ports

VERSION = "2.6.13.Final"
CACHE = Path(os.environ.get("PENSTOCK_TEST_CACHE", Path.home() / ".cache" / "penstock-tests")) / f"apicurio-{VERSION}"

_POM = f"""\
<project>
  <modelVersion>4.0.0</modelVersion>
  <groupId>penstock.tests</groupId><artifactId>registry</artifactId><version>1</version><packaging>pom</packaging>
  <dependencies>
    <dependency>
      <groupId>io.apicurio</groupId><artifactId>apicurio-registry-app</artifactId><version>{VERSION}</version>
      <type>tar.gz</type><classifier>all</classifier>
      <exclusions><exclusion><groupId>*</groupId><artifactId>*</artifactId></exclusion></exclusions>
    </dependency>
  </dependencies>
</project>
"""
_UP_SECONDS = 120.0
_JSON = "application/vnd.schemaregistry.v1+json"

SHARED = "PENSTOCK_TEST_REGISTRY"
"""The variable with the address of a registry that several processes share."""


def runner() -> Path:
    """The jar that starts the registry, unpacked if it is not yet. Raises `NoBroker`."""
    libs = fetched(CACHE, _POM, "the registry Apicurio")
    ready, partial = CACHE / "app", CACHE / f"app-{os.getpid()}"
    if not ready.exists():
        with tarfile.open(next(libs.glob("*.tar.gz"))) as archive:
            archive.extractall(partial, filter="data")
        try:
            partial.rename(ready)
        except OSError:  # another process of the run was faster
            shutil.rmtree(partial)
    return next(ready.glob("*-runner.jar"))


class RegistryServer:
    """One registry. All that was registered is gone when it ends."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._process: subprocess.Popen[bytes] | None = None
        (self._port,) = free_ports(1)
        self.url = f"http://127.0.0.1:{self._port}/apis/ccompat/v7"
        directory.mkdir(parents=True, exist_ok=True)

    def start(self) -> None:
        java = shutil.which("java")
        if java is None:
            raise NoBroker("java is missing, and the registry runs on it")
        quick = ["-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]
        place = ["-Dquarkus.http.host=127.0.0.1", f"-Dquarkus.http.port={self._port}"]
        with open(self._directory / "registry.log", "ab") as log:
            command = [java, *quick, *place, "-jar", str(runner())]
            self._process = subprocess.Popen(bound(command), stdout=log, stderr=log)
        deadline = time.monotonic() + _UP_SECONDS
        while time.monotonic() < deadline and self._process.poll() is None:
            try:
                urllib.request.urlopen(f"{self.url}/subjects", timeout=5).close()
                return
            except OSError:
                time.sleep(0.2)
        self.stop()
        log_text = (self._directory / "registry.log").read_text(encoding="utf-8", errors="replace")
        raise NoBroker(f"the registry has not come up: {log_text[-1000:]}")

    def stop(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


class SharedRegistry(RegistryServer):
    """A registry that another process has started, and ends."""

    def __init__(self, url: str) -> None:
        self.url = url

    def start(self) -> None:
        raise AssertionError("a shared registry runs already")

    def stop(self) -> None:
        raise AssertionError("a shared registry is not ended by a test")


@contextlib.contextmanager
def shared() -> Iterator[None]:
    """A registry for all processes that are started meanwhile, if it can be started here. It ends with this process.

    Their subjects have names of topics, which no other process has.
    """
    with tempfile.TemporaryDirectory(prefix="penstock-registry-") as directory:
        registry = RegistryServer(Path(directory))
        try:
            registry.start()
        except NoBroker:
            # Each test says so by itself.
            yield
            return
        os.environ[SHARED] = registry.url
        try:
            yield
        finally:
            del os.environ[SHARED]
            registry.stop()


class Gate:
    """Between a client and the registry: passes requests on, or does what registries do on a bad day."""

    def __init__(self, registry: RegistryServer) -> None:
        self.status = 0
        """The answer to every request; 0: that of the registry."""
        self.password = ""
        """`user:password` that each request must bring."""
        self.slow_seconds = 0.0
        self.asked: list[str] = []
        gate = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self._pass_on(None)

            def do_POST(self) -> None:
                self._pass_on(self.rfile.read(int(self.headers["Content-Length"])))

            def _pass_on(self, body: bytes | None) -> None:
                gate.asked.append(self.path)
                time.sleep(gate.slow_seconds)
                expected = f"Basic {base64.b64encode(gate.password.encode()).decode()}"
                if gate.password and self.headers.get("Authorization") != expected:
                    self._answer(401, b'{"error_code": 40101, "message": "Unauthorized"}')
                elif gate.status:
                    self._answer(gate.status, b'{"error_code": %d, "message": "not now"}' % gate.status)
                else:
                    request = urllib.request.Request(registry.url + self.path, body, {"Content-Type": _JSON})
                    try:
                        with urllib.request.urlopen(request, timeout=30) as answer:
                            self._answer(answer.status, answer.read())
                    except urllib.error.HTTPError as error:
                        self._answer(error.code, error.read())

            def _answer(self, status: int, body: bytes) -> None:
                self.send_response(status)
                self.send_header("Content-Type", _JSON)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *arguments: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


if __name__ == "__main__":
    try:
        print(f"The registry Apicurio {VERSION} is {runner()}")
    except NoBroker as reason:
        sys.exit(str(reason))
