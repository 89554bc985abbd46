"""Sessions: the address at which their workers reach the driver."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from penstock.errors import OptionError
from penstock.spark import sessions
from penstock.spark.sessions import driver_address


def session(master: str, server: str | None = None) -> Any:
    conf = {"spark.master": master, "spark.driver.host": "10.0.0.1"}
    made = SimpleNamespace(conf=SimpleNamespace(get=lambda name, default=None: conf.get(name, default)))
    if server is None:
        made._sc = object()
    else:
        made.client = SimpleNamespace(host=server)
    return made


@pytest.mark.parametrize(
    ("master", "server", "address"),
    [
        ("local[2]", None, None),
        ("spark://host:7077", None, "10.0.0.1"),
        ("local[2]", "localhost", None),
        ("spark://host:7077", "127.0.0.1", "10.0.0.1"),
        # A server elsewhere: neither its master nor its driver says anything about this host.
        ("local[2]", "spark.example", "10.0.0.7"),
        ("spark://host:7077", "spark.example", "10.0.0.7"),
    ],
)
def test_workers_reach_the_process_that_holds_the_job_and_not_the_connect_server(
    monkeypatch: pytest.MonkeyPatch, master: str, server: str | None, address: str | None
) -> None:
    monkeypatch.setattr(sessions, "_address_towards", lambda host: {"spark.example": "10.0.0.7"}[host])
    assert driver_address(session(master, server)) == address


def test_the_address_is_that_of_the_route_to_the_server() -> None:
    assert sessions._address_towards("127.0.0.2").startswith("127.")
    with pytest.raises(OptionError, match="this host has no route there"):
        sessions._address_towards("not a host")
