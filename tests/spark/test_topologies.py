"""Every topology, in every checkpoint mode, on real Spark with real processes: nothing lost, nothing twice."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.simulation.topologies import TOPOLOGIES, Load
from tests.spark.kit import build, completed, inflight_bytes, launch
from tests.spark.world import FLAWLESS

pytestmark = pytest.mark.spark

LOAD = Load(parallelism=2, count=400, rows=16, idle=0.0, slow_us=800)
MODES = ("aligned", "unaligned", "aligned-with-timeout")
CANNOT_OVERTAKE = {"broadcast", "keyed_broadcast"}
"""Their slow part has a broadcast input, which stays aligned."""


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", sorted(TOPOLOGIES))
def test_every_record_comes_out_exactly_once(name: str, mode: str, spark: SparkSession, tmp_path: Path) -> None:
    world, topology = build(name, tmp_path, LOAD)
    job = launch(topology, spark, tmp_path, mode)
    assert job.wait(120)
    assert world.verdict(topology.expected) == FLAWLESS
    assert completed(job) >= 2
    if mode == "unaligned" and name not in CANNOT_OVERTAKE:
        assert inflight_bytes(job) > 0
    if mode == "aligned":
        assert inflight_bytes(job) == 0
