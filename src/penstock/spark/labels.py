"""The name of a pipeline in Spark's user interface: on its job, and on its stage."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.ids import Generation
from penstock.spark.sessions import context_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def label_jobs(spark: SparkSession, pipeline: str, generation: Generation) -> None:
    """Name all jobs that this thread will run. Spark Connect has no such names: there the tag must do."""
    context = context_of(spark)
    if context is None:
        return
    label = f"penstock: {pipeline}, generation {generation}"
    context.setJobDescription(label)
    # The stage would be called "save at NativeMethodAccessorImpl.java:0".
    context.setLocalProperty("callSite.short", label)
    context.setLocalProperty("callSite.long", f"{label}. One task is one worker; it runs until the pipeline ends.")


def stop_progress_bar(spark: SparkSession) -> bool:
    """End the bar that Spark draws on the terminal, over all other lines, for as long as any stage runs.

    Spark cannot start it again in this session. Returns whether there was one.
    """
    context = context_of(spark)
    if context is None:
        return False
    bar = context._jsc.sc().progressBar()
    if not bar.isDefined():
        return False
    bar.get().finishAll()
    bar.get().stop()
    return True
