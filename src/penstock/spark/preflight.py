"""Before anything is submitted: can this session run this number of workers at all?

Spark would answer these questions too, but late, or never.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from penstock.errors import OptionError
from penstock.spark.sessions import is_plain_local, master_of
from penstock.spark.slots import slots_total

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_EXECUTORS_S_MAX = 30.0
"""How long executors may take to register after the session was started."""


def check_session(spark: SparkSession, workers: int) -> None:
    """Raise `OptionError` unless `workers` tasks can run at the same time."""
    if spark.conf.get("spark.dynamicAllocation.enabled", "false") == "true":
        raise OptionError(
            "dynamic allocation is on, and Spark refuses barrier stages then: start the session with "
            "spark.dynamicAllocation.enabled=false and a fixed number of executors"
        )
    slots = await_slots(spark, workers, _EXECUTORS_S_MAX)
    if slots < workers:
        raise OptionError(
            f"the pipeline needs {workers} workers at the same time, and this session has {slots} slots "
            f"(master {master_of(spark) or '?'}): start it with at least {workers} cores, "
            f"lower the parallelism, or put several subtasks on one worker with workers={max(slots, 1)}"
        )


def await_slots(spark: SparkSession, workers: int, seconds: float) -> int:
    """Wait until `workers` tasks can run at the same time, and return how many can.

    Executors come up late, and come back after they died. Spark itself looks only every 15 seconds whether a barrier
    stage fits, so it is better not to ask it too early.
    """
    slots = _slots(spark)
    until = time.monotonic() + seconds
    while slots < workers and not is_plain_local(spark) and time.monotonic() < until:
        time.sleep(0.1)
        slots = _slots(spark)
    return slots


def _slots(spark: SparkSession) -> int:
    total = slots_total(spark)
    # Spark Connect does not say; Spark itself will, when the job is submitted.
    return 1 << 30 if total is None else total
