"""The examples of the documents that need Kafka, run as a reader would run them."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import pytest

from tests.architecture.test_docs_are_true import examples
from tests.kafka.kit import Topics
from tests.kafka.registry_server import RegistryServer


@pytest.mark.parametrize(("heading", "source"), examples("python kafka"))
def test_every_example_runs_on_kafka(heading: str, source: str, topics: Topics, registry: RegistryServer) -> None:
    names: dict[str, Any] = vars(ModuleType("__main__"))
    here = source.replace("localhost:9092", topics.servers).replace("http://localhost:8081", registry.url)
    exec(compile(here, "<example>", "exec"), names)
