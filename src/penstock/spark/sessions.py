"""What kind of session a pipeline was given, and whether it is still there."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

_SHUT_DOWN = (
    "SparkContext was shut down",
    "Cannot call methods on a stopped SparkContext",
    "SparkContext has been shutdown",
    "NO_ACTIVE_SESSION",
    "SESSION_CLOSED",
)
"""What Spark says about a job whose session was stopped under it."""


def context_of(spark: SparkSession) -> SparkContext | None:
    """The context of the application; None with Spark Connect, where the session knows of none."""
    return getattr(spark, "_sc", None)


def session_zone(spark: SparkSession) -> str:
    """The zone in which the session shows times: that of the JVM, unless it was set."""
    # Called with a default, Spark would return that instead of its own.
    return spark.conf.get("spark.sql.session.timeZone") or "UTC"


def master_of(spark: SparkSession) -> str:
    return spark.conf.get("spark.master", "") or ""


def is_on_this_host(master: str) -> bool:
    """Whether all executors of this master are on the driver's host: `local[2]`, or `local-cluster[2,1,1024]`."""
    return master.startswith("local")


def is_plain_local(spark: SparkSession) -> bool:
    """Whether all tasks run in the driver's own JVM, so that no executor can come or go."""
    master = master_of(spark)
    return is_on_this_host(master) and not master.startswith("local-cluster")


def is_stopped(spark: SparkSession, error: Exception | None = None) -> bool:
    """Whether the session was stopped, as far as it or `error`, with which a job of it ended, says so."""
    if error is not None and any(words in str(error) for words in _SHUT_DOWN):
        return True
    context = context_of(spark)
    if context is None:
        return bool(getattr(spark, "is_stopped", False))
    if context._jsc is None:
        return True
    try:
        return bool(context._jsc.sc().isStopped())
    except Exception:
        # The process behind it does not answer any more.
        return True
