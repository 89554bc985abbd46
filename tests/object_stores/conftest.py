"""An S3 server for these tests, `moto` on a free port of loopback, with a proxy in front that can fail."""

from __future__ import annotations

import http.client
import itertools
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from penstock.storage import open_store
from penstock.storage.object_store import ObjectStore
from tests.components import bound, required_package
from tests.object_stores.fault_proxy import FaultProxy

# gcsfs would ask Google itself about the bucket, whatever the endpoint. It looks at this when it is imported.
os.environ.setdefault("GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT", "false")

_BUCKETS = (f"bucket-{number}" for number in itertools.count())


@dataclass(frozen=True, slots=True)
class Bucket:
    """A bucket of its own for each test, reached through the proxy."""

    name: str
    proxy: FaultProxy

    @property
    def url(self) -> str:
        return f"s3://{self.name}/checkpoints"

    @property
    def options(self) -> dict[str, object]:
        return {
            "key": "test",
            "secret": "test",
            "endpoint_url": self.proxy.url,
            "client_kwargs": {"region_name": "us-east-1"},
            # A new client each time: that of another test may have an endpoint that is gone.
            "skip_instance_cache": True,
        }

    def store(self) -> ObjectStore:
        store = open_store(self.url, storage_options=self.options)
        assert isinstance(store, ObjectStore)
        return store


@pytest.fixture(scope="session")
def s3_port() -> Iterator[int]:
    required_package("moto")
    required_package("s3fs")
    required_package("flask")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    # A process of its own: native clients may hold the interpreter while they wait for an answer.
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    nowhere = subprocess.DEVNULL
    server = subprocess.Popen(bound(command), stdout=nowhere, stderr=nowhere)
    try:
        _await(port, server)
        yield port
    finally:
        server.kill()
        server.wait()


def _await(port: int, server: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + 60
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), 2).close()
            return
        except OSError:
            if server.poll() is not None or time.monotonic() > deadline:
                pytest.fail("the S3 server of moto does not start")
            time.sleep(0.05)


@pytest.fixture
def bucket(s3_port: int) -> Iterator[Bucket]:
    proxy = FaultProxy(s3_port)
    made = Bucket(next(_BUCKETS), proxy)
    connection = http.client.HTTPConnection("127.0.0.1", s3_port, timeout=60)
    connection.request("PUT", f"/{made.name}")
    assert connection.getresponse().status == 200
    connection.close()
    try:
        yield made
    finally:
        proxy.close()
