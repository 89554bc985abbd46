"""Checkpoints on Azure's and Google's stores, as their emulators have them, behind a proxy that can fail."""

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
from tests.object_stores.fault_proxy import AZURE, GOOGLE, Fault, FaultProxy
from tests.object_stores.kit import EXPECTED, check_that_one_of_two_creates, found, totals

_NAMES = (f"bucket-{number}" for number in itertools.count())


@dataclass(frozen=True, slots=True)
class Cloud:
    """A bucket of its own for each test."""

    url: str
    options: dict[str, object]
    proxy: FaultProxy

    def parts(self) -> list[str]:
        """Requests that brought a part of an upload, in their order."""
        return [request for request in self.proxy.seen if is_part(request)]

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
        self.port, self.throttled = port, AZURE
        self._account = f"DefaultEndpointsProtocol=http;AccountName={account};AccountKey={key}"
        self._path = account

    def bucket(self, name: str, proxy: FaultProxy) -> Cloud:
        import adlfs

        connection = f"{self._account};BlobEndpoint={proxy.url}/{self._path};"
        options: dict[str, object] = {"connection_string": connection, "skip_instance_cache": True}
        adlfs.AzureBlobFileSystem(**options).mkdir(name)
        return Cloud(f"abfs://{name}/checkpoints", options, proxy)


class Google:
    """fake-gcs-server, in memory."""

    def __init__(self, stack: ExitStack) -> None:
        pytest.importorskip("gcsfs", reason="the package gcsfs is missing: pip install 'penstock[gcs]'")
        (self.port,) = free_ports(1)
        self.throttled = GOOGLE
        url = f"http://127.0.0.1:{self.port}"
        address = ["-scheme", "http", "-host", "127.0.0.1", "-port", str(self.port), "-external-url", url]
        stack.enter_context(running([str(fake_gcs()), "-backend", "memory", *address], self.port, {}))

    def bucket(self, name: str, proxy: FaultProxy) -> Cloud:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        connection.request("POST", "/storage/v1/b?project=tests", json.dumps({"name": name}))
        assert connection.getresponse().status == 200
        connection.close()
        options: dict[str, object] = {"endpoint_url": proxy.url, "token": "anon", "skip_instance_cache": True}
        return Cloud(f"gs://{name}/checkpoints", options, proxy)


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
def cloud(server: Azure | Google, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cloud]:
    if isinstance(server, Azure):
        from azure.storage.blob._shared.policies_async import ExponentialRetry

        # Azure's client waits for 12 to 18 s after the first failure, and adlfs has no setting for it.
        monkeypatch.setattr(ExponentialRetry, "get_backoff_time", lambda self, settings: 0.05)
    proxy = FaultProxy(server.port, server.throttled)
    try:
        yield server.bucket(f"{next(_NAMES)}-{secrets.token_hex(4)}", proxy)
    finally:
        proxy.close()


def is_part(request: str) -> bool:
    """Whether a request is a block of Azure, or goes to where Google takes an upload in parts."""
    return "comp=block&" in request or "upload_id=" in request


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


def test_a_large_blob_is_uploaded_in_parts_and_read_back_whole_and_in_ranges_and_deleted(cloud: Cloud) -> None:
    store = cloud.store()
    large = bytes(range(256)) * (5 * SINGLE_PUT_BYTES_MAX // 2 // 256)
    path = "checkpoints/0000000001/state"
    store.write(path, [large[:1000], memoryview(large)[1000:]])
    assert len(cloud.parts()) >= 3
    assert store.read(path) == large
    assert store.read(path, 12_345_678, 1000) == large[12_345_678:12_346_678]
    store.delete(path, "checkpoints/0000000002/state")
    assert store.list("checkpoints/") == []


def test_an_upload_that_fails_in_the_middle_leaves_no_file(cloud: Cloud) -> None:
    store = cloud.store()
    seen = 0

    def plan(number: int, method: str, path: str) -> Fault | None:
        """The first part arrives, and none after it, however often it is sent."""
        nonlocal seen
        if not is_part(path):
            return None
        seen += 1
        return "refuse" if seen > 1 else None

    cloud.proxy.plan = plan
    with pytest.raises(StorageError, match="cannot write"):
        store.write("checkpoints/0000000001/state", [bytes(3 * SINGLE_PUT_BYTES_MAX)])
    cloud.proxy.plan = lambda number, method, path: None
    assert cloud.store().list("checkpoints/") == []


@pytest.mark.parametrize("fault", ["throttle", "delay"])
def test_a_pipeline_comes_through_throttling_and_slow_answers(cloud: Cloud, fault: Fault) -> None:
    output = CollectSink()
    store = cloud.store()
    cloud.proxy.plan = lambda number, method, path: fault if number % 8 == 0 else None
    run(totals(output), store=store, crash_after_checkpoints=[1, 2], parallelism=2)
    assert found(output) == EXPECTED
    assert cloud.proxy.faults[fault] > 2


def test_a_pipeline_comes_through_answers_that_are_lost_although_the_server_did_it(cloud: Cloud) -> None:
    """A conditional put whose answer is lost is sent again, and told that the file is there: its own."""
    output = CollectSink()
    store = cloud.store()
    cloud.proxy.plan = lambda number, method, path: (
        "lose the answer" if method in ("PUT", "POST", "DELETE") and number % 3 == 0 else None
    )
    run(totals(output), store=store, crash_after_checkpoints=[1, 2], parallelism=2)
    assert found(output) == EXPECTED
    assert cloud.proxy.faults["lose the answer"] > 2


def test_of_two_drivers_on_a_store_that_throttles_one_is_fenced(cloud: Cloud) -> None:
    output, looking = CollectSink(), cloud.store()
    stores = [cloud.store(), cloud.store()]
    is_taken = False

    def take_over() -> bool:
        nonlocal is_taken
        if not is_taken and manifests(looking):
            is_taken = True
            cloud.proxy.plan = lambda number, method, path: (
                ("throttle", "delay", "lose the answer")[number // 5 % 3] if number % 5 == 0 else None
            )
            run(totals(output), store=stores[1])
        return False

    with pytest.raises(FencedError, match="taken"):
        run(totals(CollectSink()), store=stores[0], until=take_over)
    assert is_taken
    assert found(output) == EXPECTED
    assert min(cloud.proxy.faults[fault] for fault in ("throttle", "delay", "lose the answer")) > 0


def test_a_bucket_that_is_not_there_is_told_without_secrets(cloud: Cloud) -> None:
    scheme = cloud.url.partition("://")[0]
    with pytest.raises(StorageError, match="gone-for-good") as told:
        open_store(f"{scheme}://gone-for-good/x", storage_options=cloud.options)
    assert str(cloud.options.get("connection_string", "AccountKey=")) not in str(told.value)
    assert "AccountKey" not in str(told.value)
