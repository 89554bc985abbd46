"""What kind of session a pipeline was given."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession


def context_of(spark: SparkSession) -> SparkContext | None:
    """The context of the application; None with Spark Connect, where the session knows of none."""
    return getattr(spark, "_sc", None)


def session_zone(spark: SparkSession) -> str:
    """The zone in which the session shows times: that of the JVM, unless it was set."""
    # Called with a default, Spark would return that instead of its own.
    return spark.conf.get("spark.sql.session.timeZone") or "UTC"
