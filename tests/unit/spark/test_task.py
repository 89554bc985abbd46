"""A worker that comes up: what reaches it before its welcome must not be lost."""

from __future__ import annotations

import time

import pyarrow as pa
import pytest

from penstock.api.graph import Graph, Link, Node
from penstock.connectors.collect import CollectSink
from penstock.connectors.memory import ListSource
from penstock.errors import PenstockError
from penstock.ids import COORDINATOR, ChannelId, Generation, OperatorName, WorkerId
from penstock.plan.physical import plan
from penstock.protocol.manifest import Partitioning
from penstock.runtime.frames import BatchFrame, Endpoint, Frame, StopFrame, WelcomeFrame
from penstock.runtime.settings import WorkerSettings
from penstock.runtime.zmq_transport import ZmqTransport, make_secrets
from penstock.spark.task import Attempt, _await_welcome

G = Generation(4)


def attempt(driver: Endpoint, secrets: object, patience_ms: int = 5000) -> Attempt:
    nodes = Node(OperatorName("a"), source=ListSource([{"n": 1}])), Node(OperatorName("b"), sink=CollectSink())
    links = (Link(OperatorName("a"), OperatorName("b"), Partitioning.REBALANCE),)
    made = plan(Graph("p", nodes, links), 2)
    return Attempt(G, made, WorkerSettings(), secrets, driver, "unused", welcome_ms_max=patience_ms)  # type: ignore[arg-type]


def test_records_of_a_peer_that_was_welcomed_sooner_are_kept() -> None:
    secrets = make_secrets()
    driver, peer, own = (ZmqTransport(worker, secrets) for worker in (COORDINATOR, WorkerId(0), WorkerId(1)))
    try:
        early: list[Frame] = []
        sent = BatchFrame(G, ChannelId(1), pa.record_batch({"n": [1, 2]}), 16)
        peer.connect(WorkerId(1), own.endpoint)
        peer.send(WorkerId(1), sent)
        time.sleep(0.2)
        driver.connect(WorkerId(1), own.endpoint)
        driver.send(WorkerId(1), WelcomeFrame(G, (peer.endpoint, own.endpoint)))
        welcome = _await_welcome(attempt(driver.endpoint, secrets), own, early)
        assert welcome == WelcomeFrame(G, (peer.endpoint, own.endpoint))
        assert early == [sent]
    finally:
        for transport in (driver, peer, own):
            transport.close()


def test_a_gang_that_is_called_off_is_no_error_and_a_driver_that_is_silent_is_one() -> None:
    secrets = make_secrets()
    driver, own = ZmqTransport(COORDINATOR, secrets), ZmqTransport(WorkerId(1), secrets)
    try:
        driver.connect(WorkerId(1), own.endpoint)
        driver.send(WorkerId(1), StopFrame(G))
        assert _await_welcome(attempt(driver.endpoint, secrets), own, []) is None
        with pytest.raises(PenstockError, match="the driver did not answer within 50 ms"):
            _await_welcome(attempt(driver.endpoint, secrets, patience_ms=50), own, [])
    finally:
        driver.close()
        own.close()
