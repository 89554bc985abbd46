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

from penstock.version import __version__

if TYPE_CHECKING:
    from penstock.api.connected import ConnectedStreams
    from penstock.api.keyed_stream import KeyedStream
    from penstock.api.over_stream import OverStream
    from penstock.api.stream import Stream
    from penstock.api.windowed_stream import CountWindowedStream, WindowedStream
    from penstock.connectors.callable import CallableSink
    from penstock.connectors.console import ConsoleSink
    from penstock.connectors.delta import DeltaSink, DeltaSource
    from penstock.connectors.files import FileSource
    from penstock.connectors.files.json_lines_sink import JsonLinesSink
    from penstock.connectors.files.latest import read_latest
    from penstock.connectors.files.parquet_sink import ParquetSink
    from penstock.connectors.generator import GeneratorSource
    from penstock.connectors.iceberg import IcebergSink, IcebergSource
    from penstock.connectors.kafka import KafkaSink, KafkaSource, SchemaRegistry
    from penstock.connectors.postgres import PostgresSink, PostgresSource
    from penstock.connectors.sink import Committer, Prepared, Sink, SinkWriter, nothing_prepared
    from penstock.connectors.source import END_OF_SPLIT, Backlog, Portion, Source, SplitReader
    from penstock.connectors.spark.dataframe import DataFrameSource
    from penstock.connectors.spark.output import PenstockDataSource
    from penstock.connectors.spark.sink import SparkSink
    from penstock.connectors.spark.source import SparkSource
    from penstock.driver.observation.listeners import (
        CheckpointEnded,
        JobFinished,
        JobListener,
        JobRestarted,
        JobStarted,
    )
    from penstock.driver.observation.progress import JobProgress, SourceProgress
    from penstock.errors import (
        CorruptBlob,
        DataError,
        DriverSilent,
        FencedError,
        IncompatibleCheckpoint,
        JobFailed,
        NoAnswer,
        NoFreeSlots,
        NoReadableCheckpoint,
        OptionError,
        PenstockError,
        PipelineError,
        ProtocolViolation,
        RestoreError,
        SessionStopped,
        StorageError,
        UserCodeError,
        WorkerEnvironment,
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
    from penstock.spark.job import Job
    from penstock.spark.settings import Settings
    from penstock.spark.status import Status

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
    "PostgresSource",
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
    "DriverSilent",
    "NoAnswer",
    "NoFreeSlots",
    "SessionStopped",
    "WorkerEnvironment",
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

# Everything is imported when it is used: a process pays for what it needs, and most need a small part.
_PLACES = {
    "ConnectedStreams": "penstock.api.connected",
    "KeyedStream": "penstock.api.keyed_stream",
    "OverStream": "penstock.api.over_stream",
    "Stream": "penstock.api.stream",
    "CountWindowedStream": "penstock.api.windowed_stream",
    "WindowedStream": "penstock.api.windowed_stream",
    "CallableSink": "penstock.connectors.callable",
    "ConsoleSink": "penstock.connectors.console",
    "DeltaSink": "penstock.connectors.delta",
    "DeltaSource": "penstock.connectors.delta",
    "FileSource": "penstock.connectors.files",
    "JsonLinesSink": "penstock.connectors.files.json_lines_sink",
    "read_latest": "penstock.connectors.files.latest",
    "ParquetSink": "penstock.connectors.files.parquet_sink",
    "GeneratorSource": "penstock.connectors.generator",
    "IcebergSink": "penstock.connectors.iceberg",
    "IcebergSource": "penstock.connectors.iceberg",
    "KafkaSink": "penstock.connectors.kafka",
    "KafkaSource": "penstock.connectors.kafka",
    "SchemaRegistry": "penstock.connectors.kafka",
    "PostgresSink": "penstock.connectors.postgres",
    "PostgresSource": "penstock.connectors.postgres",
    "Committer": "penstock.connectors.sink",
    "Prepared": "penstock.connectors.sink",
    "Sink": "penstock.connectors.sink",
    "SinkWriter": "penstock.connectors.sink",
    "nothing_prepared": "penstock.connectors.sink",
    "Backlog": "penstock.connectors.source",
    "END_OF_SPLIT": "penstock.connectors.source",
    "Portion": "penstock.connectors.source",
    "Source": "penstock.connectors.source",
    "SplitReader": "penstock.connectors.source",
    "DataFrameSource": "penstock.connectors.spark.dataframe",
    "PenstockDataSource": "penstock.connectors.spark.output",
    "SparkSink": "penstock.connectors.spark.sink",
    "SparkSource": "penstock.connectors.spark.source",
    "CheckpointEnded": "penstock.driver.observation.listeners",
    "JobFinished": "penstock.driver.observation.listeners",
    "JobListener": "penstock.driver.observation.listeners",
    "JobRestarted": "penstock.driver.observation.listeners",
    "JobStarted": "penstock.driver.observation.listeners",
    "JobProgress": "penstock.driver.observation.progress",
    "SourceProgress": "penstock.driver.observation.progress",
    "CorruptBlob": "penstock.errors",
    "DataError": "penstock.errors",
    "FencedError": "penstock.errors",
    "IncompatibleCheckpoint": "penstock.errors",
    "JobFailed": "penstock.errors",
    "NoReadableCheckpoint": "penstock.errors",
    "OptionError": "penstock.errors",
    "PenstockError": "penstock.errors",
    "PipelineError": "penstock.errors",
    "ProtocolViolation": "penstock.errors",
    "RestoreError": "penstock.errors",
    "StorageError": "penstock.errors",
    "UserCodeError": "penstock.errors",
    "WorkersLost": "penstock.errors",
    "DriverSilent": "penstock.errors",
    "NoAnswer": "penstock.errors",
    "NoFreeSlots": "penstock.errors",
    "SessionStopped": "penstock.errors",
    "WorkerEnvironment": "penstock.errors",
    "MetricGroup": "penstock.metrics.group",
    "Metrics": "penstock.metrics.samples",
    "Sample": "penstock.metrics.samples",
    "ColumnarAggregate": "penstock.model.aggregates",
    "filtered": "penstock.model.filtered",
    "Duration": "penstock.model.units",
    "Size": "penstock.model.units",
    "BatchFunction": "penstock.operators.keyed.batch_function",
    "KeyedContext": "penstock.operators.keyed.functions",
    "KeyedFunction": "penstock.operators.keyed.functions",
    "TwoInputContext": "penstock.operators.keyed.functions",
    "TwoInputFunction": "penstock.operators.keyed.functions",
    "ListState": "penstock.operators.keyed.handles",
    "MapState": "penstock.operators.keyed.handles",
    "ValueState": "penstock.operators.keyed.handles",
    "SideOutput": "penstock.operators.side_outputs",
    "ExpiredTimerInfo": "penstock.operators.spark.processor",
    "Row": "penstock.operators.spark.processor",
    "StatefulProcessor": "penstock.operators.spark.processor",
    "StatefulProcessorHandle": "penstock.operators.spark.processor",
    "TimerValues": "penstock.operators.spark.processor",
    "Pipeline": "penstock.pipeline",
    "Job": "penstock.spark.job",
    "Settings": "penstock.spark.settings",
    "Status": "penstock.spark.status",
}


def __getattr__(name: str) -> object:
    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found: object = getattr(importlib.import_module(_PLACES[name]), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *_PLACES})
