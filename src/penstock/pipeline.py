"""What a user begins with, and starts."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Unpack

from penstock.api.builder import Builder

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from penstock.spark.job import Job
    from penstock.spark.settings import StartOptions


class Pipeline(Builder):
    """A pipeline: begin with `source`. `max_parallelism` is the number of key groups, which never changes again."""

    def start(self, spark: SparkSession, checkpoints: str | os.PathLike[str], **options: Unpack[StartOptions]) -> Job:
        """Start on Spark, or resume from what the directory or URL `checkpoints` holds.

            job = pipeline.start(spark, "/data/checkpoints/totals", parallelism=4, checkpoint_interval=1.0)

        `parallelism` is for operators that name none (default: the slots of the session, at most `workers`), `workers`
        the number of Spark tasks (default: the largest parallelism), `restore` the checkpoint to start from: an id in
        `checkpoints`, or the path of a savepoint. `storage_options` are for URLs. `listeners` are
        `JobListener`s that hear of the pipeline's life from its start on. The others are described at
        `penstock.spark.settings.Settings`, with their defaults.
        """
        # Only those who start a pipeline on Spark pay for importing what runs it.
        from penstock.spark import launch

        return launch.start(self.graph(), spark, checkpoints, **options)
