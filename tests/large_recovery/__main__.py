"""`python -m tests.large_recovery --mib 2048`: recover that much in-flight data on local Spark, in bounded memory."""

from __future__ import annotations

import argparse
import logging
import sys
import tempfile
from pathlib import Path

from pyspark.sql import SparkSession

from tests.large_recovery.play import MIB, play
from tests.spark.conftest import make_session

_MEMORY_MIB_MAX = 1024
"""What a worker may have beyond one that recovers nothing."""


def fresh_session() -> SparkSession:
    """A session without any process of the one before."""
    active = SparkSession.getActiveSession()
    if active is not None:
        active.stop()
    return make_session("local[2]", log_level="OFF")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.large_recovery", description=__doc__)
    parser.add_argument("--mib", type=int, default=2048, help="in-flight data to capture and recover")
    arguments = parser.parse_args()
    logging.disable(logging.CRITICAL)
    with tempfile.TemporaryDirectory(prefix="penstock-recovery-") as directory:
        outcome = play(fresh_session, Path(directory), arguments.mib)
    fresh_session().stop()
    print(outcome)
    problems = []
    if any(outcome.verdict.values()):
        problems.append("records were lost, came twice or out of order")
    if outcome.captured_bytes < arguments.mib * MIB:
        problems.append("less was in flight than was asked for")
    if 2 * outcome.left_bytes < outcome.captured_bytes:
        problems.append("more than half was drained before the first checkpoint was complete")
    if outcome.worker_mib - outcome.idle_mib > _MEMORY_MIB_MAX:
        problems.append(f"a worker had more than {_MEMORY_MIB_MAX} MiB beyond its state")
    for problem in problems:
        print(f"WRONG: {problem}")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
