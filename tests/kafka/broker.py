"""A real Kafka broker for the tests: one node, on loopback, on free ports, with its data in a directory of the test.

The jars come from Maven, once, into a cache outside of the repository: `python -m tests.kafka.broker` fills it. Where
there is no Maven, no Java or no repository to ask, `Broker.start` raises `NoBroker` with the reason.
"""

from __future__ import annotations

import base64
import contextlib
import fcntl
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.components import bound

VERSION = "4.3.1"
_LOG4J = "2.25.3"
CACHE = Path(os.environ.get("PENSTOCK_TEST_CACHE", Path.home() / ".cache" / "penstock-tests")) / f"kafka-{VERSION}"

_POM = f"""\
<project>
  <modelVersion>4.0.0</modelVersion>
  <groupId>penstock.tests</groupId><artifactId>kafka</artifactId><version>1</version><packaging>pom</packaging>
  <dependencies>
    <dependency><groupId>org.apache.kafka</groupId><artifactId>kafka_2.13</artifactId><version>{VERSION}</version></dependency>
    <dependency><groupId>org.apache.logging.log4j</groupId><artifactId>log4j-core</artifactId><version>{_LOG4J}</version></dependency>
    <dependency><groupId>org.apache.logging.log4j</groupId><artifactId>log4j-slf4j-impl</artifactId><version>{_LOG4J}</version></dependency>
  </dependencies>
</project>
"""

_LOGGING = """\
Configuration:
  Appenders:
    Console: {name: STDOUT, PatternLayout: {pattern: "[%d] %p %m (%c)%n"}}
  Loggers:
    Root: {level: WARN, AppenderRef: [{ref: STDOUT}]}
"""

_PROPERTIES = """\
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{controller}
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}
advertised.listeners=PLAINTEXT://127.0.0.1:{port}
controller.listener.names=CONTROLLER
inter.broker.listener.name=PLAINTEXT
listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT
log.dirs={directory}/data
offsets.topic.replication.factor=1
offsets.topic.num.partitions=4
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
transaction.state.log.num.partitions=4
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
group.initial.rebalance.delay.ms=0
auto.create.topics.enable=false
authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer
allow.everyone.if.no.acl.found=true
"""

_UP_SECONDS = 120.0

SHARED = "PENSTOCK_TEST_KAFKA"
"""The variable with the servers of a broker that several processes share."""


class NoBroker(Exception):
    """Kafka cannot be started here; says why."""


def jars() -> Path:
    """The directory with the jars of Kafka, fetched if they are not there yet. Raises `NoBroker`."""
    return fetched(CACHE, _POM, "Kafka")


def fetched(cache: Path, pom: str, name: str) -> Path:
    """The directory with what a POM depends on, fetched by Maven if it is not there yet. Raises `NoBroker`."""
    ready = cache / "libs"
    cache.mkdir(parents=True, exist_ok=True)
    # Two processes of one test run must not fetch into each other's directory.
    with open(cache / "lock", "w", encoding="utf-8") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not ready.exists():
            _fetch(cache, pom, name, ready)
    return ready


def _fetch(cache: Path, pom: str, name: str, ready: Path) -> None:
    maven = shutil.which("mvn")
    if maven is None:
        raise NoBroker(f"mvn is missing, and {name} comes from Maven: install maven")
    file, partial = cache / "pom.xml", cache / "partial"
    file.write_text(pom, encoding="utf-8")
    shutil.rmtree(partial, ignore_errors=True)
    goal = "dependency:copy-dependencies"
    command = [maven, "-q", "-B", "-f", str(file), goal, f"-DoutputDirectory={partial}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    if done.returncode:
        raise NoBroker(f"Maven has not got {name}: {(done.stdout + done.stderr)[-500:]}")
    partial.rename(ready)


def free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    try:
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]
    finally:
        for each in sockets:
            each.close()


