"""An S3 server for these tests, `moto` on a free port of loopback, with a proxy in front that can fail."""

from __future__ import annotations

import http.client
import itertools
import threading
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from penstock.storage import open_store
from penstock.storage.object_store import ObjectStore
from tests.object_stores.fault_proxy import FaultProxy
from tests.tables.components import required_package

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
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    try:
        yield server.get_host_and_port()[1]
    finally:
        threading.Thread(target=server.stop, daemon=True).start()


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
