"""Iceberg tables as sources and sinks, by `pyiceberg`, without a JVM."""

from penstock.connectors.iceberg.sink import IcebergSink
from penstock.connectors.iceberg.source import IcebergSource

__all__ = ["IcebergSink", "IcebergSource"]
