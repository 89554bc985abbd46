"""Pipelines in this process that a dashboard can look at: the driver's loop runs in a thread, as on Spark."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pyarrow as pa
from starlette.applications import Starlette

from penstock import CallableSink, GeneratorSource, Pipeline
from penstock.dashboard.app import application
from penstock.dashboard.guard import Guard
from penstock.dashboard.sights.live import LiveSight
from penstock.driver.control import Command
from penstock.driver.settings import SupervisorSettings
from penstock.exchange.zmq_transport import RealClock
from penstock.graph.physical import plan
from penstock.ids import WorkerId
from penstock.mailbox.frames import ProfiledFrame
from penstock.mailbox.notes import Stack
from penstock.protocol.coordinator.state import Policy, RequestKind
from penstock.protocol.restart import RestartPolicy
from penstock.spark.watched import Watched
from penstock.storage import LocalStore, MemoryStore
from penstock.testing.local import _AsItComes, _Local
from penstock.worker.settings import WorkerSettings

HOSTILE = "<script>alert('x')</script>"
TOKEN = "a-token-for-tests-0123456789abcdefghij"
PATIENCE_S = 60.0
"""Only a test that hangs takes this long."""


class CountedRows:
    """Counts the rows that a sink has been given: the truth that figures are compared with."""

    def __init__(self) -> None:
        self.rows = 0

    def __call__(self, batch: pa.RecordBatch) -> None:
        self.rows += batch.num_rows


def numbers(start: int, count: int) -> pa.RecordBatch:
    values = range(start, start + count)
    return pa.record_batch({"n": values, "key": [n % 7 for n in values], "at": [1_700_000_000_000 + n for n in values]})


def counting(
    name: str = "counting", *, rows: int | None = None, bad_row: int | None = None, windows: bool = False
) -> Any:
    """A pipeline with event time, keyed state and a hostile name, and the counter behind its sink."""
    counted = CountedRows()
    failed: list[int] = []

    def checked(batch: pa.RecordBatch) -> pa.RecordBatch:
        if bad_row is not None and bad_row in batch.column("n").to_pylist() and not failed:
            failed.append(bad_row)
            raise ValueError(f"row {bad_row} is bad")
        return batch

    pipeline = Pipeline(name)
    source = GeneratorSource(numbers, rows_per_second=20_000, rows=rows, splits=2)
    events = pipeline.source(source, name="numbers").map(checked, name=HOSTILE)
    timed = events.with_watermark("at", "1 s", name="times")
    if windows:
        timed.key_by("key").window("1 s").aggregate(n="count", name="windows").sink(CallableSink(len), name="windowed")
    timed.key_by("key").sum("n", name="sums").sink(CallableSink(counted), name="out")
    return pipeline, counted


class Running:
    """A pipeline whose driver and workers run in one thread."""

    def __init__(self, pipeline: Pipeline, store: Any = None, parallelism: int = 2) -> None:
        graph = pipeline.graph()
        self.plan = plan(graph, parallelism, 1)
        policy = Policy(interval_ms=50, backoff_ms=5, alignment_timeout_ms=100)
        self.local = _Local(
            graph,
            self.plan,
            SupervisorSettings(
                policy=policy,
                restart=RestartPolicy(10, delay_ms=1, delay_ms_max=10, repeats_max=None),
                worker_silence_ms=3_600_000,
            ),
            WorkerSettings(driver_silence_ms=3_600_000, heartbeat_ms=50),
            store or MemoryStore(),
            [],
            _AsItComes(),
        )
        self.orders: list[Command] = []
        self._until = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def _run(self) -> None:
        try:
            self.local.run(self._until.is_set, PATIENCE_S)
        except Exception as error:
            self.error: Exception = error

    @property
    def supervisor(self) -> Any:
        return self.local.supervisor

    def watched(self) -> Watched:
        return Watched(
            supervisor=self.supervisor,
            plan=self.plan,
            store=self.local.result.store,
            place="memory",
            clock=RealClock(),
            checkpoint_interval_ms=50,
            channel_bytes_max=1 << 20,
            settings={"checkpoint_interval": "50 ms"},
            order=self._order,
            profile=self._profile,
        )

    def _order(self, command: Command) -> None:
        self.orders.append(command)
        if command is Command.SAVEPOINT:
            self.local.inbox.append(lambda: self.supervisor.request(RequestKind.SAVEPOINT, lambda result: None))
        else:
            self._until.set()

    def _profile(self, worker: WorkerId, seconds: float) -> Future[ProfiledFrame]:
        answer: Future[ProfiledFrame] = Future()
        stack = Stack((("f", "a.py", 1, 0),), 3, "sums")
        answer.set_result(ProfiledFrame(self.local.generation, worker, 1, 5, seconds, (stack,)))
        return answer

    def start(self) -> Running:
        self._thread.start()
        return self

    def stop(self) -> None:
        self._until.set()
        self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive()


class Client:
    """Calls an application without a network."""

    def __init__(self, app: Starlette) -> None:
        self.app = app

    def request(self, method: str, path: str, **more: Any) -> httpx.Response:
        async def ask() -> httpx.Response:
            transport = httpx.ASGITransport(self.app, raise_app_exceptions=False)
            async with httpx.AsyncClient(transport=transport, base_url="http://localhost:4050") as client:
                return await client.request(method, path, **more)

        return asyncio.run(ask())

    def get(self, path: str, **more: Any) -> httpx.Response:
        return self.request("GET", path, **more)

    def post(self, path: str, **more: Any) -> httpx.Response:
        return self.request("POST", path, **more)


@contextmanager
def running(pipeline: Pipeline, store: Any = None) -> Iterator[tuple[Running, LiveSight, Client]]:
    """A pipeline that runs, and a client of its application."""
    ran = Running(pipeline, store).start()
    sight = LiveSight(ran.watched())
    client = Client(application(sight, Guard(TOKEN)))
    try:
        yield ran, sight, client
    finally:
        ran.stop()


def wait_for(found: Callable[[], Any]) -> Any:
    """Wait until `found` returns something, and return it."""
    until = time.monotonic() + PATIENCE_S
    while not (value := found()):
        assert time.monotonic() < until, "it never came"
        time.sleep(0.02)
    return value


def local_store(path: Path) -> LocalStore:
    return LocalStore(path)
