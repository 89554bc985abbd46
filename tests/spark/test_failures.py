"""Failures of every kind, each under backpressure with unaligned checkpoints: the pipeline goes on, exactly once."""

from __future__ import annotations

import contextlib
import os
import signal
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from penstock.ids import WorkerId
from penstock.spark.job import Job
from tests.simulation.topologies import Load, Topology
from tests.spark.kit import build, completed, inflight_bytes, launch, until
from tests.spark.world import FLAWLESS, FileWorld

pytestmark = pytest.mark.spark

LOAD = Load(parallelism=2, count=800, rows=16, idle=0.0, slow_us=1500)


def run_with(spark: SparkSession, root: Path, name: str = "keyed") -> tuple[FileWorld, Topology, Job]:
    world, topology = build(name, root, LOAD)
    job = launch(topology, spark, root)
    until(lambda: completed(job) >= 2, "two checkpoints")
    return world, topology, job


def is_alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    return True


def check(world: FileWorld, topology: Topology, job: Job, restarts: int = 1) -> None:
    assert job.wait(120)
    assert world.verdict(topology.expected) == FLAWLESS
    assert job.status.restarts >= restarts
    assert inflight_bytes(job) > 0


def test_a_worker_killed_twice_loses_nothing(spark: SparkSession, tmp_path: Path) -> None:
    world, topology, job = run_with(spark, tmp_path)
    for round in (1, 2):
        until(lambda: len(job.worker_processes) == 2, "both workers")
        before = completed(job)
        os.kill(job.worker_processes[WorkerId(0)], signal.SIGKILL)
        until(lambda round=round: job.status.restarts >= round, "the restart")  # type: ignore[misc]
        until(lambda before=before: completed(job) > before, "a checkpoint after it")  # type: ignore[misc]
    check(world, topology, job, restarts=2)


@pytest.mark.parametrize("wakes_up", [True, False])
def test_a_worker_that_hangs_counts_as_dead_and_is_fenced(wakes_up: bool, spark: SparkSession, tmp_path: Path) -> None:
    world, topology, job = run_with(spark, tmp_path)
    frozen = job.worker_processes[WorkerId(1)]
    os.kill(frozen, signal.SIGSTOP)
    until(lambda: job.status.restarts >= 1, "the restart")
    if wakes_up:
        # It may have been ended by Spark already; if not, it wakes up in a world that has moved on.
        with contextlib.suppress(ProcessLookupError):
            os.kill(frozen, signal.SIGCONT)
    check(world, topology, job)
    if not wakes_up:
        until(lambda: not is_alive(frozen), "the end of the process that hung")


@pytest.mark.parametrize("place", ["map", "snapshot"])
def test_an_exception_in_user_code_is_recovered_from(place: str, spark: SparkSession, tmp_path: Path) -> None:
    world, topology, job = run_with(spark, tmp_path)
    world.plan_failure(place)
    check(world, topology, job, restarts=1 if place == "map" else 0)
    if place == "map":
        assert "operator 'fragile'" in str(job.last_error)
        assert "planned failure in map" in str(job.last_error)


def test_an_exception_while_restoring_is_recovered_from(spark: SparkSession, tmp_path: Path) -> None:
    world, topology, job = run_with(spark, tmp_path)
    world.plan_failure("map.open")
    os.kill(job.worker_processes[WorkerId(0)], signal.SIGKILL)
    check(world, topology, job, restarts=2)
