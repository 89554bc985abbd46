"""One Spark session for all tests of a kind: starting one takes longer than most tests."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.conftest import SHORT_LIVED

_ROOT = Path(__file__).resolve().parents[2]
# The workers must find the test's own modules, and our dependencies.
os.environ["PYTHONPATH"] = os.pathsep.join([str(_ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
os.environ.setdefault("PYSPARK_PYTHON", sys.executable)


def make_session(master: str, log_level: str = "ERROR") -> SparkSession:
    builder = SparkSession.builder.master(master).appName("penstock tests")
    for key, value in {
        "spark.ui.enabled": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.memory": "1g",
        "spark.python.task.killTimeout": "500ms",
        # On a slow machine executors may fail to come up in time; the master must not give up on us for that.
        "spark.deploy.maxExecutorRetries": "-1",
        "spark.executorEnv.PYTHONPATH": os.environ["PYTHONPATH"],
        "spark.executor.extraJavaOptions": SHORT_LIVED,
        "spark.log.level": log_level,
        "spark.ui.showConsoleProgress": "false",
    }.items():
        builder = builder.config(key, value)
    return builder.getOrCreate()


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """Four slots on two cores: more workers than cores is fine for correctness."""
    session = make_session("local[4]")
    yield session
    session.stop()
