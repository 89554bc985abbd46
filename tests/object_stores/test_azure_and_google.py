"""Checkpoints on Azure's and Google's stores, as their emulators have them: create if absent, fencing, recovery."""

from __future__ import annotations

import base64
import http.client
import itertools
import json
import os
import secrets
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import pytest

from penstock import FencedError, StorageError
from penstock.storage import open_store
from penstock.storage.object_store import SINGLE_PUT_BYTES_MAX, ObjectStore
from penstock.testing import CollectSink, run
from tests.kafka.broker import free_ports
from tests.object_stores.emulators import NoEmulator, azurite, fake_gcs, running
from tests.object_stores.kit import EXPECTED, check_that_one_of_two_creates, found, totals

_NAMES = (f"bucket-{number}" for number in itertools.count())


@dataclass(frozen=True, slots=True)
class Cloud:
    """A bucket of its own for each test."""

    url: str
    options: dict[str, object]

    def store(self) -> ObjectStore:
        store = open_store(self.url, storage_options=self.options)
        assert isinstance(store, ObjectStore)
        return store


class Azure:
    """Azurite, with an account that nobody else has."""

    def __init__(self, stack: ExitStack) -> None:
        pytest.importorskip("adlfs", reason="the package adlfs is missing: pip install 'penstock[azure]'")
        (port,) = free_ports(1)
        account, key = "tests", base64.b64encode(os.urandom(32)).decode()
        arguments = ["--blobHost", "127.0.0.1", "--blobPort", str(port)]
        flags = ["--inMemoryPersistence", "--disableTelemetry", "--skipApiVersionCheck", "--silent"]
        command = [str(azurite()), *arguments, *flags]
        stack.enter_context(running(command, port, {"AZURITE_ACCOUNTS": f"{account}:{key}"}))
        endpoint = f"http://127.0.0.1:{port}/{account}"
        self._connection = (
            f"DefaultEndpointsProtocol=http;AccountName={account};AccountKey={key};BlobEndpoint={endpoint};"
        )

    def bucket(self, name: str) -> Cloud:
        import adlfs

        options: dict[str, object] = {"connection_string": self._connection, "skip_instance_cache": True}
        adlfs.AzureBlobFileSystem(**options).mkdir(name)
        return Cloud(f"abfs://{name}/checkpoints", options)


class Google:
    """fake-gcs-server, in memory."""

    def __init__(self, stack: ExitStack) -> None:
        pytest.importorskip("gcsfs", reason="the package gcsfs is missing: pip install 'penstock[gcs]'")
        (self._port,) = free_ports(1)
        self._endpoint = f"http://127.0.0.1:{self._port}"
        address = ["-scheme", "http", "-host", "127.0.0.1", "-port", str(self._port), "-external-url", self._endpoint]
        stack.enter_context(running([str(fake_gcs()), "-backend", "memory", *address], self._port, {}))

    def bucket(self, name: str) -> Cloud:
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=60)
        connection.request("POST", "/storage/v1/b?project=tests", json.dumps({"name": name}))
        assert connection.getresponse().status == 200
        connection.close()
        options: dict[str, object] = {"endpoint_url": self._endpoint, "token": "anon", "skip_instance_cache": True}
        return Cloud(f"gs://{name}/checkpoints", options)


@pytest.fixture(scope="module", params=[Azure, Google])
def server(request: pytest.FixtureRequest) -> Iterator[Azure | Google]:
    with ExitStack() as stack:
        try:
            made = request.param(stack)
        except NoEmulator as reason:
            # In CI too: docs/object-stores.md says why.
            pytest.skip(str(reason))
        yield made


@pytest.fixture
def cloud(server: Azure | Google) -> Cloud:
    return server.bucket(f"{next(_NAMES)}-{secrets.token_hex(4)}")


def manifests(store: ObjectStore) -> int:
    return sum(path.endswith("manifest.json") for path in store.list("checkpoints/"))


def test_of_two_that_create_one_file_at_once_one_succeeds(cloud: Cloud) -> None:
    check_that_one_of_two_creates(cloud.store(), cloud.store())


def test_a_driver_whose_directory_was_taken_over_stops_with_an_error(cloud: Cloud) -> None:
    output, looking = CollectSink(), cloud.store()
    is_taken = False

    def take_over() -> bool:
        nonlocal is_taken
        if not is_taken and manifests(looking):
            is_taken = True
            run(totals(output), store=cloud.store())
        return False

    with pytest.raises(FencedError, match="taken"):
        run(totals(CollectSink()), store=cloud.store(), until=take_over)
    assert is_taken
    assert found(output) == EXPECTED


def test_a_new_driver_goes_on_where_the_last_one_died(cloud: Cloud) -> None:
    class Died(BaseException):
        pass

    output, looking = CollectSink(), cloud.store()

    def die() -> bool:
        if manifests(looking):
            raise Died
        return False

    with pytest.raises(Died):
        run(totals(output), store=cloud.store(), until=die)
    before: Any = looking.list("checkpoints/")
    assert run(totals(output), store=cloud.store()).restarts == 0
    assert found(output) == EXPECTED
    assert max(looking.list("checkpoints/")) > max(before)


def test_a_pipeline_recovers_from_its_checkpoints(cloud: Cloud) -> None:
    output = CollectSink()
    run(totals(output), store=cloud.store(), crash_after_checkpoints=[1, 2], parallelism=2)
    assert found(output) == EXPECTED


def test_a_large_blob_is_read_back_whole_and_in_ranges_and_deleted(cloud: Cloud) -> None:
    store = cloud.store()
    large = bytes(range(256)) * (5 * SINGLE_PUT_BYTES_MAX // 2 // 256)
    path = "checkpoints/0000000001/state"
    store.write(path, [large[:1000], memoryview(large)[1000:]])
    assert store.read(path) == large
    assert store.read(path, 12_345_678, 1000) == large[12_345_678:12_346_678]
    store.delete(path, "checkpoints/0000000002/state")
    assert store.list("checkpoints/") == []


def test_a_bucket_that_is_not_there_is_told_without_secrets(cloud: Cloud) -> None:
    scheme = cloud.url.partition("://")[0]
    with pytest.raises(StorageError, match="gone-for-good") as told:
        open_store(f"{scheme}://gone-for-good/x", storage_options=cloud.options)
    assert str(cloud.options.get("connection_string", "AccountKey=")) not in str(told.value)
    assert "AccountKey" not in str(told.value)
