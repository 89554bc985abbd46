"""Ending jobs of Spark from another thread than the one that runs them.

The tags of a session are of no use for that: `SparkSession.interruptTag` knows those of its own thread only, and does
nothing, without a word, about others. The tags of a context are known to all threads. With Spark Connect there is
no context, and there the tags of a session are kept by the server.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.spark.sessions import context_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PREFIX = "penstock-"
"""Tags of pipelines begin so."""


def tag_jobs(spark: SparkSession, tag: str) -> None:
    """Mark all jobs that this thread will run."""
    context = context_of(spark)
    if context is None:
        spark.addTag(tag)
    else:
        context.addJobTag(tag)


def cancel_other_jobs(spark: SparkSession) -> None:
    """End all jobs of the application that no pipeline runs, as PySpark does with all at Ctrl-C."""
    context = context_of(spark)
    if context is None:
        return
    scala = context._jsc.sc()
    for job in context.statusTracker().getActiveJobsIds():
        if PREFIX not in str(scala.statusStore().job(job).jobTags().mkString(" ")):
            scala.cancelJob(job)


def cancel_jobs(spark: SparkSession, tag: str) -> None:
    """End the jobs that have been marked so and run now. Spark kills their Python processes, if need be."""
    context = context_of(spark)
    if context is None:
        spark.interruptTag(tag)
    else:
        context.cancelJobsWithTag(tag)