class Broker:
    """One broker. It keeps its port and its data from one `start` to the next."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._process: subprocess.Popen[bytes] | None = None
        self._port, controller = free_ports(2)
        self.servers = f"127.0.0.1:{self._port}"
        directory.mkdir(parents=True, exist_ok=True)
        text = _PROPERTIES.format(port=self._port, controller=controller, directory=directory)
        (directory / "server.properties").write_text(text, encoding="utf-8")
        (directory / "log4j2.yaml").write_text(_LOGGING, encoding="utf-8")

    def _java(self, heap: str, *arguments: str) -> list[str]:
        java = shutil.which("java")
        if java is None:
            raise NoBroker("java is missing, and Kafka runs on it")
        logging = f"-Dlog4j2.configurationFile={self.directory}/log4j2.yaml"
        # Few compiler threads and a small heap: the broker shares two cores with what is tested.
        quick = ["-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto"]
        return [java, f"-Xmx{heap}", *quick, logging, "-cp", f"{jars()}/*", *arguments]

    def start(self) -> None:
        properties = str(self.directory / "server.properties")
        if not (self.directory / "data" / "meta.properties").exists():
            cluster = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
            command = self._java("128m", "kafka.tools.StorageTool", "format", "-t", f"c{cluster[1:]}", "-c", properties)
            done = subprocess.run(command, capture_output=True, text=True, timeout=_UP_SECONDS, check=False)
            if done.returncode:
                raise NoBroker(f"the directory of the broker cannot be formatted: {(done.stdout + done.stderr)[-500:]}")
        with open(self.directory / "broker.log", "ab") as log:
            command = self._java("384m", "kafka.Kafka", properties)
            self._process = subprocess.Popen(bound(command), stdout=log, stderr=log)
        self._await_up()

    def _await_up(self) -> None:
        from confluent_kafka.admin import AdminClient

        assert self._process is not None
        deadline = time.monotonic() + _UP_SECONDS
        while time.monotonic() < deadline and self._process.poll() is None:
            try:
                socket.create_connection(("127.0.0.1", self._port), timeout=1).close()
                AdminClient(self.settings).list_topics(timeout=5)
                return
            except Exception:
                time.sleep(0.1)
        self.stop()
        log = (self.directory / "broker.log").read_text(encoding="utf-8", errors="replace")
        raise NoBroker(f"Kafka has not come up: {log[-1000:]}")

    @property
    def settings(self) -> dict[str, Any]:
        # A client that waits for a broker to come back says so on stderr, again and again.
        return {"bootstrap.servers": self.servers, "log_level": 0}

    def kill(self) -> None:
        """As `kill -9`: nothing is flushed, no transaction is ended."""
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        self._end(signal.SIGTERM)

    def _end(self, number: int) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        process.send_signal(number)
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


class SharedBroker(Broker):
    """A broker that another process has started, and ends: none of the tests may do that."""

    def __init__(self, servers: str) -> None:
        self.servers = servers

    def start(self) -> None:
        raise AssertionError("a shared broker runs already")

    def _end(self, number: int) -> None:
        raise AssertionError("a shared broker is not ended by a test: take the fixture mortal_topics")


@contextlib.contextmanager
def shared() -> Iterator[None]:
    """A broker for all processes that are started meanwhile, if Kafka can be started here. It ends with this process.

    Their topics have names that no other process has.
    """
    with tempfile.TemporaryDirectory(prefix="penstock-kafka-") as directory:
        broker = Broker(Path(directory))
        try:
            broker.start()
        except (NoBroker, ImportError):
            # Each test says so by itself.
            yield
            return
        os.environ[SHARED] = broker.servers
        try:
            yield
        finally:
            del os.environ[SHARED]
            broker.stop()


if __name__ == "__main__":
    try:
        print(f"The jars of Kafka {VERSION} are in {jars()}")
    except NoBroker as reason:
        sys.exit(str(reason))
