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
    """The zone in which the session shows times; a test's stand-in for a session may have none."""
    conf = getattr(spark, "conf", None)
    zone = None if conf is None else conf.get("spark.sql.session.timeZone", None)
    return zone if isinstance(zone, str) and zone else "UTC"
