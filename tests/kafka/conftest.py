"""One broker for all tests of Kafka. Where it cannot start: a failure in CI, else a skipped test that says why."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.kafka.broker import SHARED, Broker, NoBroker, SharedBroker
from tests.kafka.kit import Topics
from tests.kafka.registry_server import SHARED as SHARED_REGISTRY
from tests.kafka.registry_server import Gate, RegistryServer, SharedRegistry


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    if SHARED in os.environ:
        yield SharedBroker(os.environ[SHARED])
        return
    with _started(tmp_path_factory.mktemp("kafka")) as made:
        yield made


@contextmanager
def _started(directory: Path) -> Iterator[Broker]:
    try:
        import confluent_kafka  # noqa: F401

        made = Broker(directory)
        made.start()
    except (NoBroker, ImportError) as reason:
        if os.environ.get("CI") or os.environ.get("PENSTOCK_REQUIRE_COMPONENTS"):
            pytest.fail(f"Kafka cannot be started, and this run requires it: {reason}")
        pytest.skip(f"Kafka cannot be started: {reason}")
    yield made
    made.stop()


@pytest.fixture
def topics(broker: Broker) -> Topics:
    return Topics(broker)


@pytest.fixture
def mortal_topics(broker: Broker, tmp_path: Path) -> Iterator[Topics]:
    """Of a broker that the test may kill: no other process has it."""
    if not isinstance(broker, SharedBroker):
        yield Topics(broker)
        return
    with _started(tmp_path / "kafka") as made:
        yield Topics(made)


@pytest.fixture(scope="session")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RegistryServer]:
    if SHARED_REGISTRY in os.environ:
        yield SharedRegistry(os.environ[SHARED_REGISTRY])
        return
    made = RegistryServer(tmp_path_factory.mktemp("registry"))
    try:
        made.start()
    except NoBroker as reason:
        if os.environ.get("CI") or os.environ.get("PENSTOCK_REQUIRE_COMPONENTS"):
            pytest.fail(f"the registry cannot be started, and this run requires it: {reason}")
        pytest.skip(f"the registry cannot be started: {reason}")
    yield made
    made.stop()


@pytest.fixture
def gate(registry: RegistryServer) -> Iterator[Gate]:
    made = Gate(registry)
    yield made
    made.close()
