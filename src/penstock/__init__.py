"""Penstock: continuous, stateful, exactly-once Python pipelines on a Spark cluster.

    from penstock import FileSource, ParquetSink, Pipeline

    pipeline = Pipeline("totals")
    (
        pipeline.source(FileSource("/data/orders"))
        .key_by("customer")
        .aggregate(total=("sum", "amount"), orders="count")
        .sink(ParquetSink("/data/totals"))
    )
    job = pipeline.start(spark, checkpoints="/data/checkpoints/totals")

To test a pipeline without Spark, see `penstock.testing`.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from penstock.api.connected import ConnectedStreams
from penstock.api.keyed_stream import KeyedStream
from penstock.api.over_stream import OverStream
from penstock.api.stream import Stream
from penstock.api.windowed_stream import CountWindowedStream, WindowedStream
from penstock.connectors.callable import CallableSink
from penstock.connectors.console import ConsoleSink
from penstock.connectors.files import FileSource
from penstock.connectors.files.json_lines_sink import JsonLinesSink
from penstock.connectors.files.latest import read_latest
from penstock.connectors.files.parquet_sink import ParquetSink
from penstock.connectors.generator import GeneratorSource
from penstock.connectors.kafka import KafkaSink, KafkaSource, SchemaRegistry
from penstock.connectors.sink import Committer, Prepared, Sink, SinkWriter, nothing_prepared
from penstock.connectors.source import END_OF_SPLIT, Backlog, Portion, Source, SplitReader
from penstock.connectors.spark.sink import SparkSink
from penstock.connectors.spark.source import SparkSource
from penstock.errors import (
    CorruptBlob,
    DataError,
    FencedError,
    IncompatibleCheckpoint,
    JobFailed,
    NoReadableCheckpoint,
    OptionError,
    PenstockError,
    PipelineError,
    ProtocolViolation,
    RestoreError,
    StorageError,
    UserCodeError,
    WorkersLost,
)
from penstock.metrics.group import MetricGroup
from penstock.metrics.samples import Metrics, Sample
from penstock.model.aggregates import ColumnarAggregate
from penstock.model.filtered import filtered
from penstock.model.units import Duration, Size
from penstock.operators.keyed.batch_function import BatchFunction
from penstock.operators.keyed.functions import KeyedContext, KeyedFunction, TwoInputContext, TwoInputFunction
from penstock.operators.keyed.handles import ListState, MapState, ValueState
from penstock.operators.side_outputs import SideOutput
from penstock.operators.spark.processor import (
    ExpiredTimerInfo,
    Row,
    StatefulProcessor,
    StatefulProcessorHandle,
    TimerValues,
)
from penstock.pipeline import Pipeline
from penstock.version import __version__

__all__ = [
    # describing a pipeline
    "Pipeline",
    "Stream",
    "KeyedStream",
    "WindowedStream",
    "CountWindowedStream",
    "ConnectedStreams",
    # running it
    "Job",
    "Status",
    "Settings",
    "Duration",
    "Size",
    # watching it
    "Metrics",
    "Sample",
    "JobProgress",
    "SourceProgress",
    "JobListener",
    "JobStarted",
    "CheckpointEnded",
    "JobRestarted",
    "JobFinished",
    # functions with state
    "KeyedFunction",
    "BatchFunction",
    "ColumnarAggregate",
    "filtered",
    "KeyedContext",
    "TwoInputFunction",
    "TwoInputContext",
    "ValueState",
    "ListState",
    "MapState",
    "StatefulProcessor",
    "StatefulProcessorHandle",
    "TimerValues",
    "ExpiredTimerInfo",
    "Row",
    # sources
    "FileSource",
    "KafkaSource",
    "SchemaRegistry",
    "DeltaSource",
    "DataFrameSource",
    "GeneratorSource",
    "SparkSource",
    # sinks
    "ParquetSink",
    "JsonLinesSink",
    "KafkaSink",
    "DeltaSink",
    "IcebergSink",
    "IcebergSource",
    "PostgresSink",
    "PostgresSource",
    "SparkSink",
    "ConsoleSink",
    "CallableSink",
    # writing your own
    "Source",
    "SplitReader",
    "END_OF_SPLIT",
    "SideOutput",
    "Sink",
    "SinkWriter",
    "Committer",
    "Prepared",
    "nothing_prepared",
    # errors
    "PenstockError",
    "PipelineError",
    "OptionError",
    "OverStream",
    "DataError",
    "UserCodeError",
    "RestoreError",
    "IncompatibleCheckpoint",
    "NoReadableCheckpoint",
    "StorageError",
    "CorruptBlob",
    "FencedError",
    "JobFailed",
    "WorkersLost",
    "ProtocolViolation",
    # the version
    "__version__",
    # reading output
    "read_latest",
    "PenstockDataSource",
    # writing your own, more
    "Portion",
    "Backlog",
    # metrics of your own
    "MetricGroup",
]

if TYPE_CHECKING:
    from penstock.connectors.delta import DeltaSink, DeltaSource
    from penstock.connectors.iceberg import IcebergSink, IcebergSource
    from penstock.connectors.postgres import PostgresSink, PostgresSource
    from penstock.connectors.spark.dataframe import DataFrameSource
    from penstock.connectors.spark.output import PenstockDataSource
    from penstock.driver.observation.listeners import (
        CheckpointEnded,
        JobFinished,
        JobListener,
        JobRestarted,
        JobStarted,
    )
    from penstock.driver.observation.progress import JobProgress, SourceProgress
    from penstock.spark.job import Job
    from penstock.spark.settings import Settings
    from penstock.spark.status import Status

# Only those who start a pipeline on Spark pay for importing what runs it.
_LATE = {
    "Job": "penstock.spark.job",
    "Status": "penstock.spark.status",
    "Settings": "penstock.spark.settings",
    "JobListener": "penstock.driver.observation.listeners",
    "JobStarted": "penstock.driver.observation.listeners",
    "CheckpointEnded": "penstock.driver.observation.listeners",
    "JobRestarted": "penstock.driver.observation.listeners",
    "JobFinished": "penstock.driver.observation.listeners",
    "JobProgress": "penstock.driver.observation.progress",
    "DataFrameSource": "penstock.connectors.spark.dataframe",
    "DeltaSink": "penstock.connectors.delta",
    "DeltaSource": "penstock.connectors.delta",
    "IcebergSink": "penstock.connectors.iceberg",
    "IcebergSource": "penstock.connectors.iceberg",
    "PenstockDataSource": "penstock.connectors.spark.output",
    "PostgresSink": "penstock.connectors.postgres",
    "PostgresSource": "penstock.connectors.postgres",
    "SourceProgress": "penstock.driver.observation.progress",
}


def __getattr__(name: str) -> object:
    if name in _LATE:
        return getattr(importlib.import_module(_LATE[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_LATE})
