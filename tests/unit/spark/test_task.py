"""A worker that comes up: what reaches it before its welcome must not be lost."""

from __future__ import annotations

import threading
import time
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

from penstock.connectors.collect import CollectSink
from penstock.connectors.memory import ListSource
from penstock.errors import OptionError, PenstockError, UserCodeError
from penstock.exchange.zmq_transport import ZmqTransport, make_secrets
from penstock.graph.logical import Graph, LogicalEdge, Node
from penstock.graph.physical import plan
from penstock.ids import COORDINATOR, ChannelId, CheckpointId, Generation, OperatorName, WorkerId
from penstock.mailbox.frames import BatchFrame, Endpoint, FailedFrame, Frame, HelloFrame, StopFrame, WelcomeFrame
from penstock.pipeline import Pipeline
from penstock.protocol.manifest import Partitioning
from penstock.protocol.manifest.codec import encode_reservation
from penstock.protocol.ownership import Reservation
from penstock.spark import task as task_module
from penstock.spark.task import WorkerLaunch, _await_welcome, work
from penstock.storage import LocalStore, paths
from penstock.worker import shared
from penstock.worker.settings import WorkerSettings

G = Generation(4)


def launch(driver: Endpoint, secrets: object, patience_ms: int = 5000) -> WorkerLaunch:
    nodes = Node(OperatorName("a"), source=ListSource([{"n": 1}])), Node(OperatorName("b"), sink=CollectSink())
    links = (LogicalEdge(OperatorName("a"), OperatorName("b"), Partitioning.REBALANCE),)
    made = plan(Graph("p", nodes, links), 2)
    return WorkerLaunch(G, made, WorkerSettings(), secrets, driver, "unused", welcome_ms_max=patience_ms)  # type: ignore[arg-type]


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
        welcome = _await_welcome(launch(driver.endpoint, secrets), own, early)
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
        assert _await_welcome(launch(driver.endpoint, secrets), own, []) is None
        with pytest.raises(PenstockError, match="the driver did not answer within 50 ms"):
            _await_welcome(launch(driver.endpoint, secrets, patience_ms=50), own, [])
    finally:
        driver.close()
        own.close()


@pytest.mark.parametrize("other", ["empty", "another driver's"])
def test_a_worker_that_sees_another_directory_than_the_driver_ends_the_pipeline_with_host_and_path(
    other: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared, "_PAUSE_S", 0.0)
    reservation = Reservation(CheckpointId(7), G, token="drivers")
    here = LocalStore(tmp_path / "here")
    if other != "empty":
        theirs = replace(reservation, token="theirs")
        here.create(paths.reserved(theirs.checkpoint), encode_reservation(theirs))
    secrets = make_secrets()
    driver = ZmqTransport(COORDINATOR, secrets)
    try:
        launched = replace(launch(driver.endpoint, secrets), store_url=here.url, reservation=reservation)
        with pytest.raises(OptionError, match="the checkpoint directory is not shared"):
            work(launched, WorkerId(1), None)
        frame = next(iter(_received(driver)))
        assert isinstance(frame, FailedFrame) and frame.kind == "OptionError"
        assert str(tmp_path / "here") in frame.error and "on host " in frame.error
        assert "mount a shared file system" in frame.error
        assert set(here.list("")) <= {paths.reserved(reservation.checkpoint)}
    finally:
        driver.close()


def test_a_worker_that_sees_the_directory_of_the_driver_says_hello(tmp_path: Path) -> None:
    reservation = Reservation(CheckpointId(7), G, token="drivers")
    store = LocalStore(tmp_path)
    store.create(paths.reserved(reservation.checkpoint), encode_reservation(reservation))
    secrets = make_secrets()
    driver = ZmqTransport(COORDINATOR, secrets)
    try:
        launched = replace(launch(driver.endpoint, secrets), store_url=store.url, reservation=reservation)
        worker = threading.Thread(target=work, args=(launched, WorkerId(1), None), daemon=True)
        worker.start()
        hello = next(iter(_received(driver)))
        assert isinstance(hello, HelloFrame)
        driver.connect(WorkerId(1), hello.endpoint)
        driver.send(WorkerId(1), StopFrame(G))
        worker.join(60)
        assert not worker.is_alive()
    finally:
        driver.close()


@pytest.mark.parametrize("is_heard", [True, False])
def test_a_worker_that_fails_leaves_quietly_if_the_driver_has_heard_of_it_and_else_raises(
    is_heard: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(task_module, "_HEARD_MS_MAX", 60_000 if is_heard else 50)

    def typo(batch: pa.RecordBatch) -> pa.RecordBatch:
        return batch.select(["m"])

    pipeline = Pipeline("p")
    pipeline.source(ListSource([{"n": 1}])).map(typo, name="enrich").sink(CollectSink())
    secrets = make_secrets()
    driver = ZmqTransport(COORDINATOR, secrets)
    raised: list[Exception] = []

    def run() -> None:
        launched = WorkerLaunch(
            G, plan(pipeline.graph(), 1, 1), WorkerSettings(), secrets, driver.endpoint, LocalStore(tmp_path).url
        )
        try:
            work(launched, WorkerId(0), None)
        except Exception as error:
            raised.append(error)

    worker = threading.Thread(target=run, daemon=True)
    try:
        worker.start()
        frames = _received(driver)
        hello = frames[0]
        assert isinstance(hello, HelloFrame)
        driver.connect(WorkerId(0), hello.endpoint)
        driver.send(WorkerId(0), WelcomeFrame(G, (hello.endpoint,)))
        while not any(isinstance(frame, FailedFrame) for frame in frames):
            frames = _received(driver)
        if is_heard:
            driver.send(WorkerId(0), StopFrame(G))
        worker.join(60)
        assert not worker.is_alive()
        assert [type(error) for error in raised] == ([] if is_heard else [UserCodeError])
    finally:
        driver.close()


def _received(transport: ZmqTransport) -> list[Frame]:
    """What has arrived; waits for something."""
    until = time.monotonic() + 60
    while time.monotonic() < until:
        if frames := list(transport.receive()):
            return frames
        transport.wait(100)
    raise AssertionError("nothing has arrived")
