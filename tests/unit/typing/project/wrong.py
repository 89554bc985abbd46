"""Mistakes that a checker must find: each line with `# wrong` has one, and no other line has."""

from __future__ import annotations

import pyarrow as pa
from pyspark.sql import SparkSession

from penstock import Job, Pipeline
from penstock.operators.contract import OperatorContext
from penstock.spark.settings import Settings
from penstock.state import ValueState
from penstock.state.contract import StateDescriptor, StateOwner


def mistakes(pipeline: Pipeline, spark: SparkSession, job: Job, context: OperatorContext, schema: pa.Schema) -> None:
    pipeline.start(spark, "/checkpoints", paralelism=2)  # wrong
    pipeline.start(spark, "/checkpoints", parallelism="two")  # wrong
    pipeline.start(spark, "/checkpoints", checkpoint_mode="sometimes")  # wrong
    pipeline.start(spark, "/checkpoints", state_backend="rocks")  # wrong
    pipeline.start(spark).wait()  # wrong
    print(job.status.rows_read)  # wrong
    job.status.restarts.upper()  # wrong
    Settings(retained_checkpoint=3)  # wrong
    context.keyed.value("v", schema).append_value((1,))  # wrong
    context.keyed.list("l", schema).update((1,))  # wrong
    context.keyed.map("m", schema).keys()  # wrong
    context.keyed.register("v")  # wrong
    context.keyed.join("j")  # wrong


class Nothing:
    name = "nothing"

    def create(self, owner: StateOwner) -> int:
        return 0


descriptor: StateDescriptor[ValueState] = Nothing()  # wrong
