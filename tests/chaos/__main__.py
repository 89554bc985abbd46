"""`python -m tests.chaos --minutes N`: pipelines on local Spark whose workers are killed at random moments.

Each round takes a topology and a checkpoint mode at random, kills, freezes and fails while it runs, and verifies
what came out. One summary line at the end; the exit code says whether anything was lost or came twice.
"""

from __future__ import annotations

import argparse
import contextlib
import logging
import os
import random
import signal
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from pyspark.sql import SparkSession

from penstock.spark.job import Job
from tests.simulation.topologies import TOPOLOGIES, Load
from tests.spark.conftest import make_session
from tests.spark.kit import build, launch
from tests.spark.world import FileWorld

_MODES = ("aligned", "unaligned", "unaligned", "aligned-with-timeout")


@dataclass(slots=True)
class Tally:
    rounds: int = 0
    kills: int = 0
    freezes: int = 0
    exceptions: int = 0
    restarts: int = 0
    checkpoints: int = 0
    unaligned: int = 0
    inflight_bytes: int = 0
    lost: int = 0
    duplicated: int = 0
    other: int = 0

    def __str__(self) -> str:
        return ", ".join(f"{name.replace('_', ' ')} {getattr(self, name)}" for name in self.__slots__)


def strike(job: Job, world: FileWorld, rng: random.Random, tally: Tally) -> None:
    """Do one bad thing to a pipeline that runs."""
    processes = list(job.worker_processes.values())
    what = rng.choices(["kill", "freeze", "exception"], [6, 1, 2])[0]
    if what == "exception":
        world.plan_failure(rng.choice(["map", "snapshot", "map.open"]))
        tally.exceptions += 1
        return
    if not processes:
        return
    victim = rng.choice(processes)
    with contextlib.suppress(ProcessLookupError):
        os.kill(victim, signal.SIGKILL if what == "kill" else signal.SIGSTOP)
        tally.kills += what == "kill"
        tally.freezes += what == "freeze"


def play(spark: SparkSession, rng: random.Random, tally: Tally, until: float) -> str | None:
    """One pipeline, from start to verdict; returns what is wrong with it."""
    name, mode = rng.choice(sorted(TOPOLOGIES)), rng.choice(_MODES)
    load = Load(2, rng.randint(400, 1500), 16, 0.0, rng.choice([500, 1500]))
    with tempfile.TemporaryDirectory(prefix="penstock-chaos-") as directory:
        root = Path(directory)
        world, topology = build(name, root, load)
        job = launch(topology, spark, root, mode, worker_silence=2.0, restarts_max=100)
        while not job.wait(rng.uniform(0.5, 4.0)):
            if time.monotonic() < until:
                strike(job, world, rng, tally)
        verdict = world.verdict(topology.expected)
        tally.rounds += 1
        tally.restarts += job.status.restarts
        done = [record for record in job.checkpoints() if record.is_completed]
        tally.checkpoints += len(done)
        tally.unaligned += sum(record.is_unaligned for record in done)
        tally.inflight_bytes += sum(record.inflight_bytes for record in done)
        tally.lost += int(str(verdict["lost"]))
        tally.duplicated += int(str(verdict["duplicated"]))
        tally.other += bool(verdict["violations"])
        return f"{name}, {mode}: {verdict}" if any(verdict.values()) else None


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--minutes", type=float, default=1.0)
    parser.add_argument("--seed", type=int, default=None, help="what is drawn; when things happen is up to the machine")
    arguments = parser.parse_args()
    # Everything fails here, on purpose.
    logging.disable(logging.CRITICAL)
    seed = arguments.seed if arguments.seed is not None else random.randrange(1 << 30)
    rng, tally = random.Random(seed), Tally()
    spark = make_session("local[2]", log_level="OFF")
    until = time.monotonic() + 60 * arguments.minutes
    while time.monotonic() < until:
        wrong = play(spark, rng, tally, until)
        print(f"round {tally.rounds}: {wrong or 'nothing lost, nothing twice'}", flush=True)
    spark.stop()
    print(f"chaos seed {seed}: {tally}")
    return 1 if tally.lost or tally.duplicated or tally.other else 0


if __name__ == "__main__":
    sys.exit(main())
