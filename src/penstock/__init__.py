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
from typing import Any

from penstock.api.connected_streams import ConnectedStreams
from penstock.api.functions import (
    ExpiredTimerInfo,
    KeyedContext,
    KeyedFunction,
    Row,
    StatefulProcessor,
    StatefulProcessorHandle,
    TimerValues,
    TwoInputContext,
    TwoInputFunction,
)
from penstock.api.operator import Emit, Operator, OperatorContext
from penstock.api.stream import KeyedStream, Pipeline, Stream, register_start
from penstock.api.windowed_stream import WindowedStream
from penstock.connectors.callable import CallableSink
from penstock.connectors.collect import CollectSink
from penstock.connectors.console import ConsoleSink
from penstock.connectors.files import FileSource
from penstock.connectors.generator import GeneratorSource
from penstock.connectors.jsonl import JsonLinesSink
from penstock.connectors.memory import ABORT, CHECKPOINT, PAUSE, ListSource
from penstock.connectors.parquet import ParquetSink
from penstock.connectors.sink import Committer, Prepared, Sink, SinkWriter
from penstock.connectors.source import END_OF_SPLIT, Source, SplitReader
from penstock.connectors.spark_sink import SparkSink
from penstock.connectors.spark_source import SparkSource
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
)

__all__ = [
    # describing a pipeline
    "Pipeline",
    "Stream",
    "KeyedStream",
    "WindowedStream",
    "ConnectedStreams",
    # functions with state
    "KeyedFunction",
    "KeyedContext",
    "TwoInputFunction",
    "TwoInputContext",
    "StatefulProcessor",
    "StatefulProcessorHandle",
    "TimerValues",
    "ExpiredTimerInfo",
    "Row",
    # sources
    "FileSource",
    "GeneratorSource",
    "SparkSource",
    "ListSource",
    "ABORT",
    "CHECKPOINT",
    "PAUSE",
    # sinks
    "ParquetSink",
    "JsonLinesSink",
    "SparkSink",
    "ConsoleSink",
    "CollectSink",
    "CallableSink",
    # writing your own
    "Source",
    "SplitReader",
    "END_OF_SPLIT",
    "Sink",
    "SinkWriter",
    "Committer",
    "Prepared",
    "Operator",
    "OperatorContext",
    "Emit",
    # errors
    "PenstockError",
    "PipelineError",
    "OptionError",
    "DataError",
    "UserCodeError",
    "RestoreError",
    "IncompatibleCheckpoint",
    "NoReadableCheckpoint",
    "StorageError",
    "CorruptBlob",
    "FencedError",
    "JobFailed",
    "ProtocolViolation",
]


def _start(*arguments: Any, **settings: Any) -> Any:
    # Only those who start a pipeline on Spark pay for importing it.
    return importlib.import_module("penstock.spark.launch").start(*arguments, **settings)


register_start(_start)
