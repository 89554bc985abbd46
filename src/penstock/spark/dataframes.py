"""The output of a pipeline as DataFrames of its session."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.connectors.files.sink import FileSink
from penstock.errors import OptionError
from penstock.graph.physical import PhysicalPlan

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def output_of(spark: SparkSession, plan: PhysicalPlan, name: str | None) -> DataFrame:
    """The committed output of the file sink with this name; None names the only one.

    Raises `OptionError` if no file sink has the name, or if there are several and `name` is None.
    """
    from penstock.connectors.spark.output import PenstockDataSource

    directory = _file_sink(plan, name).directory
    spark.dataSource.register(PenstockDataSource)
    return spark.read.format(PenstockDataSource.name()).load(directory)


def _file_sink(plan: PhysicalPlan, name: str | None) -> FileSink:
    sinks = {node.name: node.sink for chain in plan.chains.values() for node in chain.nodes if node.sink is not None}
    files = {each: sink for each, sink in sinks.items() if isinstance(sink, FileSink)}
    shown = ", ".join(f"'{each}'" for each in files) or "none"
    if name is None:
        if len(files) != 1:
            raise OptionError(f"to_dataframe needs the name of a file sink: this pipeline has {shown}")
        return next(iter(files.values()))
    for each, sink in files.items():
        if each == name:
            return sink
    other = next((sink for each, sink in sinks.items() if each == name), None)
    if other is not None:
        raise OptionError(
            f"sink '{name}' is {other!r}: to_dataframe reads file sinks ({shown}). Read a table or topic with its own "
            f"reader of Spark"
        )
    raise OptionError(f"there is no sink '{name}'; the file sinks are: {shown}")
