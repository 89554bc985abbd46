"""One pipeline on Spark, rescaled twice through checkpoints with in-flight data, and killed while it recovers."""

from __future__ import annotations

import os
import random
import signal
from dataclasses import dataclass
from pathlib import Path

from pyspark.sql import SparkSession

from penstock.driver.attempts.phases import Phase
from penstock.spark.job import Job
from tests.simulation.topologies import Load
from tests.spark.kit import build, completed, launch, until

PAIRS = (("keyed_broadcast", 7, 2), ("keyed_broadcast", 2, 7), ("pipeline", 3, 5), ("pipeline", 5, 3), ("keyed", 4, 1))
"""Topology, old and new parallelism."""

_ROWS = 12_000
_SLOW_US = 250
_PATIENCE_S = 180.0


@dataclass(slots=True)
class Outcome:
    """What one run came to."""

    verdict: dict[str, object]
    kills: int = 0
    checkpoints: int = 0
    checkpoints_while_recovering: int = 0
    inflight_bytes: int = 0
    """In the checkpoints that were restored."""

    @property
    def is_flawless(self) -> bool:
        return not any(self.verdict.values())


def play(spark: SparkSession, name: str, old: int, new: int, root: Path, rng: random.Random) -> Outcome:
    """Run at `old` under backpressure, stop; at `new`, with a kill while recovering, stop; at either, to the end."""
    outcome = Outcome({})
    load = Load(old, _ROWS // old, 16, 0.0, _SLOW_US, splits=old)
    _, topology = build(name, root, load)
    job = launch(topology, spark, root, parallelism=old)
    _wait(job, lambda: completed(job) >= 3, "three checkpoints")
    _stop(job, outcome)

    _, topology = build(name, root, Load(new, load.count, 16, 0.0, _SLOW_US, splits=old))
    job = launch(topology, spark, root, parallelism=new)
    _kill_while_recovering(job, outcome, rng)
    _wait(job, lambda: job.status.restarts >= 1 and completed(job) >= 2, "a checkpoint after the kill")
    _stop(job, outcome)

    last = rng.choice([old, new])
    world, topology = build(name, root, Load(last, load.count, 16, 0.0, 0, splits=old))
    job = launch(topology, spark, root, parallelism=last)
    _kill_while_recovering(job, outcome, rng)
    assert job.wait(_PATIENCE_S), "the pipeline did not come to its end"
    outcome.checkpoints += completed(job)
    outcome.verdict = world.verdict(topology.expected)
    return outcome


def _kill_while_recovering(job: Job, outcome: Outcome, rng: random.Random) -> None:
    """Let one checkpoint of the new attempt complete, and kill a worker of it."""
    _wait(job, lambda: completed(job) >= 1, "a checkpoint")
    recovery = job.status.recovery
    outcome.checkpoints_while_recovering += recovery is None or recovery.drained_ms is None
    processes = list(job.worker_processes.values())
    if processes and job.status.phase is Phase.RUNNING:
        os.kill(rng.choice(processes), signal.SIGKILL)
        outcome.kills += 1


def _wait(job: Job, condition: object, what: str) -> None:
    until(lambda: condition() or job.status.phase is Phase.FINISHED, what, _PATIENCE_S)  # type: ignore[operator]


def _stop(job: Job, outcome: Outcome) -> None:
    done = [record for record in job.checkpoints() if record.is_completed]
    outcome.checkpoints += len(done)
    outcome.inflight_bytes += done[-1].inflight_bytes if done else 0
    job.stop(timeout=_PATIENCE_S)
