"""A worker in a process of its own, whose user function does not return before a file is there."""

from __future__ import annotations

import os
import time
from typing import Any

from penstock.connectors.collect import CollectSink
from penstock.connectors.memory import ListSource
from penstock.exchange.zmq_transport import Secrets
from penstock.graph.physical import plan
from penstock.ids import Generation, WorkerId
from penstock.mailbox.frames import Endpoint
from penstock.pipeline import Pipeline
from penstock.spark.task import WorkerLaunch, work
from penstock.worker.settings import WorkerSettings

GENERATION = Generation(4)
HEARTBEAT_MS = 50


def main(driver: Endpoint, secrets: Secrets, directory: str) -> None:
    def score(batch: Any) -> Any:
        while not os.path.exists(f"{directory}/go"):
            time.sleep(0.01)
        return batch

    pipeline = Pipeline("p")
    pipeline.source(ListSource([{"n": 1}])).map(score, name="slow").sink(CollectSink())
    settings = WorkerSettings(heartbeat_ms=HEARTBEAT_MS, driver_silence_ms=200)
    made = plan(pipeline.graph(), 1, 1)
    work(WorkerLaunch(GENERATION, made, settings, secrets, driver, directory), WorkerId(0), None)
