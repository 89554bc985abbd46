"""From topic to topic on Spark, while a worker is killed: an independent reader finds every update once."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.kafka import demo
from tests.kafka.kit import Topics
from tests.spark.conftest import spark

__all__ = ["spark"]
pytestmark = pytest.mark.spark


def test_totals_are_right_although_a_worker_is_killed(topics: Topics, spark: SparkSession, tmp_path: Path) -> None:
    assert demo.play(topics, spark, tmp_path, seconds=2, rate=2000, kill_broker=False) == 0
