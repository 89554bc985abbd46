"""Which Python the workers run."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

from penstock.spark.sessions import context_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def use_own_python(spark: SparkSession) -> None:
    """Let workers on the driver's host run the driver's Python, unless the user has chosen one.

    Spark runs the `python3` of the search path, which has no Penstock if a virtual environment is used without being
    activated: by its path, from an IDE, cron or systemd.
    """
    context = context_of(spark)
    is_chosen = "PYSPARK_PYTHON" in os.environ or spark.conf.get("spark.pyspark.python", None) is not None
    if context is not None and f"{context.master}[".startswith("local[") and not is_chosen:
        context.pythonExec = sys.executable
