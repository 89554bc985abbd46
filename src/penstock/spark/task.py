"""What runs inside a Spark task: one worker, from the first word to the driver until it is told to stop.

All that it needs comes in Spark's own closure, as a `WorkerLaunch`; there is no other channel for code. State does not:
the worker reads the checkpoint that it starts from out of the store.
"""

from __future__ import annotations

import contextlib
import functools
import os
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from penstock.errors import OptionError, PenstockError
from penstock.exchange.zmq_transport import RealClock, Secrets, ZmqTransport
from penstock.graph.physical import PhysicalPlan
from penstock.ids import COORDINATOR, CheckpointId, Generation, WorkerId
from penstock.mailbox.activity import Activity
from penstock.mailbox.frames import Endpoint, FailedFrame, Frame, HelloFrame, StopFrame, WelcomeFrame
from penstock.mailbox.threads import Mail, ThreadBackground
from penstock.protocol.ownership import Reservation
from penstock.spark.environment import entry, versions
from penstock.storage import open_store
from penstock.storage.copies import read_manifest
from penstock.storage.port import Store
from penstock.worker.host import Process, WorkerLog
from penstock.worker.loop import run_worker
from penstock.worker.pulse import Pulse, WorkerBeat
from penstock.worker.scheduling.memory import rare_collections, retain_freed_memory
from penstock.worker.settings import WorkerSettings
from penstock.worker.shared import require_shared
from penstock.worker.worker import Worker

_HEARD_MS_MAX = 5_000
"""The driver has this long to answer a failure."""
_SWITCH_S = 0.0005
"""How long a thread of a worker may keep the interpreter to itself while another one wants it."""


@dataclass(frozen=True, slots=True)
class WorkerLaunch:
    """One generation of a pipeline, as its workers must know it."""

    generation: Generation
    plan: PhysicalPlan
    settings: WorkerSettings
    secrets: Secrets
    driver: Endpoint
    store_url: str
    restored: CheckpointId | None = None
    """The checkpoint to start from. Its manifest is read by the workers: it may be too large for a closure of Spark."""
    is_local: bool = True
    """Whether all workers are on the driver's host, so that nobody needs to listen on the network."""
    storage_options: dict[str, object] = field(default_factory=dict)
    welcome_ms_max: int = 120_000
    reservation: Reservation | None = None
    """With which the driver took its directory over; a worker that does not see it sees another directory."""


def task(launch: WorkerLaunch) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """The function for `mapInArrow`: it takes one row, the number of the worker, and gives back none."""
    from pyspark import cloudpickle

    return entry(cloudpickle.dumps(functools.partial(_run, launch)), versions())


def _run(launch: WorkerLaunch) -> None:
    from pyspark import BarrierTaskContext

    context = BarrierTaskContext.get()
    number = context.partitionId()
    address = None if launch.is_local else context.getTaskInfos()[number].address.split(":")[0]
    work(launch, WorkerId(number), address)


def work(launch: WorkerLaunch, number: WorkerId, address: str | None) -> None:
    """Be worker `number` of an attempt until it ends.

    Raises what the worker failed with, unless the driver has heard of it: Spark would print stack traces of it.
    """
    retain_freed_memory()
    # The first array that is made of a numpy array imports pandas, which takes a while: now, and not between records.
    pa.array(np.empty(0))
    # Uploads run beside user code that may hold the interpreter: each time they come back from the disk they would
    # wait for as long as this, several times in a checkpoint.
    sys.setswitchinterval(_SWITCH_S)
    transport = ZmqTransport(number, launch.secrets, address)
    mail = Mail(transport.wake)
    background = ThreadBackground(mail)
    resources = contextlib.ExitStack()
    try:
        resources.enter_context(rare_collections())
        transport.connect(COORDINATOR, launch.driver)
        store = _open_store(launch, number, transport)
        hello = HelloFrame(launch.generation, number, transport.endpoint, os.getpid())
        transport.send(COORDINATOR, hello)
        early: list[Frame] = []
        welcome = _await_welcome(launch, transport, early)
        if welcome is None:
            return
        for peer, endpoint in enumerate(welcome.endpoints):
            if peer != number:
                transport.connect(WorkerId(peer), endpoint)
        clock, activity = RealClock(), Activity()
        log = resources.enter_context(WorkerLog(activity))
        worker = Worker(
            number,
            launch.plan,
            launch.generation,
            launch.settings,
            clock=clock,
            transport=transport,
            background=background,
            store=store,
            manifest=None if launch.restored is None else read_manifest(store, launch.restored),
            host=Process(threading.get_ident(), mail.post, log),
            activity=activity,
        )
        beat = WorkerBeat(worker, threading.get_ident(), lambda: transport.pulse(launch.driver))
        with Pulse(beat, max(1, launch.settings.heartbeat_ms // 2)):
            run_worker(worker, transport, mail, clock, early)
        transport.flush()
        if worker.failure is not None and not (worker.has_reported and _is_heard(launch, transport)):
            raise worker.failure
    finally:
        resources.close()
        background.close()
        transport.close()


def _open_store(launch: WorkerLaunch, number: WorkerId, transport: ZmqTransport) -> Store:
    """The store of the driver; if it is another one here, the pipeline is ended at once."""
    store = open_store(launch.store_url, check=False, storage_options=launch.storage_options or None)
    if launch.reservation is not None:
        try:
            require_shared(store, launch.reservation)
        except OptionError as error:
            transport.send(COORDINATOR, FailedFrame(launch.generation, number, str(error), kind=type(error).__name__))
            transport.flush()
            raise
    return store


def _is_heard(launch: WorkerLaunch, transport: ZmqTransport) -> bool:
    """Whether the driver answers a failure: it ends the attempt. If it does not, Spark must bring it the news."""
    clock = RealClock()
    until_ms = clock.now_ms() + _HEARD_MS_MAX
    while (left_ms := until_ms - clock.now_ms()) > 0:
        # A peer that has left already says nothing about the driver.
        with contextlib.suppress(PenstockError):
            for frame in transport.receive():
                if isinstance(frame, StopFrame) and frame.generation == launch.generation:
                    return True
        transport.wait(left_ms)
    return False


def _await_welcome(launch: WorkerLaunch, transport: ZmqTransport, early: list[Frame]) -> WelcomeFrame | None:
    """Wait until all workers have come; None if it was called off.

    Workers that were welcomed sooner may be sending already: what comes from them is kept in `early`.
    """
    clock = RealClock()
    until_ms = clock.now_ms() + launch.welcome_ms_max
    while (left_ms := until_ms - clock.now_ms()) > 0:
        for frame in transport.receive():
            if frame.generation != launch.generation:
                continue
            if isinstance(frame, WelcomeFrame):
                return frame
            if isinstance(frame, StopFrame):
                return None
            early.append(frame)
        transport.wait(left_ms)
    raise PenstockError(
        f"the driver did not answer within {launch.welcome_ms_max} ms: it is gone, or this host cannot reach it"
    )
