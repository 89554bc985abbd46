"""What kind of session a pipeline was given, and which Python its workers run."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession


def context_of(spark: SparkSession) -> SparkContext | None:
    """The context of the application; None with Spark Connect, where the session knows of none."""
    return getattr(spark, "_sc", None)


def use_own_python(spark: SparkSession) -> None:
    """Let workers on the driver's host run the driver's Python, unless the user has chosen one.

    Spark runs the `python3` of the search path, which has no Penstock if a virtual environment is used without being
    activated: by its path, from an IDE, cron or systemd.
    """
    context = context_of(spark)
    is_chosen = "PYSPARK_PYTHON" in os.environ or spark.conf.get("spark.pyspark.python", None) is not None
    if context is not None and f"{context.master}[".startswith("local[") and not is_chosen:
        context.pythonExec = sys.executable
