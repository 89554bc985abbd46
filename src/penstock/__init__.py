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
import importlib.metadata
from typing import TYPE_CHECKING, Any

from penstock.api.connected import ConnectedStreams
from penstock.api.keyed_stream import KeyedStream
from penstock.api.stream import Stream
from penstock.api.windowed_stream import WindowedStream
from penstock.connectors.callable import CallableSink
from penstock.connectors.collect import CollectSink
from penstock.connectors.console import ConsoleSink
from penstock.connectors.files import FileSource
from penstock.connectors.files.json_lines_sink import JsonLinesSink
from penstock.connectors.files.latest import read_latest
from penstock.connectors.files.parquet_sink import ParquetSink
from penstock.connectors.generator import GeneratorSource
from penstock.connectors.kafka import KafkaSink, KafkaSource
from penstock.connectors.memory import ABORT, CHECKPOINT, PAUSE, ListSource
from penstock.connectors.sink import Committer, Prepared, Sink, SinkWriter
from penstock.connectors.source import END_OF_SPLIT, Source, SplitReader
from penstock.connectors.spark.sink import SparkSink
from penstock.connectors.spark.source import SparkSource
from penstock.errors import (
    CorruptBlob,
    DataError,
    FencedError,
    GangFailed,
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
from penstock.operators.functions import KeyedContext, KeyedFunction, TwoInputContext, TwoInputFunction
from penstock.operators.spark_processor import (
    ExpiredTimerInfo,
    Row,
    StatefulProcessor,
    StatefulProcessorHandle,
    TimerValues,
)
from penstock.pipeline import Pipeline

__all__ = [
    # describing a pipeline
    "Pipeline",
    "Stream",
    "KeyedStream",
    "WindowedStream",
    "ConnectedStreams",
    # running it
    "Job",
    "Status",
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
    "KafkaSource",
    "GeneratorSource",
    "SparkSource",
    "ListSource",
    "ABORT",
    "CHECKPOINT",
    "PAUSE",
    # sinks
    "ParquetSink",
    "JsonLinesSink",
    "KafkaSink",
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
    "GangFailed",
    "ProtocolViolation",
    # the version
    "__version__",
    # reading output
    "read_latest",
]

if TYPE_CHECKING:
    from penstock.spark.job import Job, Status

try:
    __version__ = importlib.metadata.version("penstock")
except importlib.metadata.PackageNotFoundError:
    # A source tree on the path, without an installation: the directory of a checkout, or an archive of one.
    __version__ = "0+unknown"

# Only those who start a pipeline on Spark pay for importing what runs it.
_LATE = ("Job", "Status")


def __getattr__(name: str) -> Any:
    if name in _LATE:
        return getattr(importlib.import_module("penstock.spark.job"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_LATE})
